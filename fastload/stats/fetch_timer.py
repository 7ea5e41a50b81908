"""Time fetches where samples are read: in a worker, or in the main process.

Torch's fetcher calls the dataset, then the collate function; both are timed in every batch. For some batches the fetch
is also divided into time spent computing, waiting for a core, and waiting for something else. That costs a few
microseconds, so it is done for batches that take milliseconds and for a few others.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from fastload.stats.shared_counters import FIGURES, SharedCounters
from fastload.stats.stack_sampler import StackSampler
from fastload.torch_workers.signals import Finalizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.memory.rows import RowBatches

CLOSELY_S: Final = 0.002  # length of a fetch after which the next one is divided, which takes about 5 µs
CLOSELY_EVERY: Final = 64
SAMPLER_AFTER_S: Final = 0.15  # seconds of fetching before the stack sampler starts, so that short programs have none

(_BATCHES, _IMAGES, _FETCH, _COLLATE, _LOOKED, _BUSY, _QUEUED, _DECODE, _PYTHON, _SAMPLES, *_REST) = range(len(FIGURES))
(_DEFERRED, _LOOKED_AT, _PAINTED) = _REST


class WorkerCounters:
    """Writes one worker's column of a :class:`SharedCounters`; used in the worker.

    ``whole_process`` counts the processor time of all threads, as in a worker process.
    """

    __slots__ = (
        *("_shared", "_worker", "_computed", "is_fetching", "began", "split", "made", "images"),
        *("timed_batches", "timed_images", "timed_fetch_s", "timed_collate_s", "_fetched_s", "_last_s", "_count"),
        *("is_divided", "_busy", "_queued", "_queue", "_waits", "_computes", "_sampler", "_is_refused", "__weakref__"),
    )

    def __init__(self, shared: SharedCounters, worker: int, *, whole_process: bool) -> None:
        self._shared = shared
        self._worker = worker
        self._computed = time.process_time if whole_process else time.thread_time
        self.is_fetching = False
        self.began = self.split = self.made = 0.0  # when the last batch was begun, read and complete
        self.images = 1
        self.timed_batches = self.timed_images = 0  # this and the next line: of batches that were only timed
        self.timed_fetch_s = self.timed_collate_s = 0.0
        self._fetched_s = 0.0  # total
        self._last_s = 0.0
        self._count = 0
        self.is_divided = self._is_refused = False
        self._busy = self._queued = 0.0
        self._queue: int | None = None
        self._waits: dict[str, float] = {}
        self._computes: dict[str, float] = {}
        sampled = shared.sampled and hasattr(time, "pthread_getcpuclockid")
        self._sampler = StackSampler(lambda: self.is_fetching, self._record) if sampled else None

    def begin(self, *, closely: bool = False) -> None:
        """Record that a fetch begins, which is divided if ``closely``, and otherwise now and then."""
        self._count += 1
        self.is_divided = closely or self._last_s > CLOSELY_S or self._count % CLOSELY_EVERY == 2
        self.images = 1
        self.split = 0.0
        self.is_fetching = True
        if self.is_divided:
            self._busy, self._queued = self._computed(), self._in_queue()
        self.began = time.monotonic()

    def collates(self) -> None:
        """Record that samples have been read and the collate function is about to run."""
        self.split = time.monotonic()
        self.is_fetching = False
        if self.is_divided:
            self._busy, self._queued = self._computed() - self._busy, self._in_queue() - self._queued

    def paint(self, seconds: float) -> None:
        """Count time of collating as part of the fetch: pixels were made then."""
        if self.split:
            self.split += seconds
            if self.is_divided:
                self._busy += seconds
                self._shared.add(self._worker, _PAINTED, seconds)

    def end(self, batch: int | None) -> None:
        """Record that the batch is complete."""
        if not self.split:  # the collate function was not wrapped
            self.collates()
        self.is_fetching = False
        self.made = now = time.monotonic()
        split = self.split
        self._last_s = took = split - self.began
        shared, worker = self._shared, self._worker
        shared.add(worker, _FETCH, took)
        shared.add(worker, _COLLATE, now - split)
        shared.add(worker, _IMAGES, self.images)
        if self.is_divided:
            busy = min(took, self._busy)
            shared.add(worker, _LOOKED, took)
            shared.add(worker, _BUSY, busy)
            shared.add(worker, _QUEUED, min(took - busy, self._queued))
        if batch is not None:
            shared.note(batch, self.images, self.began, split, now)
        shared.add(worker, _BATCHES, 1)
        self._fetched_s += took
        if (sampler := self._sampler) is not None and self._fetched_s > SAMPLER_AFTER_S:
            if sampler.is_done:
                self.close()
            else:
                sampler.start()

    @property
    def is_quick(self) -> bool:
        """Whether the last fetch that was not only timed took no longer than :data:`CLOSELY_S`."""
        return self._last_s <= CLOSELY_S

    def fail(self) -> None:
        """Record that the fetch raised an error or reached the end of a stream."""
        self.is_fetching = False

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

    def note_deferred(self, images: int, looked_at: int, place: str) -> None:
        """Record images that were deferred, looks at their pixels, and where most were."""
        self._shared.add(self._worker, _DEFERRED, images)
        if looked_at:
            self._shared.add(self._worker, _LOOKED_AT, looked_at)
            self._shared.write(self._worker, 2, place)

    def note_refused(self, why: str) -> None:
        """Record why samples are not made natively any more."""
        if not self._is_refused:
            self._is_refused = True
            self._shared.write(self._worker, 3, why)

    def _record(self, computed_s: float, waited_s: float, in_codec: bool, place: str) -> None:
        self._shared.add(self._worker, _SAMPLES, 1)
        self._shared.add(self._worker, _DECODE if in_codec else _PYTHON, computed_s)
        for line, (places, seconds) in enumerate(((self._waits, waited_s), (self._computes, computed_s))):
            places[place] = places.get(place, 0.0) + seconds
            self._shared.write(self._worker, line, max(places, key=lambda name: places[name]))


class _Collate:
    """Wraps a fetcher's collate function and records when it is called."""

    __slots__ = ("_batched", "_counters", "collate_fn")

    def __init__(self, collate_fn: Callable[[Any], Any], counters: WorkerCounters, batched: bool) -> None:
        self.collate_fn = collate_fn
        self._counters = counters
        self._batched = batched

    def __call__(self, samples: Any) -> Any:
        counters = self._counters
        if counters.is_divided:
            counters.collates()
        else:  # the same, without a call
            counters.split = time.monotonic()
            counters.is_fetching = False
        if self._batched:
            try:  # not suppress(), which takes longer than the rest
                counters.images = len(samples)
            except TypeError:
                counters.images = 1
        return self.collate_fn(samples)


