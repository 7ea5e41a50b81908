"""Datasets, and iterators of datasets, with a state of their own; iterables without one."""

from __future__ import annotations

import random
import time
import warnings
from typing import Any

import pytest
import torch
from photos import photos_fixture, train_v1
from resuming import STOPS, Drawing, check, flat, restart, saved, seed
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, Subset, get_worker_info
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.workers import start as engine

folder = photos_fixture()

PLACES = [(0, 0), (0, 1), (0, 4), (1, 0), (1, 3), (1, 5), (2, 5)]
WORKERS = pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (3, True)])


class Counting(Dataset):
    """Has a state that each sample changes, and which each sample shows."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return torch.tensor([index, self.read, random.random()], dtype=torch.float64)

    def state_dict(self) -> Any:
        return {"read": self.read}

    def load_state_dict(self, state: Any) -> None:
        self.read = state["read"]
        random.random(), torch.rand(1)  # what is drawn here is not drawn by samplers and samples


@pytest.mark.slow
@WORKERS
def test_a_dataset_with_a_state_is_asked_where_it_is_read(workers, persistent):
    check(lambda: FastLoader(Counting(), 4, shuffle=True, num_workers=workers, persistent_workers=persistent), STOPS)


@pytest.mark.slow
def test_a_dataset_with_a_state_goes_on_where_each_sample_has_its_own_randomness():
    def make(workers=2):
        return FastLoader(Counting(), 4, shuffle=True, num_workers=workers, randomness="sample")

    check(make, STOPS[1::3])
    loader = make()
    next(iter(loader))
    with pytest.raises(ValueError, match=r"num_workers must be 2.* each worker's dataset has a state of its own"):
        make(3).load_state_dict(loader.state_dict())


class Shelf(IterableDataset):
    """Goes on at its place once after a state was loaded."""

    read, goes_on = 0, False

    def __iter__(self):
        first, self.goes_on = self.read if self.goes_on else 0, False
        for self.read in range(first + 1, 9):
            yield torch.tensor([self.read, random.random()], dtype=torch.float64)

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read, self.goes_on = state["read"], True


def shift(worker: int) -> None:
    get_worker_info().dataset.read += worker


@pytest.mark.parametrize("batches", [None, 0, 1])
@pytest.mark.parametrize("kind", [Counting, Shelf])
def test_workers_begin_again_with_the_state_that_the_dataset_had_when_they_were_started(kind, batches):
    loader = FastLoader(kind(), 2, num_workers=2, worker_init_fn=shift)
    loader.dataset.load_state_dict({"read": 3})
    seed(5)
    state = None if batches is not None else saved(loader.state_dict())
    iterator = iter(loader)
    for _ in range(batches or 0):
        next(iterator)
    state = state or saved(loader.state_dict())
    loader.dataset.read = 7  # of no effect on the workers
    fresh = FastLoader(kind(), 2, num_workers=2, worker_init_fn=shift)
    fresh.load_state_dict(state)
    assert [flat(batch) for batch in fresh] == [flat(batch) for batch in iterator]
    assert fresh.dataset.read == 3
    assert fresh.state_dict()["now"]["dataset"] == {"dataset": {"read": 3}}


@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("begun", [False, True])
def test_workers_begin_an_epoch_of_a_dataset_that_was_at_its_end_here(epochs, begun):
    loader = FastLoader(Shelf(), 2, num_workers=2)
    assert len(list(loader.dataset)) == 8
    seed(5)
    for _ in range(epochs):
        list(loader)
    state = None if begun else saved(loader.state_dict())
    iterator = iter(loader)
    state = state or loader.state_dict()
    fresh = FastLoader(Shelf(), 2, num_workers=2)
    fresh.load_state_dict(state)
    found = [flat(batch) for batch in fresh]
    assert found == [flat(batch) for batch in iterator]
    assert len(found) == 8


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.thorough), "forkserver"])
@pytest.mark.slow
def test_started_workers_keep_and_get_states(method):
    options = {"num_workers": 2, "multiprocessing_context": method}
    check(lambda: FastLoader(Counting(), 4, shuffle=True, **options), [(1, 1)], epochs=2)


class Stream(IterableDataset):
    """Without a state; its workers end at different times."""

    def __iter__(self):
        info = get_worker_info()
        first = random.random()
        for i in range(9 if info is None else 5 + 4 * info.id):
            yield torch.tensor([i, random.random(), float(torch.rand(())), first], dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.each_value
@WORKERS
@pytest.mark.parametrize("batch_size", [2, None])
def test_an_iterable_dataset_without_a_state_is_read_again(workers, persistent, batch_size):
    def make():
        return FastLoader(Stream(), batch_size, num_workers=workers, persistent_workers=persistent)

    check(make, PLACES[:5], in_step=workers > 0)


class Placed(IterableDataset):
    """Goes on at its place once after a state was loaded; counts what it reads."""

    place, goes_on, read = 0, 0, 0

    def __iter__(self):
        first, self.goes_on = self.goes_on, 0
        info = get_worker_info()
        for self.place in range(first + 1, 12 if info is None else 12 + 6 * info.id):
            self.read += 1
            yield torch.tensor([self.place, self.read, random.random()], dtype=torch.float64)

    def state_dict(self):
        return {"place": self.place, "read": self.read}

    def load_state_dict(self, state):
        self.goes_on, self.read = state["place"], state["read"]


class Iterator:
    """An iterator with a state; draws when it is made, and at its end."""

    def __init__(self, stop: int) -> None:
        self.place, self.stop, self.drawn = 0, stop, random.random()

    def __iter__(self):
        return self

    def __next__(self):
        if self.place == self.stop:
            random.random()
            raise StopIteration
        self.place += 1
        return torch.tensor([self.place, self.drawn, random.random()], dtype=torch.float64)

    def state_dict(self):
        return {"place": self.place, "drawn": self.drawn}

    def load_state_dict(self, state):
        self.place, self.drawn = state["place"], state["drawn"]


class ByIterator(IterableDataset):
    """Has no state; its iterators have one."""

    def __iter__(self):
        info = get_worker_info()
        return Iterator(9 if info is None else 7 + 5 * info.id)


class ItsOwn(IterableDataset):
    """Its own iterator, whose state is there only once it iterates."""

    def __iter__(self):
        self.iterator = Iterator(11)
        return self

    def __next__(self):
        return next(self.iterator)

    def state_dict(self):
        return self.iterator.state_dict()

    def load_state_dict(self, state):
        self.iterator.load_state_dict(state)


@pytest.mark.slow
@pytest.mark.each_value
@WORKERS
@pytest.mark.parametrize("kind", [Placed, ByIterator, ItsOwn])
def test_an_iterable_dataset_goes_on_from_its_state(workers, persistent, kind):
    def make():
        return FastLoader(kind(), 2, num_workers=workers, persistent_workers=persistent)

    check(make, PLACES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Placed, ByIterator])
def test_the_device_side_goes_on_from_a_datasets_state(kind):
    for workers, persistent in ((0, False), (2, True)):
        options = {"num_workers": workers, "persistent_workers": persistent, "dtype": torch.float32}
        check(lambda options=options: FastLoader(kind(), 2, **options), PLACES[1::2])


def read_samples(monkeypatch, tmp_path, dataset: Any, workers: int) -> int:
    """Count the samples that a loader reads to go on after seven batches."""
    loader = FastLoader(dataset, 2, num_workers=workers, prefetch_factor=1 if workers else None)
    iterator = iter(loader)
    for _ in range(7):
        next(iterator)
    state = saved(loader.state_dict())
    loader.close()
    file = tmp_path / "read"
    file.touch()
    kind = Iterator if isinstance(dataset, ByIterator) else type(dataset)
    method = "__next__" if kind is Iterator else "__getitem__"
    former = getattr(kind, method)

    def counted(*args):
        with file.open("a") as opened:
            opened.write("x")
        return former(*args)

    monkeypatch.setattr(kind, method, counted)
    other = FastLoader(dataset, 2, num_workers=workers, prefetch_factor=1 if workers else None)
    other.load_state_dict(state)
    next(iter(other))
    other.close()
    return len(file.read_text())


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [ByIterator, Counting])
def test_no_sample_is_read_again_if_there_is_a_state(monkeypatch, tmp_path, kind, workers):
    dataset = kind()
    if kind is ByIterator:
        monkeypatch.setattr(Iterator, "__init__", lambda self, stop: vars(self).update(place=0, stop=99, drawn=0.0))
    assert read_samples(monkeypatch, tmp_path, dataset, workers) <= 2 + 2 * 2 * workers


def test_an_iterable_that_is_read_again_is_collated_without_slots(monkeypatch):
    used, collate = [], engine.Collate.__call__
    monkeypatch.setattr(engine.Collate, "__call__", lambda self, samples: used.append(1) or collate(self, samples))
    loader = FastLoader(Stream(), 2, dtype=torch.float32)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    used.clear()
    other = FastLoader(Stream(), 2, dtype=torch.float32)
    other.load_state_dict(loader.state_dict())
    iter(other)
    assert not used


class Ragged(IterableDataset):
    """Raises at some samples, from an iterator that goes on."""

    def __iter__(self):
        return RaggedIterator(9)


class RaggedIterator(Iterator):
    def __next__(self):
        sample = super().__next__()
        if self.place % 4 == 2:
            raise ValueError("ragged")
        return sample


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, True)])
def test_batches_of_an_iterable_that_raised_count_as_handed_over(workers, persistent):
    def take(iterator):
        try:
            return flat(next(iterator))
        except StopIteration:
            return None
        except ValueError:
            return "raised"

    def make():
        return FastLoader(Ragged(), 2, num_workers=workers, persistent_workers=persistent)

    def rest(iterator):
        return list(iter(lambda: take(iterator), None))

    seed(5)
    expected = rest(iter(make()))
    assert expected.count("raised") >= 2
    for stop in range(1, len(expected), 3 if workers else 1):
        seed(5)
        loader = make()
        iterator = iter(loader)
        batches = [take(iterator) for _ in range(stop)]
        assert batches + rest(iter(restart(loader, make))) == expected, stop


class Nesting(Counting):
    """Iterates a loader of its own for each sample."""

    def __getitem__(self, index: int) -> Any:
        (inner,) = DataLoader([index])
        return super().__getitem__(int(inner))


@pytest.mark.slow
def test_a_loader_within_a_dataset_has_no_part_in_it():
    check(lambda: FastLoader(Nesting(), 4, shuffle=True, num_workers=2, persistent_workers=True), STOPS[1::3])


class OneEnds(IterableDataset):
    """Only the last worker gives anything."""

    def __iter__(self):
        info = get_worker_info()
        yield from range(60 if info.id == info.num_workers - 1 else 0)


def test_a_worker_that_is_ahead_for_the_others_too_keeps_its_states():
    loader = FastLoader(OneEnds(), 1, num_workers=3, prefetch_factor=3)
    iterator = iter(loader)
    for count in range(1, 20):
        next(iterator)
        until = time.monotonic() + 5
        while loader.stats().queues.get("ready", 0) < 4 and time.monotonic() < until:
            time.sleep(0.01)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            state = loader.state_dict()
        assert state["workers"][2]["batches"] == count


class FailsOnce(Sampler):
    """Raises at an index of its second epoch; -1: before the first."""

    def __init__(self, at: int) -> None:
        self.at, self.epochs = at, 0

    def __iter__(self):
        self.epochs += 1
        if self.epochs == 2 and self.at < 0:
            raise LookupError("the sampler")
        return self.indices(self.epochs == 2)

    def indices(self, fails):
        for index in range(12):
            if fails and index == self.at:
                raise LookupError("the sampler")
            yield index

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = state["epochs"]


@pytest.mark.slow
@pytest.mark.parametrize("at", [-1, 0, 2])
def test_an_epoch_that_a_sampler_did_not_let_begin_is_not_counted(at):
    def make():
        return FastLoader(Counting(), 2, sampler=FailsOnce(at), num_workers=2, persistent_workers=True)

    def third(loader):
        list(loader)
        with pytest.raises(LookupError):
            iter(loader)
        return iter(loader)

    seed(5)
    loader = make()
    expected = [flat(batch) for batch in third(loader)]
    after = [flat(batch) for batch in loader]
    loader.close()
    for stop in (1, 3):
        seed(5)
        loader = make()
        iterator = third(loader)
        batches = [flat(next(iterator)) for _ in range(stop)]
        other = restart(loader, make)
        assert batches + [flat(batch) for batch in other] == expected
        assert [flat(batch) for batch in other] == after
        other.close()


class Refusing(Counting):
    def state_dict(self):
        raise LookupError("no state now")


class Unpicklable(Counting):
    def state_dict(self):
        return {"function": lambda: 0}


@pytest.mark.parametrize(
    ("kind", "workers", "message"),
    [
        (Refusing, 0, r"its dataset's state_dict\(\) raised LookupError: no state now"),
        (Refusing, 1, r"its dataset's state_dict\(\) raised LookupError: no state now"),
        (Unpicklable, 1, "its state cannot be kept: (AttributeError|PicklingError): Can't pickle"),
    ],
)
def test_a_dataset_that_gives_no_state_is_a_warning_and_its_batches_are_the_same(kind, workers, message):
    loader = FastLoader(kind(), 4, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    with pytest.warns(UserWarning, match=message):
        state = loader.state_dict()
    assert len(list(iterator)) == 5
    with pytest.raises(ValueError, match=message):
        FastLoader(kind(), 4, num_workers=workers).load_state_dict(state)


def test_a_state_of_an_iterator_that_takes_none_is_an_error():
    loader = FastLoader(ByIterator(), 2, num_workers=1)
    next(iter(loader))
    other = FastLoader(Stream(), 2, num_workers=1)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="has one of an iterator, but generator takes none"):
        next(iter(other))


def test_a_break_before_a_worker_has_begun_leaves_the_next_epoch_its_state():
    def make():
        return FastLoader(Counting(), 1, num_workers=2, persistent_workers=True, prefetch_factor=1)

    def second(loader):
        iterator = iter(loader)
        next(iterator)
        del iterator
        iter(loader), iter(loader)  # epochs of which nothing is taken
        return loader

    seed(5)
    expected = [flat(batch) for batch in second(make())]
    seed(5)
    loader = second(make())
    iterator = iter(loader)
    batches = [flat(next(iterator))]  # of one worker; the other has handed over nothing in this epoch
    assert batches + [flat(batch) for batch in restart(loader, make)] == expected


@pytest.mark.slow
def test_a_subset_of_a_dataset_with_a_state_goes_on():
    check(lambda: FastLoader(Subset(Drawing(), range(9)), 2, num_workers=2, shuffle=True), STOPS[1:4])


class Folder(ImageFolder):
    """Has a state, which its samples do not change."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_a_dataset_with_a_state_is_not_read_natively(folder):
    assert not FastLoader(ImageFolder(folder, train_v1()), 4, num_workers=2).plan.reasons
    plan = FastLoader(Folder(folder, train_v1()), 4, num_workers=2).plan
    assert "dataset Folder has a state_dict(), which its samples may change" in plan.reasons


@pytest.mark.parametrize(("dataset", "says"), [(Stream(), True), (Placed(), False), (Counting(), False)])
def test_the_plan_says_what_is_read_again(dataset, says):
    assert ("reads this IterableDataset again" in str(FastLoader(dataset, 2, num_workers=2).plan)) is says


class FirstIsLongest(IterableDataset):
    """Without a state; its first worker ends last."""

    def __iter__(self):
        for i in range(9 - 4 * get_worker_info().id):
            yield torch.tensor([i, random.random()], dtype=torch.float64)


@pytest.mark.slow
def test_an_epoch_begins_with_the_first_worker_and_goes_on_twice():
    def make():
        return FastLoader(FirstIsLongest(), 1, num_workers=2, persistent_workers=True)

    check(make, [(1, 0), (1, 11)], epochs=2)
    seed(5)
    loader = make()
    expected = [flat(batch) for batch in loader]
    loader.close()
    seed(5)
    loader, batches = make(), []
    for stop in (3, 4, 2):
        iterator = iter(loader)
        batches += [flat(next(iterator)) for _ in range(stop)]
        loader = restart(loader, make)
    assert batches + [flat(batch) for batch in loader] == expected
    loader.close()
