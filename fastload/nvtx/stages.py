"""NVTX ranges of the loader's stages; free of cost when no tool is attached.

Ranges are in the NVTX domain ``fastload``. Names are constant and the batch number is the payload, so that a profile
aggregates over batches.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

StageName: TypeAlias = Literal["fetch", "record", "read", "decode", "collate", "paint", "h2d", "epilogue", "wait"]

DOMAIN: Final = "fastload"

# ARGB. A stage has the same colour in every process.
COLOURS: Final[dict[StageName, int]] = {
    "fetch": 0xFF4E79A7,
    "record": 0xFFEDC948,
    "read": 0xFFA0CBE8,
    "decode": 0xFF76B7B2,
    "collate": 0xFF59A14F,
    "paint": 0xFFD37295,
    "h2d": 0xFFF28E2B,
    "epilogue": 0xFFB07AA1,
    "wait": 0xFFE15759,
}


def _attach() -> Any:
    """The NVTX domain, or None when no tool listens to it.

    NVTX loads its tool from the library named by this variable (Nsight Systems and Nsight Compute set it for the
    programs they start), so without it there is no tool, and the ``nvtx`` package need not be imported. Without such a
    tool, ``fastload profile`` has ranges written to files.
    """
    if not os.environ.get("NVTX_INJECTION64_PATH"):
        if folder := os.environ.get("FASTLOAD_RANGES"):
            from fastload.nvtx import file_sink

            return file_sink.Domain(DOMAIN, folder)
        return None
    try:
        import nvtx
    except ImportError:
        return None
    if not nvtx.enabled():
        return None
    domain = nvtx.get_domain(DOMAIN)
    # A domain that the tool filters out returns None instead of attributes.
    return None if domain.get_event_attributes(message="fetch") is None else domain


class _Attributes(threading.local):
    """Event attributes by name and colour, per thread: threads that shared them could swap payloads."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, int], Any] = {}


class _Range:
    """One push and its pop."""

    __slots__ = ("_batch", "_name")

    def __init__(self, name: StageName, batch: int | None) -> None:
        self._name = name
        self._batch = batch

    def __enter__(self) -> None:
        batch = None if self._batch is None else int(self._batch)
        _domain.push_range(attributes(self._name, COLOURS[self._name], batch))

    def __exit__(self, *_: object) -> None:
        _domain.pop_range()


_domain: Final[Any] = _attach()
_attributes: Final = _Attributes()
_OFF: Final = contextlib.nullcontext()  # of all stages while no tool is attached


def attributes(name: str, colour: int, payload: int | None = None) -> Any:
    """Return the calling thread's event attributes of a name, which are reused, with a payload."""
    found = _attributes.made.get((name, colour))
    if found is None:
        found = _domain.get_event_attributes(message=name, color=colour)
        _attributes.made[name, colour] = found
    found.payload = payload
    return found


def _register_again() -> None:
    """Forget the registered names after a fork.

    Nsight Systems drops a forked process's ranges if its parent registered their names.
    """
    register: Any = getattr(type(_domain), "get_registered_string", None)
    if hasattr(register, "cache_clear"):
        register.cache_clear()
    _attributes.made.clear()


if _domain is not None:
    os.register_at_fork(after_in_child=_register_again)


def active() -> bool:
    """Whether an NVTX tool listened to the domain ``fastload`` when this module was imported."""
    return _domain is not None


if _domain is None:

    def stage(name: StageName, batch: int | None = None) -> AbstractContextManager[None]:
        """Mark a stage of a batch for the attached profiler; a null context without one.

        Thread-safe; balanced also when the body raises. A range belongs to the thread that opened it, so never keep one
        open across a ``yield``: a generator may be resumed on another thread.

        Args:
            name: The stage; the range's name.
            batch: The batch's number, sent as a signed 64-bit payload; None sends no payload.
        """
        return _OFF

else:

    def stage(name: StageName, batch: int | None = None) -> AbstractContextManager[None]:
        """Mark a stage: the same function with a tool attached."""
        return _Range(name, batch)


@functools.cache
def _name_os_thread() -> Callable[[int, bytes], None] | None:
    """``nvtxNameOsThreadA`` from torch's CUDA packages; the ``nvtx`` package lacks it."""
    for package in ("nvidia-nvtx", "nvidia-nvtx-cu13", "nvidia-nvtx-cu12"):
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name.startswith("libnvtx3interop.so"):
                try:
                    function = ctypes.CDLL(str(file.locate())).nvtxNameOsThreadA
                except (OSError, AttributeError):
                    continue
                function.argtypes = (ctypes.c_uint32, ctypes.c_char_p)
                function.restype = None
                return function
    return None


@functools.cache
def _pthread_setname() -> Callable[[int, bytes], int] | None:
    try:
        function = ctypes.CDLL(None).pthread_setname_np
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
    function.restype = ctypes.c_int
    return function


def name_thread(name: str) -> None:
    """Name the calling thread for the attached profiler; does nothing without one.

    Also sets the operating system's name for the thread (15 bytes), except on the main thread, where it would rename
    the whole process.
    """
    if _domain is None:
        return
    if hasattr(_domain, "name_thread"):
        _domain.name_thread(name)
    encoded = name.encode()
    if (name_os_thread := _name_os_thread()) is not None:
        name_os_thread(threading.get_native_id(), encoded)
    if threading.current_thread() is not threading.main_thread() and (set_name := _pthread_setname()) is not None:
        set_name(threading.get_ident(), encoded[:15])


def _batch_of_caller() -> int | None:
    """Number of the batch being fetched, which torch's iterator knows."""
    number = getattr(sys._getframe(2).f_locals.get("self"), "_num_yielded", None)
    return number if isinstance(number, int) else None


def _with_stage(fetch: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(fetch)
    def fetch_in_stage(self: Any, possibly_batched_index: Any) -> Any:
        with stage("fetch", _batch_of_caller()):
            return fetch(self, possibly_batched_index)

    fetch_in_stage.__fastload_stage__ = "fetch"  # type: ignore[attr-defined]
    return fetch_in_stage


def without_stage(fetch: Any) -> Any:
    """A fetcher's ``fetch`` without what :func:`instrument_fetch` has added."""
    return fetch.__wrapped__ if hasattr(fetch, "__fastload_stage__") else fetch


def instrument_fetch() -> None:
    """Wrap torch's data fetchers in this process in ``fetch`` ranges with batch numbers.

    For the main process with ``num_workers=0``. Does nothing if called again, without a tool attached, or if torch has
    no such fetchers.
    """
    if _domain is None:
        return
    try:
        from torch.utils.data._utils import fetch as torch_fetch
    except ImportError:
        return
    for class_name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        fetcher = getattr(torch_fetch, class_name, None)
        fetch = getattr(fetcher, "fetch", None)
        if fetcher is not None and fetch is not None and not hasattr(fetch, "__fastload_stage__"):
            fetcher.fetch = _with_stage(fetch)
