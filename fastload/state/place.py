"""How far the consumer of one iteration is, and the states of its workers there."""

from __future__ import annotations

import contextlib
import copy
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from torch.utils.data import IterableDataset

from fastload.bad_samples import ErrorLog
from fastload.options import length_of
from fastload.randomness.by_sample import Epochs
from fastload.randomness.packed import Texts, digest_of
from fastload.state.in_worker import NO_STATE, DatasetState, NotLoaded, WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastload.memory.kept_states import KeptState, KeptStates
    from fastload.options import LoaderConfig
    from fastload.state.resume import Resumption
    from fastload.state.sources import Sources
    from fastload.stats.meter import Meter


T = TypeVar("T")

_TRIES: Final = 100
_TURN_S: Final = 60.0  # to wait for a batch that another thread makes


class UnknownStateError(Exception):
    """A worker's generators are not known."""


class LoaderPlace:
    """Where a loader's newest iteration is, and what its next one begins with.

    A copy, pickled or not, has the loaded state that no iteration has begun with, and is otherwise new.

    Args:
        loaded: See :meth:`FastLoader.load_state_dict`.
        keeps_generators: Whether the framework that loaded it has set the global generators.
    """

    def __init__(self, loaded: dict[str, Any] | None = None, keeps_generators: bool = False) -> None:
        self.loaded = copy.deepcopy(loaded)  # a state that the next iteration begins with
        self.keeps_generators = keeps_generators
        self.position: Position | None = None  # of the newest iteration
        self.resumption: Resumption | None = None  # while an iterator is made that begins with it
        self.lost: str | None = None  # why the position is unknown
        self.warned = False  # that the loader has no state
        self.texts = Texts()  # of the last call of state_dict()
        self.names: dict[str, Any] = {}  # of files, of that call
        self.errors = ErrorLog()
        self._epochs = Epochs()

    def epochs_of(self, loader: Any) -> Epochs | None:
        """The loader's seed and epoch; ``None`` unless ``randomness="sample"``."""
        return self._epochs if getattr(loader, "randomness", "worker") == "sample" else None

    def __reduce__(self) -> Any:
        return LoaderPlace, (self.loaded, self.keeps_generators)


class _HandsOver:
    """Replaces ``_process_data`` of a torch iterator to count each worker's batches handed over."""

    def __init__(self, host: Any, counts: list[int], turn: int) -> None:
        self._host = weakref.ref(host)
        self.counts = counts
        self.turn = turn  # number of the worker that makes the next batch

    def __call__(self, data: Any, worker: int) -> Any:
        if not isinstance(data, NotLoaded):
            self.counts[worker] += 1
            self.turn = (worker + 1) % len(self.counts)
        host: Any = self._host()
        return type(host)._process_data(host, data, worker)


@dataclass(frozen=True, slots=True)
class ConsumerPlace:
    """Where a consumer is, between two batches.

    Attributes:
        handed_over: Batches of the epoch that it has.
        ended: Whether the epoch is over.
        turn: Number of the worker that makes the next batch.
        drawn: Batches whose indices are drawn; 0 for an iterable dataset.
        digest: Of the last batch's indices; 0 if unknown.
        workers: Their states; ``None`` without workers, or if new ones begin the next epoch.
        dataset: The state of one that is read in this process.
    """

    handed_over: int
    ended: bool
    turn: int
    drawn: int
    digest: int
    workers: list[WorkerState | None] | None
    dataset: DatasetState = NO_STATE


