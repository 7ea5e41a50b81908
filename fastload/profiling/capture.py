"""``capture``: a profiler's window around some steps, counted by the loader."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from torch.utils.data import get_worker_info

from fastload.options import length_of
from fastload.profiling.window import REPORT_VARIABLE, Window
from fastload.torch_workers.signals import Finalizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch

T = TypeVar("T")

VARIABLE: Final = "FASTLOAD_CAPTURE"
"""``warmup:steps``, ``warmup:steps:end`` or ``warmup:steps:exit``: see :func:`capture_from_environment`."""

TRACE_VARIABLE: Final = "FASTLOAD_CAPTURE_TRACE"
"""File for torch.profiler's trace of that window."""


def capture(
    loader: Iterable[T],
    warmup: int = 10,
    steps: int = 10,
    *,
    end: bool = False,
    trace: str | os.PathLike[str] | None = None,
) -> Capture[T]:
    """Yield the loader's batches, with a profiler's window around ``steps`` of them.

    After ``warmup`` batches the CUDA profiler is started, for which ``nsys profile --capture-range=cudaProfilerApi``
    and ``ncu --profile-from-start off`` wait; after ``steps`` more it is stopped. In between, each step has an NVTX
    range ``step`` in the domain ``fastload``, from the request for its batch until the request for the next, with the
    batch's number as payload. Before and after the window a batch costs one more call, and no profiler runs.

    >>> from fastload import DataLoader, capture
    >>> loader = DataLoader(range(8), batch_size=2)
    >>> for batch in capture(loader, warmup=1, steps=2):
    ...     print(batch.tolist())
    [0, 1]
    [2, 3]
    [4, 5]
    [6, 7]
    >>> for batch in capture(loader, warmup=1, steps=2, end=True):
    ...     print(batch.tolist())
    [0, 1]
    [2, 3]
    [4, 5]

    Batches are counted over all loops over the result, and there is one window: a loop that ends in it (by ``break``,
    by an exception, out of batches) closes it. If two windows would overlap in one process, the later one stays closed,
    with a warning.

    Args:
        loader: Any iterable of batches.
        warmup: Batches before the window; 0 or more.
        steps: Batches in it; at least 1.
        end: Whether the loop ends with the window; later loops then end at once.
        trace: A file for torch.profiler's trace of the window (``.json``, or ``.json.gz``), for machines without
            Nsight. In the ranks of a distributed run ``.rank0`` and so on is inserted before its suffix.

    Returns:
        An iterable of the same batches; it has a length if the loader has one.

    Raises:
        TypeError: ``loader`` is not iterable, or an argument is of the wrong type.
        ValueError: ``warmup`` or ``steps`` is too small.
        FileNotFoundError: The folder of ``trace`` does not exist.
    """
    return Capture(loader, Window(warmup, steps, "end" if end else "go on", trace))


class Capture(Generic[T]):
    """The iterable that :func:`capture` returns."""

    def __init__(self, loader: Iterable[T], window: Window) -> None:
        if not hasattr(loader, "__iter__"):
            raise TypeError(f"capture takes an iterable of batches, got {type(loader).__name__}")
        self._loader = loader
        self._window = window

    def __iter__(self) -> Iterator[T]:
        if not self._window.is_over:
            return CaptureIterator(self._loader, iter(self._loader), self._window)
        return iter(()) if self._window.afterwards == "end" else iter(self._loader)

    def __len__(self) -> int:
        length = len(self._loader)  # type: ignore[arg-type]
        return length if self._window.afterwards == "go on" else min(length, self._window.left)

    @property
    def captured(self) -> int:
        """Steps captured so far."""
        return self._window.captured

    @property
    def profile(self) -> torch.profiler.profile | None:
        """Torch's profiler of the window, once it is closed; ``None`` unless ``trace`` was given."""
        return self._window.profile

    def close(self) -> None:
        """Close the window if open, and write its trace. Idempotent.

        The end of a loop closes it too.
        """
        self._window.leave()


