"""Time fetches where samples are read: in a worker, or in the main process.

Torch's fetcher calls the dataset, then the collate function; both are timed in every batch. For some batches the fetch
is also divided into time spent computing, waiting for a core, and waiting for something else. That costs a few
microseconds, so it is done for batches that take milliseconds and for a few others.
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
from fastload.torch_workers.signals import Finalizer

if TYPE_CHECKING:
    from collections.abc import Callable

CLOSELY_S: Final = 0.002
"""After a fetch longer than this, the next one is divided, at about 5 µs."""

CLOSELY_EVERY: Final = 64
SAMPLER_AFTER_S: Final = 0.15
"""Seconds of fetching before the stack sampler starts, so that short programs have none."""

(_BATCHES, _IMAGES, _FETCH, _COLLATE, _LOOKED, _BUSY, _QUEUED, _DECODE, _PYTHON) = range(len(FIGURES))


class WorkerCounters:
    """Writes one worker's column of a :class:`SharedCounters`; used in the worker.

    Args:
        shared: Shared with the training process.
        worker: The column's number.
        whole_process: Whether to count the processor time of all threads, as in a worker process.
    """

    def __init__(self, shared: SharedCounters, worker: int, *, whole_process: bool) -> None:
        self._shared = shared
        self._worker = worker
        self._computed = time.process_time if whole_process else time.thread_time
        self.is_fetching = False
        self.is_inside = False  # between begin() and end() or fail()
        self._fetched_s = 0.0  # total
        self._last_s = 0.0
        self._count = 0
        self._is_divided = False
        self._began = self._split = self._busy = self._queued = 0.0
        self._images = 1
        self._queue: int | None = None
        self._waits: dict[str, float] = {}
        self._computes: dict[str, float] = {}
        self._sampler = (
            StackSampler(self._is_fetching, self._record) if hasattr(time, "pthread_getcpuclockid") else None
        )

    def begin(self) -> None:
        """Record that a fetch begins."""
        self.is_inside = True
        self._count += 1
        self._is_divided = self._last_s > CLOSELY_S or self._count % CLOSELY_EVERY == 2
        self._images = 1
        self._split = 0.0
        self.is_fetching = True
        if self._is_divided:
            self._busy, self._queued = self._computed(), self._in_queue()
        self._began = time.monotonic()

    def collates(self, samples: Any, batched: bool) -> None:
        """Record that samples have been read and the collate function is about to run."""
        if batched:
            with contextlib.suppress(TypeError):
                self._images = len(samples)
        self._split = now = time.monotonic()
        self.is_fetching = False
        self._last_s = took = now - self._began
        shared, worker = self._shared, self._worker
        shared.add(worker, _FETCH, took)
        if self._is_divided:
            busy = min(took, self._computed() - self._busy)
            shared.add(worker, _LOOKED, took)
            shared.add(worker, _BUSY, busy)
            shared.add(worker, _QUEUED, min(took - busy, self._in_queue() - self._queued))
        self._fetched_s += took
        if self._sampler is not None and self._fetched_s > SAMPLER_AFTER_S:
            self._sample_stack()

    def end(self, batch: int | None) -> None:
        """Record that the batch is complete."""
        if not self._split:  # the collate function was not wrapped
            self.collates((), False)
        self.is_fetching = self.is_inside = False
        now = time.monotonic()
        split = self._split
        shared, worker = self._shared, self._worker
        shared.add(worker, _COLLATE, now - split)
        shared.add(worker, _IMAGES, self._images)
        if batch is not None:
            shared.note(batch, self._images, self._began, split, now)
        shared.add(worker, _BATCHES, 1)

    def fail(self) -> None:
        """Record that the fetch raised an error or reached the end of a stream."""
        self.is_fetching = self.is_inside = False

    def close(self) -> None:
        """Stop sampling the stack. Idempotent."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None

    def _in_queue(self) -> float:
        """Seconds this thread has waited for a core, by the scheduler; 0 if unknown."""
        if self._queue is None:
            self._queue = -1
            with contextlib.suppress(OSError):
                self._queue = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
                Finalizer(self, os.close, self._queue)
        if self._queue < 0:
            return 0.0
        try:
            return int(os.pread(self._queue, 64, 0).split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            self._queue = -1
            return 0.0

    def _sample_stack(self) -> None:
        sampler = self._sampler
        if sampler is not None:
            if sampler.is_done:
                self.close()
            else:
                sampler.start()

    def _is_fetching(self) -> bool:
        return self.is_fetching

    def _record(self, computed_s: float, waited_s: float, in_codec: bool, place: str) -> None:
        self._shared.add(self._worker, _DECODE if in_codec else _PYTHON, computed_s)
        for line, (places, seconds) in enumerate(((self._waits, waited_s), (self._computes, computed_s))):
            places[place] = places.get(place, 0.0) + seconds
            self._shared.write(self._worker, line, max(places, key=lambda name: places[name]))


class _Collate:
    """Wraps a fetcher's collate function and records when it is called."""

    def __init__(self, collate_fn: Callable[[Any], Any], counters: WorkerCounters, batched: bool) -> None:
        self.collate_fn = collate_fn
        self._counters = counters
        self._batched = batched

    def __call__(self, samples: Any) -> Any:
        self._counters.collates(samples, self._batched)
        return self.collate_fn(samples)


def _listen(fetcher: Any, counters: WorkerCounters) -> None:
    """Wrap the fetcher's collate function; without one, all time counts as fetching."""
    collate_fn = getattr(fetcher, "collate_fn", None)
    if collate_fn is not None and type(collate_fn) is not _Collate:
        with contextlib.suppress(AttributeError, TypeError):  # the attribute cannot be set
            fetcher.collate_fn = _Collate(collate_fn, counters, getattr(fetcher, "auto_collation", True))


class MeasuredWorker:
    """A ``worker_init_fn`` that measures the worker's fetches, then calls the user's.

    Picklable if the user's is.

    Args:
        worker_init_fn: The user's.
        shared: Receives the figures.
    """

    def __init__(self, worker_init_fn: Callable[[int], None] | None, shared: SharedCounters) -> None:
        self.worker_init_fn = worker_init_fn
        self.shared = shared

    def __call__(self, worker_id: int) -> None:  # noqa: D102
        measure_class(WorkerCounters(self.shared, worker_id, whole_process=True))
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


def measure_class(counters: WorkerCounters) -> None:
    """Measure every fetch in this worker process. Does nothing if torch lacks these fetchers."""
    try:
        from torch.utils.data._utils import fetch as torch_fetch
    except ImportError:
        return
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        kind = getattr(torch_fetch, name, None)
        if kind is not None and hasattr(kind, "fetch"):
            kind.fetch = _measured(kind.fetch, counters)


def _measured(fetch: Callable[[Any, Any], Any], counters: WorkerCounters) -> Callable[[Any, Any], Any]:
    @functools.wraps(fetch)
    def fetch_measured(self: Any, possibly_batched_index: Any, *, __fastload__: Any = None) -> Any:
        if counters.is_inside:  # the dataset iterates a loader of its own to make a sample
            return fetch(self, possibly_batched_index)
        caller = sys._getframe(1)  # torch's loop: it alone knows the batch's number
        while caller.f_code.co_name != "_worker_loop" and caller.f_back is not None:
            caller = caller.f_back
        batch = caller.f_locals.get("idx")
        _listen(self, counters)
        counters.begin()
        try:
            data = fetch(self, possibly_batched_index)
        except BaseException:
            counters.fail()
            raise
        counters.end(batch if isinstance(batch, int) else None)
        return data

    return fetch_measured


class TimedFetch:
    """Replaces one fetcher's ``fetch`` in the main process. Holds it weakly, without a cycle."""

    def __init__(self, fetcher: Any, counters: WorkerCounters) -> None:
        self._fetcher = weakref.ref(fetcher)
        self._counters = counters
        self._num_yielded = 0  # the batch's number; nvtx.stages reads it under this name
        _listen(fetcher, counters)

    def __call__(self, possibly_batched_index: Any) -> Any:  # noqa: D102
        fetcher = self._fetcher()
        counters = self._counters
        counters.begin()
        try:
            data = type(fetcher).fetch(fetcher, possibly_batched_index)  # type: ignore[union-attr]
        except BaseException:
            counters.fail()
            raise
        counters.end(self._num_yielded)
        self._num_yielded += 1
        return data
