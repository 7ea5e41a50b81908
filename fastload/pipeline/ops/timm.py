"""Read timm's transforms of images, which draw from Python's ``random`` and, to choose, from NumPy."""

from __future__ import annotations

import copy
import math
import operator
from typing import TYPE_CHECKING, Any, Final

import torch

from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.installed.timm import check_modules, check_same, is_own
from fastload.pipeline.nodes import SAMPLINGS, pillow_fill, pillow_filter

if TYPE_CHECKING:
    from fastload.pipeline.nodes import Node, Place


_SAMPLED: Final = ("angle", "shear_x", "shear_y", "shift_x", "shift_y", "part_of_width", "part_of_height")
_FACTOR: Final = {"slope": 1.8, "intercept": 0.1}
_GROWING: Final = {"slope": 0.9, "negates": True, "base": 1.0, "least": 0.1}
_LEVELS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "AutoContrast": ("autocontrast", "nothing", {}),
    "Equalize": ("equalize", "nothing", {}),
    "Invert": ("invert", "nothing", {}),
    "Rotate": ("affine", "angle", {"slope": 30.0, "negates": True}),
    "Posterize": ("posterize", "bits", {"slope": 4.0, "whole": True}),
    "PosterizeIncreasing": ("posterize", "bits", {"slope": 4.0, "whole": True, "base": 4.0, "subtracts": True}),
    "PosterizeOriginal": ("posterize", "bits", {"slope": 4.0, "whole": True, "base": 4.0}),
    "Solarize": ("solarize", "value", {"slope": 256.0, "whole": True, "most": 256.0}),
    "SolarizeIncreasing": (
        "solarize",
        "value",
        {"slope": 256.0, "whole": True, "most": 256.0, "base": 256.0, "subtracts": True},
    ),
    "SolarizeAdd": ("solarize_add", "value", {"slope": 110.0, "whole": True, "most": 128.0}),
    "Color": ("saturation", "value", _FACTOR),
    "ColorIncreasing": ("saturation", "value", _GROWING),
    "Contrast": ("contrast", "value", _FACTOR),
    "ContrastIncreasing": ("contrast", "value", _GROWING),
    "Brightness": ("brightness", "value", _FACTOR),
    "BrightnessIncreasing": ("brightness", "value", _GROWING),
    "Sharpness": ("sharpness", "value", _FACTOR),
    "SharpnessIncreasing": ("sharpness", "value", _GROWING),
    "ShearX": ("affine", "shear_x", {"slope": 0.3, "negates": True}),
    "ShearY": ("affine", "shear_y", {"slope": 0.3, "negates": True}),
    "TranslateX": ("affine", "shift_x", {"negates": True}),
    "TranslateY": ("affine", "shift_y", {"negates": True}),
    "TranslateXRel": ("affine", "part_of_width", {"negates": True}),
    "TranslateYRel": ("affine", "part_of_height", {"negates": True}),
    "Desaturate": (
        "saturation",
        "value",
        {"slope": 0.5, "intercept": 0.5, "most": 1.0, "base": 1.0, "subtracts": True, "least": 0.0},
    ),
    "GaussianBlur": ("gaussian_blur", "radius", {"slope": 2.0 - 0.1, "intercept": 0.1, "most": 2.0}),
    "GaussianBlurRand": ("gaussian_blur", "largest_radius", {"slope": 1.0, "most": 1.0}),
}
"""By the names of timm's: kind of the step, use of the level, and how a magnitude becomes one."""


class _With:
    """A transform with one of its interpolations."""

    def __init__(self, step: Any, interpolation: Any) -> None:
        self.interpolation = interpolation
        self.__qualname__ = name_of(step)


def _filters(step: Any) -> dict[str, Any]:
    if isinstance(step.interpolation, list | tuple):
        return {"filters": [pillow_filter(_With(step, mode)) for mode in step.interpolation]}
    return {"filter": pillow_filter(step)}


def _pair(values: Any) -> tuple[float, float]:
    low, high = (float(value) for value in values)
    return low, high


def _logs(values: Any) -> tuple[float, float]:
    low, high = values
    return math.log(low), math.log(high)


def _sized(step: Any, place: Place, size: Any) -> dict[str, int]:
    height, width = (int(side) for side in size)
    place.size = height, width
    return {"height": height, "width": width}


def resized_crop(step: Any, place: Place) -> list[Node]:
    """Read a RandomResizedCropAndInterpolation."""
    check_modules()
    fields = {**_sized(step, place, step.size), "scale": _pair(step.scale), "ratio": _pair(step.ratio)}
    nodes: list[Node] = [("python_resized_crop", {**fields, "logs": _logs(step.ratio), **_filters(step)})]
    check_same(step, nodes, ((61, 47), (20, 90)))
    return nodes


