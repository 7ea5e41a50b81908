"""What a fetch costs, measured where samples are read: in a worker process, or in the main process without workers.

Torch's fetcher calls the dataset and then the collate function; both are timed by the clock in every batch. Some
are looked at closely: how much of their fetch was spent computing, how much waiting for a core, how much waiting for
something else. That costs a few microseconds, so it is for batches that take milliseconds, and a few others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from fastload.stats.shared_counters import FIGURES, SharedCounters
from fastload.stats.stack_sampler import StackSampler

if TYPE_CHECKING:
    from collections.abc import Callable

CLOSELY_S: Final = 0.002
"""A fetch that takes longer is looked at closely each time; the close look costs some 5 µs."""

CLOSELY_EVERY: Final = 64
LOOKER_AFTER_S: Final = 0.15
"""Of fetching, before a thread looks at the stack: not in programs that are over at once."""

(_BATCHES, _IMAGES, _FETCH, _COLLATE, _LOOKED, _BUSY, _QUEUED, _DECODE, _PYTHON) = range(len(FIGURES))


class WorkerCounters:
    """One worker's part of a :class:`SharedCounters`; lives in the worker.

    Args:
        board: Shared with the process that trains.
        worker: Whose column.
        whole_process: Whether other threads of this process compute for the fetch too: in a worker process all do.
    """

    def __init__(self, board: SharedCounters, worker: int, *, whole_process: bool) -> None:
        self._board = board
        self._worker = worker
        self._computed = time.process_time if whole_process else time.thread_time
        self.is_fetching = False
        self.is_inside = False  # between begin() and end() or fail()
        self._fetched_s = 0.0  # in all
        self._last_s = 0.0
        self._count = 0
        self._closely = False
        self._began = self._split = self._busy = self._queued = 0.0
        self._images = 1
        self._queue: int | None = None
        self._waits: dict[str, float] = {}
        self._computes: dict[str, float] = {}
        self._looker = StackSampler(self._asks, self._saw) if hasattr(time, "pthread_getcpuclockid") else None

    def begin(self) -> None:
        """A fetch begins."""
        self.is_inside = True
        self._count += 1
        self._closely = self._last_s > CLOSELY_S or self._count % CLOSELY_EVERY == 2
        self._images = 1
        self._split = 0.0
        self.is_fetching = True
        if self._closely:
            self._busy, self._queued = self._computed(), self._in_queue()
        self._began = time.monotonic()

    def collates(self, samples: Any, batched: bool) -> None:
        """Samples have been read; the collate function is about to run."""
        if batched:
            with contextlib.suppress(TypeError):
                self._images = len(samples)
        self._split = now = time.monotonic()
        self.is_fetching = False
        self._last_s = took = now - self._began
        board, worker = self._board, self._worker
        board.add(worker, _FETCH, took)
        if self._closely:
            busy = min(took, self._computed() - self._busy)
            board.add(worker, _LOOKED, took)
            board.add(worker, _BUSY, busy)
            board.add(worker, _QUEUED, min(took - busy, self._in_queue() - self._queued))
        self._fetched_s += took
        if self._looker is not None and self._fetched_s > LOOKER_AFTER_S:
            self._look()

    def end(self, batch: int | None) -> None:
        """A batch is made."""
        if not self._split:  # nobody said when it was collated
            self.collates((), False)
        self.is_fetching = self.is_inside = False
        now = time.monotonic()
        split = self._split
        board, worker = self._board, self._worker
        board.add(worker, _COLLATE, now - split)
        board.add(worker, _IMAGES, self._images)
        if batch is not None:
            board.note(batch, self._images, self._began, split, now)
        board.add(worker, _BATCHES, 1)

    def fail(self) -> None:
        """The batch is an error, or the end of a stream."""
        self.is_fetching = self.is_inside = False

    def close(self) -> None:
        """Stop looking. Idempotent."""
        if self._looker is not None:
            self._looker.stop()
            self._looker = None

    def _in_queue(self) -> float:
        """Seconds that this thread has waited for a core, as the scheduler counts them; 0 where it does not."""
        if self._queue is None:
            self._queue = -1
            with contextlib.suppress(OSError):
                self._queue = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                weakref.finalize(self, os.close, self._queue)
        if self._queue < 0:
            return 0.0
        try:
            return int(os.pread(self._queue, 64, 0).split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            self._queue = -1
            return 0.0

    def _look(self) -> None:
        looker = self._looker
        if looker is not None:
            if looker.is_done:
                self.close()
            else:
                looker.start()

    def _asks(self) -> bool:
        return self.is_fetching

    def _saw(self, computed_s: float, waited_s: float, in_codec: bool, place: str) -> None:
        self._board.add(self._worker, _DECODE if in_codec else _PYTHON, computed_s)
        for line, (places, seconds) in enumerate(((self._waits, waited_s), (self._computes, computed_s))):
            places[place] = places.get(place, 0.0) + seconds
            self._board.write(self._worker, line, max(places, key=lambda name: places[name]))


class _Collate:
    """Stands before a fetcher's collate function and tells the sheet when it is called."""

    def __init__(self, collate_fn: Callable[[Any], Any], sheet: WorkerCounters, batched: bool) -> None:
        self.collate_fn = collate_fn
        self._sheet = sheet
        self._batched = batched

    def __call__(self, samples: Any) -> Any:
        self._sheet.collates(samples, self._batched)
        return self.collate_fn(samples)


