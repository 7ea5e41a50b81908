"""Faults that the harness must find: for its own tests."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from .outcome import Outcome, Setting, tell

TITLE = "planted faults"
COUNT, EACH, OUTSIDE = 5, 1, False
LIMIT_S = 2.0
HANGS, DIES, RAISES, WRONG = 1, 2, 3, 4


def trial(number: int, setting: Setting) -> Outcome:
    """Number 0 is well."""
    if number == HANGS:
        time.sleep(600)
    if number == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == RAISES:
        raise KeyError("planted")
    return Outcome(failures=["planted"] if number == WRONG else [])


def leave_a_process() -> None:
    """Another process in its session goes on."""
    if os.fork() == 0:
        time.sleep(600)


def leave_shared_memory() -> None:
    """A file without an owner."""
    Path("/dev/shm/planted").touch()


def hang() -> None:
    """Tell, and go on for ever."""
    tell(phase="hanging")
    time.sleep(600)
