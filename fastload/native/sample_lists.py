"""Lists of samples made natively, as a collate function of the user's own gets them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data import Subset

from fastload._compare import same
from fastload.device.normalize import host_images
from fastload.pipeline.datasets.arrays import Pixels
from fastload.pipeline.datasets.samples import filled, no_pair_because
from fastload.pipeline.installed.stamp import RecipeStamp
from fastload.randomness.generators import set_state, state_now

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload import _core
    from fastload.pipeline.ops.erasing import Patch
    from fastload.pipeline.recipe import Recipe

COMPARED: Final = 2
"""Samples of the first batches that are compared where no check went before."""


class DifferenceError(Exception):
    """A sample made natively is not torch's."""


@dataclass(frozen=True, slots=True)
class FailedSample:
    """A sample that the user's code could not make.

    Attributes:
        sample: Its position in the batch.
        error: What was raised.
        after: States of the generators then; ``None`` if nothing draws from them.
    """

    sample: int
    error: Exception
    after: bytes | None


@dataclass(frozen=True, slots=True)
class Made:
    """A batch as the core has made it.

    Attributes:
        recipe: How it was made.
        job: Its finished job.
        indices: The samples' indices.
        resolved: The same; see :meth:`~fastload.pipeline.recipe.Recipe.resolve`.
        sources: Their encoded images.
        rests: What is around the images; see :func:`~fastload.pipeline.datasets.samples.filled`.
        pixels: ``(N, H, W, 3)`` uint8.
        patches: What erases each sample.
        after: States of the generators after the batch, ``None`` if nothing draws; or the first sample that failed.
    """

    recipe: Recipe
    job: _core.Job
    indices: Any
    resolved: Any
    sources: list[Any]
    rests: list[Any]
    pixels: torch.Tensor
    patches: list[list[Patch]]
    after: bytes | FailedSample | None

    def samples(self) -> SampleList:
        """Make the samples' images, each in memory of its own."""
        recipe, images_of = self.recipe, images_alone(self.recipe)
        images = [self._image(images_of, sample) for sample in range(self._count)]
        if recipe.target_transform is None:
            return SampleList(recipe, images, self.rests)
        states: list[Any] = []
        if recipe.pipeline.draws:
            behind = self.after if isinstance(self.after, bytes) else self.job.generator_before(len(images))
            states = [*(self.job.generator_before(sample) for sample in range(1, len(images))), behind]
        failed = self.after if isinstance(self.after, FailedSample) else None
        stamp, sources = RecipeStamp(recipe), self.sources if recipe.looks_up else []
        if isinstance(sources, Pixels):  # the user's function might write to them
            sources = [source.copy() for source in sources]
        return SampleList(recipe, images, self.rests, sources, self.resolved, states, stamp, failed)

    @property
    def _count(self) -> int:
        """How many samples were made."""
        return self.after.sample if isinstance(self.after, FailedSample) else len(self.sources)

    def _image(self, images_of: Callable[..., Any], sample: int) -> torch.Tensor:
        some = slice(sample, sample + 1)
        image = images_of(self.pixels[some], self.patches[some])[0].detach()
        if self.recipe.pipeline.table is None:
            image = image.clone()
        return image.as_subclass(self.recipe.pipeline.image)  # type: ignore[no-any-return]

    def compare(self, beside: dict[int, Any], most: int) -> int:
        """Make samples in Python as well. Changes the states of the generators.

        Args:
            beside: Samples that the core did not make.
            most: How many to compare.

        Returns:
            Number of samples compared.

        Raises:
            DifferenceError: One is not the same.
        """
        recipe, pipeline = self.recipe, self.recipe.pipeline
        chosen = [sample for sample in range(self._count) if sample not in beside][:most]
        for sample in chosen:
            now = state_now(others=pipeline.draws_others)
            before: bytes = self.job.generator_before(sample) if pipeline.draws else now  # type: ignore[assignment]
            set_state(before)
            ours: Any = self._image(images_alone(recipe), sample)
            if recipe.target_transform is None:
                ours, theirs = filled(self.rests[sample], ours), recipe.dataset[self.indices[sample]]
            else:  # which may do anything, and so runs once
                theirs = recipe.image(self.sources[sample])
            after = self.job.generator_before(sample + 1) if pipeline.draws else before
            if state_now(others=pipeline.draws_others) != after:
                raise DifferenceError("a sample draws other random numbers natively")
            if recipe.target_transform is None and (why := no_pair_because("a sample", theirs, self.rests[sample])):
                raise DifferenceError(why)
            if pipeline.approximate is None and not same(theirs, ours, any_layout=pipeline.layout is None):
                raise DifferenceError("a sample is not the same to the bit natively")
        return len(chosen)


