"""The native engine handles odd samples as torch does.

Impossible files, several bad ones, and memory that is reused.
"""

from __future__ import annotations

import io
import time

import pytest
import torch
from photos import assert_same, both, drained, epochs_of, jpeg, train_v1
from PIL import Image
from references import kept
from torch.utils.data import DataLoader
from torchvision.transforms import CenterCrop, Compose, Normalize, ToTensor, v2

from fastload import FastLoader

NATIVE = {"device": "cpu", "engine": "native"}


class Items:
    """JPEG files in memory, or paths."""

    def __init__(self, items, transform=None):
        self.items, self.transform = items, train_v1() if transform is None else transform

    def __len__(self):
        return len(self.items)

    def encoded(self, index):
        return self.items[index], index

    def __getitem__(self, index):
        source, target = self.encoded(index)
        with Image.open(source if isinstance(source, str) else io.BytesIO(source)) as image:
            return self.transform(image.convert("RGB")), target


def items(count=24, **odd):
    made = [jpeg(i, 60, 80) for i in range(count)]
    for place, item in odd.items():
        made[int(place.removeprefix("at_"))] = item
    return made


@pytest.mark.timeout(60)
@pytest.mark.parametrize("workers", [1, 4])
def test_a_path_that_cannot_be_is_an_error_in_its_turn(workers):
    """It failed before the batches in front of it were made, and took their room."""
    odd = items(at_14="no such\0path.jpg")

    def slow(make):
        torch.manual_seed(3)
        iterator = iter(make())
        time.sleep(0.3)
        return list(drained(iterator))

    arguments = {"batch_size": 4, "num_workers": workers}
    ours = slow(lambda: FastLoader(Items(odd), **arguments, **NATIVE))
    assert_same(ours, kept(lambda: slow(lambda: DataLoader(Items(odd), **arguments))))
    assert ["embedded null byte" in str(batch) for batch in ours if isinstance(batch, ValueError)] == [True]


@pytest.mark.timeout(60)
def test_errors_in_every_batch_do_not_end_the_epoch():
    odd = [item if i % 2 else "no\0path" for i, item in enumerate(items(20))]
    ours, theirs = both(lambda: Items(odd), FastLoader, NATIVE, batch_size=2, num_workers=1)
    assert_same(ours, theirs)
    assert sum(isinstance(batch, ValueError) for batch in ours) == 2 * 10


@pytest.mark.parametrize("first", ["truncated", "whole"])
def test_of_two_bad_samples_the_first_one_raises_and_the_draws_go_on_from_there(first):
    """The core draws for a truncated file before it knows; a worker draws nothing more."""
    whole = items(40)
    odd = items(
        40, at_6=b"not an image", **({"at_5": whole[5][: len(whole[5]) * 2 // 3]} if first == "truncated" else {})
    )
    ours, theirs = both(lambda: Items(odd), FastLoader, NATIVE, batch_size=4, num_workers=1)
    assert_same(ours, theirs)
    error = next(batch for batch in ours if isinstance(batch, Exception))
    assert f"sample {5 if first == 'truncated' else 6}" in str(error)


class Reading(Items):
    """Reads every image into the same memory, as ``readinto`` does."""

    memory = bytearray(1 << 16)

    def encoded(self, index):
        data = self.items[index]
        self.memory[: len(data)] = data
        return memoryview(self.memory)[: len(data)], index


def test_encoded_images_may_all_lie_in_the_same_memory():
    ours = epochs_of(lambda: FastLoader(Reading(items()), batch_size=4, num_workers=3, **NATIVE))
    assert_same(ours, kept(lambda: epochs_of(lambda: DataLoader(Items(items()), batch_size=4, num_workers=3))))


PADDING = {
    "v1": lambda: Compose([ToTensor(), Normalize([0.5] * 3, [0.25] * 3), CenterCrop(32)]),
    "v2": lambda: v2.Compose(
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3), v2.CenterCrop(32)]
    ),
}


@pytest.mark.parametrize("version", PADDING)
def test_a_crop_that_pads_with_what_is_not_black_is_not_supported_natively(version):
    dataset = Items(items(at_5=jpeg(5, 24, 80)), PADDING[version]())
    with pytest.raises(ValueError, match="CenterCrop comes after Normalize and would pad small images with 0"):
        FastLoader(dataset, batch_size=4, num_workers=1, **NATIVE)
    ours, theirs = both(lambda: dataset, FastLoader, {"device": "cpu"}, batch_size=4, num_workers=1)
    assert_same(ours, theirs)


def test_a_crop_that_pads_with_black_is():
    dataset = Items(
        items(at_5=jpeg(5, 24, 80)), Compose([ToTensor(), CenterCrop(32), Normalize([0.5] * 3, [0.25] * 3)])
    )
    ours, theirs = both(lambda: dataset, FastLoader, NATIVE, batch_size=4, num_workers=2)
    assert_same(ours, theirs)
