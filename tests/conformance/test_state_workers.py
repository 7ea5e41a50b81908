"""Loaders with other numbers of workers, or batches ahead, go on with the same bits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from photos import photos_fixture, train_v1
from resuming import Drawing, flat, saved, seed
from torch.utils.data import RandomSampler
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.memory.kept_states import KeptStates

folder = photos_fixture()


@pytest.mark.each_value
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(("before", "after", "stop"), [(0, 3, 3), (0, 1, 0), (3, 0, 3), (1, 0, 0), (1, 2, 3)])
def test_by_sample_another_number_of_workers_gives_the_same_rest(folder: Path, native, before, after, stop):
    def make(workers):
        dataset = ImageFolder(folder, train_v1()) if native else Drawing()
        return FastLoader(dataset, 4, shuffle=True, num_workers=workers, randomness="sample")

    def cut(batch):
        return flat(batch) if native else flat(batch[:, :4].contiguous())

    def begin(loader):
        iterator = iter(loader)
        torch.rand(0 if stop else 1)  # before or after what the sampler draws
        return iterator

    seed(5)
    loader = make(before)
    list(loader)
    expected = [[cut(batch) for batch in batches] for batches in (begin(loader), loader)]
    seed(5)
    loader = make(before)
    list(loader)
    iterator = begin(loader)
    batches = [cut(next(iterator)) for _ in range(stop)]
    state = saved(loader.state_dict())
    seed(99)
    other = make(after)
    other.load_state_dict(state)
    assert batches + [cut(batch) for batch in other] == expected[0]
    assert [cut(batch) for batch in other] == expected[1]


@pytest.mark.parametrize(
    ("after", "randomness"),
    [
        ({"num_workers": 2, "prefetch_factor": 1}, "worker"),
        ({"num_workers": 0}, "sample"),
        ({"num_workers": 1}, "sample"),
    ],
)
def test_a_sampler_that_draws_little_by_little_may_be_asked_another_number_of_batches_ahead(after, randomness):
    def make(**options):
        sampler = RandomSampler(range(23), True, 70, torch.Generator().manual_seed(3))  # draws 32 indices at a time
        return FastLoader(Drawing(), 4, sampler=sampler, randomness=randomness, **options)

    def cut(batch):
        return flat(batch[:, :4].contiguous())

    seed(5)
    expected = [[cut(batch) for batch in loader] for loader in [make(num_workers=2)] for _ in range(2)]
    seed(5)
    loader = make(num_workers=2)
    iterator = iter(loader)
    batches = [cut(next(iterator)) for _ in range(6)]
    other = make(**after)
    other.load_state_dict(saved(loader.state_dict()))
    assert [batches + [cut(batch) for batch in other], [cut(batch) for batch in other]] == expected


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_worker_without_a_batch_in_the_rest_begins_the_next_epoch_as_it_had_ended(stop):
    def make():
        return FastLoader(Drawing(12), 4, shuffle=True, num_workers=3, persistent_workers=True)

    def gone_on(loader):
        other = make()
        other.load_state_dict(saved(loader.state_dict()))
        return other

    seed(5)
    expected = [[flat(batch) for batch in loader] for loader in [make()] for _ in range(2)]
    seed(5)
    loader = make()
    iterator = iter(loader)
    batches = [flat(next(iterator)) for _ in range(stop)]
    other = gone_on(loader)
    batches += [flat(batch) for batch in other]
    assert [batches, [flat(batch) for batch in gone_on(other)]] == expected


@pytest.mark.parametrize("error", [True, False])
def test_an_iterator_that_ends_while_its_state_is_read_has_the_same_state(monkeypatch, error):
    loader = FastLoader(Drawing(), 4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    expected, usual = loader.state_dict(), KeptStates.find
    vars(loader)["_state"].place.position._known.clear()

    def find(states, *place):
        monkeypatch.setattr(KeptStates, "find", usual)
        found = states.find(*place)
        iterator._next_data.meter.close()
        if error:
            raise OSError("closed")
        return dataclasses.replace(found, digest=7)

    monkeypatch.setattr(KeptStates, "find", find)
    assert loader.state_dict() == expected
