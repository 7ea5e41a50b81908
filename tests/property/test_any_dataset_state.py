"""Stopped after any batch, datasets with states, and iterables, go on with the same bits."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from photos import photos_fixture, train_v1
from resuming import Drawing, flat, seed
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torchvision.datasets import ImageFolder

from fastload import FastLoader

folder = photos_fixture()


def draw() -> list[float]:
    return [random.random(), float(torch.rand(())), float(np.random.rand())]


class Live:
    """Returns its state itself, not a copy, and adopts what it is given."""

    live: dict[str, Any]

    def state_dict(self) -> Any:
        return self.live

    def load_state_dict(self, state: Any) -> None:
        self.live = state


class Map(Live, Dataset):
    """Has a state that its samples change."""

    def __init__(self, count: int) -> None:
        self.count, self.live = count, {"sum": 0}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.live["sum"] += index
        return torch.tensor([index, self.live["sum"], *draw()], dtype=torch.float64)


class Stream(IterableDataset):
    """Gives each worker another number of samples."""

    def __init__(self, count: int) -> None:
        self.count = count

    def stop(self) -> int:
        info = get_worker_info()
        return self.count if info is None else self.count * (info.id + 1) % 17

    def __iter__(self) -> Any:
        first = draw()
        for i in range(self.stop()):
            yield torch.tensor([i, *first, *draw()], dtype=torch.float64)


class Cursor(Live):
    """An iterator with a state."""

    def __init__(self, stop: int) -> None:
        self.stop, self.live = stop, {"place": 0, "first": draw()}

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.live["place"] >= self.stop:
            draw()
            raise StopIteration
        self.live["place"] += 1
        return torch.tensor([self.live["place"], *self.live["first"], *draw()], dtype=torch.float64)


class ByCursor(Stream):
    """Its iterators have a state."""

    def __iter__(self) -> Any:
        return Cursor(self.stop())


class Placed(Live, Stream):
    """Goes on at its place, and counts its epochs."""

    goes_on = 0

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.live = {"place": 0, "epoch": 0}

    def __iter__(self) -> Any:
        first, self.goes_on = self.goes_on, 0
        for place in range(first, self.stop()):
            self.live["place"] = place + 1
            yield torch.tensor([place, self.live["epoch"], *draw()], dtype=torch.float64)
        self.live["place"] = 0
        self.live["epoch"] += 1

    def load_state_dict(self, state: Any) -> None:
        self.live, self.goes_on = state, state["place"]


@st.composite
def loaders(draw_from):
    """Return a function that makes a loader, and whether its loop may draw."""
    workers = draw_from(st.sampled_from([0, 1, 2, 3]))
    kind = draw_from(st.sampled_from([Map, Stream, ByCursor, Placed]))
    count = draw_from(st.integers(1, 19))
    options: dict[str, Any] = {"num_workers": workers}
    options["persistent_workers"] = workers > 0 and draw_from(st.booleans())
    factors = draw_from(st.tuples(st.integers(1, 3), st.integers(1, 3)))  # of the loader before and the one after
    options["batch_size"] = draw_from(st.sampled_from([None, 1, 2, 4]))
    if options["batch_size"] is not None:
        options["drop_last"] = draw_from(st.booleans())
    if kind is Map:
        options["shuffle"] = draw_from(st.booleans())
        options["randomness"] = draw_from(st.sampled_from(["worker", "sample"]))
    if draw_from(st.booleans()):
        options["dtype"] = torch.float32  # through a device iterator

    def make(after: bool = False) -> Any:
        return FastLoader(kind(count), prefetch_factor=factors[after] if workers else None, **options)

    return make, workers > 0 or kind is not Stream


def step(iterator: Any, draws: bool) -> Any:
    batch = next(iterator, None)
    if batch is None:
        return None
    if draws:
        draw()
    return flat(batch), generators()


def generators() -> Any:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()


def epoch(loader: Any, draws: bool) -> list[Any]:
    iterator = iter(loader)
    return [*iter(lambda: step(iterator, draws), None), generators()]


@pytest.mark.slow
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(made=loaders(), before=st.integers(0, 2), share=st.floats(0, 1), drops=st.booleans())
def test_any_loader_of_a_dataset_with_a_state_goes_on(made, before, share, drops):
    make, draws = made
    seed(1)
    loader = make()
    expected = [epoch(loader, draws) for _ in range(before + 3)]
    loader.close()
    seed(1)
    loader = make()
    assert [epoch(loader, draws) for _ in range(before)] == expected[:before]
    iterator = iter(loader)
    batches = [step(iterator, draws) for _ in range(round(share * (len(expected[before]) - 1)))]
    if drops:
        del iterator
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    loader.close()
    seed(2)
    fresh = make(after=True)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert batches + epoch(fresh, draws) == expected[before]
    assert [epoch(fresh, draws), epoch(fresh, draws)] == expected[before + 1 :]
    fresh.close()


@pytest.mark.slow
@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    workers=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    engines=st.tuples(*[st.sampled_from(["auto", "torch"])] * 2),
    native=st.booleans(),
    stop=st.integers(0, 5),
)
def test_by_sample_any_number_of_workers_in_any_engine_gives_the_same_rest(folder, workers, engines, native, stop):
    def make(one):
        dataset = ImageFolder(folder, train_v1()) if native else Drawing()
        options = {"num_workers": workers[one], "engine": engines[one], "randomness": "sample"}
        return FastLoader(dataset, 4, shuffle=True, **options)

    def cut(batch):
        return flat(batch) if native else flat(batch[:, :4].contiguous())

    seed(1)
    loader = make(0)
    expected = [[cut(batch) for batch in loader] for _ in range(3)]
    loader.close()
    seed(1)
    loader = make(0)
    iterator = iter(loader)
    batches = [cut(next(iterator)) for _ in range(stop)]
    state = loader.state_dict()
    loader.close()
    seed(2)
    other = make(1)
    other.load_state_dict(state)
    found = [batches + [cut(batch) for batch in other], *([cut(batch) for batch in other] for _ in range(2))]
    other.close()
    assert found == expected
