"""Forked children of a test."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable


def forked(function: Callable[[], object]) -> int:
    """Fork a child that calls ``function``; return its process id. An error exits with 1."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def wait_for(child: int, seconds: float) -> int | None:
    """Wait for a child's exit code; ``None`` if it still runs after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return None


def exit_code(child: int, seconds: float = 60) -> int | None:
    """Wait for a child's exit code; after ``seconds``, kill it and return ``None``."""
    code = wait_for(child, seconds)
    if code is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return code
