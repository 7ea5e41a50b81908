"""The verdict on a recording: each bottleneck, as its numbers look."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade import ALL_REDUCE, FEEDER, MAIN, WORKERS, h2d, kernel, launch, ranks, recording, span, stage, starved

from fastload.profiling.analysis.findings import find
from fastload.profiling.analysis.trace_diagnosis import diagnose_trace
from fastload.profiling.recording.trace import Call
from fastload.stats.verdict import Bottleneck, Verdict

LOOP = [stage("step", 0, 1000), stage("wait", 0, 900)]
KERNEL = {"calls": [launch(1, 900, 910)], "kernels": [kernel(8, 0, 1), kernel(1, 910, 1000)]}


def verdict_of(ranges, reported=None, **events):
    return diagnose_trace(find(recording(0, 1000, [*LOOP, *ranges], **{**KERNEL, **events})), reported)


def reading(blocked=0, **stages):
    """Two workers that are in ``stages`` for so many microseconds each."""
    return [
        stage(name, start, end, worker, blocked=blocked if name == "fetch" else None)
        for worker in WORKERS
        for name, (start, end) in stages.items()
    ]


@pytest.mark.parametrize(
    ("ranges", "events", "bottleneck"),
    [
        (reading(fetch=(0, 900), blocked=700), {}, Bottleneck.STORAGE),
        (reading(fetch=(0, 900)), {}, Bottleneck.PYTHON),
        (reading(fetch=(0, 900), decode=(100, 800)), {}, Bottleneck.DECODE),
        (reading(fetch=(0, 300), collate=(300, 900)), {}, Bottleneck.COLLATE),
        (reading(fetch=(0, 900), record=(1, 899), collate=(800, 890), blocked=700), {}, Bottleneck.STORAGE),
        (reading(fetch=(0, 900), record=(1, 899), collate=(800, 890)), {}, Bottleneck.PYTHON),
        (reading(fetch=(0, 900), record=(1, 899), collate=(100, 890), paint=(101, 889)), {}, Bottleneck.DECODE),
        (reading(fetch=(0, 100)), {}, None),
        ([], {}, None),
        (reading(fetch=(0, 300)), {"copies": [h2d(3, 100, 800)]}, Bottleneck.LINK),
        (reading(fetch=(0, 300)), {"copies": [h2d(3, 100, 800, memory="pageable")]}, Bottleneck.PIN),
        ([stage("fetch", 0, 880, MAIN, blocked=0)], {}, Bottleneck.PYTHON),
        ([stage("fetch", 0, 880, FEEDER, blocked=800)], {}, Bottleneck.STORAGE),
    ],
)
@pytest.mark.parametrize("device", [True, False])
def test_each_bottleneck_is_named(ranges, events, bottleneck, device):
    if not device:
        if "copies" in events:
            return
        events = {"calls": [], "kernels": []}
    verdict = verdict_of(ranges, **events)
    assert verdict.bottleneck is bottleneck
    assert "waited for batches 90% of the time" in verdict.evidence[0]
    assert ("the GPU ran kernels" in verdict.evidence[0]) is device


def test_a_loop_that_does_not_wait_is_bound_by_its_model():
    fed = recording(0, 1000, [stage("step", 0, 1000), stage("wait", 0, 20)], kernels=[kernel(1, 0, 970)])
    verdict = diagnose_trace(find(fed))
    assert verdict.bottleneck is Bottleneck.GPU
    assert "nothing to gain in the loader" in verdict.remedy
    verdict = diagnose_trace(find(replace(fed, kernels=())))
    assert verdict.bottleneck is Bottleneck.STEP
    assert "GPU-bound" not in str(verdict), "none was seen"
    assert "no kernel of a GPU was recorded" in verdict.evidence


def test_a_loop_that_leaves_the_gpu_idle_by_itself_is_told_so():
    busy = recording(
        0, 1000, [stage("step", 0, 1000), span("loss.item", 100, 900)], kernels=[kernel(1, 0, 100), kernel(2, 900, 990)]
    )
    verdict = diagnose_trace(find(busy))
    assert verdict.bottleneck is Bottleneck.LOOP
    assert verdict.evidence[0] == "it is the loop that leaves the GPU idle, not the loader"
    assert "the training thread was in loss.item" in " ".join(verdict.evidence)
    assert "torch.compile" in verdict.remedy


def test_a_gpu_that_would_be_busy_without_a_short_wait_for_batches_is_the_limit():
    ranges = [stage("step", 0, 1000), stage("wait", 820, 900), *reading(fetch=(0, 900))]
    verdict = diagnose_trace(find(recording(0, 1000, ranges, kernels=[kernel(1, 0, 820), kernel(2, 960, 1000)])))
    assert verdict.bottleneck is Bottleneck.GPU


def test_a_loop_that_idles_longer_than_its_loader_is_not_told_that_its_loader_is_fine():
    ranges = [stage("step", 0, 1000), stage("wait", 0, 300), span("loss.item", 310, 900)]
    verdict = diagnose_trace(find(recording(0, 1000, ranges, kernels=[kernel(1, 0, 10), kernel(2, 900, 1000)])))
    assert verdict.bottleneck is Bottleneck.LOOP
    assert verdict.evidence[0] == "the GPU idled 89% of the time, 29% for want of a batch"


@pytest.mark.parametrize("decoding", [100, 800])
def test_the_epilogue_has_no_range_so_the_loader_is_believed(decoding):
    reported = Verdict.of(Bottleneck.EPILOGUE, "80% of that while boxes of decoded images were erased")
    verdict = verdict_of(reading(decode=(0, decoding)), reported)
    assert verdict.bottleneck is Bottleneck.EPILOGUE


def test_layout_conversions_are_evidence_with_their_remedy():
    kernels = [kernel(1, 0, 800), kernel(2, 800, 970, "nchwToNhwcKernel")]
    verdict = diagnose_trace(find(recording(0, 1000, [stage("step", 0, 1000)], kernels=kernels)))
    assert "18% of the kernels' time only converts layouts (nchwToNhwcKernel)" in verdict.evidence[-1]
    assert "channels_last" in verdict.evidence[-1]


def test_the_loaders_own_look_tells_decoding_from_python():
    waited = "the training loop waited for batches 50% of the time"
    reported = Verdict.of(Bottleneck.DECODE, waited, "80% of that while samples were decoded", remedy="of the loader")
    verdict = verdict_of(reading(fetch=(0, 900)), reported)
    assert verdict.bottleneck is Bottleneck.DECODE
    assert verdict.remedy == "of the loader"
    assert verdict.evidence[1] == "the loader itself: 80% of that while samples were decoded"
    assert sum("waited for batches" in text for text in verdict.evidence) == 1


@pytest.mark.parametrize(
    ("compute", "exposed"),
    [((0, 500), 0.5), ((0, 850), 0.15), ((0, 950), 0.05), ((0, 1000), 0.0)],
)
def test_collectives_that_nothing_hides_are_the_limit_if_they_are_the_largest_loss(compute, exposed):
    findings = find(ranks(500, compute=compute))
    assert findings.communication.share == pytest.approx(0.5)
    assert findings.communication.exposed_share == pytest.approx(exposed)
    verdict = diagnose_trace(findings)
    assert verdict.bottleneck is (Bottleneck.COMMUNICATION if exposed >= 0.1 else Bottleneck.GPU)
    if exposed >= 0.1:
        said = f"collectives (AllReduce) ran 50% of the time, {exposed:.0%} beside no other kernel"
        assert verdict.evidence[0] == said
        assert "bucket_cap_mb" in verdict.remedy


def test_a_gpu_that_idles_longer_than_it_communicates_is_not_bound_by_that():
    made = ranks(200, compute=(0, 300))
    assert find(made).communication.exposed_share == pytest.approx(0.2)
    assert diagnose_trace(find(made)).bottleneck is Bottleneck.LOOP


@pytest.mark.parametrize(("waits", "bottleneck"), [(400, Bottleneck.COMMUNICATION), (600, Bottleneck.PYTHON)])
def test_of_waits_for_batches_and_collectives_the_longer_is_the_limit(waits, bottleneck):
    ranges = [stage("step", 0, 1000), stage("wait", 0, waits), *reading(fetch=(0, waits))]
    kernels = [kernel(8, 0, 1), kernel(1, waits, waits + 50), kernel(2, waits + 50, 1000, ALL_REDUCE)]
    verdict = diagnose_trace(find(recording(0, 1000, ranges, kernels=kernels)))
    assert verdict.bottleneck is bottleneck
    assert f"the training loop waited for batches {waits / 1000:.0%} of the time" in str(verdict)


def test_the_rank_that_others_wait_for_is_named():
    """The last to come to a collective spends the least time in it."""
    communication = find(ranks(500, 100, 480)).communication
    assert communication.straggler.label == "process 101, GPU 1"
    # A rank's time ends with its last kernel, here after two steps of 1000 µs.
    assert [round(rank.waited_share, 2) for rank in communication.ranks] == [0.4, 0.0, 0.38]
    assert communication.waited_share == pytest.approx(0.39)
    verdict = diagnose_trace(find(ranks(500, 100, 480, compute=(0, 400))))
    assert "the other ranks waited 39% of the time for one, process 101, GPU 1" in " ".join(verdict.evidence)
    assert "find what makes process 101, GPU 1 late" in verdict.remedy


@pytest.mark.parametrize("lengths", [(500, 490, 495), (500, 480, 100, 110), (500,)])
def test_no_rank_is_named_where_none_is_alone_in_being_late(lengths):
    communication = find(ranks(*lengths)).communication
    assert communication.straggler is None
    assert communication.waited_share == 0
    assert "rank" not in diagnose_trace(find(ranks(*lengths))).remedy


def test_recordings_of_other_ranks_are_compared_whatever_their_clocks():
    late = ranks(100, process=7)
    late = replace(
        late, kernels=tuple(replace(k, start_ns=k.start_ns + 10**15, end_ns=k.end_ns + 10**15) for k in late.kernels)
    )
    communication = find(ranks(500), [("rank1.sqlite", late)]).communication
    assert [rank.label for rank in communication.ranks] == ["process 100, GPU 0", "rank1.sqlite"]
    assert communication.straggler.label == "rank1.sqlite"
    cut = replace(late, kernels=late.kernels[:-1])  # one collective fewer: totals are compared
    assert find(ranks(500), [("rank1.sqlite", cut)]).communication.straggler.label == "rank1.sqlite"


def test_what_nccl_launches_communicates_whatever_its_kernels_are_called():
    ranges = [stage("step", 0, 1000), span("ncclAllReduce", 90, 120, domain="NCCL")]
    kernels = [kernel(1, 100, 400, "fused"), kernel(2, 400, 1000)]
    made = recording(0, 1000, ranges, [launch(1, 100, 110), launch(2, 130, 140)], kernels)
    (kind,) = find(made).communication.kinds
    assert (kind.kind, kind.count, round(kind.seconds * 1e6)) == ("collective", 1, 300)
    assert find(replace(made, ranges=made.ranges[:1])).communication is None


@pytest.mark.parametrize(
    "name",
    ["ncclDevKernel_AllGather_RING_LL", "ncclKernel_AllGather_RING_LL_Sum_int8_t", "ncclSymDevKernel_AllGather_LL"],
)
def test_kernels_of_all_generations_of_nccl_are_known(name):
    (kind,) = find(recording(0, 10, kernels=[kernel(1, 0, 10, name)])).communication.kinds
    assert kind.kind == "AllGather"


def launching(period=20, compute=5, call=8, pause=0, batch=100):
    """Launch kernels when the one before has long ended; with a pause after each ``batch``."""
    calls, kernels, at = [], [], 0
    for number in range(400):
        calls.append(launch(number, at, at + call))
        kernels.append(kernel(number, at + call, at + call + compute))
        at += period + (pause if number % batch == batch - 1 else 0)
    return recording(0, at, [stage("step", 0, at)], calls, kernels)


def test_a_host_that_launches_more_slowly_than_kernels_end_is_the_limit():
    findings = find(launching())
    use = findings.launching
    assert (use.launches, use.kernel_s, use.call_s) == (400, pytest.approx(5e-6), pytest.approx(8e-6))
    assert use.every_s == pytest.approx(20e-6)
    assert use.ahead == 0
    assert use.late == 399
    assert use.late_share == pytest.approx(0.75, abs=0.01)
    verdict = diagnose_trace(findings)
    assert verdict.bottleneck is Bottleneck.LAUNCH
    assert verdict.name == "launch-bound"
    assert verdict.evidence[:3] == (
        "the GPU waited for the next launch 75% of the time, in 399 gaps",
        "a kernel takes 5.0 µs and a launch comes every 20.0 µs, 8.0 µs of it in CUDA's call",
        "0.0 kernels were queued on average",
    )
    assert "CUDA graphs" in verdict.remedy


def test_a_loop_that_pauses_is_not_bound_by_its_launches():
    findings = find(launching(pause=20_000))
    assert findings.launching.every_s == pytest.approx(20e-6), "pauses are not launching"
    assert diagnose_trace(findings).bottleneck is Bottleneck.LOOP


def test_kernels_that_were_queued_in_time_wait_for_no_launch():
    calls = [launch(number, 2 * number, 2 * number + 1) for number in range(100)]
    kernels = [
        kernel(number, 300 + 20 * number, 305 + 20 * number) for number in range(100)
    ]  # gaps of the device's own
    use = find(recording(0, 3000, [stage("step", 0, 3000)], calls, kernels)).launching
    assert (use.late, use.late_share) == (0, 0)
    assert use.ahead == pytest.approx(49.5)


def test_waits_for_a_batch_or_for_the_device_are_no_launches():
    ranges = [stage("step", 0, 400), stage("wait", 20, 120)]
    calls = [launch(1, 0, 5), launch(2, 130, 135), Call(200_000, 290_000, "cudaStreamSynchronize", MAIN, 8)]
    calls += [launch(3, 300, 305), launch(4, 390, 395)]
    kernels = [kernel(1, 5, 20), kernel(2, 135, 200), kernel(3, 305, 310), kernel(4, 395, 400)]
    use = find(recording(0, 400, ranges, calls, kernels)).launching
    assert use.late == 3
    # Of the three gaps: 15 µs after the wait for the batch, 15 after the synchronization, 85 before the last launch.
    assert use.late_share == pytest.approx((15 + 15 + 85) / 395)


OF_THE_LOOP = (Bottleneck.GPU, Bottleneck.STEP, Bottleneck.LOOP)


@pytest.mark.parametrize("said", [*(Verdict.of(which, "x") for which in OF_THE_LOOP), Verdict(None, ("too few",), "")])
def test_what_the_loader_said_does_not_overrule_what_was_recorded(said):
    assert verdict_of(reading(fetch=(0, 900)), said).bottleneck is Bottleneck.PYTHON


def test_the_verdict_reads_as_a_sentence():
    text = str(diagnose_trace(find(starved())))
    assert text.startswith(
        "Python-bound: the training loop waited for batches 69% of the time, the GPU ran kernels 29%"
    )
