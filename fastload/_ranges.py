"""Ranges written to files, for when no NVTX tool can be had: ``fastload profile`` without Nsight Systems.

The environment variable ``FASTLOAD_RANGES`` names the folder; see ``_nvtx``.

Stands where a domain of the ``nvtx`` package would, with the same methods. Every process appends to a file of its own,
one line per range when it ends, so that nothing is lost when a worker is terminated. A range takes 5 µs, ``fetch`` 30.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_TIMED: Final = "fetch"
"""The range of which is also told how long it was blocked."""


@dataclass(slots=True)
class Attributes:
    """What a range carries, as in the ``nvtx`` package."""

    message: str
    payload: int | None = None


class _Open(threading.local):
    """The ranges that the thread is in: attributes, payload, start and, if asked for, time blocked until then."""

    def __init__(self) -> None:
        self.stack: list[tuple[str, int | None, int, int | None]] = []


class Domain:
    """Writes ranges to a folder. Thread-safe; a forked process goes on in a file of its own.

    Args:
        name: The domain's name.
        folder: An existing folder.
    """

    def __init__(self, name: str, folder: str | Path) -> None:
        self._name = name
        self._folder = Path(folder)
        self._open = _Open()
        self._process = 0
        self._descriptor = -1

    def get_event_attributes(self, message: str = "", color: Any = None, payload: int | None = None) -> Attributes:
        """Attributes for :meth:`push_range`; may be used again and again, by one thread at a time."""
        return Attributes(message, payload)

    def get_registered_string(self, text: str) -> str:
        """The text as an attributes' message."""
        return text

    def push_range(self, attributes: Attributes) -> None:
        """Begin a range on this thread."""
        blocked = _blocked_ns() if attributes.message == _TIMED else None
        self._open.stack.append((attributes.message, attributes.payload, time.time_ns(), blocked))

    def pop_range(self) -> None:
        """End the range that began last on this thread."""
        end = time.time_ns()
        if not self._open.stack:
            return
        message, payload, start, blocked_before = self._open.stack.pop()
        blocked = None
        if blocked_before is not None and (blocked_now := _blocked_ns()) is not None:
            blocked = max(0, min(blocked_now - blocked_before, end - start))
        self._write([start, end, threading.get_native_id(), self._name, message, payload, blocked])

    def start_range(self, attributes: Attributes) -> tuple[int, int, str, int | None]:
        """Begin a range that any thread may end; it is shown on this one."""
        return time.time_ns(), threading.get_native_id(), attributes.message, attributes.payload

    def end_range(self, started: tuple[int, int, str, int | None]) -> None:
        """End what :meth:`start_range` began."""
        start, thread, message, payload = started
        self._write([start, time.time_ns(), thread, self._name, message, payload, None])

    def name_thread(self, name: str) -> None:
        """Tell the calling thread's name."""
        self._write([threading.get_native_id(), name])

    def _write(self, record: list[Any]) -> None:
        if self._process != os.getpid():  # the first, or the first after a fork
            path = self._folder / f"ranges-{os.getpid()}.jsonl"
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._process = os.getpid()
        os.write(self._descriptor, (json.dumps(record) + "\n").encode())


def _blocked_ns() -> int | None:
    """How long this thread has been neither running nor ready to run, counted from an arbitrary moment."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            ready_ns = int(file.read().split()[1])  # waiting for a core
    except (OSError, ValueError, IndexError):
        return None
    return time.monotonic_ns() - time.thread_time_ns() - ready_ns