def _listen(fetcher: Any, sheet: WorkerCounters) -> None:
    """Have ``sheet`` told when the fetcher collates, if it is as torch's are; else all counts as fetching."""
    collate_fn = getattr(fetcher, "collate_fn", None)
    if collate_fn is not None and type(collate_fn) is not _Collate:
        with contextlib.suppress(AttributeError, TypeError):  # no place for it
            fetcher.collate_fn = _Collate(collate_fn, sheet, getattr(fetcher, "auto_collation", True))


class MeasuredWorker:
    """A worker's first call: has its fetches measured, then runs the user's ``worker_init_fn``. Picklable if that is.

    Args:
        worker_init_fn: The user's.
        board: Where the figures go.
    """

    def __init__(self, worker_init_fn: Callable[[int], None] | None, board: SharedCounters) -> None:
        self.worker_init_fn = worker_init_fn
        self.board = board

    def __call__(self, worker_id: int) -> None:  # noqa: D102
        measure_class(WorkerCounters(self.board, worker_id, whole_process=True))
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


def measure_class(sheet: WorkerCounters) -> None:
    """Measure every fetch in this process, which is a worker's. A torch without such fetchers is left alone."""
    try:
        from torch.utils.data._utils import fetch as torch_fetch
    except ImportError:
        return
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        kind = getattr(torch_fetch, name, None)
        if kind is not None and hasattr(kind, "fetch"):
            kind.fetch = _measured(kind.fetch, sheet)


def _measured(fetch: Callable[[Any, Any], Any], sheet: WorkerCounters) -> Callable[[Any, Any], Any]:
    @functools.wraps(fetch)
    def fetch_measured(self: Any, possibly_batched_index: Any) -> Any:
        if sheet.is_inside:  # a loader that the dataset iterates while it makes a sample
            return fetch(self, possibly_batched_index)
        caller = sys._getframe(1)  # torch's loop: it alone knows the batch's number
        while caller.f_code.co_name != "_worker_loop" and caller.f_back is not None:
            caller = caller.f_back
        batch = caller.f_locals.get("idx")
        _listen(self, sheet)
        sheet.begin()
        try:
            data = fetch(self, possibly_batched_index)
        except BaseException:
            sheet.fail()
            raise
        sheet.end(batch if isinstance(batch, int) else None)
        return data

    return fetch_measured


class TimedFetch:
    """Stands for the ``fetch`` of one fetcher, in the main process. Knows the fetcher weakly: no cycle keeps it."""

    def __init__(self, fetcher: Any, sheet: WorkerCounters) -> None:
        self._fetcher = weakref.ref(fetcher)
        self._sheet = sheet
        self._num_yielded = 0  # the batch's number; a profiler's range looks for it under this name
        _listen(fetcher, sheet)

    def __call__(self, possibly_batched_index: Any) -> Any:  # noqa: D102
        fetcher = self._fetcher()
        sheet = self._sheet
        sheet.begin()
        try:
            data = type(fetcher).fetch(fetcher, possibly_batched_index)  # type: ignore[union-attr]
        except BaseException:
            sheet.fail()
            raise
        sheet.end(self._num_yielded)
        self._num_yielded += 1
        return data
