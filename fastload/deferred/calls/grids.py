"""Read torchvision's rotations and affine transforms of uint8 tensors as steps of their images.

Only with nearest neighbour: torch itself moves the numbers of an image's pixels once, and the core does the same with
pixels.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torchvision.transforms.functional import InterpolationMode

from fastload import _core

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.deferred.content import Content
    from fastload.pipeline.nodes import Node

HOME: Final = "torchvision.transforms.v2.functional._geometry"

STEP: Final = "torch_gather"
"""The kind of all steps made here."""

_NUMBERED_MAX: Final = 2**24
"""Pixels whose numbers float32 tells apart."""

_KEPT_MAX: Final = 2**17
"""Pixels of images whose places are kept: RandAugment draws one of two signs of a few transforms."""


def _affine(original: Any, content: Content, /, *values: Any) -> Node | None:
    *how, interpolation, fill, center = values
    return _step(original, content, interpolation, fill, (*how, InterpolationMode.NEAREST, None, center))


def _rotation(original: Any, content: Content, /, *values: Any) -> Node | None:
    angle, interpolation, expand, center, fill = values
    if angle % 90 == 0 or expand is not False:
        return None  # a turn, whose layout is another
    return _step(original, content, interpolation, fill, (angle, InterpolationMode.NEAREST, expand, center, None))


FUNCTIONS: Final[dict[str, tuple[Callable[..., Node | None], bool]]] = {
    "affine_image": (_affine, True),
    "rotate_image": (_rotation, True),
}
"""As of :data:`fastload.deferred.calls.colors.FUNCTIONS`."""


def _step(original: Any, content: Content, interpolation: Any, fill: Any, values: tuple[Any, ...]) -> Node | None:
    height, width = content.image_size
    if (
        interpolation not in (InterpolationMode.NEAREST, InterpolationMode.NEAREST.value, 0)
        or height * width >= _NUMBERED_MAX
    ):
        return None
    if not all(map(_is_plain, values)) or torch.is_autocast_enabled("cpu"):
        return None
    color = _color(fill)
    if fill is not None and color is None:
        return None
    make = _kept_places if height * width <= _KEPT_MAX else _places
    # Beside the arguments, what may change the bits of torch's products.
    settings = torch.get_num_threads(), torch.get_float32_matmul_precision()
    fields = {"places": make(original, (height, width), settings, *map(_hashable, values))}
    return STEP, fields if color is None else {**fields, "fill": color}


def _color(fill: Any) -> tuple[int, ...] | None:
    """What torch rounds a fill to, one level for each channel; ``None`` beyond levels."""
    levels = fill if type(fill) in (list, tuple) else (fill,)
    if len(levels) not in (1, 3) or not all(type(each) in (int, float) and 0 <= each <= 255 for each in levels):
        return None
    rounded = [round(float(np.float32(each))) for each in levels]
    return tuple(rounded * 3)[:3]


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(type(each) in (int, float) for each in value)
    return type(value) in (int, float, bool, type(None), InterpolationMode)


def _hashable(value: Any) -> Any:
    return tuple(value) if type(value) is list else value


def _places(original: Any, size: tuple[int, int], _: object, /, *values: Any) -> _core.PixelPlaces:
    """Let torch move the numbers of an image's pixels.

    They begin with 1, as torch puts 0 outside.
    """
    height, width = size
    moved = original(torch.arange(1, height * width + 1, dtype=torch.float32).view(1, height, width), *values)
    return _core.PixelPlaces(moved[0].to(torch.int32).sub_(1).contiguous().numpy())


_kept_places: Final = lru_cache(maxsize=32)(_places)
