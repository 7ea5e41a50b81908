"""The consumer's side of the statistics: how long it waited for each batch, and where that batch was meanwhile.

A wait is divided by the path of the batch that was waited for: the part of it during which its samples were read
counts as ``fetch``, and so on. So in the end the figures say what the consumer waited *for*, which is not the same as
what took long: a stage that takes long in twelve workers at a time may hold nobody up.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from fastload.stats.fetch_timer import TimedFetch, WorkerCounters
from fastload.stats.shared_counters import FIGURES, SharedCounters
from fastload.stats.stats import Totals
from fastload.torch_workers.processes import after_error, restart_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

AT_ONCE_S: Final = 30e-6
"""A shorter wait is not divided: the batch was there."""


class Meter:
    """Counts for one iterator, which one thread at a time consumes. Nobody else writes.

    Args:
        board: What the workers say; ``None`` without any.
        batch_size: Images per batch, where nobody says how many there were.
        source: More counts, of whoever makes the batches where no worker does.
        waiting: How many of them are made and not taken, likewise.
        on_device: Whether those are on the device already.
    """

    def __init__(
        self,
        board: SharedCounters | None,
        batch_size: int | None,
        source: Callable[[], Totals] | None = None,
        *,
        waiting: Callable[[], int] | None = None,
        on_device: bool = False,
    ) -> None:
        self.board = board
        self.on_device = on_device
        self._source = source
        self._waiting = waiting
        self.sheet: WorkerCounters | None = None
        self.counts = Totals()
        self._batch_size = batch_size or 1
        self._got = 0.0  # when the last batch was handed over; 0 at the beginning of an epoch
        self._step_s = 0.0  # from then until the next was asked for
        self._taken = 0
        self._base = 0.0

    def begin_epoch(self) -> None:
        """The next batch is the first of an epoch."""
        self._got = 0.0
        self._taken = 0
        self._base = self.board.total("batches") if self.board is not None else 0.0

    def ask(self) -> float:
        """The consumer asks for a batch. Returns the time, for :meth:`got`."""
        now = time.monotonic()
        if self._got:
            self._step_s = now - self._got
            self.counts["step_s"] += self._step_s
            self.counts["asked"] += 1
            self.counts["ready_sum"] += self.ready()
        return now

    def ready(self) -> float:
        """Batches that are made and that the consumer has not taken."""
        if self.board is None:
            return 0.0 if self._waiting is None else float(self._waiting())
        return max(0.0, self.board.total("batches") - self._base - self._taken)

    def got(
        self, asked: float, batch: int | None, stages_after: Iterable[tuple[str, float]] = (), images: int = 0
    ) -> None:
        """The consumer has got it.

        Args:
            asked: From :meth:`ask`.
            batch: Its number, as the board knows it.
            stages_after: Stages after it was made, each with its end. What remains is the way to the consumer.
            images: How many it has, if the board does not know it.
        """
        now = time.monotonic()
        counts = self.counts
        noted = self.board.noted(batch) if self.board is not None and batch is not None else None
        counts["batches"] += 1
        counts["images"] += noted[0] if noted is not None else images or self._batch_size
        first, self._got = not self._got, now
        self._taken += 1
        if first:
            counts["startup_s"] += now - asked
            counts["epochs"] += 1
            return
        counts["wait_s"] += now - asked
        if now - asked > AT_ONCE_S:
            took_s = self._step_s + now - asked
            stages = list(stages_after) if noted is None else [*_made(noted), *stages_after]
            for stage, until in stages:
                if until > asked:
                    end = min(until, now)
                    counts[f"waited:{stage}"] += end - asked
                    asked = end
                    if stage == "gpu":  # it has been more than two batches behind for all of the step
                        counts["behind_s"] += took_s
            counts["waited:hand-over"] += now - asked

    def stop(self) -> None:
        """An error, or the end of the epoch: what comes next is no step on a batch."""
        self._got = 0.0

    def totals(self) -> Totals:
        """All counts so far, those of the workers included."""
        totals = self.counts.copy()
        if self._source is not None:
            totals.add(self._source())
        board = self.board
        if board is not None:
            for figure in FIGURES:
                totals[f"made:{figure}"] += board.total(figure)
        return totals

    def places(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Where the workers mostly waited, and where they mostly computed, as far as somebody looked."""
        if self.board is None:
            return (), ()
        lines = [[self.board.read(worker, line) for worker in range(self.board.workers)] for line in (0, 1)]
        waits, computes = (tuple(text for text in line if text) for line in lines)
        return waits, computes

    def close(self) -> None:
        """Let go of the board. Idempotent."""
        board, self.board = self.board, None
        if self.sheet is not None:
            self.sheet.close()
        if board is not None:
            board.close()


