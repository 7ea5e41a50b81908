"""A loader's verdict: each bottleneck as its figures look, and figures that once misled it."""

from __future__ import annotations

import pytest

from fastload.insight import loader_report
from fastload.insight.loader_report import report
from fastload.insight.stats import Totals, make_stats
from fastload.insight.verdict import REMEDIES, Bottleneck

BATCHES = 101


def stats(
    *,
    workers=2,
    step_ms=10.0,
    wait_ms=None,
    made_ms=(0.0, 0.0),
    looked=(1.0, 0.0, 0.0),
    stages=None,
    device=None,
    **waited_ms,
):
    """Of 101 batches of 8 images in one epoch; times in ms per batch.

    Args:
        workers: Processes.
        step_ms: Of the consumer.
        wait_ms: Of the consumer; the sum of ``waited_ms`` unless it is given.
        made_ms: Fetching and collating, of a worker.
        looked: Shares of fetching: computing, waiting for a core, and of computing: in a codec.
        stages: More stages.
        device: Counts of the device's clock.
        waited_ms: By place.
    """
    count = BATCHES - 1
    totals = Totals(
        {"batches": BATCHES, "images": 8 * BATCHES, "epochs": 1, "asked": count, "step_s": count * step_ms * 1e-3}
    )
    waited = {f"waited:{place.replace('_', '-')}": count * ms * 1e-3 for place, ms in waited_ms.items()}
    totals.update(waited, wait_s=sum(waited.values()) if wait_ms is None else count * wait_ms * 1e-3)
    if any(made_ms):
        fetch_s, collate_s = (BATCHES * ms * 1e-3 for ms in made_ms)
        busy, queued, codec = looked
        totals.update({"made:batches": BATCHES, "made:fetch_s": fetch_s, "made:collate_s": collate_s})
        totals.update({"made:looked_s": fetch_s, "made:busy_s": busy * fetch_s, "made:queued_s": queued * fetch_s})
        totals.update({"made:decode_s": codec * busy * fetch_s, "made:python_s": (1 - codec) * busy * fetch_s})
    for name, ms in (stages or {}).items():
        totals.update({f"stage:{name}:count": BATCHES, f"stage:{name}:s": BATCHES * ms * 1e-3})
    totals.update({f"device:{name}": value for name, value in (device or {}).items()})
    return make_stats(totals, workers=workers)


DEVICE = {"steps": 100, "total_s": 2.0, "idle_s": 1.0, "copies": 100, "copied_bytes": 10**9}

