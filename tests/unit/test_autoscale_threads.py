"""Simulate a pool and a consumer to test how decode threads follow the consumer."""

from __future__ import annotations

import pytest

from fastload.autoscale.policy import Sizing
from fastload.autoscale.threads import WINDOW_S, ThreadSizer
from fastload.stats.pace import Hold
from fastload.stats.stats import Totals

BATCH = 32
QUEUE_S = 1e-3  # what a host needs for the kernels of a step


def test_a_hold_doubles_up_to_its_most_until_it_is_reset():
    hold = Hold(1, 8)
    assert hold.allows(0)
    for at, again, until in ((10, True, 12), (20, False, 22), (30, True, 34), (40, True, 48), (50, True, 58)):
        hold.fail(at, again=again)
        assert (hold.until, hold.allows(until - 1), hold.allows(until)) == (until, False, True)
    hold.reset()
    hold.fail(60, again=False)
    assert hold.until == 61


class Simulation:
    """A consumer that takes ``step_s`` per batch, and threads that take ``cost_s`` per sample.

    With ``ahead`` it takes a batch as soon as there is one, until it has queued so many steps of a device's, whose
    clock times them as DeviceClock does: from the end of one step, which is marked when the next batch is asked for, to
    the end of the next, and known once it has passed.
    """

    def __init__(self, *, cores=16, sizing=None, contention=0.0, ahead=0):
        self.sizing = sizing or Sizing()
        self.now = 100.0
        self.contention = contention
        self.ahead = ahead
        self.device = Totals()
        self.device_done = 0.0  # when the device has made all steps
        self.marked = None  # the end of the step before the last
        self.arrived = None  # when the batch of the last step was there
        self.pending = []
        self.sizer = ThreadSizer(self.sizing, cores, lambda: self.now, device=self.device.copy if ahead else None)
        self.threads = self.sizer.threads_at_first
        self.work = [0.0, 0]
        self.counted = 1.0  # share of their work that the threads count
        self.host_s = QUEUE_S
        self.seen = 1.0  # what the steps that the clock happens to time take, by the mean of all
        self.link_s = self.link_done = 0.0  # per batch, on its way to the device; when the last was there
        self.history = []
        self.ready = 0.0  # when the next batch is
        self.sizer.attach(self)

    def resize(self, threads):
        self.threads = threads
        self.history.append(threads)
        return threads

    def work_done(self):
        return self.counted * self.work[0], self.work[1]

    def begin_epoch(self):
        """The device has made all steps of the one before."""
        self.sizer.begin()
        self.now = self.ready = max(self.now, self.device_done)
        self.marked = self.arrived = None

    def mark_step(self):
        """The consumer asks for a batch: its work on the last one has been queued."""
        end = max(self.device_done, self.now)
        if self.arrived is not None and self.marked is not None:
            idle_s = max(0.0, self.arrived - self.marked)
            total_s = self.seen * (end - self.marked)
            sums = {"device:steps": 1, "device:total_s": total_s, "device:idle_s": self.seen * idle_s}
            self.pending.append((end, sums))
        if self.arrived is not None:
            self.marked = end
        while self.pending and self.pending[0][0] < self.now:  # what has just been marked has not just passed
            self.device.add(self.pending.pop(0)[1])

    def run(self, seconds, *, step_s, cost_s):
        """Returns the share of the time that the consumer waited."""
        end, waited_all, begun = self.now + seconds, 0.0, self.now
        while self.now < end:
            self.mark_step()
            cost = cost_s * (1 + self.contention * self.threads)
            made_s = BATCH * cost / self.threads
            self.ready = max(self.ready, self.now - 2 * made_s) + made_s  # up to two batches are ready ahead
            waited = max(0.0, self.ready - self.now)
            self.now += waited
            self.arrived = self.link_done = max(self.link_done, self.ready) + self.link_s
            waited_all += waited
            self.work[0] += BATCH * cost
            self.work[1] += BATCH
            self.sizer.note(BATCH, waited)
            self.device_done = max(self.device_done, self.now, self.arrived) + step_s
            self.now = max(self.now + self.host_s, self.device_done - self.ahead * step_s)
        return waited_all / (self.now - begun)


@pytest.mark.parametrize(("needed", "threads"), [(0.3, 1), (1.8, 2), (3.0, 4), (7.0, 8), (12.0, 14), (14.6, 16)])
def test_it_settles_at_the_smallest_number_with_ten_per_cent_to_spare(needed, threads):
    loop = Simulation()
    step_s = 0.02
    loop.run(10, step_s=step_s, cost_s=needed * step_s / BATCH)
    assert loop.threads == threads
    assert loop.run(20, step_s=step_s, cost_s=needed * step_s / BATCH) < 0.01
    assert loop.threads == loop.sizing.threads == threads


def test_what_cores_cannot_feed_gets_all_of_them():
    loop = Simulation(cores=6)
    assert loop.run(20, step_s=0.02, cost_s=0.02) > 0.5
    assert loop.threads == 6


def test_it_grows_when_the_consumer_becomes_faster_and_shrinks_when_it_becomes_slower():
    loop = Simulation()
    loop.run(10, step_s=0.04, cost_s=0.003)
    few = loop.threads
    assert few == 3
    loop.run(10, step_s=0.01, cost_s=0.003)
    assert 11 <= loop.threads <= 14
    assert loop.run(5, step_s=0.01, cost_s=0.003) < 0.01
    loop.run(40, step_s=0.04, cost_s=0.003)
    assert loop.threads <= 4


