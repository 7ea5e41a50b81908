"""Verifying a loader leaves it as it was: later epochs, statistics, and what it holds."""

from __future__ import annotations

import copy
import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from photos import photos_fixture, train_v1
from resuming import flat, generators, seed
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler
from torchvision.datasets import ImageFolder

from fastload import FastLoader, verify
from fastload.torch_workers import twin

folder = photos_fixture(11)


class Counting(Dataset):
    """Has a state that each sample changes and shows."""

    def __init__(self) -> None:
        self.read, self.seen = 0, np.zeros(13)
        self.lock, self.module = threading.Lock(), random

    def __len__(self) -> int:
        return 13

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            self.read += 1
            self.seen[index] += 1
        drawn = self.module.random(), float(torch.rand(())), float(np.random.rand())
        return torch.tensor([index, self.read, self.seen.sum(), *drawn], dtype=torch.float32)


class Stream(Counting, IterableDataset):
    def __iter__(self) -> Any:
        for index in range(13):
            yield self[index]


class Remembering(Sampler):
    """Has an order of its own in each epoch."""

    def __init__(self) -> None:
        self.epochs, self.random = [0], random.Random(7)

    def __len__(self) -> int:
        return 13

    def __iter__(self) -> Any:
        self.epochs[0] += 1
        yield from self.random.sample(range(13), 13)


class Averaging:
    """A collate function that remembers."""

    def __init__(self) -> None:
        self.total = 0.0

    def __call__(self, samples: Any) -> Any:
        batch = torch.stack(samples)
        self.total += float(batch.sum())
        return batch, torch.tensor(self.total)


def natively(**options: Any) -> Any:
    return lambda root: FastLoader(ImageFolder(root, train_v1()), 3, shuffle=True, device="cpu", **options)


def by_workers(kind: Any = Counting, **options: Any) -> Any:
    def make(_: Any) -> Any:
        given = {name: value() if callable(value) else value for name, value in options.items()}
        return FastLoader(kind(), **{"dtype": torch.float32, "device": "cpu", "batch_size": 2, **given})

    return make


def with_own_generator(workers: int) -> Any:
    def make(_: Any) -> Any:
        own, dataset = torch.Generator().manual_seed(3), Counting()
        batches = BatchSampler(RandomSampler(dataset, generator=own), 3, False)
        options = {"num_workers": workers, "persistent_workers": workers > 0, "dtype": torch.float32}
        return FastLoader(dataset, batch_sampler=batches, generator=own, device="cpu", **options)

    return make


LOADERS = {
    "the quick start's": natively(num_workers=2, persistent_workers=True),
    "native": natively(num_workers=2, generator=torch.Generator().manual_seed(1)),
    "native in process": natively(),
    "native by sample": natively(num_workers=2, persistent_workers=True, randomness="sample"),
    "torch's": natively(num_workers=1, persistent_workers=True, engine="torch", dtype=torch.float32),
    "in process": by_workers(shuffle=True, collate_fn=Averaging),
    "workers": by_workers(shuffle=True, num_workers=2, collate_fn=Averaging),
    "persistent": by_workers(shuffle=True, num_workers=2, persistent_workers=True),
    "sampler": by_workers(sampler=Remembering),
    "sampler and workers": by_workers(sampler=Remembering, num_workers=2, persistent_workers=True),
    "by sample": by_workers(shuffle=True, num_workers=2, persistent_workers=True, randomness="sample"),
    "stream": by_workers(Stream),
    "stream and workers": by_workers(Stream, num_workers=2, persistent_workers=True),
    "own generator": with_own_generator(0),
    "own generator and workers": with_own_generator(2),
    "in process, torch's": by_workers(engine="torch", shuffle=True),
}
IN_SHORT = ("the quick start's", "native in process", "in process", "persistent", "sampler", "stream", "own generator")


