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
    """A stretch of time on one GPU.

    Attributes:
        busy_share: Share of the time in which at least one kernel ran, what ``nvidia-smi`` calls utilization. Copies do
            not count. ``None`` when the profiler recorded no kernel.
        copied_bytes: Bytes that went from host to device.
        copy_s: Time in which at least one copy from host to device was under way.
    """

    busy_share: float | None
    copied_bytes: int
    copy_s: float

    @property
    def copy_gb_per_s(self) -> float | None:
        """Return the speed of host-to-device copies in flight, in 1e9 bytes per second."""
        return self.copied_bytes / self.copy_s / 1e9 if self.copy_s else None


def record_activity(
    warm_up: Callable[[], object],
    advance: Callable[[int], object],
    steps: int,
    *,
    synchronize: Callable[[], object] = torch.cuda.synchronize,
    activities: Sequence[ProfilerActivity] = (ProfilerActivity.CUDA,),
) -> GpuActivity:
    """Record ``steps`` steps with torch's profiler (CUPTI's activity records: the GPU's own timestamps).

    To start the profiler takes time in which loaders run ahead, so ``warm_up`` runs under it before the record begins.
    The stretch lies between two synchronizations.

    Args:
        warm_up: Runs some training steps; should use up what the loader can hold.
        advance: Runs that many training steps.
        steps: How many to record.
        synchronize: Waits for the device.
        activities: What to record.
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
            advance(steps)
            synchronize()
            elapsed_s = time.perf_counter() - start
        events = json.loads(path.read_text())["traceEvents"]
    return summarize(events, elapsed_s)


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
