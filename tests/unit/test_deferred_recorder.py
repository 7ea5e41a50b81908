"""Calls on deferred tensors are recorded, and their results are deferred, too."""

from __future__ import annotations

import functools
import gc
import math
import re
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from deferred_images import SIDE, calibrated, deferred, expected, fill_of, of_levels, pending, table
from photos import jpeg, pixels
from PIL import Image
from torch.nn.functional import interpolate, pad
from torch.utils.data import default_collate
from torch.utils.data._utils import worker
from torchvision.transforms import _functional_tensor
from torchvision.transforms import functional as functional_of_pillow
from torchvision.transforms.v2 import functional

from fastload import _core
from fastload._compare import same_bits
from fastload.deferred import functions, recorder
from fastload.deferred.calls import canvas, resizes
from fastload.deferred.content import Content
from fastload.deferred.functions import Deferral
from fastload.deferred.geometry import placed
from fastload.deferred.memory import content_to_send, is_deferred
from fastload.deferred.recorder import IDENTITY, called_on_levels
from fastload.deferred.staging import Stager
from fastload.lazy import images as lazy_images
from fastload.lazy.pixels import File, Pending
from fastload.memory import unfilled

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
    "batches in one": lambda x: torch.cat([torch.stack([x, x.flip(-1)]), torch.stack([x])])[1:],
    "one of a batch": lambda x: x[None].to(torch.float64).sub(1).div_(3),
    "crop of one of a batch": lambda x: x[None][:, :, 3:40, 5:-2].to(torch.float64),
    "crop of one of a batch, plus one": lambda x: x[None][:, :, 3:40, 5:-2] + 1,
    "views of a stack": lambda x: torch.stack([x * 2, x * 2])[1] + 1,
}


@pytest.fixture(scope="module", autouse=True)
def handlers():
    """Let recorders record all that a worker's do."""
    assert lazy_images.prepare()
    Deferral()
    yield
    unfilled.serve(None)


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


UNUSUAL = {
    "batches side by side": lambda x: torch.cat([torch.stack([x, x]), torch.stack([x, x.flip(-1)])], -1),
    "batches of six channels": lambda x: torch.cat([torch.stack([x]), torch.stack([x])], dim=1),
    "one of a batch, turned": lambda x: x[None].to(torch.float64).flip(-1),
    "one of a batch, copied": lambda x: x[None].to(torch.float64).clone(),
    "one of a batch, joined": lambda x: torch.cat([x[None].double(), x[None].double()]),
}


@pytest.mark.parametrize("planar", [True, False])
@pytest.mark.parametrize("name", UNUSUAL)
def test_what_need_not_be_recorded_is_torchs(name, planar):
    of = content(planar=planar)
    x, like = deferred(of, single=True), expected(of)[0]
    watching = recorder.CallRecorder()
    with watching:
        made = UNUSUAL[name](x)
    theirs = UNUSUAL[name](like)
    assert made.stride() == theirs.stride()
    assert torch.equal(made, theirs)
    assert not watching.is_off


RESIZES = {
    "bilinear": lambda x: interpolate(x[None], (20, 31), mode="bilinear", antialias=True)[0],
    "bicubic": lambda x: interpolate(x[None], size=33, mode="bicubic", align_corners=False, antialias=True)[0],
    "lanczos": lambda x: interpolate(x[None], [60, 9], mode="lanczos", antialias=True).squeeze(0),
    "of a crop": lambda x: functional.resized_crop(x, 3, 5, 30, 40, [24, 25]),
    "of whole rows": lambda x: functional.resize(x[:, 5:30], [24, 25]),
    "of a whole image": lambda x: functional.resize(x, [24, 25]),
    "to itself": lambda x: interpolate(x[None], x.shape[1:], mode="bilinear", antialias=True)[0],
    "then cropped": lambda x: functional.center_crop(functional.resize(x, 40), [20]),
    "then turned": lambda x: functional.resize(x, [24, 25]).flip(-1).float() / 255,
    "of a turned image": lambda x: interpolate(x.flip(-1)[None], 20, mode="bilinear", antialias=True)[0],
    "of a batch": lambda x: interpolate(torch.stack([x, x.flip(-1)])[:1], 24, mode="bilinear", antialias=True)[0],
}


