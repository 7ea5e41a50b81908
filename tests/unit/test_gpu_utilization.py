"""Test how GPU utilization is read from the driver, and when it is rejected."""

from __future__ import annotations

import itertools
import os
import sys
from types import SimpleNamespace

import pytest
import torch

from fastload.device.transfer import Transfer
from fastload.loader_state import LoaderState
from fastload.stats import gpu_utilization, steady_state
from fastload.stats.gpu_utilization import Seen, Utilization
from fastload.stats.stats import Totals, make_stats
from fastload.stats.steady_state import SteadyState
from fastload.stats.verdict import Bottleneck, limit_outside_loader

SHORT = 0.01  # from batch to batch


class Driver:
    """Stands for pynvml: GPUs in an order of its own, one of which has samples."""

    NVML_GPU_UTILIZATION_SAMPLES = 1

    class NVMLError(Exception):
        pass

    class NVMLError_NotFound(NVMLError):
        pass

    def __init__(self):
        self.handles = {"GPU-another": "another's", "GPU-0-ours": "ours"}
        self.samples = []  # when, in microseconds, and per cent
        self.has_samples = True
        self.rate = 40
        self.asked = 0
        self.shares = []  # of processes: when, which, and per cent
        self.running = [7]

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return self.handles[uuid]

    def nvmlDeviceGetSamples(self, handle, kind, after):
        assert (handle, kind) == ("ours", 1)
        self.asked += 1
        if not self.has_samples:
            raise self.NVMLError("Not Supported")
        found = [
            SimpleNamespace(timeStamp=when, sampleValue=SimpleNamespace(uiVal=share))
            for when, share in self.samples
            if when > after
        ]
        if not found:
            raise self.NVMLError_NotFound
        return 1, found

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid) for pid in self.running]

    def nvmlDeviceGetProcessUtilization(self, handle, after):
        found = [
            SimpleNamespace(timeStamp=when, pid=pid, smUtil=share) for when, pid, share in self.shares if when > after
        ]
        if not found:
            raise self.NVMLError_NotFound
        return found

    def nvmlSystemGetProcessName(self, pid):
        return {7: "/usr/bin/python3 train.py"}[pid]

    def nvmlDeviceGetUtilizationRates(self, handle):
        assert handle == "ours"
        self.asked += 1
        return SimpleNamespace(gpu=self.rate)


@pytest.fixture
def driver(monkeypatch):
    """Of two GPUs CUDA may use the second, which is its first."""
    found = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", found)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="0-ours"))
    gpu_utilization.nvml_and_handle.cache_clear()
    yield found
    gpu_utilization.nvml_and_handle.cache_clear()


WALL = 1.7e9  # what the system's clock says at 0 of ours


class Training:
    """A loop beside which the driver takes samples."""

    def __init__(self, monkeypatch, driver):
        self.now = 100.0
        self.driver = driver
        self.every_s = 0.2  # from sample to sample
        self.ahead_s = 0.0  # of the driver's clock
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: WALL + self.now)
        monkeypatch.setattr(gpu_utilization, "time", clock)
        monkeypatch.setattr(steady_state, "time", clock)
        monkeypatch.setattr(steady_state, "gil_wait_s", lambda: 0.0)
        self.steady = SteadyState(lambda: make_stats(Totals()))
        self.gpu = Utilization(torch.device("cuda", 0), self.steady)
        self.sampled = 100.0
        self.busy_s = 0.0  # since then, times 100

    def passes(self, seconds, busy):
        """Let time pass, and the driver average over it."""
        until = self.now + seconds
        while self.now < until:
            ends = self.sampled + self.every_s
            passed = min(until, ends) - self.now
            self.now += passed
            self.busy_s += busy * passed
            if self.now > ends - 1e-9:
                self.driver.samples.append((int((WALL + self.ahead_s + ends) * 1e6), round(self.busy_s / self.every_s)))
                self.sampled, self.busy_s = ends, 0.0

    def epoch(self, steps, busy, step_s=SHORT):
        """Take batches, at each of which the copying thread may look."""
        self.steady.begun(0.0)
        self.gpu.look(step_s)
        for _ in range(steps):
            self.passes(step_s, busy)
            self.steady.add(step_s, self.now)
            self.gpu.look(step_s)


@pytest.fixture
def training(monkeypatch, driver):
    return Training(monkeypatch, driver)


def test_epochs_shorter_than_a_second_are_all_seen(training, driver):
    for _ in range(10):
        training.epoch(90, busy=80)
        training.passes(0.02, 80)
    training.gpu.look(SHORT, at_once=True)
    sums = training.gpu.totals()
    assert sums["gpu:looks"] >= 9.2 / training.every_s * 0.9
    assert sums["gpu:busy"] == pytest.approx(0.8 * sums["gpu:looks"])
    assert training.gpu.since(0.0) == Seen(pytest.approx(0.8), is_told=True)


