"""A process that has torch and fastload imported and forks programs, one at a time: a program starts in milliseconds.

Programs end as any Python program does, at the end of this file: by the interpreter's own finalization.
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
    """Fork for each request from standard input and report the child; returns the request in the child."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # of the harness
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans of a program come here and are reaped here
    if libc.unshare(_CLONE_NEWNS) == 0:  # where that is allowed: a /dev/shm that no other program uses
        libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
        libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None)
    os.write(1, b"ready\n")
    gc.freeze()  # else each program copies all of it when it collects garbage
    while line := _request():
        request: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            return request
        os.write(1, f"{child}\n".encode())
        ended = 0
        while ended != child:  # orphans, too
            ended, status = os.wait()
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _request() -> bytes:
    """The next line of standard input. Reaps orphans meanwhile."""
    while not select.select([0], [], [], 0.2)[0]:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
    return os.read(0, 1 << 16)


def become(request: dict[str, Any]) -> None:
    """Be a program: a session of its own, its own output, signals as a shell in the foreground would leave them."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # of the zygote
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, target)
    os.close(output)
    os.close(nothing)
    open_news(request["news"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(signal.SIGUSR1)  # where it hangs


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the harness ends us, when it is interrupted, by closing the pipe
    wanted = serve()
    become(wanted)
    module, _, function = wanted["function"].partition(":")
    getattr(importlib.import_module(module), function)(*wanted["arguments"])
    sys.stdout.flush()
