"""``capture``: a profiler's window around some steps, counted by the loader."""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import threading
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar

import torch
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]
from torch.utils.data import get_worker_info

from fastload.memory.gpu import FILE, gpu_memory
from fastload.nvtx.modules import hook_while_profiling
from fastload.nvtx.ranges import NvtxRange, pop, push
from fastload.options import length_of
from fastload.profiling.recording.trace import STEP
from fastload.stats.diagnosis import report
from fastload.torch_workers.signals import Finalizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastload.stats.stats import Stats

T = TypeVar("T")

VARIABLE: Final = "FASTLOAD_CAPTURE"
"""``warmup:steps``, ``warmup:steps:end`` or ``warmup:steps:exit``: see :func:`capture_from_environment`."""

TRACE_VARIABLE: Final = "FASTLOAD_CAPTURE_TRACE"  # file for torch.profiler's trace of that window

REPORT_VARIABLE: Final = "FASTLOAD_CAPTURE_REPORT"
"""File for the verdict of the loader's own report on that window, as JSON; the GPU's memory is written beside it."""

Afterwards: TypeAlias = Literal["go on", "end", "exit"]


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
        """Close the window if open, as a loop's end does, and write its trace. Idempotent."""
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


class Window:
    """Counts batches, opens the window, marks steps, closes it.

    Independent of the loader, and valid in one process only. It never opens if ``may_open``, called once before,
    returns false.
    """

    _open: Window | None = None  # one at a time: the profiler is per process
    _lock = threading.Lock()

    def __init__(
        self,
        warmup: int,
        steps: int,
        afterwards: Afterwards = "go on",
        trace: str | os.PathLike[str] | None = None,
        may_open: Callable[[], bool] | None = None,
    ) -> None:
        self._warmup = _count("warmup", warmup, 0)
        self._steps = _count("steps", steps, 1)
        self.afterwards = afterwards
        self._trace = None if trace is None else _trace_path(trace)
        self.is_over = False
        self.captured = 0
        self.profile: torch.profiler.profile | None = None
        self.seen = 0
        self._is_open = False
        self._step: NvtxRange | None = None
        self._may_open = may_open
        self._pid = 0
        self.reporting: weakref.ref[Any] | None = None
        self._before: Stats | None = None

    @property
    def left(self) -> int:
        """Batches until it is over."""
        return 0 if self.is_over else self._warmup + self._steps - self.seen

    def before(self, number: int, is_last: bool) -> bool:
        """Handle a request for batch ``number``; returns whether the loop ends.

        ``is_last`` means that there is no such batch.
        """
        self._end_step()
        if self.is_over:  # ended by another loop
            return self.afterwards == "end"
        if not self._is_open and self.seen >= self._warmup and not is_last:
            self._start()
        if self._is_open and self.seen >= self._warmup + self._steps:
            self.leave()
            if self.afterwards == "exit":
                raise SystemExit(0)
            return self.afterwards == "end"
        if self._is_open and not is_last:
            self._step = push(NvtxRange(STEP, number))
        return False

    def after(self) -> None:
        """Count the delivered batch."""
        self.seen += 1
        self.captured += self._is_open

    def leave(self) -> None:
        """Close the window if it is open, because the loop has ended."""
        self._end_step()
        if self._is_open:
            self._is_open = False
            self.is_over = True
            try:
                if self._pid == os.getpid():  # in a forked copy, the profiler belongs to the parent
                    self._stop()
            finally:
                Window._open = None

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            pop(step)

    def _start(self) -> None:
        if self._may_open is not None and not self._may_open():
            self._stay_shut()
            return
        with Window._lock:
            if Window._open is not None:
                self._stay_shut()
                _warn("another window is open in this process, so this one stays shut; capture one loader at a time")
                return
            Window._open = self
        self._is_open = True
        self._pid = os.getpid()
        if self.reporting is not None and (loader := self.reporting()) is not None:
            self._before = loader.stats()
        if self._trace is not None:
            self._start_torch()
        if _has_cuda():
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]

    def _stay_shut(self) -> None:
        self.is_over = True
        self.afterwards = "go on"

    def _stop(self) -> None:
        loader = None if self.reporting is None else self.reporting()
        during = None if self._before is None or loader is None else loader.stats().since(self._before)
        try:
            if _has_cuda():
                torch.cuda.synchronize()  # so that the last step's kernels have run when the recording ends
                torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
        finally:
            if self.profile is not None:
                self.profile.stop()
                hook_while_profiling(False)
        try:
            if self.profile is not None:
                self.profile.export_chrome_trace(str(self._trace))  # only some suffixes raise
                if not Path(str(self._trace)).exists():
                    raise FileNotFoundError(f"torch.profiler could not write {self._trace}")
            if during is not None:
                path = _of_rank(Path(os.environ[REPORT_VARIABLE]))
                path.write_text(json.dumps(report(during).verdict.to_dict()), encoding="utf-8")
            if (beside := os.environ.get(REPORT_VARIABLE)) and _has_cuda():
                path = _of_rank(Path(beside).with_name(FILE))
                path.write_text(json.dumps(gpu_memory().to_dict()), encoding="utf-8")
        except OSError as error:
            _warn(f"{error}; the program goes on without what should have been written there")

    def _start_torch(self) -> None:
        if _profiler_enabled():  # a second one would replace the first
            _warn("torch.profiler is running already, so no trace is written; leave trace out, or that profiler", 6)
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        if _has_cuda():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.profile = torch.profiler.profile(activities=activities)
        self.profile.start()
        hook_while_profiling(True)


class CaptureFromEnvironment:
    """One window for a process, for the first loader that completes its warm-up."""

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

    def listening(self, iterate: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Wrap what begins a loader's iterations."""

        @functools.wraps(iterate)
        def iterate_and_capture(loader: Any, *given: Any) -> Iterator[Any]:
            known, window = self._windows.get(id(loader), (None, None))
            if window is None or known is None or known() is not loader:
                if self._taken or get_worker_info() is not None:
                    return iterate(loader, *given)
                if window is not None:
                    self._replaced = max(self._replaced, window.seen)
                window = self._new_window()
                if os.environ.get(REPORT_VARIABLE) and hasattr(loader, "stats"):
                    window.reporting = weakref.ref(loader)
                self._windows[id(loader)] = (weakref.ref(loader), window)
            if window.is_over:
                return iter(()) if window.afterwards == "end" else iterate(loader, *given)
            return CaptureIterator(loader, iterate(loader, *given), window)

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


def _warn(text: str, level: int = 5) -> None:
    """Warn at the loop's line, ``level`` calls up."""
    warnings.warn(f"capture: {text}", RuntimeWarning, stacklevel=level)


def _count(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")
    return value


def _trace_path(trace: str | os.PathLike[str]) -> Path:
    path = Path(trace).absolute()  # the program may change its working directory
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"trace must name a file in a folder that exists, got {trace}; make {path.parent} first"
        )
    return _of_rank(path)


def _of_rank(path: Path) -> Path:
    """The path, with the rank inserted in a distributed run."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1 and (rank := os.environ.get("RANK")):
        stem, dot, suffix = path.name.partition(".")
        return path.with_name(f"{stem}.rank{rank}{dot}{suffix}")
    return path


def _has_cuda() -> bool:
    return torch.cuda.is_available()
