"""Indices drawn again are those of torch's samplers, and leave the same generators."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fastload.state import index_replay
from fastload.state.index_replay import after_batches


class Own(RandomSampler):
    """Gives each index twice."""

    def __iter__(self):
        for index in super().__iter__():
            yield from (index, index)


def samplers(own: bool) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(6) if own else None
    return {
        "in order": SequentialSampler(range(23)),
        "permuted": RandomSampler(range(23), generator=generator),
        "several permutations": RandomSampler(range(7), num_samples=23, generator=generator),
        "whole permutations": RandomSampler(range(7), num_samples=21, generator=generator),
        "part of one": RandomSampler(range(40), num_samples=23, generator=generator),
        "replacement": RandomSampler(range(7), replacement=True, num_samples=40, generator=generator),
        "weighted": WeightedRandomSampler([1.0] * 9, 23, generator=generator),
        "subset": SubsetRandomSampler(range(3, 26), generator=generator),
        "distributed": DistributedSampler(range(46), 2, 1),
        "own": Own(range(12), generator=generator),
        "list": list(range(23)),
    }


def rest(sampler: Any, batches: int, size: int | None, drop_last: bool, *, replayed: bool) -> Any:
    """The last batch that is skipped, and those after it, each with the generators' states."""
    torch.manual_seed(3)
    index_sampler = sampler if size is None else BatchSampler(sampler, size, drop_last)
    drawn = iter(index_sampler)
    if replayed:
        drawn, last = after_batches(index_sampler, drawn, batches)
    else:
        last = next(itertools.islice(drawn, batches - 1, None), None)
    generator = getattr(sampler, "generator", None)

    def states():
        return torch.get_rng_state().tolist(), None if generator is None else generator.get_state().tolist()

    return last, states(), [(batch, states()) for batch in drawn], states()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", samplers(own=False))
def test_the_rest_is_that_of_torchs_samplers(monkeypatch, name, own):
    monkeypatch.setattr(index_replay, "_CHUNK", 5)
    for size, drop_last in ((4, False), (4, True), (1, False), (None, False)):
        for batches in (1, 2, 5, 6, 23, 60):
            expected, found = (
                rest(samplers(own)[name], batches, size, drop_last, replayed=replayed) for replayed in (False, True)
            )
            assert found == expected, (size, drop_last, batches)


def test_a_changed_class_is_asked_itself(monkeypatch):
    former = RandomSampler.__iter__

    def reversed_order(self):
        return iter(list(former(self))[::-1])

    monkeypatch.setattr(RandomSampler, "__iter__", reversed_order)
    for replayed in (False, True):
        assert rest(RandomSampler(range(9)), 1, 3, False, replayed=replayed) == rest(
            RandomSampler(range(9)), 1, 3, False, replayed=not replayed
        )


def test_another_way_to_draw_in_torch_is_found(monkeypatch):
    index_replay._draws_alike.cache_clear()
    assert index_replay._draws_alike()
    index_replay._draws_alike.cache_clear()
    former = RandomSampler.__iter__

    def draws_more(self):
        yield from former(self)
        torch.rand(1, generator=self.generator)

    monkeypatch.setattr(RandomSampler, "__iter__", draws_more)
    assert not index_replay._draws_alike()
    index_replay._draws_alike.cache_clear()


def test_checking_leaves_the_generators_alone():
    index_replay._draws_alike.cache_clear()
    before = torch.get_rng_state(), random.getstate()
    index_replay._draws_alike()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_half_an_epoch_of_imagenet_takes_no_python_for_each_index(monkeypatch):
    taken = []

    length = 300_000
    sampler = BatchSampler(RandomSampler(range(length)), 8, drop_last=False)
    index_replay._draws_alike()
    drawn = torch.randperm
    monkeypatch.setattr(torch, "randperm", lambda *args, **options: Watched(drawn(*args, **options)))

    class Watched:
        def __init__(self, order):
            self.order = order

        def __getitem__(self, part):
            taken.append(part.stop - part.start)
            return self.order[part]

    _, last = after_batches(sampler, iter(sampler), length // 16)
    assert len(last) == 8
    assert sum(taken) == 8192
