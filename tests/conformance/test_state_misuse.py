"""Wrong uses of states lose nothing: failed loads, other threads and processes, copies, damage."""

from __future__ import annotations

import copy
import datetime
import itertools
import json
import pickle
import random
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from resuming import Drawing, flat, saved, seed
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, SequentialSampler, get_worker_info

from fastload import FastLoader
from fastload.state.place import Position


class FailsToLoad:
    """Fails as long as a file is there, in one worker or wherever it is."""

    def __init__(self, file: Any, worker: int | None = None) -> None:
        self.file, self.worker, self.read, self.first = file, worker, 0, 0

    def state_dict(self) -> Any:
        return {"read": self.read}

    def load_state_dict(self, state: Any) -> None:
        info = get_worker_info()
        if self.file.exists() and (self.worker is None or (info is not None and info.id == self.worker)):
            raise LookupError("not now")
        self.read = self.first = state["read"]


class MapStyle(FailsToLoad, Dataset):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return torch.tensor([index, self.read, float(torch.rand(()))], dtype=torch.float64)


class Iterable(FailsToLoad, IterableDataset):
    def __iter__(self):
        first, self.first = self.first, 0
        for self.read in range(first + 1, 12):
            yield torch.tensor([self.read, float(torch.rand(()))], dtype=torch.float64)


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [None, torch.float32])
@pytest.mark.parametrize("kind", [MapStyle, Iterable])
@pytest.mark.parametrize(("workers", "worker"), [(0, None), (2, None), (2, 0), (2, 1)])
def test_a_state_that_cannot_be_loaded_is_kept_and_tried_again(tmp_path, kind, workers, worker, dtype):
    file = tmp_path / "fails"

    def make():
        return FastLoader(kind(file, worker), 2, num_workers=workers, dtype=dtype)

    seed(5)
    loader = make()
    iterator = iter(loader)
    batches = [flat(next(iterator)) for _ in range(3)]
    state = saved(loader.state_dict())
    expected = [flat(batch) for batch in iterator]
    other = make()
    other.load_state_dict(state)
    file.touch()
    taken = []
    for _ in range(2):
        iterator = None
        with pytest.raises(LookupError, match="not now") as raised:  # noqa: PT012 - from iter() or from next()
            iterator = iter(other)
            for batch in iterator:
                taken.append(flat(batch))
        assert "keeps the loaded state" in str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
        if iterator is not None:
            with pytest.raises(LookupError, match="not now"):
                next(iterator)
    between = other.state_dict()
    assert between["_num_yielded"] == state["_num_yielded"] + len(taken)
    assert len(taken) <= 1
    file.unlink()
    assert batches + taken + [flat(batch) for batch in other] == batches + expected
    third = make()
    third.load_state_dict(saved(between))
    assert taken + [flat(batch) for batch in third] == expected


class FailsToStart:
    def __init__(self, file: Any) -> None:
        self.file = file

    def __call__(self, worker: int) -> None:
        if self.file.exists():
            raise LookupError("not now")


@pytest.mark.parametrize("randomness", ["worker", "sample"])
def test_a_worker_init_fn_that_fails_leaves_the_loaded_state(tmp_path, randomness):
    file = tmp_path / "fails"

    def make():
        start = FailsToStart(file)
        return FastLoader(Drawing(), 4, num_workers=2, worker_init_fn=start, randomness=randomness)

    loader = make()
    iterator = iter(loader)
    next(iterator)
    other = make()
    other.load_state_dict(loader.state_dict())
    expected = [flat(batch) for batch in iterator]
    file.touch()
    with pytest.raises(LookupError, match="not now"):
        next(iter(other))
    file.unlink()
    assert [flat(batch) for batch in other] == expected


class EpochIsFixed(SequentialSampler):
    """Has an epoch that cannot be set."""

    epoch = property(lambda self: 3)


