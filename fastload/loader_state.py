"""State of a loader beyond its arguments: iterators in use, slots, copy streams, statistics."""

from __future__ import annotations

import copy
import functools
import os
import threading
import weakref
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from fastload.autoscale.policy import NATIVE_STREAMS, AutoWorkers, choose_processes, cores_for_loading
from fastload.check.results import ParityResults
from fastload.device.transfer import Transfer, new_stream
from fastload.memory.limits import pinned_limit, slots_wanted
from fastload.memory.slots import SlotCounts, SlotPool
from fastload.options import has_own_iter, has_own_iterator, makes_itself
from fastload.randomness.by_sample import Epochs
from fastload.route import RouteReader
from fastload.state.place import LoaderPlace
from fastload.stats.gpu_utilization import Utilization
from fastload.stats.meter import Meter, Meters
from fastload.stats.stats import Stats, Totals, make_stats
from fastload.stats.steady_state import SteadyState
from fastload.torch_workers.processes import end_former, end_iterator
from fastload.torch_workers.signals import Finalizer

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from fastload import _core
    from fastload.device.copy_scheduler import CopyScheduler
    from fastload.device.decode.choice import DecodeChoice
    from fastload.device.decode.files import Decoder
    from fastload.device.decode.policy import DecodePolicy
    from fastload.device.decode.received import Painter
    from fastload.memory.buffers import BufferPool
    from fastload.options import Decode, LoaderConfig
    from fastload.pipeline.recipe import Recipe
    from fastload.python_samples.seeding_process import SeedingProcess
    from fastload.route import Route

ITERATOR_CLOSED: Final = "the FastLoader of this iterator was closed"


