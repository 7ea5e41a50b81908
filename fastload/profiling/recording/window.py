"""A profiler's window, opened and closed around some steps of a loop."""

from __future__ import annotations

import json
import os
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import torch
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]

from fastload.nvtx.modules import hook_while_profiling
from fastload.nvtx.ranges import NvtxRange, pop, push
from fastload.stats.diagnosis import report

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable

    from fastload.stats.stats import Stats

STEP: Final = "step"
"""Name of the range around each step in the window."""

REPORT_VARIABLE: Final = "FASTLOAD_CAPTURE_REPORT"
"""File for the verdict of the loader's own report on that window, as JSON."""

Afterwards: TypeAlias = Literal["go on", "end", "exit"]


class Window:
    """Counts batches, opens the window, marks steps, closes it.

    Independent of the loader, and valid in one process only.

    Args:
        warmup: Batches before it.
        steps: Batches in it.
        afterwards: What the loop does when it is over.
        trace: File for torch.profiler's trace.
        may_open: Called once before opening; if it returns false, the window never opens.
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
                _write_report(during)
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


def _write_report(stats: Stats) -> None:
    verdict = report(stats).verdict
    bottleneck = None if verdict.bottleneck is None else verdict.bottleneck.value
    said = {"bottleneck": bottleneck, "evidence": verdict.evidence, "remedy": verdict.remedy}
    path = _of_rank(Path(os.environ[REPORT_VARIABLE]))
    path.write_text(json.dumps(said), encoding="utf-8")


def _has_cuda() -> bool:
    return torch.cuda.is_available()