@dataclass(frozen=True, slots=True)
class SampleList:
    """Samples before the user's ``target_transform``.

    Attributes:
        recipe: How they were made.
        images: Their images, up to one that failed.
        rests: What is around the images.
        sources: The encoded images, or their pixels, as they were looked up; empty if ``encoded()`` gave them.
        resolved: The samples' indices in the innermost ``Subset``.
        states: States of the generators after each image; empty if nothing draws.
        stamp: Of what the recipe was read from.
        failed: The sample behind the last image, if it could not be made.
    """

    recipe: Recipe
    images: list[torch.Tensor]
    rests: list[Any]
    sources: list[Any] = field(default_factory=list)
    resolved: list[Any] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    stamp: RecipeStamp | None = None
    failed: FailedSample | None = None

    def completed(self) -> tuple[list[Any], bool]:
        """Complete the samples, with ``target_transform`` run from the state that each would find.

        That function may draw random numbers, and change what the recipe was read from. The samples that follow are
        then made by the dataset.

        Returns:
            The samples, and whether all images could be used.

        Raises:
            Exception: Of the sample that failed, if it does after all targets before it.
        """
        transform, samples = self.recipe.target_transform, []
        if transform is None:
            return [filled(rest, image) for rest, image in zip(self.rests, self.images, strict=True)], True
        for number, image in enumerate(self.images):
            target = self._target(number)
            if target is _CHANGED:
                break
            if self.states:
                set_state(self.states[number])
            samples.append((image, transform(target)))
            if self.states and state_now(others=self.recipe.pipeline.draws_others) != self.states[number]:
                break  # the next images would have drawn other numbers
        else:
            if self.failed is None:
                return samples, True
            if self._target(len(samples)) is not _CHANGED:
                if self.failed.after is not None:
                    set_state(self.failed.after)
                raise self.failed.error
        dataset = self.recipe.dataset
        while type(dataset) is Subset and type(dataset.dataset) is Subset:
            dataset = dataset.dataset
        return samples + [dataset[index] for index in self.resolved[len(samples) :]], False

    def _target(self, number: int) -> Any:
        """Look a sample's target up; ``_CHANGED`` if the sample would now have another image."""
        if not number:
            return self.rests[0]
        if self.stamp is None or not self.stamp.holds():
            return _CHANGED
        if not self.sources:
            return self.rests[number]
        try:
            source, target = self.recipe.locate_resolved(self.resolved[number])
        except Exception:  # noqa: BLE001 - the dataset raises it again
            return _CHANGED
        return target if _is_same_source(source, self.sources[number]) else _CHANGED


_CHANGED: Final = object()


def _is_same_source(source: Any, other: Any) -> bool:
    if type(source) is not type(other):
        return False
    if isinstance(source, np.ndarray):
        return np.array_equal(source, other)
    return isinstance(source, str | os.PathLike) and bool(source == other)


def images_alone(recipe: Recipe) -> Callable[..., Any]:
    """Return a function that makes images as they are in samples."""
    return host_images(recipe, recipe.pipeline.layout or torch.contiguous_format)
