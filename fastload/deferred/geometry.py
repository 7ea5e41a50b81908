"""Which of a deferred memory's images a tensor is a view of.

A view needs no record: torch makes it of the same memory, whose content is known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from PIL import Image

from fastload.deferred.content import Content, Fill
from fastload.deferred.placed import Placed, common
from fastload.memory.packing import contiguous_stride

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from fastload.lazy.pixels import Pending

SIDE_MIN = 2
"""The smallest side of an image whose strides say which layout it has, pixels."""


def strides_of(shape: Sequence[int], *, planar: bool) -> tuple[int, ...]:
    """Strides of images without gaps, ``(3, H, W)`` or ``(N, 3, H, W)``, in elements."""
    if planar:
        return contiguous_stride(shape)
    *_, channels, height, width = shape
    image = (1, width * channels, channels)
    return (height * width * channels, *image) if len(shape) == 4 else image


def placed(
    tensor: torch.Tensor, content: Content, side_min: int = SIDE_MIN
) -> tuple[range, tuple[int, int, int, int]] | None:
    """Find images and a box, ``(top, left, height, width)``, that a tensor views.

    Args:
        tensor: Shares the content's memory.
        content: What the memory holds.
        side_min: The smallest side of the box, pixels.

    Returns:
        ``None`` if it is anything else than a part of all channels.
    """
    shape, stride = tensor.shape, tensor.stride()
    if len(shape) not in (3, 4) or tensor.dtype != content.table.dtype:
        return None
    rows, columns = content.image_size
    whole = (len(content.images), 3, rows, columns)[-len(shape) :]
    channels, height, width = shape[-3:]
    if stride[-3:] != strides_of(whole, planar=content.planar)[-3:] or channels != 3:
        return None
    if min(height, width) < side_min:
        return None
    size = 3 * rows * columns
    if len(shape) == 4 and stride[0] != size and (shape[0] != 1 or not content.planar):
        return None  # of one image with channels last, too: torch does not give a result that stride
    image, within = divmod(int(tensor.storage_offset()), size)
    channel, pixel = divmod(within, rows * columns) if content.planar else divmod(within, 3)[::-1]
    top, left = divmod(pixel, columns)
    count = shape[0] if len(shape) == 4 else 1
    if channel or top + height > rows or left + width > columns or image + count > len(content.images):
        return None
    return range(image, image + count), (top, left, height, width)


def part_of(content: Content, images: range, box: tuple[int, int, int, int]) -> Content | None:
    """Return what a part of the images holds; ``None`` if it cannot be said."""
    rows, columns = content.image_size
    top, left, height, width = box
    if box == (0, 0, rows, columns):
        if len(images) == len(content.images):
            return content
        chosen: list[Any] = [content.images[image] for image in images]
    else:
        area = left, top, left + width, top + height
        chosen = [content.images[image].cropped(area) for image in images]
        if None in chosen:
            return None
    fills = tuple(
        Fill(fill.image - images.start, inside, fill.values)
        for fill in content.fills
        if fill.image in images and (inside := _inside(fill.box, box)) is not None
    )
    return replace(content, images=tuple(chosen), fills=fills)


def _inside(fill: tuple[int, int, int, int], box: tuple[int, int, int, int]) -> tuple[int, int, int, int] | None:
    inside = common(fill, box)
    return None if inside is None else (inside[0] - box[0], inside[1] - box[1], *inside[2:])


def flipped(content: Content, *, horizontally: bool, vertically: bool) -> Content:
    """Return what the flipped images hold."""
    rows, columns = content.image_size
    images = content.images
    if horizontally:
        images = tuple(_turned(image, Image.Transpose.FLIP_LEFT_RIGHT, "flip_horizontal") for image in images)
    if vertically:
        images = tuple(_turned(image, Image.Transpose.FLIP_TOP_BOTTOM, "flip_vertical") for image in images)
    fills = []
    for fill in content.fills:
        top, left, height, width = fill.box
        box = (
            rows - top - height if vertically else top,
            columns - left - width if horizontally else left,
            height,
            width,
        )
        fills.append(Fill(fill.image, box, fill.values))
    return replace(content, images=images, fills=tuple(fills))


def _turned(image: Pending | Placed, method: Image.Transpose, kind: str) -> Pending | Placed:
    return image.turned(method) or image.changed(kind, {})
