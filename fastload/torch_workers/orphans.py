"""End processes whose parent has been killed."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Final

import torch

from fastload.torch_workers.processes import is_alive
from fastload.torch_workers.signals import usual_signals

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_S: Final = 1.0
"""How often a process checks that its parent, or its child, is alive."""


class TakesSignals:
    """A worker's first call: restores the signal handlers that were set before workers started.

    An early Ctrl-C is delivered here, where torch's worker treats it as its end; any earlier it would print a
    traceback. If the parent has been killed by then, the worker ends. Torch's watchdog, which starts next, watches the
    process that has forked the worker: that may be a new parent, or a fork server, which lives as long as its workers.
    """

    def __init__(self, first_call: Callable[[int], None]) -> None:
        self.first_call = first_call
        self.parent = os.getpid()

    def __call__(self, worker_id: int) -> None:  # noqa: D102
        usual_signals()
        torch._C._set_worker_signal_handlers()  # in C, underneath Python's
        if os.getppid() != self.parent:
            if not is_alive(self.parent):
                os._exit(1)
            with contextlib.suppress(RuntimeError):  # no more threads
                threading.Thread(target=exit_with_parent, args=(self.parent,), daemon=True).start()
        self.first_call(worker_id)


def exit_with_parent(parent: int) -> None:
    """End this process when its parent has ended, even during a sample that never finishes.

    Args:
        parent: A process id; if a fork server is in between, of its client.
    """
    is_child = os.getppid() == parent
    while os.getppid() == parent if is_child else is_alive(parent):
        time.sleep(LOOK_S)
    os._exit(1)
