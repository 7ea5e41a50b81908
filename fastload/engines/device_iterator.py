"""The batches of torch's own iterator on their way to a device."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from fastload._batch import as_inference_tensors
from fastload._interrupts import deferred_signals
from fastload._shutdown import after_error, shut_down
from fastload.device.transfer import Transfer
from fastload.engines.copy_scheduler import Arrivals
from fastload.engines.sample_seeding import epochs_of, seeded
from fastload.engines.workers import Collate, first_call_of, next_of, refresh, stages_of, start_epoch, view_of
from fastload.memory.slots import SlotWriter
from fastload.nvtx.stages import stage
from fastload.options import can_pin, has_streams
from fastload.plan import pins
from fastload.stats.meter import Meter, board_for, measure_here

if TYPE_CHECKING:
    from fastload._state import Runtime
    from fastload.loader import FastLoader


def _pinned_tuple_type() -> type:
    """What the installed torch makes of a tuple when it pins it: a list in some versions."""
    return type(pin_memory((1,)))  # type: ignore[no-untyped-call]


def _end(transfer: Transfer, arrivals: Arrivals, runtime: Runtime) -> None:
    """What remains to be done when an iterator is gone. Idempotent."""
    with deferred_signals():
        arrivals.close()
        runtime.retire(transfer, arrivals)


class DeviceIterator:
    """One epoch on the device side: torch's own iterator, whose batches arrive there on their way to the consumer."""

    def __init__(self, loader: FastLoader[Any], device: torch.device) -> None:
        self.device = device
        streams = has_streams(device)
        side_stream = loader._runtime.copy_stream(device) if streams and loader.device_prefetch else None
        memory_format = None if device.type == "cpu" else loader.memory_format
        self.transfer = Transfer(device, side_stream, memory_format, loader.dtype)
        self._pins = pins(loader, device)
        asked_to_pin = loader.pin_memory and can_pin()
        takes_turns = loader.in_order and loader.num_workers > 0
        slots = loader._runtime.slot_pool(loader, device)
        self.arrivals = Arrivals(
            self.transfer,
            num_workers=loader.num_workers if takes_turns else 1,
            ahead=loader.device_prefetch if side_stream is not None else 0,
            pin=self._pins or (asked_to_pin and device.type == "cpu"),
            tuple_type=_pinned_tuple_type() if asked_to_pin else None,
            slots=slots,
            borrows=loader.num_workers == 0,
        )
        writer = None if slots is None else SlotWriter(slots.handle)
        self._collate = Collate(loader.collate_fn, self.arrivals.key, writer)
        self._runtime = loader._runtime
        self._number = 0
        self._board = board_for(loader)
        self._meter = Meter(self._board, loader.batch_size)
        self._view = view_of(loader, **self._changes(loader))
        self._consuming = threading.RLock()  # one next() at a time, as threads may share torch's
        self._finalizer = weakref.finalize(self, _end, self.transfer, self.arrivals, self._runtime)
        self.arrivals.serve(self)
        self._host: Any = start_epoch(self._view)
        self._counts_up = loader.in_order and loader.num_workers > 0  # then torch's count says which batch it was
        measure_here(self._host, self._meter)
        self._runtime.take_in(self.transfer, self.arrivals)
        self._runtime.measure(self, self._meter)
        self._runtime.live.add(self)

    def _changes(self, loader: FastLoader[Any]) -> dict[str, Any]:
        """How the view differs from the loader: among others, torch's pin-memory thread delivers the batches."""
        changes = {"collate_fn": self._collate, **stages_of(loader)}
        if loader.num_workers:
            first_call = changes.get("worker_init_fn", loader.worker_init_fn)
            changes["worker_init_fn"] = first_call_of(loader, first_call, self._board)
        if self._pins:
            changes |= {"pin_memory": True}
            if not loader.pin_memory:
                changes |= {"pin_memory_device": ""}  # torch warns of it, but only where the user asked to pin
        elif self.device.type != "cpu":
            changes |= {"pin_memory": False}
        epochs = epochs_of(loader)
        return changes if epochs is None else seeded(loader, changes, epochs, vars(self).get("_view"))

    def _reset(self, loader: FastLoader[Any]) -> None:
        """Begin another epoch with the same, persistent, workers."""
        self.arrivals.pause()
        refresh(self._view, loader, **self._changes(loader))
        try:
            self._host = start_epoch(self._view)
        except BaseException:
            if getattr(self._host, "_shutdown", False):  # the next epoch takes new workers
                loader._iterator = None
                self.close()
            raise
        self.arrivals.resume()
        self.transfer.begin_epoch()
        self._meter.begin_epoch()
        self._number = 0

    def __iter__(self) -> DeviceIterator:
        return self

    def __len__(self) -> int:
        return len(self._host)

    def __next__(self) -> Any:
        with self._consuming:
            host = self._host
            if host is None:
                raise RuntimeError("the FastLoader of this iterator was closed")
            self.transfer.mark_step()  # not after the wait, which is no part of the step
            meter = self._meter
            asked = meter.ask()
            try:
                with stage("wait", self._number):
                    arrived = next_of(host)
                self._number += 1
                data = self.arrivals.take(arrived)
            except BaseException as error:
                meter.stop()
                if not isinstance(error, StopIteration):
                    after_error(host, error)
                raise
            meter.got(asked, self._batch(host), self.arrivals.road)
            if torch.is_inference_mode_enabled() and self.device.type != "cpu":  # else torch's, or made in this thread
                return as_inference_tensors(data)
            return data

    def _batch(self, host: Any) -> int | None:
        """The number under which the board knows the batch that torch's iterator has just given out."""
        if self._counts_up:
            return int(host._rcvd_idx) - 1
        return None if host._num_workers else self._number - 1

    def __getattr__(self, name: str) -> Any:
        # What is known of torch's iterators (`_workers`, `_num_yielded`, ...) is asked of torch's iterator.
        host = self.__dict__.get("_host")
        if host is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(host, name)

    def __getstate__(self) -> dict[str, Any]:
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)  # as torch's iterators say it

    @property
    def is_closed(self) -> bool:
        """Whether its totals have been retired."""
        return not self._finalizer.alive

    def close(self) -> None:
        """Shut torch's iterator down (its workers and its thread end with it) and wait for the copies.

        Idempotent, and whole if it is repeated after an interrupt.
        """
        host = self._host
        if host is not None:
            shut_down(host)
        self._host = self._view._iterator = None
        _end(self.transfer, self.arrivals, self._runtime)
        self._finalizer.detach()
