"""Augmentations on one core beside torch's DataLoader: ``python -m benchmarks onecore``.

The process and its one worker, or decode thread, share a single core, so that images/s are what a core is worth.
Batches are compared with torch's first, then both loaders take turns, as in ``fastload bench recipes``.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torchvision import transforms
from torchvision.transforms import functional

from fastload.bench._data import MEAN, STD
from fastload.bench._recipes import RECIPES, Source, TrainingRecipe
from fastload.bench.recipes import measure_all

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from PIL import Image


class Opaque:
    """A class of the user's own that calls torchvision's functions, which nothing reads."""

    def __init__(self) -> None:
        self.size = (224, 224)

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Crop, flip, change colours."""
        box = transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
        image = functional.resized_crop(image, *box, self.size)
        draws = torch.rand(3).tolist()
        if draws[0] < 0.5:
            image = functional.hflip(image)
        image = functional.adjust_saturation(functional.adjust_brightness(image, 0.6 + draws[1]), 0.6 + draws[2])
        tensor: torch.Tensor = functional.normalize(functional.to_tensor(image), list(MEAN), list(STD))
        return tensor


class Marked:
    """A step of the user's own in the middle of a Compose: it changes pixels."""

    def __call__(self, image: Image.Image) -> Image.Image:
        """Paint a square in one corner."""
        image.paste((124, 116, 104), (0, 0, 32, 32))
        return image


def _augmented(*steps: Any, behind: tuple[Any, ...] = ()) -> Callable[[Source], dict[str, Any]]:
    def arguments(source: Source) -> dict[str, Any]:
        parts = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *steps]
        parts += [transforms.ToTensor(), transforms.Normalize(MEAN, STD), *behind]
        return {"dataset": source.with_transform(transforms.Compose(parts)), "shuffle": True}

    return arguments


def _own(source: Source) -> dict[str, Any]:
    return {"dataset": source.with_transform(Opaque()), "shuffle": True}


_JITTER: Final = transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
_KNOWN: Final = {recipe.name: recipe for recipe in RECIPES}

PIPELINES: Final[tuple[TrainingRecipe, ...]] = (
    TrainingRecipe("crop, flip", "torchvision's classic recipe", _augmented()),
    TrainingRecipe(
        "RandAugment",
        "crop, flip, RandAugment, erasing",
        _augmented(transforms.RandAugment(), behind=(transforms.RandomErasing(0.1),)),
    ),
    TrainingRecipe(
        "TrivialAugmentWide",
        "crop, flip, TrivialAugmentWide, erasing",
        _augmented(transforms.TrivialAugmentWide(), behind=(transforms.RandomErasing(0.1),)),
    ),
    TrainingRecipe(
        "ColorJitter, Grayscale",
        "crop, flip, ColorJitter at 0.8, RandomGrayscale",
        _augmented(_JITTER, transforms.RandomGrayscale(0.2)),
    ),
    _KNOWN["DINO"],
    _KNOWN["SimCLR"],
    replace(_KNOWN["SimCLR"], name="SimCLR, exact=False", exact=False),
    TrainingRecipe("one's own class", "calls torchvision's functions, and is not read", _own),
    TrainingRecipe("one step of Python", "crop, flip, a class of one's own, to tensor", _augmented(Marked())),
)


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks onecore``; 1 if batches differ from torch's."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        return measure_all(args, PIPELINES, "onecore")
    finally:
        os.sched_setaffinity(0, before)
