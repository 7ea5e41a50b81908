"""Statistics: what a batch's backend comes to, and that every engine counts what it does."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import re
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from backends.datasets import Slow
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.bench.photos import PhotoSet, write_photos
from fastload.deferred import content
from fastload.device.normalize import NormalizeTable, TableImages
from fastload.device.timing import _PENDING_MAX, ALL_OF_FIRST, PER_SECOND, DeviceClock
from fastload.device.transfer import DeviceBatch, Transfer, _raw_stream_of
from fastload.loader_state import LoaderState
from fastload.plan import Plan, Step
from fastload.stats import meter as meter_module
from fastload.stats import workers_memory
from fastload.stats.diagnosis import report
from fastload.stats.meter import Meter
from fastload.stats.shared_counters import SharedCounters
from fastload.stats.stats import StageTime, Totals, make_stats
from fastload.stats.verdict import Verdict


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    photos = write_photos(tmp_path_factory.mktemp("photos") / "set", PhotoSet(count=48, classes=2, edge_px=64)).path
    steps = [transforms.RandomResizedCrop(32), transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)]
    return ImageFolder(str(photos), transforms.Compose(steps))


@pytest.fixture
def clock(monkeypatch):
    """The meter's time, which stands still until a test says otherwise."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    found = Clock()
    monkeypatch.setattr(meter_module, "time", found)
    return found


def test_a_wait_is_divided_by_the_stages_of_its_batch(clock):
    counters = SharedCounters(1, 4)
    meter = Meter(counters, 8)
    meter.got(meter.ask(), None)  # the first of the epoch: start-up
    clock.now = 103.0
    asked = meter.ask()
    counters.note(1, 5, fetch=104.0, collate=106.0, made=107.0)
    clock.now = 112.0
    meter.got(asked, 1, [("ipc", 108.0), ("pin", 110.0), ("h2d", 111.5)])
    counts = meter.totals()
    waited = {key.partition(":")[2]: value for key, value in counts.items() if key.startswith("waited:")}
    assert waited == {
        "before": 1.0,
        "fetch": 2.0,
        "collate": 1.0,
        "ipc": 1.0,
        "pin": 2.0,
        "h2d": 1.5,
        "hand-over": 0.5,
    }
    assert (counts["step_s"], counts["wait_s"], counts["asked"]) == (3.0, 9.0, 1)
    assert (counts["batches"], counts["images"], counts["epochs"]) == (2, 8 + 5, 1)
    meter.close()


def test_a_batch_that_was_there_is_not_divided_and_the_end_of_an_epoch_is_no_step(clock):
    meter = Meter(None, 8)
    meter.got(meter.ask(), None)
    clock.now += 1
    asked = meter.ask()
    clock.now += 1e-5
    meter.got(asked, None, [("decode", clock.now)])
    meter.stop()
    clock.now += 1000
    meter.ask()
    counts = meter.totals()
    assert not any(key.startswith("waited:") for key in counts)
    assert counts["step_s"] == 1.0


def test_a_step_at_whose_end_the_device_is_behind_kept_it_busy(clock):
    """Other steps do not: a loop may sleep once and be behind after the others."""
    meter = Meter(None, 8)
    meter.got(meter.ask(), None)
    for step_s, place, wait_s in ((0.01, "gpu", 0.09), (1.0, "gpu", 0.0), (0.3, "decode", 0.5), (0.02, "gpu", 0.08)):
        clock.now += step_s
        asked = meter.ask()
        clock.now += wait_s
        meter.got(asked, None, [(place, clock.now), ("h2d", clock.now)])
    assert meter.totals()["behind_s"] == pytest.approx(0.2)
    stats = make_stats(Totals({**meter.totals(), "device:steps": 4, "device:total_s": 2.0, "device:copies": 4}))
    assert stats.gpu_busy_least == pytest.approx(0.67 / 2.0)  # or inside next(), where the device did not idle
    idle = {"device:steps": 4, "device:total_s": 2.0, "device:idle_s": 1.4, "device:copies": 4}
    assert make_stats(Totals({**meter.totals(), **idle})).gpu_busy_least == pytest.approx(0.2 / 2.0)
    assert make_stats(meter.totals()).gpu_busy_least == 0.0  # there is no device


