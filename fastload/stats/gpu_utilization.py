"""GPU utilization from the driver, by NVML, where ``nvidia-ml-py`` is installed."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from fastload.stats.stats import Totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastload.stats.steady_state import SteadyState

EVERY_S: Final = 1.0  # seconds between queries; the driver keeps many seconds of samples, so none is missed
SHORT_S: Final = 0.1
"""Longest batch interval for which the driver's last rate is used in place of samples.

The rate covers at least a sixth of a second, and is taken for the whole second before. That covers several short steps,
but always the same part of a long one, such as the moment before a batch is copied.
"""
TRAINED_MIN: Final = 0.9  # least share of a sample's time in which the loop trained
WHOLLY_MIN: Final = 0.99  # such a share is as good as all of it
PARTLY_MIN: Final = 0.5  # least such share of a sample that counts towards bounds
SAMPLES_MIN: Final = 2  # samples that a verdict rests on
PARTS_MIN: Final = 4  # samples that bounds rest on
_SHIFTS: Final = (-1.0, -0.5, 0.0, 0.5)
"""Lengths of a sample by which it may have been taken at another time than the driver says."""
NAMED_MAX: Final = 3  # other programs that are named
_KEPT: Final = 4096
_AHEAD_S: Final = 0.5  # a sample's time is the system's if it is at most this far ahead of it ...
_BEHIND_S: Final = 3.0  # ... and the newest one at most this far behind


@dataclass(frozen=True, slots=True)
class _Sample:
    """The share of a stretch of time, by our clock, in which kernels ran."""

    began: float
    ended: float
    busy: float
    is_placed: bool = True  # whether the driver says of which stretch it is
    trained: float = 0.0  # share of that stretch in which the loop trained, at least

    @property
    def length_s(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Seen:
    """What the driver says about a stretch of the training.

    Attributes:
        busy: Share in which kernels ran; ``None`` if it has not said.
        by: These programs, the busiest first, each with its share if that is known.
        bounds: Least and greatest share in which they can have run; ``None`` if nothing is known.
        is_told: Whether the driver says it at all.
        others: Share in which kernels of other programs ran, at least.
        programs: Number of programs that may have run kernels, if it is not known which are this one's; else 1.
    """

    busy: float | None = None
    is_told: bool = False
    others: float = 0.0
    programs: int = 1
    by: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None


class Utilization:
    """Reads a GPU's utilization at most once a second, across epochs. Thread-safe.

    Samples count if the loop trained while they were taken. Those that pauses between epochs cut give bounds: at worst
    the GPU idled, or was busy, in the part that was training. Failures are silent: no nvidia-ml-py, no driver, a
    partitioned GPU.

    Args:
        device: Has an index.
        steady: Knows when the loop trained.
    """

    def __init__(self, device: torch.device, steady: SteadyState) -> None:
        self._device = device
        self._steady = steady
        self._lock = threading.Lock()
        self._is_blind = False
        self._has_samples = True
        self._due = 0.0
        self._looked_at = 0.0
        self._seen = self._seen_process = -1  # times of the last samples, by the driver's clock
        self._waiting: deque[_Sample] = deque(maxlen=_KEPT)  # since the last batch
        self._samples: deque[_Sample] = deque(maxlen=_KEPT)  # in which it trained
        self._was_busy = False
        self._sums = Totals()
        self._shares: deque[tuple[float, int, float]] = deque(maxlen=_KEPT)  # when, which process, and its share
        self._running: list[int] = []  # processes that use the device

    def look(self, between_s: float, *, at_once: bool = False) -> None:
        """Take new samples, if the last look was a second ago or ``at_once``.

        May take a millisecond, and longer the first time in a process. ``between_s`` are the seconds from batch to
        batch.
        """
        if self._is_blind or (time.monotonic() < self._due and not at_once):
            return
        if not self._lock.acquire(blocking=at_once):
            return
        try:
            self._read(between_s)
        except Exception:  # noqa: BLE001 - drivers, containers and substitutes for pynvml may raise anything
            self._is_blind = True
        finally:
            self._lock.release()

    def _read(self, between_s: float) -> None:
        self._due = time.monotonic() + EVERY_S
        nvml, handle = nvml_and_handle(self._device)
        now, wall = time.monotonic(), time.time()
        samples = self._read_samples(nvml, handle, now, wall) if self._has_samples else None
        if samples is None:
            samples = self._read_rate(nvml, handle, now) if between_s < SHORT_S else []
        self._waiting.extend(samples)
        self._read_processes(nvml, handle, now, wall)
        self._looked_at = now
        while self._waiting and self._waiting[0].ended <= self._steady.at:  # later ones may be of an evaluation
            self._take(self._waiting.popleft())

    def _take(self, sample: _Sample) -> None:
        """Count a sample if the loop trained meanwhile, wherever around its time it was taken."""
        self._was_busy |= sample.busy > 0
        trained = self._steady.trained(sample.began, sample.ended)
        if trained >= TRAINED_MIN:
            self._sums.add({"gpu:looks": 1.0, "gpu:busy": sample.busy})
        if sample.is_placed:
            ahead_s = self._steady.at - sample.ended
            for each in _SHIFTS:
                shift_s = min(each * sample.length_s, ahead_s)
                trained = min(trained, self._steady.trained(sample.began + shift_s, sample.ended + shift_s))
        else:
            trained = self._steady.trained(sample.began - EVERY_S, sample.ended)
        if trained >= (PARTLY_MIN if sample.is_placed else WHOLLY_MIN):
            self._samples.append(replace(sample, trained=trained))

    def _read_samples(self, nvml: Any, handle: Any, now: float, wall: float) -> list[_Sample] | None:
        """The new samples; ``None`` if this driver keeps none."""
        try:
            _, found = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, max(0, self._seen))
        except nvml.NVMLError_NotFound:
            return []
        except nvml.NVMLError:
            self._has_samples = False
            return None
        known = self._seen
        new = {int(each.timeStamp): each.sampleValue.uiVal / 100 for each in found if int(each.timeStamp) > known}
        times = sorted(new)
        if not times:
            return []
        self._seen = times[-1]
        if -_AHEAD_S <= wall - times[-1] * 1e-6 <= _BEHIND_S:
            before = [known, *times] if known > 0 else times
            ours = [now - (wall - each * 1e-6) for each in before]
            # The first of all has no beginning; others began where the one before ended, but no more than a second ago.
            return [
                _Sample(max(began, ended - EVERY_S), ended, new[each])
                for each, began, ended in zip(before[1:], ours, ours[1:], strict=False)
            ]
        if known < 0:  # by an unknown clock, so all that is known is that they came since the last look
            return []
        return [_Sample(self._looked_at, now, new[each], is_placed=False) for each in times]

    def _read_rate(self, nvml: Any, handle: Any, now: float) -> list[_Sample]:
        known, self._seen = self._seen, 0
        if known < 0:
            return []
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        return [_Sample(max(self._looked_at, now - EVERY_S), now, busy, is_placed=False)]

    def _read_processes(self, nvml: Any, handle: Any, now: float, wall: float) -> None:
        """Record which processes ran kernels since the last look, where the driver says so."""
        try:
            self._running = [int(each.pid) for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            found = nvml.nvmlDeviceGetProcessUtilization(handle, max(0, self._seen_process))
        except Exception:  # noqa: BLE001 - not on all devices, and an error if none ran
            return
        known = self._seen_process
        for each in found:
            when = now - (wall - int(each.timeStamp) * 1e-6)
            if known < int(each.timeStamp) and when <= now + _AHEAD_S:
                self._shares.append((when, int(each.pid), min(100, int(each.smUtil)) / 100))
                self._seen_process = max(self._seen_process, int(each.timeStamp))

    def totals(self) -> Totals:
        """Samples over all epochs: their number, and the sum of their busy shares."""
        return self._sums.copy()

    def since(self, began: float) -> Seen:
        """What the driver says about the training since then."""
        is_told, (others, programs, by) = not self._is_blind, self._others(began)
        taken = [sample for sample in self._samples.copy() if sample.began >= began and sample.length_s > 0]
        whole = [sample.busy for sample in taken if sample.trained >= WHOLLY_MIN]
        if not self._was_busy:  # a driver that always says 0 says nothing
            return Seen(None, is_told, others, programs, by)
        if len(whole) < SAMPLES_MIN:
            return Seen(None, is_told, others, programs, by, _bounds(taken) if len(taken) >= PARTS_MIN else None)
        return Seen(sum(whole) / len(whole), is_told, others, programs, by)

    def _others(self, began: float) -> tuple[float, int, tuple[str, ...]]:
        """Other programs: their least share, how many there may be, and their names."""
        until, of_process = self._steady.at + EVERY_S, dict[int, list[float]]()
        for when, process, share in self._shares.copy():
            if began <= when <= until and share > 0:
                of_process.setdefault(process, []).append(share)
        looks = max(map(len, of_process.values()), default=0)  # a process that was idle then may be left out
        shares = {process: sum(found) / looks for process, found in of_process.items()}
        own, is_listed = os.getpid(), os.getpid() in self._running
        is_known = shares.pop(own, None) is not None or is_listed
        if not is_known and shares:  # in a container processes have other numbers: this one's share is the largest
            programs = max(len(shares), len(self._running))
            del shares[max(shares, key=shares.__getitem__)]
        else:
            programs = 1 if of_process else max(1, len(self._running))
        if is_listed and not of_process:
            return 0.0, programs, tuple(self._name_of(each) for each in self._running if each != own)
        busiest = sorted(shares.items(), key=lambda each: -each[1])[:NAMED_MAX]
        named = (self._name_of(each) if is_known else "another process" for each, _ in busiest)
        by = tuple(f"{name} {share:.0%}" for name, (_, share) in zip(named, busiest, strict=True))
        return sum(shares.values()), programs, by

    def _name_of(self, process: int) -> str:
        """A process's number and name, as ``nvidia-smi`` has them."""
        try:
            found = nvml_and_handle(self._device)[0].nvmlSystemGetProcessName(process)
            name = os.path.basename((found.decode(errors="replace") if isinstance(found, bytes) else found).split()[0])
        except Exception:  # noqa: BLE001 - gone since, or another user's
            return f"process {process}"
        return f"process {process} ({name})"


def _bounds(samples: Sequence[_Sample]) -> tuple[float, float]:
    """Bounds of the training's busy share: pauses may have been all busy, or all idle."""
    trained_s = sum(sample.trained * sample.length_s for sample in samples)
    busy_s = sum(sample.busy * sample.length_s for sample in samples)
    idle_s = sum(sample.length_s for sample in samples) - busy_s
    return max(0.0, 1.0 - idle_s / trained_s), min(1.0, busy_s / trained_s)


@functools.cache
def nvml_and_handle(device: torch.device) -> tuple[Any, Any]:
    """Return ``pynvml`` and its handle for the device.

    By UUID: NVML ignores CUDA_VISIBLE_DEVICES and may number devices in another order.
    """
    import pynvml

    uuid = torch.cuda.get_device_properties(device).uuid
    pynvml.nvmlInit()
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
