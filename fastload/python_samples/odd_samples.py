"""Odd samples, which the core does not support, are made with the user's transforms."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from fastload.python_samples.dialogue import converse, failed_of
from fastload.randomness.generators import state_of_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np

    from fastload import _core
    from fastload.device.host_images import HostImages
    from fastload.pipeline.ops.erasing import Patch
    from fastload.pipeline.recipe import Recipe
    from fastload.stats.stage_counts import StageCounts

MadeSample: TypeAlias = "tuple[np.ndarray[Any, Any], list[Patch]]"
"""A view's pixels, ``(H, W, 3)`` uint8, and what erases them."""


class PythonError(Exception):
    """A sample raised in Python.

    Attributes:
        sample: Its number, counted by views.
        error: What was raised, or what torch's worker would have sent.
        state: States of the generators then; ``None`` if nothing draws from them.
        drew: Whether it had drawn from them.
    """

    def __init__(self, sample: int, error: Any, state: bytes | None, *, drew: bool = False) -> None:
        super().__init__(sample)
        self.sample = sample
        self.error = error
        self.state = state
        self.drew = drew


class BadSamplesError(Exception):
    """Samples raised that are to be left out of their batch, or replaced.

    Attributes:
        bad: Their errors, by number in the batch.
    """

    def __init__(self, bad: dict[int, PythonError]) -> None:
        super().__init__(bad)
        self.bad = bad


class MisreadError(Exception):
    """Pillow read a file otherwise than the core, whose later draws are invalid."""


class OddSamples:
    """Makes the odd samples of one batch, in the turn of their draws.

    Args:
        recipe: How to make samples.
        job: The batch's.
        make: Makes a view of a sample from the state before it, ``None`` if nothing is drawn. Returns it, or what the
            user's code raised; and the state after it.
        counts: What they took is added.
        seeds: One for each sample, if randomness is by index.
        rewinds: Whether to make all that follow a sample that Pillow reads otherwise than the core.
        starts: States from which some samples begin, by number; ``None``: what a sample raises ends the batch, and else
            it is in ``bad``.

    Attributes:
        bad: What samples have raised, by number. What follows them may be wrong.
        made: Samples made so far, by number.
        rewound: The state behind the batch, if Pillow read a file otherwise, and later draws of the core are invalid.
    """

    def __init__(
        self,
        recipe: Recipe,
        job: _core.Job,
        make: Callable[[int, bytes | None], tuple[Any, bytes]],
        counts: StageCounts,
        *,
        seeds: list[int] | None = None,
        rewinds: bool = True,
        starts: dict[int, bytes] | None = None,
    ) -> None:
        self._pipeline = recipe.pipeline
        self._views = recipe.pipeline.views
        self._job = job
        self._make = make
        self._counts = counts
        self._seeds = seeds
        self._follows = recipe.pipeline.draws and seeds is None  # whether a sample goes on where the one before ended
        self._rewinds = rewinds
        self._starts = starts
        self._begun: dict[int, bytes | None] = {}  # states before samples, by number
        self.bad: dict[int, PythonError] = {}
        self.made: dict[int, MadeSample] = {}
        self.rewound: bytes | None = None

    def answer(self) -> None:
        """Answer what the job asks until it is done. Blocks.

        Raises:
            PythonError: The first one that failed. No thread works on the job then.
        """
        try:
            converse(self._job, lambda sample: self._one(sample, self._before(sample)))
        except PythonError as error:
            self._job.cancel()
            self.make(sample for sample in failed_of(self._job) if sample < error.sample)  # a worker would stop there
            if self.rewound is None:
                raise

    def make(self, samples: Iterable[int]) -> None:
        """Make samples that threads have not made.

        Args:
            samples: In order; those already made are left out.

        Raises:
            PythonError: One failed.
            MisreadError: Pillow read a file otherwise, and ``rewinds`` is not set.
        """
        for sample in samples:
            if sample in self.made:
                continue
            after = self._one(sample, self._before(sample))
            if sample // self._views in self.bad or not self._follows or after == self.drawn(sample):
                continue
            if not self._rewinds:
                raise MisreadError
            for later in range(sample + 1, len(self._job)):
                after = self._one(later, after)
            self.rewound = after
            return

    def _one(self, sample: int, before: bytes | None) -> Any:
        begun = time.monotonic()
        number, view = divmod(sample, self._views)
        if number in self.bad and self.bad[number].sample <= sample:  # of a view before it, the first error counts
            return before
        if not view:
            before = self._begun[number] = (self._starts or {}).get(number, before)
        try:
            made, after = self._make(sample, before)
        finally:
            self._counts.python_s += time.monotonic() - begun
        if not isinstance(made, tuple):
            start = self._begun[number] if number in self._begun else self._before(sample - view)
            state = after if self._follows else None
            error = PythonError(sample, made, state, drew=self._follows and after != start)
            if self._starts is None or made.summary is None:
                raise error
            self.bad[number] = error
            return after
        self.made[sample] = made
        return after

    def _before(self, sample: int) -> bytes | None:
        if not self._pipeline.draws:
            return None
        if self._seeds is not None:
            return state_of_seed(self._seeds[sample // self._views], others=self._pipeline.draws_others)
        return self._job.generator_before(sample)

    def drawn(self, sample: int) -> bytes | None:
        """The core's state after drawing for a sample; ``None`` if it cannot."""
        return self._job.generator_before(sample + 1)

    def put(
        self, pixels: torch.Tensor, patches: list[list[Patch]], host: HostImages | None = None, staged: Any = None
    ) -> None:
        """Put them into their batch."""
        self._counts.python_batches += bool(self.made)
        self._counts.python_images += len(self.made)
        by_view = self._pipeline.by_view(pixels)
        for sample, (array, erased) in self.made.items():
            index, view = divmod(sample, self._views)
            by_view[view][index] = torch.from_numpy(array)
            patches[sample] = erased
            if host is not None:
                host.put(index, view, by_view[view][index : index + 1])
            if staged is not None:
                staged.remove(sample)


def sized(recipe: Recipe, pixels: Any, view: int) -> MadeSample:
    """Return a view's pixels and what erases them, which is drawn.

    Raises the error of ``default_collate`` if images differ in size.
    """
    size = recipe.pipeline.sizes[view]
    if pixels.shape[:2] != size:
        torch.stack([torch.empty(3, *size), torch.empty(3, *pixels.shape[:2])])
    return pixels, recipe.pipeline.erased(pixels)
