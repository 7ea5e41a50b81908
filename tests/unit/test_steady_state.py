"""Where a loop's steady state begins, by made-up times between batches."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from fastload.stats import meter as meter_module
from fastload.stats import steady_state
from fastload.stats.gpu_utilization import Seen
from fastload.stats.meter import Meter
from fastload.stats.stats import Totals, make_stats
from fastload.stats.steady_report import report_steady
from fastload.stats.steady_state import BLOCKS_LONG, BLOCKS_MAX, SteadyState
from fastload.stats.verdict import Bottleneck

SLOW, QUICK = 1.0, 0.1


class Loop:
    """A training loop whose steps and waits take as long as they are said to."""

    def __init__(self, monkeypatch, workers=2, in_flight=6):
        self.now = 100.0
        self.counts = Totals()
        monkeypatch.setattr(steady_state, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(steady_state, "gil_wait_s", lambda: self.gil_s)
        self.gil_s = 0.0
        self.steady = SteadyState(self.stats)
        self.steady.follow(workers, in_flight)

    def stats(self):
        return make_stats(self.counts.copy(), workers=2)

    def epoch(self, intervals, *, waits=0.9, first=0.01, place="fetch"):
        """Take batches at these intervals, of which the loop waits for a part."""
        self.now += first
        self.counts.add({"batches": 1, "images": 8})
        self.steady.begun(first)
        self.counts.add({"startup_s": first, "epochs": 1})
        for seconds in intervals:
            self.now += seconds
            waited = waits * seconds
            self.counts.add({"batches": 1, "images": 8, "asked": 1, "wait_s": waited, "step_s": seconds - waited})
            self.counts.add({f"waited:{place}": waited, "made:batches": 1, "made:images": 8, "made:fetch_s": waited})
            self.counts.add({"made:sampled_s": waited, "made:busy_s": waited, "made:python_s": waited})
            self.steady.add(seconds, self.now)

    def left_out(self):
        """How many steps a report would leave out; None if it would not judge."""
        before = self.steady.stretch().before
        return None if before is None else before.batches

    def report(self, *utilizations):
        return report_steady(self.stats(), self.steady, utilizations)


@pytest.fixture
def loop(monkeypatch):
    return Loop(monkeypatch)


def test_20_slow_steps_are_left_out_of_what_follows_and_it_is_said(loop):
    loop.epoch([SLOW] * 20, waits=0.0)
    loop.epoch([QUICK] * 40)
    report = loop.report()
    assert report.verdict.bottleneck is Bottleneck.PYTHON
    assert report.stats.wait_s / report.stats.elapsed_s == pytest.approx(0.9)
    before = loop.left_out()
    assert 20 <= before <= 20 + 6 + 4  # batches that were made meanwhile come at once
    assert f"  of 62 batches, the first {before} steps, warm-up, are left out" in str(report).splitlines()
    assert report.stats.batches == 62 - before


@pytest.mark.parametrize("quick", [1, 4, 8])
def test_a_warm_up_that_has_just_ended_is_too_early(loop, quick):
    loop.epoch([SLOW] * 20 + [QUICK] * quick)
    said = loop.report()
    if quick < 4:  # of which nothing can be known
        assert loop.left_out() == 0
        return
    assert said.verdict.bottleneck is None
    more = loop.steady.stretch().more
    assert said.verdict.evidence[0] == f"too early: {more} more step{'s' if more > 1 else ''}"
    assert said.stats.batches == 21 + quick


def test_after_as_many_steps_as_are_missing_there_is_a_verdict(loop):
    missing = []
    loop.epoch([SLOW] * 8)
    for _ in range(9):
        stretch = loop.steady.stretch()
        if stretch.before is not None and stretch.before.batches:
            break
        missing.append(stretch.more if stretch.before is None else 4)
        loop.epoch([QUICK] * missing[-1])
    assert loop.left_out() >= 9
    assert sum(missing) <= 24
    assert loop.report().verdict.bottleneck is Bottleneck.PYTHON


def test_batches_made_during_a_slow_step_are_no_steady_state(monkeypatch):
    """A loop that waits for its loader has a backlog after a compilation."""
    loop = Loop(monkeypatch, workers=8, in_flight=18)
    loop.epoch([20.0, *[1e-3] * 25], waits=0.0)
    assert loop.left_out() is None
    loop.epoch([QUICK] * 64)
    assert loop.left_out() >= 26
    assert loop.report().stats.stall == pytest.approx(0.9)


@pytest.mark.parametrize("workers", [2, 8, 15])
def test_bursts_of_all_workers_are_one_pace(monkeypatch, workers):
    loop = Loop(monkeypatch, workers=workers, in_flight=2 * workers + 2)
    loop.epoch(([1e-4] * (workers - 1) + [0.5]) * 6)
    assert loop.left_out() == 0


def test_an_evaluation_in_an_epoch_or_between_two_changes_nothing(loop):
    loop.epoch([SLOW] * 4 + [QUICK] * 20)
    loop.now += 1000.0
    loop.epoch([QUICK] * 10 + [60.0] + [QUICK] * 30)
    assert 5 <= loop.left_out() <= 13
    assert loop.steady.stretch().has_settled


@pytest.mark.parametrize("slow", [0, 12])
def test_epochs_of_8_steps_settle_as_long_ones_do(monkeypatch, slow):
    loop = Loop(monkeypatch, workers=8, in_flight=18)
    left = itertools.chain([SLOW] * slow, itertools.repeat(QUICK))
    for _ in range(12):
        loop.epoch(list(itertools.islice(left, 7)), first=QUICK)
    assert slow <= loop.left_out() <= slow + 40


def test_a_run_that_never_settles_is_judged_after_a_while_and_that_is_said(loop):
    paces = itertools.cycle([1.0, 0.1, 3.0, 0.3, 0.02, 9.0])
    for _ in range(BLOCKS_LONG - 1):
        loop.epoch([next(paces)] * 4)
    assert loop.left_out() is None
    for _ in range(4):
        loop.epoch([next(paces)] * 4)
    stretch = loop.steady.stretch()
    assert not stretch.has_settled
    report = loop.report()
    assert "are judged: their times have not settled" in report.notes[0]
    assert report.verdict.bottleneck is Bottleneck.PYTHON


def test_a_long_run_keeps_few_snapshots_and_its_warm_up_out(loop):
    loop.epoch([SLOW] * 20 + [QUICK] * 5000)
    assert len(loop.steady._blocks) < BLOCKS_MAX
    assert 21 <= loop.left_out() <= 40


def test_quick_steps_do_without_snapshots_most_of_the_time(loop):
    taken = []
    loop.steady._snapshot = lambda: taken.append(1) or make_stats(loop.counts.copy())
    loop.epoch([1e-4] * 1000)
    assert len(taken) <= 1000 * 1e-4 / steady_state.BLOCK_S
    assert loop.steady.stretch().before is not None


def test_a_first_epoch_that_differs_is_told_apart(loop):
    loop.epoch([4 * QUICK] * 16, waits=0.9)
    loop.epoch([QUICK] * 16, waits=0.1)
    loop.epoch([QUICK] * 16, waits=0.1)
    assert (
        "  first epoch: 20 images/s, stall 90%; later ones: 80 images/s, stall 10%" in str(loop.report()).splitlines()
    )


def test_epochs_that_are_alike_are_not(loop):
    loop.epoch([QUICK] * 16)
    loop.epoch([1.1 * QUICK] * 16)
    assert not any("first epoch" in line for line in str(loop.report()).splitlines())


def test_waits_for_first_batches_take_no_blame_from_the_loader(monkeypatch):
    """All batches of short epochs but the first are there, which tells nothing."""
    loop = Loop(monkeypatch, workers=8, in_flight=18)
    for _ in range(6):
        loop.epoch([0.01] * 7, waits=0.0, first=0.5)
    said = loop.report().verdict
    assert said.bottleneck is None
    assert said.evidence[0] == "the training loop waited for the first batches of its epochs 88% of the time"
    assert "persistent_workers=True" in said.remedy


class Driver:
    """Stands for the utilization of a device."""

    def __init__(self, seen):
        self.seen = seen
        self.asked = []

    def look(self, between_s, *, at_once):
        self.asked.append((between_s, at_once))

    def since(self, began):
        self.asked.append(began)
        return self.seen


def on_a_gpu(loop, steps, step_s=QUICK, waits=0.0):
    """Add steps whose batches a device has copied and timed."""
    loop.epoch([step_s] * steps, waits=waits)
    loop.counts.add({"device:copies": steps, "device:steps": steps, "device:total_s": steps * step_s})


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (Seen(0.97, is_told=True), Bottleneck.GPU),
        (Seen(0.09, is_told=True), Bottleneck.LOOP),
        (Seen(0.97, True, others=0.4), Bottleneck.SHARED),
        (Seen(None, True, bounds=(0.95, 1.0)), Bottleneck.GPU),
        (Seen(None, True, bounds=(0.1, 0.3)), Bottleneck.LOOP),
        (Seen(None, True, bounds=(0.6, 1.0)), None),
        (Seen(0.97, True, programs=2), None),
        (Seen(None, is_told=False), Bottleneck.STEP),
    ],
)
def test_the_driver_is_asked_about_the_stretch_that_is_judged(loop, seen, said):
    loop.epoch([SLOW] * 8)
    on_a_gpu(loop, 40)
    driver = Driver(seen)
    report = loop.report(Driver(Seen(0.5)), driver)  # that of another device, which was used before
    assert report.verdict.bottleneck is said
    assert report.stats.gpu_utilization == seen.busy
    stretch = loop.steady.stretch()
    assert driver.asked == [(pytest.approx(12 / 48), True), stretch.began]
    assert stretch.began > 108.0


@pytest.mark.parametrize(("step_s", "said"), [(QUICK, None), (10 * QUICK, Bottleneck.STEP)])
def test_a_driver_that_has_yet_to_tell_is_waited_for_but_not_for_long(loop, step_s, said):
    on_a_gpu(loop, 12, step_s)
    verdict = loop.report(Driver(Seen(None, is_told=True))).verdict
    assert verdict.bottleneck is said
    assert ("too early: 10 more steps" in verdict.evidence) is (said is None)


def test_waits_for_first_batches_are_part_of_the_pace_of_later_epochs(monkeypatch):
    """Batches come at once but for an epoch's first."""
    loop = Loop(monkeypatch, workers=8, in_flight=18)
    for _ in range(3):
        loop.epoch([0.01] * 7, first=4.0)
    assert [block.seconds for block in loop.steady._blocks] == pytest.approx([4.08, 4.08])


