from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity

from fastload.bench._trace import profiled, summarize


def kernel(ts: float, dur: float) -> dict[str, object]:
    return {"ph": "X", "cat": "kernel", "name": "sgemm", "ts": ts, "dur": dur, "args": {}}


def copy(ts: float, dur: float, nbytes: int, kind: str = "HtoD (Pinned -> Device)") -> dict[str, object]:
    return {"ph": "X", "cat": "gpu_memcpy", "name": f"Memcpy {kind}", "ts": ts, "dur": dur, "args": {"bytes": nbytes}}


def test_busy_share_counts_kernels_of_all_streams_but_no_copies() -> None:
    events = [
        kernel(100, 300_000),
        kernel(200_000, 200_000),
        copy(500_000, 400_000, 8),
        {"cat": "cuda_runtime", "ts": 1},
    ]
    activity = summarize(events, elapsed_s=1.0)
    assert activity.busy_share == pytest.approx(0.3999)


def test_copy_speed_is_that_of_the_way_to_the_device() -> None:
    events = [
        copy(0, 1000, 50_000_000),
        copy(5000, 1000, 50_000_000, "HtoD (Pageable -> Device)"),
        copy(2000, 9000, 1, "DtoH (Device -> Pinned)"),
    ]
    activity = summarize(events, elapsed_s=1.0)
    assert activity.copied_bytes == 100_000_000
    assert activity.copy_gb_per_s == pytest.approx(50)
    assert activity.busy_share is None
    assert summarize([], elapsed_s=1.0).copy_gb_per_s is None


def test_record_covers_the_steps_after_the_warm_up() -> None:
    calls: list[int | str] = []

    def run(count: int) -> None:
        calls.append(count)
        torch.ones(8).sum()

    kinds = (ProfilerActivity.CPU,)
    activity = summarize(
        *profiled(lambda: run(7), lambda: run(3), synchronize=lambda: calls.append("sync"), activities=kinds)
    )
    # The first synchronization keeps out of the record what the warm-up left on the device.
    assert calls == [3, "sync", "sync", 7, "sync"]
    assert activity.busy_share is None
