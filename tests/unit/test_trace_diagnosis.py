"""The verdict on a recording: each bottleneck, as its numbers look."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade import FEEDER, MAIN, WORKERS, h2d, kernel, launch, recording, span, stage, starved

from fastload.profiling.analysis.findings import find
from fastload.profiling.analysis.trace_diagnosis import diagnose_trace
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


OF_THE_LOOP = (Bottleneck.GPU, Bottleneck.STEP, Bottleneck.LOOP)


@pytest.mark.parametrize("said", [*(Verdict.of(which, "x") for which in OF_THE_LOOP), Verdict(None, ("too few",), "")])
def test_what_the_loader_said_does_not_overrule_what_was_recorded(said):
    assert verdict_of(reading(fetch=(0, 900)), said).bottleneck is Bottleneck.PYTHON


def test_the_verdict_reads_as_a_sentence():
    text = str(diagnose_trace(find(starved())))
    assert text.startswith(
        "Python-bound: the training loop waited for batches 69% of the time, the GPU ran kernels 29%"
    )
