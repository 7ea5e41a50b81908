"""Test ``python -m benchmarks arrays`` at a tiny size."""

from __future__ import annotations

import json
import os

import pytest

from benchmarks.__main__ import main as run_benchmark
from benchmarks.arrays import cifar10


@pytest.mark.thorough
@pytest.mark.parametrize(("what", "reference"), [("loaders", "torch"), ("train", "ceiling")])
def test_rows_name_each_loader_and_its_share(what, reference, tmp_path):
    file = tmp_path / "arrays.json"
    size = ["--images", "64", "--batch-sizes", "16", "--repeats", "2", "--steps", "2", "--workers", "1", "--cores", "1"]
    before = os.sched_getaffinity(0)
    assert run_benchmark(["arrays", what, *size, "--device", "cpu", "--json", str(file)]) == 0
    assert os.sched_getaffinity(0) == before
    record = json.loads(file.read_text())
    assert record["dataset"]["synthetic"] is True
    (point,) = record["points"]
    names = {"torch", "fastload"} | {reference}
    assert set(point["contenders"]) == names
    assert point["contenders"][reference][f"of_{reference}"]["values"] == [1, 1]
    assert all(len(row["images_per_s"]["values"]) == 2 for row in point["contenders"].values())


def test_images_lie_in_memory_as_torchvisions():
    """Which makes an array of planes, and views it as pixels."""
    dataset = cifar10(3)
    assert dataset.data.shape == (3, 32, 32, 3)
    assert dataset.data.strides == (3072, 32, 1, 1024)
