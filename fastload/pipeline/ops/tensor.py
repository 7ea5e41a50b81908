"""Readers of torchvision's v2 transforms where images are uint8 tensors: other bits than Pillow's.

torch computes in float32, and rounds once where its kernels fuse a multiplication and an addition. Steps are named
``torch_...``; each is compared with the installed torchvision before it is used
(:mod:`fastload.pipeline.installed.steps`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.installed.settings import check_dtype
from fastload.pipeline.ops.order import random_apply

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.pipeline.nodes import Node, Place

_LARGEST_FACTOR: Final = 1e9  # float32 has no infinities or NaN below
_EXACT_SUM: Final = 2**24  # below, float32 adds up whole numbers exactly, in any order
_FUSED: Final = 32  # torch's kernel rounds twice in what remains of an image behind blocks of so many values


def _color_jitter(step: Any, place: Place) -> list[Node]:
    check_dtype()
    ranges = [step.brightness, step.contrast, step.saturation]
    if step.hue is not None:
        raise Refused(f"{name_of(step)} shifts a tensor's hue; put it before what makes a tensor of the image")
    jitters = [None if pair is None else (float(pair[0]), float(pair[1])) for pair in ranges]
    if any(pair is not None and not 0 <= pair[0] <= pair[1] <= _LARGEST_FACTOR for pair in jitters):
        raise ValueError("factors must be from 0 to 1e9")
    if jitters[1] is not None:
        height, width = place.sized(step)
        if height * width * 255 >= _EXACT_SUM or height * width * 3 % _FUSED:
            raise Refused(
                f"{name_of(step)} changes the contrast of tensors of {height} x {width} pixels, which torch rounds "
                "by its own order; leave at most 256 x 256, with sides that 8 divides, or put it before what makes a "
                "tensor"
            )
    return [("torch_color_jitter", {"jitters": [*jitters, None]})]


def _grayscale(step: Any, place: Place) -> list[Node]:
    check_dtype()
    if step.num_output_channels != 3:
        raise Refused(f"{name_of(step)} leaves {step.num_output_channels} channel; give it num_output_channels=3")
    return [("torch_grayscale", {})]


def _chance(kind: str, value: Callable[[Any], float] | None = None) -> Callable[[Any, Place], list[Node]]:
    """Return a reader of transforms that take a step with probability ``p``."""

    def read(step: Any, place: Place) -> list[Node]:
        check_dtype()
        fields = {} if value is None else {"value": value(step)}
        return [("chance", {"p": float(step.p), "comparison": "less", "branches": [[(kind, fields)]]})]

    return read


def _bits(step: Any) -> float:
    if not isinstance(step.bits, int) or not 1 <= step.bits <= 8:
        raise ValueError("bits must be from 1 to 8")
    return float(step.bits)


def _threshold(step: Any) -> float:
    """The first level that solarizing inverts; torch compares in float32."""
    if not 0 <= step.threshold <= 255:
        raise ValueError("threshold must be from 0 to 255")
    return float(math.ceil(np.float32(step.threshold)))


TENSOR_OPS: Final[dict[str, Callable[[Any, Place], list[Node]]]] = {
    "ColorJitter": _color_jitter,
    "Grayscale": _grayscale,
    "RandomGrayscale": _chance("torch_grayscale"),
    "RandomInvert": _chance("torch_invert"),
    "RandomPosterize": _chance("torch_posterize", _bits),
    "RandomSolarize": _chance("torch_solarize", _threshold),
    "RandomAutocontrast": _chance("torch_autocontrast"),
    "RandomEqualize": _chance("torch_equalize"),
    "RandomApply": random_apply,
}
"""By the name of torchvision's v2 class; what only moves pixels is read as on images."""
