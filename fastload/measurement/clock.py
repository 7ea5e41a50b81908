"""Clocks for loops that queue work on a GPU asynchronously."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks points of a training loop and measures the time between them."""

    def mark(self) -> Any:
        """Mark this point; never blocks."""

    def finish(self) -> None:
        """Block until every mark has passed."""

    def between_s(self, start: Any, end: Any) -> float:
        """Seconds from ``start`` to ``end``; only after :meth:`finish`."""


class HostClock:
    """The host's clock, for loops that do all their work on the CPU."""

    def mark(self) -> float:
        """Mark this point."""
        return time.perf_counter()

    def finish(self) -> None:
        """Do nothing: no mark is pending."""

    def between_s(self, start: float, end: float) -> float:
        """Seconds from ``start`` to ``end``."""
        return end - start


class CudaClock:
    """CUDA events on the current stream.

    A mark takes effect when the GPU has finished all work queued before it. So the time from the mark at the end of a
    step to the mark at the next batch's arrival is the GPU's idle time: zero when the batch came in time, however long
    the host was inside ``next()``. The host's clock cannot measure this: waiting while the GPU is busy costs nothing.
    """

    def mark(self) -> torch.cuda.Event:
        """Queue an event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def finish(self) -> None:
        """Synchronize with the device."""
        torch.cuda.synchronize()

    def between_s(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds between two events, on the GPU's clock."""
        return float(start.elapsed_time(end)) / 1e3


def clock_for(device: torch.device) -> Clock:
    """The clock for loops whose steps run on ``device``."""
    return CudaClock() if device.type == "cuda" else HostClock()
