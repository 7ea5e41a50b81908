"""Fit a line through points with outliers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Theil-Sen estimator: the median slope over all pairs of points; 0 for fewer than two."""
    slopes = [(y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(points) for x2, y2 in points[i + 1 :] if x2 != x1]
    return statistics.median(slopes) if slopes else 0.0
