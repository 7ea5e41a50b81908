"""Run NVIDIA DALI as its ImageNet example configures it.

It decodes on the CPU or on the GPU, and normalizes on the GPU. For training the fastest of a few settings is taken.

DALI draws crops and flips of its own, and its pixels are near Pillow's, not equal: the resize is the same filter
(triangular, which is bilinear with antialiasing) in other arithmetic. RandAugment, TrivialAugmentWide and erasing are
its own too, with torchvision's parameters.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import time
from collections.abc import Generator
from typing import Any

import torch

from benchmarks.contenders._job import SIDE, Feed, Job
from fastload.bench._data import MEAN, STD

# Sizes that the example preallocates the GPU decoder's buffers for: those of the largest images in ImageNet.
WIDTH_HINT = 5980
HEIGHT_HINT = 6430
# Depths of the queue, and shares of the images that the GPU's own JPEG hardware decodes.
SETTINGS = {
    "cpu": [(depth, 0.0) for depth in (2, 3, 4)],
    "mixed": [(depth, load) for depth in (2, 3, 4) for load in (0.65, 0.9)],
}
TRIAL_S = 0.5  # of each setting


def open_feed(job: Job, variant: str) -> Feed:
    """Begin to load with ``job.threads`` threads."""
    plugin: Any = importlib.import_module("nvidia.dali.plugin.pytorch")
    depth, load = _fastest(job, variant) if job.train else SETTINGS[variant][0]
    pipeline = _pipeline(job, variant, depth, load)
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


@functools.cache
def _fastest(job: Job, decoder: str) -> tuple[int, float]:
    """Try each of the settings for a moment."""

    def rate(setting: tuple[int, float]) -> float:
        pipeline = _pipeline(job, decoder, *setting)
        for _ in range(setting[0]):
            pipeline.run()
        begin, batches = time.perf_counter(), 0
        while time.perf_counter() < begin + TRIAL_S:
            pipeline.run()
            batches += 1
        return batches / (time.perf_counter() - begin)

    return max(SETTINGS[decoder], key=rate)


def _pipeline(job: Job, decoder: str, depth: int, load: float) -> Any:
    """Build a pipeline ``depth`` batches deep; the GPU's JPEG hardware decodes the share ``load``."""
    fn: Any = importlib.import_module("nvidia.dali.fn")
    types: Any = importlib.import_module("nvidia.dali.types")
    device = torch.device(job.device)
    files, labels = job.files()
    hints = {}
    if decoder == "mixed":
        hints = {"preallocate_width_hint": WIDTH_HINT, "preallocate_height_hint": HEIGHT_HINT, "hw_decoder_load": load}
    defined: Any = importlib.import_module("nvidia.dali").pipeline_def(
        batch_size=job.batch_size,
        num_threads=job.threads,
        device_id=(device.index or 0) if job.on_gpu else None,
        seed=job.seed,
        prefetch_queue_depth=depth,
        enable_conditionals=job.recipe != "crops",  # the policies choose image by image
    )

    def graph() -> Any:
        encoded, targets = fn.readers.file(files=files, labels=labels, random_shuffle=job.train, name="reader")
        how = {"device": decoder, "output_type": types.RGB, **hints}
        if job.train:
            drawn = {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3], "num_attempts": 10}
            images = fn.decoders.image_random_crop(encoded, **drawn, **how)
            mirror = fn.random.coin_flip(probability=0.5)
        else:
            images, mirror = fn.decoders.image(encoded, **how), 0
        images = fn.resize(images, resize_x=SIDE, resize_y=SIDE, interp_type=types.INTERP_TRIANGULAR)
        if job.on_gpu:
            images, targets = images.gpu(), targets.gpu()
        augments = job.train and job.recipe != "crops"
        if augments:
            images = _augmented(fn.flip(images, horizontal=mirror), job.recipe)
        images = fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT,
            output_layout="HWC",
            crop=(SIDE, SIDE),
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            mirror=0 if augments else mirror,
        )
        return (_erased(images) if augments else images), targets

    pipeline = defined(graph)()
    pipeline.build()
    return pipeline


def _augmented(images: Any, recipe: str) -> Any:
    """Apply DALI's policy of that name with torchvision's parameters."""
    shifts = {"shape": (SIDE, SIDE), "fill_value": 0}
    if recipe == "randaugment":
        policy: Any = importlib.import_module("nvidia.dali.auto_aug.rand_augment")
        return policy.rand_augment(images, n=2, m=9, max_translate_rel=150 / 331, **shifts)
    policy = importlib.import_module("nvidia.dali.auto_aug.trivial_augment")
    return policy.trivial_augment_wide(images, max_translate_rel=32 / SIDE, **shifts)


def _erased(images: Any) -> Any:
    """Erase a rectangle in a tenth of the normalized images, as torchvision's RandomErasing draws it."""
    fn: Any = importlib.import_module("nvidia.dali.fn")
    maths: Any = importlib.import_module("nvidia.dali.math")
    area = fn.random.uniform(range=[0.02, 0.33]) * fn.random.coin_flip(probability=0.1)
    root = maths.exp(0.5 * fn.random.uniform(range=[math.log(0.3), math.log(3.3)]))
    size = fn.stack(maths.min(maths.sqrt(area) * root, 1.0), maths.min(maths.sqrt(area) / root, 1.0))
    anchor = fn.random.uniform(range=[0.0, 1.0], shape=2) * (1.0 - size)
    return fn.erase(images, anchor=anchor, shape=size, axis_names="HW", normalized=True, fill_value=0)
