"""What statistics say of batches that go to a real GPU, through either engine."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastload import FastLoader, prefetch_to_device
from fastload.bench.photos import PhotoSet, write_photos
from fastload.commands.tune import tune
from fastload.stats.verdict import BUSY_MIN, Bottleneck

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    photos = write_photos(tmp_path_factory.mktemp("photos") / "set", PhotoSet(count=64, classes=2, edge_px=64)).path
    steps = [transforms.RandomResizedCrop(64), transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)]
    return ImageFolder(str(photos), transforms.Compose(steps))


def compute(batch) -> None:
    """A step of a few milliseconds."""
    torch.cuda._sleep(5_000_000)


@pytest.mark.parametrize(
    ("engine", "stages"),
    [
        ("native", {"fetch", "decode", "collate", "h2d", "epilogue"}),
        ("torch", {"fetch", "collate", "pin", "h2d", "epilogue"}),
        ("auto without its plan", {"fetch", "collate", "h2d", "epilogue"}),
    ],
)
def test_every_stage_of_an_engine_takes_time(folder, engine, stages):
    dataset = folder
    if engine == "auto without its plan":  # worker processes that write into slots
        engine, dataset = "auto", [(torch.zeros(3, 64, 64), number) for number in range(64)]
    with FastLoader(dataset, batch_size=4, num_workers=2, engine=engine, device="cuda") as loader:
        for _ in range(2):
            for batch in loader:
                compute(batch)
        torch.cuda.synchronize()
        stats = loader.stats()
    assert (stats.batches, stats.images) == (32, 128)
    assert stages <= set(stats.stages)
    assert all(stats.stages[name].total_s > 0 for name in stages), stats.stages
    assert stats.device is not None
    assert stats.device.steps > 0
    assert 0 <= stats.device_stall <= 1
    assert stats.device.copied_bytes > 0


def test_pixels_and_their_lookup_are_told_apart(folder):
    """What threads decode is copied as uint8; the lookup is the epilogue."""
    with FastLoader(folder, batch_size=16, num_workers=2, engine="native", decode="cpu", device="cuda") as loader:
        for batch in loader:
            compute(batch)
        torch.cuda.synchronize()
        list(loader)
        stats = loader.stats()
    assert stats.device.copied_bytes / stats.device.copies == pytest.approx(16 * (64 * 64 * 3 + 8))
    assert stats.stages["epilogue"].mean_s > 1e-6


@pytest.mark.parametrize("door", ["FastLoader", "prefetch_to_device"])
@pytest.mark.parametrize("waits", [False, True], ids=["host ahead", "GPU ahead"])
def test_the_consumers_thread_makes_no_events(folder, monkeypatch, door, waits):
    """They are dear to make, and its time is that of the training loop."""
    makers = []
    real = torch.cuda.Event
    monkeypatch.setattr(torch.cuda, "Event", lambda **how: makers.append(threading.current_thread()) or real(**how))
    loader = FastLoader(folder, batch_size=4, num_workers=2, engine="native", device="cuda")
    pinned = [torch.zeros(4, 3, 64, 64).pin_memory() for _ in range(16)]
    for batch in loader if door == "FastLoader" else prefetch_to_device(pinned, "cuda"):
        compute(batch)
        if waits:
            torch.cuda.synchronize()
    loader.close()
    assert len(makers) > 16
    assert threading.main_thread() not in makers


def test_the_number_of_workers_is_found_on_a_gpu(folder):
    with FastLoader(folder, batch_size=8, num_workers=1, device="cuda") as loader:
        tuning = tune(loader, compute, seconds=0.2, most=2)
    assert tuning.engine == "native"
    assert tuning.looks[-1].workers in (1, 2)
    assert all(0 <= look.wait_share <= 1.01 and look.images_per_s > 0 for look in tuning.looks)


def test_what_sizes_the_threads_reads_the_clock_of_the_device(folder):
    with FastLoader(folder, batch_size=8, num_workers="auto", engine="native", device="cuda") as loader:
        iterator = iter(loader)
        for batch in iterator:
            compute(batch)
        torch.cuda.synchronize()
        steps, total_s, _ = iterator._host._sizer._device_steps()
    assert steps > 0
    assert total_s / steps > 1e-3


def used_by_others():
    """Return the share of time in which others' kernels run on the GPU."""
    import pynvml

    torch.cuda.synchronize()
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
    shares = []
    for _ in range(10):
        time.sleep(0.2)
        shares.append(pynvml.nvmlDeviceGetUtilizationRates(device).gpu / 100)
    return sum(shares[5:]) / 5  # the driver's figure is of the last second


@pytest.mark.parametrize("sleeps", [False, True])
def test_the_driver_tells_a_busy_gpu_from_an_idle_one(sleeps):
    """In each step the loop synchronizes, so that nothing else does."""
    pytest.importorskip("pynvml")
    if sleeps and used_by_others() > 0.3:
        pytest.skip("other programs use this GPU")
    dataset = [(torch.zeros(3, 64, 64), 0)] * 1_000_000
    square = torch.randn(4096, 4096, device="cuda")
    with FastLoader(dataset, batch_size=4, num_workers=2, device="cuda") as loader:
        until = time.monotonic() + 4.0
        for _ in loader:
            began = time.monotonic()
            for _ in range(16):  # some 40 ms, beside which launching and waiting are short
                square @ square
            torch.cuda.synchronize()
            if sleeps:
                time.sleep(2 * (time.monotonic() - began))
            if time.monotonic() > until:
                break
        report = loader.report()
    assert report.stats.gpu_utilization is not None, "asked once a second, for four"
    assert (report.stats.gpu_utilization < 0.6) is sleeps, report
    over = report.stats.gpu_utilization - BUSY_MIN  # negative if other programs keep this one off the processor
    if abs(over) > 0.03:  # to which the GPU's waits for batches are added
        assert report.verdict.bottleneck is (Bottleneck.GPU if over > 0 else Bottleneck.LOOP), report
