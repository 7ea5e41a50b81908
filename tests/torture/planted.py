"""Planted faults that the harness must find, for its tests."""

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
    """Run the fault with this number; number 0 succeeds."""
    if number == HANGS:
        time.sleep(600)
    if number == DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == RAISES:
        raise KeyError("planted")
    return Outcome(failures=["planted"] if number == WRONG else [])


def leave_a_process() -> None:
    """Leave a process of the session running."""
    if os.fork() == 0:
        time.sleep(600)


def leave_shared_memory() -> None:
    """Leave a file that no process has open."""
    Path("/dev/shm/planted").touch()


def hang() -> None:
    """Report, then hang."""
    tell(phase="hanging")
    time.sleep(600)