def held(loader: Any) -> Any:
    """What a loader holds that an epoch can change."""
    stats = loader.stats()
    workers = [worker.pid for worker in getattr(loader._iterator, "_workers", ())]
    parts = [vars(one) for one in (loader.dataset, loader.sampler, loader.batch_sampler) if hasattr(one, "__dict__")]
    sizing = getattr(loader.num_workers, "sizing", None)
    return copy.deepcopy(
        [
            generators(loader),
            str(parts),
            str(vars(loader.collate_fn)),
            str(sizing),
            workers,
            stats.batches,
            stats.epochs,
        ]
    )


def epochs_of(loader: Any, verifies: bool) -> list[Any]:
    seed(5)
    epochs = [[flat(batch) for batch in loader]]
    if verifies:
        before = held(loader)
        for asked, seen in ((loader, 2), (lambda: loader, None)):  # a second time, too
            result = verify(asked, seen)
            assert (bool(result), result.is_torchs, result.difference) == (True, False, None), result
        assert held(loader) == before
        iterator = iter(loader)  # an epoch that has begun
        epochs.append([flat(next(iterator))])
        assert verify(loader, 2)
        epochs[-1] += [flat(batch) for batch in iterator]
    while len(epochs) < 3:
        epochs.append([flat(batch) for batch in loader])
    return [epochs, loader.stats().batches, generators(loader)]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in IN_SHORT else pytest.mark.slow) for kind in LOADERS]
)
def test_later_epochs_are_the_same_with_and_without(folder, kind):
    state = torch.Generator().manual_seed(1).get_state()
    found = []
    for verifies in (False, True):
        with LOADERS[kind](folder) as loader:
            if loader.generator is not None and kind == "native":
                loader.generator.set_state(state)
            found.append(epochs_of(loader, verifies))
    assert found[0] == found[1]


def test_a_loaded_state_waits_for_the_loaders_own_epoch(folder):
    loader = LOADERS["the quick start's"](folder)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = [flat(batch) for batch in iterator]
    loader.load_state_dict(state)
    assert verify(loader)
    assert loader.state_dict() == state
    assert [flat(batch) for batch in loader] == rest
    loader.close()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.slow
def test_the_number_of_workers_that_is_auto_is_measured_by_the_loaders_own_epochs():
    with by_workers(num_workers="auto")(None) as loader:
        list(loader)
        before = held(loader)
        assert verify(loader)
        assert held(loader) == before


@pytest.mark.parametrize("make", [FastLoader, DataLoader])
def test_a_sampler_that_cannot_be_copied_needs_the_function(make, folder):
    def once():
        return make(ImageFolder(folder, train_v1()), 3, num_workers=1, sampler=(index for index in range(11)))

    loader = once()
    with pytest.raises(TypeError, match=r"its sampler, a generator, cannot be copied .*; use verify\(function\)"):
        verify(loader)
    assert len(list(loader.sampler)) == 11
    assert verify(once).batches == 4


def test_large_arrays_are_shared_and_all_else_is_copied(monkeypatch):
    dataset = Counting()
    loader = DataLoader(dataset, 2, True)
    monkeypatch.setattr(twin, "DATA_BYTES", dataset.seen.nbytes)
    other = twin.independent_twin(loader)
    assert other.dataset.seen is not dataset.seen
    assert other.sampler.data_source is other.dataset is not dataset
    monkeypatch.setattr(twin, "DATA_BYTES", dataset.seen.nbytes - 1)
    shared = twin.independent_twin(loader).dataset
    assert shared.seen is dataset.seen
    assert shared is not dataset
    assert twin.independent_twin(DataLoader(dataset, 2, num_workers=1)).dataset is dataset
    monkeypatch.setattr(twin, "DATA_BYTES", 8 * 100)
    views = DataLoader(torch.zeros(100, dtype=torch.float64).split(1))
    assert twin.independent_twin(views).dataset[0] is not views.dataset[0]  # all of one memory
    monkeypatch.setattr(twin, "DATA_BYTES", 8 * 99)
    assert twin.independent_twin(views).dataset[0] is views.dataset[0]
