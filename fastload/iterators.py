"""Iterators over native batches (host or device) and over torch's batches (device)."""

from __future__ import annotations

import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from fastload._batch import as_inference_tensors
from fastload.bad_samples import ahead_of
from fastload.device.copy_scheduler import CopyScheduler
from fastload.device.normalize import layout_of, table_images
from fastload.device.transfer import AT_ONCE_MAX_BYTES, DeviceBatch, Transfer
from fastload.loader_state import ITERATOR_CLOSED, epochs_of, state_of
from fastload.memory.limits import pins
from fastload.memory.slots import SlotWriter
from fastload.nvtx import stages
from fastload.nvtx.stages import stage
from fastload.options import begin_again, can_pin, has_streams
from fastload.randomness.by_sample import seeded
from fastload.stats.meter import Meter, counters_for, measure, measure_here, next_epoch
from fastload.torch_workers.processes import after_error, check_process, restart_workers, shut_down
from fastload.torch_workers.signals import Finalizer, deferred_signals
from fastload.torch_workers.view import refresh, view_of
from fastload.workers.start import Collate, next_of, start_epoch
from fastload.workers.worker import setup_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from fastload.device.host_images import HostImages
    from fastload.native.in_next import InProcessFetcher
    from fastload.native.iterator import NativeIterator
    from fastload.options import LoaderConfig
    from fastload.pipeline.datasets.samples import Collated
    from fastload.pipeline.ops.erasing import Patch
    from fastload.pipeline.recipe import Recipe
    from fastload.python_samples.sample_process import SampleProcess
    from fastload.route import Route


def start_native(loader: LoaderConfig[Any], route: Route) -> Any:
    """Start an iterator that runs a loader's recipe on decode threads.

    Returns ``None`` if the recipe cannot be copied or fails its check, or its process cannot be started; the loader's
    next route says which.

    Raises:
        RuntimeError: The check fails and ``engine="native"``.
    """
    from fastload.native.processes import own_process, sample_process

    state, native, device = state_of(loader), cast("Any", None), route.device
    recipe: Any = route.recipe
    try:
        recipe = recipe.snapshot(state.spares)
    except Exception as error:  # torch's workers copy nothing if they are forked
        if loader.engine == "native":
            raise
        state.checks.start_failed(loader, recipe, f"the dataset cannot be copied: {type(error).__name__}: {error}")
        return None
    process = sample_process(loader, recipe)
    if process is None:
        return None
    try:
        if not state.checks.passes(loader, recipe, process):
            return None
        own = own_process(loader, recipe, process)
        if own is None:
            return None
        if device.type == "cpu":
            native = cast("Any", native_on_host(loader, recipe, own))
            native._reset = Reset(native)
            state.add(native, measure(native, native_meter(native, loader)))
        else:
            native = NativeDeviceIterator(loader, recipe, own, route)
            state.add(native, native.meter, native.transfer)
        return native
    finally:
        if native is None:  # no one needs the process any more
            process.kill()
            process.close()


def native_on_host(loader: LoaderConfig[Any], recipe: Recipe, process: SampleProcess) -> NativeIterator:
    """Return an iterator over native batches in host memory, as torch's workers make them."""
    from fastload.device.host_images import host_images_of
    from fastload.native.iterator import NativeIterator

    pinned = loader.pin_memory and can_pin()

    def finish_batch(made: HostImages, patches: list[list[Patch]], rest: Collated, number: int) -> Any:
        data = rest.around(made.images(patches))
        return pin_memory(data) if pinned else data  # type: ignore[no-untyped-call]

    return NativeIterator(loader, recipe, process, finish_batch, host_images=host_images_of(recipe, loader.dtype))


def fetcher_in_process(loader: LoaderConfig[Any], route: Route) -> InProcessFetcher | None:
    """Return a native fetcher for torch's own iterator; ``None`` unless a recipe runs without workers.

    Raises:
        RuntimeError: The recipe fails its check and ``engine="native"``.
    """
    if route.maker != "next":
        return None
    from fastload.native.in_next import InProcessFetcher

    fetcher = InProcessFetcher(loader, route.device)
    return fetcher if fetcher.is_native else None


