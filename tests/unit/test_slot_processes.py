"""Slots when their pool closes, and what forked, spawned and dead processes do with them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
from unittest import mock

import pytest
import torch
from children import exit_code, forked
from slots_on_cpu import free

from fastload.memory import slots
from fastload.memory.arena import Mapping
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
        with pytest.raises(OSError, match="closed meanwhile"):
            late.acquire(0)
        with pytest.raises(OSError, match="closed meanwhile"):
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


class Iterator:
    """What opens a pool for its workers."""


def dies_with(writer, take):
    """Return the process id of a child that was killed with a slot or token."""

    def child():
        take(writer)
        os.kill(os.getpid(), signal.SIGKILL)

    pid = forked(child)
    os.waitpid(pid, 0)
    return pid


def takes_a_token(writer):
    writer._take(0)


def takes_a_slot(writer):
    writer.acquire(0)


def marks_half(writer):
    """Take a slot and be interrupted between the two stores that mark it."""
    with mock.patch.object(Mapping, "move", lambda self, index, state, owner: self._owners.__setitem__(index, owner)):
        writer.acquire(0)


def returns_half(writer):
    """Return a slot without its token."""
    stamp, _ = writer.acquire(0)
    with mock.patch.object(SlotWriter, "_put_back"):
        writer.give_back(stamp)


@pytest.mark.parametrize("take", [takes_a_token, takes_a_slot, marks_half, returns_half])
def test_what_a_killed_worker_took_along_is_put_back(make_pool, take):
    pool = make_pool(count=2)
    iterator = Iterator()
    pids = pool.open_for(iterator)
    pids.append(dies_with(SlotWriter(pool.handle), take))
    assert free(pool) == 1
    pool.reclaim()
    assert free(pool) == 2
    pool.reclaim()
    assert free(pool) == 2


def test_a_token_is_not_made_anew_while_a_worker_may_hold_it(make_pool):
    pool = make_pool(count=2)
    iterators, writer = [Iterator()], SlotWriter(pool.handle)
    pids = pool.open_for(iterators[0])
    ready, tells = os.pipe()

    def hold():
        writer._take(0)
        os.write(tells, b".")
        threading.Event().wait(WAIT_S)

    child = forked(hold)
    os.read(ready, 1)
    pool.reclaim()  # the iterator is about to say which workers it has
    assert free(pool) == 1
    pids.append(child)
    iterators.clear()
    pool.open_for(Iterator())  # one whose workers could not start
    pool.reclaim()
    assert free(pool) == 1
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    pool.reclaim()
    assert free(pool) == 2
    os.close(ready)
    os.close(tells)


def test_an_old_arena_is_closed_without_the_tokens_that_killed_workers_took(make_pool):
    pool = make_pool(count=3)
    iterator, writer = Iterator(), SlotWriter(pool.handle)
    pids = pool.open_for(iterator)
    stamp, _ = writer.acquire(0)
    lease = pool.adopt(stamp)
    pids += [dies_with(writer, takes_a_token) for _ in range(2)]
    old = pool._current
    pool.want(4 * PAGE, wait=True)
    pool.reclaim()
    assert free(pool) == pool.counts().slots
    assert old.descriptor >= 0
    lease.release()
    assert old.descriptor < 0
    assert pool.counts().pinned_bytes == pool._current.nbytes


def test_a_slot_that_this_process_has_dropped_while_filling_it_is_freed_after_its_iterator(make_pool):
    pool = make_pool(count=2)
    iterators = [Iterator()]
    pool.open_for(iterators[0])
    SlotWriter(pool.handle).acquire(0)
    pool.reclaim()
    assert free(pool) == 1
    iterators.clear()
    pool.reclaim()
    assert free(pool) == 2


@pytest.mark.slow
def test_workers_that_are_killed_at_any_moment_take_no_slot_along(make_pool):
    pool, iterator, draw = make_pool(count=4), Iterator(), random.Random(0)
    writer = SlotWriter(pool.handle)

    def work():
        while True:
            stamp, _ = writer.acquire(0, 100)
            writer.give_back(stamp)

    for _ in range(25):
        pids = pool.open_for(iterator)
        pids.append(forked(work))
        time.sleep(draw.uniform(0.001, 0.006))
        os.kill(pids[0], signal.SIGKILL)
        os.waitpid(pids[0], 0)
        pool.reclaim()
        assert free(pool) == 4


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
