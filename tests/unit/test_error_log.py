"""What is known of samples that raise, and which indices may replace them."""

from __future__ import annotations

import copy
import errno
import json
import pickle
import threading
import types
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch.utils.data import BatchSampler

from fastload.bad_samples import (
    FOLLOWING,
    BatchIndices,
    Checked,
    ErrorLog,
    IndicesAhead,
    LeftOut,
    SampleError,
    TooManyBadSamplesError,
    candidates,
    described,
    failed_with,
    is_of_sample,
)
from fastload.python_samples.odd_samples import OddSamples, PythonError
from fastload.stats.stage_counts import StageCounts


class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Odd:
    def __repr__(self):
        return "odd"


def test_batches_know_what_follows_in_the_epochs_order():
    order = list(range(200))
    for size in (1, 7, 64, 100, 200, 300):
        batches = list(IndicesAhead(BatchSampler(order, size, drop_last=False)))
        assert [list(batch) for batch in batches] == [order[at : at + size] for at in range(0, 200, size)]
        for number, batch in enumerate(batches):
            end = min(200, (number + 1) * size)
            assert list(batch.following) == (order[end:] + order)[:FOLLOWING]
    assert len(IndicesAhead(BatchSampler(order, 7, drop_last=True))) == 28


def test_no_more_is_drawn_ahead_than_may_be_needed():
    drawn = []

    class Counting:
        def __iter__(self):
            for at in range(1000):
                drawn.append(at)
                yield [at] * 16

    batches = iter(IndicesAhead(Counting()))
    next(batches)
    assert len(drawn) == 1 + FOLLOWING // 16
    next(batches)
    assert len(drawn) == 2 + FOLLOWING // 16


def test_candidates_come_from_the_batch_first():
    (batch,) = IndicesAhead([(3, 4, 5)])
    assert (list(batch), list(candidates(batch, 1))) == ([3, 4, 5], [5, 3, 3, 4, 5])
    assert list(candidates([3, 4, 5], 2)) == [3, 4]
    sent = pickle.loads(pickle.dumps(batch))
    assert (type(sent), sent, sent.following) == (BatchIndices, batch, batch.following)


def test_what_cannot_be_blamed_on_a_sample():
    whose = (OSError(errno.EIO, "x"), ValueError(), KeyError(), StopIteration())
    assert all(is_of_sample(error) for error in whose)
    others = (MemoryError(), torch.OutOfMemoryError(), OSError(errno.EMFILE, "x"), KeyboardInterrupt(), SystemExit())
    assert not any(is_of_sample(error) for error in others)


def test_errors_and_indices_of_any_kind_are_described():
    assert described(Silent()) == "Silent"
    assert described(ValueError("x" * 1000)) == f"ValueError: {'x' * 500}"
    assert [failed_with(index, None, KeyError("k")).error.index for index in (3, True, "a", (1, 2), Odd(), None)] == [
        *(3, 1, "a", "(1, 2)", "odd", None)
    ]
    missing = failed_with(1, None, FileNotFoundError(errno.ENOENT, "none", "/x")).error
    assert str(missing) == "sample 1 (/x) raised FileNotFoundError: [Errno 2] none: '/x'"
    assert str(SampleError(None, None, "E: e")) == "a sample raised E: e"


def test_a_state_has_all_that_is_known():
    log = ErrorLog()
    log.note(50, [failed_with(1, "a", OSError("x")), failed_with(None, None, OSError("y"))], 100)
    log.note(50, [failed_with(1, "a", OSError("z")), failed_with("k", None, OSError("y"))], 100)
    packed = json.loads(json.dumps(log.packed()))
    other = ErrorLog()
    other.load(packed)
    assert (other.listed(), other.packed(), other.failed) == (log.listed(), packed, 4)
    assert [error.times for error in log.listed()] == [2, 1, 1]
    assert log.listed()[0].error == "OSError: x"
    other.load(None)
    assert (other.listed(), other.tried) == ([], 0)


def test_samples_without_an_index_count_each_time():
    log = ErrorLog()
    for _ in range(3):
        log.note(1, [failed_with(None, None, OSError("y"))], 3)
    with pytest.raises(TooManyBadSamplesError, match="but 4 did"):
        log.note(1, [failed_with(None, None, OSError("y"))], 3)


def test_a_long_list_is_cut():
    log = ErrorLog()
    with pytest.raises(TooManyBadSamplesError) as caught:
        log.note(100, [failed_with(index, None, OSError("y")) for index in range(30)], 0.2)
    text = str(caught.value)
    assert "30 of 100 did" in text
    assert text.endswith("\n  and 10 more, which loader.errors() lists")
    assert len(caught.value.errors) == 30


def test_several_threads_lose_no_count():
    log = ErrorLog()
    failed = [failed_with(1, "a", OSError("x"))]
    threads = [threading.Thread(target=lambda: [log.note(1, failed, 1.0) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (log.tried, log.failed, log.listed()[0].times) == (2000, 2000, 2000)


def test_a_batch_stays_itself_when_it_is_pinned_copied_or_sent():
    batch = Checked(LeftOut, 2, [failed_with(1, None, OSError("x"))])
    assert pickle.loads(pickle.dumps(batch)) == copy.deepcopy(batch) == batch
    assert pickle.loads(pickle.dumps(batch)).data is LeftOut


@dataclass
class Pipeline:
    draws: bool = False
    views: int = 1


def test_an_error_that_is_no_samples_ends_its_native_batch():
    def make(sample, before):
        return types.SimpleNamespace(summary="OSError: damaged" if sample == 1 else None), b""

    recipe: Any = types.SimpleNamespace(pipeline=Pipeline())
    odd = OddSamples(recipe, cast("Any", [0, 1, 2]), cast("Any", make), StageCounts(), starts={})
    odd.make([1])
    assert list(odd.bad) == [1]
    with pytest.raises(PythonError):
        odd.make([2])
    with pytest.raises(PythonError):
        OddSamples(recipe, cast("Any", [0, 1, 2]), cast("Any", make), StageCounts()).make([1])


def test_no_share_at_all_is_judged_at_once():
    log = ErrorLog()
    log.note(4, [], 0.0)
    with pytest.raises(TooManyBadSamplesError, match=r"at most max_errors=0\.0 samples may fail, but 1 did"):
        log.note(4, [failed_with(3, None, OSError("cut"))], 0.0)


def test_a_count_goes_on_from_a_state():
    log, other = ErrorLog(), ErrorLog()
    for index in (3, 3, None, None):
        log.note(4, [failed_with(index, None, OSError("cut"))], 9)
    other.load(log.packed())
    with pytest.raises(TooManyBadSamplesError, match="but 4 did"):
        other.note(4, [failed_with(5, None, OSError("cut"))], 3)


def test_errors_whose_attributes_raise_are_described():
    class OddError(Exception):
        path = property(lambda self: 1 / 0)
        filename = ("a", "b")

    class Odd:
        def __repr__(self):
            raise LookupError

    error = failed_with(Odd(), None, OddError("odd")).error
    assert (error.index, error.file, error.error) == ("<Odd>", None, "OddError: odd")