class Position:
    """How far the consumer is in one iteration.

    It outlives the iterator, and does not refer to it.

    Args:
        start: What the epoch started from.
        again: Whether its workers had made another epoch before.
        first: Batches handed over by the process that saved the state.
        resumption: How the iterator was resumed, if it was.
    """

    def __init__(self, start: Sources, *, again: bool, first: int = 0, resumption: Resumption | None = None) -> None:
        self.start = start
        self.again = again
        self.base_seed = 0
        self.num_workers = 0
        self._first = first
        self._ahead = 0  # batches drawn ahead of the consumer
        self._drawn_before = 0 if resumption is None else resumption.drawn
        self._indices: Any = None  # drawn last, without workers
        self._drawn = 0
        self._digest, self._turn = (0, 0) if resumption is None else (resumption.indices, resumption.turn)
        self._initial: Sequence[WorkerState | None] | None = None if resumption is None else resumption.workers
        self._meter: Meter | None = None
        self._pipeline: Any = None
        self._fetcher: Any = None  # of an iterable dataset in this process
        self._hands_over: _HandsOver | None = None  # of one in workers
        self._iterable = self._persists = False
        self._epoch = 1  # of the workers' processes
        self._at_close: Any = None
        self._consuming: Any = None  # held while a batch is made in this process
        self._known: dict[int, tuple[int, int, WorkerState]] = {}  # of each worker, by its batches, with their digest
        self._failed = None if resumption is None else resumption.failed
        self.dealt: list[dict[str, Any]] = []  # see redistribution
        self._left = False

    def follow(self, loader: LoaderConfig[Any], iterator: Any) -> None:
        """Follow an iterator that was just begun."""
        host = host_of(iterator)
        meter = self._meter = iterator.meter if host is not iterator else iterator._next_data.meter
        self.base_seed, self.num_workers = int(host._base_seed), int(host._num_workers)
        self._ahead = (loader.prefetch_factor or 2) * self.num_workers
        self._iterable = isinstance(loader.dataset, IterableDataset)
        self._persists = loader.persistent_workers
        self._pipeline = getattr(host, "decode_pipeline", None) if self.num_workers else None
        if not self.num_workers:
            self._consuming = (iterator if host is not iterator else iterator._next_data).consuming
            if self._iterable:
                self._fetcher = host._dataset_fetcher
                meter.before_close = self._keep_states
            host._sampler_iter = map(self._note, host._sampler_iter)
        elif self._pipeline is None:
            if self._iterable:
                counts = [0] * self.num_workers
                host._process_data = self._hands_over = _HandsOver(host, counts, self._turn)
            self._epoch = kept_of(iterator).begun
            meter.before_close = self._keep_states

    def _note(self, indices: Any) -> Any:
        if self._meter is None or not self._meter.ended:
            self._drawn += 1
            self._indices = list(indices) if isinstance(indices, list) else indices  # the dataset may change it
        return indices

    @property
    def ended(self) -> bool:
        """Whether the epoch is over."""
        return self._left or (self._meter is not None and self._meter.ended)

    def leave(self, left: bool, loader: LoaderConfig[Any]) -> None:
        """Note whether the consumer has left the epoch and will begin the next.

        Raises:
            UnknownStateError: It has left early, and persistent workers are ahead of it.
        """
        self._left = left
        if left and self._persists and self.num_workers and self.handed_over != length_of(loader):
            raise UnknownStateError(
                "the loop leaves the epoch before its end, and the workers, which persist, have drawn random numbers "
                "for more batches; use persistent_workers=False"
            )

    @property
    def handed_over(self) -> int:
        """Batches of the epoch that the consumer has."""
        if self._pipeline is not None:
            return int(self._pipeline.handed_over())
        if self._hands_over is not None:
            return self._first + sum(self._hands_over.counts)
        if self.num_workers:
            return self._first + (0 if self._meter is None else self._meter.received)
        at_end = self._iterable and self._meter is not None and self._meter.ended  # it drew once more, for nothing
        return self._first + self._drawn - at_end

    @property
    def drawn(self) -> int:
        """Batches whose indices are drawn; 0 for an iterable dataset."""
        return 0 if self._iterable else max(self._drawn_before, self.handed_over + self._ahead)

    @property
    def turn(self) -> int:
        """Number of the worker that makes the next batch."""
        if self._hands_over is not None:
            return self._hands_over.turn
        return self.handed_over % self.num_workers if self.num_workers else 0

    @property
    def failed(self) -> bool:
        """Whether a worker could not begin with its loaded state."""
        return self._failed is not None and self._failed.is_set()

    def between_batches(self, read: Callable[[], T]) -> T:
        """Return ``read()``, while no other thread makes a batch in this process.

        Waits for one that is being made.

        Raises:
            UnknownStateError: It is this thread that makes one.
        """
        if self._consuming is None:
            return read()
        if self._consuming._is_owned():
            raise UnknownStateError("it was called while this thread made a batch; call it between two batches")
        acquired: list[bool] = []
        try:
            acquired.extend(map(self._consuming.acquire, (True,), (_TURN_S,)))  # in C: an interrupt finds it noted
            if not acquired[0]:
                raise UnknownStateError(f"another thread has been making a batch for {_TURN_S:.0f} s")
            return read()
        finally:
            if acquired and acquired[0]:
                self._consuming.release()

    def read(self, dataset: Any) -> ConsumerPlace:
        """Return where the consumer is; within :meth:`between_batches`.

        Args:
            dataset: The loader's; asked for its state if it is read in this process.

        Raises:
            UnknownStateError: A state is not known.
        """
        for _ in range(_TRIES):
            before = self.handed_over, self.ended
            place, unknown = None, None
            try:
                data = NO_STATE if self.num_workers else self._dataset_state(dataset)
                place = ConsumerPlace(*before, self.turn, self.drawn, *self._states(), data)
            except UnknownStateError as error:
                unknown = error
            if before == (self.handed_over, self.ended):
                break
        else:
            raise UnknownStateError("another thread takes batches so fast that there is no time between two")
        if place is None:
            raise unknown or UnknownStateError("the states cannot be read")
        return place

    def _dataset_state(self, dataset: Any) -> DatasetState:
        if self._iterable and self._at_close is not None:
            found: DatasetState = self._at_close
        else:
            found = DatasetState.of(dataset, self._fetcher)
        if found.error:
            raise UnknownStateError(found.error)
        return found.at_next_epoch() if self.ended else found

    def _states(self) -> tuple[int, list[WorkerState | None] | None]:
        """The digest of the last batch handed over, and the workers' states."""
        if not self.num_workers:
            return (digest_of(self._indices) if self._drawn else self._digest), None
        if self.ended and not self._persists:  # the next epoch has new workers
            return self._digest, None
        if self._at_close is not None:
            return self._states_at_close()
        if self._pipeline is not None:
            digest, states = self._pipeline.states.at(self._pipeline.handed_over())
            return digest or self._digest, [None if state is None else WorkerState(state) for state in states]
        try:
            found = self._workers_states(self._digest)
        except (OSError, UnknownStateError):
            if self._at_close is None:
                raise
        # The garbage collector may have ended the iterator meanwhile, and its file's number may be another's.
        return found if self._at_close is None else self._states_at_close()

    def _states_at_close(self) -> tuple[int, list[WorkerState | None] | None]:
        if isinstance(self._at_close, UnknownStateError):
            raise self._at_close.with_traceback(None)  # which would grow with each call
        return self._at_close  # type: ignore[no-any-return]

    def _workers_states(self, digest: int) -> tuple[int, list[WorkerState | None]]:
        meter = self._meter
        kept = None if meter is None or meter.shared is None else meter.shared.states
        if meter is None or kept is None:
            raise UnknownStateError("the states of the workers cannot be read")
        if self.ended:
            return digest, [self._next_epoch(kept, worker) for worker in range(self.num_workers)]
        made = self._made(meter.received)
        last = (self.turn - 1) % self.num_workers
        states: list[WorkerState | None] = []
        for worker, batches in enumerate(made):
            if not batches:
                states.append(self._at_start(kept, worker))
                continue
            number, latest, state = self._known.get(worker) or (0, 0, WorkerState())
            if number != batches:
                latest, state = self._after_batches(kept, worker, batches)
                self._known[worker] = batches, latest, state
            states.append(state)
            digest = latest if worker == last else digest
        return digest, states

    def _after_batches(self, kept: KeptStates, worker: int, batches: int) -> tuple[int, WorkerState]:
        """The digest of a worker's batch, and its state after it."""
        found = kept.find(worker, self._epoch, batches)
        state = None if found is None else WorkerState.kept(found)
        if found is None or state is None or state.data.error:
            reason = "" if state is None else f": {state.data.error}"
            raise UnknownStateError(f"the state of worker {worker} cannot be read{reason}")
        if self._epoch == 1 or state.data.read_again:
            start = self._at_start(kept, worker) or WorkerState()
            state = replace(state, batches=batches + start.batches)
            if state.data.read_again:
                state = replace(state, generators=start.generators, data=DatasetState(read_again=True))
        return found.digest, state

    def _made(self, received: int) -> list[int]:
        """Batches handed over, by worker."""
        if self._hands_over is not None:
            return self._hands_over.counts
        workers = self.num_workers
        return [len(range((worker - self._first) % workers, received, workers)) for worker in range(workers)]

    def _at_start(self, kept: KeptStates, worker: int) -> WorkerState | None:
        """A worker before its first batch of this iteration."""
        if self._epoch == 1:
            return None if self._initial is None else self._initial[worker]
        found = kept.find(worker, self._epoch, 0)
        if found is None:  # it has yet to begin; what it has kept last may be of the beginning, by now
            found = kept.last(worker)
            if found is not None and found.epoch == self._epoch:
                found = kept.find(worker, self._epoch, 0)
            elif found is not None:
                return self._after(found, worker)
        if found is None:
            raise UnknownStateError(f"the state of worker {worker} cannot be read")
        return self._after(found, worker, begun=True)

    def _next_epoch(self, kept: KeptStates, worker: int) -> WorkerState | None:
        """A worker after the epoch's last batch."""
        found = kept.last(worker)
        if found is not None:
            return self._after(found, worker)
        start = None if self._initial is None else self._initial[worker]  # of the rest it had no batch to make
        return None if start is None else replace(start, batches=0, data=start.data.at_next_epoch())

    @staticmethod
    def _after(found: KeptState, worker: int, *, begun: bool = False) -> WorkerState:
        state = WorkerState.kept(found)
        if state.data.error:
            raise UnknownStateError(f"the state of worker {worker} cannot be read: {state.data.error}")
        return WorkerState(state.generators, 0, state.data if begun else state.data.at_next_epoch())

    def _keep_states(self) -> None:
        if not self.num_workers:
            self._at_close, self._fetcher = DatasetState.copied(self._fetcher.dataset, self._fetcher), None
            return
        try:
            self._at_close = self._states()
        except UnknownStateError as error:
            self._at_close = error


def host_of(iterator: Any) -> Any:
    """Torch's iterator, or the native one, of an iterator of a loader's."""
    return getattr(iterator, "host", iterator)


def kept_of(iterator: Any) -> KeptStates:
    """Where the workers of an iterator keep their states.

    Raises:
        UnknownStateError: Nowhere.
    """
    host = host_of(iterator)
    meter = iterator.meter if host is not iterator else iterator._next_data.meter
    if meter.shared is None or meter.shared.states is None:
        raise UnknownStateError("the states of the workers cannot be read")
    return meter.shared.states  # type: ignore[no-any-return]


def count_epochs(former: Any, make: Callable[[], Any]) -> Any:
    """Return ``make()``, and count the epoch that it may begin with the workers of ``former``."""
    host = None if former is None else host_of(former)
    tasks = getattr(host, "_task_info", None)
    try:
        return make()
    finally:
        if getattr(host, "_task_info", None) is not tasks:  # then torch asks them to resume
            with contextlib.suppress(UnknownStateError):
                kept_of(former).begun += 1
