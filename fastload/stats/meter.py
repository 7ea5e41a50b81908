"""The consumer's statistics: how long it waited for each batch, and for which stage.

A wait is divided by the stages of the batch that was waited for: the part during which its samples were read counts as
``fetch``, and so on. So the figures say what the consumer waited *for*, which is not the same as what took long: a slow
stage that runs in twelve workers at once may delay nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import IterableDataset

from fastload.memory.kept_states import KeptStates
from fastload.memory.rows import RowBatches
from fastload.stats.fetch_timer import TimedFetch, WorkerCounters
from fastload.stats.shared_counters import FIGURES, SharedCounters
from fastload.stats.stack_sampler import SAMPLES
from fastload.stats.stats import Places, Totals
from fastload.stats.steady_state import BLOCK_S
from fastload.torch_workers.processes import after_error, restart_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastload.stats.steady_state import SteadyState

_STAGES_HERE: Final = ("before", "fetch", "collate", "hand-over")
AT_ONCE_S: Final = 30e-6  # shortest wait that is divided; in a shorter one the batch was ready


class Meter:
    """Counts for one iterator, written only by the thread that consumes it.

    Args:
        shared: The workers' counts; ``None`` without workers.
        batch_size: Images per batch, if the batch's own count is unknown.
        source: Returns the counts of an engine without workers.
        waiting: Returns how many batches that engine has ready.
        on_device: Whether those batches are on the device already.
    """

    __slots__ = (
        *("shared", "on_device", "_source", "_waiting", "worker_counters", "counts", "batches", "images", "asked"),
        *("steps_s", "waits_s", "ready_sum", "before_s", "fetch_s", "collate_s", "rest_s", "_batch_size", "got_at"),
        *("_step_s", "taken", "received", "ended", "before_close", "_begin_base", "steady"),
    )

    def __init__(
        self,
        shared: SharedCounters | None,
        batch_size: int | None,
        source: Callable[[], Totals] | None = None,
        *,
        waiting: Callable[[], int] | None = None,
        on_device: bool = False,
    ) -> None:
        self.shared = shared
        self.on_device = on_device
        self._source = source
        self._waiting = waiting
        self.worker_counters: WorkerCounters | None = None
        self.counts = Totals()
        self.batches = self.images = self.asked = 0  # counts, too, as the next lines: those of every batch
        self.steps_s = self.waits_s = self.ready_sum = 0.0
        self.before_s = self.fetch_s = self.collate_s = self.rest_s = 0.0  # of waits for what is made in this process
        self._batch_size = batch_size or 1
        self.got_at = 0.0  # when the last batch was handed over; 0 at the start of an epoch
        self._step_s = 0.0  # from then until the next request
        self.taken = 0  # this and the next two lines: of this epoch
        self.received = 0  # torch's number of the next batch of its workers
        self.ended = False
        self.before_close: Callable[[], None] | None = None
        self._begin_base = 0.0
        self.steady: SteadyState | None = None  # of the loader

    @property
    def made_ahead(self) -> tuple[int, int]:
        """Number of workers whose batches come in turn, and of batches that they make ahead."""
        if self.shared is None or self.worker_counters is not None:
            return 1, 2
        return self.shared.workers, self.shared.in_flight

    def begin_epoch(self) -> None:
        """Treat the next batch as the first of an epoch."""
        self.got_at = 0.0
        self.taken = self.received = 0
        self.ended = False
        self._begin_base = self.shared.total("batches") if self.shared is not None else 0.0

    def ask(self) -> float:
        """Record that the consumer asks for a batch. Returns the time, for :meth:`got`."""
        now = time.monotonic()
        if self.got_at:
            self._step_s = step_s = now - self.got_at
            self.steps_s += step_s
            self.asked += 1
            self.ready_sum += self.ready()
        return now

    def ready(self) -> float:
        """Number of finished batches that the consumer has not taken."""
        if self.shared is None or self.worker_counters is not None:  # which makes each when it is asked for
            return 0.0 if self._waiting is None else float(self._waiting())
        return max(0.0, self.shared.total("batches") - self._begin_base - self.taken)

    def got(
        self, asked: float, batch: int | None, stages_after: Iterable[tuple[str, float]] = (), images: int = 0
    ) -> None:
        """Record that the consumer has the batch.

        Args:
            asked: From :meth:`ask`.
            batch: Its number in the shared counters.
            stages_after: Stages after it was made, each with its end. The rest of the wait is the hand-over.
            images: How many it has, if the shared counters do not say.
        """
        now = time.monotonic()
        if (here := self.worker_counters) is not None:  # made in this process just now
            noted: Any = here.images, here.began, here.split, here.made
        else:
            noted = self.shared.noted(batch) if self.shared is not None and batch is not None else None
        self.images += noted[0] if noted is not None else images or self._batch_size
        self.batches += 1
        self.taken += 1
        before, self.got_at = self.got_at, now
        if not before:
            self.begun(now - asked)
            return
        self.waits_s += now - asked
        if now - asked > AT_ONCE_S:
            counts, took_s = self.counts, self._step_s + now - asked
            stages = list(stages_after)
            if noted is not None:
                stages[:0] = ("before", noted[1]), ("fetch", noted[2]), ("collate", noted[3])
            for stage, until in stages:
                if until > asked:
                    end = min(until, now)
                    counts[f"waited:{stage}"] += end - asked
                    asked = end
                    if stage == "gpu":  # more than two batches behind, so it was busy for the whole step
                        counts["behind_s"] += took_s
            counts["waited:hand-over"] += now - asked
        if self.steady is not None:
            self.steady.add(now - before, now)

    def begun(self, waited_s: float) -> None:
        """Record the wait for the first batch of an epoch."""
        if self.steady is not None:
            self.steady.begun(waited_s)
        self.counts["startup_s"] += waited_s
        self.counts["epochs"] += 1

    def stop(self) -> None:
        """Record an error or the epoch's end: the time that follows is no step."""
        self.got_at = 0.0

    def totals(self) -> Totals:
        """All counts so far, including the workers'."""
        totals = self.counts.copy()
        totals.add({"batches": self.batches, "images": self.images, "asked": self.asked})
        totals.add({"step_s": self.steps_s, "wait_s": self.waits_s, "ready_sum": self.ready_sum})
        if self.worker_counters is not None:
            parts = (self.before_s, self.fetch_s, self.collate_s, self.rest_s)
            totals.add({f"waited:{stage}": part_s for stage, part_s in zip(_STAGES_HERE, parts, strict=True)})
        if self._source is not None:
            totals.add(self._source())
        shared = self.shared
        if shared is not None:
            for figure in FIGURES:
                totals[f"made:{figure}"] += shared.total(figure)
            if (here := self.worker_counters) is not None:
                for figure in ("batches", "images", "fetch_s", "collate_s"):
                    totals[f"made:{figure}"] += getattr(here, f"timed_{figure}")
        return totals

    def places(self) -> Places:
        """Where workers mostly waited, computed and looked; and why they gave up."""
        if self.shared is None:
            return (), (), (), ()
        lines = [[self.shared.read(worker, line) for worker in range(self.shared.workers)] for line in range(4)]
        waits, computes, looks, refused = (tuple(text for text in line if text) for line in lines)
        return waits, computes, looks, refused

    def close(self) -> None:
        """Release the shared counters. Idempotent."""
        before, self.before_close = self.before_close, None
        if before is not None:
            before()
        shared, self.shared = self.shared, None
        if self.worker_counters is not None:
            self.worker_counters.close()
        if shared is not None:
            shared.close()


