"""The program of a worker process: :class:`WorkerSetup` runs at its start, :meth:`Worker.fetch` for each batch.

Torch's loop runs in the worker as it is. The only function of torch's that is replaced there makes a fetcher for each
epoch; the loop's own fetcher gets a ``fetch`` of ours. Fetchers of loaders within the dataset stay torch's.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch.utils.data._utils.fetch as torch_fetch
from torch.utils.data import Subset, _DatasetKind, default_collate
from torch.utils.data._utils.worker import _worker_loop

from fastload.memory.packing import stacks_into
from fastload.memory.rows import RowBatches
from fastload.memory.sending import Sent, collate_into_files, fill, send_errors, sends_files
from fastload.nvtx.stages import stage, without_stage
from fastload.pipeline.installed.patches import is_written_in
from fastload.randomness.by_sample import show_own_dataset
from fastload.randomness.packed import digest_of
from fastload.state.in_worker import NotLoaded, WorkerProgress, users_own
from fastload.stats.fetch_timer import WorkerCounters, listen
from fastload.torch_workers.orphans import take_signals
from fastload.workers.start import decode_for_opencv, install_lazy_images

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.deferred.functions import Deferral
    from fastload.native.in_workers import WorkerFetcher
    from fastload.options import LoaderConfig, OnError
    from fastload.route import Route
    from fastload.state.in_worker import ReadAgain, WorkerState
    from fastload.stats.shared_counters import SharedCounters


SWITCH_S: Final = 4e-4
"""Switch interval in a worker: how long its Python code may keep the GIL from a waiting thread. At 0.2 ms, workers that
make a small image in 0.1 ms spend 5% on switching."""


_USUAL_SWITCH_S: Final = 5e-3  # Python's default


@dataclass(frozen=True, eq=False)
class WorkerSetup:
    """What a worker process does at its start. Torch's iterator gets it as ``worker_init_fn``.

    Picklable if the user's functions are.

    Attributes:
        worker_init_fn: The user's.
        counters: Receives the figures and the states.
        generators: Whether the states of generators are kept too.
        promptly: Whether tensors are sent in memory files, and what Pillow and OpenCV read is decoded natively; else
            batches are made as torch does.
        deferred: Whether tensors of lazy images are deferred.
        native: Makes a fetcher of native samples, for functions of the user's own; images are lazy only without.
        resumed: State of each worker that goes on within an epoch, and how an iterable dataset gets to its place.
        parent: Process id of the loader's process.
        on_error: What becomes of samples that raise.
    """

    worker_init_fn: Callable[[int], None] | None
    counters: SharedCounters
    generators: bool = True
    promptly: bool = True
    deferred: bool = True
    native: Callable[[], WorkerFetcher] | None = None
    resumed: tuple[list[WorkerState | None], ReadAgain] | None = None
    parent: int = field(default_factory=os.getpid)
    on_error: OnError = "raise"

    def __call__(self, worker_id: int) -> None:
        """Set the process up, then run the user's function, which may change anything of that."""
        take_signals(self.parent)
        show_own_dataset()
        send_errors()
        progress = WorkerProgress(self.counters.states, worker_id, generators=self.generators)
        worker = Worker(self, worker_id, progress)
        worker.install()
        if self.promptly:
            # A batch is sent from a second thread, which waits for the GIL many times: each time one interval, if
            # Python code is making the next batch.
            if sys.getswitchinterval() == _USUAL_SWITCH_S:  # else the user has set it
                sys.setswitchinterval(SWITCH_S)
            if self.native is None:
                worker.deferral = install_lazy_images(self.deferred)
                decode_for_opencv()
        if self.resumed is not None:
            states, progress.read_again = self.resumed
            progress.resumed = states[worker_id]
        try:
            if self.worker_init_fn is not None:
                self.worker_init_fn(worker_id)
        except Exception as error:
            if self.resumed is None:
                raise
            progress.failed = NotLoaded.of(error, worker_id)


def setup_of(loader: LoaderConfig[Any], route: Route, counters: SharedCounters) -> WorkerSetup:
    """Return what a loader's worker processes do at their start, by the epoch's route."""
    generators = loader.randomness == "worker"
    setup = functools.partial(
        WorkerSetup,
        loader.worker_init_fn,
        counters,
        generators,
        deferred=loader.deferred,
        on_error=loader.on_error,
    )
    if loader.engine == "torch":
        return setup(promptly=False)
    if route.maker != "workers":
        return setup()
    from fastload.native.in_workers import WorkerFetcher

    collate_fn = None if loader.collate_fn is default_collate else any_collate_fn
    return setup(native=functools.partial(WorkerFetcher, collate_fn, exact=loader.exact))


def any_collate_fn(samples: Any) -> Any:
    """Stand for the user's collate function, which may not be picklable."""
    return samples


