"""Write ranges to files, for ``fastload profile`` without Nsight Systems.

The environment variable ``FASTLOAD_RANGES`` names the folder; see ``nvtx.stages``.

:class:`Domain` has the methods of a domain of the ``nvtx`` package. Every process appends to its own file, one line per
finished range, so that nothing is lost when a worker is terminated. A range takes 5 µs, ``fetch`` 30.
"""

from __future__ import annotations

import json
import os
import resource
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_TIMED: Final = "fetch"  # the range that also records time blocked and time waiting for a core


@dataclass(slots=True)
class Attributes:
    """A range's attributes, as in the ``nvtx`` package."""

    message: str
    payload: int | None = None


class _Open(threading.local):
    """A thread's open ranges: message, payload, start and, for ``fetch``, idle times until then."""

    def __init__(self) -> None:
        self.stack: list[tuple[str, int | None, int, tuple[int, int, int] | None]] = []


class Domain:
    """Writes ranges to an existing folder. Thread-safe; a forked process starts its own file."""

    def __init__(self, name: str, folder: str | Path) -> None:
        self._name = name
        self._folder = Path(folder)
        self._open = _Open()
        self._process = 0
        self._descriptor = -1

    def get_event_attributes(self, message: str = "", color: Any = None, payload: int | None = None) -> Attributes:
        """Attributes for :meth:`push_range`; reusable, by one thread at a time."""
        return Attributes(message, payload)

    def get_registered_string(self, text: str) -> str:
        """The text, for use as a message."""
        return text

    def push_range(self, attributes: Attributes) -> None:
        """Begin a range on this thread."""
        before = _idle() if attributes.message == _TIMED else None
        self._open.stack.append((attributes.message, attributes.payload, time.time_ns(), before))

    def pop_range(self) -> None:
        """End the innermost range on this thread."""
        end = time.time_ns()
        if not self._open.stack:
            return
        message, payload, start, before = self._open.stack.pop()
        blocked = queued = None
        if before is not None and (now := _idle()) is not None:
            blocked, queued = now[0] - before[0], now[1] - before[1]
            if now[2] == before[2]:  # never gave up its core, so it was preempted, by this system or its VM host
                blocked, queued = 0, blocked + queued
            blocked, queued = (max(0, min(idle, end - start)) for idle in (blocked, queued))
        self._write([start, end, threading.get_native_id(), self._name, message, payload, blocked, queued])

    def start_range(self, attributes: Attributes) -> tuple[int, int, str, int | None]:
        """Begin a range that any thread may end; it belongs to this one."""
        return time.time_ns(), threading.get_native_id(), attributes.message, attributes.payload

    def end_range(self, started: tuple[int, int, str, int | None]) -> None:
        """End what :meth:`start_range` began."""
        start, thread, message, payload = started
        self._write([start, time.time_ns(), thread, self._name, message, payload, None, None])

    def name_thread(self, name: str) -> None:
        """Record the calling thread's name."""
        self._write([threading.get_native_id(), name])

    def _write(self, record: list[Any]) -> None:
        if self._process != os.getpid():  # the first record, or the first after a fork
            path = self._folder / f"ranges-{os.getpid()}.jsonl"
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._process = os.getpid()
        os.write(self._descriptor, (json.dumps(record) + "\n").encode())


def _idle() -> tuple[int, int, int] | None:
    """This thread's ns blocked, ns waiting for a core, and voluntary switches.

    Blocked time counts from an arbitrary moment. A thread that blocks gives up its core voluntarily.
    """
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            queued_ns = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    given_up = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    return time.monotonic_ns() - time.thread_time_ns() - queued_ns, queued_ns, given_up
