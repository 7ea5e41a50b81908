"""Boxes of the finished batch are erased with the same bits on every device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision.transforms as v1

from fastload.device.erasing import Erased, Noise, to_fill
from fastload.device.normalize import NormalizeTable, TableImages, look_up, to_images
from fastload.pipeline.ops.erasing import Erasing, erased_by

BOXES = torch.tensor([[0, 0, 0, 0], [1, 2, 3, 4], [0, 5, 9, 3], [7, 0, 2, 8], [4, 4, 0, 3]], dtype=torch.int32)
COLOR = torch.tensor([0.1, -2.5, 7.0])


class Elsewhere(torch.Tensor):
    """A tensor on the CPU that says it is not."""

    @property
    def device(self):
        return torch.device("meta")


def by_hand(images, color):
    wanted = images.clone()
    for image, (top, left, height, width) in zip(wanted, BOXES.tolist(), strict=True):
        image[:, top : top + height, left : left + width] = color[:, None, None]
    return wanted


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("masked", [False, True])
def test_boxes_are_filled_and_nothing_else(monkeypatch, memory_format, dtype, masked):
    pixels = torch.randint(0, 256, (5, 9, 8, 3), dtype=torch.uint8)
    table = None if dtype == torch.uint8 else NormalizeTable(torch.randn(3, 256).to(dtype))
    plain = to_images(pixels.clone(), table, memory_format)
    color = (COLOR.abs() * 9).to(dtype)
    images = plain.clone(memory_format=torch.preserve_format)
    erased = Erased(BOXES, color)
    if masked:
        real = torch.Tensor.to
        monkeypatch.setattr(torch.Tensor, "to", lambda self, device, **_: real(self, "cpu"))
        real_arange = torch.arange
        monkeypatch.setattr(torch, "arange", lambda *a, device, **k: real_arange(*a, **k))
        erased.fill(images.as_subclass(Elsewhere))
    else:
        erased.fill(images)
    assert images.stride() == plain.stride()
    assert torch.equal(images, by_hand(plain, color))
    assert not torch.equal(images, plain)


@pytest.mark.gpu
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
def test_boxes_are_filled_on_the_gpu(memory_format, dtype):
    pixels = torch.randint(0, 256, (5, 9, 8, 3), dtype=torch.uint8).pin_memory()
    table = None if dtype == torch.uint8 else NormalizeTable(torch.randn(3, 256).to(dtype))
    erased = Erased(BOXES, (COLOR.abs() * 9).to(dtype))
    wanted = to_images(pixels.clone(), table, memory_format, erased)
    images = TableImages(pixels, table, memory_format, erased).to(torch.device("cuda"), non_blocking=True)
    assert images.stride() == wanted.stride()
    assert torch.equal(images.cpu(), wanted)


def test_a_batch_of_which_nothing_is_erased_costs_nothing():
    color = Erasing(v1.RandomErasing(), COLOR)
    noise = Erasing(v1.RandomErasing(value="random"), None, "pixels")
    nothing = [[], [((0, 0, 0, 0), None)], [((4, 4, 0, 3), None)]]
    assert to_fill(None, [[((1, 2, 3, 4), None)]]) is None
    assert to_fill(color, nothing) is None
    assert to_fill(noise, [[], [((4, 4, 0, 3), torch.ones(3, 0, 3))]]) is None
    filled = to_fill(color, [*nothing, [((1, 2, 3, 4), None)]])
    assert isinstance(filled, Erased)
    assert filled.boxes.tolist() == [[0] * 4, [0] * 4, [0] * 4, [1, 2, 3, 4]]


def noisy(height, width):
    """Patches of five images: some overlap, are empty, fill the image or have one color."""
    draw = torch.Generator().manual_seed(8)
    boxes = [[], [(1, 2, 3, 4)], [(0, 5, 9, 3), (2, 4, 4, 4), (0, 0, 5, 6)], [(3, 3, 0, 2)], [(0, 0, height, width)]]
    patches = [[(box, torch.randn(3, *box[2:], generator=draw)) for box in some] for some in boxes]
    patches[-1].append(((7, 0, 2, 8), COLOR.view(3, 1, 1)))
    return to_fill(Erasing(v1.RandomErasing(value="random"), None, "pixels"), patches), patches


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_later_patches_cover_earlier_ones_and_nothing_else(memory_format):
    pixels = torch.randint(0, 256, (5, 9, 8, 3), dtype=torch.uint8)
    table = NormalizeTable(torch.randn(3, 256))
    noise, patches = noisy(9, 8)
    wanted = to_images(pixels.clone(), table, memory_format)
    images = to_images(pixels, table, memory_format, noise)
    assert images.stride() == wanted.stride()
    assert not torch.equal(images, wanted)
    for image, some in enumerate(patches):
        for (top, left, height, width), values in some:
            wanted[image, :, top : top + height, left : left + width] = values
    assert torch.equal(images, wanted)
    leaf = TableImages(pixels, table, memory_format, noise)
    assert leaf.nbytes == pixels.nbytes + noise.nbytes == pixels.nbytes + 4 * 3 * (12 + 27 + 16 + 30 + 72 + 1)


def test_patches_are_copied_in_one_piece(monkeypatch):
    moved = []

    def to(self, device, **how):
        moved.append((self.shape, device, how))
        return self.clone()

    noise, _ = noisy(9, 8)
    monkeypatch.setattr(torch.Tensor, "to", to)
    copied = noise.copied(torch.device("cuda"), pin=False)
    assert moved == [((3 * 158,), torch.device("cuda"), {"non_blocking": False})]
    assert isinstance(copied, Noise)
    assert copied.places == noise.places
    assert all(torch.equal(*pair) for pair in zip(copied.values, noise.values, strict=True))
    assert len({values.untyped_storage().data_ptr() for values in copied.values}) == 1
    assert noise.copied(torch.device("cpu"), pin=False) is noise


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_the_users_own_transform_says_where(p):
    step = v1.RandomErasing(p, value=(1, 2, 3), inplace=True)
    torch.manual_seed(6)
    (((top, left, height, width), values),) = erased_by(Erasing(step, COLOR), np.zeros((20, 30, 3), np.uint8), None)
    assert values is None
    after = torch.get_rng_state()
    torch.manual_seed(6)
    images = torch.zeros(3, 20, 30)
    step(images)
    assert torch.equal(after, torch.get_rng_state())
    assert (images != 0).sum() == 3 * height * width
    assert (images[:, top : top + height, left : left + width] != 0).all()
    assert step.value == (1, 2, 3)


@pytest.mark.parametrize("p", [0.0, 1.0])
@pytest.mark.parametrize("inplace", [True, False])
def test_the_users_own_transform_says_where_and_what(p, inplace):
    step = v1.RandomErasing(p, value="random", inplace=inplace)
    table = torch.randn(3, 256)
    pixels = torch.randint(0, 256, (20, 30, 3), dtype=torch.uint8)
    torch.manual_seed(6)
    (((top, left, height, width), values),) = erased_by(Erasing(step, None, "pixels"), pixels.numpy(), table)
    after = torch.get_rng_state()
    torch.manual_seed(6)
    plain = look_up(pixels[None], NormalizeTable(table), torch.contiguous_format)[0]
    wanted = step(plain.clone())
    assert torch.equal(after, torch.get_rng_state())
    assert bool(height) == bool(p)
    plain[:, top : top + height, left : left + width] = values
    assert torch.equal(plain, wanted)
