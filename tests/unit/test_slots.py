"""Slots: their round, their homes, how they grow, and what bounds them."""

from __future__ import annotations

import itertools
import threading
from unittest import mock

import pytest
import torch
from backends import simulated
from backends.datasets import Numbers
from plans import text_of
from slots_on_cpu import free

from fastload import FastLoader
from fastload.memory import slots
from fastload.memory.slots import PAGE, SlotState, SlotWriter, Stamp

WAIT_S = 60  # longer than any machine takes, short of the test's own limit
POISON = 0xA5


# A round.


def test_what_a_worker_writes_arrives(make_pool):
    pool = make_pool()
    stamp, buffer = SlotWriter(pool.handle).acquire(0)
    assert buffer.dtype == torch.uint8
    assert buffer.numel() == PAGE
    assert buffer.data_ptr() % PAGE == 0
    buffer[:3] = torch.tensor([1, 2, 3], dtype=torch.uint8)
    lease = pool.adopt(stamp)
    assert lease.buffer[:3].tolist() == [1, 2, 3]
    assert lease.buffer.data_ptr() != buffer.data_ptr()  # another mapping of the same memory
    lease.copying()
    lease.release()
    assert free(pool) == 4


def test_a_freed_slot_is_poisoned_so_that_a_use_after_free_shows(make_pool, monkeypatch):
    monkeypatch.setenv("FASTLOAD_DEBUG", "1")
    pool = make_pool()
    stamp, buffer = SlotWriter(pool.handle).acquire(0)
    buffer.fill_(1)
    lease = pool.adopt(stamp)
    kept = lease.buffer[: 4 * 8].view(torch.float32)
    lease.release()
    assert bool((buffer == POISON).all())
    assert kept.tolist() == pytest.approx([-2.8699e-16] * 8, rel=1e-4)
    assert not SlotWriter(pool.handle).acquire(0)[1].eq(1).any()


def test_a_freed_slot_is_left_alone_without_the_debug_switch(make_pool, monkeypatch):
    monkeypatch.delenv("FASTLOAD_DEBUG", raising=False)
    pool = make_pool()
    stamp, buffer = SlotWriter(pool.handle).acquire(0)
    buffer.fill_(1)
    pool.adopt(stamp).release()
    assert bool((buffer == 1).all())


def test_a_lease_that_is_dropped_frees_its_slot(make_pool):
    pool = make_pool(count=2)
    writer = SlotWriter(pool.handle)
    leases = [pool.adopt(writer.acquire(0)[0]) for _ in range(2)]
    leases[0].copying()
    assert writer.acquire(0) is None
    leases.clear()
    assert free(pool) == 2


def test_only_its_own_worker_delivers_a_slot_and_once(make_pool):
    pool = make_pool()
    stamp, _ = SlotWriter(pool.handle).acquire(0)
    with pytest.raises(RuntimeError, match=r"slot 0 of worker process 1 was taken back before it arrived"):
        pool.adopt(Stamp(stamp.token, 1))
    lease = pool.adopt(stamp)
    with pytest.raises(RuntimeError, match="slot 0 cannot go from READY to READY"):
        pool.adopt(stamp)
    lease.release()
    with pytest.raises(RuntimeError, match="was taken back"):
        pool.adopt(stamp)


LEGAL = {
    (SlotState.FREE, SlotState.FILLING),
    (SlotState.FILLING, SlotState.READY),
    (SlotState.READY, SlotState.COPYING),
    (SlotState.COPYING, SlotState.READY),  # the copy could not be issued
    (SlotState.FILLING, SlotState.FREE),
    (SlotState.READY, SlotState.FREE),
    (SlotState.COPYING, SlotState.FREE),
}


@pytest.mark.parametrize("before", SlotState)
@pytest.mark.parametrize("after", SlotState)
def test_a_slot_moves_along_its_round_only(make_pool, before, after):
    mapping = make_pool()._current.mapping
    mapping._states[2] = before
    if (before, after) in LEGAL:
        mapping.move(2, after)
        assert mapping.state(2) == after
    else:
        with pytest.raises(RuntimeError, match=f"slot 2 cannot go from {before.name} to {after.name}"):
            mapping.move(2, after)
        assert mapping.state(2) == before