@pytest.mark.parametrize("planar", [True, False])
@pytest.mark.parametrize("name", RESIZES)
def test_resizes_of_levels_are_recorded(name, planar):
    call = RESIZES[name]
    of = Content((of_levels(pixels(1, 48, 60), (0, 0, 60, 48)),), IDENTITY, planar)
    x, like = deferred(of, single=True), expected(of)[0]
    watching = recorder.CallRecorder()
    with watching:
        for _ in range(3):  # two are compared with torch's
            made = call(x)
    theirs = call(like)
    assert is_deferred(made)
    assert not watching.painted_by
    assert (made.shape, made.stride(), made._version) == (theirs.shape, theirs.stride(), theirs._version)
    assert torch.equal(made, theirs)


def filled_by_copies(x):
    batch = torch.zeros((3, *x.shape), dtype=x.dtype)
    for row in range(3):
        batch[row].copy_(x)
    return batch


def filled_by_sums(x):
    batch = torch.zeros((3, *x.shape), dtype=x.dtype)
    for row in range(3):
        batch[row] += x
    return batch


def filled_in_part(x):
    batch = x.new(3, 3, SIDE + 5, SIDE + 9).fill_(0.25)
    for row, place in enumerate(batch[:2]):
        place[..., row : SIDE + row, 3 : SIDE + 3].copy_(x)
    return batch


def filled_again(x):
    batch = torch.full((2, 3, SIDE, SIDE), 0.5)
    batch[0], batch[1] = x, x.flip(-1)
    batch[1, :, 3:9].fill_(2)
    batch[0] = x.flip(-2)
    return batch


def in_squares(x):
    square = torch.ones(3, SIDE + 8, SIDE + 8)
    square[:, 3 : SIDE + 3, 2 : SIDE + 2] = x
    return torch.stack([square, square.flip((-1, -2)), square.flip(-1)])[:, :, 1:-4, 4:-2] * 2


