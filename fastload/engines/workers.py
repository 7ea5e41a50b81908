"""Engine ``workers``: torch's own worker processes and pin-memory thread, which run the user's code unchanged.

The collate function is wrapped (in the iterator, never on the loader), so that a batch travels as a
:class:`~fastload.host.HostBatch`. Torch's pin-memory thread then delivers it to :class:`Arrivals` by calling its
``pin_memory()``, and the copy to the device starts there and then. Sampler, worker assignment, errors, time-outs and
the end of an epoch stay torch's own, in torch's own threads: reading ahead with a thread that calls ``next()`` would
draw from the sampler earlier than torch does, and after an early ``break`` the next epoch would differ.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, default_collate, get_worker_info

from fastload import _nvtx
from fastload._nvtx import stage
from fastload.host import HostBatch, map_leaves, register
from fastload.memory.packing import DoesNotFitError, Packed, Packer, collate_into, packed_bytes, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.device.transfer import DeviceBatch, Transfer
    from fastload.memory.slots import Lease, SlotPool, SlotWriter


NONE_FREE = "no slot is free"


class Collate:
    """Runs the user's collate function in the worker and sends the result on its way. Picklable if that function is.

    Args:
        collate_fn: The user's; ``default_collate`` stacks straight into a slot, any other one's result is packed.
        receiver: Key of the :class:`Arrivals` that wait for the batches.
        slots: Where to get slots, or ``None`` to send batches as torch does.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], receiver: int, slots: SlotWriter | None = None) -> None:
        self.collate_fn = collate_fn
        self.receiver = receiver
        self.slots = slots

    def __call__(self, samples: Any) -> HostBatch:  # noqa: D102
        info = get_worker_info()
        worker = 0 if info is None else info.id
        with stage("collate"):
            if self.slots is None:
                return HostBatch(self.collate_fn(samples), worker, self.receiver)
            return self._into_slot(self.slots, samples, worker)

    def _into_slot(self, slots: SlotWriter, samples: Any, worker: int) -> HostBatch:
        missed = NONE_FREE
        data = None
        needed = 0
        stacks = self.collate_fn is default_collate
        if not stacks:
            data = self.collate_fn(samples)
            needed = packed_bytes(data)
            if not needed:
                return HostBatch(data, worker, self.receiver)
        try:
            acquired = slots.acquire(needed)
        except OSError as error:  # not the user's: their code has run, or has yet to
            self.slots, acquired, missed = None, None, f"workers cannot reach the slots ({error})"
        if acquired is not None:
            stamp, buffer = acquired
            packer = Packer(buffer)
            try:
                packed = packer.pack(collate_into(packer, samples) if stacks else data)
                if packed.nbytes:
                    return HostBatch(packed, worker, self.receiver, stamp)
                data = packed.tree
            except DoesNotFitError:
                missed = "larger than a slot"
            except BaseException:
                slots.give_back(stamp)
                raise
            slots.give_back(stamp)
        if data is None:
            data = self.collate_fn(samples)
        return HostBatch(data, worker, self.receiver, missed=missed)