def words(seen):
    """What a loop that never waits for batches would be told, if anything."""
    bounds = seen.bounds or (() if seen.busy is None else (seen.busy,))
    found = {limit_outside_loader(0.0, share) for share in bounds}
    return found.pop() if len(found) == 1 else None


@pytest.mark.parametrize("lag", [0.0, 0.5, 1.0])  # by which samples are older than the driver says, in lengths of one
@pytest.mark.parametrize(
    ("pause_s", "pausing", "training_at", "word"),
    [
        (0.034, 100, 100, Bottleneck.GPU),
        (0.034, 0, 20, Bottleneck.LOOP),
        (0.034, 100, 20, Bottleneck.LOOP),  # an evaluation
        (0.008, 0, 100, Bottleneck.GPU),
        (0.034, 0, 97, None),  # between 76% and 97%
        (0.4, 0, 100, None),
        (0.4, 100, 10, None),
    ],
)
def test_epochs_shorter_than_a_sample_are_judged_by_its_worst_case(training, lag, pause_s, pausing, training_at, word):
    training.every_s = 1 / 6
    training.ahead_s = lag * training.every_s
    for _ in range(50):
        training.epoch(8, training_at, step_s=0.02)
        training.passes(pause_s, pausing)
    training.gpu.look(0.02, at_once=True)
    seen = training.gpu.since(0.0)
    assert seen.busy is None
    assert words(seen) is word
    if seen.bounds is not None:
        least, most = seen.bounds
        assert least - 0.01 <= training_at / 100 <= most + 0.01


