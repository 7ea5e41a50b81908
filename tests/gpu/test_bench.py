"""The benchmarks measure what they say, on a real GPU."""

from __future__ import annotations

import time
from pathlib import Path

import optional
import pytest
import torch

from benchmarks.commands import BENCHMARKS
from benchmarks.step import compare_feeds, time_each_next
from fastload.bench._charts import draw_ladder
from fastload.bench._steps import TrainingStep
from fastload.bench._trace import profiled, summarize
from fastload.bench.ladder import Ladder, climb
from fastload.bench.photos import PhotoSet, write_photos
from fastload.measurement.clock import CudaClock

optional.needed("skimage", "matplotlib")

pytestmark = pytest.mark.gpu


def sleep_ms(milliseconds: float) -> None:
    """Keep the GPU busy with one kernel; its clock is about 1 to 2 GHz."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))


def test_whole_climb(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", PhotoSet(count=16, classes=2, edge_px=64)).path
    record = climb(Ladder(data=photos, model="resnet18", batch_size=16, steps=4, repeats=2, cores=4), id)
    assert [rung["number"] for rung in record["rungs"]] == [1, 2, 3, 4, 5, 6, 7, 8, 0]
    for rung in record["rungs"]:
        assert 0 < rung["gpu_busy_share"] <= 1.02, rung["name"]
        assert -0.01 <= rung["wait_share"] <= 1, rung["name"]
        if rung["number"]:
            assert rung["h2d_gb_per_s"] > 0.5, rung["name"]
    draw_ladder(record, tmp_path / "ladder.png")


def test_busy_share_is_half_when_half_the_time_is_slept_away() -> None:
    def advance(count: int) -> None:
        for _ in range(count):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            sleep_ms(100)  # beside which launches are short, also while others use the GPU
            end.record()
            torch.cuda.synchronize()
            time.sleep(start.elapsed_time(end) / 1e3)

    assert summarize(*profiled(lambda: advance(10), lambda: advance(2))).busy_share == pytest.approx(0.5, abs=0.05)


def test_copies_are_seen_on_any_stream() -> None:
    source = torch.empty(1 << 26, dtype=torch.uint8, pin_memory=True)
    stream = torch.cuda.Stream()

    def advance(count: int) -> None:
        for _ in range(count):
            with torch.cuda.stream(stream):
                source.to("cuda", non_blocking=True)

    activity = summarize(*profiled(lambda: advance(5), lambda: advance(2)))
    assert activity.copied_bytes == 5 * (1 << 26)
    assert activity.copy_gb_per_s is not None
    assert activity.copy_gb_per_s > 1


def test_waiting_is_time_that_the_gpu_was_idle_not_time_that_the_host_waited() -> None:
    clock = CudaClock()
    sleep_ms(100)
    busy = clock.mark()
    time.sleep(0.02)  # the host waits for a batch, but the GPU has work for longer than that
    arrived_early = clock.mark()
    clock.finish()
    idle = clock.mark()
    time.sleep(0.05)  # now it has none
    arrived_late = clock.mark()
    clock.finish()
    assert clock.between_s(busy, arrived_early) < 0.005
    assert clock.between_s(idle, arrived_late) == pytest.approx(0.05, abs=0.01)


def test_step_benchmark_runs() -> None:
    given = ["--model", "resnet18", "--batch-size", "16", "--steps", "3", "--repeats", "2", "--calls", "5"]
    args = BENCHMARKS["step"].parse("step", given)
    device = torch.device("cuda", torch.cuda.current_device())
    train = TrainingStep(args.model, device, channels_last=True)
    ms = compare_feeds(args, device, train, CudaClock())
    assert set(ms) == {"fed", "inline", "resident"}
    assert all(spread.median > 0 for spread in ms.values())
    times = time_each_next(args, device, train, CudaClock())
    assert all(0 < spread.median < 50_000 for spread in times.values())