def test_a_long_start_of_the_only_epoch_is_no_such_wait(loop):
    loop.epoch([0.01] * 30, waits=0.0, first=10.0)
    assert loop.report().verdict.bottleneck is Bottleneck.STEP


@pytest.mark.parametrize("last", [4.0, 0.02])
def test_a_slow_last_block_is_a_pause_but_a_quick_one_the_end_of_a_warm_up(loop, last):
    loop.epoch([QUICK] * 16 + [last] * 4)
    assert loop.left_out() == (0 if last > QUICK else None)


@pytest.mark.parametrize(("waits_s", "said"), [([5e-3, 1e-4, 1e-4] * 27, Bottleneck.GIL), ([1e-4, 5e-3], None)])
def test_a_thread_that_holds_the_gil_now_and_then_is_seen_but_once_may_be_chance(loop, waits_s, said):
    for loop.gil_s in waits_s:
        loop.epoch([QUICK] * 4, waits=0.0)
    assert loop.report().verdict.bottleneck is (said or Bottleneck.STEP)


@pytest.mark.parametrize(("gil_s", "said"), [(5e-3, Bottleneck.GIL), (1e-4, Bottleneck.STEP)])
def test_a_loop_that_waits_for_the_gil_is_told_so(loop, gil_s, said):
    loop.gil_s = gil_s
    loop.epoch([QUICK] * 16, waits=0.0)
    assert loop.report().verdict.bottleneck is said
    assert ("5.0 ms to get the GIL back" in str(loop.report())) is (said is Bottleneck.GIL)


