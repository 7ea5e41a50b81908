"""A loader's verdict: each bottleneck as its figures look, and figures that once misled it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastload.stats import diagnosis
from fastload.stats.diagnosis import Culprits, report
from fastload.stats.stats import Totals, make_stats
from fastload.stats.verdict import REMEDIES, Bottleneck

BATCHES = 101


@pytest.fixture(autouse=True)
def many_cores(monkeypatch):
    monkeypatch.setattr(diagnosis, "usable_cpus", lambda: 64)


def stats(
    *,
    workers=2,
    step_ms=10.0,
    wait_ms=None,
    made_ms=(0.0, 0.0),
    looked=(1.0, 0.0, 0.0),
    stages=None,
    device=None,
    behind=0.0,
    busy=None,
    **waited_ms,
):
    """Of 101 batches of 8 images in one epoch; times in ms per batch.

    Args:
        workers: Processes.
        step_ms: Of the consumer.
        wait_ms: Of the consumer; the sum of ``waited_ms`` unless it is given.
        made_ms: Fetching and collating, of a worker.
        looked: Shares of fetching: computing, waiting for a core, and of computing: in a codec. None: not sampled.
        stages: More stages.
        device: Counts of the device's clock.
        behind: Share of the steps at whose end the device was more than two batches behind.
        busy: Share of the time in which kernels ran, as the driver says.
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
        totals.update({"made:batches": BATCHES, "made:fetch_s": fetch_s, "made:collate_s": collate_s})
        if looked is not None:
            on, queued, codec = looked
            totals.update({"made:sampled_s": fetch_s, "made:busy_s": on * fetch_s, "made:queued_s": queued * fetch_s})
            totals.update({"made:decode_s": codec * on * fetch_s, "made:python_s": (1 - codec) * on * fetch_s})
    totals["behind_s"] = behind * (totals["wait_s"] + totals["step_s"])
    if busy is not None:
        totals.update({"gpu:looks": 4, "gpu:busy": 4 * busy})
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
    "no gpu": (stats(fetch=0.5, made_ms=(9, 1)), Bottleneck.STEP, "batches were ready when it asked"),
    "native": (
        stats(decode=90, made_ms=(0, 0), stages={"fetch": 1, "decode": 150, "collate": 1}),
        Bottleneck.DECODE,
        "while decode threads read and decoded",
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
    made = report(CASES["storage"][0]).stats
    each = f"{made.batches:,} batches of {made.images // made.batches} images, "
    assert figures[0].strip().startswith(f"{each}{1e3 * made.images / made.batches / made.images_per_s:.1f} ms each, ")
    assert any(line.strip().startswith("the loop waited 9.00 s of 10.00: fetch 9.00") for line in figures)


def test_the_line_of_rates_names_no_size_that_no_batch_has_and_no_consumer_slower_than_the_loop(monkeypatch):
    seen = report(CASES["storage"][0]).stats
    uneven = replace(seen, images=seen.images + 1)
    assert f"batches of about {round(uneven.images / uneven.batches)} images" in str(report(uneven))
    assert " of about " not in str(report(seen))
    assert "0 batches, 0 images/s" in str(report(make_stats(Totals())))
    monkeypatch.setattr(type(seen), "consumer_images_per_s", 1.0)
    assert f"the consumer by itself could take {seen.images_per_s:,.0f}" in str(report(seen))


def test_batches_that_wait_for_a_core_on_their_way_are_not_the_way():
    """An overloaded machine had fetches of 51 ms, collates of 10 ms, and verdict collate/IPC.

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
    """The loop was nearly always inside next(), yet the device was idle for 1%."""
    fed = {**DEVICE, "total_s": 10.0, "idle_s": 0.1, "copying_s": 0.05}
    verdict = report(stats(step_ms=5, fetch=95, made_ms=(95, 1), device=fed)).verdict
    assert verdict.bottleneck is Bottleneck.GPU
    assert verdict.evidence[:2] == (
        "the GPU waited for batches 1% of the time",
        "the GPU had work for at least 94% of it",
    )


@pytest.mark.parametrize("idle_s", [0.0, 7 * 0.02e-3])
def test_batches_that_come_in_bursts_were_waited_for_although_no_wait_was_timed(idle_s):
    """On an H200, 8 workers delivered together every 1.9 s, before the waiting step ended."""
    burst = {"steps": 7, "total_s": 7 * 0.88e-3, "idle_s": idle_s, "copies": 7, "copied_bytes": 10**8}
    verdict = report(stats(fetch=234, step_ms=0.7, made_ms=(1839, 3), looked=(1, 0, 0.99), device=burst)).verdict
    assert verdict.bottleneck is Bottleneck.DECODE
    assert verdict.evidence[0] == "the GPU waited for batches 100% of the time"


def test_a_long_step_that_was_not_timed_is_no_waiting_for_batches():
    """A checkpoint, or an evaluation between two steps."""
    timed = {"steps": 100, "total_s": 1.0, "copies": 30, "copied_bytes": 10**8}
    verdict = report(stats(fetch=0.05, step_ms=100, made_ms=(9, 1), device=timed)).verdict
    assert verdict.bottleneck is Bottleneck.STEP
    assert verdict.evidence[0] == "the GPU waited for batches 0% of the time"


def test_waiting_for_the_device_is_no_waiting_for_batches():
    assert report(stats(gpu=90, made_ms=(5, 1), device=FED)).verdict.bottleneck is Bottleneck.GPU


FED = {"steps": 100, "total_s": 10.0, "idle_s": 0.0, "copies": 100, "copied_bytes": 10**9}


@pytest.mark.parametrize(
    ("seen", "bottleneck", "evidence"),
    [
        ({}, Bottleneck.STEP, "fastload profile tells"),
        (
            {"busy": 0.97},
            Bottleneck.GPU,
            "kernels ran on the GPU 97% of it, as its driver says (other programs' included)",
        ),
        ({"busy": 0.76}, Bottleneck.LOOP, "the GPU 76% of it, as its driver says, it is the loop that leaves it idle"),
        ({"busy": 0.76}, Bottleneck.LOOP, "synchronization in every step; fastload profile shows which of them it is"),
        ({"busy": 0.01}, Bottleneck.LOOP, "see that the model is on the GPU"),
        ({"busy": 0.76, "behind": 0.95}, Bottleneck.GPU, "the GPU had work for at least 95% of it"),
        ({"behind": 0.5}, Bottleneck.STEP, "fastload profile tells"),
        ({"busy": 0.0}, Bottleneck.STEP, "fastload profile tells"),  # some drivers say 0 whatever the device does
    ],
)
def test_batches_in_time_do_not_make_the_gpu_the_limit(seen, bottleneck, evidence):
    """A loop that slept 10 ms per step was told that its model limits it."""
    told = report(stats(fetch=0.5, step_ms=100, made_ms=(9, 1), device=FED, **seen))
    assert told.verdict.bottleneck is bottleneck
    assert evidence in str(told.verdict)
    assert "the model is the limit" not in str(told)


@pytest.mark.parametrize(
    ("least", "most", "behind", "bottleneck", "evidence"),
    [
        (0.97, 1.0, 0.0, Bottleneck.GPU, "kernels ran on the GPU at least 97% of it, as its driver says"),
        (0.2, 0.4, 0.0, Bottleneck.LOOP, "kernels ran on the GPU at most 40% of it, as its driver says"),
        (0.0, 0.01, 0.0, Bottleneck.LOOP, "see that the model is on the GPU"),
        (0.7, 1.0, 0.0, Bottleneck.STEP, "the GPU 70% to 100% of it, as far as its driver tells, whose samples have"),
        (0.7, 1.0, 0.95, Bottleneck.GPU, "the GPU had work for at least 95% of it"),
    ],
)
def test_bounds_of_a_busy_share_tell_if_both_of_them_say_the_same(least, most, behind, bottleneck, evidence):
    figures = stats(fetch=0.5, step_ms=100, made_ms=(9, 1), device=FED, behind=behind)
    told = report(replace(figures, totals={**figures.totals, "gpu:least": least, "gpu:most": most}))
    assert told.verdict.bottleneck is bottleneck
    assert evidence in str(told.verdict)
    shown = f"  kernels ran on the GPU {max(least, behind):.0%} to {most:.0%} of the time, as far as"
    assert any(line.startswith(shown) for line in str(told).splitlines())


@pytest.mark.parametrize(("busy", "bottleneck"), [(0.3, Bottleneck.LOOP), (0.75, Bottleneck.STORAGE), (None, None)])
def test_a_loop_that_leaves_the_gpu_idle_longer_than_its_loader_does_is_told_so(busy, bottleneck):
    """Of 100 ms the GPU waits 20 for a batch."""
    waits = {**FED, "idle_s": 2.0}
    figures = stats(fetch=20, step_ms=80, made_ms=(95, 1), looked=(0.05, 0.0, 0.0), device=waits, busy=busy)
    verdict = report(figures).verdict
    assert verdict.bottleneck is (bottleneck or Bottleneck.STORAGE)
    assert ("the loop leaves it idle for longer than the loader does" in verdict.evidence) is (busy == 0.3)


@pytest.mark.parametrize(
    ("others", "programs", "bottleneck", "evidence"),
    [
        (0.45, 1, Bottleneck.SHARED, "other programs' kernels ran on the GPU for at least 45% of it"),
        (0.02, 1, Bottleneck.GPU, "kernels ran on the GPU 97% of it"),
        (0.02, 2, None, "2 programs are on it, and whose kernels ran is not known"),
    ],
)
def test_a_gpu_that_others_use_is_not_busy_with_this_model(others, programs, bottleneck, evidence):
    figures = stats(made_ms=(5, 1), device=FED, busy=0.97)
    figures = replace(figures, totals={**figures.totals, "gpu:others": others, "gpu:programs": programs})
    verdict = report(figures).verdict
    assert verdict.bottleneck is bottleneck
    assert evidence in str(verdict)


@pytest.mark.parametrize(
    ("others", "evidence"),
    [
        (0.45, "as its driver says, namely by process 7 (python3) 45%; use a GPU that no other"),
        (0.0, "is not known, beside this one there is process 7 (python3) 45%; use a GPU that no other"),
    ],
)
def test_other_programs_are_named_where_they_are_known(others, evidence):
    figures = stats(made_ms=(5, 1), device=FED, busy=0.97)
    figures = replace(figures, totals={**figures.totals, "gpu:others": others, "gpu:programs": 2.0})
    told = report(figures, culprits=Culprits(programs=("process 7 (python3) 45%",)))
    assert evidence in str(told.verdict)


@pytest.mark.parametrize(
    ("missed", "unpinned", "evidence"),
    [
        ({}, "max_pinned_bytes=0", "not pinned: max_pinned_bytes=0"),
        ({"no slot is free": 90, "larger than a slot": 3}, None, "no pinned slot for 90 batches: no slot is free"),
        ({}, None, None),
    ],
)
def test_batches_that_were_not_pinned_are_told_why(missed, unpinned, evidence):
    figures = replace(CASES["pageable"][0], missed=missed)
    told = report(figures, culprits=Culprits(unpinned=unpinned))
    assert told.verdict.bottleneck is Bottleneck.PIN
    assert told.verdict.evidence[2:] == (() if evidence is None else (evidence,))
    assert ("slots: 0 hits, 93 misses (no slot is free: 90, larger than a slot: 3)" in str(told)) is bool(missed)


def test_a_loop_that_leaves_the_gpu_idle_does_so_beside_others_too():
    figures = stats(made_ms=(5, 1), device=FED, busy=0.5)
    figures = replace(figures, totals={**figures.totals, "gpu:others": 0.4, "gpu:programs": 2.0})
    assert report(figures).verdict.bottleneck is Bottleneck.LOOP


@pytest.mark.parametrize(("ready", "bottleneck"), [(4.0, None), (0.5, Bottleneck.COLLATE)])
def test_a_loop_that_is_slow_to_take_what_is_ready_is_not_said_to_wait_for_workers(ready, bottleneck):
    figures = replace(stats(hand_over=30, made_ms=(1, 1)), ready_mean=ready)
    verdict = report(figures).verdict
    assert verdict.bottleneck is bottleneck
    assert ("although 4.0 batches were ready when it asked, on average" in verdict.evidence) is (bottleneck is None)


@pytest.mark.parametrize(
    ("waits", "bottleneck"),
    [
        ({"ipc": 90, "made_ms": (1, 1)}, Bottleneck.GIL),
        ({"step_ms": 100, "made_ms": (1, 1)}, Bottleneck.GIL),
        ({"fetch": 90, "made_ms": (95, 1)}, Bottleneck.PYTHON),  # which worker processes do without it
    ],
)
def test_waits_for_the_gil_are_the_limit_of_what_this_process_does(waits, bottleneck):
    figures = stats(looked=(1.0, 0.0, 0.0), **waits)
    assert report(figures).verdict.bottleneck is not Bottleneck.GIL
    verdict = report(replace(figures, totals={**figures.totals, "gil_s": 5e-3})).verdict
    assert verdict.bottleneck is bottleneck


def test_without_a_gpu_nothing_is_said_of_one():
    told = str(report(stats(fetch=0.5, step_ms=100, made_ms=(9, 1))))
    assert told.startswith("Step-bound: the training loop waited for batches 0% of the time")
    assert "GPU" not in told
    assert "nvidia" not in told


def native(**more):
    """Two decode threads that take 8 ms for a batch: 2,000 images a second."""
    stages = {"fetch": 1, "decode": 7, "collate": 0.1, **more.pop("stages", {})}
    return stats(stages=stages, **more)


def test_samples_made_in_python_are_named_and_count_against_the_rate():
    """With 10% in Python, "could deliver 8,959 images/s" was reported while the loop waited."""
    told = report(native(step_ms=1, decode=49, stages={"python": 45}))
    assert told.verdict.bottleneck is Bottleneck.PYTHON
    assert "samples that the native engine does not decode were made in Python, one after the other" in str(told)
    assert "(45.0 ms in each of 101 batches)" in str(told)
    assert "convert those files to JPEG; print(loader.plan)" in told.verdict.remedy
    assert told.stats.loader_images_per_s <= 8 / 0.049
    seldom_waits = native(step_ms=50, decode=0.1, stages={"python": 45})
    assert seldom_waits.loader_images_per_s == pytest.approx(8 / 0.0451, rel=0.01)
    assert "python 45.00" in str(told)
    few = report(native(step_ms=1, decode=4, stages={"python": 0.2}))
    assert few.verdict.bottleneck is Bottleneck.DECODE


@pytest.mark.parametrize(("made", "told_so"), [(0.1, True), (0.01, False)])
@pytest.mark.parametrize(("python", "which"), [(2, Bottleneck.DECODE), (45, Bottleneck.PYTHON)])
def test_the_verdict_counts_samples_made_in_python(made, told_so, python, which):
    """A folder with 10% in Python was told to raise num_workers, and no more."""
    figures = native(step_ms=1, decode=49, stages={"python": python})
    told = report(replace(figures, python_images=int(made * figures.images)))
    assert told.verdict.bottleneck is which
    count = f"{told.stats.python_images:,} of {figures.images:,} samples ({made:.0%}) were made in Python"
    assert count in told.verdict.evidence
    assert f"  {count}, which the native engine does not decode" in str(told).splitlines()
    assert told.verdict.remedy.startswith("convert those files") is (told_so or which is Bottleneck.PYTHON)
    assert "made in Python," not in str(report(native(step_ms=1, decode=49)))


def test_no_loader_delivers_more_than_it_did_when_it_was_waited_for_all_the_time():
    told = report(native(step_ms=2, decode=98))
    assert told.stats.images_per_s == pytest.approx(80)
    assert 80 <= told.stats.loader_images_per_s <= 82
    assert native(step_ms=50, decode=50).loader_images_per_s == pytest.approx(160)
    assert native(step_ms=50, decode=0.1).loader_images_per_s == pytest.approx(2000)


def test_erasing_on_the_host_is_not_collating():
    told = report(native(step_ms=1, decode=3, epilogue=46, stages={"epilogue": 40}))
    assert told.verdict.bottleneck is Bottleneck.EPILOGUE
    assert str(told).startswith("Epilogue-bound: the training loop waited for batches 98% of the time, 94% of that")
    assert "boxes of decoded images were erased on the host, by one thread (40.0 ms a batch)" in str(told)
    assert "collate_fn" not in str(told)
    assert "RandomErasing" in told.verdict.remedy
    seldom_waits = native(step_ms=50, decode=0.1, stages={"epilogue": 40})
    assert seldom_waits.loader_images_per_s == pytest.approx(8 / 0.0401, rel=0.01)
    on_device = native(step_ms=50, decode=0.1, stages={"epilogue": 40}, device=FED)
    assert on_device.loader_images_per_s == pytest.approx(2000), "the device's time is not the host's"


def test_reads_that_nobody_has_looked_into_are_not_called_python():
    """A worker's first fetch is not looked at, and may be most of its batches."""
    verdict = report(stats(fetch=90, made_ms=(95, 1), looked=None)).verdict
    assert verdict.bottleneck is None
    assert "100% of that while samples were read; no fetch has been sampled yet" in str(verdict)


def test_waits_that_are_too_short_to_divide_are_no_sign_of_a_slow_step():
    verdict = report(stats(step_ms=0.05, wait_ms=0.02, made_ms=(0.01, 0.01))).verdict
    assert verdict.bottleneck is None
    assert verdict.evidence == (
        "the training loop waited for batches 29% of the time",
        "each wait was too short to attribute",
    )


def test_a_rate_that_is_not_known_is_not_said_to_be_0():
    assert "the loader deliver" not in str(report(stats(step_ms=10, hand_over=1)))
    assert "could take" not in str(report(make_stats(Totals())))


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


@pytest.mark.parametrize("case", ["decode", "native", "python", "collate"])
@pytest.mark.parametrize("cores", [1, 2, 3])
def test_more_workers_than_cores_are_not_advised(monkeypatch, case, cores):
    monkeypatch.setattr(diagnosis, "usable_cpus", lambda: cores)
    remedy = report(CASES[case][0]).verdict.remedy
    assert CASES[case][0].workers == 2
    assert ("raise num_workers" in remedy) is (cores > 2)
    assert (f"run on more cores (2 workers on {cores} core{'s' * (cores > 1)} already)" in remedy) is (cores <= 2)


def test_workers_that_wait_for_a_disk_may_be_more_than_cores(monkeypatch):
    monkeypatch.setattr(diagnosis, "usable_cpus", lambda: 2)
    assert report(CASES["storage"][0]).verdict.remedy == REMEDIES[Bottleneck.STORAGE]


def test_shares_add_up_to_the_time_that_was_waited():
    mixed = stats(fetch=40, collate=20, ipc=20, h2d=10, made_ms=(50, 20), looked=(0.5, 0.1, 0.5))
    shares = report(mixed).shares
    assert sum(shares.values()) == pytest.approx(1.0)
    assert set(shares) >= {Bottleneck.STORAGE, Bottleneck.DECODE, Bottleneck.PYTHON, Bottleneck.COLLATE}


def test_cores_are_counted_in_words(monkeypatch):
    monkeypatch.setattr(diagnosis, "usable_cpus", lambda: 1)
    crowded = stats(fetch=90, made_ms=(95, 1), looked=(0.2, 0.8, 0.9), workers=1)
    assert "(1 worker, 1 core)" in str(report(crowded))
