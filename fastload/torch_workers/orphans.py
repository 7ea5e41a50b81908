"""End processes whose parent has been killed."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Final

import torch

from fastload.torch_workers.processes import is_alive
from fastload.torch_workers.signals import usual_signals

LOOK_S: Final = 1.0
"""How often a process checks that its parent, or its child, is alive."""


def take_signals(parent: int) -> None:
    """Restore the signal handlers that were set before this worker process started.

    An early Ctrl-C is delivered here, where torch's worker treats it as its end; any earlier it would print a
    traceback. If the parent has been killed by then, the worker ends. Torch's watchdog, which starts next, watches the
    process that has forked the worker: that may be a new parent, or a fork server, which lives as long as its workers.

    Args:
        parent: Process id of the loader's process.
    """
    usual_signals()
    torch._C._set_worker_signal_handlers()  # in C, underneath Python's
    if os.getppid() != parent:
        if not is_alive(parent):
            os._exit(1)
        with contextlib.suppress(RuntimeError):  # no more threads
            threading.Thread(target=exit_with_parent, args=(parent,), daemon=True).start()


def exit_with_parent(parent: int) -> None:
    """End this process when its parent has ended, even during a sample that never finishes.

    Args:
        parent: A process id; if a fork server is in between, of its client.
    """
    is_child = os.getppid() == parent
    while os.getppid() == parent if is_child else is_alive(parent):
        time.sleep(LOOK_S)
    os._exit(1)
