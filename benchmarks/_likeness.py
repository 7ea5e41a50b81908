"""Whether random crops that a library draws by itself are like torchvision's, image by image.

A few images are loaded for some epochs, each with a label of its own, so that an epoch shows whether every image came
once, and what was made of it. How far the figures may be from torchvision's is three times as far as those of
torchvision are from each other when it draws anew, and a little for filters that round otherwise.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from benchmarks.contenders._job import SIDE, Job
from benchmarks.contenders._traits import DEVIATION, ENERGY, LEAN, SLANT, traits
from benchmarks.contenders._traits import MEAN as MEANS
from fastload._machine import usable_cpus
from fastload.bench._data import MEAN, STD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

IMAGES = 64
EPOCHS = 3
_RESEEDED = 3
_BATCH_SIZE = 16
_SPREADS = 3.0

# At least so much is let through: libraries resize and decode otherwise. Enlarged 112 px are off by 0.5 in energy,
# OpenCV's and Pillow's box filters by less than 0.2.
_LEAST = {
    "mean": 0.05,
    "deviation": 0.08,
    "energy": 0.25,
    "image": 0.08,
    "upright": 0.3,
    "variety": 0.4,
    "flips": 0.3,
}
_MEANING = {
    "mean": "mean of the channels",
    "deviation": "deviation of the channels",
    "energy": "difference of neighbouring pixels (its logarithm)",
    "image": "mean of each image",
    "upright": "top less bottom half (1: always as in the whole image)",
    "variety": "difference between an image's crops (its logarithm)",
    "flips": "left less right half (0: as often flipped as not)",
}


@dataclass(frozen=True, slots=True)
class Likeness:
    """What crops of some images look like by torchvision.

    Attributes:
        whole: Traits of the whole images, ``(N, 9)``.
        usual: Mean traits of torchvision's crops of each image, ``(N, 9)``.
        expected: Figures that torchvision's crops have, by name.
        allowed: How far others' may be from them.
    """

    whole: NDArray[np.float64]
    usual: NDArray[np.float64]
    expected: Mapping[str, Any]
    allowed: Mapping[str, float]

    @classmethod
    def of(cls, job: Job) -> Likeness:
        """By torchvision, of the images of ``job``, which :func:`lay_out` has laid out."""
        plain = transforms.Compose(
            [transforms.Resize((SIDE, SIDE)), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        )
        whole = torchvision_traits(job, plain, epochs=1)[0]
        torch.manual_seed(job.seed)
        drawn = torchvision_traits(job, job.transform(), epochs=_RESEEDED * EPOCHS)
        runs = drawn.reshape(_RESEEDED, EPOCHS, *drawn.shape[1:])
        # Each run beside the others, as a contender's is beside all of them.
        each = [figures(run, whole, np.delete(runs, number, 0).mean((0, 1))) for number, run in enumerate(runs)]
        expected = {name: np.mean([one[name] for one in each], axis=0) for name in _LEAST}
        allowed = {
            name: max(least, _SPREADS * float(max(np.abs(one[name] - expected[name]).max() for one in each)))
            for name, least in _LEAST.items()
        }
        return cls(whole, runs.mean((0, 1)), expected, allowed)

    def unlike(self, labels: Sequence[Sequence[int]], seen: NDArray[np.float64]) -> tuple[dict[str, float], str | None]:
        """Compare epochs of crops with torchvision's.

        Args:
            labels: Of each epoch, as they came.
            seen: Traits, ``(epochs, N, 9)``, in the order of the labels.

        Returns:
            How far each figure is off, and a reason to refuse them or ``None``.
        """
        count = len(self.whole)
        if any(sorted(epoch) != list(range(count)) for epoch in labels):
            return {}, f"each of {count} images must come once in an epoch, with its label, but one does not"
        in_order = np.stack([epoch[np.argsort(came)] for epoch, came in zip(seen, labels, strict=True)])
        found = figures(in_order, self.whole, self.usual)
        off = {name: float(np.abs(found[name] - self.expected[name]).max()) for name in _LEAST}
        too_far = [
            f"{_MEANING[name]} by {value:.2f}, not {self.allowed[name]:.2f} at most"
            for name, value in off.items()
            if not value <= self.allowed[name]  # so that NaN is not let through
        ]
        if not too_far:
            return off, None
        return off, f"its training images are off from torchvision's crops of the same images: {'; '.join(too_far)}"


def figures(seen: NDArray[np.float64], whole: NDArray[np.float64], usual: NDArray[np.float64]) -> dict[str, Any]:
    """What tells one way to crop from another.

    Args:
        seen: Traits of an image's crops, ``(epochs, N, 9)``.
        whole: Of the whole images.
        usual: Mean traits of torchvision's crops of each image.
    """
    by_image = seen.mean(0)
    tiny = 1e-9  # for crops that are all the same, or images of one color

    def along(column: int) -> float:
        # By the sign: a few images of great contrast would say all otherwise.
        weight = np.minimum(np.abs(whole[:, column]), np.median(np.abs(whole[:, column])))
        agrees = np.sign(seen[..., column]) * np.sign(whole[:, column])
        return float((agrees * weight).mean() / max(tiny, weight.mean()))

    return {
        "mean": by_image[:, MEANS].mean(0),
        "deviation": by_image[:, DEVIATION].mean(0),
        "energy": np.log((by_image[:, ENERGY].mean() + tiny) / (usual[:, ENERGY].mean() + tiny)),
        "image": np.sqrt(np.square(by_image[:, MEANS] - usual[:, MEANS]).mean()),
        "upright": along(LEAN),
        "variety": np.log(seen[..., [0, 1, 2, LEAN]].std(0, ddof=1).mean() + tiny),
        "flips": along(SLANT),
    }


def lay_out(files: Sequence[str], folder: Path) -> int:
    """Link up to :data:`IMAGES` files into an ImageFolder, each under its own label.

    Returns how many.

    They fill whole batches of :func:`batch_size`.
    """
    count = min(IMAGES, len(files))
    for number, file in enumerate(files[: count // batch_size(count) * batch_size(count)]):
        link = folder / f"{number:04d}" / f"0{Path(file).suffix}"
        link.parent.mkdir(parents=True)
        link.symlink_to(os.path.realpath(file))
    return count // batch_size(count) * batch_size(count)


def batch_size(images: int) -> int:
    """Images per batch of a check with so many."""
    return min(_BATCH_SIZE, images)


def torchvision_traits(job: Job, transform: Any, epochs: int) -> NDArray[np.float64]:
    """Traits of ``transform``'s images by torch's DataLoader, ``(epochs, N, 9)``."""
    dataset = job.dataset(transform)
    count = len(dataset)
    loader = DataLoader(
        dataset,
        batch_size=batch_size(count),
        sampler=list(range(count)) * epochs,
        num_workers=min(8, usable_cpus()),
    )
    return np.concatenate([traits(images) for images, _ in loader]).reshape(epochs, count, -1)