class Worker:
    """Makes the batches of this worker process.

    Args:
        setup: Its setup.
        worker: Its number.
        progress: Keeps its states.

    Attributes:
        deferral: Defers tensors while a batch is made; ``None`` if nothing does.
    """

    def __init__(self, setup: WorkerSetup, worker: int, progress: WorkerProgress) -> None:
        self.deferral: Deferral | None = None
        self._promptly = setup.promptly
        self._on_error = setup.on_error
        self._counters = WorkerCounters(setup.counters, worker, whole_process=True)
        self._progress = progress
        self._native = None if setup.native is None else setup.native()
        self._fetcher: Any = None  # of this epoch, as are the next two lines
        self._make: Callable[[Any], Any]
        self._sends = False

    def install(self) -> None:
        """Give each fetcher that torch's loop makes a ``fetch`` of ours."""
        create: Any = _DatasetKind.create_fetcher

        @functools.wraps(create)
        def create_fetcher(kind: Any, dataset: Any, *arguments: Any) -> Any:
            loop = sys._getframe(1).f_code
            if loop.co_name != _worker_loop.__name__:  # of a loader within the dataset
                return create(kind, dataset, *arguments)
            sends = loop is _worker_loop.__code__  # not torchdata's loop, which sends a batch with its states
            make = lambda: self._follow(create(kind, dataset, *arguments), sends=sends)  # noqa: E731
            return self._progress.fetcher_of_epoch(users_own(dataset), make)

        _DatasetKind.create_fetcher = staticmethod(create_fetcher)  # type: ignore[method-assign]

    def _follow(self, fetcher: Any, *, sends: bool) -> Any:
        """Take over a new fetcher."""
        self._sends = sends and type(fetcher).__module__ == torch_fetch.__name__  # others may give anything
        if self._on_error != "raise":
            from fastload.workers.tolerant import tolerate

            tolerate(fetcher, self._on_error)
        rows = RowBatches.serve(fetcher) if self._promptly and self._native is None else None
        if self._sends and self._promptly and sends_files() and stacks_into(fetcher.collate_fn):
            fetcher.collate_fn = collate_into_files
        listen(fetcher, self._counters)  # around that: its time is collating
        self._make = functools.partial(without_stage(type(fetcher).fetch), fetcher)
        self._make = functools.partial(self._sample_by_sample, self._make, fetcher)
        if rows is not None:
            self._make = functools.partial(self._rows_or_torchs, rows, fetcher)
        if self._native is not None:
            self._make = self._native.in_place_of(fetcher, self._make)
        self._fetcher = fetcher
        with contextlib.suppress(AttributeError, TypeError):  # one that is not torch's, and takes no attribute
            fetcher.fetch = self.fetch
        return fetcher

    def _sample_by_sample(self, make: Callable[[Any], Any], fetcher: Any, indices: Any) -> Any:
        pauses = self.deferral is not None and _takes_one_by_one(fetcher)
        return make(self.deferral.samples(indices) if pauses else indices)  # type: ignore[union-attr]

    def _rows_or_torchs(self, rows: RowBatches, fetcher: Any, indices: Any) -> Any:
        fetch = type(fetcher).fetch
        if (data := rows.make(fetch, fetcher, indices)) is None:
            return fetch(fetcher, indices)
        self._counters.images = len(indices)
        return data

    def fetch(self, possibly_batched_index: Any) -> Any:
        """Make a batch for torch's loop.

        The order matters: the profiler's range holds all that a batch takes here. Indices are digested before the
        dataset may change their list. The clock runs while the batch is made, natively or by torch's fetcher, and for
        nothing else. States are kept after that, of a batch that failed too. What is sent is wrapped last: it is
        neither measured nor part of a state.
        """
        number = _number_of_batch()
        with stage("fetch", number):
            digest = digest_of(possibly_batched_index)
            self._counters.begin()
            try:
                if self.deferral is None:
                    data = self._make(possibly_batched_index)
                else:
                    with stage("record", number), self.deferral:
                        data = self._make(possibly_batched_index)
                fill(data)
            except BaseException:
                self._counters.fail()
                raise
            else:
                if self.deferral is not None:
                    self._counters.paint(self.deferral.take_painted_s())
                    self._counters.note_deferred(*self.deferral.take_counts())
                if self._native is not None and self._native.why is not None:
                    self._counters.note_refused(self._native.why)
                self._counters.end(number)
            finally:
                self._progress.keep(self._fetcher, digest)
            if not self._sends:
                return data
            return Sent(data, possibly_batched_index, moves=self._promptly)


def _takes_one_by_one(fetcher: Any) -> bool:
    """Whether a fetcher makes a sample whenever it takes an index, which nothing else gets."""
    kinds = torch_fetch._MapDatasetFetcher, torch_fetch._IterableDatasetFetcher
    if type(fetcher) not in kinds or not fetcher.auto_collation:
        return False
    if not is_written_in(without_stage(type(fetcher).fetch), torch_fetch.__name__):
        return False
    if type(fetcher) is torch_fetch._IterableDatasetFetcher:
        return True
    found = getattr(fetcher.dataset, "__getitems__", None)
    return not found or getattr(found, "__func__", None) is vars(Subset).get("__getitems__")


def _number_of_batch() -> int | None:
    """Number of the batch being fetched, which torch's loop alone knows."""
    caller = sys._getframe(2)
    while caller.f_code.co_name != _worker_loop.__name__ and caller.f_back is not None:
        caller = caller.f_back
    number = caller.f_locals.get("idx")
    return number if isinstance(number, int) else None
