"""Erasing on the finished batch: in place on the CPU, by masks elsewhere, same bits."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms as v1

from fastload.device.normalize import Erased, NormalizeTable, TableImages, to_images
from fastload.pipeline.erasing import Erasing, erased_by

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
    erasing = Erasing(v1.RandomErasing(), torch.zeros(3))
    assert Erased.of(None, BOXES) is None
    assert Erased.of(erasing, torch.tensor([[0, 0, 0, 0], [4, 4, 0, 3]], dtype=torch.int32)) is None
    assert Erased.of(erasing, BOXES) is not None


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_the_users_own_transform_says_where(p):
    step = v1.RandomErasing(p, value=(1, 2, 3), inplace=True)
    torch.manual_seed(6)
    top, left, height, width = erased_by(Erasing(step, COLOR), (20, 30))
    after = torch.get_rng_state()
    torch.manual_seed(6)
    images = torch.zeros(3, 20, 30)
    step(images)
    assert torch.equal(after, torch.get_rng_state())
    assert (images != 0).sum() == 3 * height * width
    assert (images[:, top : top + height, left : left + width] != 0).all()
    assert step.value == (1, 2, 3)
