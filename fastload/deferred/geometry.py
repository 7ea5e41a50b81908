"""Which of a deferred memory's images a tensor is a view of.

A view needs no record: torch makes it of the same memory, whose content is known.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from PIL import Image

from fastload.deferred.content import Content, Fill
from fastload.deferred.picked import Picked
from fastload.deferred.placed import Placed, common
from fastload.memory.packing import contiguous_stride

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastload.lazy.pixels import Pending

SIDE_MIN = 2
"""The smallest side of an image whose strides say which layout it has, pixels."""


def strides_of(shape: Sequence[int], *, planar: bool) -> tuple[int, ...]:
    """Strides of images without gaps, ``(C, H, W)`` or ``(N, C, H, W)``, in elements."""
    if planar:
        return contiguous_stride(shape)
    *_, channels, height, width = shape
    image = (1, width * channels, channels)
    return (height * width * channels, *image) if len(shape) == 4 else image


def shape_of(content: Content, dims: int) -> tuple[int, ...]:
    """Shape of a tensor that holds a content.

    With three dimensions it is one image of 3 channels, or all masks.
    """
    images, size = len(content.images), content.image_size
    if content.channels == 1:
        return {2: size, 3: (images, *size), 4: (images, 1, *size)}[dims]
    return (images, 3, *size)[-dims:]


_SMALL: Final = 2, 3
"""Height and width of :func:`small_like`."""
_GAP: Final = 2
_FAR: Final = 1000
"""Is added to strides of single elements that are larger than all of a mask."""


def small_like(tensor: torch.Tensor, content: Content) -> Any:
    """Make an ordinary tensor of few values that has a mask's type and layout.

    Torch chooses a result's strides by the order of its argument's, also of dimensions of size 1. Returns ``None`` if
    these have other strides than torch gives them.
    """
    *sizes, height, width = tensor.shape
    *strides, row, _ = tensor.stride()
    has_gaps = row != width
    small_row = _SMALL[1] + _GAP * has_gaps
    known = {1: 1, width: _SMALL[1], row: small_row, height * row: _SMALL[0] * small_row}
    chosen = [
        _FAR + each * (size == 1) if each > height * row else known.get(each)
        for size, each in zip(sizes, strides, strict=True)
    ]
    if None in chosen:
        return None
    shape = *(min(each, 2) for each in sizes), *_SMALL
    made = torch.empty_strided(shape, (*chosen, small_row, 1), dtype=content.table.dtype, device="cpu")  # type: ignore[arg-type]
    return made if type(tensor) is torch.Tensor else made.as_subclass(type(tensor))


def strides_as(small: torch.Tensor, shape: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of masks that lie in memory as a small tensor does.

    ``None`` if that has gaps.
    """
    usual, made = contiguous_stride(small.shape), contiguous_stride(shape)
    known = {1: 1} | dict(zip(usual, made, strict=True)) | {small.numel(): math.prod(shape)}
    strides = [
        (large if stride == contiguous else None) if size > 1 else stride - _FAR if stride > _FAR else known.get(stride)
        for size, stride, contiguous, large in zip(small.shape, small.stride(), usual, made, strict=True)
    ]
    return None if None in strides else tuple(strides)  # type: ignore[arg-type]


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
    if tensor.dtype != content.table.dtype:
        return None
    if content.channels == 1:
        return _placed_mask(tensor, content, side_min)
    if len(shape) not in (3, 4):
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
    if channel or top + height > rows or left + width > columns or not 0 < count <= len(content.images) - image:
        return None
    return range(image, image + count), (top, left, height, width)


def _placed_mask(
    tensor: torch.Tensor, content: Content, side_min: int
) -> tuple[range, tuple[int, int, int, int]] | None:
    shape, stride = tensor.shape, tensor.stride()
    rows, columns = content.image_size
    if len(shape) not in (2, 3, 4) or (len(shape) == 4 and shape[1] != 1) or stride[-2:] != (columns, 1):
        return None
    count, (height, width) = shape[0] if len(shape) > 2 else 1, shape[-2:]
    if min(height, width) < side_min or not count or (count > 1 and stride[0] != rows * columns):
        return None
    image, pixel = divmod(int(tensor.storage_offset()), rows * columns)
    top, left = divmod(pixel, columns)
    if top + height > rows or left + width > columns or image + count > len(content.images):
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


def _turned(image: Pending | Placed | Picked, method: Image.Transpose, kind: str) -> Pending | Placed | Picked:
    if isinstance(image, Picked):
        return image.turned(method)
    return image.turned(method) or image.changed(kind, {})
