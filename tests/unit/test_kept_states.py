"""States that workers keep in shared memory."""

from __future__ import annotations

import os
import pickle

import pytest

from fastload.memory import kept_states
from fastload.memory.kept_states import KeptState, KeptStates


def test_the_latest_states_of_each_worker_are_found():
    states = KeptStates(2, 3)
    assert states.last(0) is None
    for number in range(6):
        states.keep(1, KeptState(1, number, 7 + number, bytes([number]) * (50_000 * number)))
    assert states.last(0) is None
    assert [states.find(1, 1, number) is not None for number in range(6)] == [True, False, False, True, True, True]
    assert states.find(1, 1, 5) == states.last(1) == KeptState(1, 5, 12, b"\5" * 250_000)
    assert states.find(1, 2, 5) is None
    states.keep(1, KeptState(2, 0, 0, b"next"))
    assert states.last(1) == states.find(1, 2, 0)
    assert states.find(1, 1, 5) is not None
    states.close()
    states.close()


def test_a_state_that_is_too_long_is_refused_and_leaves_the_others(monkeypatch):
    monkeypatch.setattr(kept_states, "_PLACE_BYTES", 64)
    states = KeptStates(1, 2)
    others = [KeptState(1, number, 0, b"x" * 32) for number in (1, 2)]
    for other in others:
        states.keep(0, other)
    with pytest.raises(ValueError, match="less than 64 bytes, got 33"):
        states.keep(0, KeptState(1, 3, 0, b"x" * 33))
    assert [states.find(0, 1, number) for number in (1, 2)] == others
    states.close()


@pytest.mark.parametrize("writes", [1, 2])
def test_a_state_that_is_being_written_is_not_found(monkeypatch, writes):
    states = KeptStates(1, 2)
    states.keep(0, KeptState(1, 1, 0, b"old"))
    former, done = os.pwrite, []

    def interrupted(*args):
        if len(done) == writes:
            raise InterruptedError
        done.append(1)
        return former(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", interrupted)
        with pytest.raises(InterruptedError):
            states.keep(0, KeptState(1, 3, 0, b"new"))
    assert states.find(0, 1, 1) is None
    assert states.find(0, 1, 3) is None
    assert states.last(0) is None
    states.close()


def test_a_state_that_is_overwritten_while_it_is_read_is_not_found(monkeypatch):
    states = KeptStates(1, 2)
    states.keep(0, KeptState(1, 1, 0, b"old"))
    former, read = os.pread, []

    def overtaken(*args):
        read.append(1)
        if len(read) == 3:
            states.keep(0, KeptState(1, 3, 0, b"new"))
        return former(*args)

    monkeypatch.setattr(os, "pread", overtaken)
    assert states.find(0, 1, 1) is None
    states.close()


def test_a_spawned_process_opens_the_same_file():
    states = KeptStates(1, 2)
    again = pickle.loads(pickle.dumps(states))
    again.keep(0, KeptState(1, 1, 5, b"from there"))
    assert states.find(0, 1, 1) == KeptState(1, 1, 5, b"from there")
    again.close()
    call = states.__reduce__()
    states.close()
    with open(os.devnull, "rb") as other:
        assert kept_states._reopened(call[1][0], other.fileno(), *call[1][2:]) is None
    assert kept_states._reopened(call[1][0], 10**6, *call[1][2:]) is None
