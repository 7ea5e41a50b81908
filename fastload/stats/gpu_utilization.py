"""How busy a GPU is, as its driver says: by NVML, where ``nvidia-ml-py`` is installed."""

from __future__ import annotations

import functools
import time
from typing import Any, Final

import torch

EVERY_S: Final = 1.0
"""Between two looks. The driver keeps several samples a second for many seconds, so none is missed."""

SHORT_S: Final = 0.1
"""Where the driver has no samples, its last rate stands for the second before it. It is of at least a sixth of one, so
that of shorter steps it has several, and of longer ones always the same part: just before a batch is copied, say."""


class Utilization:
    """Looks at a GPU once a second, when it is asked. For one thread at a time.

    Whatever there is that keeps it from looking, it keeps to itself: no nvidia-ml-py, no driver, a GPU that is divided.

    Args:
        device: With an index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_blind = False
        self._has_samples = True
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """What was before is not of the loop that begins now."""
        self._due = 0.0
        self._seen = -1  # when the last sample was taken, by the driver's clock

    def look(self, between_s: float) -> tuple[int, float]:
        """How many samples there have been since the last look, and the sum of their shares of busy time.

        May take a millisecond once a second, and longer the first time in a process.

        Args:
            between_s: Seconds from batch to batch.
        """
        now = time.monotonic()
        if self._is_blind or now < self._due:
            return 0, 0.0
        self._due = now + EVERY_S
        try:
            nvml, handle = _nvml_and_handle(self._device)
            shares = self._samples(nvml, handle) if self._has_samples else None
            if shares is None:
                shares = self._rate(nvml, handle) if between_s < SHORT_S else []
        except Exception:  # noqa: BLE001 - whatever a driver, a container or a stand-in for pynvml may raise
            self._is_blind = True
            return 0, 0.0
        return len(shares), sum(shares)

    def _samples(self, nvml: Any, handle: Any) -> list[float] | None:
        """Those that are new; ``None`` if this driver keeps none."""
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
def _nvml_and_handle(device: torch.device) -> tuple[Any, Any]:
    """NVML, and what it calls the device. It knows nothing of CUDA_VISIBLE_DEVICES, and may count in another order."""
    import pynvml

    uuid = torch.cuda.get_device_properties(device).uuid
    pynvml.nvmlInit()
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
