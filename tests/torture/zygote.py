"""A process that has imported torch and fastload and forks programs in milliseconds.

It runs one program at a time.
A program ends at the end of this file, by the interpreter's normal finalization.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import sys
from typing import Any

import torchvision.transforms.v2
from torchvision.datasets import ImageFolder

import fastload
from fastload import _core
from torture import loaders

from .outcome import open_news

PRELOADED = (torchvision, ImageFolder, fastload, _core, loaders)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000


def serve() -> dict[str, Any]:
    """Fork and report a child per request on standard input; return in the child."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # when the harness dies
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # adopt and reap orphans of programs
    if libc.unshare(_CLONE_NEWNS) == 0:  # if permitted, use a private /dev/shm
        libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
        libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None)
    os.write(1, b"ready\n")
    gc.freeze()  # else garbage collection in each program would copy the zygote's memory
    while line := _request():
        request: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            return request
        os.write(1, f"{child}\n".encode())
        ended = 0
        while ended != child:  # also reaps orphans
            ended, status = os.wait()
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _request() -> bytes:
    """Read the next line of standard input, reaping orphans meanwhile."""
    while not select.select([0], [], [], 0.2)[0]:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
    return os.read(0, 1 << 16)


def become(request: dict[str, Any]) -> None:
    """Turn the forked child into a program with its own session, output and default signals."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # when the zygote dies
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, target)
    os.close(output)
    os.close(nothing)
    open_news(request["news"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(signal.SIGUSR1)  # prints the stacks if it hangs


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted harness ends us by closing the pipe
    wanted = serve()
    become(wanted)
    module, _, function = wanted["function"].partition(":")
    getattr(importlib.import_module(module), function)(*wanted["arguments"])
    sys.stdout.flush()