class LoaderState:
    """Holds a loader's state. Iterators refer to it too.

    A copy, pickled or not, is new but for its place.

    Args:
        place: Where its newest iteration is.
    """

    def __init__(self, place: LoaderPlace | None = None) -> None:
        self.place = place or LoaderPlace()
        self.live: weakref.WeakSet[Any] = weakref.WeakSet()
        self.begun = 0  # iterations begun, including failed ones
        self.is_followed = False  # ``fastload run`` measures what a subclass makes
        self.is_passed_by = False  # an ``__iter__`` of a subclass has made torch's iterator without asking for ours
        self.slots: SlotPool | None = None
        self.checks = ParityResults()
        self.reader = RouteReader()
        self.engine_logged = False
        self.errors_warned = False  # that ranks may have different numbers of batches
        self.spares: list[Any] = []  # arrays of the last epoch's samples
        self._seeding: SeedingProcess | None = None
        self._streams: dict[torch.device, Any] = {}
        self._meters = Meters()
        self.steady = _followed(self)
        self.utilizations: dict[torch.device, Utilization] = {}
        self._lock = threading.RLock()  # a finalizer may run in a thread that holds it
        self._pid = os.getpid()
        self._transfers: dict[int, tuple[Transfer, CopyScheduler | None]] = {}  # of iterators in use
        self._before = Totals()  # of iterators that have ended
        self._missed = Counter[str]()
        self._buffers: BufferPool | None = None
        self._closed = False
        self._pool: tuple[int, _core.Pool] | None = None  # with the process that its threads are in
        self._index: tuple[int, _core.JpegIndex] | None = None  # with its process; a fork may copy held locks
        self._decoders: dict[torch.device, Decoder] = {}
        self.decode_policies: dict[torch.device, DecodePolicy] = {}
        self._painter: Painter | None = None
        self._indexed = 0, 0  # bytes of the index and images, once it is closed
        self._sized: tuple[int, Stats] | None = None  # last chosen number of workers, and the statistics then

    def __reduce__(self) -> Any:
        return LoaderState, (copy.copy(self.place),)

    def of_copies(self) -> dict[str, LoaderState]:
        """Return the attributes of a loader's copies that come from here."""
        return {} if self.place.loaded is None else {"_state": LoaderState(copy.copy(self.place))}

    def copy_stream(self, device: torch.device) -> Any:
        """Return the device's copy stream. Kept across epochs: torch caches device memory by stream."""
        if device not in self._streams:
            self._streams.setdefault(device, new_stream(device))  # the same one for two threads
        return self._streams[device]

    def slot_pool(self, loader: LoaderConfig[Any], route: Route) -> SlotPool | None:
        """Return the loader's slots, made on first use and kept across epochs."""
        if route.no_slots is not None:
            return None
        if self.slots is None:
            self.slots = SlotPool(slots_wanted(loader), pinned_limit(loader), loader.num_workers, device=route.device)
            Finalizer(self, self.slots.close)
        self.slots.reclaim()
        return self.slots

    def painter(self, loader: LoaderConfig[Any], route: Route, slots: SlotPool) -> Painter | None:
        """Return what lets workers stage deferred tensors in slots; kept with these across epochs."""
        if loader.decode == "cpu" or not route.is_deferred or route.not_on_gpu is not None:
            slots.paints = False
            return None
        if self._painter is None or self._painter.slots is not slots:
            from fastload.deferred.staging import paint_images
            from fastload.device.decode.received import Painter

            make_decoder = functools.partial(_decoder_of, weakref.ref(self), route.device)
            self._painter = Painter(make_decoder, slots, paint_images, loader.memory_format)
        slots.paints = self._painter.is_ready
        return self._painter

    @property
    def buffers(self) -> BufferPool:
        """Pinned memory for the pixels of batches, kept across epochs."""
        from fastload.memory.buffers import BufferPool

        with self._lock:
            self._buffers = self._buffers or BufferPool()
            return self._buffers

    @property
    def seeding(self) -> SeedingProcess:
        """Runs ``worker_init_fn`` for native epochs, if that only seeds."""
        from fastload.python_samples.seeding_process import SeedingProcess

        with self._lock:
            self._seeding = self._seeding or SeedingProcess()
            return self._seeding

    def decode_pool(self) -> _core.Pool:
        """Return the threads that decode for iterators without workers, shared by all of them."""
        from fastload import _core

        with self._lock:
            if self._closed:
                raise RuntimeError(ITERATOR_CLOSED)
            if self._pool is None or self._pool[0] != os.getpid():
                self._pool = os.getpid(), _core.Pool(cores_for_loading())
            return self._pool[1]

    def decode_choice(
        self,
        loader: LoaderConfig[Any],
        route: Route,
        totals: Callable[[], Totals] | None,
    ) -> DecodeChoice | None:
        """Return what decides for an iterator's batches, or None if the threads decode all.

        What has been learnt about the device is kept across epochs.

        Args:
            loader: Its options count.
            route: What makes the epoch.
            totals: Returns the device clock's totals; ``None`` without a clock.

        Raises:
            RuntimeError: The threads have to decode all, and ``decode="gpu"``.
        """
        decoder = self.decoder(loader.decode, route.device, route.not_on_gpu)
        if decoder is None:
            return None
        from fastload.device.decode.choice import DecodeChoice
        from fastload.device.decode.kept import files_on
        from fastload.device.decode.policy import DecodePolicy

        kept = None
        if loader.device_cache_bytes:
            kept = decoder.kept = decoder.kept or files_on(route.device, loader.device_cache_bytes)
        policy = None if loader.decode == "gpu" else self.decode_policies.setdefault(route.device, DecodePolicy())
        return DecodeChoice(decoder, policy, totals=totals, kept=kept)

    def decoder(self, decode: Decode, device: torch.device, why_not: str | None = None) -> Decoder | None:
        """Return what decodes on the device, or None if the threads decode.

        It is kept across epochs.

        Args:
            decode: The loader's option; ``"gpu"`` waits until kernels are compiled.
            device: Where batches go.
            why_not: Why it cannot; see :class:`~fastload.route.Route`.

        Raises:
            RuntimeError: They have to, and ``decode="gpu"``.
        """
        if decode == "cpu":
            return None
        if why_not is None:
            from fastload.device.decode.files import Decoder

            decoder = self._decoders.get(device) or self._decoders.setdefault(device, Decoder(device))
            decoder.waits = decode == "gpu"
            if decoder.is_ready() or decoder.gave_up is None or decoder.kernels:  # else it has never decoded
                return decoder
            why_not = decoder.gave_up
        if decode == "gpu":
            raise RuntimeError(f"decode='gpu' cannot be used: {why_not}")
        return None

    def not_decoding_because(self, device: torch.device) -> str | None:
        """Why the device does not decode after all; ``None`` if unknown."""
        decoder = self._decoders.get(device)
        return None if decoder is None else decoder.gave_up

    def compiles(self, device: torch.device) -> bool:
        """Whether the device's kernels are being compiled, so that it does not decode yet."""
        decoder = self._decoders.get(device)
        return decoder is not None and decoder.is_compiling

    def with_index(self, loader: LoaderConfig[Any], recipe: Recipe, *, whole: bool = False) -> Recipe:
        """Add the index of JPEG files to what decodes them; it is kept across epochs.

        Args:
            loader: Bounds it.
            recipe: How to make the loader's samples.
            whole: Whether files are indexed to their ends, for a GPU.
        """
        if not loader.max_index_bytes:
            return recipe
        from fastload import _core

        with self._lock:
            if self._index is None or self._index[0] != os.getpid():
                self._index = os.getpid(), _core.JpegIndex(loader.max_index_bytes, whole)
            return replace(recipe, options={**recipe.options, "index": self._index[1]})

    def size_workers(self, loader: LoaderConfig[Any], *, native: bool = False) -> None:
        """Choose ``num_workers`` for the next epoch if it is ``"auto"``.

        Args:
            loader: The loader to change.
            native: Whether to size for the native engine's threads instead of worker processes.
        """
        workers: Any = loader.num_workers
        if not isinstance(workers, AutoWorkers):
            return
        if native:
            loader.num_workers = AutoWorkers(NATIVE_STREAMS, workers.sizing)
            return
        now = self.stats(workers.sizing.processes or workers)
        if not choose_processes(loader, now.since(self._sized[1]) if self._sized is not None else None):
            return
        before, self._sized = self._sized, (int(loader.num_workers), now)
        if before is None or before[0] == loader.num_workers:
            return
        end_former(loader)  # persistent workers, now too many or too few
        if self.slots is not None and not self._transfers:
            self.slots.close()
            self.slots = None

    def drop_inherited(self, loader: LoaderConfig[Any]) -> None:
        """Forget, in a forked child, iterators, workers, slots and locks of the parent's."""
        if self._pid == os.getpid():
            return
        self._pid, self._lock = os.getpid(), threading.RLock()
        self._transfers, self._sized = {}, None
        self._meters.drop_inherited()
        self.place.errors.drop_inherited()
        self.reader = RouteReader()
        self.steady, self.utilizations = _followed(self), {}
        self.slots = self._buffers = self._painter = None
        if not has_own_iterator(loader):
            loader._iterator = None

    def add(
        self,
        iterator: Any,
        meter: Meter,
        transfer: Transfer | None = None,
        scheduler: CopyScheduler | None = None,
    ) -> None:
        """Count a new iterator's figures, and close it with the loader."""
        if transfer is not None:
            self.take_in(transfer, scheduler)
        self.measure(iterator, meter)
        self.live.add(iterator)

    def measure(self, iterator: Any, meter: Meter) -> None:
        """Count ``meter`` while ``iterator`` lives, and keep its totals afterwards."""
        meter.steady = self.steady
        self.steady.follow(*meter.made_ahead)
        Finalizer(iterator, self._meters.open(meter)).atexit = False

    @property
    def totals(self) -> Totals:
        """Counts over all epochs, without those of copies."""
        return self._meters.totals()

    def take_in(self, transfer: Transfer, scheduler: CopyScheduler | None = None) -> None:
        """Count an iterator's copies until :meth:`retire`."""
        if transfer.clock is not None:
            made = Utilization(transfer.device, self.steady)
            transfer.utilization = self.utilizations.setdefault(transfer.device, made)  # the same one for two threads
        with self._lock:
            self._transfers[id(transfer)] = (transfer, scheduler)

    def retire(self, transfer: Transfer, scheduler: CopyScheduler | None = None) -> None:
        """Keep the totals of an iterator that ends."""
        if os.getpid() != self._pid or id(transfer) not in self._transfers:
            return  # the parent's, in a forked child: another thread may have held a lock
        totals, missed = Totals(), Counter[str]()
        self._count(transfer, scheduler, totals, missed)  # not under the lock, as in stats()
        with self._lock:
            if self._transfers.pop(id(transfer), None) is None:
                return
            self._before.add(totals)
            self._missed.update(missed)

    @staticmethod
    def _count(transfer: Transfer, scheduler: CopyScheduler | None, totals: Totals, missed: Counter[str]) -> None:
        totals.add(transfer.totals())
        if scheduler is not None:
            totals.add(scheduler.totals())
            missed.update(scheduler.missed)

    def stats(self, workers: int) -> Stats:
        """Return the statistics of all iterators so far."""
        with self._lock:
            totals, missed = self._before.copy(), self._missed.copy()
            transfers, decoders = list(self._transfers.values()), list(self._decoders.values())
        # Not under the lock: a thread that holds a transfer's lock takes ours if the collector ends an iterator there.
        for transfer, scheduler in transfers:
            self._count(transfer, scheduler, totals, missed)
        totals.add(self._meters.totals())
        totals["errors"] = self.place.errors.failed
        for utilization in list(self.utilizations.values()):
            totals.add(utilization.totals())
        index = self._index  # close() may take it in another thread
        counts = self.slots.counts() if self.slots is not None else SlotCounts(0, 0, 0)
        ready, on_device = self._meters.ready()
        on_device += sum(scheduler.copied_ahead() for _, scheduler in transfers if scheduler is not None)
        queues = {"ready": max(0, ready - on_device), "device": on_device} if ready or on_device else {}
        return make_stats(
            totals,
            places=self._meters.places(),
            missed=missed,
            workers=workers,
            slots=(counts.slots, counts.slot_bytes, counts.pinned_bytes),
            queues=queues,
            index=self._indexed if index is None else _counts(index[1]),
            gpu_decode_bytes=sum(decoder.nbytes for decoder in decoders),
        )

    @property
    def refused_in_workers(self) -> str | None:
        """Why a worker gave up making samples natively; ``None`` if none did."""
        return next(iter(self._meters.places()[3]), None)

    def check_open(self) -> None:
        """Count a new iteration; raise if the loader is closed."""
        self.begun += 1
        self.is_passed_by = False
        if self._closed:
            raise RuntimeError("this FastLoader is closed; make a new one to iterate again")

    def makes_own(self, loader: LoaderConfig[Any]) -> bool:
        """Whether the loader makes its iterators itself, as far as is known."""
        return self.is_passed_by or has_own_iterator(loader)

    def worker_pids(self) -> list[int]:
        """The worker processes of iterators in use."""
        return [worker.pid for iterator in list(self.live) for worker in getattr(iterator, "_workers", ())]

    def unseen(self, loader: LoaderConfig[Any]) -> str | None:
        """Why the loader's batches may not be seen; ``None`` if they are."""
        if self.makes_own(loader):
            return f"this loader makes its iterator itself: {makes_itself(loader)}"
        return self.not_asked_by(loader)

    def not_asked_by(self, loader: LoaderConfig[Any]) -> str | None:
        """Say that a subclass's ``__iter__`` has asked for no iterator; ``None`` if it has."""
        if self.begun or self.makes_own(loader) or not has_own_iter(loader):
            return None
        return f"{makes_itself(loader)}, which has not asked FastLoader for an iterator so far"

    def close(self) -> None:
        """End iterators, streams and slots. Idempotent."""
        self._closed = True
        for iterator in list(self.live):
            end_iterator(iterator)
        self._streams.clear()
        self._decoders.clear()
        self._painter = None
        self._buffers = None
        pool, self._pool = self._pool, None
        if pool is not None and pool[0] == os.getpid():
            pool[1].close()
        index, self._index = self._index, None
        if index is not None:
            self._indexed = 0, _counts(index[1])[1]
        if self.slots is not None:
            self.slots.close()
        if self._seeding is not None:
            self._seeding.close()


def _followed(state: LoaderState) -> SteadyState:
    state_of = weakref.ref(state)  # an iterator's meter refers to it, too

    def snapshot() -> Stats:
        found = state_of()
        return Stats() if found is None else found.stats(0)

    return SteadyState(snapshot)


def _decoder_of(state: Callable[[], LoaderState | None], device: torch.device) -> Decoder | None:
    found = state()
    return None if found is None else found.decoder("auto", device)


def _counts(index: _core.JpegIndex) -> tuple[int, int]:
    size, _, found, _, _ = index.totals()
    return size, found


def state_of(loader: Any) -> LoaderState:
    """Return a loader's state; makes one if it has none, as in a copy. Thread-safe."""
    state: LoaderState | None = vars(loader).get("_state")
    if state is None:
        state = vars(loader).setdefault("_state", LoaderState())  # the same one for two threads
    return state


def epochs_of(loader: Any) -> Epochs | None:
    """A loader's seed and epoch; ``None`` unless ``randomness="sample"``."""
    return state_of(loader).place.epochs_of(loader)