def test_an_epoch_that_cannot_be_set_leaves_the_former_state():
    loader = FastLoader(Drawing(), 4, sampler=EpochIsFixed(range(23)))
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(loader.state_dict())
    before = loader.state_dict()
    fresh = FastLoader(Drawing(), 4, sampler=SequentialSampler(range(23)))
    fresh.sampler.epoch = 4
    with pytest.raises(AttributeError, match="epoch"):
        loader.load_state_dict(fresh.state_dict())
    assert loader.state_dict() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_during_an_epoch_takes_effect_at_the_next_and_the_last_one_counts(workers):
    loader = FastLoader(Drawing(), 4, shuffle=True, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    first = loader.state_dict()
    next(iterator)
    second = loader.state_dict()
    expected = [flat(batch) for batch in iterator]
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(first)
    loader.load_state_dict(second)
    next(iterator)
    assert loader.state_dict() == second
    assert [flat(batch) for batch in loader] == expected


def test_a_closed_loader_keeps_its_state_and_says_that_it_is_closed():
    loader = FastLoader(Drawing(), 4, shuffle=True, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    loader.close()
    assert loader.state_dict() == state
    loader.load_state_dict(state)
    with pytest.raises(RuntimeError, match="is closed"):
        iter(loader)
    assert loader.state_dict() == state


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_has_the_loaded_state_and_no_place(copied):
    loader = FastLoader(Drawing(), 4, shuffle=True)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    assert copied(loader).state_dict()["_num_yielded"] == 0
    expected = [flat(batch) for batch in iterator]
    loader.load_state_dict(state)
    other = copied(loader)
    assert [flat(batch) for batch in other] == expected
    assert loader.state_dict() == state


class AsksTheLoader(Drawing):
    """Asks its own loader for a state while it makes a sample."""

    loader: Any = None

    def __getitem__(self, index: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = self.loader.state_dict()
        return super().__getitem__(index), state.get("unsupported", ""), state.get("_num_yielded", -1)


def test_a_state_within_a_batch_is_refused_and_a_workers_copy_has_that_of_the_fork():
    dataset = AsksTheLoader()
    dataset.loader = loader = FastLoader(dataset, 4)
    for _, why, _ in loader:
        assert "call it between two batches" in why[0]
    dataset.loader = loader = FastLoader(dataset, 4, num_workers=1, multiprocessing_context="fork")
    for number, (_, why, handed_over) in enumerate(loader, 1):
        assert (why[0], set(handed_over.tolist())) == ("", {0})
        assert loader.state_dict()["_num_yielded"] == number
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_states_from_another_thread_are_of_one_place(workers):
    loader = FastLoader(Drawing(400), 2, num_workers=workers)
    states: list[Any] = []
    done = threading.Event()

    def ask():
        while not done.is_set():
            states.append(loader.state_dict())

    seed(5)
    iterator = iter(loader)
    batches = [flat(next(iterator))]
    thread = threading.Thread(target=ask)
    thread.start()
    try:
        batches += [flat(batch) for batch in iterator]
    finally:
        done.set()
        thread.join()
    within = {state["_num_yielded"]: state for state in states if 0 < state["_num_yielded"] < 150}
    assert within
    for place in sorted(within)[:: max(1, len(within) // 3)]:
        other = FastLoader(Drawing(400), 2, num_workers=workers)
        other.load_state_dict(within[place])
        assert [flat(batch) for batch in other] == batches[place:]


class Handing(Position):
    """Hands a batch over while its states are read."""

    def _states(self) -> Any:
        found = super()._states()
        if self.moves:
            self.moves -= 1
            next(self.iterator)
        return found


@pytest.mark.parametrize(("moves", "place"), [(1, 2), (1000, None)])
def test_a_state_that_changes_while_it_is_read_is_read_again(monkeypatch, moves, place):
    loader = FastLoader(Drawing(1000), 1, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    own: Any = loader._state.place.position
    own.__class__, own.iterator, own.moves = Handing, iterator, moves
    if place is None:
        with pytest.warns(UserWarning, match="no time between two"):
            loader.state_dict()
    else:
        state = loader.state_dict()
        assert (state["_num_yielded"], state["workers"][0]["batches"]) == (place, place)
    own.iterator, own.moves = None, 0
    loader.close()


def test_a_state_has_the_files_of_now():
    dataset = Drawing(3)
    dataset.files = ["a", "b", "c"]
    loader = FastLoader(dataset)
    first = loader.state_dict()
    dataset.files[1] = "d"
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="same files"):
        loader.load_state_dict(first)


def test_a_changed_number_in_a_list_of_states_is_noticed():
    loaders = [FastLoader(Drawing(), 2, sampler=DistributedSampler(range(23), 2, rank)) for rank in range(2)]
    states = [loader.state_dict() for loader in loaders]
    for number in range(2):
        damaged = [*states]
        damaged[number] = {**states[number], "base_seed": 7}
        with pytest.raises(ValueError, match="its checksum differs"):
            loaders[0].load_state_dict(damaged)
    loaders[0].load_state_dict(states)


class Nested(Dataset):
    """Has a state of all kinds of values."""

    def __init__(self) -> None:
        self.state: Any = {
            "numbers": [1, 2.5, True, None, [3, 4]],
            "texts": {"short": "a", "long": "b" * 300, "bytes": b"cd"},
            "keys": {10: (1, {"inner": ()}), 9: []},
            "tensors": [torch.arange(3.0), torch.ones(2, 1, dtype=torch.bool), torch.tensor(2, dtype=torch.bfloat16)],
            "arrays": [np.arange(3), np.float32(1), np.array([None, "a"])],
            "others": [{1, 2}, random.Random(1).getstate(), np.random.default_rng(1), datetime.date(2020, 1, 1)],
        }

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return index

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


class NestedSampler(SequentialSampler, Nested):
    def __init__(self) -> None:
        super().__init__(range(6))
        Nested.__init__(self)


class NestedStream(IterableDataset):
    def __iter__(self) -> Any:
        return NestedIterator()


class NestedIterator(Nested):
    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        return 1


def ranked(rank: int, replicas: int) -> FastLoader[Any]:
    sampler = DistributedSampler(range(23), replicas, rank)
    return FastLoader(Drawing(), 2, sampler=sampler, randomness="sample", generator=torch.Generator().manual_seed(1))


LOADERS = {
    "generators": lambda: FastLoader(Drawing(), 4, shuffle=True, num_workers=1, generator=torch.Generator()),
    "dataset": lambda: FastLoader(Nested(), 2, sampler=NestedSampler()),
    "datasets in workers": lambda: FastLoader(Nested(), 2, num_workers=2, persistent_workers=True),
    "iterator": lambda: FastLoader(NestedStream(), 2),
    "rank": lambda: ranked(0, 1),
}


def others(value: Any) -> Any:
    """Yield ``value`` with each single change of a value, type, size, key or order."""
    if isinstance(value, dict):
        for key, entry in value.items():
            rest = {name: value[name] for name in value if name != key}
            yield rest
            yield {**rest, f"{key} ": entry}
            yield from ({**value, key: other} for other in others(entry))
        yield {**value, "added": None}
    elif isinstance(value, list | tuple):
        for place, entry in enumerate(value[:4]):
            yield [*value[:place], *value[place + 1 :]]
            yield from ([*value[:place], other, *value[place + 1 :]] for other in others(entry))
        yield [*value, None]
        yield from [value[::-1]] if str(value[::-1]) != str(value) else []
    else:
        changes = [None, False, 0, "", {}, [], *of_leaf(value)]
        yield from (change for change in changes if type(change) is not type(value) or str(change) != str(value))


def of_leaf(value: Any) -> Any:
    if isinstance(value, bool):
        yield from (not value, int(value))
    elif isinstance(value, int | float):
        yield from (value + 1, -value - 1, float(value) if isinstance(value, int) else np.float64(value), str(value))
    elif isinstance(value, str):
        yield from (f"{value}=", f" {value}", value.encode(), value.swapcase())
        for place in range(0, len(value), max(1, len(value) // 10)):
            yield f"{value[:place]}{'A' if value[place] != 'A' else 'B'}{value[place + 1 :]}"
    elif isinstance(value, torch.Tensor):
        yield from (value.numpy(force=True) if value.dtype != torch.bfloat16 else value.float(), value[None])
        yield from (value.to(torch.complex64), ~value if value.dtype == torch.bool else value + 1)
        yield value.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[value.itemsize])  # of the same bytes
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield from (torch.tensor(value), value[None], value[::-1], value.astype(np.float16), value.tolist())
        yield value.view(np.float64)
    elif isinstance(value, set):
        yield from (value | {3}, frozenset({1}), sorted(value))
    elif isinstance(value, datetime.date):
        yield value.replace(day=2)
    elif isinstance(value, np.random.Generator):
        yield np.random.default_rng(2)


@pytest.mark.parametrize("kind", LOADERS)
def test_every_change_of_a_state_is_noticed(kind):
    loader = LOADERS[kind]()
    if kind == "rank":
        ranks = [ranked(rank, 2) for rank in (0, 1)]
        [next(iter(rank)) for rank in ranks]
        loader.load_state_dict([rank.state_dict() for rank in ranks])
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    fresh = LOADERS[kind]()
    before = fresh.state_dict()
    tried = 0
    for changed in others(state):
        with pytest.raises(ValueError, match=r"damaged|must|needs|version|state|differ"):
            fresh.load_state_dict(changed)
        tried += 1
    assert tried > 200
    assert fresh.state_dict()["checksum"] == before["checksum"]  # that is, nothing has changed
    fresh.load_state_dict(saved(state) if kind in ("generators", "rank") else pickle.loads(pickle.dumps(state)))
    assert [*map(flat, itertools.islice(fresh, 9))] == [*map(flat, itertools.islice(iterator, 9))]
    loader.close(), fresh.close()


def test_what_json_makes_of_a_state_is_the_same_state():
    dataset = Nested()
    for name in ("tensors", "arrays", "others"):
        del dataset.state[name]
    del dataset.state["texts"]["bytes"]
    loader = FastLoader(dataset, 2, num_workers=1)
    iter(loader)
    loader.load_state_dict(json.loads(json.dumps(loader.state_dict(), sort_keys=True)))
    loader.close()
