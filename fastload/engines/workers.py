"""Engine ``workers``: torch's worker processes and pin-memory thread run the user's code unchanged.

The collate function is wrapped (in the iterator, never on the loader), so that workers send each batch as a
:class:`~fastload._batch.HostBatch`. Torch's pin-memory thread calls the batch's ``pin_memory()`` as soon as it arrives,
which delivers it to :class:`~fastload.engines.copy_scheduler.CopyScheduler`. Torch itself, in its own threads, handles
the sampler, worker assignment, errors, time-outs and the end of an epoch: a thread that called ``next()`` early would
draw from the sampler earlier than torch does, and after an early ``break`` the next epoch would differ.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.utils.data.dataloader
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]
from torch.utils.data import DataLoader, default_collate, get_worker_info

from fastload._batch import HostBatch, count_pinned
from fastload.engines.copy_scheduler import NONE_FREE
from fastload.engines.sample_seeding import SeededByIndex
from fastload.engines.worker_progress import WorkerProgress
from fastload.memory.packing import CannotPackError, EscapedError, Packer, collate_into, packed_bytes, stacks_into
from fastload.nvtx import stages
from fastload.nvtx.stages import stage
from fastload.options import has_own_iterator
from fastload.pipeline.eligibility import read_loader
from fastload.pipeline.monkeypatch_check import imported
from fastload.stats.fetch_timer import MeasuredWorker
from fastload.torch_workers.orphans import TakesSignals
from fastload.torch_workers.processes import restart_workers, start_frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastload.engines.resumption import Resumption
    from fastload.memory.slots import SlotWriter
    from fastload.stats.kept_states import KeptStates
    from fastload.stats.shared_counters import SharedCounters


SWITCH_S: Final = 4e-4
"""Switch interval in a worker: how long its Python code may keep the GIL from a waiting thread. At 0.2 ms, workers that
make a small image in 0.1 ms spend 5% on switching."""

_USUAL_SWITCH_S: Final = 5e-3  # Python's default
TOO_SMALL = "larger than a slot"


class Collate:
    """Collates samples in the worker, into a slot if possible.

    Picklable if the user's collate function is.

    Args:
        collate_fn: The user's; ``default_collate`` stacks straight into a slot, other functions' results are packed.
        receiver: Key of the :class:`CopyScheduler` that receives the batches.
        slots: Supplies slots; ``None`` sends batches as torch does.
        take_pixels: For a dataset without its transform's tail: :func:`fastload.pipeline.tail.take_pixels`.
    """

    def __init__(
        self,
        collate_fn: Callable[[Any], Any],
        receiver: int,
        slots: SlotWriter | None = None,
        take_pixels: Callable[[list[Any]], tuple[list[Any], bool]] | None = None,
    ) -> None:
        self.collate_fn = collate_fn
        self.receiver = receiver
        self.slots = slots
        self.take_pixels = take_pixels
        self._escapes = False  # tensors stacked into a slot were not found in the batch

    def __call__(self, samples: Any) -> HostBatch:  # noqa: D102
        info = get_worker_info()
        worker = 0 if info is None else info.id
        with stage("collate"):
            holds_pixels = False
            if self.take_pixels is not None:
                samples, holds_pixels = self.take_pixels(samples)
            if self.slots is None:
                batch = HostBatch(self.collate_fn(samples), worker, self.receiver)
            else:
                batch = self._into_slot(self.slots, samples, worker)
            batch.holds_pixels = holds_pixels
            return batch

    def _into_slot(self, slots: SlotWriter, samples: Any, worker: int) -> HostBatch:
        missed = NONE_FREE
        data = None
        needed = 0
        stacks = not self._escapes and stacks_into(self.collate_fn)
        if not stacks:
            data = self.collate_fn(samples)
            needed = packed_bytes(data)
            if not needed or _is_pinned(data):
                return HostBatch(data, worker, self.receiver)
        try:
            acquired = slots.acquire(worker, needed)
        except OSError as error:  # not from the user's code, which does not run here
            self.slots, acquired, missed = None, None, f"workers cannot reach the slots ({error})"
        if acquired is None and slots.too_small:
            missed = TOO_SMALL
        if acquired is not None:
            stamp, buffer = acquired
            packer = Packer(buffer)
            try:
                packed = packer.pack(collate_into(packer, samples) if stacks else data)
                if packed.nbytes:
                    return HostBatch(packed, worker, self.receiver, stamp)
                data = packed.tree
            except CannotPackError as error:
                missed = str(error)
                self._escapes = isinstance(error, EscapedError)
            except BaseException:
                slots.give_back(stamp)
                raise
            slots.give_back(stamp)
        if data is None:
            data = self.collate_fn(samples)
        return HostBatch(data, worker, self.receiver, missed=missed)


def _is_pinned(data: Any) -> bool:
    """Whether a batch made in the main process is already pinned and needs no slot."""
    if get_worker_info() is not None:
        return False
    pinned, leaves = count_pinned(data)
    return 0 < pinned == leaves


class NamedStages:
    """A worker's first call: adds a range to ``fetch``, then runs the user's ``worker_init_fn``."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self.worker_init_fn = worker_init_fn

    def __call__(self, worker_id: int) -> None:  # noqa: D102
        stages.instrument_fetch()
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


class SendsPromptly:
    """A worker's first call: shortens Python's switch interval, then runs the user's ``worker_init_fn``.

    Torch's workers send a batch from a second thread, which takes the GIL many times. Each time it waits for one
    interval, 5 ms by default, if Python code is making the next batch.

    Args:
        worker_init_fn: The user's.
        promptly: If not, it only sees to it that what is sent arrives.
    """

    def __init__(self, worker_init_fn: Callable[[int], None] | None, *, promptly: bool = True) -> None:
        from fastload.memory.sending import send_batches

        self.worker_init_fn = worker_init_fn
        self.promptly = promptly
        self._send_batches = send_batches

    def __call__(self, worker_id: int) -> None:  # noqa: D102
        self._send_batches(moves=self.promptly)
        if self.promptly and sys.getswitchinterval() == _USUAL_SWITCH_S:  # else the user has set it
            sys.setswitchinterval(SWITCH_S)
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


