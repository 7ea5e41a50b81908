"""Calls on deferred tensors are recorded, and their results are deferred, too."""

from __future__ import annotations

import pytest
import torch
from deferred_images import deferred, expected, fill_of, pending, table
from photos import jpeg
from torchvision.transforms import _functional_tensor

from fastload.deferred import recorder
from fastload.deferred.content import Content
from fastload.deferred.functions import Deferral
from fastload.deferred.geometry import placed
from fastload.deferred.memory import is_deferred

DATA, SIZE = jpeg(0), (120, 90)
MEAN = torch.tensor([0.1, -0.2, 3.0])[:, None, None]
CALLS = {
    "arithmetic": lambda x: (1 - x.sub(MEAN)) / 0.5 * MEAN,
    "in place": lambda x: x.clone().sub_(MEAN).div_(3),
    "conversion": lambda x: x.to(torch.float16).float(),
    "flips": lambda x: x.flip(-1).flip((1, 2)),
    "crop": lambda x: x[:, 3:40, 5:-2].clone(),
    "layout": lambda x: x.permute(1, 2, 0).permute(2, 0, 1).contiguous(),
    "stack": lambda x: torch.stack([x, x * 2]),
    "views of a stack": lambda x: torch.stack([x * 2, x * 2])[1] + 1,
}


def content(*, planar: bool = True, fills: bool = True) -> Content:
    """A random crop, with a box of constants."""
    return Content((pending(DATA, SIZE),), table(), planar, (fill_of(),) if fills else ())


@pytest.mark.parametrize("planar", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_results_are_deferred_and_torchs(name, planar):
    call, stays = CALLS[name], name != "stack"  # of unlike tensors, which is made at once
    of = content(planar=planar)
    x, like = deferred(of, single=True), expected(of)[0]
    watching = recorder.CallRecorder()
    with watching:
        made = call(x)
    assert is_deferred(made) == stays
    assert bool(watching.painted_by) != stays
    theirs = call(like)
    assert (made.stride(), made.dtype, made._version) == (theirs.stride(), theirs.dtype, theirs._version)
    assert torch.equal(made, theirs)
    assert not watching.is_off


def test_a_box_of_constants_is_recorded():
    of = content(fills=False)
    x, like = deferred(of, single=True), expected(of)[0]
    with recorder.CallRecorder():
        x[..., 4:20, -9:] = MEAN
    like[..., 4:20, -9:] = MEAN
    assert is_deferred(x)
    assert torch.equal(x, like)
    assert x._version == 1


def test_a_look_names_its_line():
    watching = recorder.CallRecorder()
    with watching:
        x = deferred(content(), single=True)
        x.mean()  # looks
    ((place, count),) = watching.painted_by.items()
    assert (count, place[2]) == (1, "mean")
    assert recorder.described(place).endswith("reads pixels (mean): x.mean()  # looks")


def test_a_difference_ends_recording(monkeypatch):
    x, like = deferred(content(), single=True), expected(content())[0]
    watching = recorder.CallRecorder()
    monkeypatch.setattr(recorder, "same_bits", lambda *_: False)
    with watching, pytest.warns(RuntimeWarning, match="a deferred result was not torch's"):
        made = x * 3
    assert not is_deferred(made)
    assert torch.equal(made, like * 3)
    monkeypatch.undo()
    y = deferred(content(), single=True)
    with watching:
        later = y * 3
    assert not is_deferred(later)


def test_remembered_results_keep_the_tables_that_they_are_of(monkeypatch):
    """A table is known by its id, which another gets once it is gone."""
    monkeypatch.setattr(recorder, "TABLES_MAX", 4)
    x = deferred(content(), single=True)
    with recorder.CallRecorder():
        for number in range(20):
            x = (x + number).add_(number + 0.5)
    assert len(recorder._results) > 1
    assert all(key[1] == id(source) for key, (source, *_) in recorder._results.items())


def test_normalize_is_recorded_as_one_call(monkeypatch):
    deferral, of = Deferral(), content(fills=False)
    normalize = deferral.on_levels(_functional_tensor.normalize)
    like = expected(of)[0]
    calls = 4 * [([0.1, -0.2, 3.0], (0.5, 2.0, 0.3))] + 2 * [([0.1, -0.2, 3.0], (0.5, 2.0, 0.4))]
    theirs = [_functional_tensor.normalize(like, *each) for each in calls]
    with deferral:  # two are compared with torch's, and others remembered
        deferral.begin()
        made = [normalize(deferred(of, single=True), *each) for each in calls]
        x = deferred(of, single=True)
        in_place = normalize(x, *calls[0], inplace=True)
    assert in_place is x
    assert all(map(is_deferred, [*made, x]))
    assert not deferral.recorder.painted_by
    for ours, each in zip([*made, x], [*theirs, theirs[0]], strict=True):
        assert (ours.stride(), ours.dtype, ours._version) == (each.stride(), each.dtype, 2)
        assert torch.equal(ours, each)

    called, sub = [], torch.Tensor.sub_
    monkeypatch.setattr(torch.Tensor, "sub_", lambda *of: called.append(of) or sub(*of))
    with deferral:
        assert torch.equal(normalize(deferred(of, single=True), *calls[0]), theirs[0])
    assert called
    with deferral, pytest.raises(ValueError, match="std evaluated to zero"):
        normalize(deferred(of, single=True), [0.0], [0.0])


@pytest.mark.parametrize(
    ("offset", "size"),
    [(40 * 48, (3, 9, 48)), (40, (3, 9, 9)), (48 * 48, (3, 9, 9)), (3 * 48 * 48, (3, 9, 9))],
)
def test_what_crosses_an_images_edge_is_no_part_of_it(offset, size):
    of = content(fills=False)
    whole = torch.empty(6 * 48 * 48)
    assert placed(whole.as_strided(size, (48 * 48, 48, 1), 0), of) is not None
    assert placed(whole.as_strided(size, (48 * 48, 48, 1), offset), of) is None
