"""How many decode threads a native loader with ``num_workers="auto"`` has, while it runs.

As few as keep the consumer fed with 10% to spare. What a sample costs is measured on the threads themselves, so it
includes what neighbours on the same cores cost; fewer threads can only make it less. The consumer's rate is what it
takes while it does not wait. While it waits nobody knows that rate, so the threads become more, by a quarter, until it
does not. A host that queues steps for a device waits for batches at other times than the device does, and when an epoch
begins it takes some sooner than the device needs them. So the device's own clock says what the host's waits come to,
and what the rate is in an epoch's first window.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final, Protocol

from fastload.autoscale.policy import Sizing, cores_for_loading, workers_needed

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.stats.stats import Totals

WINDOW_S: Final = 0.5
_WINDOW_BATCHES: Final = 8  # in a window, at least
_STARVED: Final = 0.02  # share of a window: the consumer waits
_GROWTH: Final = 1.25
_SHRINKAGE: Final = 0.7  # in one window, at most
_GAP: Final = 0.5  # share of a window between two batches: the consumer did something else, such as a validation
_HELD_FIRST: Final = 16  # windows for which a number that was too few is not tried again; doubled if it was, again
_HELD_MAX: Final = 512
_FAR_LESS: Final = 0.4  # of what was too few: the consumer is another one by now
_BESIDE: Final = 1.25  # of a window: the device has timed something else as well, such as a validation before it


class Resizable(Protocol):
    """What is needed of a decode pool."""

    @property
    def threads(self) -> int:
        """How many there are."""
        ...

    def resize(self, threads: int) -> int:
        """Have so many from now on."""
        ...

    def work_done(self) -> tuple[float, int]:
        """Seconds that threads were at work, added up; samples."""
        ...


class ThreadSizer:
    """Sizes one pool. Told of each batch by the thread that consumes; takes microseconds.

    Args:
        sizing: Remembers the number for the loader's next pool.
        cores: Threads at most; ``None`` for those that this process may use.
        clock: Tells the time in seconds.
        device: The sums of its :class:`~fastload.device.timing.DeviceClock`; ``None`` without one.
    """

    def __init__(
        self,
        sizing: Sizing,
        cores: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        *,
        device: Callable[[], Totals] | None = None,
    ) -> None:
        self._sizing = sizing
        self._cores = cores_for_loading() if cores is None else cores
        self._clock = clock
        self._device = device
        self._pool: Resizable | None = None
        self._too_few = 0
        self._hold = 0
        self._next_hold = _HELD_FIRST
        self._shrank = False
        self._begun = self._last = self._gap = self._waited = 0.0
        self._batches = self._samples = 0
        self._work = (0.0, 0)
        self._steps = (0.0, 0.0, 0.0)
        self._is_first = True  # window since begin()

    @property
    def threads_at_first(self) -> int:
        """Threads to start a pool with: what was enough before, or as many as there are cores."""
        return min(self._sizing.threads or self._cores, self._cores)

    def attach(self, pool: Resizable) -> None:
        """Size this pool from now on."""
        self._pool = pool
        self.begin()

    def begin(self) -> None:
        """What happened so far says nothing about what comes: an epoch begins, or goes on after something else."""
        self._begun = 0.0

    def note(self, samples: int, waited_s: float) -> None:
        """The consumer took a batch, and had waited for it for ``waited_s``."""
        now = self._clock()
        if not self._begun:  # the first batch: its wait is the start-up
            self._is_first = True
            self._open(now)
            return
        self._gap = max(self._gap, now - self._last)
        self._last = now
        self._batches += 1
        self._samples += samples
        self._waited += waited_s
        elapsed = now - self._begun
        if elapsed < WINDOW_S or self._batches < _WINDOW_BATCHES:
            return
        if self._gap >= _GAP * elapsed:
            self.begin()  # with the next batch: the device's clock has yet to count this gap
            return
        self._decide(elapsed)
        self._is_first = False
        self._open(now)

    def _open(self, now: float) -> None:
        self._begun = self._last = now
        self._batches = self._samples = 0
        self._waited = self._gap = 0.0
        self._work = self._pool.work_done() if self._pool is not None else (0.0, 0)
        self._steps = self._device_steps()

    def _device_steps(self) -> tuple[float, float, float]:
        """Steps that the device's clock has timed so far, their seconds, and the part in which there was no batch."""
        if self._device is None:
            return 0.0, 0.0, 0.0
        totals = self._device()
        return totals["device:steps"], totals["device:total_s"], totals["device:idle_s"]

    def _decide(self, elapsed: float) -> None:
        pool = self._pool
        if pool is None:
            return
        threads = pool.threads
        seconds, samples = pool.work_done()
        seconds, samples = seconds - self._work[0], samples - self._work[1]
        self._hold = max(0, self._hold - 1)
        if not self._hold:
            self._too_few = 0
        starved, rate = self._waited / elapsed, self._samples / elapsed
        steps, total_s, idle_s = (
            after - before for before, after in zip(self._steps, self._device_steps(), strict=True)
        )
        if 0.0 < total_s < _BESIDE * elapsed:
            starved = min(starved, idle_s / total_s)
            if self._is_first:  # later on the host counts better: every step, where the clock times some
                rate = self._samples / self._batches * steps / total_s
        if starved > _STARVED:
            if threads < self._cores:
                if self._shrank:
                    self._next_hold = min(2 * self._next_hold, _HELD_MAX)
                self._too_few, self._hold = threads, self._next_hold
                threads = min(self._cores, max(threads + 1, math.ceil(_GROWTH * threads)))
        elif samples:
            needed = workers_needed(rate, seconds / samples, self._cores)
            if needed < _FAR_LESS * self._too_few:
                self._too_few = self._hold = 0
            if needed < threads:
                needed = max(needed, self._too_few + 1, int(_SHRINKAGE * threads))
            threads = needed
        if threads != pool.threads:
            self._shrank = threads < pool.threads
            threads = pool.resize(threads)
        self._sizing.threads = threads
