"""torch's DataLoader: plain, pinned, and pinned with torchvision's own JPEG decoder."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from benchmarks.contenders._job import SIDE, Batches, Feed, Job, in_model_layout
from fastload.bench._data import MEAN, STD


def missing(variant: str, device: str) -> str | None:
    """Why this cannot take part."""
    if variant == "decode_jpeg":
        import torchvision.io  # noqa: F401 - registers the operator, if it was built

        if not hasattr(torch.ops.image, "decode_jpeg"):
            return "torchvision was built without libjpeg"
    return None


def open_feed(job: Job, variant: str) -> Feed:
    """Begin to load with ``job.threads`` worker processes."""
    torch.manual_seed(job.seed)
    dataset = job.dataset() if variant != "decode_jpeg" else _decoded_by_torchvision(job)
    pins = job.on_gpu and variant != "plain"
    loader = DataLoader(dataset, **job.options(dataset), pin_memory=pins, persistent_workers=True)
    iterator: Any = iter(loader)
    return Feed(delivered(iterator, torch.device(job.device), pins), iterator._shutdown_workers)


def delivered(iterator: Any, device: torch.device, pins: bool) -> Batches:
    """Copy each batch to a device, as a training loop does."""
    for images, labels in iterator:
        if device.type == "cpu":
            yield images, labels
        else:
            yield in_model_layout(images.to(device, non_blocking=pins)), labels.to(device, non_blocking=pins)


def _decoded_by_torchvision(job: Job) -> ImageFolder:
    """Decode to tensors that stay uint8 until resized, as the documentation of v2 advises."""
    from torchvision.io import ImageReadMode, decode_jpeg, read_file
    from torchvision.transforms import v2

    def load(path: str) -> torch.Tensor:
        decoded: torch.Tensor = decode_jpeg(read_file(path), mode=ImageReadMode.RGB)
        return decoded

    geometry = [v2.Resize((SIDE, SIDE), antialias=True)]
    if job.train:
        geometry = [v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()]
    dataset = job.dataset(v2.Compose([*geometry, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]))
    dataset.loader = load
    return dataset