def test_a_device_that_does_not_idle_while_the_loop_waits_is_busy():
    totals = Totals({"asked": 10, "batches": 11, "step_s": 2.0, "wait_s": 8.0, "waited:fetch": 8.0})
    totals.update({"device:steps": 10, "device:copies": 10, "device:total_s": 10.0, "device:idle_s": 3.0})
    assert make_stats(totals).gpu_busy_least == pytest.approx(0.5)


def test_what_is_ready_is_what_is_made_and_not_taken(clock):
    counters = SharedCounters(2, 4)
    meter = Meter(counters, 8)
    counters.add(0, 0, 3)
    counters.add(1, 0, 1)
    assert meter.ready() == 4
    meter.got(meter.ask(), None)
    assert meter.ready() == 3
    meter.begin_epoch()  # of persistent workers: their counts go on
    assert meter.ready() == 0
    assert Meter(None, 8, waiting=lambda: 2).ready() == 2
    meter.close()


def test_a_part_of_the_statistics_is_their_difference():
    before = make_stats(Totals({"batches": 10, "images": 80, "asked": 9, "step_s": 1.0, "wait_s": 1.0}))
    after = make_stats(
        Totals({"batches": 30, "images": 240, "asked": 29, "step_s": 2.0, "wait_s": 2.0}), missed={"too large": 2}
    )
    part = after.since(before)
    assert (part.batches, part.images, part.stall) == (20, 160, 0.5)
    assert part.images_per_s == pytest.approx(160 / 2.0)
    assert part.consumer_images_per_s == pytest.approx(160 / 1.0)
    assert part.missed == {"too large": 2}
    assert after.since(after).images_per_s == 0.0


def test_the_loaders_rate_is_that_of_its_slowest_stage():
    totals = Totals({"batches": 10, "images": 80, "made:batches": 10, "made:fetch_s": 3.0, "made:collate_s": 1.0})
    assert make_stats(totals, workers=4).loader_images_per_s == pytest.approx(80.0)
    totals.update({"stage:pin:count": 10, "stage:pin:s": 2.0})
    assert make_stats(totals, workers=4).loader_images_per_s == pytest.approx(40.0)
    assert make_stats(Totals()).loader_images_per_s == 0.0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_torchs_iterators_are_counted(workers, persistent):
    if persistent and not workers:
        return
    with FastLoader(
        Slow(48, 0.002), batch_size=8, num_workers=workers, persistent_workers=persistent, device="cpu"
    ) as loader:
        for _ in range(2):
            assert sum(1 for _ in loader) == 6
        stats = loader.stats()
    assert (stats.batches, stats.images, stats.epochs, stats.workers) == (12, 96, 2, workers)
    assert stats.stages["fetch"].count == stats.stages["collate"].count == 12
    assert stats.stages["fetch"].total_s >= 96 * 0.002
    assert stats.stages["collate"].total_s > 0
    assert stats.wait_s > 0
    assert stats.startup_s > 0
    assert sum(stats.waited_for.values()) == pytest.approx(stats.wait_s, rel=0.2)
    assert 0 < stats.images_per_s < 2 * max(1, workers) / 0.002  # some batches were made before the clock started
    assert 0 < stats.loader_images_per_s < 1.01 * max(1, workers) / 0.002
    assert stats.consumer_images_per_s > stats.images_per_s


def test_pixels_made_before_a_fork_are_no_workers_time(monkeypatch):
    monkeypatch.setattr(content, "_painted_s", 100.0)
    with FastLoader(Slow(16, 0.002), batch_size=8, num_workers=1, device="cpu") as loader:
        assert sum(1 for _ in loader) == 2
        stages = loader.stats().stages
    assert 0 < stages["collate"].total_s < 100
    assert stages["fetch"].total_s < 100