def makes_lazy_images(loader: Any) -> bool:
    """Whether Pillow's images are lazy in a loader's worker processes."""
    if loader.engine == "torch" or not loader.num_workers or has_own_iterator(loader) or not _may_be_lazy():
        return False
    from fastload.engines import lazy_images

    _stages_of_webdataset()  # forked workers inherit what is imported here
    return lazy_images.prepare()


def _may_be_lazy() -> bool:
    # Importing torchvision just for this would delay the first batch by a second.
    used = all(imported(name) is not None for name in ("PIL.Image", "torchvision"))
    return used and importlib.util.find_spec("fastload._core") is not None


def _stages_of_webdataset() -> Any:
    """Return the module that changes webdataset's pipelines; ``None`` without webdataset."""
    if imported("webdataset") is None:
        return None
    from fastload.engines import webdataset_stages

    return webdataset_stages


class MakesLazyImages:
    """A worker's first call: makes Pillow's images lazy, then runs the user's ``worker_init_fn``."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self.worker_init_fn = worker_init_fn

    def __call__(self, worker_id: int) -> None:  # noqa: D102
        if _may_be_lazy():
            from fastload.engines import lazy_images

            if lazy_images.install() and (webdataset := _stages_of_webdataset()) is not None:
                webdataset.install()
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


class KeepsStates:
    """A worker's first call: keeps its states after each batch, then runs the user's ``worker_init_fn``."""

    def __init__(
        self, worker_init_fn: Callable[[int], None] | None, *, states: KeptStates | None, generators: bool
    ) -> None:
        self.worker_init_fn = worker_init_fn
        self.states = states
        self.generators = generators

    def __call__(self, worker_id: int) -> None:  # noqa: D102
        WorkerProgress(self.states, worker_id, generators=self.generators).install()
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


def first_call_of(
    loader: Any, worker_init_fn: Callable[[int], None] | None, counters: SharedCounters
) -> Callable[[int], None]:
    """Return a worker's first call: signals, timed fetches, prompt sending, the user's ``worker_init_fn``."""
    follows = functools.partial(KeepsStates, states=counters.states, generators=loader.randomness == "worker")
    if loader.engine == "torch":
        return TakesSignals(MeasuredWorker(follows(SendsPromptly(worker_init_fn, promptly=False)), counters))
    makes_lazy_images(loader)  # learns what forked workers then inherit
    if makes_native_samples(loader):
        from fastload.engines.native_samples import MakesNativeSamples

        measured = MeasuredWorker(follows(SendsPromptly(worker_init_fn)), counters)
        collate_fn = None if loader.collate_fn is default_collate else any_collate_fn
        return TakesSignals(MakesNativeSamples(measured, collate_fn, exact=loader.exact))
    return TakesSignals(MeasuredWorker(follows(SendsPromptly(MakesLazyImages(worker_init_fn))), counters))


def makes_native_samples(loader: Any) -> bool:
    """Whether a loader's worker processes make samples natively, for functions of the user's own."""
    recipe = read_loader(loader, torch.device("cpu"))
    if not loader.num_workers or isinstance(recipe, tuple):
        return False
    return bool(recipe.in_python) or recipe.first_call is not None


def any_collate_fn(samples: Any) -> Any:
    """Stand for the user's collate function, which may not be picklable."""
    return samples


def stages_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Changes to a view that show a profiler the workers' stages; none without a profiler."""
    if not stages.active():
        return {}
    if loader.num_workers:
        return {"worker_init_fn": NamedStages(loader.worker_init_fn)}
    stages.instrument_fetch()  # the main process is the worker
    return {}


def start_epoch(view: DataLoader[Any], resumption: Resumption | None = None) -> Iterator[Any]:
    """Start torch's own iterator, or resume one; with persistent workers, reset the existing one."""
    seeded = view.dataset if isinstance(view.dataset, SeededByIndex) else None
    former: Any = view._iterator
    if former is not None:
        restart_workers(former, lambda: iter(view))
        return former  # type: ignore[no-any-return]
    make = functools.partial(start_frozen, lambda: iter(view)) if view.num_workers else lambda: iter(view)
    iterator: Any = start_iterator(view, resumption, make)
    if seeded is not None and not view.num_workers:
        seeded.run_here(iterator._base_seed)
    return iterator  # type: ignore[no-any-return]


def start_iterator(view: Any, resumption: Resumption | None, make: Callable[[], Any]) -> Any:
    """Return ``make()``, which iterates ``view``, from where the resumption says, if there is one."""
    if resumption is None:
        return make()
    from fastload.engines.resumed_iterator import start_resumed

    return start_resumed(view, resumption, make)


def next_of(host: Any) -> Any:
    """Return ``next(host)`` without the profiler's range unless a profiler runs.

    Torch always opens that range, the most expensive part of a ``next()`` if a batch is ready. ``next()`` itself is
    called for an iterator that differs from torch 2.11 to 2.15's, or that checks an iterable dataset's promised length.
    """
    kind = type(host)
    shortcut = issubclass(kind, _BASE) and kind.__next__ is _NEXT  # false for other iterators or a tracer's patch
    if not shortcut or host._IterableDataset_len_called is not None or _profiler_enabled():
        return next(host)
    data = host._next_data()
    host._num_yielded += 1
    return data


_BASE = getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", ())
_NEXT = getattr(_BASE, "__next__", None)
