"""Set how hard tests try: little by default, fully with ``pytest --all``."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar

import hypothesis
import pytest

T = TypeVar("T")

QUICK_SHARE = 0.1
QUICK_STRIDE = 7
AT_LEAST = 8
QUICK_CASES = 3
"""Cases of a test in a quick run."""

MERGE_CASES = 6
"""Cases with ``--slow``."""

SLOW_CASES = 1
"""Cases of a slow test then."""


def load_profile(*, everything: bool) -> None:
    """Choose how hard Hypothesis tries, before tests are imported."""
    common = hypothesis.settings(deadline=None, print_blob=True)
    hypothesis.settings.register_profile("quick", common, max_examples=examples(100, share=QUICK_SHARE))
    hypothesis.settings.register_profile("all", common, max_examples=100)
    hypothesis.settings.load_profile("all" if everything else "quick")


def examples(count: int, *, share: float | None = None) -> int:
    """Return ``count`` with ``--all``, else a tenth of it, but at least 8."""
    if share is None:
        share = 1.0 if everything() else QUICK_SHARE
    return max(min(count, AT_LEAST), round(count * share))


def stride() -> int:
    """Return how many moments lie between two interrupts: 1 with ``--all``, else 7."""
    return 1 if everything() else QUICK_STRIDE


def some(values: Sequence[T]) -> Sequence[T]:
    """Return all values with ``--all``, else the first and every second after it."""
    return values if everything() else values[::2]


def beyond_pairs(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return tests without which each pair of two axes' values still occurs.

    An axis is a ``parametrize`` or a fixture with parameters; products of fewer than three stay whole. Of a test marked
    ``each_value``, each value of an axis still occurs.
    """
    tests = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            tests[item.nodeid.partition("[")[0]].append(item)
    return {item for of_one in tests.values() for item in set(of_one) - _chosen(of_one)}


def beyond_few(items: list[pytest.Item], *, slow: bool) -> set[pytest.Item]:
    """Return tests without which each test has a few cases, always the same.

    Args:
        items: The tests.
        slow: Whether slow ones run, too.
    """
    tests = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0], item.get_closest_marker("slow") is not None].append(item)
    dropped = set[pytest.Item]()
    for (name, is_slow), cases in tests.items():
        most = SLOW_CASES if is_slow else MERGE_CASES if slow else QUICK_CASES
        dropped |= set(cases) - {*random.Random(name).sample(cases, min(len(cases), most))}
    return dropped


def _chosen(items: list[Any]) -> set[Any]:
    values = {item: _by_axis(item) for item in items}
    together = 2 if items[0].get_closest_marker("each_value") is None else 1
    if together == 2 and len(values[items[0]]) < 3:
        return set(items)
    combinations = {item: set(itertools.combinations(values[item], together)) for item in items}
    chosen, seen, uses = set(), set[Any](), Counter[Any]()
    quick = [item for item in items if item.get_closest_marker("slow") is None]
    for some_items in (quick, items):  # slow ones beside those that run without them, too
        missing = set().union(*(combinations[item] for item in some_items)) - seen
        while missing:  # of those that add as much, one whose values were used least
            best = max(
                some_items, key=lambda item: (len(combinations[item] & missing), -sum(uses[v] for v in values[item]))
            )
            missing -= combinations[best]
            seen |= combinations[best]
            uses.update(values[best])
            chosen.add(best)
    return chosen


def _by_axis(item: Any) -> list[Any]:
    axes = defaultdict(list)
    together = {}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        together |= dict.fromkeys(names, names[0])
    for name, value in item.callspec.params.items():
        axes[together.get(name, name)].append((name, id(value)))  # some cannot be hashed
    return [tuple(axis) for axis in axes.values()]


def everything() -> bool:
    """Tell whether tests try as hard as they can."""
    return hypothesis.settings.get_current_profile_name() == "all"