def test_the_report_says_what_workers_hold_while_there_are_some(monkeypatch):
    """A process's memory is read for a report, and at no other time."""
    asked = []
    held = {"rss": 3 * 10**9, "pss": 10**9}
    monkeypatch.setattr(workers_memory, "process_memory", lambda pid: asked.append(pid) or tuple(held.values()))
    with FastLoader(Slow(16, 0.0), batch_size=4, num_workers=2, device="cpu") as loader:
        for number, _ in enumerate(loader):
            if number == 1:
                assert asked == []
                report = loader.report()
        assert len(set(asked)) == len(asked) == 2
        assert os.getpid() not in asked
        line = str(report).splitlines()[-1]
        assert line.startswith(
            "  2 workers hold 2.00 GB of memory, the largest 1.00 (PSS, of pages shared with others a part; 6.00 GB"
        )
        assert line.strip() in report._repr_html_()
        assert loader.report().memory is None, "they have ended"
    assert len(asked) == 2


@pytest.mark.parametrize("persistent", [False, True])
def test_the_native_engine_counts_every_stage_that_it_has(folder, persistent):
    begun = time.monotonic()
    with FastLoader(folder, batch_size=8, num_workers=2, persistent_workers=persistent, device="cpu") as loader:
        for _ in range(2):
            assert sum(1 for _ in loader) == 6
        stats = loader.stats()
        assert loader.plan.engine == "native"
    elapsed_s = time.monotonic() - begun
    assert (stats.batches, stats.images, stats.epochs) == (12, 96, 2)
    assert list(stats.stages) == ["fetch", "decode", "collate", "epilogue"]
    assert {stage.count for stage in stats.stages.values()} == {12}
    threads = {"fetch": 2, "decode": 2, "collate": 1, "epilogue": 1}
    assert all(0 < stage.total_s < threads[name] * elapsed_s for name, stage in stats.stages.items())
    assert stats.stages["decode"].total_s > stats.stages["fetch"].total_s / 4  # which are close for images this small
    assert stats.loader_images_per_s > 0


def test_samples_made_in_python_are_counted_by_the_batches_that_had_any(tmp_path):
    (tmp_path / "of-one-class").mkdir()
    for number in range(24):
        suffix = "bmp" if number in (3, 5, 17) else "jpg"
        Image.new("RGB", (40, 40)).save(tmp_path / "of-one-class" / f"{number:02}.{suffix}")
    dataset = ImageFolder(str(tmp_path), transforms.Compose([transforms.Resize((32, 32)), transforms.PILToTensor()]))
    with FastLoader(dataset, batch_size=8, num_workers=2, engine="native", device="cpu") as loader:
        assert sum(1 for _ in loader) == 3
        stats = loader.stats()
    assert list(stats.stages) == ["fetch", "decode", "python", "collate", "epilogue"]
    assert [stats.stages[name].count for name in stats.stages] == [3, 3, 2, 3, 3]
    python = stats.stages["python"]
    assert 0 < stats.loader_images_per_s <= 24 / python.total_s


def test_batches_that_the_native_engine_has_ready_are_seen(folder):
    with FastLoader(folder, batch_size=8, num_workers=2, device="cpu") as loader:
        iterator = iter(loader)
        next(iterator)
        pipeline = iterator.decode_pipeline
        assert pipeline.first().ready.acquire(timeout=30)
        stats = loader.stats()
        assert stats.queues == {"ready": 1, "device": 0}
        assert stats.batches_held == 1
        assert sum(1 for _ in iterator) == 5
        assert pipeline.ready == 0
        assert loader.stats().ready_mean > 0


def test_statistics_are_asked_for_outside_the_loaders_lock():
    """The collector may end an iterator under a transfer's lock: two locks in two orders."""
    state = LoaderState()

    def totals():
        taken = []
        other = threading.Thread(target=lambda: taken.append(state._lock.acquire(timeout=60)))
        other.start()
        other.join()
        assert taken == [True]
        state._lock = threading.RLock()  # the other thread's end does not let go of it
        return Totals({"copied": 1.0})

    transfer = SimpleNamespace(totals=totals, clock=None)
    state.take_in(transfer)
    assert state.stats(0).copied == 1
    state.retire(transfer)
    assert state.stats(0).copied == 1


def test_epochs_of_both_engines_add_up():
    totals = Totals({"made:batches": 2, "made:fetch_s": 1.0, "made:collate_s": 1.0})
    totals.update({"stage:fetch:count": 3, "stage:fetch:s": 2.0})
    assert make_stats(totals).stages["fetch"] == StageTime(5, 3.0)