CASES = {
    "storage": (stats(fetch=90, made_ms=(95, 1), looked=(0.05, 0.0, 0.0)), Bottleneck.STORAGE, "blocked"),
    "decode": (stats(fetch=90, made_ms=(95, 1), looked=(0.99, 0.0, 0.9)), Bottleneck.DECODE, "into decoding"),
    "python": (stats(fetch=90, made_ms=(95, 1), looked=(0.99, 0.0, 0.1)), Bottleneck.PYTHON, "own code"),
    "collate": (stats(collate=90, made_ms=(1, 95)), Bottleneck.COLLATE, "put together and sent (95.0 ms to collate"),
    "ipc": (stats(ipc=90, made_ms=(1, 5)), Bottleneck.COLLATE, "on their way to the training loop (90.0 ms a batch"),
    "pin": (stats(pin=90, made_ms=(1, 5), stages={"pin": 88}), Bottleneck.PIN, "into pinned memory (88.0 ms"),
    "pageable": (
        stats(h2d=90, device={**DEVICE, "copying_s": 0.9, "pageable_bytes": 10**9}, stages={"h2d": 10}),
        Bottleneck.PIN,
        "from pageable memory (10.0 MB a batch at 1.0 GB/s)",
    ),
    "link": (stats(h2d=90, device={**DEVICE, "copying_s": 0.9}, stages={"h2d": 10}), Bottleneck.LINK, "to the device"),
    "copies beside a collate that is slower": (
        stats(
            step_ms=0.2,
            collate=8.4,
            ipc=0.3,
            h2d=0.5,
            made_ms=(0.01, 18.9),
            stages={"h2d": 5.0},
            device={"steps": 100, "total_s": 0.94, "idle_s": 0.93, "copying_s": 0.5, "copies": 100, "copied_bytes": 10},
        ),
        Bottleneck.COLLATE,
        "18.9 ms to collate",
    ),
    "gpu": (stats(fetch=0.5, made_ms=(9, 1)), Bottleneck.GPU, "the model is the limit"),
    "native": (
        stats(decode=90, made_ms=(0, 0), stages={"fetch": 1, "decode": 150, "collate": 1}),
        Bottleneck.DECODE,
        "while samples were read",
    ),
    "main process": (stats(workers=0, fetch=90, made_ms=(90, 1)), Bottleneck.PYTHON, "samples were read"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_bottleneck_is_named_with_its_evidence(case):
    figures, bottleneck, evidence = CASES[case]
    verdict = report(figures).verdict
    assert verdict.bottleneck is bottleneck, verdict
    assert evidence in str(verdict)
    assert "waited for batches" in verdict.evidence[0]


def test_a_verdict_is_one_sentence_and_its_figures_follow():
    text = str(report(CASES["storage"][0]))
    first, *figures = text.splitlines()
    assert first.startswith("Storage-bound: the training loop waited for batches 90% of the time, ")
    assert first.endswith(f"; {REMEDIES[Bottleneck.STORAGE]}.")
    assert first.count(". ") == 0
    assert any("ms a batch: fetch 95.00, collate 1.00 (2 workers)" in line for line in figures)
    assert any(line.strip().startswith("waited 9.00 s of 10.00: fetch 9.00") for line in figures)


def test_batches_that_wait_for_a_core_on_their_way_are_not_the_way():
    """Seen on an overloaded machine: fetch 51 ms, collate 10 ms, and the verdict was collate/IPC.

    Workers had no core for most of their time, and neither had the process that receives: it is the work that takes the
    cores. With idle cores the same waits are what they seem.
    """
    waits = {"fetch": 20.0, "collate": 4.0, "ipc": 80.0, "made_ms": (51.0, 10.0), "step_ms": 5.0, "workers": 2}
    crowded = report(stats(looked=(0.25, 0.7, 0.0), **waits)).verdict
    assert crowded.bottleneck is Bottleneck.PYTHON
    assert "workers waited for a core 70% of fetch" in str(crowded)
    alone = report(stats(looked=(0.95, 0.0, 0.0), **waits)).verdict
    assert alone.bottleneck is Bottleneck.COLLATE
    assert "80.0 ms a batch, 10.0 ms to collate, 51.0 ms to fetch" in str(alone)


def test_workers_that_are_never_idle_are_the_limit_however_long_the_way_is():
    verdict = report(stats(fetch=30, ipc=60, made_ms=(190, 8), looked=(0.98, 0.0, 0.0))).verdict
    assert verdict.bottleneck is Bottleneck.PYTHON


def test_a_batch_that_waits_while_another_is_pinned_waits_for_pinning():
    verdict = report(stats(ipc=60, pin=20, made_ms=(1, 5), stages={"pin": 85}, step_ms=5)).verdict
    assert verdict.bottleneck is Bottleneck.PIN


def test_the_device_decides_how_long_was_waited():
    fed = {**DEVICE, "total_s": 10.0, "idle_s": 0.1, "copying_s": 0.05}
    verdict = report(stats(fetch=90, made_ms=(95, 1), device=fed)).verdict
    assert verdict.bottleneck is Bottleneck.GPU
    assert verdict.evidence[0] == "the GPU waited for batches 1% of the time"


@pytest.mark.parametrize("idle_s", [0.0, 7 * 0.02e-3])
def test_batches_that_come_in_bursts_were_waited_for_although_no_wait_was_timed(idle_s):
    """Seen on an H200: 8 workers handed over together every 1.9 s, and the step with the wait had yet to end."""
    burst = {"steps": 7, "total_s": 7 * 0.88e-3, "idle_s": idle_s, "copies": 7, "copied_bytes": 10**8}
    verdict = report(stats(fetch=234, step_ms=0.7, made_ms=(1839, 3), looked=(1, 0, 0.99), device=burst)).verdict
    assert verdict.bottleneck is Bottleneck.DECODE
    assert verdict.evidence[0] == "the GPU waited for batches 100% of the time"


def test_a_long_step_that_was_not_timed_is_no_waiting_for_batches():
    """A checkpoint, or an evaluation between two steps."""
    timed = {"steps": 100, "total_s": 1.0, "copies": 30, "copied_bytes": 10**8}
    verdict = report(stats(fetch=0.05, step_ms=100, made_ms=(9, 1), device=timed)).verdict
    assert verdict.bottleneck is Bottleneck.GPU
    assert verdict.evidence[0] == "the GPU waited for batches 0% of the time"


def test_waiting_for_the_device_is_no_waiting_for_batches():
    assert report(stats(gpu=90, made_ms=(5, 1))).verdict.bottleneck is Bottleneck.GPU


def test_too_few_batches_are_not_judged():
    few = make_stats(Totals({"batches": 4, "epochs": 1, "wait_s": 1.0, "waited:fetch": 1.0}), workers=1)
    verdict = report(few).verdict
    assert verdict.bottleneck is None
    assert str(verdict) == "Undecided: 4 batches in 1 epoch are too few to tell; ask again after a few more."
    assert str(report(make_stats(Totals()))).startswith("Undecided: 0 batches in 0 epochs")


def test_remedies_fit_the_loader():
    assert "set num_workers >= 1" in report(CASES["main process"][0]).verdict.remedy
    native = report(CASES["native"][0]).verdict.remedy
    assert "let the native engine decode" not in native
    assert "raise num_workers" in native
    assert report(CASES["decode"][0]).verdict.remedy == REMEDIES[Bottleneck.DECODE]


def test_shares_add_up_to_the_time_that_was_waited():
    mixed = stats(fetch=40, collate=20, ipc=20, h2d=10, made_ms=(50, 20), looked=(0.5, 0.1, 0.5))
    shares = report(mixed).shares
    assert sum(shares.values()) == pytest.approx(1.0)
    assert set(shares) >= {Bottleneck.STORAGE, Bottleneck.DECODE, Bottleneck.PYTHON, Bottleneck.COLLATE}


def test_cores_are_counted_in_words(monkeypatch):
    monkeypatch.setattr(loader_report, "usable_cpus", lambda: 1)
    crowded = stats(fetch=90, made_ms=(95, 1), looked=(0.2, 0.8, 0.9), workers=1)
    assert "(1 worker, 1 core)" in str(report(crowded))
