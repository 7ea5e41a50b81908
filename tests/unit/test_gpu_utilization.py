"""Test how GPU utilization is read from the driver, and when it is rejected."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from fastload.device.transfer import Transfer
from fastload.stats import gpu_utilization
from fastload.stats.gpu_utilization import EVERY_S, Utilization
from fastload.stats.stats import Totals, make_stats

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
        self.samples = [(number, 5) for number in range(1, 20)]  # of what was before: when, and per cent
        self.has_samples = True
        self.rate = 40
        self.asked = 0

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


@pytest.fixture
def clock(monkeypatch):
    found = SimpleNamespace(now=100.0)
    monkeypatch.setattr(gpu_utilization, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


@pytest.fixture
def gpu(driver, clock):
    return Utilization(torch.device("cuda", 0))


def test_every_sample_counts_once_and_none_from_before(gpu, driver, clock):
    assert gpu.look(SHORT) == (0, 0.0)
    clock.now += EVERY_S
    driver.samples += [(20, 70), (21, 80)]
    assert gpu.look(SHORT) == (2, pytest.approx(1.5))
    clock.now += EVERY_S
    assert gpu.look(SHORT) == (0, 0.0)  # nothing new
    clock.now += EVERY_S
    driver.samples.append((22, 90))
    assert gpu.look(SHORT) == (1, pytest.approx(0.9))


def test_the_driver_is_asked_once_a_second(gpu, driver, clock):
    for _ in range(100):
        gpu.look(SHORT)
        clock.now += EVERY_S / 50
    assert driver.asked == 2


def test_what_is_between_two_epochs_is_not_of_the_loop(gpu, driver, clock):
    gpu.look(SHORT)
    clock.now += EVERY_S
    driver.samples.append((30, 99))  # a validation
    gpu.begin_epoch()
    assert gpu.look(SHORT) == (0, 0.0)
    clock.now += EVERY_S
    driver.samples.append((31, 50))
    assert gpu.look(SHORT) == (1, 0.5)


def test_a_rate_stands_in_for_samples_where_steps_are_short(gpu, driver, clock):
    driver.has_samples = False
    assert gpu.look(SHORT) == (0, 0.0)
    clock.now += EVERY_S
    assert gpu.look(SHORT) == (1, 0.4)
    clock.now += EVERY_S
    assert gpu.look(2.0) == (0, 0.0)  # always of the same part of a step


@pytest.mark.parametrize("lacks", ["the package", "the driver", "the device"])
def test_who_cannot_look_is_quiet_and_does_not_try_again(gpu, driver, clock, monkeypatch, lacks):
    tried = []
    if lacks == "the package":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    elif lacks == "the driver":
        monkeypatch.setattr(driver, "nvmlInit", lambda: tried.append(1) or 1 / 0)
    else:
        driver.handles.clear()
    for _ in range(3):
        assert gpu.look(SHORT) == (0, 0.0)
        clock.now += EVERY_S
    assert len(tried) == (lacks == "the driver")
    assert driver.asked == 0


def test_a_transfer_looks_outside_the_lock_that_its_consumer_takes():
    transfer = Transfer(torch.device("cpu"), None, None, None)
    transfer.clock = SimpleNamespace(recent_s=0.5, totals=Totals, begin_epoch=lambda: None)

    def look(between_s):
        taken = []
        other = threading.Thread(target=lambda: taken.append(transfer._lock.acquire(timeout=60)))
        other.start()
        other.join()
        assert (taken, between_s) == ([True], 0.5)
        transfer._lock = threading.RLock()  # the other thread's end does not let go of it
        return 2, 1.5

    begun = []
    transfer._utilization = SimpleNamespace(look=look, begin_epoch=lambda: begun.append(True))
    transfer._look()
    assert make_stats(transfer.totals()).gpu_utilization == 0.75
    transfer.begin_epoch()
    assert begun == [True]


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
