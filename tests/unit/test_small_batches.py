"""Small batches that this process makes for a device need no slot."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from backends import simulated
from torch.utils.data import Dataset, TensorDataset, default_collate

from fastload import FastLoader

BATCH, COUNT = 8, 20


class Rows(Dataset[Any]):
    def __init__(self, fields: int = 1) -> None:
        self.fields = fields

    def __len__(self) -> int:
        return BATCH * COUNT - 3

    def __getitem__(self, index: int) -> Any:
        return {f"field {number}": torch.full((3,), float(index)) for number in range(self.fields)}


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated.install(monkeypatch)


@pytest.mark.parametrize("collate_fn", [None, lambda samples: default_collate(samples)], ids=["default", "own"])
@pytest.mark.parametrize("fields", [1, 5])
def test_few_tensors_need_no_slot(fields: int, collate_fn: Any) -> None:
    with FastLoader(Rows(fields), BATCH, collate_fn=collate_fn, device="cuda") as loader:
        for _ in range(2):
            batches = list(loader)
        stats = loader.stats()
    assert torch.equal(torch.cat([batch["field 0"][:, 0] for batch in batches]), torch.arange(len(Rows())).float())
    assert stats.images == 2 * len(Rows())
    tried = stats.slot_batches + sum(stats.missed.values())
    if fields > 1:
        assert tried == 2 * COUNT
    else:
        assert tried == 0
        assert "pin" not in stats.stages


def test_the_loop_waits_for_what_takes_the_time() -> None:
    def collate(samples: list[Any]) -> Any:
        time.sleep(0.005)
        return default_collate(samples)

    with FastLoader(Rows(), BATCH, collate_fn=collate, device="cuda") as loader:
        for _ in range(3):
            for _batch in loader:
                pass
        stats = loader.stats()
    waited = stats.waited_for
    assert waited["collate"] > max(0.25, 0.5 * stats.wait_s), waited
    assert stats.totals.get("behind_s", 0.0) == 0.0, "there is no GPU that could be behind"
    assert "gpu" not in waited


def test_images_are_counted_in_an_iterator_that_is_kept() -> None:
    class Sizes:
        def __init__(self) -> None:
            self.size = 7

        def __iter__(self) -> Any:
            yield from [[0] * self.size] * 3
            self.size = 2

    with FastLoader(TensorDataset(torch.ones(40, 3)), batch_sampler=Sizes(), device="cuda") as loader:
        iterator = iter(loader)
        assert len(list(iterator)) == 3
        iterator._reset(loader)
        assert len(list(iterator)) == 3
        assert loader.stats().images == 3 * (7 + 2)
