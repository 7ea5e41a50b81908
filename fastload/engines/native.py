"""Engine ``native``: one process, ``num_workers`` decode threads, and the batches that torch's workers would make.

Index batches are drawn where torch draws them, as many ahead as torch would, so that the sampler and both generators
stand after each batch (and after a ``break``) where torch's would. Batch ``k`` belongs to the *virtual worker*
``k mod num_workers``, which has the random stream of that worker of torch's. A worker's samples are drawn in order, and
decoded in any; few batches are decoded at a time, because one batch occupies all threads. How many threads there are
shows in no batch: with ``num_workers="auto"`` they come and go.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from torch._utils import ExceptionWrapper
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fastload._nvtx import stage
from fastload.engines.auto import AutoWorkers
from fastload.engines.decoding import Line
from fastload.engines.threads import ThreadSizer
from fastload.engines.underway import TookTooLongError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch.utils.data import DataLoader

    from fastload.insight.stats import Totals
    from fastload.vision.recipe import Recipe

_NEXT = _BaseDataLoaderIter.__next__


class NativeIterator(_BaseDataLoaderIter):
    """One epoch; with persistent workers, one after the other.

    Args:
        loader: Its sampler, batch sizes, generator and workers are those of the batches.
        recipe: How to make its samples.
        finish: See :class:`~fastload.engines.decoding.Line`.
        finish_is_epilogue: Likewise.
        pin: Whether the pixels lie in pinned memory.
        ahead: Batches to make before they are asked for, at least 1.
        device: Where ``finish`` works, if that is not the host.
        device_totals: What the device's clock has measured of the consumer's steps; ``None`` without one.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        recipe: Recipe,
        finish: Callable[[torch.Tensor, torch.Tensor | None, Any, int], Any],
        *,
        finish_is_epilogue: bool = False,
        pin: bool = False,
        ahead: int = 1,
        device: torch.device | None = None,
        device_totals: Callable[[], Totals] | None = None,
    ) -> None:
        super().__init__(loader)  # draws the base seed
        self._window = (loader.prefetch_factor or 2) * self._num_workers
        workers = loader.num_workers
        self._sizer = None
        if isinstance(workers, AutoWorkers):
            self._sizer = ThreadSizer(workers.sizing, device=device_totals)
        self._line = Line(
            recipe.snapshot(),
            self._num_workers if self._sizer is None else self._sizer.threads_at_first,
            base_seed=int(self._base_seed),
            workers=self._num_workers,
            by_index=getattr(loader, "rng", "torch") == "index",
            finish=finish,
            finish_is_epilogue=finish_is_epilogue,
            pin=pin,
            ahead=ahead,
            device=device,
        )
        if self._sizer is not None:
            self._sizer.attach(self._line.pool)
        self._sent = 0
        self._closed = False
        self._finalizer = weakref.finalize(self, self._line.close)
        self._reset(loader, first_iter=True)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._line.drain()  # the workers' generators go on
        self._line.epoch += 1
        if self._sizer is not None:
            self._sizer.begin()
        self._sent = 0
        for _ in range(self._window):
            self._send()

    def _send(self) -> None:
        """Draw one more index batch, if there is one."""
        try:
            indices = self._next_index()  # type: ignore[no-untyped-call]
        except StopIteration:
            return
        self._line.add(self._sent % self._num_workers, self._sent, indices)
        self._sent += 1

    def __next__(self) -> Any:
        if _profiler_enabled() or _BaseDataLoaderIter.__next__ is not _NEXT:  # or a tracer's patch
            return super().__next__()  # opens a range, which is the dearest part of a next() whose batch is ready
        data = self._next_data()
        self._num_yielded += 1
        return data

    def _next_data(self) -> Any:
        if self._closed:
            raise RuntimeError("the FastLoader of this iterator was closed")
        if not len(self._line):
            if not self._persistent_workers:
                self._finalizer()
            raise StopIteration
        asked = time.monotonic()
        with stage("wait", self._num_yielded):
            try:
                data = self._line.take(self._timeout)
            except TookTooLongError:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds") from None
        self._send()
        if isinstance(data, BaseException):
            raise data
        if self._sizer is not None:  # only what more threads would have shortened counts as waiting
            begun, ended = self._line.awaited
            self._sizer.note(self._line.images, max(0.0, ended - max(begun, asked)))
        if isinstance(data, ExceptionWrapper):
            data.reraise()  # type: ignore[no-untyped-call]
        return data

    def close(self) -> None:
        """Stop the decode threads; what is asked for later raises. Idempotent."""
        self._closed = True
        self._finalizer()

    def _shutdown_workers(self) -> None:
        self.close()
