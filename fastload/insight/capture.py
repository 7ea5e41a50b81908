"""``capture``: a profiler's window around some steps of a loop, counted by the loader that feeds it."""

from __future__ import annotations

import functools
import json
import os
import threading
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info

from fastload.insight.loader_report import report
from fastload.insight.modules import hook_while_profiling
from fastload.insight.ranges import Range, pop, push

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastload.insight.stats import Stats

T = TypeVar("T")

STEP: Final = "step"
"""Name of the range around each step in the window."""

VARIABLE: Final = "FASTLOAD_CAPTURE"
"""``warmup:steps``, ``warmup:steps:end`` or ``warmup:steps:exit``: see :func:`capture_from_environment`."""

TRACE_VARIABLE: Final = "FASTLOAD_CAPTURE_TRACE"
"""File for torch.profiler's trace of that window."""

REPORT_VARIABLE: Final = "FASTLOAD_CAPTURE_REPORT"
"""File for the verdict of the loader's own report on that window, as JSON."""

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
    and ``ncu --profile-from-start off`` wait; after ``steps`` more it is stopped. In between each step is an NVTX range
    ``step`` in the domain ``fastload``, from the moment that its batch is asked for until the next one is, with the
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
    by an exception, for want of batches) closes it. Of two windows that would overlap in one process the later one
    stays shut, with a warning.

    Args:
        loader: Any iterable of batches.
        warmup: Batches before the window; 0 or more.
        steps: Batches in it; at least 1.
        end: Whether the loop ends with the window, and later loops at once.
        trace: A file for torch.profiler's trace of the window (``.json``, or ``.json.gz``), for where there is no
            Nsight. In the ranks of a distributed run ``.rank0`` and so on is put before its suffix.

    Returns:
        An iterable of the same batches; it has a length if the loader has one.

    Raises:
        TypeError: ``loader`` is not iterable, or an argument is of the wrong type.
        ValueError: ``warmup`` or ``steps`` is too small.
        FileNotFoundError: The folder of ``trace`` does not exist.
    """
    return Capture(loader, Window(warmup, steps, "end" if end else "go on", trace))


class Capture(Generic[T]):
    """What :func:`capture` returns."""

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
        """Steps that the window has held so far."""
        return self._window.captured

    @property
    def profile(self) -> torch.profiler.profile | None:
        """Torch's profiler of the window, once it is closed; ``None`` unless ``trace`` was given."""
        return self._window.profile

    def close(self) -> None:
        """Close the window if it is open, and write its trace. Idempotent; the end of a loop does it too."""
        self._window.leave()


