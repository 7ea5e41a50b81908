"""Engine ``workers``: torch's worker processes and pin-memory thread run the user's code unchanged.

The collate function is wrapped (in the iterator, never on the loader), so that workers send each batch as a
:class:`~fastload._batch.HostBatch`. Torch's pin-memory thread calls the batch's ``pin_memory()`` as soon as it arrives,
which delivers it to :class:`~fastload.device.copy_scheduler.CopyScheduler`. Torch itself, in its own threads, handles
the sampler, worker assignment, errors, time-outs and the end of an epoch: a thread that called ``next()`` early would
draw from the sampler earlier than torch does, and after an early ``break`` the next epoch would differ.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.utils.data.dataloader
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]
from torch.utils.data import DataLoader, get_worker_info

from fastload._batch import HostBatch, count_pinned, map_tensors
from fastload.device.copy_scheduler import NONE_FREE
from fastload.device.transfer import AT_ONCE_MAX_BYTES
from fastload.loader_state import state_of
from fastload.memory import unfilled
from fastload.memory.packing import (
    CannotPackError,
    EscapedError,
    Packer,
    collate_into,
    is_packable,
    packed_bytes,
    stacks_into,
)
from fastload.memory.rows import CollateAround
from fastload.memory.sending import collate_into_files, fill, sends_files
from fastload.memory.unfilled import Filled
from fastload.nvtx.stages import stage
from fastload.pipeline.installed.patches import imported
from fastload.randomness.by_sample import SeededByIndex
from fastload.route import decide
from fastload.torch_workers.processes import start_frozen
from fastload.torch_workers.view import torchs_iterator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastload.deferred.functions import Deferral
    from fastload.memory.slots import SlotWriter
    from fastload.options import LoaderConfig
    from fastload.route import Route
    from fastload.state.resume import Resumption


TOO_SMALL = "larger than a slot"

AT_ONCE_MAX_TENSORS: Final = 4
"""Most tensors of a small batch that are copied one by one. In a slot all small ones are copied at once."""


class Collate(CollateAround):
    """Collates samples in the worker, into a slot if possible.

    Picklable if the user's collate function is.

    Args:
        collate_fn: The user's; ``default_collate`` stacks straight into a slot, other functions' results are packed.
        receiver: Key of the :class:`CopyScheduler` that receives the batches.
        slots: Supplies slots; ``None`` sends batches as torch does.
    """

    def __init__(
        self,
        collate_fn: Callable[[Any], Any],
        receiver: int,
        slots: SlotWriter | None = None,
    ) -> None:
        self.collate_fn = collate_fn
        self.receiver = receiver
        self.slots = slots
        self._escapes = False  # tensors stacked into a slot were not found in the batch

    def around(self, batch: Any) -> HostBatch:  # noqa: D102
        return self(None, batch)

    def __call__(self, samples: Any, data: Any = None) -> HostBatch:  # noqa: D102
        info = get_worker_info()
        worker = 0 if info is None else info.id
        with stage("collate"):
            if self.slots is None:
                return self._unpacked(samples, worker, data)
            return self._into_slot(self.slots, samples, worker, data)

    def _into_slot(self, slots: SlotWriter, samples: Any, worker: int, data: Any) -> HostBatch:
        missed = NONE_FREE
        needed = needs = 0
        stacks = data is None and not self._escapes and stacks_into(self.collate_fn)
        if not stacks:
            data = self.collate_fn(samples) if data is None else data
            needed = packed_bytes(data)
            if (batch := self._small(data, needed, worker)) is not None:
                return batch
            if not needed or _is_pinned(data):
                return HostBatch(data, worker, self.receiver)
            if unfilled.are_known():  # what is staged may need less
                needed = 0
        try:
            acquired = slots.acquire(worker, needed)
        except OSError as error:  # not from the user's code, which does not run here
            self.slots, acquired, missed = None, None, f"workers cannot reach the slots ({error})"
        if acquired is None and slots.too_small:
            missed = TOO_SMALL
        if acquired is not None:
            stamp, buffer = acquired
            packer = Packer(buffer, unfilled.stager() if slots.paints(stamp) else None)
            try:
                packed = packer.pack(collate_into(packer, samples) if stacks else data)
                if packed.nbytes:
                    return HostBatch(packed, worker, self.receiver, stamp)
                data = packed.tree
            except CannotPackError as error:
                missed, needs = str(error), error.needed
                self._escapes = isinstance(error, EscapedError)
            except BaseException:
                slots.give_back(stamp)
                raise
            slots.give_back(stamp)
        if data is None and get_worker_info() is None:
            data = self.collate_fn(samples)
            if (batch := self._small(data, packed_bytes(data), worker)) is not None:
                return batch
        return self._unpacked(samples, worker, data, missed, needs)

    def _small(self, data: Any, nbytes: int, worker: int) -> HostBatch | None:
        """Return a batch of this process that needs no slot, if this is one."""
        is_small = 0 < nbytes <= AT_ONCE_MAX_BYTES and get_worker_info() is None and _goes_along(data)
        return HostBatch(data, worker, self.receiver, is_small=True) if is_small else None

    def _unpacked(self, samples: Any, worker: int, data: Any, missed: str | None = None, needs: int = 0) -> HostBatch:
        """Fill what is unfilled, and send the batch without a slot.

        Args:
            samples: Its samples.
            worker: Number of this worker.
            data: What the user's collate function made of them.
            missed: Why it is in no slot.
            needs: Bytes of a slot in which it would be.
        """
        if not unfilled.are_known():
            data = self.collate_fn(samples) if data is None else data
            return HostBatch(data, worker, self.receiver, missed=missed, needs=needs)
        filled = Filled()
        if data is None and sends_files() and stacks_into(self.collate_fn):
            data = collate_into_files(samples, filled)
        elif data is None:
            data = self.collate_fn(samples)
        rest = fill(data)
        if missed is not None and not needs and (staged := filled.staged_bytes + rest.staged_bytes):
            needs = packed_bytes(data) - filled.nbytes - rest.nbytes + staged
        return HostBatch(data, worker, self.receiver, missed=missed, needs=needs)


def _is_pinned(data: Any) -> bool:
    """Whether a batch made in the main process is already pinned and needs no slot."""
    if get_worker_info() is not None:
        return False
    pinned, leaves = count_pinned(data)
    return 0 < pinned == leaves


def _goes_along(data: Any) -> bool:
    """Whether a small batch has few tensors, all plain and pageable."""
    found: list[bool] = []

    def look(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            found.append(is_packable(leaf) and not leaf.is_pinned())
        return leaf

    map_tensors(look, data)
    return len(found) <= AT_ONCE_MAX_TENSORS and all(found) and torch.version.cuda is not None


def route_of(loader: LoaderConfig[Any]) -> Route:
    """Decide what makes an epoch of ``loader`` that starts now."""
    state = state_of(loader)
    if not state.checks.reads_pixels:
        totals = state.totals
        state.checks.reads_pixels = 0 < totals["batches"] <= totals["made:looked_at"]
    return decide(
        loader, state.checks, state.reader, _prepare_lazy_images, _decodes_for_opencv, state.makes_own(loader)
    )


def _prepare_lazy_images() -> bool:
    if not _may_be_lazy():
        return False
    from fastload.lazy import images as lazy_images

    if _has_torchvision():
        from fastload.deferred import functions  # noqa: F401 - forked workers inherit what is imported here
    return lazy_images.prepare()


def _may_be_lazy() -> bool:
    return imported("PIL.Image") is not None and importlib.util.find_spec("fastload._core") is not None


def _prepare_in_server() -> None:
    """Prepare lazy images in a fork server, once; its workers would take 0.3 s each."""
    global _serves
    if _serves and _may_be_lazy():
        _serves = False
        _prepare_lazy_images()


_serves = "multiprocessing.forkserver" in " ".join(sys.orig_argv)
if _serves:
    os.register_at_fork(before=_prepare_in_server)


def _decodes_for_opencv() -> bool:
    if imported("cv2") is None or importlib.util.find_spec("fastload._core") is None:
        return False
    from fastload.lazy import opencv  # which forked workers inherit

    return opencv.is_used()


def decode_for_opencv() -> None:
    """Decode natively what OpenCV reads in this worker process."""
    if _decodes_for_opencv():
        from fastload.lazy import opencv

        opencv.install()


def _has_torchvision() -> bool:
    # Importing it just for lazy images would delay the first batch by a second.
    return imported("torchvision") is not None


def install_lazy_images(deferred: bool) -> Deferral | None:
    """Make Pillow's images lazy in this worker process.

    Args:
        deferred: Whether tensors of them are deferred where that can be had.

    Returns:
        What defers them, if anything does.
    """
    if not _may_be_lazy():
        return None
    from fastload.lazy import images as lazy_images

    deferral = _deferral() if deferred and _has_torchvision() else None
    if not lazy_images.install(*() if deferral is None else (deferral.install, deferral.uninstall)):
        return None
    if deferral is not None:
        deferral.install()  # for images made of arrays; again with the first file, when more may be imported
        deferral.install_decoding()
    return deferral


def _deferral() -> Deferral | None:
    from fastload.deferred import functions, memory

    if not memory.guard_pages():
        return None
    functions.let_faults_through()
    return functions.Deferral()


def start_epoch(view: DataLoader[Any], resumption: Resumption | None = None) -> Iterator[Any]:
    """Start torch's own iterator, or resume one."""
    seeded = view.dataset if isinstance(view.dataset, SeededByIndex) else None
    make = functools.partial(torchs_iterator, view)
    if view.num_workers:
        make = functools.partial(start_frozen, make)
    iterator: Any = start_iterator(view, resumption, make)
    if seeded is not None and not view.num_workers:
        seeded.run_here(iterator._base_seed)
    return iterator  # type: ignore[no-any-return]


def start_iterator(view: Any, resumption: Resumption | None, make: Callable[[], Any]) -> Any:
    """Return ``make()``, which iterates ``view``, from where the resumption says, if there is one."""
    if resumption is None:
        return make()
    from fastload.state.resume import start_resumed

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
