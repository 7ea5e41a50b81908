"""Arithmetic with time intervals: unions, overlaps, gaps, nesting."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Interval: TypeAlias = tuple[int, int]  # start and end in nanoseconds; the end is exclusive
T = TypeVar("T")


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge ``intervals`` into disjoint ones, in order; touching ones are joined."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def length(disjoint: Iterable[Interval]) -> int:
    """The sum of the intervals' lengths."""
    return sum(end - start for start, end in disjoint)


def covered(intervals: Iterable[Interval]) -> int:
    """The time covered by at least one of ``intervals``."""
    return length(union(intervals))


def clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """The parts of ``intervals`` inside ``window``."""
    low, high = window
    return [(max(start, low), min(end, high)) for start, end in intervals if end > low and start < high]


def part(disjoint: Sequence[Interval], window: Interval) -> list[Interval]:
    """:func:`clip` for a union (see :func:`union`), by binary search."""
    low, high = window
    first = bisect_right(disjoint, low, key=lambda interval: interval[1])
    last = bisect_left(disjoint, high, key=lambda interval: interval[0])
    return clip(disjoint[first:last], window)


def common(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """The intersection of two unions (see :func:`union`)."""
    found: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            found.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def gaps(disjoint: Sequence[Interval], window: Interval) -> list[Interval]:
    """The parts of ``window`` not covered by a union (see :func:`union`), in order."""
    found: list[Interval] = []
    reached = window[0]
    for start, end in part(disjoint, window):
        if start > reached:
            found.append((reached, start))
        reached = max(reached, end)
    if reached < window[1]:
        found.append((reached, window[1]))
    return found


def innermost(spans: Iterable[tuple[int, int, T]]) -> list[tuple[int, int, T]]:
    """Cut nested spans into ordered pieces, each with the innermost span's value.

    Spans that overlap without nesting are cut at the later one's start: the one that began last is the innermost.

    >>> innermost([(0, 10, "step"), (2, 5, "wait")])
    [(0, 2, 'step'), (2, 5, 'wait'), (5, 10, 'step')]
    """
    pieces: list[tuple[int, int, T]] = []
    open_spans: list[tuple[int, T]] = []  # end, value; the innermost is last
    reached = 0

    def advance(until: int) -> None:
        nonlocal reached
        while open_spans and reached < until:
            end, value = open_spans[-1]
            stop = min(end, until)
            if stop > reached:
                pieces.append((reached, stop, value))
                reached = stop
            if end <= until:
                open_spans.pop()
        reached = max(reached, until)

    ordered = sorted(spans, key=lambda span: (span[0], -span[1]))
    for start, end, value in ordered:
        advance(start)
        open_spans.append((end, value))
    if open_spans:
        advance(max(end for end, _ in open_spans))
    return pieces


class Enclosing:
    """Finds the spans ``(start, end, index)`` of one thread that enclose a moment."""

    def __init__(self, spans: Iterable[tuple[int, int, int]]) -> None:
        self._spans = sorted(spans, key=lambda span: (span[0], -span[1]))
        self._starts = [start for start, _, _ in self._spans]
        # The nearest earlier span that encloses each: nested ranges form a tree.
        self._parents: list[int] = []
        trail: list[int] = []
        for number, (start, _, _) in enumerate(self._spans):
            while trail and self._spans[trail[-1]][1] <= start:
                trail.pop()
            self._parents.append(trail[-1] if trail else -1)
            trail.append(number)

    def at(self, moment: int) -> list[int]:
        """The indices of the spans around ``moment``, the innermost first."""
        number = bisect_right(self._starts, moment) - 1
        found = []
        while number >= 0:
            _, end, index = self._spans[number]
            if end > moment:
                found.append(index)
            number = self._parents[number]
        return found