class Window:
    """The window itself: counts batches, opens, marks steps, closes. Knows no loader and outlives no process.

    Args:
        warmup: Batches before it.
        steps: Batches in it.
        afterwards: What the loop does when it is over.
        trace: File for torch.profiler's trace.
        may_open: Asked once, when it would open; if that says no it never does.
    """

    _open: Window | None = None  # one at a time: the profiler is the process's
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
        self._seen = 0
        self._is_open = False
        self._step: Range | None = None
        self._may_open = may_open
        self._pid = 0
        self.reporting: weakref.ref[Any] | None = None
        self._before: Stats | None = None

    @property
    def left(self) -> int:
        """Batches until it is over."""
        return 0 if self.is_over else self._warmup + self._steps - self._seen

    def before(self, number: int, is_last: bool) -> bool:
        """A loop asks for its batch ``number``; ``is_last`` says that there is none. Returns whether the loop ends."""
        self._end_step()
        if not self._is_open and self._seen >= self._warmup:
            self._start()
        if self._is_open and self._seen >= self._warmup + self._steps:
            self.leave()
            if self.afterwards == "exit":
                raise SystemExit(0)
            return self.afterwards == "end"
        if self._is_open and not is_last:
            self._step = push(Range(STEP, number))
        return False

    def after(self) -> None:
        """The batch is there."""
        self._seen += 1
        self.captured += self._is_open

    def leave(self) -> None:
        """Close the window if it is open: the loop has ended, one way or another."""
        self._end_step()
        if self._is_open:
            self._is_open = False
            self.is_over = True
            try:
                if self._pid == os.getpid():  # not a forked copy: the profiler is the parent's
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
                warnings.warn(
                    "capture: another window is open in this process, so this one stays shut; capture one loader at "
                    "a time",
                    RuntimeWarning,
                    stacklevel=4,
                )
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
        if self._before is not None and loader is not None:
            _write_report(loader.stats().since(self._before))
        if _has_cuda():
            torch.cuda.synchronize()  # so that the last step's kernels have run when the recording ends
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
        if self.profile is not None:
            self.profile.stop()
            hook_while_profiling(False)
            self.profile.export_chrome_trace(str(self._trace))

    def _start_torch(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if _has_cuda():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profile = torch.profiler.profile(activities=activities)
        try:
            profile.start()
        except RuntimeError as error:
            warnings.warn(f"capture: no trace is written: torch.profiler: {error}", RuntimeWarning, stacklevel=5)
        else:
            self.profile = profile
            hook_while_profiling(True)


class CaptureIterator(Generic[T]):
    """One loop over a loader. Knows every attribute that the loader's own iterator has."""

    def __init__(self, loader: Iterable[T], inner: Iterator[T], window: Window) -> None:
        self._capture_inner = inner
        self._capture_window: Window | None = window
        self._capture_number = 0
        self._capture_length = _length(loader)
        # A `break` and an exception leave nothing but this object behind, and drop it.
        self._capture_finalizer = weakref.finalize(self, window.leave)

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
    """One window for a whole process: that of the first loader that gets past its warm-up.

    Args:
        text: What :data:`VARIABLE` holds.
        trace: What :data:`TRACE_VARIABLE` holds, if anything.
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
                window = self._new_window()
                if os.environ.get(REPORT_VARIABLE) and hasattr(loader, "stats"):
                    window.reporting = weakref.ref(loader)
                self._windows[id(loader)] = (weakref.ref(loader), window)
            if window.is_over:
                return iter(()) if window.afterwards == "end" else iterate(loader)
            return CaptureIterator(loader, iterate(loader), window)

        return iterate_and_capture


def capture_from_environment() -> CaptureFromEnvironment | None:
    """The window that :data:`VARIABLE` asks for, for programs that do not call :func:`capture`; else ``None``.

    ``FASTLOAD_CAPTURE=10:10 fastload run train.py`` counts the batches of every loader of the program; the first loader
    that hands out 10 gets a window of 10 steps, as if the program had looped over ``capture(loader, 10, 10)``. There is
    one window per process, none in workers. ``10:10:end`` ends that loop with the window; ``10:10:exit`` ends the
    program there, with status 0. ``FASTLOAD_CAPTURE_TRACE=trace.json`` has torch.profiler write the window's trace,
    ``FASTLOAD_CAPTURE_REPORT=report.json`` the loader its verdict on the window.

    Raises:
        ValueError: The variable is set to something else.
    """
    text = os.environ.get(VARIABLE)
    return CaptureFromEnvironment(text, os.environ.get(TRACE_VARIABLE)) if text else None


def _count(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")
    return value


def _trace_path(trace: str | os.PathLike[str]) -> Path:
    path = Path(trace).absolute()  # the program may change its folder
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"trace must name a file in a folder that exists, got {trace}; make {path.parent} first"
        )
    return _of_rank(path)


def _of_rank(path: Path) -> Path:
    """In the ranks of a distributed run each has a file of its own."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1 and (rank := os.environ.get("RANK")):
        stem, dot, suffix = path.name.partition(".")
        return path.with_name(f"{stem}.rank{rank}{dot}{suffix}")
    return path


def _write_report(stats: Stats) -> None:
    verdict = report(stats).verdict
    bottleneck = None if verdict.bottleneck is None else verdict.bottleneck.value
    said = {"bottleneck": bottleneck, "evidence": verdict.evidence, "remedy": verdict.remedy}
    path = _of_rank(Path(os.environ[REPORT_VARIABLE]))
    path.write_text(json.dumps(said), encoding="utf-8")


def _has_cuda() -> bool:
    return torch.cuda.is_available()


def _length(loader: Any) -> int | None:
    """How many batches a loop over ``loader`` has, if that is known."""
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return None  # torch holds the loader to a length that it has once told
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None
