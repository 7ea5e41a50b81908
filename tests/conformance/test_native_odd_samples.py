"""The native engine handles odd samples as torch does.

Impossible files, several bad ones, and memory that is reused.
"""

from __future__ import annotations

import io
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from photos import assert_same, both, drained, epochs_of, jpeg, make_folder, train_v1
from PIL import Image
from references import kept
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
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


def test_a_batch_without_samples_is_the_same_error():
    arguments = {"batch_sampler": [[0, 1], [], [2]], "num_workers": 1}
    ours, theirs = both(lambda: Items(items(4)), FastLoader, NATIVE, **arguments)
    assert_same(ours, theirs)
    assert [shown(item) for item in ours] == [shown(item) for item in theirs]
    assert "list index out of range" in map(shown, ours)


class Named:
    """A path of a class of its own."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        torch.rand(1)
        return self.path


PATHS = {
    "bytes": os.fsencode,
    "bytes in a buffer": lambda path: bytearray(os.fsencode(path)),
    "a view of bytes": lambda path: memoryview(os.fsencode(path)),
    "an array of bytes": lambda path: np.frombuffer(os.fsencode(path), np.uint8),
    "an array like an image": lambda path: np.zeros((50, 60, 3), np.uint8),
    "a text of NumPy's": np.str_,
    "a tuple": lambda path: (path,),
    "a list": lambda path: [path],
    "nothing": lambda path: None,
    "a float": lambda path: 1.5,
    "a path": Path,
    "an object": Named,
    "an object that has a number": lambda path: Named(5),
    "the number of an open file": lambda path: os.open(path, os.O_RDONLY),
    "a number like that": lambda path: np.int64(os.open(path, os.O_RDONLY)),
    "a number that is none": lambda path: -1,
    "an open file": lambda path: io.BytesIO(path.encode()),
    "a function": lambda path: print,
    "no text": lambda path: "a\ud800",
    "a zero byte": lambda path: b"a\0b",
    "a folder": os.path.dirname,
}


@pytest.mark.filterwarnings("ignore:.*file descriptor")
@pytest.mark.parametrize("arguments", [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 1, "collate_fn": list}])
def test_what_stands_for_a_path_is_torchs_to_open(tmp_path_factory, arguments):
    root = make_folder(tmp_path_factory.mktemp("photos"), 6)
    opened = []

    def dataset_of():
        dataset = ImageFolder(root, train_v1())
        path, target = dataset.samples[3]
        dataset.samples = [sample for make in PATHS.values() for sample in ((make(path), target), dataset.samples[0])]
        opened.extend(int(path) for path, _ in dataset.samples if isinstance(path, int | np.int64) and path >= 0)
        return dataset

    ours, theirs = both(dataset_of, FastLoader, NATIVE, batch_size=2, run={"count": 1}, **arguments)
    for number in opened if arguments["num_workers"] else ():  # else they are closed with their images
        os.close(number)
    assert_same(ours, theirs)
    assert [shown(item) for item in ours] == [shown(item) for item in theirs]
    assert sum(isinstance(item, Exception) for item in theirs) == 15


def shown(item):
    """The last line of an error, without the sample that ours names, and addresses."""
    lines = [line for line in str(item).splitlines() if line and not line.startswith("sample ")]
    return re.sub("^[a-zA-Z.]+: | at 0x.*", "", lines[-1]) if isinstance(item, Exception) else ""