COPIES = {
    "copies": filled_by_copies,
    "sums": filled_by_sums,
    "parts": filled_in_part,
    "twice": filled_again,
    "squares": in_squares,
    "never": lambda x: x.new_zeros(2, 3, SIDE, SIDE),
    "paddings": lambda x: pad(x[None], (1, 2, 3, 4), value=0.5).flip(-1),
    "formats": lambda x: torch.stack([x, x]).to(memory_format=torch.channels_last),
    "the format that it has": lambda x: torch.stack([x, x]).to(memory_format=torch.contiguous_format).float(),
    "torch.tensor": lambda x: torch.tensor(x),
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("name", COPIES)
def test_copies_to_constants_are_deferred(monkeypatch, name):
    monkeypatch.setattr(canvas, "MIN_BYTES", 1)
    lazy_images.prepare()
    call, of = COPIES[name], content()
    watching = recorder.CallRecorder()
    with watching:
        for _ in range(3):  # two are compared with torch's
            made = call(deferred(of, single=True))
    theirs = call(expected(of)[0])
    assert is_deferred(made)
    assert not watching.painted_by
    assert not watching.is_off
    assert (made.shape, made.stride(), made._version) == (theirs.shape, theirs.stride(), theirs._version)
    held = content_to_send(made)
    out = np.empty(held.nbytes, np.uint8)
    held.paint(out)
    assert same_bits(torch.from_numpy(out).view(made.dtype).as_strided(made.shape, made.stride()), theirs)
    assert same_bits(made, theirs)


def test_levels_are_split_into_planes(level):
    for height, width in ((1, 1), (5, 7), (33, 31), (47, 61)):
        image = pixels(1, height, width)
        of = Content((of_levels(image, (0, 0, width, height)),), IDENTITY, planar=True)
        out = np.empty(of.nbytes, np.uint8)
        of.paint(out)
        assert np.array_equal(out.reshape(3, height, width), image.transpose(2, 0, 1))


def test_lines_whose_constants_get_no_images_are_not_deferred_for_long(monkeypatch):
    monkeypatch.setattr(canvas, "MIN_BYTES", 1)
    x = deferred(content(), single=True)
    with recorder.CallRecorder():
        made = [torch.zeros(3, SIDE, SIDE) for _ in range(canvas.TRIED_MIN + 2)]
    assert [*map(is_deferred, made)] == [True] * canvas.TRIED_MIN + [False] * 2
    assert is_deferred(x)


def test_the_first_images_are_deferred_once_they_are_compared(deferral, monkeypatch):
    lazy_images.prepare()
    monkeypatch.setattr(functions, "LEVELS_MIN_BYTES", 1)
    library = replace(calibrated(), comparisons=2)
    images = [pending(DATA, SIZE, seed, file=File(DATA, SIZE, library)) for seed in range(3)]
    with deferral:
        to_tensor = deferral._in_place_of(functional_of_pillow.pil_to_tensor)
        made = [to_tensor(Image.Image()._new(each)) for each in images]
    assert library.comparisons == 0
    assert [*map(is_deferred, made)] == [True] * 3


def test_images_with_constants_around_are_staged_as_levels(monkeypatch):
    monkeypatch.setattr(canvas, "MIN_BYTES", 1)
    lazy_images.prepare()
    with recorder.CallRecorder():
        made = in_squares(deferred(content(), single=True))
    held, stager = content_to_send(made), Stager()
    leaf = stager.take(held, made.size(), made.stride())
    memory = torch.zeros(1 << 20, dtype=torch.uint8)
    batch, _ = stager.write(memory)
    size = 3 * math.prod(held.image_size)
    levels = [memory[batch.painted[place] :][:size].view(*held.image_size, 3) for place in range(3)]
    values = torch.frombuffer(bytearray(leaf.values), dtype=leaf.dtype).view(3, 256)
    images = torch.stack([torch.stack([values[c][each[..., c].long()] for c in range(3)]) for each in levels])
    for image, (top, left, height, width), constant in leaf.fills:
        box = images[image, :, top : top + height, left : left + width]
        box.copy_(torch.frombuffer(bytearray(constant), dtype=leaf.dtype)[:, None, None])
    assert same_bits(images, in_squares(expected(content())[0]))


MADE_AT_ONCE = {
    "doubles": lambda x: interpolate(x.double()[None], 20, mode="bilinear", antialias=True),
    "other levels": lambda x: interpolate((255 - x)[None], 20, mode="bilinear", antialias=True),
    "a turned image": lambda x: interpolate(x.flip(-1)[None], 20, mode="bilinear", antialias=True),
    "floats to themselves": lambda x: interpolate((-x.float())[None], x.shape[1:], mode="bilinear", antialias=True),
    "another kernel": lambda x: interpolate(x[None], 20, mode="bilinear"),
    "corners": lambda x: interpolate(x[None], 20, mode="bilinear", align_corners=True, antialias=True),
    "a factor": lambda x: interpolate(x[None], scale_factor=0.5, mode="bilinear", antialias=True),
    "one column": lambda x: interpolate(x[None], (9, 1), mode="bilinear", antialias=True),
    "nearest": lambda x: interpolate(x[None], 20),
}


@pytest.mark.parametrize("name", MADE_AT_ONCE)
def test_other_resizes_are_torchs(name):
    call = MADE_AT_ONCE[name]
    of = Content((Pending(File(DATA, SIZE, calibrated()), (0, 0, *SIZE)),), IDENTITY, planar=False)
    x, like = deferred(of, single=True), expected(of)[0]
    watching = recorder.CallRecorder()
    with watching:
        made = call(x)
    assert not is_deferred(made)
    assert watching.painted_by
    assert not watching.is_off
    assert torch.equal(made, call(like))


FLOATS = {
    "one": lambda x: interpolate(x[None], (20, 31), mode="bilinear", antialias=True),
    "bicubic": lambda x: interpolate(x[None], size=33, mode="bicubic", align_corners=False, antialias=True),
    "by both axes": lambda x: interpolate(x[None], (x.shape[1] + 9, 7), mode="bicubic", antialias=True),
    "by one axis": lambda x: interpolate(x[None], (20, x.shape[2]), mode="bilinear", antialias=True),
    "by first transforms": lambda x: functional_of_pillow.resized_crop(x, 3, 5, 30, 40, [24, 25], antialias=True),
    "by later ones": lambda x: functional.resized_crop(x, 3, 5, 30, 40, [24, 25]),
    "a turned image": lambda x: functional.resize(x.flip(-1).mul(2), [20, 21]),
    "a batch": lambda x: interpolate(torch.stack([x, x.flip(-2)]), 24, mode="bilinear", antialias=True),
    "in channels_last": lambda x: interpolate(
        torch.stack([x, x]).to(memory_format=torch.channels_last), 24, mode="bilinear", antialias=True
    ),
}


@pytest.mark.parametrize("planar", [True, False])
@pytest.mark.parametrize("name", FLOATS)
def test_resized_floats_are_made_at_once(name, planar):
    call, table_of_signs = FLOATS[name], table().neg()  # which has zeros that are negative, too
    table_of_signs[:, 7] = -0.0
    of = Content((Pending(File(DATA, SIZE, calibrated()), (0, 0, *SIZE)),), table_of_signs, planar)
    like = expected(of)[0]
    theirs = call(like)
    watching = recorder.CallRecorder()
    with watching:
        for _ in range(3):  # two are compared with torch's
            made = call(deferred(of, single=True))
    assert not is_deferred(made)
    assert not watching.painted_by
    assert not watching.is_off
    assert made.stride() == theirs.stride()
    assert made.untyped_storage().resizable()
    assert same_bits(made, theirs)


@pytest.mark.parametrize("planar", [True, False])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(48, 63), (29, 60)])
def test_a_side_that_is_kept_is_left_out(monkeypatch, size, mode, planar):
    """So that zeros keep their signs, and what overflows does not become NaN."""
    monkeypatch.setattr(recorder, "COMPARED", 0)
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, 3.4e38, -3.4e38]).repeat(43)[:256].repeat(3, 1)
    levels = np.random.default_rng(0).integers(0, 256, (48, 60, 3), dtype=np.uint8)
    of = Content((of_levels(levels, (0, 0, 60, 48)),), values, planar)
    with recorder.CallRecorder():
        made = interpolate(deferred(of), size, mode=mode, antialias=True)
    theirs = interpolate(expected(of), size, mode=mode, antialias=True)
    assert made.contiguous().numpy().tobytes() == theirs.contiguous().numpy().tobytes()


