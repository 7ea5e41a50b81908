"""Samplers with generators, indices and errors of any kind go on, or are refused."""

from __future__ import annotations

import random
from typing import Any

import effort
import numpy as np
import pytest
import torch
from resuming import STOPS, Drawing, check, flat, saved, seed
from torch.utils.data import IterableDataset, RandomSampler, Sampler

from fastload import FastLoader

OWN = [
    lambda: random.Random(3),
    lambda: np.random.default_rng(3),
    lambda: np.random.Generator(np.random.MT19937(3)),
    lambda: np.random.RandomState(3),
    lambda: torch.Generator().manual_seed(3),
]


class Own(Sampler):
    """Orders by a generator that it keeps under a name of its own."""

    def __init__(self, make: Any, *, late: bool = False, convert: Any = int) -> None:
        self._make, self._convert = make, convert
        self.source = None if late else make()

    def __len__(self) -> int:
        return 23

    def __iter__(self) -> Any:
        if self.source is None:
            self.source = self._make()
        source: Any = self.source
        if isinstance(source, random.Random):
            order = source.sample(range(23), 23)
            source.gauss(0, 1)
        elif isinstance(source, torch.Generator):
            order = torch.randperm(23, generator=source).tolist()
        else:
            order = source.permutation(23).tolist()
            source.standard_normal()
        yield from map(self._convert, order)


class Around(Sampler):
    """Gives the indices of others."""

    def __init__(self, *others: Sampler) -> None:
        self.others = others

    def __len__(self) -> int:
        return sum(map(len, self.others))

    def __iter__(self) -> Any:
        for other in self.others:
            yield from other


class First(Drawing):
    """Its indices are pairs, or anything else that is an index."""

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index[0] if isinstance(index, tuple) else int(index))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("make", OWN)
def test_generators_of_any_kind_and_name_go_on(make, late):
    check(lambda: FastLoader(Drawing(), 4, sampler=Own(make, late=late)), STOPS)


@pytest.mark.slow
def test_generators_of_samplers_go_on_in_workers():
    def make():
        return FastLoader(Drawing(), 4, sampler=Own(OWN[0]), num_workers=2)

    check(make, [(1, 0), (1, 3)])


def test_samplers_within_samplers_go_on_under_any_name():
    def make():
        sampler = RandomSampler(range(23), generator=torch.Generator().manual_seed(4))
        return FastLoader(Drawing(), 4, sampler=Around(Own(OWN[0]), Around(sampler)))

    check(make, STOPS)


@pytest.mark.parametrize(
    ("before", "after"),
    [(Own(OWN[0]), Own(OWN[1])), (Own(OWN[0]), RandomSampler(range(23))), (RandomSampler(range(23)), Own(OWN[3]))],
)
def test_a_state_of_other_generators_is_refused(before, after):
    state = FastLoader(Drawing(), 4, sampler=before).state_dict()
    with pytest.raises(ValueError, match="must have the same generators of their own"):
        FastLoader(Drawing(), 4, sampler=after).load_state_dict(state)


@pytest.mark.parametrize(
    "name", ["1.source.None", "1..Random", "9.source.Random", "x.source.Random", "Random", "1.a.x"]
)
def test_a_state_with_a_damaged_name_is_refused(name):
    loader = FastLoader(Drawing(), 4, sampler=Own(OWN[0], late=True))
    state = loader.state_dict()
    made = FastLoader(Drawing(), 4, sampler=Own(OWN[0])).state_dict()["now"]["generators"]
    state["now"]["generators"] = {name: made["2.source.Random"]}
    with pytest.raises(ValueError, match=r"same generators of their own|damaged"):
        loader.load_state_dict(state)


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("convert", [np.int64, torch.tensor])
def test_an_index_that_is_no_int_is_compared(workers, convert):
    def make():
        return FastLoader(First(), None, sampler=Own(OWN[0], convert=convert), num_workers=workers)

    check(make, [(0, 3), (1, 2)])


class Batches(Sampler):
    """Gives batches of another type than a list, by a generator that is not found."""

    def __init__(self, convert: Any) -> None:
        self._convert, self._hidden = convert, [random.Random(3)]

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Any:
        order = self._hidden[0].sample(range(23), 23)
        for begin in range(0, 23, 4):
            yield self._convert(order[begin : begin + 4])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("convert", [torch.tensor, np.array, lambda batch: [(index, "a") for index in batch]])
def test_another_order_of_other_indices_is_an_error(workers, convert):
    def make():
        return FastLoader(First(), batch_sampler=Batches(convert), num_workers=workers)

    loader = make()
    list(loader)
    iterator = iter(loader)
    next(iterator)
    other = make()
    other.load_state_dict(loader.state_dict())
    with pytest.raises(RuntimeError, match="but batch 0 of this epoch has others"):
        iter(other)


class Sorting(Drawing):
    """Changes the list that it is asked with."""

    def __getitems__(self, indices: list[int]) -> Any:
        indices.sort()
        samples = [self[index] for index in indices]
        indices.clear()
        return samples


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_may_change_its_list_of_indices(workers):
    check(lambda: FastLoader(Sorting(), 4, shuffle=True, num_workers=workers), [(0, 3), (1, 2)])


