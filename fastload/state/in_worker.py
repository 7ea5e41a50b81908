"""Keep a worker's state after each of its batches; go on from one.

This runs in the worker. A state is that of the generators, of the dataset and of the dataset's iterator, as far as they
have a ``state_dict()`` and a ``load_state_dict()``. An iterable dataset without any is read again in the worker, from
the generators of the epoch's start on.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from torch._utils import ExceptionWrapper
from torch.utils.data import IterableDataset

from fastload.memory.kept_states import KeptState
from fastload.options import has_state
from fastload.randomness.by_sample import SeededByIndex
from fastload.randomness.packed import Texts, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.memory.kept_states import KeptStates


FLAGS: Final = ("is_iterator", "read_again", "ended")


@dataclass(frozen=True, slots=True)
class DatasetState:
    """What a dataset, and its iterator, have returned from ``state_dict()``.

    Attributes:
        dataset: The dataset's; ``None`` if it has none.
        iterator: Its iterator's; ``None`` if that has none.
        is_iterator: Whether the dataset is its own iterator; its state is then the iterator's.
        read_again: Whether it is iterable and neither has a state.
        ended: Whether its iterator has come to its end.
        error: Why one of them is unknown.
    """

    dataset: Any = None
    iterator: Any = None
    is_iterator: bool = False
    read_again: bool = False
    ended: bool = False
    error: str = ""

    @classmethod
    def of(cls, dataset: Any, fetcher: Any = None) -> DatasetState:
        """Ask a dataset, and the iterator of its fetcher."""
        iterator: Any = getattr(fetcher, "dataset_iter", None)
        alone = iterator is dataset
        has = has_state(dataset) and not alone, iterator is not None and has_state(iterator)
        if iterator is None and not has[0]:
            return NO_STATE
        try:
            return cls(
                dataset.state_dict() if has[0] else None,
                iterator.state_dict() if has[1] else None,
                alone,
                iterator is not None and not any(has),
                getattr(fetcher, "ended", False),
            )
        except Exception as error:  # noqa: BLE001 - any error of the user's method
            return cls(error=f"its dataset's state_dict() raised {type(error).__name__}: {error}")

    @classmethod
    def copied(cls, dataset: Any, fetcher: Any = None) -> DatasetState:
        """Ask as :meth:`of`, and copy what they may go on to change."""
        try:
            return copy.deepcopy(cls.of(dataset, fetcher))
        except Exception as error:  # noqa: BLE001 - any error of the user's objects
            return cls(error=f"its dataset's state cannot be copied: {error}")

    def packed(self) -> dict[str, Any]:
        """Return plain data, without what is absent."""
        given = {name: True for name in FLAGS if getattr(self, name)}
        for name, state in (("dataset", self.dataset), ("iterator", self.iterator)):
            if state is not None:
                given[name] = copy.deepcopy(state)
        return given

    @classmethod
    def unpacked(cls, packed: dict[str, Any]) -> DatasetState:
        """Make it of :meth:`packed`.

        Raises:
            TypeError: The data is damaged.
        """
        flags = {name: packed.get(name, False) for name in FLAGS}
        if set(packed) - {"dataset", "iterator", *FLAGS} or not all(type(flag) is bool for flag in flags.values()):
            raise TypeError("the state of a dataset has other entries")
        return cls(packed.get("dataset"), packed.get("iterator"), **flags)

    def at_next_epoch(self) -> DatasetState:
        """Return what the next epoch begins with."""
        return replace(self, dataset=self.iterator if self.is_iterator else self.dataset, iterator=None, ended=False)

    def set(self, dataset: Any) -> None:
        """Set a dataset's state."""
        if self.dataset is not None:
            dataset.load_state_dict(copy.deepcopy(self.dataset))  # which it may keep, and change

    def begin(self, dataset: Any) -> None:
        """Set a dataset's state, so that its next iteration is a new epoch.

        One whose state is its place is then at the end of the epoch before: it goes on there, without anything to give,
        and is at the beginning after that.
        """
        if self.dataset is None:
            return
        if self.is_iterator:
            iter(dataset)
            self.set(dataset)
            return
        self.set(dataset)
        iterable = isinstance(dataset, IterableDataset)
        if iterable and not is_at_end(dataset):
            self.set(dataset)

    def resume(self, fetcher: Any) -> None:
        """Set the state of a fetcher's new iterator."""
        if self.iterator is not None:
            if not has_state(fetcher.dataset_iter):
                raise ValueError(
                    f"the state has one of an iterator, but {type(fetcher.dataset_iter).__name__} takes none"
                )
            fetcher.dataset_iter.load_state_dict(self.iterator)
        if hasattr(fetcher, "ended"):
            fetcher.ended = self.ended


