"""Count the resources that this process holds, and find leaks."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from dataclasses import dataclass
from pathlib import Path

from .programs import session

GRACE_S = 6.0  # torch gives a worker five seconds
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Holdings:
    """Resource counts. Threads are all OS threads, not only Python's."""

    threads: int
    processes: int
    descriptors: int
    mappings: int

    @classmethod
    def now(cls) -> Holdings:
        threads, descriptors = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        mappings = Path("/proc/self/maps").read_text().count("\n")
        return cls(threads, len(session(os.getsid(0))), descriptors, mappings)


def beyond(before: Holdings, names: tuple[str, ...] = ("threads", "processes", "descriptors")) -> list[str]:
    """Describe what is held beyond ``before``, after waiting up to :data:`GRACE_S` for cleanup."""
    deadline = time.monotonic() + GRACE_S
    pause = 0.002
    while True:
        now = Holdings.now()
        more = {name: getattr(now, name) - getattr(before, name) for name in names}
        left = [f"{count} {name} left" for name, count in more.items() if count > 0]
        if not left or time.monotonic() > deadline:
            return left
        gc.collect()
        time.sleep(pause)
        pause = min(2 * pause, 0.2)


def resident_kb() -> float:
    """Anonymous memory of this process after trimming the allocator.

    File-backed memory is left out, because code pages are loaded on use.
    """
    gc.collect()
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
    return float(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0])
