"""A stand-in for an accelerator, so that the device road can be run where there is none.

Torch's pin-memory thread, FastLoader's device iterator and the scheduling of its copies are the real ones. Pinning is a
copy in pageable memory, and a copy to the device stays on the CPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastload import loader as loader_module
from fastload import options
from fastload.device.transfer import Transfer


class SimulatedTransfer(Transfer):
    """Copies to the CPU, in the order in which it is asked."""

    def __init__(self, device: torch.device, stream: Any, memory_format: Any, dtype: Any) -> None:
        super().__init__(torch.device("cpu"), None, memory_format, dtype)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch and FastLoader believe in one CUDA device."""
    accelerator = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: accelerator)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, device=None: self.clone())
    monkeypatch.setattr(loader_module, "Transfer", SimulatedTransfer)
    monkeypatch.setattr(loader_module._Runtime, "copy_stream", lambda self, device: object())
    assert options.resolve_device("cuda") == torch.device("cuda", 0)
