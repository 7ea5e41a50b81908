"""What the device did in some of the steps, by its own clock: it alone knows when it waited for a batch.

The host runs ahead of the device, so its clock says little about that. Timed events do: one at the end of the
consumer's work on each batch, and those around the copies of some. So many copies are timed per second, on average,
that it costs next to nothing however quick they are.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Any, Final

from fastload.stats.stats import Totals

ALL_OF_FIRST: Final = 16
"""Batches that are all timed, so that a short run says something."""

PER_SECOND: Final = 20
"""Batches that are timed per second after that, on average."""

_RECENT: Final = 0.02  # the weight of the last batch among the recent ones
_PAUSE_S: Final = 1.0  # what is longer between two batches does not make all that follow seem rare
# In steps of the golden ratio, so that no rhythm is hit: of eight workers, say, one may be waited for each time.
_GOLDEN: Final = 0.6180339887498949
_PENDING_MAX: Final = 64


class Timing:
    """The events around one batch's copy, if it is timed, and for how many batches that is."""

    __slots__ = ("began", "copied", "nbytes", "pageable_bytes", "ready", "weight")

    def __init__(self, began: Any, weight: float) -> None:
        self.began = began
        self.weight = weight
        self.copied: Any = None
        self.ready: Any = None
        self.nbytes = 0
        self.pageable_bytes = 0

    @property
    def is_timed(self) -> bool:  # noqa: D102
        return self.began is not None


class DeviceClock:
    """Times some of the batches of one transfer. Its caller holds the transfer's lock.

    Timed steps are reckoned up when a copy is begun, which as a rule is not in the consumer's thread, or when somebody
    asks.

    Args:
        module: The device's, such as :mod:`torch.cuda`.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._started = 0
        self.recent_s = 0.0  # between two batches, of late
        self._began_at = 0.0
        self._last_end: Any = None
        self._handed: tuple[Any, Timing] | None = None
        self._pending: deque[tuple[Any, Timing, Any]] = deque()
        self._sums = Totals()

    def event(self) -> Any:
        """One that knows when it was, and can be waited for asleep."""
        return self._module.Event(blocking=True, enable_timing=True)

    def begin(self, stream: Any) -> Timing:
        """A copy is about to be issued on ``stream``."""
        self._reckon()
        number, self._started = self._started, self._started + 1
        weight = self._weight_of(number)
        timing = Timing(self.event() if weight else None, weight)
        if timing.is_timed:
            timing.began.record(stream)
        return timing

    def _weight_of(self, number: int) -> float:
        """For how many batches the one that begins now is timed; 0 if it is not."""
        now = time.monotonic()
        took = min(now - (self._began_at or now), _PAUSE_S)
        self._began_at = now
        self.recent_s = (1.0 - _RECENT) * self.recent_s + _RECENT * took if number > 1 else took
        share = 1.0 if number < ALL_OF_FIRST else min(1.0, PER_SECOND * self.recent_s)
        is_drawn = number < ALL_OF_FIRST or number * _GOLDEN % 1.0 < share
        return 1.0 / share if is_drawn else 0.0

    def begin_epoch(self) -> None:
        """What comes before the next batch is no step on a batch."""
        self._last_end = None
        self._handed = None

    def handed(self, timing: Timing, *, same_stream: bool = True) -> None:
        """A batch is handed to the consumer, whose work on the last one ended just before.

        Args:
            timing: The batch's.
            same_stream: Whether that work was on the stream that the batch is for; else the two are no sequence.
        """
        self._handed = (self._last_end if same_stream else None, timing)

    def step_ended(self, end: Any) -> None:
        """The consumer has queued all its work on the batch that it was handed last; ``end`` comes after it."""
        if self._handed is not None:
            before, timing = self._handed
            if timing.is_timed:
                self._pending.append((before, timing, end))
            self._handed = None
            self._last_end = end  # of an epoch that was broken off it is none: the start of the next one is no step
        while len(self._pending) > _PENDING_MAX:
            self._pending.popleft()

    def _reckon(self) -> None:
        """Add up the steps that have ended on the device. The collector may run another's end, and so this, within."""
        while self._pending:
            before, timing, end = self._pending.popleft()
            if not end.query():
                self._pending.appendleft((before, timing, end))
                return
            self._add(before, timing, end)

    def _add(self, before: Any, timing: Timing, end: Any) -> None:
        if timing.ready is None or timing.copied is None:
            return
        copy_s = timing.began.elapsed_time(timing.copied) * 1e-3
        epilogue_s = timing.copied.elapsed_time(timing.ready) * 1e-3
        sums = self._sums
        sums["stage:h2d:count"] += 1
        sums["stage:h2d:s"] += copy_s
        sums["stage:epilogue:count"] += 1
        sums["stage:epilogue:s"] += epilogue_s
        sums["device:copies"] += 1
        sums["device:copied_bytes"] += timing.nbytes
        sums["device:pageable_bytes"] += timing.pageable_bytes
        if before is None:
            return
        idle_s = max(0.0, before.elapsed_time(timing.ready) * 1e-3)
        sums["device:steps"] += timing.weight
        sums["device:total_s"] += timing.weight * max(0.0, before.elapsed_time(end) * 1e-3)
        sums["device:idle_s"] += timing.weight * idle_s
        sums["device:copying_s"] += timing.weight * min(idle_s, copy_s + epilogue_s)

    def totals(self) -> Totals:
        """All sums so far; those of a device that has failed, or of a parent process, as they were last known."""
        with contextlib.suppress(RuntimeError):
            self._reckon()
        return self._sums.copy()
