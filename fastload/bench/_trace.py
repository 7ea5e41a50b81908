"""Read GPU activity during training steps from the profiler's kernels and copies."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from fastload.profiling.recording.intervals import covered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fastload.profiling.recording.intervals import Interval


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """A stretch of time on one GPU."""

    # share of the time in which at least one kernel ran, what nvidia-smi calls utilization. Copies do not count. None
    # when the profiler recorded no kernel.
    busy_share: float | None
    copied_bytes: int  # bytes that went from host to device
    copy_s: float  # seconds in which at least one copy from host to device was under way

    @property
    def copy_gb_per_s(self) -> float | None:
        """Return the speed of host-to-device copies in flight, in 1e9 bytes per second."""
        return self.copied_bytes / self.copy_s / 1e9 if self.copy_s else None


def profiled(
    advance: Callable[[], object],
    warm_up: Callable[[], object] = lambda: None,
    *,
    synchronize: Callable[[], object] = torch.cuda.synchronize,
    activities: Sequence[ProfilerActivity] = (ProfilerActivity.CUDA,),
) -> tuple[list[dict[str, Any]], float]:
    """Record work with torch's profiler (CUPTI's activity records: the GPU's own timestamps).

    Starting the profiler takes time in which loaders run ahead, so ``warm_up`` runs under it before the record begins.
    The record lies between two synchronizations.

    Returns:
        The events of a Chrome trace (in microseconds), and the seconds of the record.
    """
    with tempfile.TemporaryDirectory(prefix="fastload-") as folder:
        path = Path(folder) / "trace.json"
        with profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
            acc_events=True,
        ) as profiler:
            warm_up()
            synchronize()  # before the record begins, or what the warm-up left on the device would be in it
            profiler.step()
            synchronize()
            start = time.perf_counter()
            advance()
            synchronize()
            elapsed_s = time.perf_counter() - start
        return json.loads(path.read_text())["traceEvents"], elapsed_s


def summarize(events: Iterable[dict[str, Any]], elapsed_s: float) -> GpuActivity:
    """Add up the kernels and host-to-device copies of a Chrome trace (in microseconds)."""
    kernels: list[Interval] = []
    copies: list[Interval] = []
    copied_bytes = 0
    for event in events:
        category = event.get("cat")
        if category == "kernel":
            kernels.append(_interval(event))
        elif category == "gpu_memcpy" and "HtoD" in event["name"]:
            copies.append(_interval(event))
            copied_bytes += int(event["args"]["bytes"])
    busy_share = covered(kernels) / 1e9 / elapsed_s if kernels else None
    return GpuActivity(busy_share, copied_bytes, covered(copies) / 1e9)


def _interval(event: dict[str, Any]) -> Interval:
    return round(1e3 * event["ts"]), round(1e3 * (event["ts"] + event["dur"]))