# Homes.


def test_a_worker_takes_from_its_home_first_and_then_from_the_others(make_pool):
    pool = make_pool(count=6, homes=3)
    writer = SlotWriter(pool.handle)
    got = [writer.acquire(1)[0].token for _ in range(6)]
    assert [token.home for token in got] == [1, 1, 2, 2, 0, 0]
    assert sorted(token.index for token in got) == list(range(6))
    assert writer.acquire(1) is None


def test_a_slot_returns_to_its_home_whoever_used_it(make_pool):
    pool = make_pool(count=2, homes=2)
    writer = SlotWriter(pool.handle)
    stamps = [writer.acquire(0)[0] for _ in range(2)]
    pool.adopt(stamps[1]).release()
    writer.give_back(stamps[0])
    assert [writer.acquire(home)[0].token.index for home in (1, 0)] == [1, 0]


def test_more_workers_than_homes_share_them(make_pool):
    pool = make_pool(count=70, homes=70)
    writer = SlotWriter(pool.handle)
    assert len(pool.handle.homes) == slots.HOMES_MAX
    assert writer.acquire(69)[0].token.home == 69 % slots.HOMES_MAX
    assert free(pool) == 69


@pytest.mark.parametrize("slot_bytes", [0, PAGE], ids=["no arena yet", "all taken"])
def test_acquire_never_blocks(make_pool, slot_bytes):
    pool = make_pool(count=2, homes=2, slot_bytes=slot_bytes)
    writer = SlotWriter(pool.handle)
    got = []
    thread = threading.Thread(target=lambda: got.extend(writer.acquire(0) for _ in range(4)), daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert [acquired is None for acquired in got] == ([True] * 4 if not slot_bytes else [False, False, True, True])


def test_a_slot_that_is_too_small_is_left_for_others(make_pool):
    pool = make_pool()
    assert SlotWriter(pool.handle).acquire(0, PAGE + 1) is None
    assert SlotWriter(pool.handle).acquire(0, PAGE) is not None
    assert free(pool) == 3


# Growth and the cap.


def test_slots_grow_to_twice_their_size_at_least(make_pool):
    pool = make_pool(count=2, max_bytes=2**40)
    sizes = {PAGE}
    for pages in range(1, 200):
        pool.want(pages * PAGE, wait=True)
        sizes.add(pool.counts().slot_bytes)
        assert pool.counts().slot_bytes >= pages * PAGE
    ordered = sorted(sizes)
    assert all(large >= 2 * small for small, large in itertools.pairwise(ordered))
    assert pool._number == len(sizes) <= 9
    assert pool.counts().pinned_bytes == 2 * ordered[-1]  # the former ones are gone


def test_a_slot_holds_a_whole_number_of_pages(make_pool):
    pool = make_pool(slot_bytes=PAGE + 1)
    assert pool.counts().slot_bytes == 2 * PAGE
    assert pool.counts().pinned_bytes == 8 * PAGE


def test_a_retired_arena_goes_when_its_last_slot_is_back(make_pool):
    pool = make_pool(count=3)
    writer = SlotWriter(pool.handle)
    used, unused, held = (writer.acquire(0)[0] for _ in range(3))
    lease = pool.adopt(used)
    old = pool._current
    pool.want(2 * PAGE, wait=True)
    assert pool.counts().pinned_bytes == 3 * PAGE + 3 * 3 * PAGE  # a quarter more than was wanted
    lease.release()
    writer.give_back(unused)
    assert old.descriptor >= 0
    late = pool.adopt(held)
    assert late.buffer.numel() == PAGE
    late.release()
    assert old.descriptor < 0
    assert pool.counts().pinned_bytes == 3 * 3 * PAGE
    assert free(pool) == 3


def test_a_slot_of_a_retired_arena_that_comes_back_late_is_not_handed_out_for_ever(make_pool):
    pool = make_pool(count=2)
    writer = SlotWriter(pool.handle)
    token, old = writer._take(0), pool._current
    pool.want(8 * PAGE, wait=True)
    writer._put_back(token)  # too small for what the worker had
    stamp = None
    while stamp is None:
        acquired = writer.acquire(0, 8 * PAGE)
        stamp = acquired and acquired[0]
    pool.adopt(stamp).release()
    assert old.descriptor < 0
    assert [token.arena for token in pool._drain()] == [2, 2]


def test_the_cap_leaves_fewer_slots(make_pool):
    pool = make_pool(max_bytes=3 * PAGE + 1, slot_bytes=0)
    pool.want(PAGE, wait=True)
    assert pool.counts().slots == 3
    assert pool.counts().pinned_bytes == 3 * PAGE


def test_growth_waits_for_room_below_the_cap(make_pool):
    pool = make_pool(count=2, max_bytes=5 * PAGE)
    pool.want(2 * PAGE, wait=True)  # 2 pages are in use, and two slots take four
    assert pool.refusal is None
    assert pool.counts().slot_bytes == PAGE
    assert free(pool) == 2


def test_less_than_two_slots_are_refused_and_the_reason_names_the_option(make_pool):
    pool = make_pool(max_bytes=10**6, slot_bytes=0)
    pool.want(600_000, wait=True)
    assert pool.refusal == "two batches of 0.6 MB exceed max_pinned_bytes (1.0 MB)"
    assert pool.counts().slots == 0
    assert SlotWriter(pool.handle).acquire(0) is None


def test_slots_that_memory_does_not_suffice_for_are_refused(make_pool):
    pool = make_pool(count=4, max_bytes=2**60, slot_bytes=0)
    pool.want(2**46, wait=True)  # more than can be addressed
    assert pool.refusal.startswith("4 slots of 70368744177664 bytes could not be pinned: ")
    assert pool._builder is None
    pool.want(PAGE, wait=True)
    assert SlotWriter(pool.handle).acquire(0) is None


def test_no_thread_means_no_slots_and_no_error(make_pool):
    pool = make_pool(slot_bytes=0)
    with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        pool.want(PAGE)
    assert pool.refusal == "no thread to make slots: can't start new thread"
    pool.close()


def test_batches_take_the_ordinary_path_when_slots_are_refused(monkeypatch):
    simulated.install(monkeypatch)

    def refuse(*_args, **_own):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(slots, "Arena", refuse)
    with FastLoader(Numbers(40), batch_size=2, num_workers=1, device="cuda") as loader:
        for _ in range(2):
            assert [batch[1].tolist() for batch in loader] == [[n, n + 1] for n in range(0, 40, 2)]
        stats = loader.stats()
        assert stats.slot_batches == stats.slots == 0
        reasons = [why for why in stats.missed if "could not be pinned: [Errno 12]" in why]
        assert reasons
        assert f"batches took torch's ordinary path: {reasons[0]}" in text_of(loader)


def test_memory_is_registered_in_the_context_of_the_loaders_device(monkeypatch):
    """Not in that of device 0, which is every new thread's."""
    calls, current = [], []

    class Device:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            current.append(self.device)

        def __exit__(self, *_):
            current.pop()

    class Runtime:
        def cudaHostRegister(self, *_):
            calls.append(("register", *current))
            return 0

        def cudaHostUnregister(self, _):
            calls.append(("unregister", *current))

    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    device = torch.device("cuda", 5)
    pool = slots.SlotPool(3, 2**24, device=device)
    pool.want(1000, wait=True)
    assert pool.counts().slots == 3
    pool.close()
    assert calls == [("register", device), ("unregister", device)]


def test_a_closed_pools_memory_is_free_though_a_process_that_was_forked_has_it_mapped(make_pool):
    pool = make_pool(slot_bytes=2**20)
    _, buffer = SlotWriter(pool.handle).acquire(0)  # stands for that process: a mapping of its own
    buffer.fill_(1)
    pool.close()
    assert not buffer.any()
