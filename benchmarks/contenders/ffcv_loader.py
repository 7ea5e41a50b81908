"""Run FFCV from a file in its own format, which is written first.

The file holds whole images, re-encoded as JPEG of quality 90, or raw pixels.

JPEG is what everybody else reads. Raw is what FFCV's guide offers where there is room for it: nothing is decoded, and
the file is as large as the pixels are. Its decoder draws crops of its own and resizes with OpenCV's area filter, so
that without ``train`` images are stored as torchvision has resized them: what is compared is reading, order, labels and
normalization.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision import transforms

from benchmarks.contenders._job import SIDE, Feed, Job, in_model_layout
from fastload.bench._data import MEAN, STD

_QUALITY = 90  # FFCV's default, and that of the photographs of ``fastload bench photos``


def missing(variant: str, device: str) -> str | None:
    """Why this cannot take part."""
    if device.startswith("cuda"):
        try:
            importlib.import_module("cupy")  # normalizes on the GPU
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            return f"ffcv cannot be imported: {type(error).__name__}: {error}"
    return None


def open_feed(job: Job, variant: str) -> Feed:
    """Begin to load with ``job.threads`` threads; the file is written if it is not there.

    ``variant`` is how images are stored, FFCV's ``write_mode``: ``"jpg"`` or ``"raw"``.
    """
    file = written(job, variant if job.train else "raw")
    loader: Any = importlib.import_module("ffcv.loader")
    order = loader.OrderOption.RANDOM if job.train else loader.OrderOption.SEQUENTIAL

    def make() -> Any:
        return loader.Loader(
            str(file),
            batch_size=job.batch_size,
            num_workers=job.threads,
            os_cache=True,  # the data set fits into memory
            order=order,
            drop_last=job.train,
            indices=_many(len(job.files()[0]), job.batch_size) if job.train and not job.images else None,
            seed=job.seed,
            pipelines={"image": _image_pipeline(job), "label": _label_pipeline(job)},
        )

    made = [make()]

    def delivered() -> Generator[tuple[torch.Tensor, torch.Tensor], None, None]:
        while True:
            for images, labels in made[0]:
                yield in_model_layout(images), labels
            if not job.train:
                return

    def close() -> None:
        running.close()
        made.clear()

    running = delivered()
    return Feed(running, close)


def _many(images: int, batch_size: int) -> Any:
    """Repeat every image many times, so that epochs, which start with empty buffers, are long."""
    return np.tile(np.arange(images), -(-1000 * batch_size // images))


def written(job: Job, write_mode: str) -> Path:
    """The data set as a file of FFCV's format, below ``.fastload/`` in the current folder."""
    transform = transforms.Lambda(lambda image: image) if job.train else transforms.Resize((SIDE, SIDE))
    dataset = job.dataset(transform)
    indices = job.indices(dataset)
    what = json.dumps([dataset.root, [dataset.samples[index] for index in indices], job.train, write_mode])
    path = Path(".fastload") / f"{hashlib.sha256(what.encode()).hexdigest()[:16]}.beton"
    if not path.exists():
        writer: Any = importlib.import_module("ffcv.writer")
        fields: Any = importlib.import_module("ffcv.fields")
        path.parent.mkdir(exist_ok=True)
        staging = path.with_suffix(f".{os.getpid()}")
        image = fields.RGBImageField(write_mode=write_mode, jpeg_quality=_QUALITY)
        columns = {"image": image, "label": fields.IntField()}
        target = writer.DatasetWriter(str(staging), columns, num_workers=job.threads)
        target.from_indexed_dataset(torch.utils.data.Subset(dataset, indices))
        staging.rename(path)
    return path


def _image_pipeline(job: Job) -> list[Any]:
    rgb: Any = importlib.import_module("ffcv.fields.rgb_image")
    t: Any = importlib.import_module("ffcv.transforms")
    mean, std = 255 * np.array(MEAN), 255 * np.array(STD)
    steps = [rgb.SimpleRGBImageDecoder()]
    if job.train:
        steps = [rgb.RandomResizedCropRGBImageDecoder((SIDE, SIDE)), t.RandomHorizontalFlip()]
    if job.on_gpu:  # as in FFCV's ImageNet example
        device = torch.device(job.device)
        steps += [t.ToTensor(), t.ToDevice(device, non_blocking=True), t.ToTorchImage()]
        return [*steps, t.NormalizeImage(mean, std, np.float32)]
    steps += [t.NormalizeImage(mean, std, np.float32), t.ToTensor()]
    return [*steps, t.ToTorchImage(channels_last=False, convert_back_int16=False)]


def _label_pipeline(job: Job) -> list[Any]:
    basics: Any = importlib.import_module("ffcv.fields.basics")
    t: Any = importlib.import_module("ffcv.transforms")
    steps = [basics.IntDecoder(), t.ToTensor(), t.Squeeze()]
    return [*steps, t.ToDevice(torch.device(job.device), non_blocking=True)] if job.on_gpu else steps