def test_nothing_of_a_batch_is_torchs_nothing():
    of = content()
    like = expected(of)
    watching = recorder.CallRecorder()
    with watching:
        joined = [torch.cat([deferred(of), deferred(of)[:0]]), torch.cat([deferred(of)[:0], deferred(of)])]
        x = deferred(of)
        x[1:1] = like[:0]
        with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
            torch.stack([deferred(of), deferred(of)[:0]])
    for each in (*joined, x):
        assert same_bits(each, like)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_floats_that_are_not_finite_are_resized_by_torch(value):
    values = table()
    values[1, 5] = value
    of = Content((of_levels(pixels(1, 48, 60), (0, 0, 60, 48)),), values, planar=True)
    watching = recorder.CallRecorder()
    with watching:
        made = interpolate(deferred(of, single=True)[None], 20, mode="bilinear", antialias=True)
    assert watching.painted_by
    assert same_bits(made, interpolate(expected(of), 20, mode="bilinear", antialias=True))


def test_a_box_and_a_resize_are_made_in_their_order():
    of = Content((of_levels(pixels(1, 48, 60), (0, 0, 60, 48)),), IDENTITY, planar=False)
    x, like = deferred(of, single=True), expected(of)[0]
    watching = recorder.CallRecorder()
    with watching:
        x[:, 3:20, 5:9] = 7
        made = functional.resize(x, [20, 20])
        x = deferred(of, single=True).float()
        x[:, 3:20, 5:9] = 7
        floats = functional.resize(x, [20, 20])
    assert not watching.is_off
    like[:, 3:20, 5:9] = 7
    assert torch.equal(made, functional.resize(like, [20, 20]))
    assert torch.equal(floats, functional.resize(like.float(), [20, 20]))


@pytest.mark.parametrize("shape", [(1, 3, -1, 48), (3, -1), (-1,), (48, 48, 3), (0, -1)])
def test_reshapes_are_torchs(shape):
    of = content(planar=False)
    x, like = deferred(of, single=True), expected(of)[0]
    for size in (shape, (torch.Size(shape),)):
        try:
            theirs = like.reshape(*size)
        except RuntimeError as error:
            with recorder.CallRecorder(), pytest.raises(RuntimeError, match=re.escape(str(error))):
                x.reshape(*size)
        else:
            with recorder.CallRecorder():
                made = x.reshape(*size)
            assert (made.shape, made.stride()) == (theirs.shape, theirs.stride())
            assert torch.equal(made, theirs)


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


class LateError(Exception):
    """Of a user's timer."""


