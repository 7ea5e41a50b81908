from __future__ import annotations

import itertools

import effort
import pytest


class Item:
    """What pytest collects for one combination of parameters."""

    each_value = slow = None

    def __init__(self, *marks, **params):
        self.nodeid = f"test_of_{len(marks)}[{params}]"
        self.marks = [pytest.mark.parametrize(names, []).mark for names in marks]
        self.callspec = self
        self.params = params

    def iter_markers(self, name):
        assert name == "parametrize"
        return self.marks

    def get_closest_marker(self, name):
        return getattr(self, name)


def product(*marks, **values):
    return [Item(*marks, **dict(zip(values, row, strict=True))) for row in itertools.product(*values.values())]


@pytest.mark.parametrize("fixtures", [0, 1])
def test_each_pair_of_values_is_still_there(fixtures):
    items = product(*"abc"[fixtures:], a=range(4), b=[None, "x"], c=[[1], [2], [3]])
    left = set(items) - effort.beyond_pairs(items)
    assert len(left) < len(items)
    for first, second in itertools.combinations("abc", 2):
        assert len({str((item.params[first], item.params[second])) for item in left}) == len(
            {str((item.params[first], item.params[second])) for item in items}
        )


def test_each_value_is_still_there_with_others_beside_it_each_time(monkeypatch):
    monkeypatch.setattr(Item, "each_value", "marked")
    items = product("a", "b", a=range(4), b="xy")
    left = [tuple(item.params.values()) for item in items if item not in effort.beyond_pairs(items)]
    assert [a for a, _ in left] == [0, 1, 2, 3]
    assert sorted(b for _, b in left) == ["x", "x", "y", "y"]


@pytest.mark.parametrize("marked", [None, "marked"])
def test_slow_values_come_beside_those_that_run_without_them(monkeypatch, marked):
    monkeypatch.setattr(Item, "each_value", marked)
    items = product("a", "b", "c", a=range(4), b="xyz", c=range(3))
    for item in items:
        item.slow = "slow" if item.params["b"] != "z" else None
    quick = [item for item in items if item.slow is None]
    left, left_quick = set(items) - effort.beyond_pairs(items), set(quick) - effort.beyond_pairs(quick)
    assert left_quick < left
    assert {item.params["b"] for item in left} == {*"xyz"}


def test_lists_and_products_of_two_stay_whole():
    rows = [Item("a, b,c", a=a, b=b, c=c) for a, b, c in itertools.product(range(3), repeat=3)]
    pairs = product("a", ("b", "c"), a=range(3), b=range(2), c=range(2))
    assert not effort.beyond_pairs([*rows, *pairs])


def test_different_tests_do_not_stand_for_each_other():
    one, other = product("a", "b", "c", a=[1], b=[1], c=[1]), product("a", "b", "c", "d", a=[1], b=[1], c=[1], d=[1])
    assert not effort.beyond_pairs([*one, *other])


@pytest.mark.parametrize("slow", [False, True])
def test_a_few_cases_of_each_test_are_left_always_the_same(slow):
    many, few = product("a", a=range(20)), product("a", "b", a=range(2), b=[1])
    for item in many[:10]:
        item.slow = "slow" if slow else None
    dropped = effort.beyond_few([*many, *few], slow=slow)
    left = [item for item in many if item not in dropped]
    assert len([item for item in left if item.slow is None]) == (effort.MERGE_CASES if slow else effort.QUICK_CASES)
    assert len([item for item in left if item.slow]) == (effort.SLOW_CASES if slow else 0)
    assert not dropped & {*few}
    assert effort.beyond_few([*many, *few], slow=slow) == dropped
