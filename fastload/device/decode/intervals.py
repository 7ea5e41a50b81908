"""Seconds from one batch to the next, without the loop's pauses."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Final

from fastload.stats.pace import is_pause

RECENT_MIN: Final = 6
"""Intervals that say what is usual."""

_KEPT: Final = 64


class Intervals:
    """The latest seconds between batches.

    Those in which the consumer paused do not count: it may have compiled its model, or saved it.
    """

    def __init__(self) -> None:
        self._all: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def add(self, interval_s: float, blocked_s: float = 0.0) -> None:
        """Add one, and the seconds of it in which the loader waited for the consumer."""
        self._all.append((interval_s, blocked_s))

    def __len__(self) -> int:
        """How many there are, pauses among them."""
        return len(self._all)

    def values(self) -> list[float]:
        """Those that are no pauses."""
        if not self._all:
            return []
        usual_s = statistics.median_low(interval for interval, _ in self._all)
        return [interval_s for interval_s, idle_s in self._all if not is_pause(interval_s, idle_s, usual_s)]

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
