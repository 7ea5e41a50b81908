"""Transforms that only crop, resize and flip an image, as the core draws them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastload.pipeline.errors import Refused
from fastload.pipeline.recipe import options_of, plan_of
from fastload.pipeline.transforms import read_transform

if TYPE_CHECKING:
    from fastload import _core

_CROPS: Final = ("center_crop", "random_crop_v1", "random_crop_v2", "horizontal_flip", "vertical_flip")
_RESIZES: Final = ("random_resized_crop", "resize", "resize_shorter")


@dataclass(frozen=True, slots=True)
class CropPlan:
    """Crops, at most one resize, and flips.

    Attributes:
        plan: Draws them.
        filter: The core's name of the resize's filter.
        draws: Whether anything is drawn at random.
    """

    plan: _core.DrawPlan
    filter: str
    draws: bool


def read_crops(transform: Any) -> CropPlan | None:
    """Read a transform; ``None`` if there is more to it, besides what makes a tensor."""
    try:
        pipeline = read_transform(transform)
        resizes = [fields["filter"] for kind, fields in pipeline.nodes if kind in _RESIZES]
        is_known = all(kind in (*_CROPS, *_RESIZES) for kind, _ in pipeline.nodes)
        if not is_known or len(resizes) > 1 or pipeline.views > 1 or pipeline.resizes_tensors:
            return None
        options_of(pipeline)
        return CropPlan(plan_of(pipeline), (resizes or ["bilinear"])[0], pipeline.draws)
    except Refused:
        return None
