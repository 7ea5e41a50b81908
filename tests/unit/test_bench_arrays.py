"""Test ``python -m benchmarks arrays`` at a tiny size."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
from torchvision.transforms import functional

from benchmarks.__main__ import main as run_benchmark
from benchmarks.arrays import MEAN, PADDING, STD, OnDevice, cifar10


@pytest.mark.thorough
@pytest.mark.parametrize(("what", "reference"), [("loaders", "torch"), ("train", "ceiling")])
def test_rows_name_each_loader_and_its_share(what, reference, tmp_path):
    file = tmp_path / "arrays.json"
    size = ["--images", "16", "--batch-sizes", "4", "--repeats", "2", "--steps", "2", "--workers", "1", "--cores", "1"]
    before = os.sched_getaffinity(0)
    assert run_benchmark(["arrays", what, *size, "--device", "cpu", "--json", str(file)]) == 0
    assert os.sched_getaffinity(0) == before
    record = json.loads(file.read_text())
    assert record["dataset"]["synthetic"] is True
    (point,) = record["points"]
    names = {"torch", "fastload"} | ({"ceiling", "by hand"} if what == "train" else set())
    assert set(point["contenders"]) == names
    assert point["contenders"][reference][f"of_{reference}"]["values"] == [1, 1]
    assert all(len(row["images_per_s"]["values"]) == 2 for row in point["contenders"].values())


def test_images_lie_in_memory_as_torchvisions():
    """Which makes an array of planes, and views it as pixels."""
    dataset = cifar10(3)
    assert dataset.data.shape == (3, 32, 32, 3)
    assert dataset.data.strides == (3072, 32, 1, 1024)


@pytest.mark.parametrize("augmented", [False, True])
def test_batches_of_the_device_are_of_its_images(augmented):
    dataset = cifar10(11)
    batches = iter(OnDevice(dataset, 4, torch.device("cpu"), augmented=augmented))
    seen = [next(batches) for _ in range(4)]  # two epochs
    for images, labels in seen:
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert images.shape == (4, 3, 32, 32)
        assert len(labels) == 4
    whole = torch.from_numpy(dataset.data).permute(0, 3, 1, 2)
    padded = functional.pad(whole, [PADDING * augmented] * 4)
    shifts = range(2 * PADDING * augmented + 1)
    crops = torch.stack([padded[..., top : top + 32, left : left + 32] for top in shifts for left in shifts], 1)
    possible = torch.cat([crops, crops.flip(-1)], 1) if augmented else crops
    mean, std = (255 * torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    numbers = []
    for image, label in zip(*map(torch.cat, zip(*seen, strict=True)), strict=True):
        levels = (image * std + mean).round().to(torch.uint8)
        ((number, _),) = (possible == levels).flatten(2).all(2).nonzero().tolist()
        assert dataset.targets[number] == label
        numbers.append(number)
    assert all(len(set(epoch)) == 8 for epoch in np.split(np.array(numbers), 2))
