"""Wrong uses of states lose nothing: failed loads, other threads and processes, copies, damage."""

from __future__ import annotations

import copy
import json
import pickle
import threading
import warnings
from typing import Any

import pytest
import torch
from resuming import Drawing, flat, saved, seed
from torch.utils.data import Dataset, DistributedSampler, IterableDataset, SequentialSampler, get_worker_info

from fastload import FastLoader
from fastload.engines import position


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
        if workers:
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


class Handing(position.Position):
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
    own: Any = loader._state.position
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


def flips(text: str) -> Any:
    """Texts with one character changed."""
    for place in range(0, len(text), max(1, len(text) // 40)):
        if text[place] not in "=":
            yield text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]


def test_each_changed_part_of_a_state_is_noticed():
    loader = FastLoader(Drawing(), 4, shuffle=True, num_workers=1, generator=torch.Generator())
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    text = json.dumps(state)
    damaged: list[Any] = []
    for name, value in state.items():
        damaged.append({key: entry for key, entry in state.items() if key != name})
        changes = [[], {}, None, "x", torch.zeros(2), b"", -1, 1.5]
        changes += [not value] if isinstance(value, bool) else [value + 1] if isinstance(value, int) else []
        damaged += [{**state, name: change} for change in changes if type(change) is not type(value) or change != value]
    for path in (
        ("start", "main"),
        ("now", "main"),
        ("start", "generators", "0.generator.cpu"),
        ("workers", 0, "generators"),
    ):
        part: Any = state
        for key in path:
            part = part[key]
        for changed in flips(part):
            damaged.append(json.loads(text))
            inner = damaged[-1]
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = changed
    fresh = FastLoader(Drawing(), 4, shuffle=True, num_workers=1, generator=torch.Generator())
    before = fresh.state_dict()
    for one in damaged:
        with pytest.raises(ValueError, match=r"damaged|must|needs|version|state|differ"):
            fresh.load_state_dict(one)
    assert fresh.state_dict() == before
    fresh.load_state_dict(json.loads(text))
    assert [flat(batch) for batch in fresh] == [flat(batch) for batch in iterator]
