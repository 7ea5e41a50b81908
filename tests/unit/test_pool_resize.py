"""The decode pool's size, changed while it works."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from children import exit_code, forked
from jpeg_writer import write_jpeg

from fastload import _core
from fastload.vision._pools import close_pools

SIDE = 24


@pytest.fixture(autouse=True)
def no_other_pools():
    close_pools()


@pytest.fixture
def pool():
    pool = _core.Pool(2)
    yield pool
    pool.close()


def decode_threads() -> list[str]:
    """Names of this process's decode threads, as the system knows them."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except FileNotFoundError:  # ended meanwhile
            continue
        if name.startswith("fl-decode-"):
            names.append(name)
    return sorted(names)


def wait_for_threads(count: int) -> list[str]:
    end = time.monotonic() + 60
    while len(decode_threads()) != count and time.monotonic() < end:
        time.sleep(0.005)
    return decode_threads()


def submit(pool: _core.Pool, count: int) -> tuple[_core.Job, np.ndarray]:
    out = np.zeros((count, SIDE, SIDE, 3), np.uint8)
    plan = _core.DrawPlan()
    plan.add("random_crop_v1", height=SIDE, width=SIDE)
    images = [write_jpeg(60 + i % 5, 80, seed=i % 7) for i in range(count)]
    return pool.submit(images, out, plan=plan, stream=_core.RandomStream.from_seed(3)), out


def test_threads_come_and_go_under_the_lowest_free_names(pool):
    assert pool.resize(5) == pool.threads == 5
    assert wait_for_threads(5) == [f"fl-decode-{i}" for i in range(5)]
    assert pool.resize(1) == pool.threads == 1
    assert wait_for_threads(1) == ["fl-decode-0"]
    assert pool.resize(3) == 3
    assert wait_for_threads(3) == [f"fl-decode-{i}" for i in range(3)]


def test_less_than_one_thread_is_one(pool):
    assert pool.resize(0) == 1
    assert pool.resize(-5) == 1


@pytest.mark.slow
def test_batches_are_the_same_whatever_the_size_does(pool):
    expected_job, expected = submit(pool, 300)
    assert expected_job.wait(60.0) == "done"
    sizes = itertools.cycle([1, 4, 2, 6, 1, 3])
    stop = threading.Event()

    def resize():
        while not stop.is_set():
            pool.resize(next(sizes))

    resizer = threading.Thread(target=resize)
    resizer.start()
    try:
        for _ in range(3):
            job, out = submit(pool, 300)
            assert job.wait(60.0) == "done"
            assert not any(job.statuses())
            np.testing.assert_array_equal(out, expected)
    finally:
        stop.set()
        resizer.join()


def test_a_shrunken_pool_goes_on_alone_and_a_grown_one_shares(pool):
    pool.resize(4)
    job, _ = submit(pool, 200)
    pool.resize(1)
    assert job.wait(60.0) == "done"
    assert wait_for_threads(1) == ["fl-decode-0"]


def test_work_is_counted_over_threads_that_have_ended_too(pool):
    assert pool.work_done() == (0.0, 0)
    begun = time.perf_counter()
    job, _ = submit(pool, 50)
    assert job.wait(60.0) == "done"
    pool.resize(1)
    job, _ = submit(pool, 30)
    assert job.wait(60.0) == "done"
    took = time.perf_counter() - begun
    pool.close()  # no task is still being counted
    seconds, samples = pool.work_done()
    assert samples == 80
    assert 0 < seconds <= 2 * took


def test_a_closed_pool_cannot_be_resized():
    pool = _core.Pool(1)
    pool.close()
    with pytest.raises(RuntimeError, match="must be open to be resized, but it is closed"):
        pool.resize(2)


def test_closing_joins_the_threads_that_were_too_many():
    pool = _core.Pool(6)
    pool.resize(2)
    pool.close()
    assert wait_for_threads(0) == []


def test_a_forked_child_can_neither_resize_nor_hang():
    pool = _core.Pool(2)

    def resizes():
        assert pool.work_done() == (0.0, 0)
        with pytest.raises(RuntimeError, match="in the process that made it"):
            pool.resize(3)

    assert exit_code(forked(resizes)) == 0
    pool.close()