def test_the_thread_that_holds_the_gil_is_looked_for_when_it_was_waited_for(loop, monkeypatch):
    looks = []
    monkeypatch.setattr(loop.steady.holders, "look", lambda: looks.append(loop.gil_s))
    monkeypatch.setattr(loop.steady.holders, "most", lambda: "thread 'metrics', mostly at log.py:7 in write")
    for loop.gil_s in [5e-3, 1e-4] * 8:
        loop.epoch([QUICK] * 4, waits=0.0)
    assert set(looks) == {5e-3}
    verdict = loop.report().verdict
    assert verdict.evidence[1] == "which was held by thread 'metrics', mostly at log.py:7 in write"
    assert "py-spy" not in verdict.remedy
    monkeypatch.setattr(loop.steady.holders, "most", lambda: None)
    assert loop.report().verdict.remedy.endswith("; py-spy dump shows which thread that is")


def test_a_meter_tells_of_each_batch_but_of_no_pause(monkeypatch):
    steady = SteadyState(lambda: make_stats(Totals()))
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(meter_module, "time", clock)
    monkeypatch.setattr(steady_state, "time", clock)
    monkeypatch.setattr(steady_state, "gil_wait_s", lambda: 0.0)
    meter = Meter(None, 8)
    meter.steady = steady
    for _ in range(2):
        meter.got(meter.ask(), None)
        for _ in range(2):
            clock.now += 1.0
            meter.got(meter.ask(), None)
        meter.stop()
        clock.now += 6.0
        meter.begin_epoch()
    assert [(block.steps, block.seconds) for block in steady._blocks] == [(4, 4.0)]
    assert steady.trained(100.0, 102.0) == steady.trained(108.5, 110.0) == 1.0
    assert steady.trained(100.0, 110.0) == pytest.approx(0.4)
    assert steady.trained(102.0, 108.0) == steady.trained(110.0, 116.0) == 0.0