def _made(noted: tuple[int, float, float, float]) -> list[tuple[str, float]]:
    _, fetch, collate, made = noted
    return [("before", fetch), ("fetch", collate), ("collate", made)]


class NextData:
    """Stands for the ``_next_data`` of one of torch's iterators and measures the wait. Knows the iterator weakly.

    ``__next__`` of torch's iterators calls ``self._next_data()``, so that the iterator stays of torch's own type.
    Threads that share the iterator take turns: in torch's own code, all but one of them wait for ever at the end.
    """

    def __init__(self, iterator: Any, meter: Meter) -> None:
        self._iterator = weakref.ref(iterator)
        self.meter = meter
        self._in_order = getattr(iterator, "_in_order", True)
        self._workers = hasattr(iterator, "_rcvd_idx")
        self._line = getattr(iterator, "_line", None)
        self._consuming = threading.RLock()

    def __call__(self) -> Any:  # noqa: D102
        with self._consuming:
            return self._next_data()

    def _next_data(self) -> Any:
        iterator: Any = self._iterator()
        meter = self.meter
        asked = meter.ask()
        try:
            data = type(iterator)._next_data(iterator)
        except BaseException as error:
            meter.stop()
            if not isinstance(error, StopIteration):
                after_error(iterator, error)
            raise
        if self._line is not None:
            line = self._line
            meter.got(asked, None, (("decode", line.decoded_at), ("epilogue", line.made_at)), line.images)
        else:
            batch = iterator._rcvd_idx - 1 if self._workers else iterator._num_yielded
            meter.got(asked, batch if self._in_order else None)
        return data


def board_for(loader: Any) -> SharedCounters:
    """Pages for the workers of one iterator of ``loader``."""
    workers = loader.num_workers
    if not workers:
        return SharedCounters(1, 2)
    context = loader.multiprocessing_context
    method = context.get_start_method() if context is not None else None
    if method is None:
        import multiprocessing

        method = multiprocessing.get_start_method()
    return SharedCounters(workers, workers * (loader.prefetch_factor or 2) + 2, inherited=method == "fork")


def measure_here(iterator: Any, meter: Meter) -> None:
    """Measure the fetches of an iterator that reads in the main process."""
    fetcher = getattr(iterator, "_dataset_fetcher", None)
    if fetcher is not None and meter.board is not None:
        meter.sheet = WorkerCounters(meter.board, 0, whole_process=False)
        fetcher.fetch = TimedFetch(fetcher, meter.sheet)


def measure(iterator: Any, meter: Meter) -> Meter:
    """Have ``meter`` measure one of torch's own iterators, or one that is derived from torch's."""
    measure_here(iterator, meter)
    iterator._next_data = NextData(iterator, meter)
    return meter


def go_on(iterator: Any, loader: Any) -> Any:
    """Begin another epoch of a measured iterator whose workers persist."""
    try:
        restart_workers(iterator, lambda: iterator._reset(loader))
    except BaseException:
        if getattr(iterator, "_shutdown", False):  # the next epoch takes new workers
            loader._iterator = None
        raise
    if isinstance(next_data := vars(iterator).get("_next_data"), NextData):
        next_data.meter.begin_epoch()
    return iterator


class Meters:
    """All meters of one loader: those of live iterators, and what the others came to. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run in a thread that is inside
        self._pid = os.getpid()
        self._live: dict[int, Meter] = {}
        self._number = 0
        self._before = Totals()
        self._places: tuple[tuple[str, ...], tuple[str, ...]] = (), ()

    def open(self, meter: Meter) -> Callable[[], None]:
        """Count ``meter`` in. Returns how to count it out, once its iterator is gone."""
        with self._lock:
            self._number += 1
            number = self._number
            self._live[number] = meter
        return lambda: self._retire(number)

    def _retire(self, number: int) -> None:
        if os.getpid() != self._pid:  # a forked child: the lock may have been held, and the figures are its parent's
            return
        with self._lock:
            meter = self._live.pop(number, None)
            if meter is None:
                return
            self._before.add(meter.totals())
            places = meter.places()
            if any(places):
                self._places = places
        meter.close()

    def totals(self) -> Totals:
        """Over all epochs."""
        with self._lock:
            totals = self._before.copy()
            for meter in self._live.values():
                totals.add(meter.totals())
        return totals

    def places(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See :meth:`Meter.places`; of the last iterator in which somebody looked."""
        with self._lock:
            for meter in reversed(list(self._live.values())):
                places = meter.places()
                if any(places):
                    return places
            return self._places

    def ready(self) -> tuple[int, int]:
        """Batches made and not taken, now: all of them, and those that went to the device as they were made."""
        with self._lock:
            counts = [(meter.ready(), meter.on_device) for meter in self._live.values()]
        return int(sum(count for count, _ in counts)), int(sum(count for count, on_device in counts if on_device))
