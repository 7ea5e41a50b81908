"""Read the transforms that apply others at random: all, one, or in any order."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.installed.torch_stream import calibrate_stream
from fastload.pipeline.nodes import is_v2

if TYPE_CHECKING:
    from fastload.pipeline.nodes import Node, Place


def random_apply(step: Any, place: Place) -> list[Node]:
    """Read a RandomApply."""
    inner = _sized_alike(step, step.transforms, place)
    comparison = "less" if is_v2(step) else "less_or_equal"
    return [("chance", {"p": float(step.p), "comparison": comparison, "branches": [inner]})]


def random_order(step: Any, place: Place) -> list[Node]:
    """Read a RandomOrder."""
    before = place.approximate
    branches = [_sized_alike(step, [inner], place) for inner in step.transforms]
    if place.approximate != before:
        raise Refused(f"{name_of(step)} holds {place.approximate}, which is approximate; put it outside of it")
    return [("shuffle" if is_v2(step) else "python_shuffle", {"branches": branches})]


def random_choice(step: Any, place: Place) -> list[Node]:
    """Read a RandomChoice."""
    stream = calibrate_stream()
    if is_v2(step) and (stream is None or not stream.weighted):
        raise Refused(f"{name_of(step)} draws by torch.multinomial, otherwise here than the native core; leave it out")
    places = [replace(place) for _ in step.transforms]
    branches = [place.read([inner], at) for inner, at in zip(step.transforms, places, strict=True)]
    if any(at.size != places[0].size for at in places):
        raise Refused(f"{name_of(step)} gives images of several sizes; put what resizes or crops outside of it")
    place.size = places[0].size
    place.approximate = next((at.approximate for at in places if at.approximate is not None), None)
    if is_v2(step):
        return [("choose_weighted", {"branches": branches, "chances": [float(p) for p in step.p]})]
    weights = [1] * len(branches) if step.p is None else step.p
    sums = [float(total) for total in itertools.accumulate(weights)]
    return [("python_choose_weighted", {"branches": branches, "chances": sums})]


def _sized_alike(step: Any, transforms: Any, place: Place) -> list[Node]:
    before = place.size
    inner = place.read(transforms, place)
    if place.size != before:
        raise Refused(f"{name_of(step)} changes the size of some images; put what resizes or crops outside of it")
    return inner