class AsItGoes(Sampler):
    """Draws each index from a global generator."""

    def __init__(self, count: int = 60) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        for _ in range(self.count):
            yield int(np.random.randint(23))
        np.random.rand()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"num_workers": 2}, {"num_workers": 2, "prefetch_factor": 3}),
        ({"num_workers": 2, "prefetch_factor": 3}, {"num_workers": 2, "prefetch_factor": 1}),
        ({"num_workers": 2, "randomness": "sample"}, {"num_workers": 0, "randomness": "sample"}),
        ({"num_workers": 0, "randomness": "sample"}, {"num_workers": 2, "randomness": "sample"}),
    ],
)
def test_a_sampler_that_draws_as_it_goes_may_be_asked_another_number_of_batches_ahead(before, after):
    def make(options):
        return FastLoader(Drawing(), 4, sampler=AsItGoes(), **options)

    def cut(loader):
        return [flat(batch[:, :4].contiguous()) for batch in loader]

    seed(5)
    loader = make(before)
    expected = [cut(loader), cut(loader)]
    for stop in effort.some((0, 1, 4, 13, 14)):
        seed(5)
        loader = make(before)
        iterator = iter(loader)
        batches = cut(next(iterator) for _ in range(stop))
        other = make(after)
        other.load_state_dict(saved(loader.state_dict()))
        iterator = iter(other)
        again = make(after)
        again.load_state_dict(saved(other.state_dict()))
        for one in (iterator, again):
            assert batches + cut(one) == expected[0]
        assert cut(again) == expected[1]


@pytest.mark.parametrize("stop", [2, 4])
def test_a_sampler_that_draws_from_what_the_loop_draws_from_is_an_error(stop):
    loader = FastLoader(Drawing(), 4, sampler=AsItGoes(), num_workers=2)
    iterator = iter(loader)
    for _ in range(stop):
        next(iterator)
        np.random.rand()
    other = FastLoader(Drawing(), 4, sampler=AsItGoes(), num_workers=2)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(RuntimeError, match="draws from a global generator as it goes"):
        iter(other)


class Failing(Sampler):
    """Raises when it is told to."""

    fails = False

    def __len__(self) -> int:
        return 23

    def __iter__(self) -> Any:
        if self.fails:
            raise ValueError("fails")
        return iter(torch.randperm(23).tolist())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("randomness", ["worker", "sample"])
def test_a_failed_iteration_leaves_the_place_in_the_one_before(workers, randomness):
    def make():
        return FastLoader(Drawing(), None, sampler=Failing(), num_workers=workers, randomness=randomness)

    seed(5)
    loader = make()
    iterator = iter(loader)
    next(iterator)
    loader.sampler.fails = True
    with pytest.raises(ValueError, match="fails"):
        iter(loader)
    loader.sampler.fails = False
    other, state = make(), loader.state_dict()
    expected = [[flat(batch) for batch in batches] for batches in (iterator, loader)]
    other.load_state_dict(state)
    assert [[flat(batch) for batch in other] for _ in range(2)] == expected


class Raising:
    """Raises at some of its samples, and goes on."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self.place += 1
        if self.place in (3, 9):
            raise ValueError("fails")
        if self.place > 23:
            raise StopIteration
        return torch.tensor([self.place, float(torch.rand(()))])


class RaisingStream(IterableDataset):
    def __iter__(self) -> Any:
        return Raising()


@pytest.mark.parametrize("options", [{"batch_size": 2}, {"batch_size": None}, {"dtype": torch.float32}])
def test_batches_that_raised_here_are_read_again(options):
    def step(iterator):
        try:
            return flat(next(iterator))
        except ValueError:
            return "failed"
        except StopIteration:
            return None

    def rest(loader):
        iterator = iter(loader)
        return [*iter(lambda: step(iterator), None)]

    seed(5)
    expected = [rest(loader) for loader in [FastLoader(RaisingStream(), **options)] for _ in range(2)]
    for stop in (1, 3, 5, len(expected[0])):
        seed(5)
        loader = FastLoader(RaisingStream(), **options)
        iterator = iter(loader)
        batches = [step(iterator) for _ in range(stop)]
        state = loader.state_dict()
        assert state["_num_yielded"] == stop
        seed(9)
        other = FastLoader(RaisingStream(), **options)
        other.load_state_dict(state)
        assert [batches + rest(other), rest(other)] == expected
        assert step(iterator) == step(iterator) or stop < len(expected[0])
        assert loader.state_dict()["_num_yielded"] <= len(expected[0])


def test_a_generator_that_is_shared_is_not_taken_for_two():
    shared, other = torch.Generator(), torch.Generator()
    state = FastLoader(Drawing(), 4, sampler=RandomSampler(range(23), generator=shared), generator=shared).state_dict()
    with pytest.raises(ValueError, match="same generators of their own"):
        FastLoader(Drawing(), 4, sampler=RandomSampler(range(23), generator=other), generator=shared).load_state_dict(
            state
        )
