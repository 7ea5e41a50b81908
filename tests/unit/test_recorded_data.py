"""Small recordings by Nsight Systems, Nsight Compute and torch.profiler (``scripts/record_sample.py`` made them)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastload.profiling.analysis import ncu
from fastload.profiling.analysis.findings import find
from fastload.profiling.analysis.modules import join, read_measured
from fastload.profiling.analysis.ncu import read_ceilings
from fastload.profiling.pages.timeline import lay_out
from fastload.profiling.recording import nsys_export, torch_trace

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture(scope="module", params=["nsys", "torch.profiler"])
def recording(request, tmp_path_factory):
    if request.param == "nsys":
        return nsys_export.read(DATA / "nsys.sqlite")
    return torch_trace.read(DATA / "torch")


@pytest.fixture(scope="module")
def findings(recording):
    return find(recording)


def test_the_window_holds_the_steps_that_were_asked_for(recording, findings):
    assert findings.source == recording.source
    assert findings.steps == 8
    assert len(findings.devices) == 1
    assert findings.devices[0].kernels > 50 * findings.steps
    assert 0.012 < findings.step_s < 1  # every step sleeps for 12 ms


def test_ranges_are_seen_by_name_in_every_kind_of_thread(recording, findings):
    ranges = {(use.role, use.name) for use in findings.ranges}
    assert {("main", "step"), ("main", "wait"), ("main", "Sequential")} <= ranges
    workers = {thread.process for thread in findings.threads if thread.role == "worker"}
    assert len(workers) == 2
    assert ("feeder", "collate") in ranges
    if recording.source == "torch.profiler":
        assert {("worker", "fetch"), ("worker", "collate")} <= ranges
    else:
        assert {("main", "forward"), ("main", "optimizer"), ("backward", "Sequential backward")} <= ranges
        assert ("decode", "decode") in ranges


def test_kernels_are_counted_for_the_range_that_launched_them(findings):
    use = {(use.role, use.name): use for use in findings.ranges}
    whole = use["main", "step"]
    assert use["main", "Sequential"].kernels > 0
    assert 0 < use["main", "Sequential"].device_s <= whole.device_s <= findings.seconds * 2


def test_pageable_copies_are_told_from_pinned_ones(findings):
    copies = {use.memory: use for use in findings.copies if use.direction == "host to device"}
    assert copies["pageable"].count >= findings.steps
    assert copies["pinned"].count >= findings.steps
    assert all(0 < use.gb_per_s < 1000 for use in copies.values())
    assert copies["pageable"].size_bytes >= findings.steps * 16 * 3 * 64 * 64 * 4


def test_layout_conversions_are_found(findings):
    assert findings.layout
    assert all(use.converts_layout for use in findings.layout)


def test_the_longest_gap_is_where_the_host_slept(recording, findings):
    gap = findings.gaps[0]
    assert gap.length_s > 0.01
    if recording.source == "nsys":  # it alone sees calls of the operating system
        assert any("sleep" in activity.what for activity in gap.host)


def test_the_timeline_has_a_row_for_each(recording, findings):
    labels = [row.label for row in lay_out(recording, findings).rows]
    assert labels[0] == "main thread"
    assert {"feeder 0", "feeder 1", "compute stream", "copy stream"} <= set(labels)


def test_the_kernels_of_a_range_are_read_by_module():
    runs = ncu.read(DATA / "ncu" / "ncu.csv")
    ceilings = read_ceilings(DATA / "ncu")
    sums = {each.name: each for each in ncu.sum_up(runs, "forward", ceilings)}
    assert {"0", "1", "2", "3", "5"} <= sums.keys()  # the modules, without Flatten, which launches nothing
    assert "step" not in sums, "it is around the range that was asked for"
    assert sum(each.kernels for each in sums.values()) == len(runs) > 20
    assert all(run.ranges[0] in ("step", "forward") for run in runs)
    assert all(0 < each.seconds < 1e-3 for each in sums.values())
    assert 1e12 < ceilings.bytes_per_s < 1e13
    whole = ncu.total(runs, ceilings)
    assert whole.bound == "latency-bound"  # 16 images of 64 px are nothing to it
    assert whole.operations["tensor"] > 0


def test_a_large_matrix_product_is_bound_by_arithmetic():
    runs = ncu.read(DATA / "product" / "ncu.csv")
    (product,) = ncu.sum_up(runs, "step", read_ceilings(DATA / "product"))
    assert product.bound == "compute-bound"
    assert product.operations["tensor"] == pytest.approx(2 * 4096**3)
    assert product.name.startswith("nvjet")


def test_modules_of_both_tools_are_joined_by_what_there_is_to_gain(findings):
    measured = read_measured([DATA / "ncu"])
    modules = join(findings.parts, measured)
    assert sum(use.share for use in modules) == pytest.approx(1)
    of = {use.name: use for use in modules}
    assert {"0", "2"} <= of.keys() & measured.keys()
    assert of["2"].gain_s == pytest.approx(of["2"].device_s * (1 - measured["2"].roof_share))
    assert 0 < measured["2"].roof_share < 0.6, "a small model's kernels are latency-bound"
    gains = [use.gain_s for use in modules]
    assert gains == sorted((gain for gain in gains if gain is not None), reverse=True) + [None] * gains.count(None)