@pytest.mark.parametrize(
    ("call", "interrupted"),
    [
        (lambda x: x * 3, (recorder, "_require_certain")),
        (lambda x: x.mul_(3), (recorder, "_require_certain")),
        (lambda x: x.__setitem__((Ellipsis, slice(4), slice(4)), 3), (torch, "empty")),
    ],
)
def test_what_the_handler_of_a_signal_raises_is_not_taken_for_torchs_error(call, interrupted, monkeypatch):
    def handler(*_):
        raise LateError

    x = deferred(content(), single=True)
    former = signal.signal(signal.SIGUSR1, handler)
    try:
        with recorder.CallRecorder(), monkeypatch.context() as patch:
            patch.setattr(*interrupted, lambda *_, **__: signal.raise_signal(signal.SIGUSR1))
            with pytest.raises(LateError):
                call(x)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert torch.equal(x, expected(content())[0])


def test_results_are_those_with_or_without_denormals():
    of = content()
    x, like = deferred(of, single=True), expected(of)[0]
    with recorder.CallRecorder():
        made = [x * 1e-39 for _ in range(recorder.COMPARED)]
        torch.set_flush_denormal(True)
        try:
            without, theirs = x * 1e-39, like * 1e-39
        finally:
            torch.set_flush_denormal(False)
    assert torch.equal(without.view(torch.int32), theirs.view(torch.int32))
    assert torch.equal(made[1], like * 1e-39)


def test_remembered_results_keep_the_tables_that_they_are_of(monkeypatch):
    """A table is known by its id, which another gets once it is gone."""
    monkeypatch.setattr(recorder, "TABLES_MAX", 4)
    x = deferred(content(), single=True)
    with recorder.CallRecorder():
        for number in range(20):
            x = (x + number).add_(number + 0.5)
    assert len(recorder._results) > 1
    assert all(key[1] == id(source) for key, (source, *_) in recorder._results.items())


@pytest.fixture
def deferral():
    made = Deferral()
    yield made
    made._replaced.undo()


@pytest.mark.parametrize("first", [True, False])
def test_inference_and_other_modes_may_alternate(monkeypatch, deferral, first):
    monkeypatch.setattr(recorder, "_tables", {})
    monkeypatch.setattr(recorder, "_results", {})
    of = Content((of_levels(pixels(1, 48, 60), (0, 0, 60, 48)),), IDENTITY, planar=True)
    change = lambda x: functional.to_dtype(x, torch.float32, scale=True)  # noqa: E731
    for is_inference in (first, not first, first, not first):
        with torch.inference_mode(is_inference):
            one = change(expected(of)[0])
            two = one.sub(0.5).mul_(3)
            with deferral:
                deferral._record()
                ours = change(deferred(of, single=True))
                again = ours.sub(0.5).mul_(3)
            for made, like in ((ours, one), (again, two)):
                assert is_deferred(made)
                assert made.is_inference() == like.is_inference() == is_inference
                assert is_inference or made._version == like._version
                assert same_bits(made, like)


def test_tables_of_inference_mode_are_used_in_it_alone():
    values = torch.full((3, 256), 0.123)
    with torch.inference_mode():
        kept = recorder.shared_table(values + 0)
        assert recorder.shared_table(values + 0) is kept
    assert kept.is_inference()
    assert not recorder.shared_table(values + 0).is_inference()


def test_normalize_is_recorded_as_one_call(monkeypatch, deferral):
    of = content(fills=False)
    kept = deferred(of)
    normalize = deferral.recorded_by(called_on_levels, _functional_tensor.normalize, ["sub_"])
    like = expected(of)[0]
    calls = 4 * [([0.1, -0.2, 3.0], (0.5, 2.0, 0.3))] + 2 * [([0.1, -0.2, 3.0], (0.5, 2.0, 0.4))]
    theirs = [_functional_tensor.normalize(like, *each) for each in calls]
    with deferral:  # two are compared with torch's, and others remembered
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
    assert is_deferred(kept)


