"""What wakes the decode pipeline's thread, what it issues early, whose error it raises."""

from __future__ import annotations

import io
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, RandomResizedCrop, ToTensor

from fastload import FastLoader
from fastload.native.batch import Batch
from fastload.native.pipeline import woken_by


def test_one_look_answers_several_wakeups():
    wakeups = SimpleQueue()
    for _ in range(3):
        wakeups.put(None)
    assert woken_by(wakeups) is None
    assert wakeups.empty()


def test_the_end_of_the_iterator_is_not_taken_for_another_wakeup():
    wakeups, end = SimpleQueue(), object()
    for reason in (None, end, None):
        wakeups.put(reason)
    assert woken_by(wakeups) is end
    assert not wakeups.empty()


class Job:
    """One whose wait ends with ``result``."""

    def __init__(self, result: str, *statuses: int) -> None:
        self.result, self.given = result, statuses

    def wait(self, timeout_s: float) -> str:
        assert not timeout_s
        return self.result

    def statuses(self) -> tuple[int, ...]:
        assert self.result == "done"
        return self.given


@pytest.mark.parametrize(
    ("job", "staged"),
    [
        (Job("done", 0, 0), True),
        (Job("done", 0, 1), None),
        (Job("timeout"), False),
        (Job("requested"), None),
    ],
)
def test_a_batch_is_staged_once_threads_are_done_without_python(job, staged):
    batch = Batch(0, 0, ([0, 1],), staged=object(), job=job)
    assert batch.staged_within(0.0) is staged
    batch.error = object()  # of the dataset
    assert batch.staged_within(0.0) is None
    batch.error, batch.staged = None, None  # threads decode it
    assert batch.staged_within(0.0) is None
    batch.job = None  # it has yet to be started
    assert batch.staged_within(0.0) is None


@pytest.mark.parametrize("workers", [1, 2])
def test_the_error_of_a_batchs_first_bad_sample_is_raised(tmp_path, workers):
    """Though a later one's is known earlier: its header cannot be read."""
    (tmp_path / "a").mkdir()
    data = io.BytesIO()
    Image.effect_noise((60, 50), 90).save(data, "JPEG")
    for number in range(12):
        bad = {1: data.getvalue()[:900], 2: b"nothing"}.get(number, data.getvalue())
        (tmp_path / "a" / f"{number:02}.jpg").write_bytes(bad)
    dataset = ImageFolder(tmp_path, Compose([RandomResizedCrop(16), ToTensor()]))
    found: list[list[Any]] = []
    for loader in (DataLoader, FastLoader):
        torch.manual_seed(3)
        options = {} if loader is DataLoader else {"engine": "native", "device": "cpu"}
        iterator = iter(loader(dataset, batch_size=4, num_workers=workers, **options))
        with pytest.raises(OSError, match="truncated"):
            next(iterator)
        found.append([images for images, _ in iterator])
    assert all(map(torch.equal, *found))
    assert len(found[0]) == 2