def native_meter(native: NativeIterator, loader: LoaderConfig[Any], *, on_device: bool = False) -> Meter:
    """A native iterator's meter; ``on_device`` says whether finished batches are on a device."""
    pipeline = native.decode_pipeline
    return Meter(None, loader.batch_size, pipeline.totals, waiting=lambda: pipeline.ready, on_device=on_device)


class Reset:
    """Replaces ``_reset`` of a torch iterator, or one derived from torch's.

    For programs that keep the iterator and call that. It is held weakly.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = weakref.ref(iterator)

    def __call__(self, loader: LoaderConfig[Any], first_iter: bool = False) -> None:
        """Begin another epoch."""
        iterator: Any = self._iterator()
        begin_again(loader, iterator, functools.partial(next_epoch, iterator, loader))


def _end(closers: Iterable[Callable[[], None]], retire: Callable[[], None]) -> None:
    """Release what a device iterator held, and keep its totals. Idempotent."""
    with deferred_signals():
        for close in closers:
            close()
        retire()


class DeviceIterator:
    """Iterates over batches of an iterator on the host, and copies them to a device.

    Subclasses make the host iterator. Dropping a device iterator closes it.

    Args:
        loader: Its state counts the batches.
        device: The target device, with an index.
        transfer: Copies to it.
        meter: Measures the waits.
        closers: Called in this order at the end. They are idempotent and do not refer to the iterator.
        scheduler: Schedules the copies; its totals are kept with the transfer's.
    """

    _host: Any

    def __init__(
        self,
        loader: LoaderConfig[Any],
        device: torch.device,
        transfer: Transfer,
        meter: Meter,
        closers: Iterable[Callable[[], None]],
        scheduler: CopyScheduler | None = None,
    ) -> None:
        self.device = device
        self.transfer = transfer
        self.meter = meter
        self._closed = False
        self.consuming = threading.RLock()  # one next() at a time: threads may share the iterator, as torch's
        retire = functools.partial(state_of(loader).retire, transfer, scheduler)
        self._end = functools.partial(_end, closers, retire)
        self._finalizer = Finalizer(self, self._end)

    def begin_epoch(self, loader: LoaderConfig[Any]) -> Self:
        """Begin another epoch with the same workers or decode threads."""
        if self._closed:
            raise RuntimeError(ITERATOR_CLOSED)
        check_process(self._host)  # another thread of the parent may have held the scheduler's lock
        try:
            self._restart(loader)
        except BaseException:
            if getattr(self._host, "_shutdown", False):  # the next epoch makes a new iterator
                loader._iterator = None
                self._shutdown_workers()
            raise
        self.transfer.begin_epoch()
        self.meter.begin_epoch()
        return self

    def _restart(self, loader: LoaderConfig[Any]) -> None:
        raise NotImplementedError

    def _reset(self, loader: LoaderConfig[Any], first_iter: bool = False) -> None:
        """Begin another epoch for a program that keeps the iterator, as torch's does."""
        begin_again(loader, self, functools.partial(self.begin_epoch, loader))

    def _next_data(self) -> Any:
        return next(self)  # the host's are not finished

    def _take(self, host: Any) -> tuple[Any, int | None, tuple[tuple[str, float], ...], int]:
        """Return the next batch on the device, and the last three arguments of :meth:`Meter.got`."""
        raise NotImplementedError

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._host)

    def __next__(self) -> Any:
        with self.consuming:
            host = self._host
            if self._closed:
                raise RuntimeError(ITERATOR_CLOSED)
            self.transfer.mark_step()  # before the wait, which is not part of the step
            meter = self.meter
            asked = meter.ask()
            try:
                data, batch, stages, images = self._take(host)
            except BaseException as error:
                meter.stop()
                meter.ended = isinstance(error, StopIteration)
                if not meter.ended:
                    after_error(host, error)
                raise
            meter.got(asked, batch, stages, images)
            if torch.is_inference_mode_enabled() and self.device.type != "cpu":  # else torch's, or made in this thread
                return as_inference_tensors(data)
            return data

    def __getattr__(self, name: str) -> Any:
        # The host iterator supplies torch's attributes (`_workers`, `_num_yielded`, ...).
        host = self.__dict__.get("_host")
        if host is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(host, name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        host = own.get("_host")
        if host is None or name in own or name not in vars(host):
            own[name] = value
        else:
            setattr(host, name, value)

    def __getstate__(self) -> dict[str, Any]:
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)  # torch's words

    @property
    def host(self) -> Any:
        """The iterator on the host; ``None`` if closed."""
        return self._host

    @property
    def is_closed(self) -> bool:
        """Whether the iterator was closed; persistent workers then need a new one."""
        return self._closed

    # Not `close`, which a generator calls that delegates to the iterator (`yield from loader`) when it is left.
    def _shutdown_workers(self) -> None:
        """End the host iterator with its workers and threads, and wait for the copies.

        Idempotent; if interrupted, a second call completes it.
        """
        self._closed = True
        if self._host is not None:
            shut_down(self._host)
        self._host = None
        self._end()  # not the finalizer: an interrupt could mark it as done before it has called
        self._finalizer.detach()


