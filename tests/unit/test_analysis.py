"""A report's numbers, on recordings of which they are known."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from handmade import BACKWARD, FEEDER, MAIN, WORKERS, h2d, kernel, launch, recording, span, stage, starved

from fastload.profiling.analysis.findings import find
from fastload.profiling.recording.trace import Call, kernel_name


def test_a_device_that_waits_for_its_loader():
    findings = find(starved())
    assert (findings.steps, findings.step_s) == (5, pytest.approx(1e-3))
    (device,) = findings.devices
    # Of each period of 1000 µs a kernel runs from 710 to 1000, and the loop waits until 690.
    assert device.busy_share == pytest.approx(0.29)
    assert device.starved_share == pytest.approx(0.69)
    assert device.window_s == pytest.approx(4e-3), "four whole steps, from first kernel to first kernel"
    assert device.kernels == 5
    assert findings.wait_share == pytest.approx(0.69)
    assert findings.link_share == pytest.approx(0.04)


def test_a_gap_says_what_host_and_loader_did_in_it():
    gap = find(starved()).gaps[0]
    assert gap.length_s == pytest.approx(710e-6)
    assert gap.copying_share == pytest.approx(40 / 710)
    assert gap.host[0].what == "wait"
    assert gap.host[0].share == pytest.approx(690 / 710)
    shares = {activity.what: activity.share for activity in gap.loader}
    # Two workers and the feeder; each worker fetches all the time.
    assert shares["worker fetch"] == pytest.approx(2 / 3)
    assert shares["feeder h2d"] == pytest.approx(40 / 710 / 3)


def test_calls_in_a_gap_are_named_with_the_range_around_them():
    calls = [Call(100_000, 600_000, "cudaStreamSynchronize", MAIN, 5)]
    made = recording(
        0,
        1000,
        [stage("step", 0, 1000), span("loss", 50, 700)],
        calls,
        [kernel(None, 0, 10), kernel(None, 990, 1000)],
    )
    (gap,) = find(made).gaps
    assert [(activity.what, round(activity.share, 2)) for activity in gap.host] == [
        ("loss › cudaStreamSynchronize", 0.51),
        ("nothing recorded", 0.34),
        ("loss", 0.15),
    ]


def test_copies_by_memory_with_speed_and_overlap():
    copies = [h2d(1, 0, 100, 5_000_000), h2d(2, 50, 150, 5_000_000), h2d(3, 500, 600, 1_000_000, "pageable")]
    findings = find(recording(0, 1000, kernels=[kernel(9, 100, 550)], copies=copies))
    pinned, pageable = findings.copies
    assert (pinned.memory, pinned.count, pinned.size_bytes) == ("pinned", 2, 10_000_000)
    assert pinned.seconds == pytest.approx(150e-6), "both at a time count once"
    assert pinned.gb_per_s == pytest.approx(10e6 / 150e-6 / 1e9)
    assert pinned.beside_kernels_share == pytest.approx(50 / 150)
    assert pageable.memory == "pageable"
    assert pageable.beside_kernels_share == pytest.approx(0.5)


def test_ranges_get_the_device_time_of_what_was_launched_in_them():
    ranges = [stage("step", 0, 1000), span("forward", 0, 300), span("layer1", 100, 200), span("backward", 400, 600)]
    calls = [launch(1, 110, 120), launch(2, 210, 220), launch(3, 450, 460, BACKWARD)]
    kernels = [kernel(1, 300, 340), kernel(2, 340, 400), kernel(3, 500, 600), kernel(4, 700, 701)]
    found = {use.name: use for use in find(recording(0, 1000, ranges, calls, kernels)).ranges}
    assert found["layer1"].device_s == pytest.approx(40e-6)
    assert found["forward"].device_s == pytest.approx(100e-6)
    assert found["forward"].kernels == 2
    assert found["backward"].device_s == pytest.approx(100e-6), "autograd's thread works for the one that waits for it"
    assert found["step"].device_s == pytest.approx(200e-6)
    assert found["forward"].mean_s == pytest.approx(300e-6)


def test_kernels_are_counted_once_by_the_innermost_range_that_launched_them():
    modules = [stage("layer1", 100, 300), stage("layer1.conv", 120, 200), stage("layer1 backward", 400, 600, BACKWARD)]
    ranges = [stage("step", 0, 1000), *modules, span("attention", 250, 290), span("optimizer", 700, 800)]
    calls = [launch(n, at, at + 5, thread) for n, at, thread in ((1, 130, MAIN), (2, 260, MAIN), (3, 450, BACKWARD))]
    calls += [launch(4, 710, 715), launch(5, 900, 905)]
    kernels = [kernel(n, 100 * n, 100 * n + 10 * n, f"k{n}") for n in range(1, 7)]
    found = {
        part.name: (round(part.device_s * 1e6), part.kernels)
        for part in find(recording(0, 1000, ranges, calls, kernels)).parts
    }
    assert found == {
        "layer1.conv": (10, 1),
        "layer1": (20, 1),  # a module before a range of the user's within it, as in Nsight Compute's tables
        "layer1 backward": (30, 1),
        "optimizer": (40, 1),
        "k5": (50, 1),  # within the step only
        "k6": (60, 1),  # its launch was not recorded
    }


def test_workers_are_told_apart_and_their_stages_do_not_overlap():
    threads = find(starved()).threads
    workers = [thread for thread in threads if thread.role == "worker"]
    assert [worker.process for worker in workers] == [key.process for key in WORKERS]
    assert workers[0].stages == {"fetch": pytest.approx(0.8), "collate": pytest.approx(0.1)}
    assert workers[0].busy_share == pytest.approx(0.9)
    assert workers[0].blocked_share == 0
    assert next(thread for thread in threads if thread.role == "main").busy_share == 0


def test_a_share_of_a_fetch_leaves_out_the_wait_for_a_core():
    fetch = replace(stage("fetch", 0, 400, WORKERS[0], blocked=100), queued_ns=200_000)
    found = find(recording(0, 1000, [stage("step", 0, 1000), fetch]))
    assert [use.blocked_share for use in found.threads if use.role == "worker"] == [0.5, None]


def test_kernels_that_convert_layouts_are_found():
    names = [
        "void cudnn::ops::nchwToNhwcKernel<__half>",
        "nhwcToFoldedNchw",
        "convertTensor_kernel",
        "gemm",
        "nchw_conv",
    ]
    made = recording(0, 10, kernels=[kernel(n, n, n + 1, name) for n, name in enumerate(names)])
    assert {use.name for use in find(made).layout} == set(names[:3])


def test_a_recording_without_a_device_or_a_step_still_reports():
    findings = find(recording(0, 0))
    assert (findings.devices, findings.gaps, findings.step_s, findings.wait_share) == ((), (), None, 0)
    waiting = find(recording(0, 100, [stage("wait", 0, 60), stage("fetch", 0, 50, WORKERS[0], blocked=10)])).waiting
    assert [(activity.what, round(activity.share, 2)) for activity in waiting] == [("worker fetch", 0.28)]


def test_numbers_become_json():
    found = json.loads(json.dumps(find(starved()).to_dict()))
    assert found["devices"][0]["idle_share"] == pytest.approx(0.71)
    assert found["copies"][0]["gb_per_s"] == pytest.approx(25.0)
    assert {"gaps", "kernels", "layout", "ranges", "threads", "step_s"} <= found.keys()


@pytest.mark.parametrize(
    ("demangled", "name"),
    [
        ("void (anonymous namespace)::softmax_warp_forward<float, 2>(float *)", "softmax_warp_forward"),
        ("void at::native::<unnamed>::nll_loss_forward<float>(float *, long)", "nll_loss_forward"),
        ("sm90_xmma_gemm_bf16", "sm90_xmma_gemm_bf16"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(R)", None),
    ],
)
def test_kernel_names_are_short_and_telling(demangled, name):
    assert kernel_name(demangled) == (name or "reduce_kernel (MeanOps)")


def test_the_feeder_reads_where_there_are_no_workers():
    ranges = [stage("fetch", 0, 50, FEEDER), stage("wait", 0, 50)]
    assert {thread.role for thread in find(recording(0, 100, ranges)).threads if thread.stages} == {"feeder", "main"}