def test_samples_that_cost_more_beside_others_do_not_make_it_swing():
    loop = Simulation(contention=0.1)
    loop.run(20, step_s=0.02, cost_s=0.002)
    settled = len(loop.history)
    loop.run(60, step_s=0.02, cost_s=0.002)
    assert len(loop.history) <= settled + 2


def test_a_number_that_was_too_few_is_not_tried_again_at_once():
    """Threads do not count some work (a slow disk's queue): the estimate alone would swing."""
    loop = Simulation()
    loop.counted = 0.5
    loop.run(10, step_s=0.02, cost_s=0.005)
    loop.history.clear()
    waited = loop.run(60, step_s=0.02, cost_s=0.005)
    assert waited < 0.03
    assert len(loop.history) < 20


@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize("pause_s", [2.0, 30.0])
def test_a_pause_of_the_consumer_is_no_measurement(ahead, pause_s):
    loop = Simulation(ahead=ahead)
    loop.run(10, step_s=0.02, cost_s=0.005)
    settled = loop.threads
    assert settled == 9
    loop.history.clear()
    for phase in range(30):
        loop.now += pause_s
        loop.run(2 * WINDOW_S + 0.02 * phase, step_s=0.02, cost_s=0.005)
    assert loop.history == []


def test_what_the_device_does_beside_the_steps_is_no_measurement():
    loop = Simulation(ahead=3)
    loop.run(10, step_s=0.02, cost_s=0.005)
    for phase in range(30):
        loop.device_done += 2.0  # a validation that the host queues and does not wait for
        loop.run(3 + 0.02 * phase, step_s=0.02, cost_s=0.005)
    assert min(loop.history) >= 9


def test_the_start_of_an_epoch_is_no_measurement():
    loop = Simulation(cores=8, sizing=Sizing(threads=2))
    for _ in range(10):
        loop.sizer.begin()
        loop.now += 3.0  # the first batch of every epoch is waited for
        loop.ready = loop.now
        loop.run(2 * WINDOW_S, step_s=0.05, cost_s=0.002)
    assert loop.threads == 2


@pytest.mark.parametrize("seconds", [0.7, 3.0])
def test_a_host_that_runs_ahead_of_its_device_when_an_epoch_begins_does_not_starve(seconds):
    loop = Simulation(ahead=3)
    for _ in range(20):
        loop.begin_epoch()
        loop.run(seconds, step_s=0.03, cost_s=7.0 * 0.03 / BATCH)
    assert loop.threads == 8


def test_a_device_that_starves_gets_more_threads():
    """The threads' figures call them enough, although the host waits for every batch."""
    loop = Simulation(ahead=3, sizing=Sizing(threads=2))
    loop.counted = 0.1
    for _ in range(5):
        loop.begin_epoch()
        loop.run(2, step_s=0.02, cost_s=0.005)
    assert loop.threads >= 8


def test_a_device_that_waits_for_the_link_gets_no_more_threads():
    loop = Simulation(ahead=1)
    loop.link_s = 0.03
    loop.run(10, step_s=0.02, cost_s=0.001)
    assert loop.device["device:idle_s"] > 0.3 * loop.device["device:total_s"]
    assert loop.threads == 2


def test_a_loop_that_keeps_its_device_idle_by_itself_gets_few_threads():
    loop = Simulation(ahead=3)
    loop.host_s = 0.02
    for _ in range(10):
        loop.begin_epoch()
        loop.run(0.7, step_s=0.001, cost_s=0.001)
    assert loop.threads == 2


def test_of_an_epochs_later_windows_the_host_knows_the_rate_better():
    loop = Simulation(ahead=3)
    loop.seen = 1.2
    loop.run(10, step_s=0.02, cost_s=0.005)
    assert loop.threads == 9


def test_a_consumer_that_leaves_the_device_alone_starves_by_the_hosts_clock():
    loop = Simulation(ahead=3, sizing=Sizing(threads=2))
    loop.host_s = 0.0
    loop.run(10, step_s=0.0, cost_s=0.005)
    assert loop.threads == 16


def test_the_next_pool_starts_with_what_was_enough():
    assert Simulation(cores=16).threads == 16
    assert Simulation(cores=16, sizing=Sizing(threads=5)).threads == 5
    assert Simulation(cores=4, sizing=Sizing(threads=5)).threads == 4


def test_once_restarted_it_has_all_cores_until_it_has_measured_the_new_work():
    loop = Simulation()
    loop.run(10, step_s=0.02, cost_s=0.0001)
    assert loop.threads == 1
    loop.sizer.restart()
    assert loop.threads == 16
    changes = len(loop.history)
    loop.run(0.9 * WINDOW_S, step_s=0.02, cost_s=0.003)
    assert len(loop.history) == changes  # a window that began before would have ended
    loop.run(10, step_s=0.02, cost_s=0.003)
    assert loop.threads < 16


def test_restarting_a_closed_pool_does_nothing():
    class Closed:
        def resize(self, threads):
            raise RuntimeError("the pool is closed")

        def work_done(self):
            return 0.0, 0

    sizer = ThreadSizer(Sizing(), 4, lambda: 0.0)
    sizer.restart()
    sizer.attach(Closed())
    sizer.restart()