@pytest.mark.parametrize("lag", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("pause_s", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("steps", [3, 8, 30])
def test_no_pause_between_epochs_makes_a_wrong_word(monkeypatch, driver, steps, pause_s, lag):
    for every_s, pausing, busy in itertools.product((1 / 6, 1.0), (0, 100), (60, 97)):
        driver.samples.clear()
        training = Training(monkeypatch, driver)
        training.every_s, training.ahead_s = every_s, lag * every_s
        while training.now < 112.0:
            training.epoch(steps, busy, step_s=0.03)
            training.passes(pause_s, pausing)
        training.gpu.look(0.03, at_once=True)
        assert words(training.gpu.since(0.0)) in (None, Bottleneck.GPU if busy == 97 else Bottleneck.LOOP)


def test_what_is_between_two_epochs_is_not_of_the_loop(training):
    training.epoch(300, busy=40)
    training.passes(7.0, 99)  # a validation
    training.epoch(300, busy=40)
    training.passes(7.0, 99)
    training.gpu.look(SHORT, at_once=True)
    assert training.gpu.since(0.0).busy == pytest.approx(0.4)
    assert training.gpu.totals()["gpu:looks"] >= 24


def test_what_was_before_the_loop_or_its_steady_state_is_left_out(training):
    training.passes(5.0, 99)
    training.epoch(200, busy=10)  # a warm-up
    began = training.now
    training.epoch(200, busy=60)
    training.gpu.look(SHORT, at_once=True)
    assert training.gpu.since(began).busy == pytest.approx(0.6)
    assert training.gpu.since(0.0).busy == pytest.approx(0.35, abs=0.05)


def test_every_sample_counts_once(training):
    training.epoch(400, busy=50)
    for _ in range(3):
        training.gpu.look(SHORT, at_once=True)
    assert training.gpu.totals()["gpu:looks"] == pytest.approx(4.0 / training.every_s, abs=2)


def test_samples_of_a_step_that_is_not_over_wait_for_its_end(training):
    training.epoch(100, busy=50)
    training.passes(3.0, 50)
    training.gpu.look(SHORT, at_once=True)
    looks = training.gpu.totals()["gpu:looks"]
    training.steady.add(3.0, training.now)  # it was a step and no evaluation
    training.gpu.look(SHORT, at_once=True)
    assert training.gpu.totals()["gpu:looks"] - looks == pytest.approx(3.0 / training.every_s, abs=1)


def test_the_driver_is_asked_once_a_second(training, driver):
    training.epoch(290, busy=50)
    assert driver.asked == 3


@pytest.mark.parametrize("ahead_s", [-1e9, -60.0, 60.0])
def test_a_clock_that_is_not_the_systems_is_not_trusted(training, ahead_s):
    """Samples then count by when they came, not by their own times."""
    training.ahead_s = ahead_s
    training.passes(5.0, 99)
    training.epoch(400, busy=50)
    training.passes(5.0, 99)
    training.epoch(50, busy=50)
    training.gpu.look(SHORT, at_once=True)
    seen = training.gpu.since(0.0)
    assert seen.busy == pytest.approx(0.5)
    assert 10 <= training.gpu.totals()["gpu:looks"] <= 23


def test_a_sample_that_came_after_a_pause_may_be_of_it(training):
    training.ahead_s, training.every_s = 60.0, 1.0
    for _ in range(6):
        training.epoch(330, busy=50)
        training.passes(0.5, 0)
    assert training.gpu.since(0.0).busy == pytest.approx(0.5, abs=0.01)


def test_too_few_samples_say_nothing_yet(training):
    training.epoch(30, busy=90)
    training.gpu.look(SHORT, at_once=True)
    assert training.gpu.since(0.0) == Seen(None, is_told=True)


def test_a_rate_stands_in_for_samples_where_steps_are_short(training, driver):
    driver.has_samples = False
    training.epoch(350, busy=0)
    assert training.gpu.since(0.0).busy == pytest.approx(0.4)
    looks = training.gpu.totals()["gpu:looks"]
    training.epoch(5, busy=0, step_s=2.0)
    assert training.gpu.totals()["gpu:looks"] <= looks + 1  # always of the same part of a step


def test_a_rate_of_nobody_knows_when_sets_no_bounds(training, driver):
    driver.has_samples = False
    for _ in range(100):
        training.epoch(8, busy=0)
        training.passes(0.005, 0)
    assert training.gpu.since(0.0) == Seen(None, is_told=True)


@pytest.mark.parametrize(
    ("shares", "running", "others", "programs", "by"),
    [
        ({"own": 90}, [7, 8, os.getpid()], 0.0, 1, ()),
        ({"own": 50, 7: 45}, [7, os.getpid()], 0.45, 1, ("process 7 (python3) 45%",)),
        ({7: 10, 8: 40, "own": 40}, [7, os.getpid()], 0.5, 1, ("process 8 40%", "process 7 (python3) 10%")),
        ({7: 95}, [7, os.getpid()], 0.95, 1, ("process 7 (python3) 95%",)),
        ({7: 95}, [7], 0.0, 1, ()),  # ours, whose number is another in a container
        ({7: 95}, [7, 8], 0.0, 2, ()),
        ({7: 60, 8: 35}, [7, 8], 0.35, 2, ("another process 35%",)),
        ({}, [7, os.getpid()], 0.0, 2, ("process 7 (python3)",)),
        ({}, [7, 8], 0.0, 2, ()),
        ({}, [7], 0.0, 1, ()),
    ],
)
def test_other_programs_are_told_from_this_one(training, driver, shares, running, others, programs, by):
    driver.running = running
    for second in range(4):
        for pid, share in shares.items():
            when = int((WALL + 100.5 + second) * 1e6) + len(driver.shares)  # not quite at the same time
            driver.shares.append((when, os.getpid() if pid == "own" else pid, share))
    training.epoch(400, busy=95)
    training.gpu.look(SHORT, at_once=True)
    assert training.gpu.since(0.0) == Seen(pytest.approx(0.95), True, pytest.approx(others), programs, by)


@pytest.mark.parametrize("lacks", ["the package", "the driver", "the device"])
def test_who_cannot_look_is_quiet_and_does_not_try_again(training, driver, monkeypatch, lacks):
    tried = []
    if lacks == "the package":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    elif lacks == "the driver":
        monkeypatch.setattr(driver, "nvmlInit", lambda: tried.append(1) or 1 / 0)
    else:
        driver.handles.clear()
    training.epoch(300, busy=50)
    assert training.gpu.since(0.0) == Seen()
    assert len(tried) == (lacks == "the driver")
    assert driver.asked == 0


def test_all_transfers_of_a_loader_share_what_the_driver_says():
    state = LoaderState()
    transfers = [Transfer(torch.device("cpu"), None, None, None) for _ in range(3)]
    for transfer in transfers[:2]:
        transfer.clock = SimpleNamespace(recent_s=0.5, totals=Totals)
        state.take_in(transfer)
    state.take_in(transfers[2])  # which has no device
    assert transfers[0].utilization is transfers[1].utilization is state.utilizations[torch.device("cpu")]
    assert transfers[2].utilization is None
    told = []
    transfers[0].utilization = SimpleNamespace(look=told.append)
    transfers[0]._look()
    assert told == [0.5]
    state.utilizations[torch.device("cpu")]._sums.add({"gpu:looks": 2.0, "gpu:busy": 1.5})
    assert state.stats(0).gpu_utilization == 0.75


def test_each_copy_is_an_occasion_to_look(monkeypatch):
    transfer = Transfer(torch.device("cpu"), None, None, None)
    looks = []
    monkeypatch.setattr(transfer, "_look", lambda: looks.append(True))
    transfer.take(transfer.start([torch.zeros(2)]))
    assert looks == [True]


def test_a_driver_that_always_says_0_says_nothing():
    assert make_stats(Totals({"gpu:looks": 9.0, "gpu:busy": 0.0})).gpu_utilization is None
    assert make_stats(Totals()).gpu_utilization is None
    assert make_stats(Totals({"gpu:looks": 4.0, "gpu:busy": 3.0})).gpu_utilization == 0.75
