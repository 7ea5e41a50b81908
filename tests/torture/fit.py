"""A line through points, some of which may be far off."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Theil and Sen's: the median slope between all pairs of points; 0 of fewer than two."""
    slopes = [(y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(points) for x2, y2 in points[i + 1 :] if x2 != x1]
    return statistics.median(slopes) if slopes else 0.0