def listen(fetcher: Any, counters: WorkerCounters) -> None:
    """Wrap the fetcher's collate function; without one, all time counts as fetching."""
    collate_fn = getattr(fetcher, "collate_fn", None)
    if collate_fn is not None and type(collate_fn) is not _Collate:
        with contextlib.suppress(AttributeError, TypeError):  # the attribute cannot be set
            fetcher.collate_fn = _Collate(collate_fn, counters, getattr(fetcher, "auto_collation", True))


class TimedFetch:
    """Replaces one fetcher's ``fetch`` in the main process.

    It asks ``rows`` before, and holds the fetcher weakly, without a cycle. Most quick batches are only timed: one of
    small rows takes 0.07 ms, of which all figures would be 5%.
    """

    __slots__ = ("_counters", "_fetcher", "_num_yielded", "_only_timed", "_rows")

    def __init__(self, fetcher: Any, counters: WorkerCounters, rows: RowBatches | None = None) -> None:
        self._rows = rows
        self._fetcher = weakref.ref(fetcher)
        self._counters = counters
        self._num_yielded = 0  # the batch's number; nvtx.stages reads it under this name
        self._only_timed = 0  # number of batches from now on
        listen(fetcher, counters)

    def __call__(self, possibly_batched_index: Any) -> Any:  # noqa: D102
        fetcher = self._fetcher()
        if not self._only_timed:
            return self._closely(fetcher, possibly_batched_index)
        counters, rows = self._counters, self._rows
        counters.is_divided, counters.split, counters.is_fetching = False, 0.0, True
        counters.began = began = time.monotonic()
        try:
            fetch = type(fetcher).fetch  # type: ignore[union-attr]
            if rows is None or (data := rows.make(fetch, fetcher, possibly_batched_index)) is None:
                data = fetch(fetcher, possibly_batched_index)
            else:
                counters.images = len(possibly_batched_index)
        except BaseException:
            counters.fail()
            raise
        counters.made = made = time.monotonic()
        if not counters.split:  # the collate function is not wrapped
            counters.split, counters.is_fetching = made, False
        counters.timed_fetch_s += (took := counters.split - began)
        counters.timed_collate_s += made - counters.split
        counters.timed_images += counters.images
        counters.timed_batches += 1
        self._only_timed = 0 if took > CLOSELY_S else self._only_timed - 1
        self._num_yielded += 1
        return data

    def _closely(self, fetcher: Any, indices: Any) -> Any:
        counters, rows, fetch = self._counters, self._rows, type(fetcher).fetch
        counters.begin(closely=self._num_yielded > 0)
        try:
            if rows is None or (data := rows.make(fetch, fetcher, indices)) is None:
                data = fetch(fetcher, indices)
            else:
                counters.images = len(indices)
        except BaseException:
            counters.fail()
            raise
        counters.end(self._num_yielded)
        if self._num_yielded and counters.is_quick:
            self._only_timed = CLOSELY_EVERY - 1
        self._num_yielded += 1
        return data
