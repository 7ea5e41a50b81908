"""Schedule host-to-device copies of the batches that have arrived on the host.

Torch's pin-memory thread delivers batches, the scheduler's thread copies the next one in turn, and the consumer takes
them in torch's order. No thread polls: the scheduler's sleeps on a queue, or on an event while the GPU catches up.

A signal may interrupt the consumer anywhere, so its thread uses only locks and queues implemented in C, which an
interrupt finds either taken or free. An interrupt between ``__enter__`` and the block leaves a
:class:`threading.Condition` locked.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import weakref
from collections import Counter, deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import torch

from fastload._batch import HostBatch, count_pinned, map_tensors, pinned, register
from fastload.memory.packing import Packed, packed_bytes, unpack
from fastload.nvtx import stages
from fastload.stats.stats import Totals
from fastload.torch_workers.processes import JOIN_S
from fastload.torch_workers.signals import deferred_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.device.decode.received import Painter, ReceivedFiles
    from fastload.device.transfer import DeviceBatch, Transfer
    from fastload.memory.slots import Lease, SlotPool

NONE_FREE = "no slot is free"
_NOTHING: Final[Any] = object()


class Arrival:
    """A batch between its arrival on the host and its hand-over."""

    __slots__ = (
        *("__weakref__", "arrived", "borrowed", "copied", "data", "failed", "files", "lease", "opened", "small"),
        *("starting", "worker"),
    )

    def __init__(
        self,
        data: Any,
        worker: int,
        lease: Lease | None = None,
        small: torch.Tensor | None = None,
        files: ReceivedFiles | None = None,
    ) -> None:
        self.data = data
        self.worker = worker
        self.lease = lease
        self.small = small
        self.files = files  # what the device decodes of it, until it is known to be right
        self.copied: DeviceBatch | None = None
        self.borrowed = False  # in the user's memory, which may be overwritten when the next batch is made
        self.failed = False  # the scheduler's thread could not copy it
        self.starting: threading.Lock | None = None  # held by the scheduler's thread while it issues the copy
        self.arrived = self.opened = 0.0  # times of arrival and of the end of pinning

    def start(self, transfer: Transfer, number: int) -> None:
        """Issue the copy. The transfer then holds the source until the copy is done."""
        lease = self.lease
        if lease is None:
            self.copied = transfer.start(self.data, number)
        else:
            # What the device decodes, it may have to decode again.
            on_copied = lease.release if self.files is None else functools.partial(_keep, lease)
            lease.copying()
            try:
                self.copied = transfer.start(self.data, number, small=self.small, on_copied=on_copied)
            except BaseException:
                lease.not_copying()
                raise
        if self.files is None:
            self.data = self.small = self.lease = None

    def settle(self, transfer: Transfer, number: int) -> None:
        """Make sure that what the device decodes is right. Blocks meanwhile."""
        if self.files is None or self.copied is None:
            return
        try:
            while not self.files.is_right():
                on_copied = functools.partial(_keep, self.lease)
                self.copied = transfer.start(self.data, number, small=self.small, on_copied=on_copied)
            self.copied.wait_copied()  # the rest of its slot, too
        except BaseException:
            self.copied = None
            if self.lease is not None:
                self.lease.not_copying()
            raise
        self.data = self.small = self.lease = self.files = None
        transfer.reap()


class CopyScheduler:
    """Decides when to copy each arrived batch.

    Batches arrive in any order and leave in torch's.

    A batch is copied early if it is among the next ``ahead`` that the consumer will get: on arrival, or as soon as it
    becomes one of them. The consumer copies a batch itself if that has not been started, so nothing here can deadlock.
    Torch assigns batches to workers in turn; a skipped worker has no more batches in this epoch (an iterable dataset
    that ended there).

    Args:
        transfer: Issues the copies.
        num_workers: Workers that take turns; 1 if batches leave in the order of arrival.
        ahead: Batches to copy ahead of the consumer, at least 0.
        pin: Whether to pin batches on arrival.
        tuple_type: See :func:`fastload._batch.map_tensors`.
        slots: The pool that workers write into, or ``None``.
        borrows: Whether batches are made in this process and may be in the user's own memory. Pinned batches may then
            be overwritten when the next one is requested, so their copies complete before that.
        painter: Lets workers stage deferred tensors in slots.
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
        painter: Painter | None = None,
    ) -> None:
        self.transfer = transfer
        self._painter = painter
        self.painted = 0  # images, by the device
        self._borrows = borrows
        self.key = register(self)
        self._ahead = ahead
        self._pin = pin
        self._tuple_type = tuple_type
        self._slots = slots
        self.in_slots = 0
        self.pinned = 0
        self.pin_s = 0.0
        self.stages: tuple[tuple[str, float], ...] = ()  # stages of the last batch handed over, with their end times
        self.missed: Counter[str] = Counter()
        self._lock = threading.RLock()  # the garbage collector may end an iterator in a thread that holds the lock
        self._wake: SimpleQueue[Any] = SimpleQueue()
        self._owner: Callable[[], Any] | None = None
        self._thread: threading.Thread | None = None
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
        """End the scheduler's thread with ``owner``, even if ``close`` is never called.

        Other references to the scheduler do not matter. A weak reference wakes the thread without running Python code,
        so an interrupt cannot prevent it.
        """
        self._owner = weakref.ref(owner, self._wake.put)

    def arrive(self, batch: HostBatch) -> Arrival:
        """Pin a batch and wake the scheduler's thread.

        Called by torch's pin-memory thread, or in the main process.
        """
        arrival = self._opened(batch)
        with self._lock:
            self._waiting[arrival.worker].append(weakref.ref(arrival))
            self._ended[arrival.worker] = False  # the worker was skipped because torch raised its error in that turn
            if self._thread is None and self._ahead and not self._closed:
                self._start_thread()
        self._look()
        return arrival

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="fastload-copy-scheduler", daemon=True)
        with deferred_signals(), contextlib.suppress(RuntimeError):  # no more threads: the consumer copies itself
            thread.start()
            self._thread = thread

    def _look(self) -> None:
        """Wake the scheduler's thread to look for the next batch."""
        if self._thread is not None:
            self._wake.put(None)

    def _opened(self, batch: HostBatch) -> Arrival:
        arrived = time.monotonic()
        arrival = self._open(batch)
        may_borrow = self._borrows and arrival.lease is None and not batch.is_small
        arrival.borrowed = may_borrow and count_pinned(batch.data)[0] > 0
        arrival.arrived, arrival.opened = arrived, time.monotonic()
        if self._pin and arrival.lease is None and not batch.is_small:
            self.pinned += 1
            self.pin_s += arrival.opened - arrived
        return arrival

    def _open(self, batch: HostBatch) -> Arrival:
        worker = batch.worker % self._num_workers
        pin = pinned if self._tuple_type is None else _pinned_as_torch
        others = pin if self._pin else _unchanged
        if batch.is_small:
            others = functools.partial(_but_tensors, others)
        if batch.stamp is not None and self._slots is not None:
            lease = self._slots.adopt(batch.stamp)
            packed: Packed = batch.data
            begin, end = packed.small
            small = lease.buffer[begin:end] if end > begin else None
            self.in_slots += 1
            files = None
            if packed.staged is not None and self._painter is not None:
                staged, place = packed.staged
                files = self._painter.files(staged, lease.buffer[place:])
                self.painted += files.staged
                others = functools.partial(self._painter.leaf_or, others, files)
            return Arrival(unpack(packed, lease.buffer, others, self._tuple_type), worker, lease, small, files)
        if self._slots is not None and batch.missed is not None and (nbytes := packed_bytes(batch.data)):
            warming_up = not self.in_slots and batch.missed == NONE_FREE
            if batch.needs and self._painter is not None and self._painter.begin():
                warming_up, nbytes = warming_up or self._painter.is_preparing, batch.needs
            self.missed[self._slots.refusal or ("slots not ready yet" if warming_up else batch.missed)] += 1
            self._slots.want(nbytes)
            if self._slots.refusal is None:  # slots will come: pinning this one batch costs more than it saves, and
                others = functools.partial(_but_tensors, others)  # torch would keep the memory
        as_is = others is _unchanged and self._tuple_type is None
        return Arrival(batch.data if as_is else map_tensors(others, batch.data, self._tuple_type), worker)

    def take(self, arrived: Any) -> Any:
        """Hand over the batch that torch's iterator has just returned. Called by the consumer."""
        arrival = arrived if isinstance(arrived, Arrival) else self._opened(arrived)
        with self._lock:
            self._advance(arrival)
            number = self._taken
            self._taken += 1  # under the lock: the scheduler's thread numbers later batches from it
            starting = arrival.starting
        if starting is not None:
            with starting:  # wait until the scheduler's thread has issued the copy
                pass
        if arrival.copied is None:
            arrival.start(self.transfer, number)
        arrival.settle(self.transfer, number)
        copied: Any = arrival.copied
        if arrival.borrowed:
            copied.wait_copied()
        data = self.transfer.take(copied)
        self.stages = (("ipc", arrival.arrived), ("pin", arrival.opened), *copied.stages)
        self._look()  # last, so that the scheduler's thread does not delay this call
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
        """Return the next arrived batch that is not copied yet, and its number."""
        turns = [w % self._num_workers for w in range(self._next_worker, self._next_worker + self._num_workers)]
        turns = [worker for worker in turns if not self._ended[worker]] or turns
        for step in range(self._ahead):
            position, turn = divmod(step, len(turns))
            queue = self._waiting[turns[turn]]
            while queue and queue[0]() is None:  # dropped by torch: left over from an unfinished epoch
                queue.popleft()
            arrival = queue[position]() if position < len(queue) else None
            if arrival is not None and arrival.copied is None and not arrival.failed:
                return arrival, self._taken + step
        return None

    def _run(self) -> None:
        stages.name_thread("fastload-copy-scheduler")
        torch.accelerator.set_device_index(self.transfer.device)
        issued: deque[tuple[Arrival, int, threading.Lock]] = deque()  # the device decodes them
        while True:
            # The next one is issued first, if it has room: the device goes on then.
            claimed = _NOTHING if issued and not self.transfer.has_room() else self._claim(waits=False)
            if claimed is _NOTHING and issued:
                self._try(Arrival.settle, *issued[0])
                issued.popleft()[2].release()
                continue
            if claimed is _NOTHING:  # nothing to delay: free the slots of the last copies as early as possible
                self.transfer.wait_copied()
                claimed = self._claim(waits=True)
            if claimed is None:
                for _, _, starting in issued:
                    starting.release()
                return
            self._try(Arrival.start, *claimed)
            if claimed[0].files is not None and not claimed[0].failed:
                issued.append(claimed)
            else:
                claimed[2].release()
            del claimed

    def _try(self, call: Callable[[Arrival, Transfer, int], None], arrival: Arrival, number: int, _: Any) -> None:
        try:
            call(arrival, self.transfer, number)
        except BaseException:  # noqa: BLE001 - out of memory, or any error of a custom type
            arrival.failed = True  # the consumer retries in its own thread, where the error is raised

    def _claim(self, *, waits: bool) -> Any:
        """Return a batch to copy, its number, a held lock; ``None`` after the last.

        Sleeps until there is one, or returns ``_NOTHING``.
        """
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
            if not waits:
                return _NOTHING
            self._wake.get()

    def totals(self) -> Totals:
        """Counts of batches so far, and the time that pinning took."""
        counts = {"slot_batches": self.in_slots, "gpu_images": self.painted}
        return Totals(counts | {"stage:pin:count": self.pinned, "stage:pin:s": self.pin_s})

    def copied_ahead(self) -> int:
        """Batches that are copied or being copied, but not handed over."""
        with self._lock:
            known = [arrival() for queue in self._waiting for arrival in queue]
            return sum(1 for arrival in known if arrival is not None and arrival.copied is not None)

    def pause(self) -> None:
        """Copy nothing while torch drains the rest of an unfinished epoch."""
        with self._lock:
            self._pause = True

    def resume(self) -> None:
        """Begin another epoch of the same workers: torch starts at worker 0 again."""
        with self._lock:
            waiting = self._waiting
            self._begin_epoch()
            for queue, previous in zip(self._waiting, waiting, strict=True):
                queue.extend(known for known in previous if known() is not None)
            self._pause = False
        self._look()

    def close(self) -> None:
        """Stop the scheduler's thread, then wait for the copies in flight.

        Idempotent, even after an interrupt.
        """
        if os.getpid() != self._pid:  # a forked child: the thread is the parent's, and may have held the lock
            return
        with self._lock:
            self._closed = True
        self._look()
        if self._thread is not None and self._thread is not threading.current_thread():
            # Bounded: the garbage collector may have called this in a thread that holds a lock which the scheduler's
            # thread needs. It then ends once the caller's thread continues.
            self._thread.join(JOIN_S)
        self.transfer.close()


def _keep(_: Any) -> None:
    """Keep an object while this is to be called."""


def _but_tensors(function: Callable[[Any], Any], leaf: Any) -> Any:
    return leaf if isinstance(leaf, torch.Tensor) else function(leaf)


def _pinned_as_torch(leaf: Any) -> Any:
    return pinned(leaf) if isinstance(leaf, torch.Tensor) else leaf.pin_memory()


def _unchanged(leaf: Any) -> Any:
    return leaf