def crop_or_pad(step: Any, place: Place) -> list[Node]:
    """Read a RandomCropOrPad or a CenterCropOrPad."""
    check_modules()
    sides = _sized(step, place, step.size)
    fields = {**sides, "mode": str(step.padding_mode), "fill": pillow_fill(step, step.fill)}
    kind = "python_crop_or_pad" if type(step).__name__ == "RandomCropOrPad" else "center_crop_or_pad"
    nodes: list[Node] = [(kind, fields)]
    height, width = sides["height"], sides["width"]
    check_same(step, nodes, ((height + 7, width - width // 3), (height - height // 4, width + 10), (height, width)))
    return nodes


def resize_keep_ratio(step: Any, place: Place) -> list[Node]:
    """Read a ResizeKeepRatio."""
    check_modules()
    fields = {
        **_sized(step, place, step.size),
        "longest": float(step.longest),
        "p": max(0.0, float(step.random_scale_prob)),
        "scale": _pair(step.random_scale_range),
        "by_area": bool(step.random_scale_area),
        "aspect_p": float(step.random_aspect_prob),
        "logs": _logs(step.random_aspect_range),
    }
    place.size = None
    nodes: list[Node] = [("resize_keep_ratio", {**fields, **_filters(step)})]
    check_same(step, nodes, ((61, 47), (20, 90)))
    return nodes


def rand_augment(step: Any, place: Place) -> list[Node]:
    """Read a RandAugment."""
    check_modules()
    if step.choice_weights is not None:
        raise Refused(f"{name_of(step)} chooses by weights, and NumPy draws these otherwise; leave the weights out")
    branches = [_augmentation(op) for op in step.ops]
    nodes: list[Node] = [("numpy_choose", {"branches": branches, "count": int(step.num_layers)})]
    check_same(step, nodes)
    return nodes


def auto_augment(step: Any, place: Place) -> list[Node]:
    """Read an AutoAugment."""
    check_modules()
    branches = [[node for op in policy for node in _augmentation(op)] for policy in step.policy]
    nodes: list[Node] = [("python_choose", {"branches": branches})]
    check_same(step, nodes)
    return nodes


def erasing(step: Any) -> Node:
    """Read a RandomErasing."""
    check_modules()
    if torch.device(step.device).type != "cpu":
        raise Refused(f"{name_of(step)} makes its values on {step.device}; give it device='cpu'")
    fields = {
        "p": float(step.probability),
        "scale": _pair((step.min_area, step.max_area)),
        "logs": _pair(step.log_aspect_ratio),
        "count": operator.index(step.min_count),
        "most_count": operator.index(step.max_count),
        "noise": "pixels" if step.per_pixel else "colors" if step.rand_color else "none",
    }
    return "python_erasing", fields


def _augmentation(op: Any) -> list[Node]:
    """Read an AugmentOp."""
    if type(op).__name__ != "AugmentOp" or type(op).__module__ != "timm.data.auto_augment":
        raise Refused(f"{name_of(op)} stands where timm has an AugmentOp")
    own = is_own(op.aug_fn) and (op.level_fn is None or is_own(op.level_fn))
    if op.name not in _LEVELS or not own:
        raise Refused(f"AugmentOp {op.name!r} is not timm's own, or not supported natively")
    step, use, fields = _LEVELS[op.name]
    level = {
        "magnitude": float(op.magnitude),
        "deviation": float(max(0, op.magnitude_std)),
        "highest": float(op.magnitude_max or 10.0),
        "use": use,
        "step": step,
        **fields,
    }
    how: dict[str, Any] = {}
    if use in _SAMPLED:
        if use.startswith("shift"):
            level["slope"] = float(op.hparams["translate_const"])
        elif use.startswith("part"):
            level["slope"] = float(op.hparams.get("translate_pct", 0.45))
        fill, resample = op.kwargs["fillcolor"], op.kwargs["resample"]
        if not isinstance(fill, tuple) or len(fill) != 3:
            raise Refused(f"{op.name} has fillcolor={fill!r}; give it three numbers")
        names = [_sampling(op, one) for one in (resample if isinstance(resample, list | tuple) else [resample])]
        how["fill"] = pillow_fill(op, fill)
        if isinstance(resample, list | tuple):
            level["samplings"] = names
        else:
            how["sampling"] = names[0]
    nodes: list[Node] = [("python_augment", {"p": float(op.prob), "level": level, **how})]
    certain = copy.copy(op)
    certain.prob = 1.0
    check_same(certain, [("python_augment", {**nodes[0][1], "p": 1.0})])
    return nodes


def _sampling(op: Any, resample: Any) -> str:
    if resample not in SAMPLINGS:
        raise Refused(f"{op.name} has resample={resample!r}, which Pillow refuses; use BILINEAR or BICUBIC")
    return SAMPLINGS[resample]
