"""The samples that remain of a native batch, while others are left out or replaced.

A sample that raises before it has drawn random numbers, as a damaged file does, is taken out of its batch, and the
batch is submitted anew: the samples behind it then draw what they would in a worker. Behind one that has drawn, the
next sample is made in Python, from the state that it has left; the core goes on from there.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastload.bad_samples import (
    NOTHING_WORKS,
    Failed,
    SampleError,
    candidates,
    failed_with,
    is_of_sample,
    plain,
    shown,
)
from fastload.pipeline.datasets.arrays import Pixels
from fastload.pipeline.datasets.folders import sample_name
from fastload.python_samples.dialogue import checked
from fastload.python_samples.odd_samples import PythonError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastload.native.batch import Batch
    from fastload.options import OnError
    from fastload.pipeline.recipe import Recipe


class Remaining:
    """What remains of one batch.

    Args:
        batch: Its sources, targets and seeds change.
        recipe: Locates samples.
        on_error: ``"skip"`` or ``"replace"``.
        seed_of: Returns a sample's seed from its index, if randomness is by index.

    Attributes:
        indices: Of the samples that it is made of now.
        starts: States from which some of them begin, by their number; these are made in Python.
        after: The state behind the batch, if the last samples have drawn and are left out.
        on_host: Whether threads must decode it, because a sample has failed that had drawn.
    """

    def __init__(self, batch: Batch, recipe: Recipe, on_error: OnError, seed_of: Callable[[Any], int] | None) -> None:
        self.indices: list[Any] = []
        self.starts: dict[int, bytes] = {}
        self.after: bytes | None = None
        self.on_host = False
        self._batch, self._recipe, self._replaces = batch, recipe, on_error == "replace"
        self._seed_of = seed_of or (lambda index: 0)
        self._places: list[int] = []  # of the samples in the batch as it was drawn
        self._failed: dict[int, Failed] = {}  # by place
        self._errors: dict[int, Any] = {}  # by place, as a worker would send the first
        self._others: dict[int, Iterator[Any]] = {}  # by place, what may still replace a sample

    @property
    def failed(self) -> list[Failed]:
        """Samples that have failed, in the batch's order."""
        return [failed for _, failed in sorted(self._failed.items())]

    def locate(self, entries: Iterator[tuple[Any, Any]] | None) -> None:
        """Take the batch's samples as they are located.

        Args:
            entries: Their sources and targets; ``None`` if the batch has them.

        Raises:
            Exception: One that cannot be blamed on a sample, or is of a sample that nothing can replace.
        """
        batch = self._batch
        if entries is None:
            self.indices, self._places = list(batch.indices), [*range(len(batch.indices))]
            return
        batch.sources = []
        for place, index in enumerate(batch.indices):
            try:
                source, target = next(entries)
                found = index, checked(source), target
            except Exception as error:  # noqa: BLE001 - any error of the user's dataset
                other = self._after_error(place, index, error)
                if other is None:
                    continue
                found = other
            self._places.append(place)
            self._put(len(self.indices), *found)

    def _after_error(self, place: int, index: Any, error: Exception) -> tuple[Any, Any, Any] | None:
        """Return what replaces a sample that could not be located, if anything does."""
        if not is_of_sample(error):
            raise error
        other = self._other(place)
        if other is None and self._replaces:
            raise error
        self._note(place, failed_with(index, sample_name(self._recipe.dataset, index), error), other)
        return other

    def leave_out(self, bad: dict[int, PythonError]) -> PythonError | None:
        """Take samples out of the batch, or replace them.

        Args:
            bad: Their errors, by number.

        Returns:
            The first error of a place in which nothing works, with the state behind the last.
        """
        if all(error.drew for error in bad.values()):
            if self._batch.staged is not None:  # a sample before them may still fail, and they have drawn behind it
                self.on_host = True
                return None
            bad = {min(bad): bad[min(bad)]}
        else:  # the others may have drawn behind those, and are met again
            bad = {number: error for number, error in bad.items() if not error.drew}
        for number, error in bad.items():
            place, index, source = self._places[number], self.indices[number], self._batch.sources[number]
            first = self._errors.setdefault(place, error.error)
            other = self._other(place)
            if other is None and self._replaces:
                first.exc_msg = f"{first.exc_msg}\n{NOTHING_WORKS}"
                return PythonError(error.sample, first, error.state)
            name = sample_name(self._recipe.dataset, index)
            if name is None and isinstance(source, str | os.PathLike):
                name = os.fsdecode(source)
            self._note(place, Failed(SampleError(plain(index), name, error.error.summary)), other)
            if other is not None:
                self._put(number, *other)
                if error.drew or number in self.starts:
                    self.starts[number] = error.state  # type: ignore[assignment]
        if not self._replaces:
            self._remove(bad)
        return None

    def _note(self, place: int, failed: Failed, other: tuple[Any, Any, Any] | None) -> None:
        """Note the first error of a place, and what is there now."""
        instead = None if other is None else shown(other[0])
        self._failed[place] = replace(self._failed.get(place, failed), instead=instead)

    def _other(self, place: int) -> tuple[Any, Any, Any] | None:
        """Locate the next sample that may replace one, if any may."""
        if not self._replaces:
            return None
        for index in self._others.setdefault(place, candidates(self._batch.draw[0], place)):
            try:
                source, target = self._recipe.locate(index)
                return index, checked(source), target
            except Exception as error:
                if not is_of_sample(error):
                    raise
        return None

    def _put(self, number: int, index: Any, source: Any, target: Any) -> None:
        """Put a sample at its number, which may be the next one."""
        batch = self._batch
        if isinstance(batch.sources, Pixels):
            batch.sources = [batch.sources[number] for number in range(len(batch.sources))]
        some = slice(number, number + 1)
        self.indices[some], batch.sources[some], batch.targets[some] = [index], [source], [target]
        batch.seeds[some] = [self._seed_of(index)]

    def _remove(self, bad: dict[int, PythonError]) -> None:
        batch, starts, behind = self._batch, {}, None
        kept: list[int] = []
        for number in range(len(self.indices)):
            start = self.starts.get(number)
            if number in bad:
                behind = bad[number].state if bad[number].drew or start is not None else behind
                continue
            if (start := start if behind is None else behind) is not None:
                starts[len(kept)] = start
            kept.append(number)
            behind = None
        self.starts, self.after = starts, self.after if behind is None else behind
        for listed in (self.indices, self._places, batch.targets, batch.seeds):
            listed[:] = [listed[number] for number in kept if number < len(listed)]
        if isinstance(batch.sources, Pixels) and not starts:
            batch.sources = Pixels(batch.sources.images, batch.sources.indices[kept])
        else:
            batch.sources = [batch.sources[number] for number in kept]
