"""The interrupting tool finds code that an interrupt breaks, and nothing else."""

from __future__ import annotations

import signal
import threading

import pytest
from interrupts import interrupted_at_every_opcode

pytestmark = pytest.mark.matrix


def enter(lock):
    with lock:
        pass


def test_an_interrupted_condition_stays_locked_at_some_moment():
    left_locked = []
    moments = interrupted_at_every_opcode(
        threading.Condition, enter, lambda condition, _: left_locked.append(condition._lock._is_owned()), stride=1
    )
    assert len(left_locked) > moments > 8
    assert any(left_locked)
    assert not left_locked[-1]


class Guarded:
    """Python code around a lock of C."""

    def __init__(self):
        self.lock = threading.Lock()

    def use(self):
        with self.lock:
            self.result = len("body")


# Outside the tests as far as the tool is concerned, as the code under test is.
Guarded.use.__code__ = Guarded.use.__code__.replace(co_filename="guarded.py")


def test_a_lock_of_c_is_never_left_locked():
    interrupts = []

    def check(guarded, interrupted):
        interrupts.append(interrupted)
        assert not guarded.lock.locked()

    moments = interrupted_at_every_opcode(Guarded, Guarded.use, check, stride=1)
    assert moments > 8
    assert interrupts[-moments - 1 :] == [True] * moments + [False]


def test_ctrl_c_works_as_before_afterwards():
    before = signal.getsignal(signal.SIGINT)
    interrupted_at_every_opcode(Guarded, Guarded.use, lambda *_: None)
    assert signal.getsignal(signal.SIGINT) is before


def test_code_that_is_not_traced_is_an_error():
    with pytest.raises(AssertionError, match="no bytecode was traced"):
        interrupted_at_every_opcode(int, abs, lambda *_: None)
