"""FastLoader: torch's DataLoader with the device side built in.

It only coordinates; native/, workers/ and device/ do the work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import operator
import warnings
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypeVar, Unpack, cast

import torch
from torch.utils.data import DataLoader

from fastload._display import card, table
from fastload.autoscale.policy import AutoWorkers, auto_workers
from fastload.bad_samples import ahead_of
from fastload.check.results import level_outside
from fastload.iterators import DeviceIterator, Reset, TorchDeviceIterator, fetcher_in_process, start_native
from fastload.loader_state import LoaderState, state_of
from fastload.options import (
    ERRORS_MAX,
    INDEX_BYTES,
    Decode,
    Device,
    DeviceCacheBytes,
    Engine,
    LoaderConfig,
    OnError,
    Options,
    OwnArguments,
    Randomness,
    check_on_error,
    has_own_iter,
    has_own_iterator,
    name_of_dataset,
    named_options,
)
from fastload.randomness.by_sample import check_seedable
from fastload.state import save
from fastload.stats.meter import Meter, counters_for, measure, next_epoch
from fastload.stats.stats import Stats
from fastload.torch_workers.processes import start_workers
from fastload.torch_workers.view import is_torchdatas, take_over, torchs_iterator, without_del
from fastload.workers.start import route_of, start_iterator
from fastload.workers.worker import setup_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from multiprocessing.context import BaseContext
    from types import TracebackType

    from torch.utils.data import Dataset, Sampler

    from fastload.bad_samples import SampleError
    from fastload.device.replay import Replay
    from fastload.plan import Plan
    from fastload.route import Route
    from fastload.stats.diagnosis import Report

_LOGGER: Final = logging.getLogger("fastload")

T_co = TypeVar("T_co", covariant=True)


class FastLoader(LoaderConfig[T_co]):
    """Torch's DataLoader with batches already on the GPU; same arguments, batches, order and errors.

    While one batch is used, the next is copied on a side stream from pinned memory and laid out in ``memory_format``.
    Without an accelerator, batches stay in host memory; supported pipelines still run natively.

    >>> import torch
    >>> from fastload import DataLoader
    >>> loader = DataLoader(range(10), batch_size=4)
    >>> [batch.tolist() for batch in loader]
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    All arguments of :class:`torch.utils.data.DataLoader` have the same meaning, and ``num_workers`` may also be
    ``"auto"`` (:mod:`fastload.autoscale.policy`): the fewest that keep the consumer fed, within the cores that this
    process may use. From the first iteration on, the attribute is the chosen number. FastLoader's own arguments:

    Args:
        device: Where batches go. ``"auto"`` is the current accelerator when iteration starts, or the CPU if there is
            none. On the CPU nothing is copied, and the native engine still runs. On MPS ``"auto"`` leaves batches on
            the CPU, as torch does.
        memory_format: For 4-D floating-point or uint8 tensors; values never change. ``None`` leaves the layout. Not
            applied on the CPU.
        dtype: Cast floating-point tensors to this floating-point type, on the device, after the copy.
        device_prefetch: Batches copied ahead of the one in use. 0 copies on the consumer's stream on request.
        engine: ``"auto"`` lets workers write batches straight into pinned memory and send them without delay (their
            switch interval is 0.4 ms), and runs pipelines natively if they are supported with the same bits;
            ``"torch"`` does none of this; ``"native"`` raises with the reasons if the pipeline is not supported.
        max_pinned_bytes: Maximum bytes of the pinned slots; ``None`` is a quarter of the memory that this process may
            use. 0 disables pinned memory.
        randomness: ``"worker"``: random draws as in torch, from each worker's stream. ``"sample"``: from a stream that
            depends only on the seed, the epoch and the sample's index (:mod:`fastload.randomness.by_sample`).
        max_index_bytes: Maximum bytes of host memory for where decoding can begin within JPEG files. Decode threads
            note it when they first decode a file, and later decode only what a crop needs. It takes about 1% of the
            files' bytes. Files are known by a checksum of all their bytes: one that has changed is decoded anew. 0:
            none.
        jpeg_index: Deprecated; does nothing.
        decode: Where the native engine decodes JPEG files, with the same bits. ``"auto"``: batch by batch
            on decode threads or on the GPU, whichever makes the loop faster. The GPU runs the transforms of what it
            decodes, too; of progressive files threads decode the entropy code. ``"cpu"``: on threads only. ``"gpu"``:
            on the GPU whatever it can; raises if it can decode none.
        deferred: Whether tensors that worker processes make of images stay without pixels until the batch is sent:
            what the program does to them is noted, and done for all at once. Such a tensor has its values when it is
            looked at (:mod:`fastload.deferred`).
        device_cache_bytes: Most bytes of a GPU's memory for JPEG files, which stay there, still encoded, after the GPU
            has decoded them once. Later epochs then neither read nor copy them; a file that has changed since (its
            size, times or inode) is read again. ``"auto"``: half of what is free. All loaders of the process share
            what one of them allows. Memory is given back once less than a sixteenth of the device's is free. 0: none.
        on_error: What becomes of a sample that raises while it is read or decoded. ``"raise"``: the error is raised, as
            in torch. ``"skip"``: the sample is left out of its batch, and a batch without samples is left out.
            ``"replace"``: the next index of the sampler's whose sample works takes its place, so batches keep their
            size. Each such sample is logged once. See :doc:`/bad_samples`.
        max_errors: How many samples may fail: a count (``int``) of different ones, or a share (``float``) of those
            read, judged from 100 samples on.
        exact: ``False`` also runs natively what has the same bits only at torch's pace: torchvision's ``GaussianBlur``,
            at most 1 of 256 levels off. The plan names it.

    ``next()`` returns at once if a batch is ready. It waits while the GPU is more than two batches behind the caller;
    otherwise dropped batches that the GPU has yet to read would pile up in its memory.

    Raises:
        ValueError, TypeError: As in torch's DataLoader, and for FastLoader's own arguments.
        RuntimeError: ``device`` is not available; or, from ``next()``, more samples have failed than ``max_errors``
            allows (its attribute ``errors`` lists them).
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        device: Device = "auto",
        memory_format: torch.memory_format | None = torch.channels_last,
        dtype: torch.dtype | None = None,
        device_prefetch: int = 1,
        engine: Engine = "auto",
        max_pinned_bytes: int | None = None,
        randomness: Randomness = "worker",
        exact: bool = True,
        max_index_bytes: int = INDEX_BYTES,
        jpeg_index: object = None,
        decode: Decode = "auto",
        deferred: bool = True,
        device_cache_bytes: DeviceCacheBytes = 0,
        on_error: OnError = "raise",
        max_errors: float = ERRORS_MAX,
    ) -> None:
        auto = auto_workers(num_workers, dataset)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            1 if auto is not None else cast("int", num_workers),
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if auto is not None:
            self.num_workers = auto
        own = (device, memory_format, dtype, device_prefetch, engine, max_pinned_bytes, randomness, exact)
        last = (deferred, device_cache_bytes, on_error, max_errors)
        self._take_options(Options(*own, max_index_bytes, jpeg_index, decode, *last))

    def _take_options(self, options: Options) -> None:
        # Public attributes, because frameworks rebuild a loader from vars(loader).
        self.device = options.device
        self.memory_format = options.memory_format
        self.dtype = options.dtype
        self.device_prefetch = options.device_prefetch
        self.engine = options.engine
        self.max_pinned_bytes = options.max_pinned_bytes
        self.randomness = options.randomness
        self.exact = options.exact
        self.max_index_bytes = options.max_index_bytes
        self.jpeg_index = None  # whatever was given: a loader that frameworks rebuild does not warn again
        if options.jpeg_index is not None:
            warnings.warn(
                "jpeg_index does nothing any more and can be left out: the GPU finds its own way into new files, and "
                "the index in memory (max_index_bytes) notes where to begin in the others",
                DeprecationWarning,
                stacklevel=level_outside(),
            )
        self.decode = options.decode
        self.deferred = options.deferred
        self.device_cache_bytes = options.device_cache_bytes
        self.on_error = options.on_error
        self.max_errors = options.max_errors
        vars(self)["_state"] = LoaderState()
        check_seedable(self, self.randomness)
        check_on_error(self, self.on_error)
        if self.engine == "native" or self.decode == "gpu":
            route = route_of(self)
            if self.engine == "native" and route.maker == "python":
                raise ValueError(f"engine='native', but {'; '.join(route.reasons)}")
            if self.decode == "gpu" and (route.recipe is None or route.not_on_gpu is not None):
                raise ValueError(f"decode='gpu', but {'; '.join(route.reasons) or route.not_on_gpu}")

    @classmethod
    def wrap(cls, loader: DataLoader[T_co], **own: Unpack[OwnArguments]) -> FastLoader[T_co]:
        """Make a FastLoader from a DataLoader: same dataset, sampler, workers and collate function.

        A loader that Accelerate has prepared is changed in place and returned: the loader inside it becomes a
        FastLoader, and Accelerate's additions (sharding, random state, gradient accumulation) stay. Of what Ray Train's
        ``prepare_data_loader`` returns, the loader inside is taken, with its ``DistributedSampler`` and device.
        torchdata's StatefulDataLoader becomes a FastLoader with states of its own.

        Args:
            loader: Not modified, unless Accelerate prepared it. Do not use it afterwards: its sampler and generator
                are shared.
            **own: FastLoader's own arguments. Others have their defaults, even if ``loader`` is a FastLoader.

        Raises:
            TypeError: ``loader`` is not a DataLoader, or an argument is not FastLoader's.
            ValueError: It is a StatefulDataLoader, and has loaded a state.
        """
        if not isinstance(loader, DataLoader):
            raise TypeError(
                f"FastLoader.wrap takes a torch.utils.data.DataLoader, got {type(loader).__name__}; for any other "
                "iterable of batches use fastload.prefetch_to_device"
            )
        if "base_dataloader" in vars(loader) and not issubclass(type(loader), DataLoader):  # Accelerate's adapter
            adapter: Any = loader
            own.setdefault("device", vars(loader).get("device") or "auto")
            adapter.base_dataloader = cls.wrap(adapter.base_dataloader, **own)
            if "dl_state_dict" in vars(adapter):  # of use_stateful_dataloader, for a save_state() before the first step
                adapter.dl_state_dict = adapter.base_dataloader.state_dict()
            return cast("FastLoader[T_co]", adapter)
        if type(loader).__module__.startswith("ray.train.") and "_dataloader" in vars(loader):
            inner = vars(loader)["_dataloader"]  # the wrapper does no more than move batches to its device
            given: OwnArguments = {"device": vars(loader)["device"], **own}
            return inner if isinstance(inner, cls) and not own else cls.wrap(inner, **given)
        iterates = has_own_iter(loader)
        if (iterates or has_own_iterator(loader)) and not is_torchdatas(loader):
            method = "an __iter__" if iterates else "a _get_iterator"
            state = ", and whose state_dict() says where the consumer is" if hasattr(loader, "state_dict") else ""
            whose = f"{type(loader).__name__}, which has {method} of its own"
            remedy = f"use fastload.prefetch_to_device(loader), which keeps it{state}"
            raise TypeError(f"FastLoader.wrap cannot take over {whose}; {remedy}")
        wrapped: FastLoader[T_co] = cls.__new__(cls)
        take_over(wrapped, loader)
        wrapped._take_options(named_options(own))
        return wrapped

    @property
    def plan(self) -> Plan:
        """This loader's steps for an iteration that starts now, and the reasons; ``print`` it."""
        from fastload.plan import make_plan

        return make_plan(self, route_of(self), self.stats())

    def stats(self) -> Stats:
        """Counters and stage times of all epochs so far.

        Cheap; may be called during iteration, from any thread.
        """
        return state_of(self).stats(self.num_workers)

    def errors(self) -> list[SampleError]:
        """List the samples that ``on_error`` has left out or replaced, earliest first.

        Of all epochs so far, and of the runs whose states were loaded. May be called during iteration, from any thread.
        """
        return state_of(self).place.errors.listed()

    def report(self) -> Report:
        """The bottleneck of the loop that consumes this loader, with evidence and remedy; ``print`` it.

        It rests on the steady state: warm-up is left out, and its length is shown.
        """
        from fastload.memory.limits import unpinned_because
        from fastload.stats.steady_report import report_steady
        from fastload.stats.workers_memory import workers_memory

        state = state_of(self)
        by_device = dict(state.utilizations)
        unpinned = next((why for each in by_device if (why := unpinned_because(self, each)) is not None), None)
        made = report_steady(self.stats(), state.steady, list(by_device.values()), state.unseen(self), unpinned)
        return dataclasses.replace(made, memory=workers_memory(state.worker_pids()))

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer of the newest iteration is, for :meth:`load_state_dict` in any process.

        It counts the batches handed over, not those made in advance. It holds numbers, strings, lists and dicts only,
        21 KB and at most 11 KB for each worker, besides what a dataset's or sampler's own ``state_dict()`` returned; so
        ``torch.load(weights_only=True)`` and JSON take it. Takes less than a millisecond, and no worker waits for it.
        Before the first iteration, and after an epoch, it is the state in which the next epoch begins.

        A loader whose place cannot be told (``in_order=False``, an iterator of its own) warns, and returns a state that
        :meth:`load_state_dict` refuses with the reason.
        """
        return save.state_dict(self, state_of(self).place)

    def load_state_dict(self, state_dict: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Make the next ``iter()`` go on where the state was saved.

        The rest of the epoch, and all later ones, have the same bits as without the interruption. Indices that were
        handed over are drawn again, and no sample is read for that, except from an ``IterableDataset`` without a state
        of its own. The next ``iter()`` also sets the generators of torch, ``random`` and NumPy in this process to what
        they were at ``state_dict()``, because later epochs, and without workers all samples, draw from them.

        Args:
            state_dict: What :meth:`state_dict` returned, or a list of all ranks' states (:doc:`/resume`).

        Raises:
            ValueError: The state does not fit this loader, dataset or rank, or is damaged. Nothing has changed then.
            TypeError: The loader makes its own iterators.
        """
        save.load_state_dict(self, state_of(self).place, state_dict)

    def replay(self, n: int, steps: int | None = None) -> Replay[T_co]:
        """Repeat the first ``n`` batches from the device, as a perfect loader would.

        Values repeat, so this is for measuring, not training; see :class:`~fastload.device.replay.Replay`.

        >>> import torch
        >>> from fastload import FastLoader
        >>> loader = FastLoader(range(10), batch_size=2)
        >>> [batch.tolist() for batch in loader.replay(2)]
        [[0, 1], [2, 3], [0, 1], [2, 3], [0, 1]]

        Args:
            n: Number of batches to hold, at least 1.
            steps: Length of an epoch; ``None`` is ``len(loader)``.
        """
        from fastload.device.replay import Replay

        return Replay(self, n, steps)

    def __repr__(self) -> str:
        (_, dataset), *others = self._settings()
        return f"{type(self).__name__}({', '.join([dataset, *(f'{name}={value}' for name, value in others)])})"

    def _repr_html_(self) -> str:
        """Show the settings in a notebook."""
        return card(type(self).__name__, table(self._settings()))

    def _settings(self) -> list[tuple[str, str]]:
        """What ``repr`` shows: as given, because asking for the device can start its driver."""
        batches = "batch_sampler" if self.batch_size is None and self.batch_sampler is not None else "batch_size"
        batch = type(self.batch_sampler).__name__ if batches == "batch_sampler" else repr(self.batch_size)
        workers = repr("auto" if isinstance(self.num_workers, AutoWorkers) else self.num_workers)
        own = [("engine", repr(self.engine)), ("device", repr(self.device))]
        return [("dataset", name_of_dataset(self.dataset)), (batches, batch), ("num_workers", workers), *own]

    def _log_engine(self) -> None:
        """Say once, at the level INFO, why this loader's pipeline does not run natively."""
        state = state_of(self)
        if state.engine_logged or not _LOGGER.isEnabledFor(logging.INFO):
            return
        state.engine_logged = True
        route = route_of(self)
        if route.maker == "python" and (reasons := route.reasons):
            _LOGGER.info("%r is not native: %s; print(loader.plan) says what runs where", self, "; ".join(reasons))

    def _iterate(self) -> Iterator[T_co]:
        return self._begin(self._epoch)

    def _new_iterator(self) -> Iterator[T_co]:
        own = has_own_iterator(self)  # it asks for torch's, to change its batches
        if own and state_of(self).is_followed:
            return DataLoader._get_iterator(self)
        if own:
            state_of(self).check_open()
        kept, self._iterator = self._iterator, None  # as in torch, what persists stays, and this one is the caller's
        try:
            return self._plain_iterator(route_of(self)) if own else self._begin(self._epoch)
        finally:
            self._iterator = kept

    def _begin_again(self, iterator: Any, begin: Callable[[], Iterator[T_co]]) -> None:
        if has_own_iterator(self):
            begin()
            return
        if state_of(self).place.loaded is not None:
            raise RuntimeError(
                "load_state_dict() needs a new iterator, but a former one was reset; call iter(loader) or "
                "loader._get_iterator()"
            )
        kept, self._iterator = self._iterator, iterator
        try:
            self._begin(begin)
        finally:
            if kept is not iterator:
                self._iterator = kept

    def _begin(self, begin: Callable[[], Iterator[T_co]]) -> Iterator[T_co]:
        """Return ``begin()``, an iterator that begins an epoch."""
        state_of(self).check_open()
        state_of(self).drop_inherited(self)
        if self.on_error == "skip" and not state_of(self).errors_warned:
            from fastload.state.ranks import ranks_of

            if (ranks := ranks_of(self)) > 1:
                state_of(self).errors_warned = True
                warnings.warn(
                    f"on_error='skip' may give the {ranks} ranks different numbers of batches, for which a collective "
                    "call waits forever; use on_error='replace', which keeps the number and size of batches",
                    stacklevel=level_outside(),
                )
        iterator: Iterator[T_co] = save.begin(self, state_of(self).place, begin)
        self._log_engine()
        return iterator

    def _epoch(self) -> Iterator[T_co]:
        """Begin an epoch with the workers or threads that persist, or with new ones."""
        state = state_of(self)
        if not has_own_iterator(self):
            state.size_workers(self, native=True)
        state.checks.forget_start()
        route = route_of(self)
        if route.maker == "threads":
            if (native := self._native_iterator(route)) is not None:
                return native
            route = route_of(self)  # which now knows why there is none
        state.size_workers(self)
        if has_own_iterator(self):
            iterator = DataLoader.__iter__(self)  # of the subclass
            with contextlib.suppress(TypeError):  # nothing refers weakly to a map() or the like
                state.live.add(iterator)
            return iterator
        if route.is_plain:
            return self._plain_iterator(route)
        if not (self.persistent_workers and self.num_workers > 0):
            return TorchDeviceIterator(self, route)
        former: Any = self._iterator
        if isinstance(former, TorchDeviceIterator) and former.device == route.device and not former.is_closed:
            former.begin_epoch(self)
        else:
            self._iterator = TorchDeviceIterator(self, route)  # type: ignore[assignment]
        return self._iterator  # type: ignore[return-value]

    def _native_iterator(self, route: Route) -> Iterator[T_co] | None:
        former: Any = self._iterator
        if former is not None and getattr(former, "recipe", None) is route.recipe:
            if isinstance(former, DeviceIterator):
                former.begin_epoch(self)
                return former
            return next_epoch(former, self)  # type: ignore[no-any-return]
        native = start_native(self, route)
        if self.persistent_workers and native is not None:
            self._iterator = native
        return native  # type: ignore[no-any-return]

    def _plain_iterator(self, route: Route) -> Iterator[T_co]:
        former: Any = self._iterator
        if isinstance(former, DeviceIterator) or hasattr(type(former), "runs_recipe"):  # made with other arguments
            self._iterator = None
        iterator = self._torch_iterator(route)
        state_of(self).live.add(iterator)
        return iterator

    def _torch_iterator(self, route: Route) -> Iterator[T_co]:
        """Make torch's own iterator, and measure its waits and its workers' fetches."""
        persists = self.persistent_workers and self.num_workers > 0
        former: Any = self._iterator
        if persists and former is not None:
            return next_epoch(former, self)  # type: ignore[no-any-return]
        native = fetcher_in_process(self, route)
        counters = counters_for(self, state_of(self).totals) if native is None else None
        view: Any = object.__new__(without_del(cast("Any", type(self))))  # keeps a subclass's overrides
        vars(view).update(vars(self))
        vars(view).pop("_get_iterator", None)  # one set on this loader, which has called this
        if self.on_error == "replace":
            vars(view)["batch_sampler"] = ahead_of(self.batch_sampler, self.on_error)
        if counters is not None and self.num_workers:
            vars(view)["worker_init_fn"] = setup = setup_of(self, route, counters)
        make = functools.partial(torchs_iterator, view)
        start = functools.partial(start_workers, make) if self.num_workers else make
        iterator: Any = start_iterator(view, state_of(self).place.resumption, start)
        if self.on_error != "raise":
            from fastload.workers.tolerant import take_apart

            take_apart(self, iterator)
        if self.num_workers and iterator._worker_init_fn is setup:
            iterator._worker_init_fn = self.worker_init_fn
        if native is not None:
            native.install(iterator)
        source = None if native is None else native.totals
        iterator._reset = Reset(iterator)
        meter = Meter(counters, self.batch_size, source)
        state_of(self).measure(iterator, measure(iterator, meter, at_once=self.engine != "torch"))
        if persists:
            self._iterator = iterator
        return iterator  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop workers and threads, and free device and pinned memory. Idempotent.

        Includes iterators still in use. Without this call, the same happens when the loader and its iterators are
        garbage.
        """
        state_of(self).close()
        if not has_own_iterator(self):  # else the subclass keeps it: torchdata reads its state
            self._iterator = None

    def __enter__(self) -> FastLoader[T_co]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        # Not __getstate__ and __setstate__: pickle would find those through delegating wrappers, such as Accelerate's.
        reduced: Any = super().__reduce_ex__(max(2, operator.index(protocol)))
        if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
            return reduced  # a subclass's own
        state = {name: value for name, value in reduced[2].items() if name != "_state"}
        return (*reduced[:2], state | state_of(self).of_copies(), *reduced[3:])


def listen(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap what begins the iterations of all loaders."""
    FastLoader._begin = wrap(FastLoader._begin)  # type: ignore[method-assign]
