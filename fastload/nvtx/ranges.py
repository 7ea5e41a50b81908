"""Ranges with arbitrary names for ``annotate``, ``annotate_modules`` and ``capture``.

They are in the domain ``fastload``. Those of :func:`fastload.nvtx.stages.stage` have few names and nest strictly; these
are opened and closed by hooks. Closing one also closes ranges left open inside it, so that pops always match pushes.

NVTX tools see them, and so does torch.profiler while it runs.
"""

from __future__ import annotations

import os
import threading
import zlib
from typing import Any, Final

import torch
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]

from fastload.nvtx import stages

# ARGB: less saturated than the colours of the stages, and distinguishable on white.
_PALETTE: Final = (0xFF8CB369, 0xFFF4A259, 0xFF5B8E7D, 0xFFBC4B51, 0xFF7D70BA, 0xFF3D9FB8, 0xFFC9A227, 0xFF9C6644)

_domain: Final[Any] = stages._domain
_RecordFunction: Final[Any] = getattr(torch._C._profiler, "_RecordFunctionFast", torch.profiler.record_function)


class _Thread(threading.local):
    """A thread's open ranges, outermost first."""

    def __init__(self) -> None:
        self.open: list[NvtxRange] = []


_thread: Final = _Thread()
# A forked process continues in a copy of one thread, whose ranges the parent closes.
os.register_at_fork(after_in_child=lambda: _thread.open.clear())

if _domain is not None:

    def listening() -> bool:
        """Whether a tool would see a range opened on this thread now."""
        return True

else:
    listening = _profiler_enabled


class NvtxRange:
    """One range on one thread. Enter it with ``with``, or :func:`push` and :func:`pop` it.

    Args:
        name: What tools show. Constant names aggregate; use ``payload`` for numbers.
        payload: A signed 64-bit integer; NVTX only.
        registered: Whether the tool may keep the name forever; not for names that are used once.
    """

    __slots__ = ("_name", "_payload", "_recorded", "_registered", "_tool")

    def __init__(self, name: str, payload: int | None = None, *, registered: bool = True) -> None:
        self._name = name
        self._payload = payload
        self._registered = registered
        self._recorded: Any = None
        self._tool = False

    def __enter__(self) -> None:
        push(self)

    def __exit__(self, *_: object) -> None:
        pop(self)

    def _begin(self) -> None:
        if _domain is not None:
            _domain.push_range(_attributes(self._name, self._payload, self._registered))
            self._tool = True
        if _profiler_enabled():
            self._recorded = _RecordFunction(self._name)
            self._recorded.__enter__()

    def _end(self) -> None:
        recorded, self._recorded = self._recorded, None
        if recorded is not None:
            recorded.__exit__(None, None, None)
        if self._tool:
            self._tool = False
            _domain.pop_range()


class ProcessRange:
    """A range that begins now and may end on another thread. NVTX only."""

    __slots__ = ("_handle",)

    def __init__(self, name: str) -> None:
        self._handle = None if _domain is None else _domain.start_range(_attributes(name))

    def end(self) -> None:
        """End it. Idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _domain.end_range(handle)


def _attributes(name: str, payload: int | None = None, registered: bool = True) -> Any:
    colour = _PALETTE[zlib.crc32(name.encode()) % len(_PALETTE)]
    if registered:
        return stages.attributes(name, colour, payload)
    # The nvtx package caches every registered text forever; the function below the cache does not.
    register = type(_domain).get_registered_string
    attributes = _domain.get_event_attributes(color=colour, payload=payload)
    attributes.message = getattr(register, "__wrapped__", register)(_domain, name)
    return attributes


def push(opened: NvtxRange) -> NvtxRange:
    """Open a range on this thread, inside the open ones."""
    _thread.open.append(opened)
    opened._begin()
    return opened


def pop(opened: NvtxRange) -> None:
    """Close a range and those inside it, if it is open on this thread."""
    if opened not in _thread.open:
        return
    while True:
        inner = _thread.open.pop()
        inner._end()
        if inner is opened:
            return