def test_pixels_cross_the_link_before_their_epilogue(monkeypatch):
    """Else the device's clock would count the lookup as a part of the copy."""
    order = []
    pixels = torch.randint(0, 256, (2, 4, 4, 3), dtype=torch.uint8)
    images = TableImages(pixels, NormalizeTable(torch.randn(3, 256)), torch.channels_last)
    copied = images.copy_pixels(torch.device("cpu"))
    assert torch.equal(copied.images(), images.to(torch.device("cpu")))
    real = type(copied).images
    monkeypatch.setattr(type(copied), "images", lambda self: order.append("images") or real(self))
    transfer = Transfer(torch.device("cpu"), None, None, None)
    monkeypatch.setattr(transfer, "clock", Recorder(order))
    moved = transfer.take(transfer.start([images]))
    assert torch.equal(moved[0], real(copied))
    assert order == ["began", "copied", "images"]


class Recorder:
    """Stands for a device's clock, and says when it is asked for what."""

    def __init__(self, order):
        self.order = order
        self.names = iter(["copied", "ready"])

    def begin(self, stream):
        self.order.append("began")
        return type("Timing", (), {"is_timed": True})()

    def event(self):
        name, order = next(self.names), self.order
        return type("Event", (), {"record": lambda self, stream: order.append(name)})()


class Event:
    """One of a device whose time is counted in ms."""

    def __init__(self, device):
        self.device, self.at = device, None

    def record(self, stream=None):
        self.at = self.device.now

    def query(self):
        return self.at is not None and self.at <= self.device.done

    def elapsed_time(self, other):
        if not (self.query() and other.query()):
            raise RuntimeError("both events must have completed")
        return other.at - self.at


class Device:
    """Stands for ``torch.cuda``."""

    now = 0.0
    done = float("inf")

    def Event(self, **_):
        return Event(self)


def one_step(device, clock, *, copy_ms, epilogue_ms, step_ms, idle_ms=0.0, same_stream=True):
    """Copy a batch, then run a step; the device does one at a time."""
    timing = clock.begin(None)
    device.now += idle_ms + copy_ms
    if timing.is_timed:
        timing.nbytes, timing.copied = 100, clock.event()
        timing.copied.record()
    device.now += epilogue_ms
    if timing.is_timed:
        timing.ready = clock.event()
        timing.ready.record()
    clock.handed(timing, same_stream=same_stream)
    device.now += step_ms
    end = clock.event()
    end.record()
    clock.step_ended(end)


def test_the_devices_clock_tells_idling_from_copying():
    device = Device()
    clock = DeviceClock(device)
    for _ in range(4):
        one_step(device, clock, copy_ms=3.0, epilogue_ms=1.0, step_ms=10.0, idle_ms=0.0)
    times = make_stats(clock.totals()).device
    assert (times.steps, times.copies, times.copied_bytes) == (3, 4, 400)  # the first step has no beginning
    assert times.total_s == pytest.approx(3 * 14e-3)
    assert times.idle_s == pytest.approx(3 * 4e-3)
    assert times.copying_s == pytest.approx(3 * 4e-3)
    stages = make_stats(clock.totals()).stages
    assert stages["h2d"].mean_s == pytest.approx(3e-3)
    assert stages["epilogue"].mean_s == pytest.approx(1e-3)


def test_the_consumers_thread_reckons_nothing_up(monkeypatch):
    """The consumer's time is the training loop's; the thread that begins a copy has spare."""
    device = Device()
    clock = DeviceClock(device)
    step_ended = clock.step_ended

    def watched(end):
        with monkeypatch.context() as patched:
            for look in ("query", "elapsed_time"):
                patched.setattr(Event, look, lambda *_: pytest.fail("the consumer's thread reads events"))
            step_ended(end)

    monkeypatch.setattr(clock, "step_ended", watched)
    for _ in range(3):
        one_step(device, clock, copy_ms=3.0, epilogue_ms=1.0, step_ms=10.0)
    assert clock._sums["device:copies"] == 2  # the third, when a fourth is begun
    clock.begin(None)
    assert clock._sums["device:copies"] == 3


