"""Stopped after any batch, datasets with states, and iterables, go on with the same bits."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
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


class Map(Dataset):
    """Has a state that its samples change."""

    def __init__(self, count: int) -> None:
        self.count, self.sum = count, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.sum += index
        return torch.tensor([index, self.sum, *draw()], dtype=torch.float64)

    def state_dict(self) -> Any:
        return {"sum": self.sum}

    def load_state_dict(self, state: Any) -> None:
        self.sum = state["sum"]


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


class Cursor:
    """An iterator with a state."""

    def __init__(self, stop: int) -> None:
        self.place, self.stop, self.first = 0, stop, draw()

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.place >= self.stop:
            draw()
            raise StopIteration
        self.place += 1
        return torch.tensor([self.place, *self.first, *draw()], dtype=torch.float64)

    def state_dict(self) -> Any:
        return {"place": self.place, "first": self.first}

    def load_state_dict(self, state: Any) -> None:
        self.place, self.first = state["place"], state["first"]


class ByCursor(Stream):
    """Its iterators have a state."""

    def __iter__(self) -> Any:
        return Cursor(self.stop())


class Placed(Stream):
    """Goes on at its place, and counts its epochs."""

    place, goes_on, epoch = 0, 0, 0

    def __iter__(self) -> Any:
        first, self.goes_on = self.goes_on, 0
        for place in range(first, self.stop()):
            self.place = place + 1
            yield torch.tensor([place, self.epoch, *draw()], dtype=torch.float64)
        self.place, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> Any:
        return {"place": self.place, "epoch": self.epoch}

    def load_state_dict(self, state: Any) -> None:
        self.goes_on, self.epoch = state["place"], state["epoch"]
        self.place = self.goes_on


@st.composite
def loaders(draw_from):
    """Return a function that makes a loader, and whether its loop may draw."""
    workers = draw_from(st.sampled_from([0, 1, 2, 3]))
    kind = draw_from(st.sampled_from([Map, Stream, ByCursor, Placed]))
    count = draw_from(st.integers(1, 19))
    options: dict[str, Any] = {"num_workers": workers}
    options["persistent_workers"] = workers > 0 and draw_from(st.booleans())
    options["prefetch_factor"] = draw_from(st.integers(1, 3)) if workers else None
    options["batch_size"] = draw_from(st.sampled_from([None, 1, 2, 4]))
    if options["batch_size"] is not None:
        options["drop_last"] = draw_from(st.booleans())
    if kind is Map:
        options["shuffle"] = draw_from(st.booleans())
        options["randomness"] = draw_from(st.sampled_from(["worker", "sample"]))
    if draw_from(st.booleans()):
        options["dtype"] = torch.float32  # through a device iterator
    return lambda: FastLoader(kind(count), **options), workers > 0 or kind is not Stream


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


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
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
    fresh = make()
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert batches + epoch(fresh, draws) == expected[before]
    assert [epoch(fresh, draws), epoch(fresh, draws)] == expected[before + 1 :]
    fresh.close()


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
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
