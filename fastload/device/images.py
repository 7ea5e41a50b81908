"""Pixels on their way to a device, where they become the batch's images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fastload.device.normalize import apply_table

if TYPE_CHECKING:
    from fastload.device.normalize import NormalizeTable
    from fastload.pipeline.erasing import Erasing


@dataclass(frozen=True, slots=True, eq=False)
class Erased:
    """What is filled with one color in a batch of finished images.

    Attributes:
        boxes: ``(N, 4)`` int32, on the host: (top, left, height, width) for each image; zeros fill nothing.
        color: Of the images' dtype, one value per channel, on the host.
    """

    boxes: torch.Tensor
    color: torch.Tensor

    @classmethod
    def of(cls, erasing: Erasing | None, boxes: torch.Tensor | None) -> Erased | None:
        """``None`` where nothing is erased."""
        if erasing is None or boxes is None or not bool((boxes[:, 2] * boxes[:, 3]).any()):
            return None
        return cls(boxes, erasing.color)

    def fill(self, images: torch.Tensor) -> None:
        """Fill ``(N, C, H, W)`` images of any layout in place, on the current stream of their device; never blocks."""
        if images.device.type == "cpu":
            for image, (top, left, height, width) in zip(images, self.boxes.tolist(), strict=True):
                image[:, top : top + height, left : left + width] = self.color[:, None, None]
            return
        boxes = self.boxes.to(images.device, non_blocking=True)
        top, left, height, width = boxes.view(-1, 4, 1, 1).unbind(1)
        rows = torch.arange(images.size(2), dtype=torch.int32, device=images.device).view(1, -1, 1) - top
        columns = torch.arange(images.size(3), dtype=torch.int32, device=images.device) - left
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        for channel, value in enumerate(self.color.tolist()):
            images[:, channel].masked_fill_(inside, value)


def to_images(
    pixels: torch.Tensor,
    table: NormalizeTable | None,
    memory_format: torch.memory_format,
    erased: Erased | None = None,
) -> torch.Tensor:
    """``(N, H, W, 3)`` uint8 to ``(N, 3, H, W)``: looked up in ``table``, or still uint8 without one; then erased."""
    if table is not None:
        images = apply_table(pixels, table, memory_format, wait=False)
    else:
        images = pixels.permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
    if erased is not None:
        erased.fill(images)
    return images


class TableImages:
    """A leaf of a host batch: crosses the link as uint8 pixels and arrives as images.

    Args:
        pixels: ``(N, H, W, 3)`` uint8, on the host, pinned or not.
        table: See :func:`to_images`.
        memory_format: Of the images.
        erased: See :func:`to_images`.
    """

    def __init__(
        self,
        pixels: torch.Tensor,
        table: NormalizeTable | None,
        memory_format: torch.memory_format,
        erased: Erased | None = None,
    ) -> None:
        self.pixels = pixels
        self.table = table
        self.memory_format = memory_format
        self.erased = erased

    @property
    def nbytes(self) -> int:
        """That cross the link."""
        return int(self.pixels.nbytes)

    def pin_memory(self) -> TableImages:
        """Itself, with its pixels in pinned memory."""
        return TableImages(self.pixels.pin_memory(), self.table, self.memory_format, self.erased)

    def to(self, device: torch.device, *, non_blocking: bool = False) -> torch.Tensor:
        """The images on ``device``, by its current stream."""
        return self.cross(device, non_blocking=non_blocking).images()

    def cross(self, device: torch.device, *, non_blocking: bool = False) -> Crossed:
        """The pixels alone on ``device``; the rest is an epilogue."""
        return Crossed(self, self.pixels.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: torch.Stream) -> None:
        """Nothing: this is host memory, which whoever copies it holds until the copy is done."""


class Crossed:
    """Images of which only the pixels have been copied so far."""

    def __init__(self, host: TableImages, pixels: torch.Tensor) -> None:
        self._host = host
        self._pixels = pixels

    def images(self) -> torch.Tensor:
        """They themselves, by the current stream of their device."""
        host = self._host
        return to_images(self._pixels, host.table, host.memory_format, host.erased)
