"""GPU memory and the largest batch that fits, on a stub of a device."""

from __future__ import annotations

import json

import pytest
import torch

from fastload.memory.gpu import SPARE, GpuMemory, fit_line, gpu_memory, largest_batch

GB = 10**9


class Device:
    """Stands for a GPU whose training step takes ``fixed`` bytes and ``each`` a sample."""

    def __init__(self, monkeypatch, fixed=2 * GB, each=GB // 100, free=10 * GB, reserved=3 * GB):
        self.fixed, self.each, self.first = fixed, each, True
        self.allocated, self.peak, self.sizes = 0, 0, []
        stubs = {
            "mem_get_info": lambda _: (free, 20 * GB),
            "memory_allocated": lambda _: self.allocated,
            "memory_reserved": lambda _: reserved,
            "max_memory_allocated": lambda _: self.peak,
            "max_memory_reserved": lambda _: reserved,
            "reset_peak_memory_stats": lambda _: setattr(self, "peak", 0),
            "synchronize": lambda _: None,
        }
        for name, stub in stubs.items():
            monkeypatch.setattr(torch.cuda, name, stub)

    def train(self, size):
        self.sizes.append(size)
        # The optimizer's state comes with the first step, after activations are freed.
        state, self.first = (0 if self.first else GB), False
        self.peak = max(self.peak, self.fixed + state + self.each * size)


def test_what_torch_holds_and_what_the_driver_says(monkeypatch):
    device = Device(monkeypatch)
    device.allocated, device.peak = GB, 2 * GB
    memory = gpu_memory()
    assert (memory.other_bytes, memory.room_bytes) == (7 * GB, 13 * GB)
    assert str(memory) == (
        "2.0 GB allocated at most (1.0 now), 3.0 reserved; the driver says 10.0 of 20.0 GB are used, 7.0 beyond torch's"
    )
    assert GpuMemory.from_dict(json.loads(json.dumps(memory.to_dict()))) == memory


def test_two_steps_say_the_largest_batch_that_fits(monkeypatch):
    device = Device(monkeypatch)
    fit = largest_batch(device.train, (64, 32))
    assert device.sizes == [32, 32, 64, 64], "each size twice: the first step allocates the optimizer's state"
    assert fit.fixed_bytes == pytest.approx(3 * GB)
    assert fit.bytes_per_sample == pytest.approx(GB / 100)
    room = 13 * GB * (1 - SPARE)
    assert fit.largest == int((room - 3 * GB) / (GB / 100)) == 935
    device.peak = 0
    device.train(fit.largest)
    assert device.peak <= room < device.peak + device.each
    assert str(fit).startswith("batches of up to 935 samples fit: 3.0 GB and 10.0 MB a sample in 13.0 GB, 5% left free")


def test_a_model_that_does_not_fit_has_no_batch(monkeypatch):
    assert largest_batch(Device(monkeypatch, free=0, reserved=GB).train, (1, 2)).largest == 0


@pytest.mark.parametrize("sizes", [(8, 8), (0, 8), (-1, 8)])
def test_sizes_that_make_no_line_are_refused_before_a_step(monkeypatch, sizes):
    device = Device(monkeypatch)
    with pytest.raises(ValueError, match="sizes must be two different batch sizes of at least 1, got"):
        largest_batch(device.train, sizes)
    assert device.sizes == []


@pytest.mark.parametrize(
    ("peaks", "message"),
    [
        ({8: GB}, "peaks must be of at least two batch sizes, got 1; measure another"),
        ({8: GB, 16: GB}, "batches of 16 take no more memory than of 8 .* measure sizes farther apart"),
        ({8: 2 * GB, 16: GB}, "take no more memory"),
    ],
)
def test_peaks_that_do_not_grow_say_nothing(peaks, message):
    with pytest.raises(ValueError, match=message):
        fit_line(peaks, 10 * GB)


def test_points_between_do_not_move_the_line():
    assert fit_line({8: 8 * GB, 12: 13 * GB, 16: 16 * GB}, 100 * GB).largest == 95
