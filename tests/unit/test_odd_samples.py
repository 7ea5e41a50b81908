"""Odd samples are made in the turn of their draws."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastload.python_samples.dialogue import TookTooLongError, converse
from fastload.python_samples.odd_samples import MisreadError, OddSamples, PythonError
from fastload.stats.stage_counts import StageCounts

PIPELINE = SimpleNamespace(draws=True, views=1, draws_others=False)


class Job:
    """One that asks for ``requests`` and has not made the samples in ``failed``.

    Each sample draws one number.
    """

    def __init__(self, *requests: tuple[str, int], failed: tuple[int, ...] = (), samples: int = 4) -> None:
        self.requests, self.failed, self.samples = list(requests), failed, samples
        self.answered: list[Any] = []
        self.cancelled = False

    def __len__(self) -> int:
        return self.samples

    def wait(self, timeout_s: float) -> str:
        return "timeout" if timeout_s == 0 else "requested" if self.requests else "done"

    def request(self) -> tuple[str, int, list[float]]:
        return *self.requests.pop(0), [0.0]

    def provide(self, kind: str, question: list[float], answer: list[float]) -> None:
        self.answered.append((kind, *answer))

    def skip(self, after: bytes) -> None:
        self.answered.append(after)

    def cancel(self) -> None:
        self.cancelled = True

    def statuses(self) -> bytes:
        return bytes(sample in self.failed for sample in range(self.samples))

    def generator_before(self, sample: int) -> bytes:
        return b"%d" % sample


def odd_samples(job: Any, raises: tuple[int, ...] = (), misread: int = -1, **options: Any) -> OddSamples:
    def make(sample: int, before: bytes) -> tuple[Any, bytes]:
        after = b"%d" % (int(before) + (10 if sample == misread else 1))
        asked.append((sample, before))
        return OSError(sample) if sample in raises and before == b"%d" % sample else (np.zeros(1), []), after

    asked: list[tuple[int, bytes]] = []
    odd = OddSamples(SimpleNamespace(pipeline=PIPELINE), job, make, StageCounts(), **options)  # type: ignore[arg-type]
    vars(odd)["asked"] = asked
    return odd


def test_questions_are_answered_and_samples_made_in_their_turn():
    job = Job(("exp", 0), ("sample", 1), ("none", 0), ("sample", 3), failed=(1, 2, 3))
    odd = odd_samples(job)
    odd.answer()
    assert job.answered == [("exp", 1.0), b"2", b"4"]
    odd.make([1, 2, 3])
    assert vars(odd)["asked"] == [(1, b"1"), (3, b"3"), (2, b"2")]
    assert sorted(odd.made) == [1, 2, 3]
    assert odd.rewound is None
    assert not job.cancelled


@pytest.mark.parametrize(("raises", "first"), [((2,), 2), ((0, 2), 0), ((1, 2), 1), ((2, 3), 2)])
def test_the_first_sample_that_fails_is_the_error(raises, first):
    job = Job(("sample", 2), failed=(0, 1, 2, 3))
    with pytest.raises(PythonError) as caught:
        odd_samples(job, raises).answer()
    assert (caught.value.sample, caught.value.error.args, caught.value.state) == (first, (first,), b"%d" % (first + 1))
    assert job.cancelled


def test_without_draws_in_a_row_an_error_has_no_state():
    with pytest.raises(PythonError) as caught:
        odd_samples(Job(("sample", 2)), (2,), seeds=[7] * 4)._one(2, b"2")
    assert caught.value.state is None


@pytest.mark.parametrize("raises", [(), (2,)])
def test_behind_a_file_that_pillow_reads_otherwise_all_are_made_anew(raises):
    """Also one that had raised: not from the state that it would have had."""
    job = Job(("sample", 2), failed=(1, 2))
    odd = odd_samples(job, raises, misread=1)
    odd.answer()
    odd.make([1, 2])
    assert odd.rewound == b"13"
    assert vars(odd)["asked"] == [(2, b"2"), (1, b"1"), (2, b"11"), (3, b"12")]
    assert sorted(odd.made) == [1, 2, 3]


def test_an_engine_that_does_not_rewind_is_told():
    odd = odd_samples(Job(failed=(1,)), misread=1, rewinds=False)
    with pytest.raises(MisreadError):
        odd.make([1])


def test_a_dialogue_ends_in_time_or_where_it_is_left():
    job: Any = Job(("sample", 1), ("sample", 2))
    asked: list[int] = []
    assert not converse(job, asked.append)
    assert asked == [1]
    assert converse(job, lambda sample: b"")
    with pytest.raises(TookTooLongError):
        converse(job, asked.append, 0.0)