class NextData:
    """Replaces ``_next_data`` of a torch iterator and measures the wait.

    ``__next__`` of torch's iterators calls ``self._next_data()``, so the iterator keeps torch's own type. It is held
    weakly. Threads that share it take turns: in torch's own code, all but one of them would block forever at the end.
    """

    __slots__ = ("_in_order", "_iterator", "_pipeline", "_workers", "consuming", "meter")

    def __init__(self, iterator: Any, meter: Meter) -> None:
        self._iterator = weakref.ref(iterator)
        self.meter = meter
        self._in_order = getattr(iterator, "_in_order", True)
        self._workers = hasattr(iterator, "_rcvd_idx")
        self._pipeline = getattr(iterator, "decode_pipeline", None)
        self.consuming = threading.RLock()  # while a batch is made or waited for

    def __call__(self) -> Any:  # noqa: D102
        with self.consuming:
            iterator: Any = self._iterator()
            meter = self.meter
            made = meter.worker_counters
            if made is None:
                return self._next_data(iterator, meter)
            # Made here, in 0.07 ms if samples are small: as few calls and lines as can be.
            asked, got_at = time.monotonic(), meter.got_at
            if got_at:
                meter.steps_s += asked - got_at
                meter.asked += 1
            try:
                data = type(iterator)._next_data(iterator)
            except BaseException as error:
                self._failed(iterator, error)
                raise
            meter.got_at = now = time.monotonic()
            meter.batches += 1
            meter.images += made.images
            if not got_at:
                meter.begun(now - asked)
                return data
            meter.waits_s += now - asked
            if now - asked > AT_ONCE_S:
                meter.before_s += made.began - asked
                meter.fetch_s += made.split - made.began
                meter.collate_s += made.made - made.split
                meter.rest_s += now - made.made
            if (steady := meter.steady) is not None:  # as its add(), without a call
                steady.at = now
                steady.seconds += now - got_at
                steady.left -= 1
                if steady.left <= 0 and steady.seconds > BLOCK_S:
                    steady.end_block(now)
            return data

    def _next_data(self, iterator: Any, meter: Meter) -> Any:
        asked = meter.ask()
        try:
            data = type(iterator)._next_data(iterator)
        except BaseException as error:
            self._failed(iterator, error)
            raise
        finally:
            if self._workers:
                meter.received = iterator._rcvd_idx
        if (pipeline := self._pipeline) is not None:
            stages = (("decode", pipeline.decoded_at), ("epilogue", pipeline.made_at))
            meter.got(asked, None, stages, pipeline.images)
        else:
            batch = iterator._rcvd_idx - 1 if self._workers else iterator._num_yielded
            meter.got(asked, batch if self._in_order else None)
        return data

    def _failed(self, iterator: Any, error: BaseException) -> None:
        self.meter.stop()
        self.meter.ended = isinstance(error, StopIteration)
        if not self.meter.ended:
            after_error(iterator, error)


