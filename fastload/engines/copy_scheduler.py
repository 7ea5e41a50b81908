"""Batches that have arrived on the host, and which of them is copied to the device when.

Torch's pin-memory thread delivers; a feeder thread copies what is next in turn; the consumer takes in torch's order. No
thread polls: the feeder sleeps on a queue, or on an event while the GPU catches up.

A signal may interrupt the consumer anywhere. So its thread uses nothing but locks and queues that are made in C, which
an interrupt finds either taken or not; :class:`threading.Condition` is left locked by one between ``__enter__`` and the
block.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import Counter, deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

from fastload._batch import HostBatch, count_pinned, map_tensors, register
from fastload.memory.packing import Packed, packed_bytes, unpack
from fastload.nvtx import stages
from fastload.stats.stats import Totals
from fastload.torch_workers.processes import JOIN_S
from fastload.torch_workers.signals import deferred_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.device.transfer import DeviceBatch, Transfer
    from fastload.memory.slots import Lease, SlotPool

NONE_FREE = "no slot is free"


class Arrival:
    """One batch between its arrival on the host and its hand-over."""

    __slots__ = (
        *("__weakref__", "arrived", "borrowed", "copied", "data", "failed", "lease", "opened", "small", "starting"),
        "worker",
    )

    def __init__(self, data: Any, worker: int, lease: Lease | None = None, small: torch.Tensor | None = None) -> None:
        self.data = data
        self.worker = worker
        self.lease = lease
        self.small = small
        self.copied: DeviceBatch | None = None
        self.borrowed = False  # from memory of the user's, which may be written again when the next one is made
        self.failed = False  # the feeder could not copy it
        self.starting: threading.Lock | None = None  # the feeder copies it, and holds this meanwhile
        self.arrived = self.opened = 0.0  # when it had come, and when it had been pinned

    def start(self, transfer: Transfer, number: int) -> DeviceBatch:
        """Issue the copy. From here on the transfer holds the source until it is done."""
        lease = self.lease
        if lease is None:
            self.copied = transfer.start(self.data, number)
        else:
            lease.copying()
            try:
                self.copied = transfer.start(self.data, number, small=self.small, on_copied=lease.release)
            except BaseException:
                lease.not_copying()
                raise
        self.data = self.small = self.lease = None
        return self.copied


class CopyScheduler:
    """Decides which arrived batch is copied when. Batches arrive in any order and leave in torch's.

    A batch is copied ahead of time when it is among the next ``ahead`` that the consumer will be given, at once on its
    arrival or as soon as its turn comes within reach. A batch that the consumer asks for is copied then at the latest,
    so nothing here can deadlock. Torch deals batches to workers in turn; a worker that was passed over has no more to
    give in this epoch (an iterable dataset that ended there).

    Args:
        transfer: Issues the copies.
        num_workers: Workers that take turns; 1 where batches leave in the order of their arrival.
        ahead: Batches to copy ahead of the consumer, at least 0.
        pin: Whether to pin batches on arrival.
        tuple_type: See :func:`fastload._batch.map_tensors`.
        slots: The pool that workers write into, or ``None``.
        borrows: Whether batches are made in this process, out of memory that may be the user's own: what is pinned may
            be written again when the next batch is asked for, and is copied by then.
    """

    def __init__(
        self,
        transfer: Transfer,
        num_workers: int,
        ahead: int,
        pin: bool,
        tuple_type: type | None,
        slots: SlotPool | None = None,
        *,
        borrows: bool = False,
    ) -> None:
        self.transfer = transfer
        self._borrows = borrows
        self.key = register(self)
        self._ahead = ahead
        self._pin = pin
        self._tuple_type = tuple_type
        self._slots = slots
        self.in_slots = 0
        self.pinned = 0
        self.pin_s = 0.0
        self.stages: tuple[tuple[str, float], ...] = ()  # of the batch that was handed over last: stages and their ends
        self.missed: Counter[str] = Counter()
        self._lock = threading.RLock()  # the collector may end an iterator in a thread that is inside
        self._wake: SimpleQueue[Any] = SimpleQueue()
        self._owner: Callable[[], Any] | None = None
        self._feeder: threading.Thread | None = None
        self._closed = False
        self._num_workers = max(1, num_workers)
        self._pause = False
        self._pid = os.getpid()
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._waiting: list[deque[weakref.ref[Arrival]]] = [deque() for _ in range(self._num_workers)]
        self._ended = [False] * self._num_workers
        self._next_worker = 0
        self._taken = 0

    def serve(self, owner: Any) -> None:
        """Have the feeder end with ``owner``, whoever else knows of this, and though ``close`` should never be called.

        Python runs no line for that, which an interrupt could prevent: a weak reference wakes the feeder.
        """
        self._owner = weakref.ref(owner, self._wake.put)

    def arrive(self, batch: HostBatch) -> Arrival:
        """Pin a batch and let the feeder know. Called by torch's pin-memory thread, or by the main process."""
        arrival = self._opened(batch)
        with self._lock:
            self._waiting[arrival.worker].append(weakref.ref(arrival))
            self._ended[arrival.worker] = False  # passed over for an error: torch raised it in that batch's place
            if self._feeder is None and self._ahead and not self._closed:
                self._start_feeder()
        self._look()
        return arrival

    def _start_feeder(self) -> None:
        feeder = threading.Thread(target=self._feed, name="fastload-copy-scheduler", daemon=True)
        with deferred_signals(), contextlib.suppress(RuntimeError):  # no more threads: the consumer copies when it asks
            feeder.start()
            self._feeder = feeder

    def _look(self) -> None:
        """Have the feeder look for what is next."""
        if self._feeder is not None:
            self._wake.put(None)

    def _opened(self, batch: HostBatch) -> Arrival:
        arrived = time.monotonic()
        arrival = self._open(batch)
        arrival.borrowed = self._borrows and arrival.lease is None and count_pinned(batch.data)[0] > 0
        arrival.arrived, arrival.opened = arrived, time.monotonic()
        if self._pin and arrival.lease is None:
            self.pinned += 1
            self.pin_s += arrival.opened - arrived
        return arrival

    def _open(self, batch: HostBatch) -> Arrival:
        worker = batch.worker % self._num_workers
        others = _pinned if self._pin else _unchanged
        if batch.stamp is not None and self._slots is not None:
            lease = self._slots.adopt(batch.stamp)
            packed: Packed = batch.data
            begin, end = packed.small
            small = lease.buffer[begin:end] if end > begin else None
            self.in_slots += 1
            return Arrival(unpack(packed, lease.buffer, others, self._tuple_type), worker, lease, small)
        if self._slots is not None and batch.missed is not None and (nbytes := packed_bytes(batch.data)):
            warming_up = not self.in_slots and batch.missed == NONE_FREE
            self.missed[self._slots.refusal or ("slots not ready yet" if warming_up else batch.missed)] += 1
            self._slots.want(nbytes)
            if self._slots.refusal is None:  # slots will serve: pinning this one batch would cost more than it saves,
                others = _pinned_by_itself if self._pin else _unchanged  # and torch would keep that memory
        return Arrival(map_tensors(others, batch.data, self._tuple_type), worker)

    def take(self, arrived: Any) -> Any:
        """Hand over the batch that torch's iterator has just given out. Called by the consumer."""
        arrival = arrived if isinstance(arrived, Arrival) else self._opened(arrived)
        with self._lock:
            self._advance(arrival)
            number = self._taken
            self._taken += 1  # before the lock is let go of: the feeder numbers the batch after this one
            starting = arrival.starting
        if starting is not None:
            with starting:  # until the feeder has issued it
                pass
        copied = arrival.copied
        if copied is None:
            copied = arrival.start(self.transfer, number)
        if arrival.borrowed:
            copied.wait_copied()
        data = self.transfer.take(copied)
        self.stages = (
            ("ipc", arrival.arrived),
            ("pin", arrival.opened),
            ("gpu", copied.roomed),
            ("h2d", copied.issued),
        )
        self._look()  # last, so that the feeder's work does not delay this call
        return data

    def _advance(self, arrival: Arrival) -> None:
        while self._next_worker != arrival.worker:
            self._ended[self._next_worker] = not self._waiting[self._next_worker]
            self._next_worker = (self._next_worker + 1) % self._num_workers
        queue = self._waiting[arrival.worker]
        while queue:
            known = queue.popleft()()
            if known is arrival:
                break
        self._next_worker = (arrival.worker + 1) % self._num_workers

    def _next(self) -> tuple[Arrival, int] | None:
        """What is next in turn, has arrived, and is not copied yet; and its number."""
        turns = [w % self._num_workers for w in range(self._next_worker, self._next_worker + self._num_workers)]
        turns = [worker for worker in turns if not self._ended[worker]] or turns
        for step in range(self._ahead):
            position, turn = divmod(step, len(turns))
            queue = self._waiting[turns[turn]]
            while queue and queue[0]() is None:  # dropped by torch: a leftover of an epoch that was broken off
                queue.popleft()
            arrival = queue[position]() if position < len(queue) else None
            if arrival is not None and arrival.copied is None and not arrival.failed:
                return arrival, self._taken + step
        return None

    def _feed(self) -> None:
        stages.name_thread("fastload-copy-scheduler")
        torch.accelerator.set_device_index(self.transfer.device)
        while True:
            with self._lock:
                idle = self._pause or self._next() is None
            if idle:  # nothing to copy, so nothing is delayed: free the slots of the last copies as soon as may be
                self.transfer.wait_copied()
            claimed = self._claim()
            if claimed is None:
                return
            arrival, number, starting = claimed
            try:
                arrival.start(self.transfer, number)
            except BaseException:  # noqa: BLE001 - out of memory, or a custom type's own error, of any kind
                arrival.failed = True  # the consumer meets it in its own thread and turn: there it is tried again
            finally:
                starting.release()
            del arrival, claimed

    def _claim(self) -> tuple[Arrival, int, threading.Lock] | None:
        """Sleep until there is something to copy; ``None`` when there never will be."""
        while True:
            with self._lock:
                if self._closed or (self._owner is not None and self._owner() is None):
                    return None
                found = None if self._pause else self._next()
                if found is not None:
                    arrival, number = found
                    arrival.starting = starting = threading.Lock()
                    starting.acquire()
                    return arrival, number, starting
            self._wake.get()

    def totals(self) -> Totals:
        """What has arrived so far, and what pinning took."""
        return Totals({"slot_batches": self.in_slots, "stage:pin:count": self.pinned, "stage:pin:s": self.pin_s})

    def copied_ahead(self) -> int:
        """Batches that are on the device, or on their way, and have not been handed over."""
        with self._lock:
            known = [arrival() for queue in self._waiting for arrival in queue]
            return sum(1 for arrival in known if arrival is not None and arrival.copied is not None)

    def pause(self) -> None:
        """Copy nothing while torch drains what is left of an epoch that was broken off."""
        with self._lock:
            self._pause = True

    def resume(self) -> None:
        """Begin another epoch of the same workers: torch deals from worker 0 again."""
        with self._lock:
            waiting = self._waiting
            self._begin_epoch()
            for queue, former in zip(self._waiting, waiting, strict=True):
                queue.extend(known for known in former if known() is not None)
            self._pause = False
        self._look()

    def close(self) -> None:
        """Stop the feeder and wait for it, then for the copies in flight. Idempotent, also if it was interrupted."""
        if os.getpid() != self._pid:  # a forked child: the feeder is its parent's, and may have held the lock
            return
        with self._lock:
            self._closed = True
        self._look()
        if self._feeder is not None and self._feeder is not threading.current_thread():
            # Bounded, for the collector may have called this in a thread that holds a lock which the feeder needs; the
            # feeder then ends as soon as that thread goes on.
            self._feeder.join(JOIN_S)
        self.transfer.close()


def _pinned(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.pin_memory() if leaf.device.type == "cpu" and leaf.layout == torch.strided else leaf
    return leaf.pin_memory()


def _pinned_by_itself(leaf: Any) -> Any:
    return leaf if isinstance(leaf, torch.Tensor) else leaf.pin_memory()


def _unchanged(leaf: Any) -> Any:
    return leaf
