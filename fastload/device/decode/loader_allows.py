"""Whether a GPU can decode the JPEG files of a loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fastload.memory.limits import pins

if TYPE_CHECKING:
    from fastload.options import LoaderConfig
    from fastload.pipeline.recipe import Recipe


def not_on_gpu_because(loader: LoaderConfig[object], recipe: Recipe | None, device: torch.device) -> str | None:
    """Why threads or workers decode every image; None if the GPU can decode some.

    Args:
        loader: Its options count.
        recipe: How to make its samples, if the dataset does not.
        device: Where batches go.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return f"batches go to {device.type}, and the kernels are CUDA's"
    if loader.num_workers == 0:
        return "num_workers=0 makes batches between steps"
    if not loader.device_prefetch:
        return "device_prefetch=0 copies on the consumer's stream"
    if not pins(loader, device):
        return "max_pinned_bytes=0, and files are copied through pinned memory"
    if recipe is not None and recipe.in_memory:
        return "the images are arrays"
    from fastload.device import nvrtc

    return nvrtc.lacking_package()
