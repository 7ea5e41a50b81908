"""Pixels on their way to a device, where they become the batch's images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fastload.device.epilogue import apply_table

if TYPE_CHECKING:
    from fastload.device.epilogue import NormalizeTable


def to_images(pixels: torch.Tensor, table: NormalizeTable | None, memory_format: torch.memory_format) -> torch.Tensor:
    """``(N, H, W, 3)`` uint8 to ``(N, 3, H, W)``: looked up in ``table``, or still uint8 without one."""
    if table is not None:
        return apply_table(pixels, table, memory_format, wait=False)
    return pixels.permute(0, 3, 1, 2).contiguous(memory_format=memory_format)


class TableImages:
    """A leaf of a host batch: crosses the link as uint8 pixels and arrives as images.

    Args:
        pixels: ``(N, H, W, 3)`` uint8, on the host, pinned or not.
        table: See :func:`to_images`.
        memory_format: Of the images.
    """

    def __init__(self, pixels: torch.Tensor, table: NormalizeTable | None, memory_format: torch.memory_format) -> None:
        self.pixels = pixels
        self.table = table
        self.memory_format = memory_format

    @property
    def nbytes(self) -> int:
        """That cross the link."""
        return int(self.pixels.nbytes)

    def pin_memory(self) -> TableImages:
        """Itself, with its pixels in pinned memory."""
        return TableImages(self.pixels.pin_memory(), self.table, self.memory_format)

    def to(self, device: torch.device, *, non_blocking: bool = False) -> torch.Tensor:
        """The images on ``device``, by its current stream."""
        return to_images(self.pixels.to(device, non_blocking=non_blocking), self.table, self.memory_format)

    def record_stream(self, stream: torch.Stream) -> None:
        """Nothing: this is host memory, which whoever copies it holds until the copy is done."""
