"""Read the random rotations, affine and perspective transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.nodes import is_v2, pillow_fill, pillow_filter

if TYPE_CHECKING:
    from fastload.pipeline.nodes import Node, Place


def random_rotation(step: Any, place: Place) -> list[Node]:
    """Read a RandomRotation."""
    if step.expand:
        raise Refused(f"{name_of(step)} has expand={step.expand}, so that images differ in size; use False")
    return [("random_rotation", {"jitters": [_pair(step.degrees), None, None, None], **_how(step)})]


def random_affine(step: Any, place: Place) -> list[Node]:
    """Read a RandomAffine."""
    shear = [] if step.shear is None else list(step.shear)
    ranges = [step.degrees, step.scale, shear[:2] or None, shear[2:] or None]
    fields = {
        "jitters": [None if pair is None else _pair(pair) for pair in ranges],
        "translate": None if step.translate is None else _pair(step.translate),
    }
    return [("random_affine_v2" if is_v2(step) else "random_affine_v1", {**fields, **_how(step)})]


def random_perspective(step: Any, place: Place) -> list[Node]:
    """Read a RandomPerspective."""
    fields = {"value": float(step.distortion_scale), **_sampled(step)}
    branches = [[("random_perspective", fields)]]
    return [("chance", {"p": float(step.p), "comparison": "less", "branches": branches})]


def _sampled(step: Any) -> dict[str, Any]:
    sampling = pillow_filter(step)
    if sampling not in ("nearest", "bilinear", "bicubic"):
        raise Refused(f"{name_of(step)} has interpolation {step.interpolation!r}, which Pillow refuses; use BILINEAR")
    return {"sampling": sampling, "fill": pillow_fill(step, step.fill)}


def _how(step: Any) -> dict[str, Any]:
    if step.center is not None and not isinstance(step.center, list | tuple):
        raise Refused(f"{name_of(step)} has a center of type {type(step.center).__name__}; give it two numbers")
    center = None if step.center is None else _pair(step.center)
    return {"center": center, **_sampled(step)}


def _pair(values: Any) -> tuple[float, float]:
    first, second = (float(value) for value in values)
    return first, second