class CaptureIterator(Generic[T]):
    """One loop over a loader. Forwards attributes to the loader's own iterator."""

    def __init__(self, loader: Iterable[T], inner: Iterator[T], window: Window) -> None:
        self._capture_inner = inner
        self._capture_window: Window | None = window
        self._capture_number = 0
        self._capture_length = length_of(loader)
        # After a `break` or an exception only the end of this object's life shows that the loop is over.
        self._capture_finalizer = Finalizer(self, window.leave)

    def __iter__(self) -> CaptureIterator[T]:
        return self

    def __next__(self) -> T:
        window = self._capture_window
        if window is None:
            return next(self._capture_inner)
        if window.before(self._capture_number, self._capture_number == self._capture_length):
            self._capture_window = None
            self._capture_inner = iter(())
            raise StopIteration
        try:
            batch = next(self._capture_inner)
        except BaseException:
            window.leave()
            raise
        window.after()
        self._capture_number += 1
        if window.is_over:
            self._capture_window = None
        return batch

    def __len__(self) -> int:
        return len(self._capture_inner)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._capture_inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_capture_"):
            raise AttributeError(name)
        return getattr(self._capture_inner, name)


class CaptureFromEnvironment:
    """One window for a process, for the first loader that completes its warm-up.

    Args:
        text: The value of :data:`VARIABLE`.
        trace: The value of :data:`TRACE_VARIABLE`, if set.
    """

    def __init__(self, text: str, trace: str | None = None) -> None:
        warmup, _, rest = text.partition(":")
        steps, _, afterwards = rest.partition(":")
        if not (warmup.isdecimal() and steps.isdecimal() and afterwards in ("", "end", "exit")):
            raise ValueError(
                f"{VARIABLE} must be warmup:steps, warmup:steps:end or warmup:steps:exit, such as 10:10, got {text!r}"
            )
        self._arguments = (int(warmup), int(steps), afterwards or "go on", trace or None)
        self._windows: dict[int, tuple[weakref.ref[Any], Window]] = {}  # by id: a loader need not be hashable
        self._lock = threading.Lock()
        self._taken = False
        self._replaced = 0  # most batches of a loader that is gone
        self._new_window()  # checks the arguments

    def _new_window(self) -> Window:
        warmup, steps, afterwards, trace = self._arguments
        return Window(warmup, steps, afterwards, trace, self._take)  # type: ignore[arg-type]

    def _take(self) -> bool:
        with self._lock:
            taken, self._taken = self._taken, True
            return not taken

    def listening(self, iterate: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        """Wrap a loader class's ``__iter__``."""

        @functools.wraps(iterate)
        def iterate_and_capture(loader: Any) -> Iterator[Any]:
            known, window = self._windows.get(id(loader), (None, None))
            if window is None or known is None or known() is not loader:
                if self._taken or get_worker_info() is not None:
                    return iterate(loader)
                if window is not None:
                    self._replaced = max(self._replaced, window.seen)
                window = self._new_window()
                if os.environ.get(REPORT_VARIABLE) and hasattr(loader, "stats"):
                    window.reporting = weakref.ref(loader)
                self._windows[id(loader)] = (weakref.ref(loader), window)
            if window.is_over:
                return iter(()) if window.afterwards == "end" else iterate(loader)
            return CaptureIterator(loader, iterate(loader), window)

        return iterate_and_capture

    def say_if_short(self) -> None:
        """Write to stderr that loops were too short for the window, if they were."""
        warmup, steps, *_ = self._arguments
        windows = [window for _, window in self._windows.values()]
        captured = max((window.captured for window in windows), default=0)
        seen = max([self._replaced, *(window.seen for window in windows if window.captured == captured)])
        if seen and captured < steps:
            sys.stderr.write(
                f"fastload: {captured} of {steps} steps were recorded: {warmup} warm-up steps and these take "
                f"{warmup + steps} batches of one loader, and the longest loop ended after {seen}; ask for fewer\n"
            )


def capture_from_environment() -> CaptureFromEnvironment | None:
    """The window requested by :data:`VARIABLE`; ``None`` if it is not set.

    For programs that do not call :func:`capture`. ``FASTLOAD_CAPTURE=10:10 fastload run train.py`` counts the batches
    of every loader of the program; the first loader that delivers 10 gets a window of 10 steps, as if the program had
    looped over ``capture(loader, 10, 10)``. There is one window per process, none in workers. ``10:10:end`` ends that
    loop with the window; ``10:10:exit`` ends the program there, with status 0. ``FASTLOAD_CAPTURE_TRACE=trace.json``
    writes torch.profiler's trace of the window, ``FASTLOAD_CAPTURE_REPORT=report.json`` the loader's verdict on it.
    A program whose loops are too short for the window says so at its end.

    Raises:
        ValueError: The variable has another form.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    window = CaptureFromEnvironment(text, os.environ.get(TRACE_VARIABLE))
    atexit.register(window.say_if_short)
    return window
