"""Values of deferred tensors in another order, as patches of an image, are deferred, too."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from deferred_images import SIDE, deferred, expected, fill_of, of_levels, pending, table
from photos import jpeg, pixels
from torch.utils.data import default_collate
from torchvision import tv_tensors

from fastload import _core
from fastload._compare import same_bits
from fastload.deferred import memory, recorder
from fastload.deferred.calls import stacks
from fastload.deferred.content import Content, Rearranged
from fastload.deferred.functions import Deferral
from fastload.deferred.memory import content_to_send, is_deferred
from fastload.deferred.staging import Stager
from fastload.memory import unfilled

DATA, SIZE = jpeg(0), (120, 90)
PATCH = 6
VALUES = SIDE * SIDE * 3
"""Of an image."""


@pytest.fixture(scope="module", autouse=True)
def handlers():
    """Let recorders record all that a worker's do."""
    Deferral()
    stacks.install()
    yield
    unfilled.serve(None)


def images(*, planar: bool = True, dtype: torch.dtype = torch.float32, count: int = 2) -> Content:
    """Random crops, with boxes of constants."""
    fills = (fill_of(dtype), fill_of(dtype, count - 1, (0, 40, 48, 8)))
    return Content(tuple(pending(DATA, SIZE, seed) for seed in range(count)), table(dtype), planar, fills)


def patches(x: torch.Tensor, repeated: int = 2) -> torch.Tensor:
    """Patches of images, ``(N, patches, values)``, each twice as if of two frames."""
    count, channels, height, width = x.shape
    rows, columns = height // PATCH, width // PATCH
    split = x.reshape(count, channels, rows // 2, 2, PATCH, columns // 2, 2, PATCH)
    ordered = split.permute(0, 2, 5, 3, 6, 1, 4, 7).unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, repeated, -1, -1)
    return ordered.reshape(count, rows * columns, channels * repeated * PATCH * PATCH)


