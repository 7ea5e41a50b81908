"""Make the samples that the core does not support with the user's transforms."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch._utils import ExceptionWrapper

from fastload.engines.decode_batch import PythonError, drawn
from fastload.engines.random_states import state_of_seed
from fastload.pipeline.samples import one_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.engines.decode_batch import Batch
    from fastload.engines.sample_process import SampleProcess
    from fastload.pipeline.reader import Recipe

    _SampleOf = Callable[[Batch, int, bytes | None], tuple[Any, bytes]]


class PythonSamples:
    """Makes single samples of batches, and counts them.

    Args:
        recipe: How to make samples.
        process: Makes them.
        by_index: Whether a sample's random numbers depend on its index.
    """

    def __init__(self, recipe: Recipe, process: SampleProcess, *, by_index: bool) -> None:
        self.recipe = recipe
        self._pipeline = recipe.pipeline
        self._views = recipe.pipeline.views
        self._fetches_batches = recipe.fetches_batches
        self._process = process
        self._by_index = by_index
        self.images = self.batches = 0
        self.seconds = 0.0

    def before(self, batch: Batch, sample: int) -> bytes | None:
        """The generator state before a sample; ``None`` if nothing is drawn."""
        if not self._pipeline.draws:
            return None
        if self._by_index:
            return state_of_seed(batch.seeds[sample], others=self._pipeline.draws_others)
        return batch.job.generator_before(sample)  # type: ignore[no-any-return]

    def sample(self, batch: Batch, sample: int, before: bytes | None, wake: Callable[[], None]) -> tuple[Any, bytes]:
        """Make a sample's pixels and patches; also return the worker's generator state after it.

        ``wake`` is called when another thread has to start the process.

        Raises:
            PythonError: The user's code raised an error.
            RuntimeError: The process has ended.
        """
        index, view = divmod(sample, self._views)
        source = one_of(batch.sources[index], view)
        where = self.recipe.described(batch.indices[index], source)
        begun = time.monotonic()
        try:
            size = self._pipeline.sizes[view]
            self._process.wait_started(wake)
            made, after = self._process.sample(source, before, size=size, worker=batch.worker, where=where, view=view)
        finally:
            self.seconds += time.monotonic() - begun
        if isinstance(made, ExceptionWrapper):
            raise PythonError(sample, made, None if before is None or self._by_index else after)
        return made, after

    def make(self, batch: Batch, samples: list[int], made: dict[int, Any], sample_of: _SampleOf) -> bytes | None:
        """Add ``samples`` to those that are ``made``.

        Returns:
            The generator's state behind the batch, all of whose later samples are made here, too, if Pillow read a file
            differently, so that later draws are invalid; else ``None``.
        """
        for sample in samples:
            if sample in made:
                continue
            before = self.before(batch, sample)
            made[sample], after = sample_of(batch, sample, before)
            if before is None or self._by_index:
                continue
            if after != drawn(self.recipe.plan, batch.job, sample, before, self._views):
                for later in range(sample + 1, len(batch.sources) * self._views):
                    made[later], after = sample_of(batch, later, after)
                return after
        return None

    def raise_earlier(self, batch: Batch, sample: int, made: dict[int, Any], sample_of: _SampleOf) -> None:
        """Raise an earlier undecodable sample's error, if any: a worker would stop there."""
        batch.job.cancel()
        for earlier, status in enumerate(batch.job.statuses()[:sample]):
            if status and earlier not in made:
                sample_of(batch, earlier, self.before(batch, earlier))

    def failed(self, batch: Batch, error: PythonError, wake: Callable[[], None]) -> PythonError:
        """Let a dataset that fetches batches fetch one that failed, for its own error.

        Raises:
            RuntimeError: The process has ended.
        """
        if self._by_index or not self._fetches_batches:
            return error
        before = batch.job.generator_before(0) if self._pipeline.draws else None
        self._process.wait_started(wake)
        wrapper, after = self._process.fetched(list(batch.draw[0]), before, worker=batch.worker)
        return PythonError(error.sample, wrapper or error.wrapper, None if before is None else after)

    def put(self, batch: Batch, made: dict[int, Any]) -> None:
        """Put samples into their batch."""
        if not made:
            return
        self.batches += 1
        self.images += len(made)
        by_view = self._pipeline.by_view(batch.pixels)
        for sample, (pixels, patches) in made.items():
            index, view = divmod(sample, self._views)
            by_view[view][index] = torch.from_numpy(pixels)
            batch.patches[sample] = patches
            if batch.host is not None:
                batch.host.put(index, view, by_view[view][index : index + 1])
            if batch.staged is not None:
                batch.staged.remove(sample)