def test_steps_that_never_end_do_not_pile_up(monkeypatch):
    device = Device()
    device.done = -1.0
    clock = of_its_time(monkeypatch, device)
    for _ in range(_PENDING_MAX + 20):
        one_step(device, clock, copy_ms=1.0, epilogue_ms=0.0, step_ms=100.0)
    assert len(clock._pending) == _PENDING_MAX


def test_what_was_known_of_a_device_that_fails_is_still_known(monkeypatch):
    """Statistics matter most after a failure; a forked child cannot ask the device."""
    device = Device()
    clock = DeviceClock(device)
    for _ in range(3):
        one_step(device, clock, copy_ms=3.0, epilogue_ms=1.0, step_ms=10.0)

    def fail(event):
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(Event, "query", fail)
    assert clock.totals()["device:copies"] == 2
    clock._pending.append((None, clock.begin(None), Event(device)))
    with pytest.raises(RuntimeError, match="device-side assert"):
        clock.begin(None)


def test_a_clock_may_be_asked_while_it_reckons(monkeypatch):
    """The collector may ask for an iterator's totals in a thread that holds the lock."""
    device = Device()
    clock = DeviceClock(device)
    for _ in range(3):
        one_step(device, clock, copy_ms=3.0, epilogue_ms=1.0, step_ms=10.0)
    query, asked = Event.query, []

    def collect(event):
        if not asked:
            asked.append(True)
            clock.totals()
        return query(event)

    monkeypatch.setattr(Event, "query", collect)
    assert clock.totals()["device:copies"] == 3
    assert asked


def of_its_time(monkeypatch, device):
    """Let the host's clock go with the device's."""
    monkeypatch.setattr("fastload.device.timing.time.monotonic", lambda: 1.0 + device.now * 1e-3)
    return DeviceClock(device)


@pytest.mark.parametrize("step_ms", [1.0, 9.0])
def test_so_many_batches_are_timed_per_second(monkeypatch, step_ms):
    device = Device()
    clock = of_its_time(monkeypatch, device)
    while device.now < 10_000:
        one_step(device, clock, copy_ms=1.0, epilogue_ms=0.0, step_ms=step_ms)
    assert clock.totals()["device:copies"] - ALL_OF_FIRST == pytest.approx(10 * PER_SECOND, abs=8)


def test_batches_that_are_far_apart_are_all_timed(monkeypatch):
    device = Device()
    clock = of_its_time(monkeypatch, device)
    for _ in range(ALL_OF_FIRST + 20):
        one_step(device, clock, copy_ms=1.0, epilogue_ms=0.0, step_ms=100.0)
    assert clock.totals()["device:copies"] == ALL_OF_FIRST + 20


def test_a_pause_does_not_make_quick_batches_rare(monkeypatch):
    device = Device()
    clock = of_its_time(monkeypatch, device)
    for number in range(1000):
        one_step(device, clock, copy_ms=1.0, epilogue_ms=0.0, step_ms=600_000.0 if number == 500 else 1.0)
    assert clock.totals()["device:copies"] == pytest.approx(ALL_OF_FIRST + (2.0 + 1.0) * PER_SECOND, abs=16)


def test_slow_steps_at_first_do_not_stand_for_all(monkeypatch):
    """First steps capture graphs and choose kernels, and are all timed; few later ones are."""
    device = Device()
    clock = of_its_time(monkeypatch, device)
    for number in range(5000):
        one_step(
            device,
            clock,
            copy_ms=0.0,
            epilogue_ms=0.0,
            step_ms=250.0 if 1 <= number <= 3 else 1.0,
            idle_ms=number % 2 * 2.0,
        )
    times = make_stats(clock.totals()).device
    assert times.steps == pytest.approx(5000, rel=0.1)
    assert times.total_s == pytest.approx(device.now * 1e-3, rel=0.15)
    assert times.idle_s == pytest.approx(5.0, rel=0.2)


