"""Decode threads of :func:`fastload.vision.decode_batch`, started on first use and kept for later calls."""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING

from fastload._machine import usable_cpus

if TYPE_CHECKING:
    from fastload import _core

_lock = threading.Lock()
_pools: dict[int, _core.Pool] = {}


def pool_of(num_threads: int | None = None) -> _core.Pool:
    """The pool of ``num_threads`` threads, by default one per usable CPU. Thread-safe."""
    threads = usable_cpus() if num_threads is None else num_threads
    if threads < 1:
        raise ValueError(f"num_threads must be >= 1, got {threads}")
    with _lock:
        from fastload import _core

        pool = _pools.get(threads)
        if pool is None:
            pool = _pools[threads] = _core.Pool(threads)
        return pool


def close_pools() -> None:
    """Stop and join all decode threads; the next call starts new ones."""
    with _lock:
        for pool in _pools.values():
            pool.close()
        _pools.clear()


def _forget() -> None:
    """Drop the pools in a forked child, which has none of its parent's threads."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


atexit.register(close_pools)
os.register_at_fork(after_in_child=_forget)
