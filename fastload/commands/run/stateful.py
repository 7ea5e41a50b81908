"""The device side of loaders with their own iterators and state, as torchdata's.

Batches are copied when the loop asks for them, so the loader's ``state_dict()`` is right as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastload._batch import HostBatch
from fastload.device.copy_scheduler import CopyScheduler
from fastload.device.transfer import Transfer
from fastload.iterators import DeviceIterator
from fastload.loader_state import state_of
from fastload.memory.limits import pins
from fastload.nvtx.stages import stage
from fastload.options import has_streams, resolve_device
from fastload.stats.meter import Meter, measure_here

if TYPE_CHECKING:
    import torch

    from fastload.stats.shared_counters import SharedCounters


def keeps_own_state(kind: type) -> bool:
    """Whether a class itself defines its iteration and its state."""
    return all(name in vars(kind) for name in ("__iter__", "state_dict", "load_state_dict"))


def device_of(loader: Any) -> torch.device | None:
    """The device that a loader's own batches go to; ``None`` if they stay."""
    if not loader.copies_own_batches:
        return None
    device = resolve_device(loader.device)
    return device if has_streams(device) else None


class OwnDeviceIterator(DeviceIterator):
    """Copies a loader's own batches to a device, when the loop asks.

    Reading ahead in a thread would change what samplers and datasets draw from the generators that they share with the
    loop, and the loader's state would be ahead of the loop.

    Args:
        loader: Has begun ``host``.
        host: Torch's iterator or derived from it. It stays the loader's.
        device: The target device, with an index.
        counters: The host's workers'; ``None`` if they have none.
    """

    def __init__(self, loader: Any, host: Any, device: torch.device, counters: SharedCounters | None) -> None:
        state = state_of(loader)
        meter: Meter | None = vars(host).get("_fastload_meter")
        if meter is None:
            meter = host._fastload_meter = Meter(counters, loader.batch_size)
            measure_here(host, meter)
            state.measure(host, meter)
        else:  # its workers persist
            meter.begin_epoch()
        stream = state.copy_stream(device) if loader.device_prefetch else None
        transfer = Transfer(device, stream, loader.memory_format, loader.dtype)
        borrows = not loader.num_workers
        self.scheduler = scheduler = CopyScheduler(transfer, 1, 0, pins(loader, device), None, borrows=borrows)
        super().__init__(loader, device, transfer, meter, (scheduler.close,), scheduler)
        self._counts_up = loader.in_order and loader.num_workers > 0  # torch's count is then the batch's number
        self._number = 0
        self._host = host
        state.take_in(transfer, scheduler)
        state.live.add(self)

    def _restart(self, loader: Any) -> None:
        self._host._reset(loader)

    def _take(self, host: Any) -> tuple[Any, int | None, tuple[tuple[str, float], ...], int]:
        with stage("wait", self._number):
            batch = HostBatch(next(host), 0, self.scheduler.key)
        self._number += 1
        data = self.scheduler.take(batch)
        number = host._rcvd_idx - 1 if self._counts_up else None if host._num_workers else self._number - 1
        return data, number, self.scheduler.stages, 0