def test_batches_that_leave_in_another_order_than_they_were_copied_in_are_steps_as_well(monkeypatch):
    device = Device()
    clock = of_its_time(monkeypatch, device)
    begun = [clock.begin(None) for _ in range(3)]
    for timing in reversed(begun):  # each is there long before its turn, but for the first
        device.now += 5.0
        timing.copied, timing.ready = clock.event(), clock.event()
        timing.copied.record()
        timing.ready.record()
    for timing in reversed(begun):
        clock.handed(timing)
        device.now += 10.0
        end = clock.event()
        end.record()
        clock.step_ended(end)
    times = make_stats(clock.totals()).device
    assert (times.steps, times.total_s, times.idle_s) == (2, pytest.approx(20e-3), 0.0)


def test_copies_that_are_not_timed_take_no_timed_events(monkeypatch):
    device = Device()
    made = []
    device.Event = lambda **_: made.append(Event(device)) or made[-1]
    clock = of_its_time(monkeypatch, device)
    for _ in range(ALL_OF_FIRST + 400):
        one_step(device, clock, copy_ms=1.0, epilogue_ms=0.0, step_ms=1.0)
    steps = ALL_OF_FIRST + 400
    assert len(made) - steps <= 3 * clock.totals()["device:copies"] <= 3 * (ALL_OF_FIRST + 30)
    assert clock.totals()["device:steps"] == pytest.approx(steps, rel=0.1)


@pytest.mark.parametrize("phase", range(8))
def test_a_wait_for_one_worker_of_eight_is_seen(monkeypatch, phase):
    device = Device()
    clock = of_its_time(monkeypatch, device)
    for number in range(2000):
        one_step(device, clock, copy_ms=0.0, epilogue_ms=0.0, step_ms=1.0, idle_ms=24.0 * (number % 8 == phase))
    times = make_stats(clock.totals()).device
    assert times.idle_s / times.total_s == pytest.approx(0.75, abs=0.15)


def test_a_step_that_began_on_another_stream_is_left_out():
    device = Device()
    clock = DeviceClock(device)
    one_step(device, clock, copy_ms=1.0, epilogue_ms=0.0, step_ms=1.0)
    one_step(device, clock, copy_ms=1.0, epilogue_ms=0.0, step_ms=1.0, same_stream=False)
    assert (clock.totals()["device:copies"], clock.totals()["device:steps"]) == (2, 0)
    one_step(device, clock, copy_ms=1.0, epilogue_ms=0.0, step_ms=1.0)
    assert (clock.totals()["device:copies"], clock.totals()["device:steps"]) == (3, 1)


class Stream:
    """One of the consumer's: two objects may stand for the same."""

    def __init__(self, address):
        self.cuda_stream = address

    def __eq__(self, other):
        return self.cuda_stream == other.cuda_stream

    __hash__ = None


def takes_on(transfer, address, *, in_short):
    """Give a batch to a consumer on the stream at ``address``; return what protects it."""
    protected = []
    leaf = SimpleNamespace(record_stream=protected.append)
    transfer._stream = "copies"
    transfer._raw_stream = (lambda: address) if in_short else None
    transfer._module = SimpleNamespace(current_stream=lambda device: Stream(address))
    batch = DeviceBatch("data", [leaf], None, transfer._usual, False, 0)
    batch.timing = object()
    assert transfer.take(batch) == "data"
    assert transfer._consumer.cuda_stream == address
    return [stream.cuda_stream for stream in protected]


@pytest.mark.parametrize("in_short", [True, False], ids=["by its address", "by another object"])
def test_it_is_noticed_when_the_consumer_changes_its_stream(in_short):
    told = []
    transfer = Transfer(torch.device("cpu"), None, None, None)
    transfer.clock = SimpleNamespace(handed=lambda timing, *, same_stream: told.append(same_stream))
    protected = [takes_on(transfer, address, in_short=in_short) for address in (0, 0, 2, 2, 0)]
    assert told == [True, True, False, True, False]
    assert protected == [[0], [], [2], [], [0]]  # once for each stream that takes it


def test_no_object_is_made_of_a_stream_that_is_known(monkeypatch):
    transfer = Transfer(torch.device("cpu"), None, None, None)
    made = []
    monkeypatch.setattr(Stream, "__init__", lambda self, address: made.append(vars(self).update(cuda_stream=address)))
    for address in (0, 0, 0, 2, 2):
        takes_on(transfer, address, in_short=True)
    assert len(made) == 2


