"""Run NVIDIA DALI as its ImageNet example configures it.

It decodes on the CPU or on the GPU, and normalizes on the GPU.

DALI draws crops and flips of its own, and its pixels are near Pillow's, not equal: the resize is the same filter
(triangular, which is bilinear with antialiasing) in other arithmetic.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.contenders._job import SIDE, Feed, Job
from fastload.bench._data import MEAN, STD

if TYPE_CHECKING:
    from collections.abc import Generator

# Sizes that the example preallocates the GPU decoder's buffers for: those of the largest images in ImageNet.
WIDTH_HINT = 5980
HEIGHT_HINT = 6430


def missing(variant: str, device: str) -> str | None:
    """Why this cannot take part."""
    del variant, device
    try:
        found = importlib.util.find_spec("nvidia.dali")
    except ModuleNotFoundError:
        found = None
    if found is None:
        return "nvidia.dali is not installed; pip install nvidia-dali-cuda130, or --site dali=DIR"
    try:
        importlib.import_module("nvidia.dali.plugin.pytorch")
    except (ImportError, OSError, RuntimeError) as error:
        return f"nvidia.dali cannot be imported: {error}"
    return None


def open_feed(job: Job, variant: str) -> Feed:
    """Begin to load with ``job.threads`` threads."""
    plugin: Any = importlib.import_module("nvidia.dali.plugin.pytorch")
    pipeline = _pipeline(job, variant)
    # size=-1: the reader goes on for ever.
    iterator: Any = plugin.DALIGenericIterator([pipeline], ["images", "labels"], size=-1)
    held = [iterator, pipeline]

    def batches() -> Generator[tuple[torch.Tensor, torch.Tensor], None, None]:
        left = None if job.train else job.images
        for (data,) in held[0]:
            images = data["images"].permute(0, 3, 1, 2)  # NHWC in memory: channels_last, without a copy
            labels = data["labels"].squeeze(-1).long()
            if left is not None:
                images, labels = images[:left], labels[:left]
                left -= len(images)
            yield images, labels
            if left == 0:
                return

    def close() -> None:
        running.close()
        held.clear()

    running = batches()
    return Feed(running, close)


def _pipeline(job: Job, decoder: str) -> Any:
    fn: Any = importlib.import_module("nvidia.dali.fn")
    types: Any = importlib.import_module("nvidia.dali.types")
    device = torch.device(job.device)
    files, labels = job.files()
    hints = {"preallocate_width_hint": WIDTH_HINT, "preallocate_height_hint": HEIGHT_HINT} if decoder == "mixed" else {}
    pipeline: Any = importlib.import_module("nvidia.dali").Pipeline(
        batch_size=job.batch_size,
        num_threads=job.threads,
        device_id=(device.index or 0) if job.on_gpu else None,
        seed=job.seed,
    )
    with pipeline:
        encoded, targets = fn.readers.file(files=files, labels=labels, random_shuffle=job.train, name="reader")
        if job.train:
            images = fn.decoders.image_random_crop(
                encoded,
                device=decoder,
                output_type=types.RGB,
                random_area=[0.08, 1.0],
                random_aspect_ratio=[3 / 4, 4 / 3],
                num_attempts=10,
                **hints,
            )
            mirror = fn.random.coin_flip(probability=0.5)
        else:
            images = fn.decoders.image(encoded, device=decoder, output_type=types.RGB, **hints)
            mirror = 0
        images = fn.resize(images, resize_x=SIDE, resize_y=SIDE, interp_type=types.INTERP_TRIANGULAR)
        if job.on_gpu:
            images, targets = images.gpu(), targets.gpu()
        images = fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT,
            output_layout="HWC",
            crop=(SIDE, SIDE),
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            mirror=mirror,
        )
        pipeline.set_outputs(images, targets)
    pipeline.build()
    return pipeline
