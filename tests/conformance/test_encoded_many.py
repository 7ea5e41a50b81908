"""Test that a dataset may be asked for a batch at once, and answer later."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from photos import Encoded, train_v1
from torch.utils.data import DataLoader, Subset

from fastload import FastLoader

BATCH = 4


class Many(Encoded):
    """Answers in a list."""

    def __init__(self, count=24):
        super().__init__(train_v1(), count)
        self.asked = []

    def entries(self, indices):
        return [self.encoded(index) for index in indices]

    def encoded_many(self, indices):
        self.asked.append(indices)
        return self.entries(indices)


class Later(Many):
    """Answers in the background, the last batch first, once ``together`` batches are asked for."""

    def __init__(self, count=24, together=3):
        super().__init__(count)
        self.together, self.waiting = together, []

    def encoded_many(self, indices):
        future: Future = Future()
        self.asked.append(indices)
        self.waiting.append((future, indices))
        if len(self.waiting) >= self.together or len(self.asked) * BATCH >= len(self):
            threading.Thread(target=self.answer, args=(self.waiting,)).start()
            self.waiting = []
        return future

    def answer(self, waiting):
        for future, indices in reversed(waiting):
            time.sleep(0.002)
            if future.set_running_or_notify_cancel():
                future.set_result(self.entries(indices))


def batches(kind, dataset, workers=2, **options):
    torch.manual_seed(3)
    loader = kind(dataset, batch_size=BATCH, shuffle=True, num_workers=workers, **options)
    return [(images.clone(), target) for images, target in loader]


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for (images, target), (expected, labels) in zip(ours, theirs, strict=True):
        assert torch.equal(images, expected)
        assert torch.equal(target["label"], labels["label"])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [Many, lambda: Later(together=1)])
def test_same_batches_as_torch(make, workers):
    dataset = make()
    assert_equal(
        batches(FastLoader, dataset, workers, engine="native"), batches(DataLoader, Encoded(train_v1(), 24), workers)
    )
    assert len(dataset.asked) >= 24 // BATCH
    assert {len(indices) for indices in dataset.asked} == {BATCH}


def test_several_batches_are_asked_for_before_the_first_answer():
    """More than are decoded at once; each is otherwise made in turn."""
    dataset = Later(count=48, together=4)
    ours = batches(FastLoader, dataset, engine="native", prefetch_factor=4)
    assert_equal(ours, batches(DataLoader, Encoded(train_v1(), 48)))


def test_within_subsets():
    order = [5, 3, 8, 1, 2, 9, 11, 0]
    nested = Subset(Subset(Later(together=1), order), [7, 0, 3, 4, 5, 1])
    plain = Subset(Subset(Encoded(train_v1(), 24), order), [7, 0, 3, 4, 5, 1])
    assert_equal(batches(FastLoader, nested, engine="native"), batches(DataLoader, plain))


class OneByOne(Encoded):
    def encoded(self, index):
        if index == 9:
            raise KeyError(index)
        return super().encoded(index)


class Failing(OneByOne):
    def encoded_many(self, indices):
        return [KeyError(index) if index == 9 else self.encoded(index) for index in indices]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_is_raised_in_its_samples_turn(workers):
    def run(dataset):
        torch.manual_seed(3)
        iterator, seen = iter(FastLoader(dataset, batch_size=BATCH, num_workers=workers, engine="native")), []
        for _ in range(24 // BATCH):
            try:
                seen.append(next(iterator)[0])
            except KeyError:
                seen.append(torch.zeros(1))
        return seen

    ours, theirs = run(Failing(train_v1(), 24)), run(OneByOne(train_v1(), 24))
    assert list(map(torch.equal, ours, theirs)) == [True] * 6
    assert [images.numel() for images in ours].count(1) == 1


def test_an_error_of_the_whole_answer_is_that_of_its_first_sample():
    class Broken(Many):
        def encoded_many(self, indices):
            raise ConnectionError("no network") if 4 in indices else self.entries(indices)

        def entries(self, indices):
            raise OSError("nothing either")

    with pytest.raises((ConnectionError, OSError), match=r"nothing either|no network"):
        next(iter(FastLoader(Broken(), batch_size=BATCH, num_workers=2, engine="native")))


def test_answers_of_another_length_are_refused():
    class Short(Many):
        def entries(self, indices):
            return super().entries(indices)[1:]

    with pytest.raises(ValueError, match=r"encoded_many\(\) must return an entry for each of 4 indices, got 3"):
        next(iter(FastLoader(Short(), batch_size=BATCH, num_workers=2, engine="native")))


def test_a_batch_does_not_wait_for_the_answers_of_later_ones():
    class First(Later):
        def encoded_many(self, indices):
            future = super().encoded_many(indices)
            if 0 in indices:
                future.set_result(self.entries(indices))
            return future

    loader = FastLoader(First(48, 10**6), batch_size=BATCH, num_workers=2, engine="native", timeout=5)
    assert next(iter(loader))[1]["label"].tolist() == [0, 1, 2, 3]


def test_break_cancels_what_is_not_answered():
    dataset = Later(count=48, together=10**6)
    iterator = iter(FastLoader(dataset, batch_size=BATCH, num_workers=2, engine="native"))
    waiting = dataset.waiting
    until = time.monotonic() + 20
    while len(waiting) < 2 and time.monotonic() < until:
        time.sleep(0.001)
    del iterator
    assert len(waiting) >= 2
    assert all(future.cancelled() for future, _ in waiting)


def test_what_never_answers_is_too_late():
    loader = FastLoader(Later(count=48, together=10**6), batch_size=BATCH, num_workers=2, engine="native", timeout=0.2)
    with pytest.raises(RuntimeError, match="timed out"):
        next(iter(loader))


def test_batches_may_also_be_fetched_in_workers():
    """A dataset with torch's method for whole batches needs this one, too."""

    class Both(Many):
        def __getitems__(self, indices):
            return [self[index] for index in indices]

    class One(Encoded):
        def __getitems__(self, indices):
            return [self[index] for index in indices]

    assert FastLoader(Both(), num_workers=2).plan.engine == "native"
    loader = FastLoader(One(train_v1()), num_workers=2)
    assert loader.plan.engine != "native"
    assert "give it encoded_many(indices) too" in str(loader.plan)


def test_a_pool_of_threads_is_a_source():
    with ThreadPoolExecutor(8) as pool:

        class Pooled(Many):
            def encoded_many(self, indices):
                return pool.submit(self.entries, indices)

        assert_equal(batches(FastLoader, Pooled(), engine="native"), batches(DataLoader, Encoded(train_v1(), 24)))