class NamedStages:
    """A worker's first call: gives its ``fetch`` a range, then runs the user's ``worker_init_fn``."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self.worker_init_fn = worker_init_fn

    def __call__(self, worker_id: int) -> None:  # noqa: D102
        _nvtx.instrument_fetch()
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


class Arrival:
    """One batch between its arrival on the host and its hand-over."""

    __slots__ = ("__weakref__", "copied", "data", "lease", "small", "worker")

    def __init__(self, data: Any, worker: int, lease: Lease | None = None, small: torch.Tensor | None = None) -> None:
        self.data = data
        self.worker = worker
        self.lease = lease
        self.small = small
        self.copied: DeviceBatch | None = None

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


class Arrivals:
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
        tuple_type: See :func:`fastload.host.map_leaves`.
        slots: The pool that workers write into, or ``None``.
    """

    def __init__(
        self,
        transfer: Transfer,
        num_workers: int,
        ahead: int,
        pin: bool,
        tuple_type: type | None,
        slots: SlotPool | None = None,
    ) -> None:
        self.transfer = transfer
        self.key = register(self)
        self._ahead = ahead
        self._pin = pin
        self._tuple_type = tuple_type
        self._slots = slots
        self.in_slots = 0
        self.missed: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._num_workers = max(1, num_workers)
        self._pause = False
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._waiting: list[deque[weakref.ref[Arrival]]] = [deque() for _ in range(self._num_workers)]
        self._ended = [False] * self._num_workers
        self._next_worker = 0
        self._taken = 0

    def arrive(self, batch: HostBatch) -> Arrival:
        """Pin a batch and start its copy if its turn is near. Called by torch's pin-memory thread."""
        arrival = self._open(batch)
        with self._lock:
            self._waiting[arrival.worker].append(weakref.ref(arrival))
            self._start_next()
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
        if self._slots is not None and batch.missed is not None:
            warming_up = not self.in_slots and batch.missed == NONE_FREE
            self.missed[self._slots.refusal or ("slots not ready yet" if warming_up else batch.missed)] += 1
            self._slots.want(packed_bytes(batch.data))
        return Arrival(map_leaves(others, batch.data, self._tuple_type), worker)

    def take(self, arrived: Any) -> Any:
        """Hand over the batch that torch's iterator has just given out. Called by the consumer."""
        self.transfer.mark_step()
        arrival = arrived if isinstance(arrived, Arrival) else self._open(arrived)
        with self._lock:
            self._advance(arrival)
            copied = arrival.copied
            if copied is None:
                self.transfer.wait_for_room()
                copied = arrival.start(self.transfer, self._taken)
            self._taken += 1
        data = self.transfer.take(copied)
        with self._lock:
            self._start_next()
        return data

    def _advance(self, arrival: Arrival) -> None:
        while self._next_worker != arrival.worker:
            self._ended[self._next_worker] = True
            self._next_worker = (self._next_worker + 1) % self._num_workers
        queue = self._waiting[arrival.worker]
        while queue:
            known = queue.popleft()()
            if known is arrival:
                break
        self._next_worker = (arrival.worker + 1) % self._num_workers

    def _start_next(self) -> None:
        """Copy what is next in turn and has arrived."""
        if self._pause or not self._ahead:
            return
        turns = [w % self._num_workers for w in range(self._next_worker, self._next_worker + self._num_workers)]
        turns = [worker for worker in turns if not self._ended[worker]] or turns
        for step in range(self._ahead):
            position, turn = divmod(step, len(turns))
            queue = self._waiting[turns[turn]]
            while queue and queue[0]() is None:  # dropped by torch: a leftover of an epoch that was broken off
                queue.popleft()
            arrival = queue[position]() if position < len(queue) else None
            if arrival is None or arrival.copied is not None:
                continue
            if not self.transfer.has_room():
                return
            try:
                arrival.start(self.transfer, self._taken + step)
            except Exception:  # noqa: BLE001 - out of memory, or a custom type's own error
                return  # the consumer meets it in its own thread and turn: there this copy is tried again

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
            self._start_next()


def _pinned(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.pin_memory() if leaf.device.type == "cpu" and leaf.layout == torch.strided else leaf
    return leaf.pin_memory()


def _unchanged(leaf: Any) -> Any:
    return leaf


def view_of(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """A plain DataLoader that shares everything with ``loader`` but ``changes``; ``loader`` is left as it is."""
    view: DataLoader[Any] = object.__new__(DataLoader)
    refresh(view, loader, **changes)
    return view


def refresh(view: DataLoader[Any], loader: DataLoader[Any], **changes: Any) -> None:
    """Bring ``view`` up to date with attributes of ``loader`` that were set since, as frameworks do."""
    state = {name: value for name, value in vars(loader).items() if name != "_iterator"}
    vars(view).update(state, **changes)
    vars(view).setdefault("_iterator", None)


def stages_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """What to change on a view so that a profiler sees the workers' stages; nothing when no profiler listens."""
    if not _nvtx.active():
        return {}
    return {"worker_init_fn": NamedStages(loader.worker_init_fn)} if loader.num_workers else {}
