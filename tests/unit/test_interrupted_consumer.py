"""Interrupting next() or close() at any moment neither hangs nor leaks."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest
import torch
from backends import simulated
from backends.datasets import Numbers
from interrupts import interrupted_at_every_opcode

from fastload import FastLoader
from fastload._batch import HostBatch
from fastload.device import copy_scheduler, feeder
from fastload.device.copy_scheduler import CopyScheduler
from fastload.memory import slots
from fastload.memory.arena import SlotState, Token
from fastload.memory.slots import SlotPool, SlotWriter
from fastload.torch_workers import signals

# Python prints what is raised in the callback of a weak reference, and goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WAIT_S = 30
LONG_S = 100.0  # what a join is bounded by here, so that a busy machine is told from a join that ran into it
PROMPT_S = LONG_S / 2


class InstantTransfer:
    """Hands over what it was given."""

    device = torch.device("cpu")

    class Copied:
        stages = ()

        def __init__(self, data):
            self.data = data

    def start(self, data, number, *, small=None, on_copied=None):
        return self.Copied(data)

    def take(self, copied):
        return copied.data

    def wait_copied(self):
        pass

    def close(self):
        pass


def feeders():
    return [thread for thread in threading.enumerate() if thread.name == "fastload-copy-scheduler"]


def closes_promptly(close):
    before = time.monotonic()
    close()
    assert time.monotonic() - before < PROMPT_S
    for thread in feeders():  # one that was not known yet ends by itself
        thread.join(WAIT_S)
    assert feeders() == []


@pytest.fixture(autouse=True)
def few_moments(monkeypatch):
    """Deferring takes bytecodes for each signal number; the one that matters will do."""
    monkeypatch.setattr(signals, "_NUMBERS", (signal.SIGINT,))
    for module in (feeder, copy_scheduler, slots):
        monkeypatch.setattr(module, "JOIN_S", LONG_S)


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)


def test_taking_a_batch(device):
    def make():
        scheduler = CopyScheduler(InstantTransfer(), 1, 1, False, None)
        return scheduler, [HostBatch(number, 0, scheduler.key).pin_memory() for number in range(3)]

    def check(subject, interrupted):
        scheduler, queue = subject
        assert [scheduler.take(arrival) for arrival in queue[1:]] == [1, 2]
        closes_promptly(scheduler.close)

    assert interrupted_at_every_opcode(make, lambda subject: subject[0].take(subject[1][0]), check) > 50


def test_the_arrival_of_a_batch_in_the_consumers_thread(device):
    """As without workers; here the thread is started."""

    def make():
        return CopyScheduler(InstantTransfer(), 1, 1, False, None)

    def check(scheduler, interrupted):
        assert scheduler.take(HostBatch(1, 0, scheduler.key).pin_memory()) == 1
        closes_promptly(scheduler.close)

    assert interrupted_at_every_opcode(make, lambda scheduler: HostBatch(0, 0, scheduler.key).pin_memory(), check) > 100


def test_closing_arrivals(device):
    def make():
        scheduler = CopyScheduler(InstantTransfer(), 1, 1, False, None)
        HostBatch(0, 0, scheduler.key).pin_memory()
        return scheduler

    assert (
        interrupted_at_every_opcode(make, CopyScheduler.close, lambda scheduler, _: closes_promptly(scheduler.close))
        > 30
    )


def test_the_feeder_ends_with_its_owner_though_nobody_closes(device):
    class Owner:
        pass

    owner = Owner()
    scheduler = CopyScheduler(InstantTransfer(), 1, 1, False, None)
    scheduler.serve(owner)
    HostBatch(0, 0, scheduler.key).pin_memory()
    thread = scheduler._thread
    assert thread.is_alive()
    del owner
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_closing_an_iterator(monkeypatch):
    simulated.install(monkeypatch)
    loaders = []

    def make():
        loader = FastLoader(Numbers(8), batch_size=2, device="cuda")
        iterator = iter(loader)
        next(iterator)
        loaders[:] = [loader]
        return iterator

    def check(iterator, interrupted):
        closes_promptly(iterator._shutdown_workers)
        assert iterator.is_closed
        assert loaders[0]._state._before["copied"] == iterator.transfer.batches  # once
        loaders[0].close()

    assert interrupted_at_every_opcode(make, lambda iterator: iterator._shutdown_workers(), check) > 100


def test_asking_for_the_next_batch(monkeypatch):
    simulated.install(monkeypatch)

    def make():
        loader = FastLoader(range(4), batch_size=None, device="cuda")
        return loader, iter(loader)

    def check(subject, interrupted):
        loader, iterator = subject
        next(iterator, None)  # a sampler that is a generator does not survive an interrupt
        closes_promptly(loader.close)

    assert interrupted_at_every_opcode(make, lambda subject: next(subject[1]), check) > 200


@pytest.mark.slow
def test_dropping_an_iterator(monkeypatch):
    """The thread ends even if Python loses a finalizer's call; its resources can be freed.

    An interrupt is raised after the finalizers. Python loses it only where one of them begins.
    """
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: None)  # pytest's keeps what was in use
    simulated.install(monkeypatch)
    raised = []

    def make():
        loader = FastLoader(range(4), batch_size=None, device="cuda")
        iterators = [iter(loader)]
        next(iterators[0])
        return iterators, loader._state.slots

    def check(subject, interrupted):
        iterators, slots = subject
        raised.append(interrupted)
        closes_promptly(iterators.clear)
        slots.close()

    assert interrupted_at_every_opcode(make, lambda subject: subject[0].clear(), check) > 100
    assert raised.count(False) <= 2 + 0.02 * len(raised)


def test_closing_slots():
    def make():
        pool = SlotPool(4, 1 << 20, register=False)
        pool.want(1000, wait=True)
        return pool

    def check(pool, interrupted):
        pool.close()
        assert os.listdir("/proc/self/fd") == before

    before = os.listdir("/proc/self/fd")
    assert interrupted_at_every_opcode(make, SlotPool.close, check) > 100


def test_asking_for_slots():
    """A thread makes them, which is started here."""

    def check(pool, interrupted):
        before = time.monotonic()
        pool.close()
        assert time.monotonic() - before < PROMPT_S

    assert interrupted_at_every_opcode(lambda: SlotPool(4, 1 << 20, register=False), lambda p: p.want(1000), check) > 50


def test_reaching_the_slots():
    """No descriptor is lost, in a worker that opens its own or here."""
    pool = SlotPool(2, 1 << 20, register=False)
    pool.want(1000, wait=True)
    before = os.listdir("/proc/self/fd")
    writers = []

    def make():
        writers[:] = [SlotWriter(pool.handle)]
        return writers[0]

    def act(writer):
        writer._mapping(Token.unpack(token))
        writer._end(*pool.handle.homes[0][::2], os.O_RDONLY)

    def check(writer, interrupted):
        writers.clear()

    token = pool._current.token(0, 0).pack()
    assert interrupted_at_every_opcode(make, act, check) > 50
    assert os.listdir("/proc/self/fd") == before
    pool.close()


def test_freeing_a_slot():
    """No slot is lost."""
    pool = SlotPool(2, 1 << 20, register=False)
    pool.want(1000, wait=True)
    writer = SlotWriter(pool.handle)

    def make():
        stamp, _ = writer.acquire(0)
        return pool._current, stamp.token.index

    def check(slot, interrupted):
        if pool._current.mapping.state(slot[1]) != SlotState.FREE:  # not begun
            pool._free(*slot)
        stamps = [writer.acquire(0)[0] for _ in range(2)]
        assert writer.acquire(0) is None
        for stamp in stamps:
            writer.give_back(stamp)

    assert interrupted_at_every_opcode(make, lambda slot: pool._free(*slot), check) > 50
    pool.close()