class NativeDeviceIterator(DeviceIterator):
    """Copies native batches to a device as soon as they are made.

    Args:
        loader: See :class:`~fastload.native.iterator.NativeIterator`.
        recipe: How to make the loader's samples; a snapshot.
        process: See :class:`~fastload.native.pipeline.DecodePipeline`.
        route: What makes the epoch.
    """

    runs_recipe = True

    def __init__(self, loader: LoaderConfig[Any], recipe: Recipe, process: SampleProcess, route: Route) -> None:
        from fastload.native.iterator import NativeIterator

        device = route.device
        stream = state_of(loader).copy_stream(device) if loader.device_prefetch else None
        transfer = Transfer(device, stream, None, loader.dtype)
        pinned = pins(loader, device)
        images_of = table_images(recipe, layout_of(loader.memory_format))
        totals = None if transfer.clock is None else transfer.totals
        choice = state_of(loader).decode_choice(loader, route, totals)
        if choice is not None:
            choice.has_room = transfer.has_room

        def finish_batch(pixels: torch.Tensor, patches: list[list[Patch]], rest: Collated, number: int) -> Any:
            data = rest.around(images_of(pixels, patches), pin_large if pinned else lambda data: data)
            return data if stream is None else transfer.start(data, number)

        host = NativeIterator(
            loader,
            recipe,
            process,
            finish_batch,
            allocate=state_of(loader).buffers.take if pinned else None,
            ahead=max(1, loader.device_prefetch),
            device=device,
            choice=choice,
            device_totals=totals,
        )
        meter = native_meter(host, loader, on_device=stream is not None)
        super().__init__(loader, device, transfer, meter, (host.decode_pipeline.close, transfer.close))
        self.consuming = host.turn
        self._host = host

    def _restart(self, loader: LoaderConfig[Any]) -> None:
        self._host._reset(loader)

    def __next__(self) -> Any:
        host = self._host
        data = super().__next__()
        batch = host.claimed[threading.get_ident()]
        batch.taken = True  # see NativeIterator.__next__
        batch.data = None
        return data

    def _take(self, host: Any) -> tuple[Any, int | None, tuple[tuple[str, float], ...], int]:
        number = host._num_yielded
        batch = host.fetch()
        copied = batch if isinstance(batch, DeviceBatch) else self.transfer.start(batch, number)
        data = self.transfer.take(copied)
        pipeline = host.decode_pipeline
        return (
            data,
            None,
            (("decode", pipeline.decoded_at), *copied.stages),
            pipeline.images,
        )


def pin_large(data: Any) -> Any:
    """Pin a batch's tensors.

    Leaves a single one that is so small that CUDA takes it along with the call of the copy.
    """
    small = isinstance(data, torch.Tensor) and data.nbytes <= AT_ONCE_MAX_BYTES and torch.version.cuda is not None
    return data if small else pin_memory(data)  # type: ignore[no-untyped-call]


def _pinned_tuple_type() -> type:
    """The installed torch's type of a pinned tuple: a list in some versions."""
    return type(pin_memory((1,)))  # type: ignore[no-untyped-call]


