"""Time some steps by the device's clock, which shows when it waited for batches.

The host runs ahead of the device, so its clock says little about that. Timed events tell: one at the end of the
consumer's work on each batch, and those around some of the copies. A fixed average number of copies is timed per
second, so the cost is negligible at any batch rate.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Any, Final

from fastload.stats.stats import Totals

ALL_OF_FIRST: Final = 16
"""The first batches, all timed, so that a short run has results."""

PER_SECOND: Final = 20
"""Batches timed per second after that, on average."""

_RECENT: Final = 0.02  # weight of the last batch in the moving average
_INTERVAL_MAX_S: Final = 1.0  # longer intervals count as this, so that a single one does not raise the sampling rate
# Sampled in steps of the golden ratio to avoid aliasing: of eight workers, always the same one may be slow.
_GOLDEN: Final = 0.6180339887498949
_PENDING_MAX: Final = 64
_ALIKE_MIN: Final = 3  # a step runs beside the decoding of the next batches: those before it tell where that is


class Timing:
    """Events around a batch's copy, if timed, and the number of batches it stands for.

    What decodes the batch on the device sets ``on_gpu`` and, if it is timed, ``decode`` to the events around that.
    """

    __slots__ = ("began", "beside", "copied", "decode", "nbytes", "on_gpu", "pageable_bytes", "ready", "weight")

    def __init__(self, began: Any, weight: float) -> None:
        self.began = began
        self.weight = weight
        self.copied: Any = None
        self.ready: Any = None
        self.nbytes = 0
        self.pageable_bytes = 0
        self.on_gpu = self.beside = False  # the latter: whether the batches before it were decoded there, too
        self.decode: tuple[Any, Any] | None = None

    @property
    def is_timed(self) -> bool:  # noqa: D102
        return self.began is not None


class DeviceClock:
    """Times some batches of one transfer. Its caller holds the transfer's lock.

    Completed timings are accumulated at the next copy (usually not in the consumer's thread) or :meth:`totals` call.

    Args:
        module: The device's module, such as :mod:`torch.cuda`.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._started = 0
        self.recent_s = 0.0  # moving average of the time between two batches
        self._began_at = 0.0
        self._last_end: Any = None
        self._handed: tuple[Any, Timing] | None = None
        self._pending: deque[tuple[Any, Timing, Any]] = deque()
        self._alike = 0  # batches in succession that were decoded in the same place as the last one
        self._last_on_gpu = False
        self._sums = Totals()

    def event(self) -> Any:
        """Make an event with a time stamp, whose ``synchronize()`` sleeps."""
        return self._module.Event(blocking=True, enable_timing=True)

    def begin(self, stream: Any) -> Timing:
        """Start timing a copy about to be issued on ``stream``, if it is sampled."""
        self._accumulate()
        number, self._started = self._started, self._started + 1
        weight = self._weight_of(number)
        timing = Timing(self.event() if weight else None, weight)
        if timing.is_timed:
            timing.began.record(stream)
        return timing

    def _weight_of(self, number: int) -> float:
        """Number of batches that the next one stands for; 0 if it is not timed."""
        now = time.monotonic()
        took = min(now - (self._began_at or now), _INTERVAL_MAX_S)
        self._began_at = now
        self.recent_s = (1.0 - _RECENT) * self.recent_s + _RECENT * took if number > 1 else took
        share = 1.0 if number < ALL_OF_FIRST else min(1.0, PER_SECOND * self.recent_s)
        is_sampled = number < ALL_OF_FIRST or number * _GOLDEN % 1.0 < share
        return 1.0 / share if is_sampled else 0.0

    def begin_epoch(self) -> None:
        """Begin an epoch: work before its first batch is not part of a step."""
        self._last_end = None
        self._handed = None

    def handed(self, timing: Timing, *, same_stream: bool = True) -> None:
        """Note that a batch is handed over; the consumer's last step has just ended.

        Args:
            timing: The batch's timing.
            same_stream: Whether that step ran on the stream that the batch is for; else their times are unrelated.
        """
        self._handed = (self._last_end if same_stream else None, timing)

    def step_ended(self, end: Any) -> None:
        """Note that event ``end`` follows all queued work on the last batch handed over."""
        if self._handed is not None:
            before, timing = self._handed
            self._alike = self._alike + 1 if timing.on_gpu == self._last_on_gpu else 0
            self._last_on_gpu = timing.on_gpu
            if timing.is_timed:
                timing.beside = self._alike >= _ALIKE_MIN
                self._pending.append((before, timing, end))
            self._handed = None
            self._last_end = end  # not after an unfinished epoch: the time until the next one is not a step
        while len(self._pending) > _PENDING_MAX:
            self._pending.popleft()

    def _accumulate(self) -> None:
        """Add up the steps that have ended on the device.

        Reentrant: the garbage collector may end another iterator during it, which calls it again.
        """
        while self._pending:
            before, timing, end = self._pending.popleft()
            if not end.query():
                self._pending.appendleft((before, timing, end))
                return
            self._add(before, timing, end)

    def _add(self, before: Any, timing: Timing, end: Any) -> None:
        if timing.ready is None or timing.copied is None:
            return
        decode_s = 0.0 if timing.decode is None else timing.decode[0].elapsed_time(timing.decode[1]) * 1e-3
        copy_s = max(0.0, timing.began.elapsed_time(timing.copied) * 1e-3 - decode_s)
        epilogue_s = timing.copied.elapsed_time(timing.ready) * 1e-3
        sums = self._sums
        sums["stage:h2d:count"] += 1
        sums["stage:h2d:s"] += copy_s
        sums["stage:epilogue:count"] += 1
        sums["stage:epilogue:s"] += epilogue_s
        if timing.decode is not None:
            sums["stage:gpu_decode:count"] += 1
            sums["stage:gpu_decode:s"] += decode_s
        sums["device:copies"] += 1
        sums["device:copied_bytes"] += timing.nbytes
        sums["device:pageable_bytes"] += timing.pageable_bytes
        if before is None:
            return
        idle_s = max(0.0, before.elapsed_time(timing.ready) * 1e-3)
        total_s = max(0.0, before.elapsed_time(end) * 1e-3)
        made_s = copy_s + decode_s + epilogue_s
        sums["device:steps"] += timing.weight
        sums["device:total_s"] += timing.weight * total_s
        sums["device:idle_s"] += timing.weight * idle_s
        decoding_s = min(idle_s, made_s) * decode_s / made_s if decode_s else 0.0
        sums["device:decoding_s"] += timing.weight * decoding_s
        sums["device:copying_s"] += timing.weight * (min(idle_s, made_s) - decoding_s)
        if timing.beside:
            side = "gpu" if timing.on_gpu else "threads"
            sums[f"device:{side}_steps"] += 1
            sums[f"device:{side}_busy_s"] += max(0.0, total_s - idle_s)

    def totals(self) -> Totals:
        """All sums so far; the last known ones after a device failure or a fork."""
        with contextlib.suppress(RuntimeError):
            self._accumulate()
        return self._sums.copy()
