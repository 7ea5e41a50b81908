"""Slots when their pool closes, and what forked, spawned and dead processes do with them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from unittest import mock

import pytest
import torch
from children import exit_code, forked
from slots_on_cpu import free

from fastload.memory import slots
from fastload.memory.slots import PAGE, SlotState, SlotWriter, Stamp

WAIT_S = 60  # longer than any machine takes, short of the test's own limit


# Closing.


def test_closing_while_an_arena_is_made_waits_for_it(make_pool):
    pool = make_pool(slot_bytes=0)
    begun, go_on, made = threading.Event(), threading.Event(), []

    class Slow(slots.Arena):
        def __init__(self, *args, **own):
            begun.set()
            go_on.wait(WAIT_S)
            super().__init__(*args, **own)
            made.append(self)

    with mock.patch.object(slots, "Arena", Slow):
        pool.want(PAGE)
        assert begun.wait(WAIT_S)
        closing = threading.Thread(target=pool.close)
        closing.start()
        go_on.set()
        closing.join(WAIT_S)
    assert not closing.is_alive()
    assert made[0].descriptor < 0
    pool.want(PAGE, wait=True)
    assert pool.counts().slots == 0


def test_a_lease_outlives_its_pool(make_pool):
    pool = make_pool()
    stamp, buffer = SlotWriter(pool.handle).acquire(0)
    buffer.fill_(9)
    lease = pool.adopt(stamp)
    pool.close()
    assert lease.buffer[0] == 9
    lease.release()
    with pytest.raises(RuntimeError, match="was taken back"):
        pool.adopt(stamp)


def test_a_writer_that_comes_too_late_opens_no_other_file(make_pool, tmp_path):
    """The numbers of closed descriptors now belong to other files, which must stay untouched."""
    pool = make_pool(count=2)
    used = SlotWriter(pool.handle)
    token = used._take(0)
    handle, numbers = pool.handle, [token.descriptor, *pool.handle.homes[0][:2]]
    late = SlotWriter(handle)
    pool.close()
    content = token.pack() * 1000
    (tmp_path / "file").write_bytes(content)
    other = os.open(tmp_path / "file", os.O_RDWR)
    try:
        for number in numbers:
            os.dup2(other, number)
        with pytest.raises(OSError, match="the pool is closed"):
            late.acquire(0)
        with pytest.raises(OSError, match="the pool is closed"):
            used.acquire(0)
        assert os.lseek(other, 0, os.SEEK_CUR) == 0
        assert (tmp_path / "file").read_bytes() == content
    finally:
        for number in numbers:
            os.close(number)
        if other not in numbers:
            os.close(other)


def test_a_slot_that_cannot_be_mapped_is_put_back(make_pool):
    pool = make_pool(count=2)
    writer = SlotWriter(pool.handle)
    no_room = mock.patch("mmap.mmap", side_effect=OSError(12, "Cannot allocate memory"))
    with no_room, pytest.raises(OSError, match="Cannot allocate"):
        writer.acquire(0)
    assert free(pool) == 2


# Other processes.


def test_a_writer_travels_without_what_it_has_opened(make_pool):
    pool = make_pool()
    writer = SlotWriter(pool.handle)
    stamp, _ = writer.acquire(0)
    copy = pickle.loads(pickle.dumps(writer))
    assert copy.handle == pool.handle
    assert copy._ends == copy._mappings == {}
    assert copy.acquire(0)[0].token.index != stamp.token.index


def fill(connection, writer):
    acquired = writer.acquire(0, 10)
    acquired[1][:10] = torch.arange(10, dtype=torch.uint8)
    connection.send(acquired[0])
    connection.recv()


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_another_process_fills_a_slot(make_pool, method):
    pool = make_pool(homes=2)
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    with here, there:
        process = context.Process(target=fill, args=(there, SlotWriter(pool.handle)), daemon=True)
        process.start()
        assert here.poll(WAIT_S)
        stamp = here.recv()
        assert stamp.pid == process.pid
        pool.reclaim()  # it is alive: nothing is taken from it
        assert pool._current.mapping.state(stamp.token.index) == SlotState.FILLING
        lease = pool.adopt(stamp)
        assert lease.buffer[:10].tolist() == list(range(10))
        lease.release()
        here.send(None)
        process.join()
        process.close()


@pytest.mark.parametrize("reaped", [True, False])
def test_a_slot_of_a_dead_worker_is_taken_back(make_pool, reaped):
    pool = make_pool(count=2)
    writer = SlotWriter(pool.handle)
    child = forked(lambda: writer.acquire(0) and os._exit(0))
    os.waitid(os.P_PID, child, os.WEXITED | (0 if reaped else os.WNOWAIT))
    try:
        stamp = Stamp(pool._current.token(0, 0), child)
        assert pool._current.mapping.state(0) == SlotState.FILLING
        pool.reclaim()
        assert free(pool) == 2
        with pytest.raises(RuntimeError, match=f"of worker process {child} was taken back"):
            pool.adopt(stamp)
    finally:
        if not reaped:
            os.waitpid(child, 0)


def test_a_forked_child_neither_frees_nor_closes_what_is_its_parents(make_pool):
    pool = make_pool(count=2)
    stamp, buffer = SlotWriter(pool.handle).acquire(0)
    buffer.fill_(3)
    leases = [pool.adopt(stamp)]

    def in_child():
        leases.clear()
        pool.close()
        assert os.fstat(pool._current.descriptor)
        assert pool._current.mapping.state(0) == SlotState.READY

    assert exit_code(forked(in_child)) == 0
    assert pool._current.mapping.state(0) == SlotState.READY
    assert leases[0].buffer[0] == 3
    assert free(pool) == 1
    leases[0].release()
    assert free(pool) == 2


def test_a_child_forked_while_the_pool_was_at_work_can_end(make_pool):
    pool = make_pool(count=2)
    stamp, _ = SlotWriter(pool.handle).acquire(0)
    leases = [pool.adopt(stamp)]
    held, forked_now = threading.Event(), threading.Event()

    def at_work():
        with pool._lock:
            held.set()
            forked_now.wait(WAIT_S)

    thread = threading.Thread(target=at_work)
    thread.start()
    assert held.wait(WAIT_S)

    def in_child():
        leases.clear()
        pool.close()

    child = forked(in_child)
    forked_now.set()
    thread.join()
    assert exit_code(child) == 0