def counters_for(loader: Any, before: Totals) -> SharedCounters:
    """Create the shared counters for one iterator of ``loader``.

    By the counts ``before``, stacks that have been sampled for a second or two are not any more.
    """
    workers = loader.num_workers
    sampled = before["made:samples"] < SAMPLES * max(1, workers)
    if not workers:
        return SharedCounters(0, 2, sampled=sampled)
    context = loader.multiprocessing_context
    method = context.get_start_method() if context is not None else None
    if method is None:
        import multiprocessing

        method = multiprocessing.get_start_method()
    ahead = loader.prefetch_factor or 2
    # An iterable dataset's last worker makes the batches that the others no longer do.
    states = KeptStates(workers, ahead * (workers if isinstance(loader.dataset, IterableDataset) else 1) + 3)
    return SharedCounters(workers, workers * ahead + 2, inherited=method == "fork", states=states, sampled=sampled)


def measure_here(iterator: Any, meter: Meter, *, at_once: bool = False) -> None:
    """Measure the fetches of an iterator that reads in the main process.

    Args:
        iterator: Torch's.
        meter: Its meter.
        at_once: Whether rows of tensors may be taken at once.
    """
    fetcher = getattr(iterator, "_dataset_fetcher", None)
    if fetcher is not None and meter.shared is not None:
        meter.worker_counters = WorkerCounters(meter.shared, 0, whole_process=False)
        rows = RowBatches.serve(fetcher) if at_once else None  # before its collate function is wrapped
        fetcher.fetch = TimedFetch(fetcher, meter.worker_counters, rows)


