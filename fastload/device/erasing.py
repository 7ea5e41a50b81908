"""Fill boxes of finished images with one color, or each with values of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from fastload.pipeline.ops.erasing import Erasing, Patch


@dataclass(frozen=True, slots=True, eq=False)
class Erased:
    """Boxes to fill with one color in a batch of finished images.

    Attributes:
        boxes: ``(N, 4)`` int32, on the host: (top, left, height, width) for each image; zeros fill nothing.
        color: One value per channel, of the images' dtype, on the host.
    """

    boxes: torch.Tensor
    color: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes worth counting that are copied to the device."""
        return 0

    def copied(self, device: torch.device, *, pin: bool) -> Erased:
        """Return the same; boxes are copied when they are filled."""
        return self

    def fill(self, images: torch.Tensor) -> None:
        """Fill ``(N, C, H, W)`` images of any layout in place.

        Runs on the current stream of their device; never blocks.
        """
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


@dataclass(frozen=True, slots=True, eq=False)
class Noise:
    """Boxes to fill with values of their own in a batch of finished images.

    Attributes:
        places: (image, top, left, height, width) of each box, in order; later ones cover earlier ones.
        values: Of each box, ``(3, height, width)`` or ``(3, 1, 1)``, in the images' dtype.
    """

    places: list[tuple[int, int, int, int, int]]
    values: list[torch.Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return sum(values.nbytes for values in self.values)

    def copied(self, device: torch.device, *, pin: bool) -> Noise:
        """Copy the values to ``device``, on its current stream, all at once.

        Blocks only if they are not pinned first.
        """
        if device.type == "cpu":
            return self
        first = self.values[0]
        host = torch.empty(sum(values.numel() for values in self.values), dtype=first.dtype, pin_memory=pin)
        torch.cat([values.reshape(-1) for values in self.values], out=host)
        parts = torch.split(host.to(device, non_blocking=pin), [values.numel() for values in self.values])
        return replace(self, values=[part.view(values.shape) for part, values in zip(parts, self.values, strict=True)])

    def fill(self, images: torch.Tensor) -> None:
        """Fill ``(N, 3, H, W)`` images of any layout in place.

        Runs on the current stream of their device, where the values are; never blocks.
        """
        for (image, top, left, height, width), values in zip(self.places, self.values, strict=True):
            images[image, :, top : top + height, left : left + width].copy_(values)


def to_fill(erasing: Erasing | None, patches: list[list[Patch]]) -> Erased | Noise | None:
    """Join the samples' patches; ``None`` if nothing is erased."""
    if erasing is None:
        return None
    filled = [[(box, values) for box, values in some if box[2] and box[3]] for some in patches]
    if not any(filled):
        return None
    if erasing.color is not None:
        boxes = [some[0][0] if some else (0, 0, 0, 0) for some in filled]
        return Erased(torch.tensor(boxes, dtype=torch.int32), erasing.color)
    pairs = [((image, *box), values) for image, some in enumerate(filled) for box, values in some if values is not None]
    return Noise([place for place, _ in pairs], [values for _, values in pairs])
