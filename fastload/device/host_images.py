"""Images of native batches in host memory, whose values decode threads write."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from fastload import _core
from fastload.device.erasing import to_fill
from fastload.device.normalize import LEVELS, finish

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.pipeline.ops.erasing import Patch
    from fastload.pipeline.recipe import Recipe
    from fastload.pipeline.transforms import Pipeline


class HostImages:
    """The images of one batch, which a job writes.

    Args:
        pipeline: How they are made.
        table: ``(C, 256)``: value of each level of each channel.
        samples: Their number; each has all views.
    """

    def __init__(self, pipeline: Pipeline, table: torch.Tensor, samples: int) -> None:
        self._pipeline = pipeline
        self._views = [
            torch.empty((samples, len(table), *size), dtype=table.dtype, device="cpu") for size in pipeline.sizes
        ]
        # The core takes tensors: NumPy has no bfloat16, and torch resizes no memory that an array has shared.
        self.options: dict[str, Any] = {"values": self._views, "table": table}
        """Arguments of ``_core.Pool.submit``."""

    def put(self, sample: int, view: int, pixels: torch.Tensor) -> None:
        """Write a sample's view that Python has made, ``(1, H, W, 3)``."""
        _core.look_up(pixels, self.options["table"], self._views[view][sample : sample + 1], True)

    def images(self, patches: list[list[Patch]]) -> list[torch.Tensor] | torch.Tensor:
        """Erase patches of a finished job's images; return these, or a list of views."""
        if len(self._views) > 1:
            return self._views
        if (erased := to_fill(self._pipeline.erasing, patches)) is not None:
            erased.fill(self._views[0])
        return self._views[0]


def host_images_of(recipe: Recipe, dtype: torch.dtype | None = None) -> Callable[[int], HostImages]:
    """Return a function that makes room for a batch of so many samples.

    Args:
        recipe: How to make them.
        dtype: Of floating-point images; ``None`` leaves their own.
    """
    pipeline, table = recipe.pipeline, recipe.pipeline.table
    if table is None:
        table = torch.arange(LEVELS, dtype=torch.uint8, device="cpu").repeat(pipeline.channels, 1)
    return functools.partial(HostImages, pipeline, finish(table.detach(), None, dtype).contiguous())
