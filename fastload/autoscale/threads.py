"""Resize the decode threads of a native loader with ``num_workers="auto"`` while it runs.

It keeps the fewest threads that feed the consumer with 10% to spare. A sample's cost is measured on the threads
themselves, so it includes the effect of other work on the same cores; with fewer threads it can only fall. The
consumer's rate is known only while it does not wait; while it waits, the threads grow by a quarter at a time.

A host that queues steps for a device does not wait when the device does, and at the start of an epoch it takes batches
before the device needs them. So if there is a device clock, its idle time limits how much of the host's waiting counts,
and it gives the rate in an epoch's first window.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Final, Protocol

from fastload.autoscale.policy import (
    FAR_LESS,
    GROWTH,
    STARVED,
    WINDOW_BATCHES,
    Sizing,
    workers_needed,
)
from fastload.stats.pace import Hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.stats.stats import Totals

WINDOW_S: Final = 0.5
_SHRINKAGE: Final = 0.7  # lower limit per window
_GAP: Final = 0.5  # a pause of at least this share of a window makes it useless
_HELD_FIRST: Final = 16  # windows before a number that was too few is tried again; doubled each time it fails
_HELD_MAX: Final = 512
_BESIDE: Final = 1.25  # device time beyond this share of a window includes other work, such as an earlier validation


class Resizable(Protocol):
    """The interface that a decode pool must have."""

    @property
    def threads(self) -> int:
        """Current number of threads."""
        ...

    def resize(self, threads: int) -> int:
        """Change the number of threads and return the new one."""
        ...

    def work_done(self) -> tuple[float, int]:
        """Total seconds of work over all threads, and number of samples."""
        ...


class ThreadSizer:
    """Chooses one pool's number of threads. Called per batch by the consuming thread; takes microseconds.

    Its attribute ``cores`` is the most that it uses.

    Args:
        sizing: Keeps the number for the loader's next pool.
        cores: Maximum number of threads; ``None`` for this process's share of the cores.
        clock: Returns the time in seconds.
        device: Returns the totals of the :class:`~fastload.device.timing.DeviceClock`; ``None`` without one.
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
        self.cores = sizing.cores if cores is None else cores
        self._clock = clock
        self._device = device
        self._pool: Resizable | None = None
        self._too_few = 0
        self._hold = Hold(_HELD_FIRST, _HELD_MAX)
        self._windows = 0
        self._shrank = False
        self._begun = self._last = self._gap = self._waited = 0.0
        self._batches = self._samples = 0
        self._work = (0.0, 0)
        self._steps = (0.0, 0.0, 0.0)
        self._is_first = True  # window since begin()

    @property
    def threads_at_first(self) -> int:
        """Threads to start a pool with: the number that sufficed before, or one per core."""
        return min(self._sizing.threads or self.cores, self.cores)

    def attach(self, pool: Resizable) -> None:
        """Start sizing this pool."""
        self._pool = pool
        self.begin()

    def restart(self) -> None:
        """Use all cores until another window has been measured: the threads' work has changed. Thread-safe."""
        if self._pool is not None:
            with contextlib.suppress(RuntimeError):  # it is being closed
                self._pool.resize(self.cores)
        self._begun = 0.0

    def begin(self) -> None:
        """Discard the current window, at the start of an epoch or after an interruption."""
        self._begun = 0.0

    def note(self, samples: int, waited_s: float) -> None:
        """Record that the consumer took a batch after waiting for ``waited_s``."""
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
        if elapsed < WINDOW_S or self._batches < WINDOW_BATCHES:
            return
        if self._gap >= _GAP * elapsed:
            self.begin()  # restart at the next batch, because the device's clock has yet to count this gap
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
        """Steps timed by the device's clock so far, their seconds, and idle seconds."""
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
        self._windows += 1
        if self._hold.allows(self._windows):
            self._too_few = 0
        starved, rate = self._waited / elapsed, self._samples / elapsed
        steps, total_s, idle_s = (
            after - before for before, after in zip(self._steps, self._device_steps(), strict=True)
        )
        if 0.0 < total_s < _BESIDE * elapsed:
            starved = min(starved, idle_s / total_s)
            if self._is_first:  # later the host is more precise: it counts every step, the clock times only some
                rate = self._samples / self._batches * steps / total_s
        if starved > STARVED:
            if threads < self.cores:
                self._too_few = threads
                self._hold.fail(self._windows, again=self._shrank)
                threads = min(self.cores, max(threads + 1, math.ceil(GROWTH * threads)))
        elif samples:
            needed = workers_needed(rate, seconds / samples, self.cores)
            if needed < FAR_LESS * self._too_few:
                self._too_few = 0
            if needed < threads:
                needed = max(needed, self._too_few + 1, int(_SHRINKAGE * threads))
            threads = needed
        if threads != pool.threads:
            self._shrank = threads < pool.threads
            threads = pool.resize(threads)
        self._sizing.threads = threads
