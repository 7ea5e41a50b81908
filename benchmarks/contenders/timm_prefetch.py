"""Run timm's PrefetchLoader, composed as timm's create_loader does.

It copies uint8 to the GPU on a side stream and normalizes there.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from benchmarks.contenders._job import SIDE, Batches, Feed, Job, in_model_layout
from fastload.bench._data import MEAN, STD


def open_feed(job: Job, variant: str) -> Feed:
    """Begin to load with ``job.threads`` worker processes."""
    torch.manual_seed(job.seed)
    timm_loader: Any = importlib.import_module("timm.data.loader")
    timm_transforms: Any = importlib.import_module("timm.data.transforms")
    geometry = [transforms.Resize((SIDE, SIDE))]
    if job.train:
        geometry = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip()]
    dataset = job.dataset(transforms.Compose([*geometry, timm_transforms.ToNumpy()]))
    options: dict[str, Any] = {"pin_memory": job.on_gpu, "persistent_workers": True, **job.options(dataset)}
    loader = DataLoader(dataset, collate_fn=timm_loader.fast_collate, **options)
    prefetcher = timm_loader.PrefetchLoader(loader, MEAN, STD, device=torch.device(job.device))

    def delivered() -> Batches:
        for images, labels in prefetcher:
            yield in_model_layout(images), labels

    def close() -> None:
        if loader._iterator is not None:
            loader._iterator._shutdown_workers()  # type: ignore[attr-defined]

    return Feed(delivered(), close)
