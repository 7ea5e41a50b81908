"""Time kernels on a GPU with CUDA events around launches, and with torch's profiler.

Events see the kernels that :mod:`fastload.device.nvrtc` launches, and count a kernel's start, too. The profiler sees
everything, copies and fills included, by the device's own records.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile

from fastload.device import nvrtc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Launches:
    """Kernels that were launched, by program and name, with an event before and after each."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}  # by id of a kernel
        self._kernels: list[Any] = []  # so that no id is used twice
        self._marks: list[tuple[str, Any, Any]] = []

    def know(self, program: str, kernels: dict[str, Any]) -> None:
        """Remember the names of a program's kernels."""
        self._kernels += kernels.values()
        self.names |= {id(kernel): f"{program}.{name}" for name, kernel in kernels.items()}

    def add(self, kernel: Any, before: Any, after: Any) -> None:
        """Note a launch."""
        self._marks.append((self.names.get(id(kernel), "?"), before, after))

    def take_ms(self) -> dict[str, float]:
        """Return milliseconds by kernel since the last call. Blocks until all have run."""
        torch.cuda.synchronize()
        marks, self._marks = self._marks, []
        times: dict[str, float] = defaultdict(float)
        for name, before, after in marks:
            times[name] += before.elapsed_time(after)
        return dict(times)


@contextlib.contextmanager
def recorded_launches(event: Callable[[], Any]) -> Iterator[Launches]:
    """Record launches while entered; programs that are compiled before have no names.

    Args:
        event: Marks a point of the current stream; has ``elapsed_time``.
    """
    launches = Launches()
    build, launcher = nvrtc.build, nvrtc.launcher

    def building(index: int, name: str, *arguments: Any, **more: Any) -> Any:
        kernels = build(index, name, *arguments, **more)
        launches.know(name, kernels)
        return kernels

    def recording(device: torch.device) -> Callable[..., None]:
        launch = launcher(device)

        def launched(kernel: Any, *arguments: Any) -> None:
            before = event()
            launch(kernel, *arguments)
            launches.add(kernel, before, event())

        return launched

    nvrtc.build, nvrtc.launcher = building, recording
    try:
        yield launches
    finally:
        nvrtc.build, nvrtc.launcher = build, launcher


def profiled_ms(advance: Callable[[], object]) -> dict[str, float]:
    """Return milliseconds of the device's kernels, copies and fills by name, by torch's profiler.

    Args:
        advance: Does the work.
    """
    with tempfile.TemporaryDirectory(prefix="fastload-") as folder:
        path = Path(folder) / "trace.json"
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            advance()
            torch.cuda.synchronize()
        profiler.export_chrome_trace(str(path))
        return summed_ms(json.loads(path.read_text())["traceEvents"])


def summed_ms(events: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Add up a Chrome trace's device work by name (there in microseconds)."""
    times: dict[str, float] = defaultdict(float)
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            times[event["name"]] += event["dur"] / 1e3
    return dict(times)
