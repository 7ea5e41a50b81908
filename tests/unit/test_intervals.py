"""Arithmetic with stretches of time, against counting every nanosecond."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fastload.profiling.recording import intervals

END = 40
interval = st.tuples(st.integers(0, END), st.integers(0, END)).map(lambda pair: (min(pair), max(pair)))
some = st.lists(interval, max_size=8)


def moments(spans):
    return {moment for start, end in spans for moment in range(start, end)}


@given(some)
def test_a_union_covers_the_same_time_once_and_in_order(spans):
    union = intervals.union(spans)
    assert moments(union) == moments(spans)
    assert intervals.length(union) == intervals.covered(spans) == len(moments(spans))
    assert all(first[1] < second[0] for first, second in itertools.pairwise(union))


@given(some, interval)
def test_a_part_of_a_union_is_what_clipping_gives(spans, window):
    union = intervals.union(spans)
    assert intervals.part(union, window) == intervals.clip(union, window)
    assert moments(intervals.part(union, window)) == moments(union) & moments([window])


@given(some, some)
def test_what_two_unions_have_in_common(first, second):
    found = intervals.common(intervals.union(first), intervals.union(second))
    assert moments(found) == moments(first) & moments(second)


@given(some, interval)
def test_gaps_and_union_make_up_the_window(spans, window):
    union = intervals.union(spans)
    gaps = intervals.gaps(union, window)
    assert moments(gaps) == moments([window]) - moments(union)


def nested(depth=0, low=0, high=END):
    """Spans that nest, as ranges of one thread do."""
    if depth == 3 or high - low < 3:
        return st.just([])
    cut = st.integers(low, high)
    return st.tuples(cut, cut).flatmap(
        lambda pair: st.tuples(
            st.just([(min(pair), max(pair))] if pair[0] != pair[1] else []),
            nested(depth + 1, min(pair), max(pair)),
            nested(depth + 1, max(pair), high),
        ).map(lambda parts: parts[0] + parts[1] + parts[2])
    )


@given(nested())
def test_each_moment_belongs_to_the_innermost_span(spans):
    pieces = intervals.innermost((start, end, number) for number, (start, end) in enumerate(spans))
    found = {moment: value for start, end, value in pieces for moment in range(start, end)}
    assert found.keys() == moments(spans)
    assert len(found) == sum(end - start for start, end, _ in pieces)
    for moment, value in found.items():
        around = [end - start for start, end in spans if start <= moment < end]
        assert spans[value][1] - spans[value][0] == min(around)


@given(nested(), st.integers(-1, END + 1))
def test_enclosing_finds_all_spans_around_a_moment_the_innermost_first(spans, moment):
    enclosing = intervals.Enclosing((start, end, number) for number, (start, end) in enumerate(spans))
    found = enclosing.at(moment)
    assert set(found) == {number for number, (start, end) in enumerate(spans) if start <= moment < end}
    lengths = [spans[number][1] - spans[number][0] for number in found]
    assert lengths == sorted(lengths)
