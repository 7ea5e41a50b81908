"""States of users' objects that keep what they give or get, or refuse."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from resuming import Drawing
from torch.utils.data import Dataset, IterableDataset, SequentialSampler

from fastload import FastLoader
from fastload.loader_state import state_of


class Live(IterableDataset):
    """Returns its state itself, adopts the given one, and may fail to begin."""

    def __init__(self) -> None:
        self.live = {"place": 0, "begun": 0}
        self.begun_here, self.fails_at = 0, 0

    def __iter__(self) -> Any:
        self.live["begun"] += 1
        self.begun_here += 1
        if self.begun_here == self.fails_at:
            raise OSError("not now")
        self.live["place"] %= 10
        return self.rest()

    def rest(self) -> Any:
        while self.live["place"] < 10:
            self.live["place"] += 1
            yield torch.tensor([self.live["place"], self.live["begun"]])

    def state_dict(self) -> Any:
        return self.live

    def load_state_dict(self, state: Any) -> None:
        self.live = state


class ItsOwn(Live):
    """Is its own iterator."""

    def rest(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self.live["place"] >= 10:
            raise StopIteration
        self.live["place"] += 1
        return torch.tensor([self.live["place"], self.live["begun"]])


class Updating(Live):
    """Takes over what the state that it is given holds."""

    def load_state_dict(self, state: Any) -> None:
        self.live.update(state)


@pytest.mark.parametrize(("kind", "epochs", "fails_at"), [(Live, 0, 2), (Live, 1, 2), (ItsOwn, 1, 2)])
def test_a_dataset_that_adopts_a_loaded_state_and_fails_does_not_change_it(kind, epochs, fails_at):
    def resumed():
        loader = FastLoader(kind(), 2)
        loader.load_state_dict(state)
        return loader

    loader = FastLoader(kind(), 2)
    for _ in range(epochs):
        list(loader)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in resumed()]
    loader = resumed()
    loader.dataset.fails_at = fails_at
    with pytest.raises(OSError, match="not now"):
        iter(loader)
    assert loader.state_dict() == state
    assert [batch.tolist() for batch in loader] == expected
    assert len(expected) == 5


def test_a_dataset_gets_back_the_state_that_it_had_before_a_failed_iter():
    saved = FastLoader(Live(), 2)
    next(iter(saved))
    loader = FastLoader(Updating(), 2)
    loader.dataset.live["place"] = 5
    loader.load_state_dict(saved.state_dict())
    loader.dataset.fails_at = 1
    with pytest.raises(OSError, match="not now"):
        iter(loader)
    assert loader.dataset.live["place"] == 5


def test_a_loader_that_is_closed_has_the_state_of_then():
    loader = FastLoader(Live(), 2)
    next(iter(loader))
    loader.close()
    state = loader.state_dict()
    loader.dataset.live["place"] = 9
    assert loader.state_dict() == state
    assert state["now"]["dataset"]["dataset"]["place"] == 2


class Refuses(SequentialSampler):
    def state_dict(self) -> Any:
        raise LookupError("not this one")

    def load_state_dict(self, state: Any) -> None:
        pass


class RefusingDataset(Drawing):
    def state_dict(self) -> Any:
        raise LookupError("not this one")

    def load_state_dict(self, state: Any) -> None:
        pass


class Locked(RefusingDataset):
    def state_dict(self) -> Any:
        return threading.Lock()  # cannot be copied


def refused(loader, reason):
    with pytest.warns(UserWarning, match=rf"cannot be loaded: .*{reason}"):
        state = loader.state_dict()
    with pytest.raises(ValueError, match=reason):
        loader.load_state_dict(state)


@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sampler": Refuses(range(23))}, "LookupError: not this one"),
        ({"sampler": Refuses(range(23)), "num_workers": 2}, "LookupError: not this one"),
        ({"dataset": RefusingDataset()}, "LookupError: not this one"),
        ({"dataset": Locked()}, "cannot pickle '_thread.lock'"),
    ],
)
def test_a_state_that_users_objects_do_not_give_is_refused_also_before_the_first_batch(options, reason, taken):
    loader = FastLoader(**{"dataset": Drawing(), **options}, batch_size=4)
    if taken:
        next(iter(loader))
    refused(loader, reason)
    loader.close()


@pytest.mark.parametrize("taken", [0, 1])
def test_another_bit_generator_in_numpy_is_refused_and_its_batches_come_without_a_warning(taken):
    own = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(5))
    try:
        loader = FastLoader(range(8), 4)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not taken or len(list(loader)) == 2
        refused(loader, "must be MT19937, which is its own, got PCG64")
    finally:
        np.random.set_bit_generator(own)


def take_another(worker: int) -> None:
    np.random.set_bit_generator(np.random.PCG64(worker))


@pytest.mark.parametrize("taken", [1, 6])
def test_another_bit_generator_in_workers_that_persist_is_refused_also_after_the_epoch(taken):
    loader = FastLoader(Drawing(), 4, num_workers=2, persistent_workers=True, worker_init_fn=take_another)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    assert taken == 1 or next(iterator, None) is None
    refused(loader, "its state cannot be kept: TypeError: .*got PCG64")
    loader.close()


class FailsInWorkers(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)

    def state_dict(self) -> Any:
        raise LookupError("not this one")

    def load_state_dict(self, state: Any) -> None:
        pass


@pytest.mark.filterwarnings("ignore:this FastLoader's state_dict")
def test_an_unknown_state_that_is_asked_for_often_takes_no_memory():
    loader = FastLoader(FailsInWorkers(), 4, num_workers=1)
    next(iter(loader))
    gc.collect()
    lengths = []
    for _ in range(3):
        assert "not this one" in loader.state_dict()["unsupported"]
        traceback, length = state_of(loader).place.position._at_close.__traceback__, 0
        while traceback is not None:
            traceback, length = traceback.tb_next, length + 1
        lengths.append(length)
    loader.close()
    assert len(set(lengths)) == 1


def interrupted(call: Any, number: int) -> bool:
    """Run a call, and interrupt it where CPython does.

    That is where a function begins, and where a built-in one has returned.

    Returns whether it has as many such places as ``number``.
    """
    places = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal places
        places += event in ("call", "c_return")
        if places > number:
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return places > number  # also if what the collector ended there has swallowed the interrupt


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupts of generators that end
def test_interrupts_of_state_dict_and_load_state_dict_leave_all_as_it_was():
    loader, other = FastLoader(range(8), 4), FastLoader(range(8), 4)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    lock = state_of(loader).place.position._consuming
    numbers = itertools.count()
    while interrupted(loader.state_dict, next(numbers)):
        assert not lock._is_owned()
        assert loader.state_dict() == state
    assert next(numbers) > 40
    numbers = itertools.count()
    while interrupted(lambda: other.load_state_dict(state), next(numbers)):
        assert state_of(other).place.loaded in (None, state)
    assert next(numbers) > 40