IN_FLOAT = {
    "bilinear": lambda x: _functional_tensor.resize(x, [20, 31]),
    "bicubic": lambda x: _functional_tensor.resize(x, [60, 9], interpolation="bicubic", antialias=True),
    "of a crop": lambda x: functional_of_pillow.resized_crop(x, 3, 5, 30, 40, [24, 25], antialias=True),
    "then cropped": lambda x: functional_of_pillow.center_crop(functional_of_pillow.resize(x, 40), [20]),
    "then turned": lambda x: functional_of_pillow.convert_image_dtype(_functional_tensor.resize(x, (24, 25)).flip(-1)),
    "of a batch": lambda x: _functional_tensor.resize(torch.stack([x, x]), [24, 24])[1],
    "of one": lambda x: _functional_tensor.resize(x[None], [24, 24])[0],
}


@pytest.mark.parametrize("planar", [True, False])
@pytest.mark.parametrize("name", IN_FLOAT)
def test_first_resizes_of_levels_are_recorded(deferral, name, planar):
    call = IN_FLOAT[name]
    of = Content((of_levels(pixels(1, 48, 60), (0, 0, 60, 48)),), IDENTITY, planar)
    x, like = deferred(of, single=True), expected(of)[0]
    theirs = call(like)
    with deferral:
        for _ in range(3):  # two are compared with torch's
            made = call(x)
    assert is_deferred(made)
    assert not deferral.recorder.painted_by
    assert (made.shape, made.stride(), made.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
    assert torch.equal(made, theirs)
    assert not deferral.recorder.is_off


PAINTED = {
    "without antialias": lambda x: _functional_tensor.resize(x, [20, 31], antialias=False),
    "nearest": lambda x: _functional_tensor.resize(x, [20, 31], "nearest"),
    "doubles": lambda x: _functional_tensor.resize(x.double(), [20, 31]),
    "another size": lambda x: _functional_tensor.resize(x, (torch.tensor(20), 31)),
    "one column": lambda x: _functional_tensor.resize(x, (20, 1)),
}


@pytest.mark.parametrize("name", PAINTED)
def test_other_first_resizes_are_painted(deferral, name):
    of = Content((of_levels(pixels(1, 48, 60), (0, 0, 60, 48)),), IDENTITY, planar=False)
    x = deferred(of, single=True)
    with deferral:
        made = PAINTED[name](x)
    assert not is_deferred(made)
    assert not deferral.recorder.is_off
    assert torch.equal(made, PAINTED[name](expected(of)[0]))


def test_a_replaced_interpolate_is_called(monkeypatch, deferral):
    of = Content((of_levels(pixels(1, 48, 60), (0, 0, 60, 48)),), IDENTITY, planar=False)
    deferral._prepare()
    called = []
    monkeypatch.setattr(_functional_tensor, "interpolate", lambda *a, **k: called.append(a) or interpolate(*a, **k))
    with deferral:
        assert not is_deferred(_functional_tensor.resize(deferred(of, single=True), [20, 31]))
    assert called


def test_without_its_arithmetic_a_first_resize_is_painted(monkeypatch, deferral):
    of = Content((of_levels(pixels(1, 48, 60), (0, 0, 60, 48)),), IDENTITY, planar=False)
    monkeypatch.setattr(resizes, "float_filters", dict)
    with deferral:
        assert not is_deferred(_functional_tensor.resize(deferred(of, single=True), [20, 31]))


def as_array(image):
    if "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA")).convert("RGB")
    return np.array(image)


class Processor:
    def process_image(self, image):
        return torch.from_numpy(as_array(image)).permute(2, 0, 1).contiguous()


@pytest.fixture
def lazy():
    assert lazy_images.install()
    yield
    lazy_images.uninstall()


def test_a_processor_is_asked_where_its_image_or_its_module_is_another(monkeypatch, deferral, lazy):
    monkeypatch.setattr(Processor, "process_image", deferral.in_place_of_method(Processor.process_image))
    image = Image.fromarray(pixels(1, 160, 150))

    def processed():
        with deferral:
            made = Processor().process_image(image)
        return is_deferred(made), made

    assert processed()[0]
    image.info["transparency"] = image.getpixel((0, 0))
    was_deferred, made = processed()
    assert not was_deferred
    assert made[:, 0, 0].tolist() == [255, 255, 255]
    del image.info["transparency"]
    with monkeypatch.context() as traced:
        traced.setattr(torch.compiler, "is_compiling", lambda: True)
        assert not processed()[0]
    monkeypatch.setitem(globals(), "as_array", lambda image: 255 - np.array(image))
    was_deferred, made = processed()
    assert was_deferred
    assert torch.equal(made, 255 - functional.pil_to_tensor(image))


