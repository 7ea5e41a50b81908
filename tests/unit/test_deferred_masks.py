"""Tensors of masks are deferred until their batch is made, and hold torch's values."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate
from torch.utils.data import Dataset, default_collate
from torchvision import tv_tensors
from torchvision.transforms import functional as functional_of_pillow
from torchvision.transforms.v2 import functional

from fastload import FastLoader, _core
from fastload.deferred import functions, picked
from fastload.deferred.calls import canvas
from fastload.deferred.functions import Deferral
from fastload.deferred.geometry import small_like, strides_as
from fastload.deferred.memory import content_to_send, memory_of
from fastload.deferred.memory import is_deferred as is_in_deferred_memory
from fastload.deferred.staging import Stager
from fastload.lazy import images as lazy_images
from fastload.memory import unfilled

SIZE = 200, 150
LEVELS = np.random.default_rng(3).integers(0, 256, SIZE[::-1], dtype=np.uint8)


def png(mode: str) -> bytes:
    image = Image.fromarray(LEVELS) if mode == "L" else Image.frombytes("P", SIZE, LEVELS.tobytes())
    if mode == "P":
        image.putpalette(bytes(range(256)) * 3)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


FILES = {mode: png(mode) for mode in ("L", "P")}


def opened(mode: str = "L") -> Image.Image:
    return Image.open(io.BytesIO(FILES[mode]))


@pytest.fixture
def deferral(monkeypatch):
    monkeypatch.setattr(functions, "MASK_MIN_BYTES", 1)
    monkeypatch.setattr(functions, "TRIED_MIN", 1 << 30)
    monkeypatch.setattr(canvas, "MIN_BYTES", 1)
    monkeypatch.setattr(Image.Image, "im", vars(Image.Image)["im"])  # which stays replaced for images that are pending
    made = Deferral()
    lazy_images.install(made.install, made.uninstall)
    opened()  # from the first file on
    yield made
    made._replaced.undo()
    lazy_images.uninstall()
    unfilled.serve(None)


def is_deferred(x: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return is_in_deferred_memory(x)


def reference() -> torch.Tensor:
    return torch.as_tensor(LEVELS.copy()).view(*SIZE[::-1], 1).permute(2, 0, 1)


def in_a_canvas(x):
    height, width = x.shape[-2:]
    batch = x.new(3, height + 1, width + 2).fill_(255)
    for each in batch:
        each[..., :height, :width].copy_(x[0])
    return batch


CALLS = {
    "resize": lambda x: functional.resize(x, [70, 333], functional.InterpolationMode.NEAREST),
    "resize of a resize": lambda x: interpolate(interpolate(x[None], 41), (160, 90))[0],
    "resize of floats": lambda x: interpolate(x[None].float(), (41, 300))[0],
    "resize of a turned crop": lambda x: interpolate(x[:, 3:99, 5:150].flip(-1)[None], 77)[0],
    "flips": lambda x: x.flip(-1).flip((1, 2)),
    "crop": lambda x: x[:, 3:140, 5:-2].clone(),
    "a small crop": lambda x: x[:, 3:20, 5:25] + 1,
    "border": lambda x: functional.pad(x, [3, 0, 5, 7], fill=255).flip(-1)[:, 1:150, 2:201] * 2,
    "no border": lambda x: functional.pad(x[:, :90, :80], [0, 0, 0, 0], fill=255),
    "integers": lambda x: x.to(torch.int64).squeeze(0),
    "of two dimensions": lambda x: x[0].long().flip(0)[2:, :70].contiguous().eq(7),
    "of four dimensions": lambda x: (x[None].float() - 1) / 255,
    "in place": lambda x: x.clone().float().sub_(1).div_(3),
    "copies": lambda x: torch.tensor(x[0]),
    "stack": lambda x: torch.stack([x, x.flip(-1)]),
    "stack of two dimensions": lambda x: torch.stack([x[0].long(), x[0].long()])[1:] + 1,
    "batches in one": lambda x: torch.cat([x, torch.stack([x[0], x[0]])]),
    "canvas": in_a_canvas,
    "box": lambda x: x.new_zeros(2, 1, 150, 200).add_(1)[:1],
}


@pytest.mark.parametrize("mode", FILES)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:To copy construct")
def test_results_are_deferred_and_torchs(deferral, name, mode):
    theirs = CALLS[name](reference())
    for _ in range(3):  # the first two are compared while they are recorded
        with deferral:
            x = functional_of_pillow.pil_to_tensor(opened(mode))
            assert is_deferred(x)
            made = CALLS[name](x)
            assert is_deferred(made)
        assert (made.stride(), made.dtype, made._version) == (theirs.stride(), theirs.dtype, theirs._version)
        assert torch.equal(made, theirs)
    assert not deferral.recorder.is_off
    assert not deferral.recorder.painted_by


OTHERS = {
    "nearest-exact": lambda x: interpolate(x[None], (41, 300), mode="nearest-exact"),
    "in float64": lambda x: interpolate(x[None].double(), (41, 300)),
    "by factors": lambda x: interpolate(x[None], scale_factor=1.5),
    "mixed": lambda x: functional.resize(x, [70, 33]),
    "side by side": lambda x: torch.cat([x, x], 2),
    "per image": lambda x: x * torch.ones(3, 1, 1),
    "of three": lambda x: torch.stack([x, x, x])[:, 0] * torch.ones(3, 1, 1),
    "transposed": lambda x: x.transpose(1, 2) + 1,
    "every other": lambda x: x[:, ::2] + 1,
    "expanded": lambda x: x.expand(3, -1, -1) + 1,
    "strides of others": lambda x: x.as_strided(x.shape, (7, *x.stride()[1:])) + 1,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_need_not_be_recorded_is_torchs(deferral, name):
    theirs = OTHERS[name](reference())
    for _ in range(3):
        with deferral:
            made = OTHERS[name](functional_of_pillow.pil_to_tensor(opened()))
        assert (made.stride(), made.dtype) == (theirs.stride(), theirs.dtype)
        assert torch.equal(made, theirs)
    assert not deferral.recorder.is_off


def test_resizes_take_torchs_pixels():
    draw = np.random.default_rng(5)
    for _ in range(300):
        height, width, rows, columns = map(int, draw.integers(2, 400, 4))
        y, x = (torch.arange(side) for side in (height, width))
        both = torch.stack([y[:, None] % 251 + 0 * x, 0 * y[:, None] + x % 251]).to(torch.uint8)
        theirs = interpolate(both[:, None], (rows, columns)).numpy()[:, 0]
        takes = [picked._taken(*each, torch.float32) for each in ((height, rows), (width, columns))]
        assert np.array_equal(theirs[0, :, 0], takes[0] % 251)
        assert np.array_equal(theirs[1, 0], takes[1] % 251)


def test_strides_are_torchs_whatever_those_of_single_elements_are():
    draw = np.random.default_rng(7)
    content = type("Content", (), {"table": torch.zeros((1, 256), dtype=torch.uint8)})()
    calls = [
        *(lambda x: x + 1, lambda x: x.long(), lambda x: x.clone(), lambda x: x.flip(-1), lambda x: x == 2),
        *(lambda x: x.contiguous(), lambda x: torch.stack([x, x]), lambda x: torch.cat([x, x.flip(-2)])),
        lambda x: torch.nn.functional.pad(x, (1, 1, 1, 0)),
    ]
    known = 0
    for _ in range(2000):
        height, width = map(int, draw.integers(2, 90, 2))
        row = width + int(draw.integers(0, 2)) * int(draw.integers(1, 9))
        choices = [1, width, row, height * row, height * row + 5, 3 * height * row + 1]
        strides = [int(draw.choice(choices)) for _ in range(draw.integers(0, 3))]
        x = torch.empty_strided((*[1] * len(strides), height, width), (*strides, row, 1), dtype=torch.uint8)
        small = small_like(x, content)
        if small is None:
            continue
        for call in calls:
            theirs, made = call(x), call(small)
            ours = strides_as(made, theirs.shape)
            assert ours in (None, theirs.stride()), (x.shape, x.stride(), calls.index(call))
            known += ours is not None
    assert known > 10000


def test_a_tensor_of_a_resized_image_is_pillows(deferral):
    image = Image.fromarray(LEVELS).resize((90, 80), Image.Resampling.NEAREST).transpose(1)
    with deferral:
        x = functional_of_pillow.to_tensor(opened().resize((90, 80), Image.Resampling.NEAREST).transpose(1))
        assert is_deferred(x)
        y = functional_of_pillow.pil_to_tensor(functional_of_pillow.pad(opened("P").crop((3, 4, 90, 80)), 5, fill=9))
        assert is_deferred(y)
    assert torch.equal(x, functional_of_pillow.to_tensor(image))
    padded = functional_of_pillow.pad(Image.fromarray(LEVELS).crop((3, 4, 90, 80)), 5, fill=9)
    assert torch.equal(y, functional_of_pillow.pil_to_tensor(padded))


def test_the_first_masks_are_compared_and_a_difference_ends_recording(deferral, monkeypatch):
    monkeypatch.setattr(picked, "_taken", lambda side, target, dtype: np.zeros(target, np.int64))
    with deferral, pytest.warns(RuntimeWarning, match="was not torch's"):
        made = interpolate(functional_of_pillow.pil_to_tensor(opened())[None], 30)
    assert torch.equal(made, interpolate(reference()[None], 30))
    assert deferral.recorder.is_off


def test_a_gpu_is_left_no_masks(deferral):
    with deferral:
        x = torch.stack([functional_of_pillow.pil_to_tensor(opened())[0]] * 3)  # of the shape of an image
        with torch._C.DisableTorchFunction():
            content = content_to_send(x)
        assert content.staged_bytes == content.nbytes == x.nbytes
        assert Stager().take(content, x.shape, x.stride()) is None
        with pytest.raises(ValueError, match="3 channels"):
            _core.stage_programs([content.core()], [0], np.empty(1 << 20, np.uint8), 1 << 30)


def test_small_crops_keep_none_of_the_rest(deferral):
    with deferral:
        x = functional_of_pillow.pil_to_tensor(opened())[:, 3:20, 5:25] + 1
        with torch._C.DisableTorchFunction():
            (image,) = memory_of(x).content.images
        assert image.file.size == (20, 17)
        image.file.has_gained = True
    assert all(file.has_gained for trial in deferral._trials.values() for file in trial._files)


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [([0, 150], [0, 1], "the levels'"), ([0, 1], [-1, 1], "the levels'"), ([], [0], "the levels'")],
)
def test_the_core_refuses_places_outside(rows, columns, message):
    places = np.array(rows, np.int32), np.array(columns, np.int32)
    with pytest.raises(ValueError, match=message):
        _core.ImageProgram.picked(LEVELS.reshape(-1), SIZE[::-1], *places)


def test_the_core_refuses_unlike_sizes():
    program = _core.ImageProgram.picked(
        LEVELS.reshape(-1), SIZE[::-1], np.arange(4, dtype=np.int32), np.arange(5, dtype=np.int32)
    )
    table = np.arange(256, dtype=np.uint8)[None]
    for size, of in (((4, 6), table), ((5, 5), table), ((4, 5), table.repeat(3, 0))):
        with pytest.raises(ValueError, match="channels"):
            _core.TensorProgram([program], size, "horizontal_first", of, True)
    with pytest.raises(ValueError, match="1 channel"):
        _core.ImageProgram.picked(LEVELS.reshape(-1)[1:], SIZE[::-1], *[np.arange(4, dtype=np.int32)] * 2)


class Masks(Dataset):
    """An image of three channels and its mask, as segmentation programs make them."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        mask = tv_tensors.Mask(functional_of_pillow.pil_to_tensor(opened("LP"[index % 2])))
        mask = functional.resize(mask, [120 + index])
        mask = functional.crop(functional.pad(mask, [0, 0, 40, 40], fill=255), 7, 9, 130, 140)
        return {"mask": functional.to_dtype(mask, torch.int64), "number": index}


def test_batches_of_workers_are_torchs_and_deferred(monkeypatch):
    monkeypatch.setattr(functions, "MASK_MIN_BYTES", 1)
    theirs = [default_collate([Masks()[index] for index in range(at, at + 4)]) for at in range(0, 48, 4)]
    with FastLoader(Masks(), batch_size=4, num_workers=1, device="cpu") as loader:
        ours = list(loader)
        assert loader.stats().deferred_images >= 40
        assert loader.stats().looks == 0
    for our, their in zip(ours, theirs, strict=True):
        assert type(our["mask"]) is type(their["mask"])
        assert our["mask"].stride() == their["mask"].stride()
        assert torch.equal(our["mask"], their["mask"])