NO_STATE: Final = DatasetState()
KEPT_NOTE: Final = "FastLoader keeps the loaded state: the next iter() goes on from it again"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker process after one of its batches.

    Attributes:
        generators: States of its generators; ``None``: as it was seeded, or as its process starts.
        batches: How many of the epoch it has made; 0: the epoch begins.
        data: Its dataset's states.
    """

    generators: bytes | None = None
    batches: int = 0
    data: DatasetState = NO_STATE

    def packed(self, texts: Texts, worker: int) -> dict[str, Any]:
        """Return plain data, without what is as in a new worker.

        Args:
            texts: Of the last call.
            worker: Its number.
        """
        generators = {} if self.generators is None else {"generators": texts.pack(worker, self.generators)}
        return {"batches": self.batches, **generators, **self.data.packed()}

    @classmethod
    def unpacked(cls, packed: dict[str, Any]) -> WorkerState:
        """Make it of :meth:`packed`.

        Raises:
            KeyError, TypeError, ValueError: The data is damaged.
        """
        given = dict(packed)
        generators, batches = given.pop("generators", None), given.pop("batches")
        if type(batches) is not int or not 0 <= batches < 2**63:
            raise TypeError("'batches' must be a number")
        return cls(None if generators is None else unpack(generators), batches, DatasetState.unpacked(given))

    @classmethod
    def kept(cls, kept: KeptState) -> WorkerState:
        """Make it of what a :class:`WorkerProgress` has kept."""
        size = int.from_bytes(kept.state[:_SIZE_BYTES], "little")
        generators = kept.state[_SIZE_BYTES + size :]
        return cls(generators or None, kept.number, pickle.loads(kept.state[_SIZE_BYTES:][:size]))


def _packed(data: DatasetState) -> bytes:
    pickled = pickle.dumps(data)
    return len(pickled).to_bytes(_SIZE_BYTES, "little") + pickled


_SIZE_BYTES: Final = 8
_NO_STATE: Final = _packed(NO_STATE)  # of most datasets, whose batches may take less than pickling it


def users_own(dataset: Any) -> Any:
    """The user's dataset within one that seeds its samples."""
    return dataset.dataset if isinstance(dataset, SeededByIndex) else dataset


def is_at_end(source: Any) -> bool:
    """Whether an iterable gives nothing; an error counts as something."""
    with contextlib.suppress(Exception):
        for _ in source:
            return False
        return True
    return False


class NotLoaded(ExceptionWrapper):
    """Why a worker cannot begin with its state."""

    @classmethod
    def of(cls, error: Exception, worker: int) -> NotLoaded:
        """Wrap the error that is being handled."""
        error.add_note(KEPT_NOTE)
        return cls(where=f"in DataLoader worker process {worker}, which begins with a loaded state")

    def __reduce__(self) -> Any:
        from fastload.memory.sending import reduce_error

        return reduce_error(self)


class _FailedFetcher:
    """Stands for the fetcher of a worker that could not begin with its state."""

    def __init__(self, failed: NotLoaded) -> None:
        self._failed = failed

    def fetch(self, possibly_batched_index: Any) -> NotLoaded:
        """Return the error."""
        return self._failed


