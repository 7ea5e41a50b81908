"""Measure the cost of a sample in a short trial before the first epoch.

The trial's process is started as torch starts its workers, with copies of the dataset, the sampler and all random
states. So nothing that it draws, reads ahead or changes affects the epoch.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.multiprocessing
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker as torch_worker

from fastload._batch import map_tensors
from fastload.torch_workers.processes import forking_workers, release_free_memory
from fastload.torch_workers.view import view_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

TRIAL_S: Final = 0.5
"""Duration of the trial after its first batch."""
_FIRST_BATCH_S: Final = 3.0  # if the first batch takes longer, use one worker per core
_START_S: Final = 60.0  # a spawned process imports torch and the user's module
_BATCHES_MAX: Final = 20
_GRACE_S: Final = 5.0  # to finish the current sample when the time is up


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a trial.

    Attributes:
        batches: Number of batches made.
        cost_s: Worker seconds per sample, from fetching it to sending its batch.
        batch_s: The same per batch.
        batch_bytes: Bytes of a batch's tensors.
    """

    batches: int
    cost_s: float
    batch_s: float
    batch_bytes: int


def run_trial(loader: DataLoader[Any], seconds: float = TRIAL_S) -> Trial | None:
    """Time some of the loader's batches in a separate process. Blocks for about ``seconds``.

    It then waits up to 5 s for the current sample, because a process killed in the middle of a sample may hold a lock
    or leave half a file. After that the process is killed.

    Returns:
        ``None`` if no batch came: it takes too long or raises, or the dataset cannot be sent to another process. The
        epoch will then raise torch's error.
    """
    context: Any = loader.multiprocessing_context or torch.multiprocessing
    # Not through DataLoader's setter, which rejects a context without workers.
    changes = {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None, "pin_memory": False}
    view = view_of(loader, **changes, timeout=0, _DataLoader__multiprocessing_context=None)
    receiver, sender = context.Pipe(duplex=False)
    enough = torch.zeros((), dtype=torch.bool).share_memory_()  # type: ignore[no-untyped-call]
    args = (view, sender, seconds, enough)
    process = context.Process(target=_make_batches, args=args, name="fastload-trial", daemon=True)
    try:
        try:
            with forking_workers():
                release_free_memory()
                process.start()
        except Exception:  # noqa: BLE001 - pickling a dataset may raise anything
            return None
        finally:
            sender.close()
        return _evaluate(_reports(receiver, seconds))
    finally:
        receiver.close()
        if process.pid is not None:
            enough.fill_(True)
            try:
                process.join(_GRACE_S)
            finally:
                process.kill()
                process.join()
                process.close()


def _reports(receiver: Connection, seconds: float) -> list[tuple[int, float, int]]:
    """Receive the process's report of each batch, until it ends or its time is up."""
    found: list[tuple[int, float, int]] = []
    with contextlib.suppress(EOFError, OSError):
        if not receiver.poll(_START_S):
            return found
        receiver.recv()
        end = time.monotonic() + _FIRST_BATCH_S
        while receiver.poll(max(0.0, end - time.monotonic())):
            found.append(receiver.recv())
            if len(found) == 1:
                end = time.monotonic() + seconds
    return found


def _evaluate(reports: list[tuple[int, float, int]]) -> Trial | None:
    if not reports:
        return None
    steady = reports[1:] or reports  # the first one opens files and imports modules
    images = sum(images for images, _, _ in steady)
    took = sum(seconds for _, seconds, _ in steady)
    nbytes = sum(nbytes for _, _, nbytes in steady)
    return Trial(len(reports), took / max(1, images), took / len(steady), nbytes // len(steady))


class _EnoughError(Exception):
    """Raised in the trial's process to end it."""


class _Interruptible:
    """Dataset wrapper that raises once the trial is over."""

    def __init__(self, dataset: Any, enough: torch.Tensor) -> None:
        self._dataset = dataset
        self._enough = enough

    def __getitem__(self, index: Any) -> Any:
        if self._enough:
            raise _EnoughError
        return self._dataset[index]

    def __getattr__(self, name: str) -> Any:  # such as __getitems__
        return getattr(self._dataset, name)


def _make_batches(view: DataLoader[Any], sender: Connection, seconds: float, enough: torch.Tensor) -> None:
    """Make batches in the trial's process; send ``(images, seconds, bytes)`` of each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    torch.set_num_threads(1)
    with contextlib.suppress(BaseException):  # an error of the dataset will be raised again in the epoch
        _become_worker(view)
        sender.send(None)
        begin = previous = time.perf_counter()
        batches: Any = iter(view)
        batches._dataset_fetcher.dataset = _Interruptible(view.dataset, enough)
        for number, batch in enumerate(batches, start=1):
            images, nbytes = _hand_on(batch, view._auto_collation)
            now = time.perf_counter()
            sender.send((images, now - previous, nbytes))
            if number == _BATCHES_MAX or now - begin > seconds:
                break
            previous = time.perf_counter()
    sender.close()


def _become_worker(view: DataLoader[Any]) -> None:
    """Set up what a dataset finds in a worker: seeds and ``get_worker_info()``."""
    seed = torch.initial_seed()
    random.seed(seed)
    torch.manual_seed(seed)
    with contextlib.suppress(ImportError):
        import numpy as np

        np.random.seed(seed % 2**32)
    torch_worker._worker_info = torch_worker.WorkerInfo(id=0, num_workers=1, seed=seed, dataset=view.dataset)
    if view.worker_init_fn is not None:
        view.worker_init_fn(0)


def _hand_on(batch: Any, collated: bool) -> tuple[int, int]:
    """Move a batch's tensors into shared memory, as a worker does. Returns images and bytes."""
    lengths: list[int] = []
    nbytes = 0

    def share(leaf: Any) -> Any:
        nonlocal nbytes
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.layout == torch.strided:
            nbytes += leaf.nbytes
            if leaf.dim():
                lengths.append(len(leaf))
            return leaf.share_memory_()  # type: ignore[no-untyped-call]
        return leaf

    map_tensors(share, batch)
    if not collated:
        return 1, nbytes
    return lengths[0] if lengths else len(batch) if isinstance(batch, list) else 1, nbytes