def test_whoever_copies_makes_the_events_that_end_steps():
    """Making events is expensive, and would delay the training loop; no two steps share one."""
    device = Device()
    device.Event = lambda **_: made.append(RecordedEvent()) or made[-1]
    made = []
    transfer = Transfer(torch.device("cpu"), None, None, None)
    transfer._stream, transfer._module = "copies", device
    for count in (2, 4, 6):
        transfer._prepare_ends()
        transfer._prepare_ends()
        assert len(made) == count
        assert [event.stream for event in transfer._ends] == ["copies"] * 2  # CUDA makes them when they are recorded
        for _ in range(2):
            transfer._consumer = "the consumer's"
            transfer.mark_step()
        assert len(made) == count
    assert list(transfer._unfinished) == made
    transfer._consumer = "the consumer's"
    transfer.mark_step()  # nothing was copied meanwhile
    assert len(set(transfer._unfinished)) == 7
    assert [event.stream for event in made] == ["the consumer's"] * 7


def test_every_copy_leaves_enough_of_them():
    transfer = Transfer(torch.device("cpu"), None, None, None)
    transfer._stream = "copies"
    transfer._module = SimpleNamespace(stream=lambda stream: nullcontext(), Event=RecordedEvent)
    for _ in range(3):
        transfer.start([torch.zeros(2)])
        assert len(transfer._ends) == 2
        transfer._ends.popleft()


def test_the_address_is_that_of_the_devices_stream(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 100 + index, raising=False)
    assert _raw_stream_of(torch.device("cuda", 1))() == 101
    assert _raw_stream_of(torch.device("cpu")) is None
    monkeypatch.delattr(torch._C, "_cuda_getCurrentRawStream")
    assert _raw_stream_of(torch.device("cuda", 1)) is None


class RecordedEvent:
    """Knows the stream that it was recorded on last."""

    stream = None

    def record(self, stream):
        self.stream = stream


def test_what_comes_between_two_epochs_is_no_step():
    device = Device()
    clock = DeviceClock(device)
    one_step(device, clock, copy_ms=1.0, epilogue_ms=0.0, step_ms=1.0)
    device.now += 1000.0
    clock.begin_epoch()
    one_step(device, clock, copy_ms=1.0, epilogue_ms=0.0, step_ms=1.0)
    assert (clock.totals()["device:copies"], clock.totals()["device:steps"]) == (2, 0)


def test_what_comes_after_an_epoch_that_was_broken_off_is_no_step():
    """With persistent workers, the next epoch's first ``next()`` marks the last batch's step."""
    device = Device()
    clock = DeviceClock(device)
    one_step(device, clock, copy_ms=1.0, epilogue_ms=0.0, step_ms=1.0)
    clock.handed(clock.begin(None))
    clock.begin_epoch()
    end = clock.event()
    end.record()
    clock.step_ended(end)
    device.now += 5000.0  # the start of an epoch
    one_step(device, clock, copy_ms=1.0, epilogue_ms=0.0, step_ms=1.0)
    assert clock.totals()["device:steps"] == 0
    one_step(device, clock, copy_ms=1.0, epilogue_ms=0.0, step_ms=1.0)
    assert clock.totals()["device:steps"] == 1


def full():
    """Statistics with something in each of their parts."""
    sums = {"batches": 101, "images": 808, "epochs": 1, "asked": 100, "step_s": 4.0, "wait_s": 6.0, "behind_s": 1.0}
    waited = {"waited:decode": 4.5, "waited:hand-over": 0.5, "waited:gpu": 1.0}
    device = {"device:copies": 100, "device:copied_bytes": 10**6, "device:steps": 100, "device:total_s": 10.0}
    stages = {"stage:decode:count": 100, "stage:decode:s": 4.0, "gpu:looks": 4, "gpu:busy": 2.0}
    totals = Totals(sums | waited | device | stages | {"device:idle_s": 7.0})
    missed = {"a batch of another size": 2, "no free slot": 3}
    return make_stats(totals, workers=2, missed=missed, queues={"ready": 2}, places=(("a.py:1",), (), (), ()))