class WorkerProgress:
    """Keeps the states of this worker process.

    Args:
        states: Where; ``None`` keeps none.
        worker: Its number.
        generators: Whether those of its generators too.
    """

    def __init__(self, states: KeptStates | None, worker: int, *, generators: bool) -> None:
        self.resumed: WorkerState | None = None
        self.read_again: ReadAgain | None = None
        self.failed: NotLoaded | None = None
        self._states = states
        self._worker = worker
        self._generators = generators
        self._fetcher: Any = None
        self._epoch = 0
        self._fetches = 0

    def keep(self, fetcher: Any, digest: int) -> None:
        """Keep the state after a fetch.

        Args:
            fetcher: This epoch's.
            digest: Of the fetch's indices.
        """
        self._fetches += 1
        self._keep(DatasetState.of(users_own(fetcher.dataset), fetcher), digest)

    def fetcher_of_epoch(self, dataset: Any, make: Callable[[], Any]) -> Any:
        """Return a new epoch's fetcher, with the state that it begins with.

        Args:
            dataset: The user's.
            make: Makes the fetcher.
        """
        former, self._epoch, self._fetches = self._fetcher, self._epoch + 1, 0
        self._fetcher = self._made(dataset, former, make)
        return self._fetcher

    def _made(self, dataset: Any, former: Any, make: Callable[[], Any]) -> Any:
        state, self.resumed = self.resumed, None
        if self.failed is not None:
            return _FailedFetcher(self.failed)
        if state is None and former is None and self.read_again is not None and isinstance(dataset, IterableDataset):
            state = self._as_it_is(dataset)  # one that a loaded state has put at its end begins an epoch, all the same
        if state is None:
            self._keep(NO_STATE if former is None else DatasetState.of(dataset, former).at_next_epoch(), 0)
            return make()
        try:
            return self._resumed_fetcher(state, dataset, make)
        except Exception as error:  # noqa: BLE001 - any error of the user's methods
            self.failed = NotLoaded.of(error, self._worker)
            return _FailedFetcher(self.failed)

    def _as_it_is(self, dataset: Any) -> WorkerState | None:
        from fastload.randomness.generators import state_now

        data = DatasetState.copied(dataset)
        return None if data.dataset is None else WorkerState(state_now(others=True), 0, data)

    def _resumed_fetcher(self, state: WorkerState, dataset: Any, make: Callable[[], Any]) -> Any:
        data = state.data
        if not state.batches:
            data.begin(dataset)
        elif data.dataset is not None:
            dataset.load_state_dict(data.dataset)
        if not state.batches or data.read_again:
            self._set_generators(state)
        fetcher = make()
        if data.read_again and self.read_again is not None:
            self.read_again(fetcher, state.batches)
        elif state.batches:
            data.resume(fetcher)
            self._set_generators(state)
        return fetcher

    def _set_generators(self, state: WorkerState) -> None:
        if state.generators is not None:
            from fastload.randomness.generators import set_state

            set_state(state.generators)

    def _keep(self, data: DatasetState, digest: int) -> None:
        if self._states is None:
            return
        try:
            generators = b""
            if self._generators:
                from fastload.randomness.generators import state_now

                generators = state_now(others=True)
            self._write(self._states, digest, generators, data)
        except Exception as error:  # noqa: BLE001 - any error of the user's objects; or no core
            failed = DatasetState(error=f"its state cannot be kept: {type(error).__name__}: {error}")
            with contextlib.suppress(Exception):  # there may be no memory; the batch is still good
                self._write(self._states, digest, b"", failed)

    def _write(self, states: KeptStates, digest: int, generators: bytes, data: DatasetState) -> None:
        kept = (_NO_STATE if data is NO_STATE else _packed(data)) + generators
        states.keep(self._worker, KeptState(self._epoch, self._fetches, digest, kept))


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """How an iterable dataset is read again, up to its place.

    Attributes:
        indices: What its fetcher is asked with for a batch.
        collate_fn: The user's, which may draw random numbers; batches are not written into shared memory.
    """

    indices: Any
    collate_fn: Callable[[Any], Any]

    @classmethod
    def of(cls, loader: Any) -> ReadAgain:
        """Read a loader's arguments."""
        batch_size = loader.batch_size or 1  # a batch sampler's loader has none, and no iterable dataset
        return cls([None] * batch_size if loader._auto_collation else None, loader.collate_fn)

    def __call__(self, fetcher: Any, batches: int) -> None:
        """Make batches again and drop them; they are not counted."""
        own, fetcher.collate_fn = fetcher.collate_fn, self.collate_fn
        try:
            for _ in range(batches):
                with contextlib.suppress(Exception):  # one that raised was handed over, too
                    type(fetcher).fetch(fetcher, self.indices)
        finally:
            fetcher.collate_fn = own
