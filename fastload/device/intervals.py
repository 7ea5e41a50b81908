"""Seconds from one batch to the next, without the loop's pauses."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Final

RECENT_MIN: Final = 6
"""Intervals that say what is usual."""

PAUSE: Final = 4.0
"""Intervals so many times as long as usual, in which the loader waited for the consumer, are no steps."""

IDLE: Final = 0.75
"""The share of an interval in which the loader then waited."""

_KEPT: Final = 64


class Intervals:
    """The latest seconds between batches.

    Those in which the consumer paused do not count: it may have compiled its model, or saved it.
    """

    def __init__(self) -> None:
        self._all: deque[tuple[float, bool]] = deque(maxlen=_KEPT)

    def add(self, interval_s: float, blocked_s: float = 0.0) -> None:
        """Add one, and the seconds of it in which the loader waited for the consumer."""
        self._all.append((interval_s, blocked_s > IDLE * interval_s))

    def __len__(self) -> int:
        """How many there are, pauses among them."""
        return len(self._all)

    def values(self) -> list[float]:
        """Those that are no pauses."""
        if not self._all:
            return []
        pause_s = PAUSE * statistics.median_low(interval for interval, _ in self._all)
        return [interval for interval, idle in self._all if not idle or interval <= pause_s]

    def clear(self) -> None:
        """Forget all."""
        self._all.clear()


def mean_of(values: list[float]) -> float:
    """The mean; 0 of none."""
    return sum(values) / len(values) if values else 0.0


def error_of(values: list[float], mean: float) -> float:
    """The variance of the mean."""
    if len(values) < 2:
        return math.inf
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)