def measure(iterator: Any, meter: Meter, *, at_once: bool = False) -> Meter:
    """Make ``meter`` measure a torch iterator, or one derived from torch's; see :func:`measure_here`."""
    measure_here(iterator, meter, at_once=at_once)
    iterator._next_data = NextData(iterator, meter)
    return meter


def next_epoch(iterator: Any, loader: Any) -> Any:
    """Begin another epoch of a measured iterator."""
    try:
        restart_workers(iterator, lambda: type(iterator)._reset(iterator, loader))
    except BaseException:
        if getattr(iterator, "_shutdown", False):  # the next epoch starts new workers
            loader._iterator = None
        raise
    if isinstance(next_data := vars(iterator).get("_next_data"), NextData):
        next_data.meter.begin_epoch()
    return iterator


class Meters:
    """All meters of one loader: live iterators, and totals of retired ones. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run in a thread that holds it
        self._pid = os.getpid()
        self._live: dict[int, Meter] = {}
        self._gone: deque[int] = deque()  # numbers of meters to retire
        self._holders = 0  # of the live meters: the lock's thread, and its finalizers
        self._number = 0
        self._before = Totals()
        self._places: Places = (), (), (), ()

    def drop_inherited(self) -> None:
        """Go on in a forked child.

        Live iterators are the parent's, and another thread may have held the lock.
        """
        self._lock, self._pid, self._live = threading.RLock(), os.getpid(), {}
        self._gone, self._holders = deque(), 0

    def open(self, meter: Meter) -> Callable[[], None]:
        """Add ``meter``. Returns a function that retires it once its iterator is gone."""
        with self._held() as live:
            self._number += 1
            number = self._number
            live[number] = meter
        return lambda: self._retire(number)

    def _retire(self, number: int) -> None:
        if os.getpid() != self._pid:  # forked child: the lock may be held, and the figures are the parent's
            return
        self._gone.append(number)
        with self._held():
            pass

    @contextlib.contextmanager
    def _held(self) -> Iterator[dict[int, Meter]]:
        """Hold the live meters. One whose iterator the collector ends meanwhile is retired afterwards."""
        ended = []
        with self._lock:
            self._holders += 1
            try:
                yield self._live
            finally:
                self._holders -= 1
                while self._gone and not self._holders:
                    self._holders = 1
                    try:
                        ended += self._end()
                    finally:
                        self._holders = 0
        for meter in ended:
            meter.close()

    def _end(self) -> list[Meter]:
        """Count the next meter that is gone with those before."""
        meter = self._live.pop(self._gone.popleft(), None) if self._gone else None
        if meter is None:
            return []
        self._before.add(meter.totals())
        places = meter.places()
        if any(places):
            self._places = places
        return [meter]

    def totals(self) -> Totals:
        """Counts over all epochs."""
        with self._held() as live:
            totals = self._before.copy()
            for meter in list(live.values()):
                totals.add(meter.totals())
        return totals

    def places(self) -> Places:
        """:meth:`Meter.places` of the last iterator that has any."""
        with self._held() as live:
            for meter in reversed(list(live.values())):
                places = meter.places()
                if any(places):
                    return places
            return self._places

    def ready(self) -> tuple[int, int]:
        """Current number of batches ready: all of them, and those already on the device."""
        with self._held() as live:
            counts = [(meter.ready(), meter.on_device) for meter in list(live.values())]
        return int(sum(count for count, _ in counts)), int(sum(count for count, on_device in counts if on_device))
