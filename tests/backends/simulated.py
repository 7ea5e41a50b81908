"""A simulated accelerator, for running the device backend without a GPU.

torch's pin-memory thread, FastLoader's device iterator, its slots and the scheduling of its copies are real. Pinning is
a copy in pageable memory, slots are not registered, and a copy to the device stays on the CPU.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from fastload import iterators, loader_state, options
from fastload._batch import is_plain, map_tensors
from fastload.device.transfer import DeviceBatch, Transfer
from fastload.memory.slots import SlotPool


class SimulatedTransfer(Transfer):
    """Copies to the CPU, immediately and in the requested order."""

    def __init__(self, device: torch.device, stream: Any, memory_format: Any, dtype: Any) -> None:
        super().__init__(torch.device("cpu"), None, memory_format, dtype)

    def start(self, data: Any, batch: int | None = None, *, small: Any = None, **rest: Any) -> DeviceBatch:
        return super().start(map_tensors(_copied, data), batch, **rest)


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) and is_plain(leaf) and not leaf.requires_grad else leaf


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch and FastLoader see one CUDA device."""
    accelerator = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: accelerator)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, device=None: self.clone())
    monkeypatch.setattr(iterators, "Transfer", SimulatedTransfer)
    monkeypatch.setattr(loader_state.LoaderState, "copy_stream", lambda self, device: object())
    monkeypatch.setattr(loader_state, "SlotPool", functools.partial(SlotPool, register=False))
    monkeypatch.setenv("FASTLOAD_DEBUG", "1")  # overwrites freed slots
    assert options.resolve_device("cuda") == torch.device("cuda", 0)


def install_native(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Like :func:`install`, for native batches.

    Returns:
        FastLoader arguments for it; nothing can be pinned here.
    """
    install(monkeypatch)
    return {"device": "cuda", "max_pinned_bytes": 0}
