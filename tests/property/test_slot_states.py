"""Slots have one owner each in any order of events, and none leaks.

The pool never exceeds its cap.
"""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import pytest
from effort import examples
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from fastload.memory.slots import PAGE, SlotPool, SlotState, SlotWriter, Stamp, Token

WORKERS = 3
DEAD = 2**23  # no process has an id from here on: twice the largest
MAX_BYTES = 64 * PAGE


class Rounds(RuleBasedStateMachine):
    """A pool, several workers' writers, and a model of who holds which slot."""

    tokens = Bundle("tokens")  # a worker has taken it and has yet to look at it
    stamps = Bundle("stamps")  # filled, on their way
    leases = Bundle("leases")

    @initialize(count=st.integers(2, 5), homes=st.integers(1, WORKERS), poison=st.booleans(), pages=st.integers(1, 3))
    def begin(self, count: int, homes: int, poison: bool, pages: int) -> None:
        self.before = descriptors()
        with mock.patch.dict(os.environ, {"FASTLOAD_DEBUG": "1" if poison else "0"}):
            self.pool = SlotPool(count, MAX_BYTES, homes, register=False)
        self.count, self.homes = count, homes
        self.writers = [SlotWriter(self.pool.handle) for _ in range(WORKERS)]
        self.filling: dict[tuple[int, int], Stamp] = {}  # the model: held by a worker
        self.dead: set[tuple[int, int]] = set()  # by one that has died
        self.taken: set[tuple[int, int]] = set()  # between the pipe and a worker
        self.leased: dict[tuple[int, int], bool] = {}  # whether it is being copied
        self.arenas: list[Any] = []
        self.held: list[list[Any]] = []  # all that were ever in the bundle, which keeps them
        self.deaths = 0
        self.closed = False
        self.want(pages)

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        event(f"{len(self.arenas)} arenas")
        self.shut()
        self.writers.clear()
        self.arenas.clear()
        for held in self.held:
            held.clear()
        assert descriptors() == self.before

    # The parent.

    @rule(more=st.integers(1, 3))
    def grow(self, more: int) -> None:
        self.want(self.pool._wanted // PAGE + more)

    @rule(pages=st.integers(1, 24))
    def want(self, pages: int) -> None:
        wanted = self.pool._wanted
        self.pool.want(pages * PAGE - 1, wait=True)
        current = self.pool._current
        if current is not None and current not in self.arenas:
            assert current.mapping.slot_bytes >= max(pages * PAGE, 2 * wanted)
            self.arenas.append(current)

    @rule(stamp=consumes(stamps), target=leases)
    def adopt(self, stamp: Stamp) -> Any:
        key = stamp.token.arena, stamp.token.index
        if self.closed or self.filling.get(key) != stamp:
            with pytest.raises(RuntimeError, match="was taken back before it arrived"):
                self.pool.adopt(stamp)
            return multiple()
        del self.filling[key]
        self.dead.discard(key)
        assert key not in self.leased
        self.leased[key] = False
        lease = self.pool.adopt(stamp)
        assert bool((lease.buffer[:8] == written(key, stamp.pid)).all())
        self.held.append([lease, key])
        return self.held[-1]

    @rule(stamp=stamps)
    def adopt_in_anothers_name(self, stamp: Stamp) -> None:
        with pytest.raises(RuntimeError, match="was taken back before it arrived"):
            self.pool.adopt(Stamp(stamp.token, 1))

    @rule(held=leases)
    def copying(self, held: list[Any]) -> None:
        if not self.closed and held:
            self.turn(held, was=False, to=True)

    @rule(held=leases)
    def not_copying(self, held: list[Any]) -> None:
        if not self.closed and held:
            self.turn(held, was=True, to=False)

    def turn(self, held: list[Any], *, was: bool, to: bool) -> None:
        lease, key = held
        move = lease.copying if to else lease.not_copying
        if key not in self.leased or self.leased[key] is not was:
            with pytest.raises(RuntimeError, match=f"slot {key[1]} "):
                move()
        else:
            move()
            self.leased[key] = to

    @rule(held=consumes(leases), by_dropping=st.booleans())
    def release(self, held: list[Any], by_dropping: bool) -> None:
        if not held:
            return
        lease, key = held
        if not by_dropping:
            lease.release()
            lease.release()  # idempotent
        held.clear()
        del lease
        self.leased.pop(key, None)
        if not self.closed:  # what workers have returned to retired arenas is counted back by now
            assert all(key[0] == self.pool._current.number for key in self.lying())

    @rule()
    def reclaim(self) -> None:
        self.pool.reclaim()
        for key in self.dead:
            del self.filling[key]
        self.dead.clear()

    @precondition(lambda self: len(self.arenas) > 2)
    @rule()
    def close(self) -> None:
        self.shut()

    def shut(self) -> None:
        self.pool.close()
        self.pool.close()  # idempotent
        self.closed = True
        self.filling.clear()
        self.dead.clear()
        self.taken.clear()
        self.leased.clear()

    # The workers.

    @rule(worker=st.integers(0, WORKERS - 1), nbytes=st.integers(0, 20 * PAGE), dies=st.booleans(), target=stamps)
    def acquire(self, worker: int, nbytes: int, dies: bool) -> Any:
        if self.closed:
            return multiple()
        free = self.lying()
        self.deaths += dies
        pid = DEAD + self.deaths if dies else os.getpid()
        acquired = self.acquired(worker, nbytes, pid)
        if acquired is None:
            assert not free or any(self.pool._arenas[number].mapping.slot_bytes < nbytes for number, _ in free)
            return multiple()
        stamp, buffer = acquired
        key = stamp.token.arena, stamp.token.index
        assert key in free
        assert buffer.numel() == stamp.token.slot_bytes >= nbytes
        self.filling[key] = stamp
        if dies:
            self.dead.add(key)
        buffer[:8] = written(key, pid)
        return stamp

    def acquired(self, worker: int, nbytes: int, pid: int) -> Any:
        with mock.patch("os.getpid", return_value=pid):
            return self.writers[worker].acquire(worker, nbytes)

    @rule(worker=st.integers(0, WORKERS - 1), target=tokens)
    def take(self, worker: int) -> Any:
        token = None if self.closed else self.writers[worker]._take(worker)
        if token is None:
            return multiple()
        self.taken.add((token.arena, token.index))
        return token

    @rule(token=consumes(tokens), worker=st.integers(0, WORKERS - 1))
    def put_back(self, token: Token, worker: int) -> None:
        if not self.closed:
            self.taken.remove((token.arena, token.index))
            self.writers[worker]._put_back(token)

    @rule(stamp=consumes(stamps), worker=st.integers(0, WORKERS - 1))
    def give_back(self, stamp: Stamp, worker: int) -> None:
        key = stamp.token.arena, stamp.token.index
        writer = self.writers[worker]
        if self.filling.get(key) != stamp or key in self.dead:
            return  # the worker is no more
        if stamp.token.arena not in writer._mappings:
            writer._mapping(stamp.token)
        del self.filling[key]
        writer.give_back(stamp)

    @rule(stamp=stamps)
    def give_back_twice(self, stamp: Stamp) -> None:
        key = stamp.token.arena, stamp.token.index
        if self.closed or key in self.filling:
            return
        arena = self.pool._arenas.get(key[0])
        if arena is not None and arena.mapping.state(key[1]) == SlotState.FREE:
            with pytest.raises(RuntimeError, match="cannot go from FREE to FREE"):
                arena.mapping.move(key[1], SlotState.FREE)

    # What holds at all times.

    def open_arenas(self) -> list[Any]:
        return [arena for arena in self.arenas if arena.descriptor >= 0]

    def free(self, arena: Any) -> list[tuple[int, int]]:
        keys = [(arena.number, index) for index in range(arena.count)]
        return [key for key in keys if not self.is_held(key)]

    def is_held(self, key: tuple[int, int]) -> bool:
        return key in self.filling or key in self.leased or key in self.taken

    def lying(self) -> list[tuple[int, int]]:
        """What lies in the pipes, put back as it lay."""
        tokens = self.pool._drain()
        for token in tokens:
            os.write(self.pool._homes[token.home][1], token.pack())
        return sorted((token.arena, token.index) for token in tokens)

    @invariant()
    def states_are_those_of_the_model(self) -> None:
        for arena in self.open_arenas() if hasattr(self, "pool") else []:
            for index in range(arena.count):
                key = arena.number, index
                state = arena.mapping.state(index)
                if key in self.filling:
                    assert state == SlotState.FILLING
                    assert arena.mapping.owner(index) == self.filling[key].pid
                elif key in self.leased:
                    assert state == (SlotState.COPYING if self.leased[key] else SlotState.READY)
                else:
                    assert state == SlotState.FREE
                    assert arena.mapping.owner(index) == 0

    @invariant()
    def every_free_slot_has_one_token(self) -> None:
        if not hasattr(self, "pool") or self.closed:
            return
        lying = self.lying()
        current = self.pool._current
        assert len(set(lying)) == len(lying)
        assert [key for key in lying if key[0] == current.number] == self.free(current) if current else not lying
        assert not any(map(self.is_held, lying))

    @invariant()
    def pinned_bytes_are_bounded_and_drained_arenas_close(self) -> None:
        if not hasattr(self, "pool"):
            return
        opened = self.open_arenas()
        counts = self.pool.counts()
        assert counts.pinned_bytes == sum(arena.nbytes for arena in opened) <= MAX_BYTES
        assert counts.slots <= self.count
        for arena in opened:
            keys = [(arena.number, index) for index in range(arena.count)]
            assert arena is self.pool._current or any(map(self.is_held, keys)) or set(keys) & set(self.lying())
        assert not self.closed or not opened


def written(key: tuple[int, int], pid: int) -> int:
    """What the worker ``pid`` writes into the slot ``key``."""
    return (31 * key[0] + 7 * key[1] + pid) % 251


def descriptors() -> set[tuple[str, str]]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        except OSError:  # that of this very listing
            continue
    return found


TestRounds = Rounds.TestCase
TestRounds.settings = settings(
    max_examples=examples(150), stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
