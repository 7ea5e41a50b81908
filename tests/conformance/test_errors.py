"""Errors have torch's types, texts and worker tracebacks; loading continues as torch's does."""

from __future__ import annotations

import multiprocessing
import pickle
from functools import partial

import pytest
import torch
from backends import normal, raised_by
from backends.datasets import Failing, FailingStream, Gated, Numbers, Stream, collect

workers = pytest.mark.parametrize("num_workers", [0, 2])


class TwoArguments(Exception):
    """Cannot be made from a message alone."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)


def each(iterator, most=20):
    """Batches and errors as they come."""
    seen = []
    while len(seen) < most:
        try:
            seen.append(next(iterator))
        except Exception as error:
            error.__traceback__ = None  # the frames are a cycle with it; torch takes long to end workers in a cycle
            if isinstance(error, StopIteration):
                return [*seen, "end"]
            seen.append((type(error), normal(str(error))))
    return seen


ERRORS = {
    "ValueError": partial(ValueError, "not this one"),
    "KeyError": partial(KeyError, "missing"),
    "several lines": partial(OSError, "one\ntwo"),
    "two arguments": partial(TwoArguments, 5, "odd"),
    "assertion": AssertionError,
    "StopIteration": partial(StopIteration, "early"),
}


@workers
@pytest.mark.parametrize("error", ERRORS)
def test_dataset_errors(backend, num_workers, error):
    def case(loader_class):
        loader = loader_class(Failing(12, {3, 8}, ERRORS[error]), batch_size=2, num_workers=num_workers)
        return each(iter(loader))

    seen = backend.same(case).value
    if num_workers and error == "ValueError":
        kind, text = seen[1]
        assert kind is ValueError
        assert "Caught ValueError in DataLoader worker process 1." in text
        assert "in __getitem__\n    raise self.error()" in text


def test_an_error_leaves_the_loader_usable(backend):
    def case(loader_class):
        data = Failing(8, {1}, ERRORS["ValueError"])
        loader = loader_class(data, batch_size=2, num_workers=2, persistent_workers=True)
        first = each(iter(loader), most=2)
        second = each(iter(loader))
        return first, second, each(iter(loader))

    backend.same(case)


def refusing_two(samples):
    if samples[0][1] == 2:
        raise LookupError(f"cannot collate {len(samples)}")
    return samples


@workers
def test_collate_errors_and_their_traceback(backend, num_workers):
    def case(loader_class):
        return each(iter(loader_class(Numbers(6), batch_size=2, num_workers=num_workers, collate_fn=refusing_two)))

    kind, text = backend.same(case).value[1]
    assert kind is LookupError
    assert ("in DataLoader worker process 1" in text) == bool(num_workers)


@workers
def test_default_collate_errors(backend, num_workers):
    def case(loader_class):
        data = [torch.zeros(2), torch.zeros(3), torch.zeros(2), "text"]
        return each(iter(loader_class(data, batch_size=2, num_workers=num_workers)))

    backend.same(case)


def refusing_worker_one(worker_id):
    if worker_id == 1:
        raise PermissionError("worker may not start")


def test_worker_init_errors(backend):
    def case(loader_class):
        return each(iter(loader_class(Numbers(6), batch_size=2, num_workers=2, worker_init_fn=refusing_worker_one)))

    assert PermissionError in [seen[0] for seen in backend.same(case).value]


@workers
def test_stream_errors(backend, num_workers):
    def case(loader_class):
        return each(iter(loader_class(FailingStream([1]), num_workers=num_workers)), most=4)

    assert OSError in [seen[0] for seen in backend.same(case).value]


class Faulty(torch.utils.data.Sampler):
    def __iter__(self):
        yield from range(5)
        raise RuntimeError("no more indices")

    def __len__(self):
        return 9


@workers
def test_sampler_errors(backend, num_workers):
    def case(loader_class):
        return each(iter(loader_class(Numbers(9), batch_size=2, sampler=Faulty(), num_workers=num_workers)), most=4)

    backend.same(case)


def test_a_stream_that_cannot_begin(backend):
    class Unreadable(Stream):
        def __iter__(self):
            raise FileNotFoundError("no such stream")

    def case(loader_class):
        in_process = raised_by(lambda: iter(loader_class(Unreadable([1]))))
        in_worker = raised_by(lambda: next(iter(loader_class(Unreadable([1]), num_workers=1))))
        return type(in_process), str(in_process), type(in_worker), normal(str(in_worker))

    backend.same(case)


def test_timeout(backend):
    def case(loader_class):
        reached, gate = multiprocessing.Event(), multiprocessing.Event()
        try:
            iterator = iter(loader_class(Gated(4, 1, reached, gate), num_workers=1, timeout=0.4))
            assert reached.wait(60)  # the first batch is made
            return each(iterator, most=2)[-1]
        finally:
            gate.set()  # a worker that is stuck would take torch five seconds to end

    kind, text = backend.same(case).value
    assert (kind, text) == (RuntimeError, "DataLoader timed out after 0.4 seconds")


def test_timeout_without_workers(backend):
    error = backend.same(lambda loader_class: collect(loader_class(Numbers(2), timeout=1))).error
    assert error is not None
    assert error[0] is AssertionError


UNPICKLABLE = {
    "dataset": lambda: {"dataset": type("Local", (Numbers,), {})(4)},
    "collate_fn": lambda: {"collate_fn": lambda samples: samples},
    "worker_init_fn": lambda: {"worker_init_fn": lambda worker_id: None},
}


@pytest.mark.parametrize("what", UNPICKLABLE)
@pytest.mark.parametrize("persistent", [False, True])
def test_what_cannot_be_sent_to_a_spawned_worker(backend, what, persistent):
    def case(loader_class):
        own = {"dataset": Numbers(4), "num_workers": 1, "persistent_workers": persistent, **UNPICKLABLE[what]()}
        iter(loader_class(multiprocessing_context="spawn", **own))

    outcome = backend.same(case)
    assert outcome.error is not None
    assert "pickle" in outcome.error[1] or "get local object" in outcome.error[1]


@workers
def test_an_iterator_cannot_be_pickled(backend, num_workers):
    def case(loader_class):
        iterator = iter(loader_class(Numbers(4), num_workers=num_workers))
        return type(raised_by(lambda: pickle.dumps(iterator)))

    assert backend.same(case).value is NotImplementedError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's own, of what it half made
def test_prefetch_factor_zero(backend):
    def case(loader_class):
        iter(loader_class(Numbers(4), num_workers=1, prefetch_factor=0))

    assert backend.same(case).error is not None
