"""Fork programs from a process that has imported torch, one program at a time.

Each program then starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def serve() -> dict[str, Any]:
    """Fork for each JSON line of standard input; return the request in the child.

    Standard output gets ``ready``, and for each request the child's pid, then its exit code. Import what programs need
    before.
    """
    end_with_parent()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # adopt and reap orphans of programs
    os.write(1, b"ready\n")
    gc.freeze()  # else each program copies all of it when it collects garbage, at its end if not before: 1.2 s
    while line := _request():
        request: dict[str, Any] = json.loads(line)
        program = os.fork()
        if program == 0:
            end_with_parent()
            return request
        os.write(1, f"{program}\n".encode())
        ended = 0
        while ended != program:  # also reaps orphans
            ended, status = os.wait()
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _request() -> bytes:
    """Read the next line of standard input, reaping orphans meanwhile; empty at its end."""
    line = b""
    while not line.endswith(b"\n"):
        while not select.select([0], [], [], 0.2)[0]:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
        part = os.read(0, 1 << 16)
        if not part:
            return b""
        line += part
    return line
