"""What a call costs, in a unit of the machine's own, so that a test may say how little it has to be."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any


def _empty() -> None:
    pass


def in_calls(function: Callable[[], Any], number: int = 2000) -> float:
    """Return how many calls of an empty Python function take as long as one of ``function``.

    The best of many short runs, the two in turn: neither a slow machine nor a busy one is in the figure. An empty call
    takes 25 to 60 ns.

    :param number: calls of ``function`` in a run
    """
    own, empty = timeit.Timer(function), timeit.Timer(_empty)
    runs = [(own.timeit(number), empty.timeit(2000)) for _ in range(100)]
    best_s, empty_s = (min(column) for column in zip(*runs, strict=True))
    return (best_s / number) / (empty_s / 2000)