class TorchDeviceIterator(DeviceIterator):
    """Copies the batches of torch's own iterator to a device.

    Iterates over one epoch, or, with persistent workers, over several in turn.
    """

    def __init__(self, loader: LoaderConfig[Any], route: Route) -> None:
        state, device = state_of(loader), route.device
        self._route = route
        side_stream = state.copy_stream(device) if has_streams(device) and loader.device_prefetch else None
        memory_format = None if device.type == "cpu" else loader.memory_format
        transfer = Transfer(device, side_stream, memory_format, loader.dtype)
        self._pins = pins(loader, device)
        asked_to_pin = loader.pin_memory and can_pin()
        takes_turns = loader.in_order and loader.num_workers > 0
        self._native = fetcher_in_process(loader, route)
        slots = state.slot_pool(loader, route) if self._native is None else None
        self.scheduler = scheduler = CopyScheduler(
            transfer,
            num_workers=loader.num_workers if takes_turns else 1,
            ahead=loader.device_prefetch if side_stream is not None else 0,
            pin=self._pins or (asked_to_pin and device.type == "cpu"),
            tuple_type=_pinned_tuple_type() if asked_to_pin else None,
            slots=slots,
            borrows=loader.num_workers == 0,
            painter=None if slots is None else state.painter(loader, route, slots),
        )
        writer = None if slots is None else SlotWriter(slots.handle)
        self._collate = Collate(loader.collate_fn, scheduler.key, writer)
        self._number = 0
        self._counters = counters_for(loader, state.totals) if self._native is None else None
        meter = Meter(self._counters, loader.batch_size, None if self._native is None else self._native.totals)
        super().__init__(loader, device, transfer, meter, (scheduler.close,), scheduler)  # which closes the transfer
        self._view = view_of(loader, **self._changes(loader))
        scheduler.serve(self)
        pids = [] if slots is None else slots.open_for(self)
        self._host = start_epoch(self._view, state.place.resumption)
        if loader.on_error != "raise":
            from fastload.workers.tolerant import take_apart

            take_apart(loader, self._host)
        pids += [worker.pid for worker in getattr(self._host, "_workers", ())]
        self._counts_up = loader.in_order and loader.num_workers > 0  # torch's count is then the batch's number
        if self._native is not None:
            self._native.install(self._host, scheduler.key)
        measure_here(self._host, meter, at_once=loader.engine != "torch")
        state.add(self, meter, transfer, scheduler)

    def _changes(self, loader: LoaderConfig[Any]) -> dict[str, Any]:
        """The view's differences from the loader, such as delivery by torch's pin-memory thread."""
        if not loader.num_workers:
            stages.instrument_fetch()  # the main process is the worker
        index_sampler = ahead_of(loader._index_sampler, loader.on_error)
        changes: dict[str, Any] = {"collate_fn": self._collate, "_index_sampler": index_sampler}
        if self._counters is not None and loader.num_workers:
            changes["worker_init_fn"] = setup_of(loader, self._route, self._counters)
        if self._pins:
            changes |= {"pin_memory": True}
            if not loader.pin_memory:
                changes |= {"pin_memory_device": ""}  # torch warns about it, but only if the user asked to pin
        elif self.device.type != "cpu":
            changes |= {"pin_memory": False}
        epochs = epochs_of(loader)
        return changes if epochs is None else seeded(loader, changes, epochs, vars(self).get("_view"))

    def _restart(self, loader: LoaderConfig[Any]) -> None:
        self.scheduler.pause()
        refresh(self._view, loader, **self._changes(loader))
        restart_workers(self._host, lambda: self._host._reset(self._view))
        self.scheduler.resume()
        self._number = 0

    def _take(self, host: Any) -> tuple[Any, int | None, tuple[tuple[str, float], ...], int]:
        with stage("wait", self._number):
            try:
                arrived = next_of(host)
            finally:
                if self._counts_up:
                    self.meter.received = host._rcvd_idx
        self._number += 1
        data = self.scheduler.take(arrived)
        if (native := self._native) is not None:
            return data, None, (("decode", native.decoded_at), *self.scheduler.stages), native.images
        return data, self._batch(host), self.scheduler.stages, 0

    def _batch(self, host: Any) -> int | None:
        """The shared counters' number of the batch that torch's iterator has just returned."""
        if self._counts_up:
            return int(host._rcvd_idx) - 1
        return None if host._num_workers else self._number - 1 + getattr(host, "left_out", 0)
