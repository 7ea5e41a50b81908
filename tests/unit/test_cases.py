"""Many cases in one test: each is looked at, and those that fail are named."""

from __future__ import annotations

import pytest
from cases import check_each


def test_every_combination_is_checked():
    seen = []
    check_each(lambda left, right: seen.append((left, right)), "ab", (1, 2))
    assert seen == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_cases_that_fail_are_named_with_the_first_ones_error():
    def check(left, right):
        assert (left, right) in (("a", 1), ("b", 2)), f"{left} is not {right}"

    with pytest.raises(AssertionError, match=r"(?s)2 of 4 cases failed:.*\('a', 2\).*\('b', 1\)") as caught:
        check_each(check, "ab", (1, 2))
    assert "a is not 2" in str(caught.value.__cause__)


def test_no_case_at_all_is_a_failure():
    with pytest.raises(AssertionError):
        check_each(lambda: None, ())
