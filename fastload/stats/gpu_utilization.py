"""GPU utilization from the driver, by NVML, where ``nvidia-ml-py`` is installed."""

from __future__ import annotations

import functools
import time
from typing import Any, Final

import torch

EVERY_S: Final = 1.0  # seconds between queries; the driver keeps many seconds of samples, so none is missed
SHORT_S: Final = 0.1
"""Longest batch interval for which the driver's last rate is used in place of samples.

The rate covers at least a sixth of a second, and is taken for the whole second before. That covers several short steps,
but always the same part of a long one, such as the moment before a batch is copied.
"""


class Utilization:
    """Reads a GPU's utilization at most once a second. For one thread at a time.

    The device has an index. Failures are silent: no nvidia-ml-py, no driver, a partitioned GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_blind = False
        self._has_samples = True
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Discard earlier samples; they do not belong to the new epoch."""
        self._due = 0.0
        self._seen = -1  # time of the last sample, by the driver's clock

    def look(self, between_s: float) -> tuple[int, float]:
        """Return the number of new samples and the sum of their busy shares.

        May take a millisecond once a second, and longer the first time in a process. ``between_s`` are the seconds from
        batch to batch.
        """
        now = time.monotonic()
        if self._is_blind or now < self._due:
            return 0, 0.0
        self._due = now + EVERY_S
        try:
            nvml, handle = nvml_and_handle(self._device)
            shares = self._samples(nvml, handle) if self._has_samples else None
            if shares is None:
                shares = self._rate(nvml, handle) if between_s < SHORT_S else []
        except Exception:  # noqa: BLE001 - drivers, containers and substitutes for pynvml may raise anything
            self._is_blind = True
            return 0, 0.0
        return len(shares), sum(shares)

    def _samples(self, nvml: Any, handle: Any) -> list[float] | None:
        """The new samples; ``None`` if this driver keeps none."""
        try:
            _, samples = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, max(0, self._seen))
        except nvml.NVMLError_NotFound:
            return []
        except nvml.NVMLError:
            self._has_samples = False
            return None
        known, self._seen = self._seen, max([self._seen, *(int(sample.timeStamp) for sample in samples)])
        if known < 0:
            return []
        return [sample.sampleValue.uiVal / 100 for sample in samples if sample.timeStamp > known]

    def _rate(self, nvml: Any, handle: Any) -> list[float]:
        known, self._seen = self._seen, 0
        return [] if known < 0 else [nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100]


@functools.cache
def nvml_and_handle(device: torch.device) -> tuple[Any, Any]:
    """Return ``pynvml`` and its handle for the device.

    By UUID: NVML ignores CUDA_VISIBLE_DEVICES and may number devices in another order.
    """
    import pynvml

    uuid = torch.cuda.get_device_properties(device).uuid
    pynvml.nvmlInit()
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
