"""Ranges of any name, in the domain ``fastload``: those of ``annotate``, ``annotate_modules`` and ``capture``.

Unlike :func:`fastload.nvtx.stages.stage`, whose names are few and which nest strictly, these are opened and
closed by hooks. Closing one also closes what was left open inside it, so that a tool never sees a pop that belongs to
another push.

Besides an NVTX tool they also reach torch.profiler while it runs.
"""

from __future__ import annotations

import os
import threading
import zlib
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]

from fastload.nvtx import stages

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["NvtxRange", "ProcessRange", "listening", "pop", "push"]

# ARGB: calm enough to stand beside the colours of the stages, and told apart on a white ground.
_PALETTE: Final = (0xFF8CB369, 0xFFF4A259, 0xFF5B8E7D, 0xFFBC4B51, 0xFF7D70BA, 0xFF3D9FB8, 0xFFC9A227, 0xFF9C6644)

_domain: Final[Any] = stages._domain
_RecordFunction: Final[Any] = getattr(torch._C._profiler, "_RecordFunctionFast", torch.profiler.record_function)


class _Thread(threading.local):
    """Of one thread: the ranges that are open, outermost first, and NVTX's attributes by name."""

    def __init__(self) -> None:
        self.open: list[NvtxRange] = []
        self.attributes: dict[str, Any] = {}


_thread: Final = _Thread()
# A forked process goes on in a copy of one thread. That thread's ranges are closed by its parent, and names are to be
# registered by each process (see ``_nvtx``).
os.register_at_fork(after_in_child=lambda: _thread.open.clear())
os.register_at_fork(after_in_child=lambda: _thread.attributes.clear())

if _domain is not None:

    def listening() -> bool:
        """Whether anybody would see a range that this thread opened now."""
        return True

else:
    listening = _profiler_enabled


class NvtxRange:
    """One range on one thread. Enter it with ``with``, or :func:`push` and :func:`pop` it.

    Args:
        name: What tools show. Constant names aggregate; use ``payload`` for numbers.
        payload: A signed 64-bit integer; NVTX only.
        registered: Whether the tool may keep the name for good; not for names that are used once.
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

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
    """A range that may end on another thread than the one that it begins on, which is now. NVTX only.

    Args:
        name: What tools show.
    """

    __slots__ = ("_handle",)

    def __init__(self, name: str) -> None:
        self._handle = None if _domain is None else _domain.start_range(_attributes(name))

    def end(self) -> None:
        """End it. Idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _domain.end_range(handle)


def _attributes(name: str, payload: int | None = None, registered: bool = True) -> Any:
    """As the tool takes them. They are reused, but never by two threads, which could swap payloads."""
    attributes = _thread.attributes.get(name)
    if attributes is None:
        colour = _PALETTE[zlib.crc32(name.encode()) % len(_PALETTE)]
        if registered:
            attributes = _domain.get_event_attributes(message=name, color=colour)
            _thread.attributes[name] = attributes
        else:
            # The nvtx package keeps every text that it ever registered; the function below its cache does not.
            register = type(_domain).get_registered_string
            text = getattr(register, "__wrapped__", register)(_domain, name)
            attributes = _domain.get_event_attributes(color=colour)
            attributes.message = text
    attributes.payload = payload
    return attributes


def push(opened: NvtxRange) -> NvtxRange:
    """Open a range on this thread, inside those that are open."""
    _thread.open.append(opened)
    opened._begin()
    return opened


def pop(opened: NvtxRange) -> None:
    """Close a range and what is still open inside it. Does nothing if it is not open on this thread."""
    if opened not in _thread.open:
        return
    while True:
        inner = _thread.open.pop()
        inner._end()
        if inner is opened:
            return