RESULTS = {
    "stats": full,
    "report": lambda: report(full()),
    "plan": lambda: Plan("native", torch.device("cpu"), (Step("h2d", "copy stream", "ahead"),), 1024, ("a note",)),
}


@pytest.mark.parametrize("made", RESULTS.values(), ids=RESULTS)
def test_results_leave_the_process(made):
    result = made()
    for copied in (pickle.loads(pickle.dumps(result)), copy.copy(result), copy.deepcopy(result)):
        assert copied == result
        assert (str(copied), copied.to_dict()) == (str(result), result.to_dict())
    assert dataclasses.asdict(result).keys() == {each.name for each in dataclasses.fields(result)}
    plain = result.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain  # so it has no tuples, enums or other keys


def test_statistics_of_another_process_may_be_subtracted():
    stats = pickle.loads(pickle.dumps(full()))
    assert stats.since(pickle.loads(pickle.dumps(make_stats(Totals({"batches": 1}))))).batches == 100


def test_a_dictionary_has_the_figures_that_follow_and_their_units():
    plain = full().to_dict()
    assert plain["images_per_s"] == pytest.approx(80)
    assert plain["waited_for_s"] == {"decode": 4.5, "hand-over": 0.5, "gpu": 1.0}
    assert plain["stages"]["decode"] == {"count": 100, "total_s": 4.0, "mean_s": 0.04}
    assert plain["device"]["copied_bytes"] == 10**6
    assert plain["fetch"]["waits_at"] == ["a.py:1"]
    assert "totals" not in plain
    judged = report(full())
    assert judged.to_dict()["shares"] == {which.value: share for which, share in judged.shares.items()} != {}
    assert Verdict.from_dict(json.loads(json.dumps(judged.verdict.to_dict()))) == judged.verdict
    assert RESULTS["plan"]().to_dict()["device"] == "cpu"


def test_scalars_are_all_numbers_by_flat_names():
    stats = full()
    scalars = stats.scalars()
    assert all(type(value) is float for value in scalars.values())
    assert scalars["fastload/loader_stall"] == stats.device_stall == pytest.approx(0.7)
    assert scalars["fastload/batch_stall"] == pytest.approx(0.5)
    assert scalars["fastload/missed"] == 5
    assert scalars["fastload/waited_for_s/hand_over"] == 0.5
    assert "fastload/gpu_decode_cost_s" not in scalars  # not measured
    assert "fastload/gpu_decode_is_compared" not in scalars  # no number
    prometheus = stats.scalars(separator="_")
    assert prometheus["fastload_stages_decode_mean_s"] == scalars["fastload/stages/decode/mean_s"] == 0.04
    assert [name for name in prometheus if not re.fullmatch(r"[a-z][a-z0-9_]*", name)] == []
    assert len(prometheus) == len(scalars)


def test_names_of_the_documentation_are_scalars():
    page = Path(__file__).parents[2] / "docs" / "monitoring.md"
    if not page.is_file():
        pytest.skip("tests of a checkout")
    named = set(re.findall(r"`(fastload/\w[\w/]*)`(?=.*\|.*\|)", page.read_text()))
    assert len(named) > 15
    assert named <= set(full().scalars())


@pytest.mark.parametrize("ends", ["first", "second"])
def test_an_iterator_that_the_collector_ends_while_counts_are_added_up_is_counted_once(ends):
    meters, shared = meter_module.Meters(), [SharedCounters(2, 4), SharedCounters(2, 4)]
    retire = [meters.open(Meter(one, 4)) for one in shared]
    for one in shared:
        one.add(0, 1, 5.0)  # images

    class Ends(list):
        """The first meter's figures, which end an iterator once they are read."""

        def __getitem__(self, index):
            retire[ends == "second"]()
            return list.__getitem__(self, index)

    figures = Ends(shared[0]._figures)
    figures.release = shared[0]._figures.release
    shared[0]._figures = figures
    assert meters.totals()["made:images"] == 10
    assert meters.totals()["made:images"] == 10
    assert shared[ends == "second"]._descriptor == -1, "closed"
    for one in retire:
        one()
    assert meters.totals()["made:images"] == 10
    assert [one._descriptor for one in shared] == [-1, -1]