def test_a_patch_with_the_names_of_a_function_stays(monkeypatch, deferral, lazy):
    patch = functools.wraps(functional_of_pillow.to_tensor)(lambda image: None)
    monkeypatch.setattr(functional_of_pillow, "to_tensor", patch)
    patch_of_values = functools.wraps(_functional_tensor.normalize)(lambda image: None)
    monkeypatch.setattr(_functional_tensor, "normalize", patch_of_values)
    deferral.install()
    assert functional_of_pillow.to_tensor is patch
    deferral.uninstall()
    deferral._prepare()
    assert _functional_tensor.normalize is patch_of_values


USES = {
    "bytes": (lambda x: (255 - x).flip(-1).sum(), False),
    "floats": (lambda x: (x / 2).sum(), True),
    "no pixels": (content_to_send, True),
}


@pytest.mark.parametrize("name", USES)
def test_nothing_is_deferred_any_more_where_programs_use_the_pixels(monkeypatch, deferral, lazy, name):
    monkeypatch.setattr(functions, "TRIED_MIN", 4)
    use, gains = USES[name]
    to_bytes = deferral._in_place_of(functional_of_pillow.pil_to_tensor)
    image = Image.fromarray(pixels(1, 160, 150))
    for _ in range(2):
        with deferral:
            for _ in range(3):
                use(to_bytes(image))
        assert deferral.take_counts()[0] == 3
    with deferral:
        last, of_another = to_bytes(image), deferral._in_place_of(functional_of_pillow.to_tensor)(image)
    assert is_deferred(last) == gains
    assert is_deferred(of_another)


def test_it_records_while_there_are_deferred_tensors(deferral):
    gc.collect(0)
    assert not _core.has_deferred_memory()
    with deferral:
        assert not torch.overrides._get_current_function_mode_stack()
    kept = deferred(content(), single=True)
    with deferral:
        assert torch.overrides._get_current_function_mode_stack() == [deferral.recorder]
        made = kept * 2
    assert not torch.overrides._get_current_function_mode_stack()
    assert is_deferred(made)


def test_samples_that_a_traceback_holds_beyond_their_batch_are_not_recorded(deferral):
    with deferral:
        held = iter(deferral.samples([0, 1]))
        next(held)
        deferral.deferred = 1
    del held
    assert not torch.overrides._get_current_function_mode_stack()


@pytest.mark.parametrize("call", [lambda x: torch.mul(x, 2, out=x), lambda x: x.resize_(3, 5, 7).mul_(2)])
def test_a_tensor_stays_in_the_memory_that_numpy_has(deferral, call):
    deferral._prepare()
    of = content()
    x, like = deferred(of, single=True), expected(of)[0]
    seen, expects = x.numpy(), like.numpy()
    assert not is_deferred(x)  # system calls would not find its values
    with deferral.recorder:
        call(x)
    call(like)
    assert np.array_equal(seen, expects)
    assert torch.equal(x, like)


@pytest.mark.parametrize("call", [lambda x, big: torch.mul(big, 2, out=x), lambda x, big: x.resize_as_(big).copy_(big)])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_tensor_that_numpy_does_not_have_can_be_resized(deferral, call):
    deferral._prepare()
    x, shared, big = *(deferred(content(), single=True) for _ in range(2)), torch.ones(3, 200, 200)
    shared.numpy()
    with deferral.recorder:
        call(x, big)
        with pytest.raises(RuntimeError, match="not resizable"):
            call(shared, big)
    like = torch.empty(0)
    call(like, big)
    assert torch.equal(x, like)


def test_what_dynamo_traces_is_not_deferred(monkeypatch, deferral, lazy):
    to_tensor = deferral._in_place_of(functional_of_pillow.to_tensor)
    image = Image.fromarray(pixels(1, 160, 150))
    with deferral:
        usual = to_tensor(image)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        traced = to_tensor(image)
    assert is_deferred(usual)
    assert not is_deferred(traced)


@pytest.mark.parametrize(
    ("offset", "size"),
    [(40 * 48, (3, 9, 48)), (40, (3, 9, 9)), (48 * 48, (3, 9, 9)), (3 * 48 * 48, (3, 9, 9))],
)
def test_what_crosses_an_images_edge_is_no_part_of_it(offset, size):
    of = content(fills=False)
    whole = torch.empty(6 * 48 * 48)
    assert placed(whole.as_strided(size, (48 * 48, 48, 1), 0), of) is not None
    assert placed(whole.as_strided(size, (48 * 48, 48, 1), offset), of) is None


