"""Test what is seen of decoding on the GPU in a recording."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from handmade import FEEDER, MAIN, WORKERS, h2d, kernel, launch, recording, span, stage

from fastload.profiling.analysis.findings import decode_kernels, find
from fastload.profiling.analysis.trace_diagnosis import diagnose_trace
from fastload.profiling.pages.html import render
from fastload.profiling.pages.report import make_report, overview
from fastload.profiling.pages.timeline import COLOURS, lay_out
from fastload.profiling.recording.trace import Recording, Thread, ThreadKey
from fastload.stats.verdict import LESS_ON_GPU, Bottleneck

DECODE, MODEL = 13, 7  # streams
READER = ThreadKey(100, 120)


def made(*, decode_us: int = 100, gap_us: int = 0, wait_us: int = 0, steps: int = 4) -> Recording:
    """Steps of a millisecond, beside or before which the next batch is decoded.

    Args:
        decode_us: Of the two kernels of a batch together.
        gap_us: Time in each step in which the model's kernels do not run, while the batch is decoded.
        wait_us: Time in each step in which the loop waits.
        steps: How many.
    """
    ranges, calls, kernels, copies = [], [], [], []
    for step in range(steps):
        at, number = 1000 * step, 10 * step
        ranges += [stage("step", at, at + 1000), stage("wait", at, at + wait_us)]
        ranges += [stage("h2d", at + 5, at + 60, FEEDER, step), stage("decode", at + 20, at + 40, FEEDER)]
        ranges += [stage("epilogue", at + 45, at + 55, FEEDER), stage("read", at, at + 700, READER, step)]
        calls += [launch(number + 1, at + 10, at + 12, FEEDER, "cudaMemcpyAsync")]
        calls += [launch(number + 2, at + 22, at + 25, FEEDER), launch(number + 3, at + 30, at + 33, FEEDER)]
        calls += [launch(number + 4, at + 48, at + 50, FEEDER), launch(number + 5, at + wait_us + 2, at + wait_us + 5)]
        half = decode_us // 2
        copies.append(h2d(number + 1, at + 12, at + 20, stream=DECODE))
        kernels.append(kernel(number + 2, at + 30, at + 30 + half, "huffman", stream=DECODE))
        kernels.append(kernel(number + 3, at + 30 + half, at + 30 + 2 * half, "rows", stream=DECODE))
        kernels.append(kernel(number + 4, at + 30 + decode_us, at + 40 + decode_us, "look_up", stream=DECODE))
        kernels.append(kernel(number + 5, at + gap_us + 10, at + 990, stream=MODEL))
    found = recording(0, 1000 * steps, ranges, calls, kernels, copies)
    return replace(found, threads={**found.threads, READER: Thread(READER, "fl-decode-0", "decode")})


def test_kernels_that_are_launched_in_a_decode_range_decode() -> None:
    found = decode_kernels(made())
    assert [kernel.name for kernel in found] == ["huffman", "rows"] * 4
    assert decode_kernels(replace(made(), ranges=())) == []
    # Decode threads and workers launch nothing; a range of the user's is no stage.
    for other in (stage("decode", 20, 40, WORKERS[0]), span("decode", 20, 40, FEEDER)):
        assert decode_kernels(replace(made(), ranges=(other,))) == []


def test_the_findings_say_what_it_took() -> None:
    use = find(made()).gpu_decode
    assert use is not None
    assert (use.batches, use.kernels) == (4, 8)
    assert use.mean_s == pytest.approx(100e-6)
    assert use.share == pytest.approx(0.1)
    assert use.beside_kernels_share == pytest.approx(1.0)
    assert use.awaited_share == 0.0
    alone = find(made(decode_us=400, gap_us=420, wait_us=420)).gpu_decode
    assert alone is not None
    assert alone.beside_kernels_share == 0.0
    assert alone.awaited_share == pytest.approx(0.39)
    assert find(replace(made(), ranges=())).gpu_decode is None
    assert find(made()).to_dict()["gpu_decode"]["mean_s"] == pytest.approx(100e-6)


def test_the_timeline_has_a_row_for_it() -> None:
    recorded = made()
    rows = {row.label: row for row in lay_out(recorded, find(recorded)).rows}
    row = rows["decoding on the GPU"]
    assert {bar.name for bar in row.bars} == {"huffman", "rows"}
    assert {bar.colour for bar in row.bars} == {COLOURS["decode"]}
    assert row.kind == "device"
    assert row.tells.startswith(f"stream {DECODE} of")
    labels = list(rows)
    assert labels.index("copy stream" if "copy stream" in rows else "stream") < labels.index("decoding on the GPU")
    assert labels.index("decoding on the GPU") < labels.index("compute stream")
    others = {bar.name for label in rows for bar in rows[label].bars if label != "decoding on the GPU"}
    assert "look_up" in others
    assert "huffman" not in others
    assert ("read", COLOURS["read"]) in lay_out(recorded, find(recorded)).legend
    assert "decoding on the GPU" in render(make_report(recorded), lay_out(recorded, find(recorded)))


def painted(recorded: Recording) -> Recording:
    """The same with deferred samples, which the GPU paints."""
    ranges = (replace(each, name="paint") if each.name == "decode" else each for each in recorded.ranges)
    workers = [stage(name, 10, 900, WORKERS[0]) for name in ("fetch", "record", "collate", "paint")]
    return replace(recorded, ranges=(*ranges, *workers))


def test_deferred_samples_have_a_row_and_bars_of_their_own() -> None:
    recorded = painted(made())
    found = find(recorded)
    assert found.gpu_decode is not None
    assert (found.gpu_decode.batches, found.gpu_decode.kernels) == (4, 8)
    timeline = lay_out(recorded, found)
    rows = {row.label: row for row in timeline.rows}
    assert "decoding on the GPU" not in rows
    assert {bar.name for bar in rows["painting on the GPU"].bars} == {"huffman", "rows"}
    assert {bar.colour for bar in rows["painting on the GPU"].bars} == {COLOURS["paint"]}
    worker = rows["worker 0" if "worker 0" in rows else "worker"]
    assert [(bar.name, bar.depth, bar.colour) for bar in worker.bars] == [
        (name, depth, COLOURS[name]) for depth, name in enumerate(("fetch", "record", "collate", "paint"))
    ]
    assert {("record", COLOURS["record"]), ("paint", COLOURS["paint"])} <= {*timeline.legend}


def test_without_it_there_is_no_row() -> None:
    recorded = replace(made(), ranges=tuple(each for each in made().ranges if each.thread == MAIN))
    labels = [row.label for row in lay_out(recorded, find(recorded)).rows]
    assert "decoding on the GPU" not in labels
    assert not any("decoding" in line for line in overview(find(recorded)))


def test_a_busy_gpu_is_told_what_decoding_took() -> None:
    verdict = diagnose_trace(find(made()))
    assert verdict.bottleneck is Bottleneck.GPU
    assert "decoding took 0.10 ms of each 1.0 ms step (10.0%), 100% of that beside other kernels" in verdict.evidence
    assert verdict.remedy == LESS_ON_GPU
    little = diagnose_trace(find(made(decode_us=10)))
    assert little.bottleneck is Bottleneck.GPU
    assert little.remedy != LESS_ON_GPU
    lines = list(overview(find(made())))
    assert "decoding on the GPU: 0.10 ms a batch, 10.0% of the time, 100% of that beside other kernels" in lines


def test_a_loop_that_waits_for_the_kernels_is_decode_bound() -> None:
    verdict = diagnose_trace(find(made(decode_us=400, gap_us=420, wait_us=420)))
    assert verdict.bottleneck is Bottleneck.DECODE
    assert "only the kernels that decode ran 39% of it" in verdict.evidence[1]
    assert verdict.remedy.startswith(LESS_ON_GPU)


def verdict_of(blocked_us: int) -> Any:
    """Of a loop that waits while a thread reads files for the GPU."""
    ranges = [stage("step", 0, 1000), stage("wait", 0, 900), stage("read", 0, 900, READER, blocked=blocked_us)]
    found = recording(0, 1000, ranges, [launch(1, 900, 910)], [kernel(8, 0, 1), kernel(1, 910, 1000)])
    return diagnose_trace(find(replace(found, threads={**found.threads, READER: Thread(READER, "", "decode")})))


def test_threads_that_read_slowly_for_the_gpu_are_storage_bound() -> None:
    assert verdict_of(800).bottleneck is Bottleneck.STORAGE
    assert verdict_of(0).bottleneck is not Bottleneck.STORAGE
