"""Engine ``workers``: torch's own worker processes and pin-memory thread, which run the user's code unchanged.

The collate function is wrapped (in the iterator, never on the loader), so that a batch travels as a
:class:`~fastload._batch.HostBatch`. Torch's pin-memory thread then delivers it to
:class:`~fastload.engines.copy_scheduler.CopyScheduler` by calling its ``pin_memory()``, the moment that it is ready.
Sampler, worker assignment, errors, time-outs and the end of an epoch stay torch's own, in torch's own threads: a thread
that called ``next()`` ahead of time would draw from the sampler earlier than torch does, and after an early ``break``
the next epoch would differ.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.utils.data.dataloader
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]
from torch.utils.data import DataLoader, get_worker_info

from fastload._batch import HostBatch, count_pinned
from fastload.engines.copy_scheduler import NONE_FREE
from fastload.engines.sample_seeding import SeededByIndex
from fastload.memory.packing import CannotPackError, EscapedError, Packer, collate_into, packed_bytes, stacks_into
from fastload.nvtx import stages
from fastload.nvtx.stages import stage
from fastload.stats.fetch_timer import MeasuredWorker
from fastload.torch_workers.processes import restart_workers, start_frozen
from fastload.torch_workers.signals import usual_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastload.memory.slots import SlotWriter
    from fastload.stats.shared_counters import SharedCounters


SWITCH_S: Final = 2e-4
"""How long a worker's Python code keeps the interpreter's lock from a thread that wants it."""

_USUAL_SWITCH_S: Final = 5e-3  # Python's
TOO_SMALL = "larger than a slot"


class Collate:
    """Runs the user's collate function in the worker and sends the result on its way. Picklable if that function is.

    Args:
        collate_fn: The user's; ``default_collate`` stacks straight into a slot, any other one's result is packed.
        receiver: Key of the :class:`CopyScheduler` that wait for the batches.
        slots: Where to get slots, or ``None`` to send batches as torch does.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], receiver: int, slots: SlotWriter | None = None) -> None:
        self.collate_fn = collate_fn
        self.receiver = receiver
        self.slots = slots
        self._escapes = False  # a batch's tensors were stacked into its slot in vain

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
        stacks = not self._escapes and stacks_into(self.collate_fn)
        if not stacks:
            data = self.collate_fn(samples)
            needed = packed_bytes(data)
            if not needed or _is_pinned(data):
                return HostBatch(data, worker, self.receiver)
        try:
            acquired = slots.acquire(worker, needed)
        except OSError as error:  # not the user's: their code has run, or has yet to
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
    """Whether a batch of the main process is in pinned memory already, so that a slot would gain nothing."""
    if get_worker_info() is not None:
        return False
    pinned, leaves = count_pinned(data)
    return 0 < pinned == leaves


class NamedStages:
    """A worker's first call: gives its ``fetch`` a range, then runs the user's ``worker_init_fn``."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self.worker_init_fn = worker_init_fn

    def __call__(self, worker_id: int) -> None:  # noqa: D102
        stages.instrument_fetch()
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


class SendsPromptly:
    """A worker's first call: shortens the interpreter's switch interval, then runs the user's ``worker_init_fn``.

    Torch's workers send a batch from a second thread, which takes the interpreter's lock many times for it. Each time
    it waits for one interval, 5 ms by default, if the next batch is made by Python code meanwhile.
    """

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self.worker_init_fn = worker_init_fn

    def __call__(self, worker_id: int) -> None:  # noqa: D102
        if sys.getswitchinterval() == _USUAL_SWITCH_S:  # else somebody has chosen
            sys.setswitchinterval(SWITCH_S)
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


class TakesSignals:
    """A worker's first call: from here on, signals are handled as they were before workers were started.

    An early Ctrl-C arrives here, where torch's worker takes it for its end; before, it would print a traceback. A
    worker whose parent has been killed meanwhile ends: torch's watchdog, which is made next, would watch its new one.
    """

    def __init__(self, first_call: Callable[[int], None]) -> None:
        self.first_call = first_call
        self.parent = os.getpid()

    def __call__(self, worker_id: int) -> None:  # noqa: D102
        usual_signals()
        torch._C._set_worker_signal_handlers()  # made in C, below those
        if os.getppid() != self.parent and not _exists(self.parent):  # a fork server's workers have another
            os._exit(1)
        self.first_call(worker_id)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def first_call_of(
    loader: Any, worker_init_fn: Callable[[int], None] | None, board: SharedCounters
) -> Callable[[int], None]:
    """What a worker runs first: takes signals, has its fetches measured, sends promptly, and does as the user says."""
    promptly = worker_init_fn if loader.engine == "torch" else SendsPromptly(worker_init_fn)
    return TakesSignals(MeasuredWorker(promptly, board))


def stages_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """What to change on a view so that a profiler sees the workers' stages; nothing when no profiler listens."""
    if not stages.active():
        return {}
    if loader.num_workers:
        return {"worker_init_fn": NamedStages(loader.worker_init_fn)}
    stages.instrument_fetch()  # the main process is the worker
    return {}


def start_epoch(view: DataLoader[Any]) -> Iterator[Any]:
    """Start torch's own iterator (with persistent workers: the same one, reset)."""
    seeded = view.dataset if isinstance(view.dataset, SeededByIndex) else None
    former: Any = view._iterator
    if former is not None:
        restart_workers(former, lambda: iter(view))
        return former  # type: ignore[no-any-return]
    iterator: Any = start_frozen(lambda: iter(view)) if view.num_workers else iter(view)
    if seeded is not None and not view.num_workers:
        seeded.run_here(iterator._base_seed)
    return iterator  # type: ignore[no-any-return]


def next_of(host: Any) -> Any:
    """``next(host)`` of torch's iterator, without the profiler's range around it while no profiler runs.

    Torch opens that range every time, and it is the dearest part of a ``next()`` whose batch is ready. An iterator that
    is not as torch 2.11 to 2.15 have it, or that counts what an iterable dataset promised, takes torch's own path.
    """
    kind = type(host)
    shortcut = issubclass(kind, _BASE) and kind.__next__ is _NEXT  # else another kind, or a tracer's patch
    if not shortcut or host._IterableDataset_len_called is not None or _profiler_enabled():
        return next(host)
    data = host._next_data()
    host._num_yielded += 1
    return data


_BASE = getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", ())
_NEXT = getattr(_BASE, "__next__", None)