CLAMP, SHRINK, TAKE_AWAY = (
    lambda x: torch.clamp(x, 0, 0.5, out=x),
    lambda x: x.resize_(3, 5, 7).mul_(2),
    torch.Tensor.set_,
)


@pytest.mark.parametrize(
    ("call", "of_storage"),
    [(CLAMP, True), (CLAMP, False), (SHRINK, True), (SHRINK, False), (TAKE_AWAY, True)],
)
def test_what_shares_memory_that_need_not_grow_is_not_left_behind(deferral, call, of_storage):
    deferral._prepare()
    of = content()
    x, like = deferred(of, single=True), expected(of)[0]

    def shared(tensor):
        if of_storage:
            return torch.empty(0).set_(tensor.untyped_storage(), 0, (3 * 48 * 48,))
        return torch.from_dlpack(tensor)

    seen, expects = shared(x), shared(like)
    with deferral.recorder:
        call(x)
    call(like)
    assert torch.equal(seen, expects)
    assert torch.equal(x, like)


VALUES = 3 * 48 * 48
GROWN = {
    "by one": lambda x: x.resize_(VALUES + 1),
    "a size": lambda x: x.resize_((3, 90, 90)),
    "as another": lambda x: x.resize_as_(torch.ones(VALUES + 1)),
    "a view": lambda x: x[1].resize_(VALUES - 48 * 48 + 1),
}


@pytest.mark.parametrize("name", GROWN)
def test_a_pointer_keeps_no_tensor_from_being_resized(deferral, name):
    deferral._prepare()
    x, like = deferred(content(), single=True), expected(content())[0]
    x.data_ptr()
    with deferral.recorder:
        row = x[0, 0]
        made = GROWN[name](x)
    expects = GROWN[name](like)
    assert made.shape == expects.shape
    assert torch.equal(made.flatten()[:2304], expects.flatten()[:2304])
    assert torch.equal(row, like.flatten()[:48])


def test_what_is_resized_has_its_values(deferral):
    deferral._prepare()
    x = deferred(content(), single=True)
    with deferral.recorder:
        x.resize_(3, 5, 7)
    assert not is_deferred(x)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_named_outputs_can_be_resized(deferral):
    deferral._prepare()
    big = torch.rand(3, 200, 200)
    values, places = deferred(content(), single=True), torch.empty(0, dtype=torch.int64)
    with deferral.recorder:
        torch.sort(big, 0, out=torch.return_types.sort((values, places)))
    expects = torch.sort(big, 0)
    assert torch.equal(values, expects.values)
    assert torch.equal(places, expects.indices)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_tensor_whose_address_is_known_elsewhere_cannot_grow(deferral):
    deferral._prepare()
    x, big = deferred(content(), single=True), torch.ones(3, 200, 200)
    seen = torch.from_dlpack(x)
    with deferral.recorder, pytest.raises(RuntimeError, match="not resizable"):
        torch.mul(big, 2, out=x.view_as(x))
    assert torch.equal(seen, expected(content())[0])


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_what_shares_memory_that_grows_goes_along(deferral):
    deferral._prepare()
    of, big = content(), torch.rand(3, 200, 200)
    like = expected(of)[0]
    with deferral.recorder:
        x = deferred(of, single=True)
        other, row = x.view_as(x), x[0, 0]
        torch.mul(big, 1, out=x)
    assert torch.equal(x, big)
    torch.mul(big, 1, out=like.view_as(like))
    assert torch.equal(other, like)
    assert torch.equal(row, like[0, 0])


def test_torchs_collate_makes_a_deferred_batch_that_is_shared(deferral, monkeypatch):
    deferral._prepare()
    monkeypatch.setattr(worker, "_worker_info", worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=None))
    of_all = table()
    contents = [Content((pending(DATA, SIZE, seed),), of_all, True) for seed in range(3)]
    samples = [deferred(each, single=True) for each in contents]
    with deferral:
        made = default_collate(samples)
    assert all(map(is_deferred, [made, *samples]))
    assert (made.is_shared(), made._version) == (True, 3)
    assert not deferral.recorder.painted_by
    assert torch.equal(made, torch.cat([expected(each) for each in contents]))