CALLS = {
    "patches": patches,
    "patches of one": lambda x: patches(x[1:2])[0],
    "of an image": lambda x: x[1].reshape(3, 8, PATCH, 8, PATCH).permute(1, 3, 2, 4, 0).flatten(0, 1).flatten(1),
    "every other row": lambda x: x[:, :, 1::2].reshape(len(x), -1),
    "one channel": lambda x: x[:, 1].reshape(-1),
    "one column": lambda x: x[0, 2, :, 3].reshape(6, 8, 1).contiguous(),
    "turned": lambda x: x.transpose(2, 3).contiguous(),
    "same for all": lambda x: x[1, :, None, 5, :4].expand(3, 7, 4).reshape(-1),
    "joined": lambda x: torch.cat([patches(x[:1])[0], patches(x[:, :, :24])[1], patches(x)[0, :5]]),
    "stacked": lambda x: torch.stack([patches(x)[1], patches(x)[0]]),
    "seen as others": lambda x: patches(x).contiguous().view(-1, PATCH * PATCH)[None],
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("planar", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_results_are_deferred_and_torchs(name, planar, dtype):
    call, of = CALLS[name], images(planar=planar, dtype=dtype)
    x, like = deferred(of), expected(of)
    watching = recorder.CallRecorder()
    with watching:
        for _ in range(3):  # two are compared with torch's
            made = call(x)
    theirs = call(like)
    if name == "joined":  # a part of an image's patches is none
        assert watching.painted_by
    else:
        assert not watching.painted_by
        assert is_deferred(made)
        assert is_deferred(x)
    assert (made.shape, made.stride(), made.dtype, made._version) == (
        theirs.shape,
        theirs.stride(),
        theirs.dtype,
        theirs._version,
    )
    assert same_bits(made, theirs)
    assert not watching.is_off


def rearranged() -> tuple[torch.Tensor, torch.Tensor]:
    """A deferred tensor of patches of two sizes, and what it holds."""
    x, y = images(), images(planar=False, count=3)
    like = torch.cat([patches(expected(x)).flatten(0, 1), patches(expected(y)[:, :, 12:36]).flatten(0, 1)])
    watching = recorder.CallRecorder()
    with watching:
        made = torch.cat([patches(deferred(x)).flatten(0, 1), patches(deferred(y)[:, :, 12:36]).flatten(0, 1)])
    assert not watching.painted_by
    assert is_deferred(made)
    return made, like


def test_parts_are_sent_by_themselves():
    made, like = rearranged()
    content = content_to_send(made)
    assert isinstance(content, Rearranged)
    assert content.nbytes == content.staged_bytes == like.nbytes
    assert content_to_send(made[64:]).nbytes == like[64:].nbytes  # the first image has 64 patches
    assert content_to_send(made[32:]) is None
    assert content_to_send(made.view(torch.int32)) is None
    assert content_to_send(made.t()) is None
    for some in (slice(0, 64), slice(64, 160), slice(128, 224)):
        out = np.zeros(like[some].nbytes, np.uint8)
        content_to_send(made[some]).paint(out)
        assert out.tobytes() == like[some].numpy().tobytes()
    assert is_deferred(made)
    assert same_bits(made, like)


@pytest.mark.parametrize("name", ["new_zeros", "new_ones", "new_empty"])
def test_new_tensors_are_made_after_it(name):
    made, like = rearranged()
    with recorder.CallRecorder():
        new = getattr(made, name)(3, 24, 24)
        full, plain = made.new_full((2, 24, 24), 1), made.new(3, 24, 24)
    for each in (new, full, plain):
        assert (each.dtype, each.shape[1:]) == (like.dtype, (24, 24))
    assert torch.equal(full, torch.ones(2, 24, 24))
    assert name == "new_empty" or torch.equal(new, getattr(torch, name[4:])(3, 24, 24))


def test_it_is_written_to_files(tmp_path):
    made, like = rearranged()
    with open(tmp_path / "values", "w+b") as file:
        content_to_send(made).write(file.fileno(), 8)
        assert os.pread(file.fileno(), like.nbytes, 8) == like.numpy().tobytes()


def test_no_gpu_makes_it():
    made, _ = rearranged()
    assert Stager().take(content_to_send(made), made.size(), made.stride()) is None


def test_what_the_core_does_not_take_is_pillows(monkeypatch):
    x = images()
    broken = pending(DATA[: len(DATA) // 2], SIZE, file=None)
    of = Content((x.images[0], broken), x.table, True)
    by_pillow = np.full((SIDE, SIDE, 3), 7, np.uint8)
    monkeypatch.setattr(type(broken), "pixels", lambda _: by_pillow)
    with recorder.CallRecorder():
        made = torch.cat([patches(deferred(x)).flatten(0, 1), patches(deferred(of)).flatten(0, 1)])
    content, like = content_to_send(made), patches(x.table[:, 7][None, :, None, None].expand(1, 3, SIDE, SIDE))[0]
    out = np.zeros(content.nbytes, np.uint8)
    content.paint(out)
    values = torch.from_numpy(out).view(torch.float32).view(made.shape)
    assert same_bits(values[-len(like) :], like)
    memory.paint(memory.memory_of(made))
    assert same_bits(made[-len(like) :], like)
    assert same_bits(made[:64], patches(expected(x))[0])


def test_a_later_change_of_the_images_is_not_theirs():
    of = images()
    x, like = deferred(of), expected(of)
    with recorder.CallRecorder():
        made = patches(x)
        x.mul_(2)
        again = patches(x)
    assert is_deferred(made)
    assert same_bits(made, patches(like))
    assert same_bits(again, patches(like * 2))


class Sub(torch.Tensor):
    """A user's type."""


def wrapped(x):
    """Patches of torchvision's image, which is to return its own type."""
    with tv_tensors.set_return_type("TVTensor"):
        return x.as_subclass(tv_tensors.Image).permute(0, 2, 3, 1).reshape(2, -1)


ODD = {
    "another dtype": lambda x: patches(x).to(torch.bfloat16),
    "a constant in a part": lambda x: patches(x).index_fill_(1, torch.tensor(3), 5.0),
    "a constant in a row": lambda x: put(patches(x), 0, 5.0),
    "patches in a part": lambda x: put(patches(x), 0, patches(x)[1]),
    "changes in place": lambda x: patches(x).fill_(3).add_(1),
    "a view as other numbers": lambda x: x.view(torch.int32).permute(0, 2, 3, 1).reshape(-1),
    "a copy of a copy": lambda x: patches(x).permute(0, 2, 1).reshape(2, -1).contiguous(),
    "parts of two images": lambda x: (
        x.flatten()[7 : 7 + SIDE * SIDE * 3].view(SIDE, SIDE, 3).permute(2, 0, 1).reshape(-1)
    ),
    "parts of two images, far apart": lambda x: (
        x.as_strided((2, 5), (SIDE * SIDE * 3 - 2, 1), 9).reshape(-1, 1).contiguous()
    ),
    "of two dtypes": lambda x: torch.cat([patches(x), patches(deferred(images(dtype=torch.float64)))]),
    "of another type": lambda x: torch.cat([patches(x).as_subclass(Sub)] * 2),
    "of its own type": wrapped,
    "side by side": lambda x: torch.cat([patches(x), patches(x)], dim=1),
    "stacked last": lambda x: torch.stack([patches(x)[0], patches(x)[0]], dim=-1),
    "stacked first": lambda x: torch.stack([patches(x)[0], patches(x)[1]], dim=-3),
    "into another": lambda x: torch.cat([patches(x), patches(x)], out=torch.empty(0)),
    "beside others": lambda x: torch.cat([patches(x), torch.ones(1, 64, 216)]),
}


def put(tensor, index, value):
    """Assign and return."""
    tensor[index] = value
    return tensor


@pytest.mark.parametrize("name", ODD)
def test_other_calls_are_torchs(name):
    call, of = ODD[name], images()
    watching = recorder.CallRecorder()
    with watching:
        for known in ("patches", "turned", "stacked"):  # which are not compared any more then
            for _ in range(recorder.COMPARED):
                CALLS[known](deferred(of))
                torch.cat([patches(deferred(of))] * 2)
        made = call(deferred(of))
    theirs = call(expected(of))
    assert type(made) is type(theirs)
    assert (made.shape, made.stride(), made._version) == (theirs.shape, theirs.stride(), theirs._version)
    assert same_bits(made.as_subclass(torch.Tensor), theirs.as_subclass(torch.Tensor))
    assert not watching.is_off


def test_default_collate_joins_them():
    x, y = images(), images(count=3)
    with recorder.CallRecorder():
        samples = [patches(deferred(x))[1], patches(deferred(y))[0], deferred(y)[:1].clone()[0]]
    parts = unfilled.parts_of(samples[:2])
    assert [type(part) for part in parts] == [Rearranged, Rearranged]
    assert unfilled.parts_of(samples) is None
    like = default_collate([patches(expected(x))[1], patches(expected(y))[0]])
    out = torch.empty(like.nbytes, dtype=torch.uint8)
    unfilled.paint(parts, out)
    assert same_bits(out.view(torch.float32).view(like.shape), like)


def test_odd_calls_are_torchs_with_its_errors():
    x = deferred(images())
    with recorder.CallRecorder():
        parts = patches(x)
        for odd in (
            lambda: x.permute(0, 2, 3, 1).reshape(7, -1),
            lambda: torch.cat([parts, parts[:, :, :3]]),
            lambda: torch.stack([parts[0], parts[:, 0]]),
        ):
            with pytest.raises(RuntimeError):
                odd()
        assert torch.cat([parts, parts], dim=1).shape == (2, 128, 216)
        assert torch.cat([patches(x), patches(x).double()]).dtype == torch.float64


def test_programs_take_the_dimensions_of_an_image_only():
    program = Content((of_levels(pixels(1, 8, 8), (0, 0, 8, 8)),), table(), planar=True).core()
    assert program.in_order([(3, 64), (8, 8), (8, 1)], 0).nbytes == program.nbytes
    for axes, first in (([], 0), ([(3, 64), (65, 1)], 0), ([(2, 1 << 63)], 0), ([(0, 1)], 0), ([(192, 1)], 1)):
        with pytest.raises(ValueError, match="dimensions"):
            program.in_order(axes, first)
    ordered = program.in_order([(192, 1)], 0)
    whole = _core.TensorProgram.in_parts([ordered, program])
    assert whole.nbytes == 2 * program.nbytes
    with pytest.raises(ValueError, match="no parts"):
        _core.TensorProgram.in_parts([whole])
    for of in (ordered, whole):
        with pytest.raises(ValueError, match="no axes"):
            of.in_order([(1, 1)], 0)
        with pytest.raises(ValueError, match="no axes"):
            of.with_values(table().numpy().view(np.int32))
        with pytest.raises(ValueError, match="one size"):
            _core.TensorProgram.joined([program, of], True)
