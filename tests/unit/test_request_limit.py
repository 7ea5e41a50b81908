"""Requests follow a simulated store's rate, latency and faults, and all are answered."""

from __future__ import annotations

import pickle

import pytest

from fastload.sources.fetcher import (
    ENTRY,
    ERROR,
    FEWEST_REQUESTS,
    FIRST_LIMIT,
    HEADER,
    MOST_REQUESTS,
    Fetcher,
    RequestLimit,
    Setup,
)
from fastload.sources.object_store import shares_of


def run(limit: RequestLimit, seconds: float, *, latency_s: float, most_per_s: float, begin: float = 0.0) -> float:
    """Let requests end as fast as the limit and the store allow; return the time."""
    now = begin
    while now < begin + seconds:
        now += 1 / min(limit.limit / latency_s, most_per_s)
        limit.finished(now, others_wait=True)
    return now


@pytest.mark.parametrize(
    ("latency_s", "most_per_s", "expected"),
    [
        (0.05, 200, FIRST_LIMIT),  # 32 in flight could be 640 a second
        (0.05, 2_000, 128),  # 100 are needed
        (0.05, 4_800, 256),
        (0.2, 100_000, MOST_REQUESTS),
    ],
)
def test_the_number_grows_to_rate_times_latency(latency_s, most_per_s, expected):
    limit = RequestLimit(None)
    now = run(limit, 4.5, latency_s=latency_s, most_per_s=most_per_s)
    assert limit.limit == expected
    run(limit, 60.0, latency_s=latency_s, most_per_s=most_per_s, begin=now)
    assert limit.limit <= 2 * expected  # while it is tried again


def test_the_number_is_tried_again_when_the_store_has_become_faster():
    limit = RequestLimit(None)
    now = run(limit, 3.0, latency_s=0.05, most_per_s=200)
    assert limit.limit == FIRST_LIMIT
    run(limit, 20.0, latency_s=0.05, most_per_s=4_800, begin=now)
    assert limit.limit == 256


def test_a_rate_that_grows_late_is_waited_for():
    limit, now, recent = RequestLimit(None), 0.0, [(0.0, FIRST_LIMIT)]
    while now < 8.0:
        begun = next(number for when, number in reversed(recent) if when <= max(0.0, now - 0.25))
        now += 0.05 / begun
        limit.finished(now, others_wait=True)
        if limit.limit != recent[-1][1]:
            recent.append((now, limit.limit))
    assert limit.limit == MOST_REQUESTS


def test_it_stays_while_no_one_waits_for_a_turn():
    limit = RequestLimit(None)
    for number in range(10_000):
        limit.finished(number / 1_000, others_wait=False)
        assert limit.limit == FIRST_LIMIT


def test_faults_halve_it_at_most_once_a_second_and_it_grows_again():
    limit = RequestLimit(None)
    now = run(limit, 8.0, latency_s=0.05, most_per_s=100_000)
    assert limit.limit == MOST_REQUESTS
    for fault in range(100):
        limit.failed(now + fault / 100)
    assert limit.limit == MOST_REQUESTS // 2
    for second in range(2, 20):
        limit.failed(now + second)
    assert limit.limit == FEWEST_REQUESTS
    run(limit, 8.0, latency_s=0.05, most_per_s=100_000, begin=now + 20)
    assert limit.limit == MOST_REQUESTS


def test_a_number_that_is_given_stays():
    limit = RequestLimit(7)
    run(limit, 5.0, latency_s=0.05, most_per_s=100_000)
    limit.failed(10.0)
    assert limit.limit == 7


def test_processes_share_a_number_that_is_given():
    def shares(requests, processes):
        return [one.requests for one in shares_of(Setup("s3://b", {}, requests, 0, None, 0), processes)]

    assert shares(None, 3) == [None] * 3
    assert shares(10, 4) == [3, 3, 2, 2]
    assert shares(2, 4) == [1, 1]


class Panic(BaseException):
    """As obstore raises them for a panic in Rust."""


class Simulated(Fetcher):
    """A store whose objects a function makes, and whose one thread is the test's."""

    def __init__(self, object_of, retries=2):
        self.answers = {}
        super().__init__(Setup("s3://bucket", {}, 1, retries, None, 0), None, self._note)
        self._object = object_of

    def _start_threads(self):
        pass

    def _note(self, header, pieces):
        number, count = HEADER.unpack(header)
        assert len(pieces) == 2 * count
        heads = [ENTRY.unpack(head) for head in pieces[:count]]
        assert [size for _, size in heads] == [len(data) for data in pieces[count:]]
        entries = zip(heads, pieces[count:], strict=True)
        self.answers[number] = [pickle.loads(data) if kind == ERROR else data for (kind, _), data in entries]
        self._threads = 2 if self._tasks.empty() else 0  # more than the limit: then the thread ends

    def run(self, *messages):
        for message in messages:
            self.take(*message)
        self._work()
        return self.answers


def test_a_panic_of_the_store_is_an_error_that_names_the_key():
    def object_of(key, size, etag):
        if key == "a/1.jpg":
            raise Panic("called unwrap on None")
        return key.encode()

    wanted = [("a/0.jpg", None, None), ("a/1.jpg", None, None)]
    (good, error), second = Simulated(object_of).run((1, wanted), (2, wanted[:1])).values()
    assert (good, second) == (b"a/0.jpg", [b"a/0.jpg"])
    assert type(error) is OSError
    assert str(error) == "s3://bucket/a/1.jpg cannot be read: called unwrap on None"


def test_what_is_cancelled_is_neither_read_nor_answered():
    read = []
    fetcher = Simulated(lambda key, size, etag: read.append(key) or b"")
    wanted = [[(f"{name}.jpg", None, None)] for name in "abc"]
    answers = fetcher.run((1, wanted[0]), (2, wanted[1]), (3, wanted[2]), (2, None), (7, None))
    assert read == ["a.jpg", "c.jpg"]
    assert answers.keys() == {1, 3}


def test_no_objects_are_an_answer():
    fetcher = Simulated(None)
    fetcher.take(5, [])
    assert fetcher.answers == {5: []}
