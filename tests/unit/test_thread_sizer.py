"""How the number of decode threads follows the consumer: a simulation of a pool and a consumer, without time."""

from __future__ import annotations

import pytest

from fastload.engines.auto import Sizing
from fastload.engines.threads import WINDOW_S, ThreadSizer
from fastload.insight.stats import Totals

BATCH = 32


class Simulation:
    """A consumer that takes ``step_s`` per batch, and threads that take ``cost_s`` per sample.

    With ``ahead`` it takes a batch as soon as there is one, until it has queued so many steps of a device's.
    """

    def __init__(self, *, cores=16, sizing=None, contention=0.0, ahead=0):
        self.sizing = sizing or Sizing()
        self.now = 100.0
        self.contention = contention
        self.ahead = ahead
        self.device = Totals()
        self.device_done = None  # when the device has made all steps; None at the beginning of an epoch
        self.sizer = ThreadSizer(self.sizing, cores, lambda: self.now, device=self.device.copy if ahead else None)
        self.threads = self.sizer.threads_at_first
        self.work = [0.0, 0]
        self.history = []
        self.ready = 0.0  # when the next batch is
        self.sizer.attach(self)

    def resize(self, threads):
        self.threads = threads
        self.history.append(threads)
        return threads

    def work_done(self):
        return tuple(self.work)

    def begin_epoch(self):
        """The device has made all steps of the one before."""
        self.sizer.begin()
        self.now = self.ready = max(self.now, self.device_done or 0.0)
        self.device_done = None

    def run(self, seconds, *, step_s, cost_s):
        """Returns the share of the time that the consumer waited."""
        end, waited_all, begun = self.now + seconds, 0.0, self.now
        while self.now < end:
            cost = cost_s * (1 + self.contention * self.threads)
            made_s = BATCH * cost / self.threads
            self.ready = max(self.ready, self.now - 2 * made_s) + made_s  # up to two batches are ready ahead
            waited = max(0.0, self.ready - self.now)
            self.now += waited
            waited_all += waited
            self.work[0] += BATCH * cost
            self.work[1] += BATCH
            self.sizer.note(BATCH, waited)
            if self.device_done is not None:
                idle_s = max(0.0, self.now - self.device_done)
                self.device.add({"device:steps": 1, "device:total_s": idle_s + step_s, "device:idle_s": idle_s})
            self.device_done = max(self.device_done or 0.0, self.now) + step_s
            self.now = max(self.now, self.device_done - self.ahead * step_s)
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
    """Work that the threads do not count (a slow disk's queue, say): the estimate alone would swing for ever."""
    loop = Simulation()
    real = loop.work_done
    loop.work_done = lambda: (real()[0] * 0.5, real()[1])
    loop.run(10, step_s=0.02, cost_s=0.005)
    loop.history.clear()
    waited = loop.run(60, step_s=0.02, cost_s=0.005)
    assert waited < 0.03
    assert len(loop.history) < 20


def test_a_pause_of_the_consumer_is_no_measurement():
    loop = Simulation()
    loop.run(10, step_s=0.02, cost_s=0.005)
    settled = loop.threads
    assert settled == 9
    for _ in range(5):
        loop.now += 30.0
        loop.run(2 * WINDOW_S, step_s=0.02, cost_s=0.005)
    assert loop.threads == settled


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
    loop = Simulation(ahead=3, sizing=Sizing(threads=2))
    for _ in range(5):
        loop.begin_epoch()
        loop.run(2, step_s=0.02, cost_s=0.005)
    assert loop.threads == 9


def test_the_next_pool_starts_with_what_was_enough():
    assert Simulation(cores=16).threads == 16
    assert Simulation(cores=16, sizing=Sizing(threads=5)).threads == 5
    assert Simulation(cores=4, sizing=Sizing(threads=5)).threads == 4
