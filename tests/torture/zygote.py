"""Fork programs under test from a process with fastload and its own ``/dev/shm``.

A program ends at the end of this file, by the interpreter's normal finalization.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import signal
import sys
from typing import Any

import torchvision.transforms.v2
from fork_server import serve
from torchvision.datasets import ImageFolder

import fastload
from fastload import _core
from torture import loaders

from .outcome import open_news

PRELOADED = (torchvision, ImageFolder, fastload, _core, loaders)
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 0x40000


def have_own_shared_memory() -> None:
    """Use a private /dev/shm, if permitted."""
    libc = ctypes.CDLL(None)
    if libc.unshare(_CLONE_NEWNS) == 0:
        libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
        libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, None)


def become(request: dict[str, Any]) -> None:
    """Turn the forked child into a program with its own session, output and default signals."""
    os.setsid()
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
    have_own_shared_memory()
    wanted = serve()
    become(wanted)
    module, _, function = wanted["function"].partition(":")
    getattr(importlib.import_module(module), function)(*wanted["arguments"])
    sys.stdout.flush()
