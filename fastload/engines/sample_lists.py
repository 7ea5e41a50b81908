"""Lists of samples made natively, as a collate function of the user's own gets them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from fastload._compare import same
from fastload.device.normalize import host_images
from fastload.engines.decode_batch import drawn
from fastload.engines.random_states import set_state, state_now
from fastload.pipeline.samples import filled

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload import _core
    from fastload.pipeline.erasing import Patch
    from fastload.pipeline.reader import Recipe

COMPARED: Final = 2
"""Samples of the first batches that are compared where no check went before."""


class DifferenceError(Exception):
    """A sample made natively is not torch's."""


@dataclass(frozen=True, slots=True)
class Made:
    """A batch as the core has made it.

    Attributes:
        recipe: How it was made.
        job: Its finished job.
        indices: The samples' indices.
        sources: Their encoded images.
        rests: What is around the images; see :func:`~fastload.pipeline.samples.filled`.
        pixels: ``(N, H, W, 3)`` uint8.
        patches: What erases each sample.
        after: States of the generators after the batch; ``None`` if nothing draws.
    """

    recipe: Recipe
    job: _core.Job
    indices: Any
    sources: list[Any]
    rests: list[Any]
    pixels: torch.Tensor
    patches: list[list[Patch]]
    after: bytes | None

    def samples(self) -> SampleList:
        """Make the samples' images, each in memory of its own."""
        images_of = images_alone(self.recipe)
        images = [self._image(images_of, sample) for sample in range(len(self.sources))]
        states: list[Any] = []
        if self.recipe.target_transform is not None and self.after is not None:
            states = [*(self.job.generator_before(sample) for sample in range(1, len(images))), self.after]
        others = self.recipe.pipeline.draws_others
        return SampleList(images, self.rests, self.recipe.target_transform, states, self.indices, others)

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
        chosen = [sample for sample in range(len(self.sources)) if sample not in beside][:most]
        for sample in chosen:
            now = state_now(others=pipeline.draws_others)
            before: bytes = self.job.generator_before(sample) if pipeline.draws else now  # type: ignore[assignment]
            set_state(before)
            ours: Any = self._image(images_alone(recipe), sample)
            if recipe.target_transform is None:
                ours, theirs = filled(self.rests[sample], ours), recipe.dataset[self.indices[sample]]
            else:  # which may do anything, and so runs once
                theirs = recipe.image(self.sources[sample])
            after = drawn(recipe.plan, self.job, sample, before) if pipeline.draws else before
            if state_now(others=pipeline.draws_others) != after:
                raise DifferenceError("a sample draws other random numbers natively")
            if pipeline.approximate is None and not _are_alike(ours, theirs, any_layout=pipeline.layout is None):
                raise DifferenceError("a sample is not the same to the bit natively")
        return len(chosen)


@dataclass(frozen=True, slots=True)
class SampleList:
    """Samples before the user's ``target_transform``.

    Attributes:
        images: Their images.
        rests: What is around the images.
        target_transform: The user's, if any.
        states: States of the generators after each image; empty if nothing draws.
        indices: The samples' indices.
        draws_others: Whether images draw from Python's ``random`` or from NumPy, too.
    """

    images: list[torch.Tensor]
    rests: list[Any]
    target_transform: Callable[[Any], Any] | None
    states: list[bytes]
    indices: Any
    draws_others: bool

    def completed(self, dataset: Any) -> tuple[list[Any], bool]:
        """Complete the samples, with ``target_transform`` run from the state that each would find.

        Args:
            dataset: Makes the samples that follow one whose target has drawn random numbers.

        Returns:
            The samples, and whether all images could be used.
        """
        if self.target_transform is None:
            return [filled(rest, image) for rest, image in zip(self.rests, self.images, strict=True)], True
        samples: list[Any] = []
        for number, (image, target) in enumerate(zip(self.images, self.rests, strict=True)):
            if self.states:
                set_state(self.states[number])
            samples.append((image, self.target_transform(target)))
            now = state_now(others=self.draws_others) if self.states else b""
            if self.states and now != self.states[number]:  # the next images would have drawn other numbers
                return samples + [dataset[index] for index in self.indices[len(samples) :]], False
        return samples, True


def images_alone(recipe: Recipe) -> Callable[..., Any]:
    """Return a function that makes images as they are in samples."""
    return host_images(recipe, recipe.pipeline.layout or torch.contiguous_format)


def _are_alike(ours: Any, theirs: Any, *, any_layout: bool) -> bool:
    """Whether two samples are the same; ``any_layout`` compares tensors without their strides."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, torch.Tensor):
        return same(ours, theirs.contiguous() if any_layout else theirs)
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(_are_alike(ours[k], theirs[k], any_layout=any_layout) for k in ours)
    if isinstance(ours, tuple | list):
        pairs = zip(ours, theirs, strict=True)
        return len(ours) == len(theirs) and all(_are_alike(a, b, any_layout=any_layout) for a, b in pairs)
    return pickle.dumps(ours) == pickle.dumps(theirs)
