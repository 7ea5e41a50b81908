"""Noise on the device has the host's bits, and its memory is not reused early."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms as v1

from fastload.device.erasing import Noise, to_fill
from fastload.device.normalize import NormalizeTable, TableImages, to_images
from fastload.pipeline.ops.erasing import Erasing

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def patches_of(count: int, side: int) -> list:
    """A box in every second image, and one over it in every fourth."""
    draw = torch.Generator().manual_seed(count)
    boxes = [[(i % 3, i % 5, side // 2, side // 3)] * (i % 2) + [(1, 0, 2, 7)] * (i % 4 == 1) for i in range(count)]
    return [[(box, torch.randn(3, *box[2:], generator=draw)) for box in some] for some in boxes]


def noise_of(count: int, side: int) -> Noise:
    filled = to_fill(Erasing(v1.RandomErasing(value="random"), None, "pixels"), patches_of(count, side))
    assert isinstance(filled, Noise)
    return filled


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("pinned", [True, False])
def test_patches_are_filled_on_the_gpu(memory_format: torch.memory_format, pinned: bool) -> None:
    pixels = torch.randint(0, 256, (64, 56, 56, 3), dtype=torch.uint8)
    pixels = pixels.pin_memory() if pinned else pixels
    table, noise = NormalizeTable(torch.randn(3, 256)), noise_of(64, 56)
    wanted = to_images(pixels, table, memory_format, noise)
    images = TableImages(pixels, table, memory_format, noise).to(CUDA, non_blocking=True)
    assert images.stride() == wanted.stride()
    assert torch.equal(images.cpu(), wanted)


def test_batches_in_flight_do_not_share_the_memory_of_their_noise() -> None:
    """Copies wait behind the device's work, while the host drops its noise."""
    table, stream = NormalizeTable(torch.randn(3, 256)), torch.cuda.Stream()
    table.on(CUDA)
    pixels = torch.randint(0, 256, (32, 96, 96, 3), dtype=torch.uint8).pin_memory()
    wanted, seen = [], []
    for number in range(12):
        noise = noise_of(32, 96 - number)
        wanted.append(to_images(pixels, table, torch.channels_last, noise))
        leaf = TableImages(pixels, table, torch.channels_last, noise)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            seen.append(leaf.copy_pixels(CUDA, non_blocking=True).images())
        del leaf, noise
    torch.cuda.synchronize()
    for images, expected in zip(seen, wanted, strict=True):
        assert torch.equal(images.cpu(), expected)
