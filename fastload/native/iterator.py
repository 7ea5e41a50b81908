"""Engine ``native``: ``num_workers`` decode threads make the batches of torch's workers in one process.

Index batches are drawn when torch draws them and as many ahead, so that the sampler and both generators are in the
same state as torch's after each batch (and after a ``break``). Batch ``k`` belongs to the *virtual worker*
``k mod num_workers``, which has the random stream of torch's worker of that number. A worker draws for its samples in
order and decodes them in any order. Few batches are decoded at a time, because one batch occupies all threads. The
number of threads affects no batch; with ``num_workers="auto"`` it varies.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch._utils import ExceptionWrapper
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fastload._batch import as_inference_tensors
from fastload.autoscale.policy import AutoWorkers
from fastload.autoscale.threads import ThreadSizer
from fastload.bad_samples import LeftOut, TooManyBadSamplesError, ahead_of, noting
from fastload.loader_state import ITERATOR_CLOSED, epochs_of, state_of
from fastload.native.pipeline import DecodePipeline
from fastload.nvtx.stages import stage
from fastload.python_samples.dialogue import TookTooLongError
from fastload.torch_workers.signals import Finalizer, deferred_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.data import DataLoader

    from fastload.bad_samples import Failed
    from fastload.device.decode.choice import DecodeChoice
    from fastload.device.host_images import HostImages
    from fastload.native.batch import Batch
    from fastload.options import LoaderConfig
    from fastload.pipeline.datasets.samples import Collated
    from fastload.pipeline.ops.erasing import Patch
    from fastload.pipeline.recipe import Recipe
    from fastload.python_samples.sample_process import SampleProcess
    from fastload.stats.stats import Totals

_NEXT = _BaseDataLoaderIter.__next__


class NativeIterator(_BaseDataLoaderIter):
    """Iterates over one epoch, or, with persistent workers, over several in turn.

    Args:
        loader: Supplies sampler, batch size, generator and number of workers.
        recipe: How to make its samples; a snapshot.
        process: See :class:`~fastload.native.pipeline.DecodePipeline`, as for the arguments below.
        finish: Makes a batch.
        host_images: See the pipeline's.
        allocate: See the pipeline's.
        ahead: Batches to make before they are requested, at least 1.
        device: The device that ``finish`` works on, unless it is the host.
        choice: See the pipeline's.
        device_totals: Returns the device clock's measurements of the consumer's steps; ``None`` without a clock.
    """

    runs_recipe = True
    """Tells :mod:`fastload.route` that these are decode threads."""

    @property
    def _workers(self) -> list[Any]:
        return []  # for programs that look at torch's processes: there are none

    def __init__(
        self,
        loader: LoaderConfig[Any],
        recipe: Recipe,
        process: SampleProcess,
        finish: Callable[[Any, list[list[Patch]], Collated, int], Any],
        *,
        host_images: Callable[[int], HostImages] | None = None,
        allocate: Callable[[int], torch.Tensor] | None = None,
        ahead: int = 1,
        device: torch.device | None = None,
        choice: DecodeChoice | None = None,
        device_totals: Callable[[], Totals] | None = None,
    ) -> None:
        super().__init__(loader)  # draws the base seed
        self._index_sampler = ahead_of(self._index_sampler, loader.on_error)
        self._note: Callable[[int, list[Failed]], None] | None = None
        if loader.on_error != "raise":
            self._note = noting(state_of(loader).place.errors, loader.max_errors)
        self.device = device or torch.device("cpu")
        self._resumption = resumption = state_of(loader).place.resumption
        if resumption is not None and resumption.base_seed is not None:
            self._base_seed = resumption.base_seed
        workers = loader.num_workers
        epochs = epochs_of(loader)
        first_states: list[bytes | None] | None = None
        if recipe.first_call is not None and epochs is None:
            seeding = state_of(loader).seeding
            first_states = [*seeding.states(recipe, process, int(self._base_seed), self._num_workers)]
        if resumption is not None and resumption.workers is not None:
            seeded = first_states or [None] * self._num_workers
            first_states = [late or early for late, early in zip(resumption.generators or (), seeded, strict=False)]
        self._sizer = None
        if isinstance(workers, AutoWorkers):
            self._sizer = ThreadSizer(workers.sizing, device=device_totals)
        # Several threads may share the iterator. Reentrant: a signal handler may also ask for a batch.
        self.turn = threading.RLock()
        self.claimed: dict[int, Batch] = {}  # by thread
        self._drawn: deque[tuple[Any]] = deque()  # an index batch drawn and not yet added to the pipeline
        self._pid = os.getpid()
        self._exhausted = False
        self._shutdown = False
        threads = self._num_workers if self._sizer is None else self._sizer.threads_at_first
        try:
            with deferred_signals():  # an interrupt in between would leave the pipeline's threads running
                self.decode_pipeline = DecodePipeline(
                    state_of(loader).with_index(loader, recipe, whole=choice is not None),
                    process,
                    threads,
                    base_seed=int(self._base_seed) if epochs is None or epochs.seed is None else epochs.seed,
                    workers=self._num_workers,
                    first_states=first_states,
                    by_index=epochs is not None,
                    finish=finish,
                    host_images=host_images,
                    allocate=allocate,
                    ahead=ahead,
                    device=device,
                    choice=choice,
                    on_error=loader.on_error,
                )
                self._finalizer = Finalizer(self, self.decode_pipeline.close)
                # An interrupt just before the finalizer prevents it, but not this callback, which is C code.
                self.decode_pipeline.owner = weakref.ref(self, self.decode_pipeline.wakeups.put)
            if self._sizer is not None:
                self._sizer.attach(self.decode_pipeline.pool)
                if choice is not None:
                    choice.on_change, choice.threads_max = self._sizer.restart, self._sizer.cores
            self._reset(loader, first_iter=True)
        except BaseException:
            if hasattr(self, "decode_pipeline"):
                self._shutdown_workers()
            raise

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        self.check_process()
        super()._reset(loader, first_iter)
        resumption, self._resumption = self._resumption, None
        try:
            self.decode_pipeline.drain(
                self._timeout, 0 if resumption is None else resumption.skip
            )  # advances the workers' generators
        except BaseException as error:
            self._shutdown_workers()  # it is unknown which batches were drained
            if isinstance(error, TookTooLongError):
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
            raise
        epochs = epochs_of(loader)
        self.decode_pipeline.epoch = 0 if epochs is None else epochs.epoch
        if self._sizer is not None:
            self._sizer.begin()
        self._exhausted = False
        self._drawn.clear()
        self._window = (loader.prefetch_factor or 2) * self._num_workers
        if resumption is not None:
            resumption.enter(self)
            self._num_yielded = resumption.skip
        self._ask_for_more()

    def _ask_for_more(self) -> None:
        """Draw index batches until as many are in flight as in torch.

        Raises the sampler's errors. From then on one batch fewer is in flight, as in torch.
        """
        while len(self.decode_pipeline) < self._window and not self._exhausted:
            try:
                if not self._drawn:
                    # One C call, so that an interrupt loses no indices. (In a sampler's Python code, it ends that.)
                    self._drawn.extend(zip(itertools.islice(self._sampler_iter, 1)))
            except Exception:
                self._window -= 1
                raise
            if not self._drawn:
                self._exhausted = True
                if not self._persistent_workers:
                    self.decode_pipeline.end()
                return
            self.decode_pipeline.add(self._drawn[0])
            self._drawn.clear()

    def __next__(self) -> Any:
        data = self.fetch()
        batch = self.claimed[threading.get_ident()]
        batch.taken = True  # no calls from here on: an interrupt after one would lose the batch
        batch.data = None
        return data

    def fetch(self) -> Any:
        """Return the next batch.

        It stays this thread's next one until its entry in ``claimed`` is marked as taken.
        """
        self.check_process()
        with self.turn:
            if _profiler_enabled() or _BaseDataLoaderIter.__next__ is not _NEXT:  # or a tracer's patch
                data = super().__next__()  # opens a range, the most expensive part of a next() if a batch is ready
            else:
                data = self._next_data()
            self._num_yielded = self.claimed[threading.get_ident()].number + 1
            return data

    def check_process(self) -> None:
        """Raise in a forked child: the decode threads exist only in its parent."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "a native iterator must be used in the process that made it, and this one was forked off later; "
                "make a new one with iter(loader)"
            )

    def _next_data(self) -> Any:
        if self._note is None:
            return self._claimed()
        while True:
            data = self._claimed()
            batch = self.claimed[threading.get_ident()]
            tried, failed = batch.tried, batch.failed
            batch.tried, batch.failed = 0, []  # noted once, even if an interrupt has the batch claimed again
            batch.taken = data is LeftOut
            try:
                self._note(tried, failed)
            except TooManyBadSamplesError:
                batch.taken = True
                raise
            if data is not LeftOut:
                return data

    def _claimed(self) -> Any:
        if self._shutdown:
            raise RuntimeError(ITERATOR_CLOSED)
        asked, batch, data = time.monotonic(), None, None
        while batch is None or batch.taken:  # by a signal handler during the wait
            self._ask_for_more()  # needed after an interrupt or an error of the sampler
            batch = self.decode_pipeline.first()
            if batch is None:
                if not self._persistent_workers:
                    self._finalizer()
                raise StopIteration
            with stage("wait", batch.number):
                try:
                    data = self.decode_pipeline.claim(batch, self._timeout)
                except TookTooLongError:
                    raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
        self.claimed[threading.get_ident()] = batch
        try:
            self._ask_for_more()
        except Exception:
            batch.taken = True  # as in torch
            raise
        if isinstance(data, BaseException):
            batch.taken = True
            raise data
        if self._sizer is not None:  # only waits that more threads would have shortened count
            begun, ended = self.decode_pipeline.awaited
            self._sizer.note(self.decode_pipeline.images, max(0.0, ended - max(begun, asked)))
        if isinstance(data, ExceptionWrapper):
            batch.taken = True
            data.reraise()  # type: ignore[no-untyped-call]
        if torch.is_inference_mode_enabled() and not self._pin_memory:  # torch's pin-memory thread is not in the mode
            return as_inference_tensors(data)
        return data

    @property
    def recipe(self) -> Recipe:
        """How samples are made."""
        return self.decode_pipeline.recipe

    @property
    def is_closed(self) -> bool:
        """Whether the iterator was closed; persistent workers then need a new one."""
        return self._shutdown

    def _shutdown_workers(self) -> None:
        """Stop the decode threads; later calls of ``next()`` raise.

        Idempotent; if interrupted, a second call completes it.
        """
        self._shutdown = True
        self.decode_pipeline.close()  # not the finalizer: an interrupt could mark it as done before it has called
        self._finalizer.detach()
