"""Compare every contender's output with that of torch's DataLoader, before any clock starts.

A contender that draws crops as torch does, from its generator and in its order, is compared image by image. For the
others a few images are loaded for some epochs, each with a label of its own, so that an epoch shows whether every image
came once, and how it was cropped. Their figures may be three times as far from torchvision's as those of torchvision
are from each other when it draws anew, and a little more for filters that round otherwise.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader
from torchvision import transforms

from benchmarks.contenders._job import SIDE, Job
from benchmarks.contenders._remote import ContenderError, Remote, Team
from benchmarks.contenders._traits import DEVIATION, ENERGY, LEAN, SLANT, traits
from benchmarks.contenders._traits import MEAN as MEANS
from fastload._machine import usable_cpus
from fastload.bench._data import MEAN, STD, readable

CHECKED_BATCHES: Final = 2
CHECKED_BATCH_SIZE: Final = 16
CHECKED_WORKERS: Final = 2
IMAGES: Final = 64  # that are loaded in several epochs
EPOCHS: Final = 3
_RESEEDED: Final = 3
_SPREADS: Final = 3.0

# Libraries resize and decode otherwise. Enlarged 112 px are off by 0.5 in energy, OpenCV's and Pillow's box filters by
# less than 0.2.
_FIGURES: Final = {
    "mean": (0.05, "mean of the channels"),
    "deviation": (0.08, "deviation of the channels"),
    "energy": (0.25, "difference of neighbouring pixels (its logarithm)"),
    "image": (0.08, "mean of each image"),
    "upright": (0.3, "top less bottom half (1: always as in the whole image)"),
    "variety": (0.4, "difference between an image's crops (its logarithm)"),
    "flips": (0.3, "left less right half (0: as often flipped as not)"),
}
"""How far each figure of random crops may be off at least, and its meaning."""


def check_outputs(team: Team, data: str, recipe: str = "crops") -> dict[str, dict[str, Any]]:
    """Compare each contender's batches of whole images and of random crops, all contenders at once.

    Random crops of contenders that draw them by themselves are compared without the recipe's augmentations. Who does
    not have the recipe is not asked.

    Raises:
        UsageError: Torchvision cannot read an image.

    Returns:
        Results by name; with ``failed``, the reason, where a contender is off by more than it may be.
    """
    remotes = [remote for remote in team.loading if recipe == "crops" or remote.contender.any_recipe]
    seen: dict[str, dict[str, Any]] = {remote.name: {} for remote in remotes}
    with tempfile.TemporaryDirectory(prefix="fastload-") as folder:
        for train in (False, True):
            job = Job(
                data=data,
                threads=CHECKED_WORKERS,
                batch_size=CHECKED_BATCH_SIZE,
                train=train,
                images=0 if train else CHECKED_BATCHES * CHECKED_BATCH_SIZE,
                device=team.device,
                seed=1,
                recipe=recipe,
            )
            expected = Path(folder) / f"{train}.npz"
            write_expected(job, expected)
            follows = [remote for remote in remotes if not (train and remote.contender.draws_itself)]

            def check(remote: Remote, job: Job = job, expected: Path = expected) -> None:
                seen[remote.name] |= _check(remote, job, expected)

            team.together([remote for remote in follows if "failed" not in seen[remote.name]], check)
        drawing = [remote for remote in remotes if remote.contender.draws_itself and "failed" not in seen[remote.name]]
        if drawing:
            _check_drawing(team, drawing, data, Path(folder) / "images", seen)
    return seen


def _check(remote: Remote, job: Job, expected: Path) -> dict[str, Any]:
    try:
        answer = remote.ask("check", expected=str(expected), **job.record())
    except ContenderError as error:
        return {"failed": str(error)}
    return _known("check_training" if job.train else "check", answer, _wrong(answer, remote.contender.tolerance))


def _check_drawing(
    team: Team, drawing: Sequence[Remote], data: str, folder: Path, seen: dict[str, dict[str, Any]]
) -> None:
    files, _ = Job(data=data, threads=1, batch_size=1).files()
    count = lay_out(files, folder)
    job = Job(
        data=str(folder),
        threads=CHECKED_WORKERS,
        batch_size=batch_size(count),
        images=count,
        device=team.device,
        seed=1,
    )
    usual = Likeness.of(job)

    def check(remote: Remote) -> None:
        try:
            answer = remote.ask("draw", epochs=EPOCHS, **job.record())
        except ContenderError as error:
            seen[remote.name] |= {"failed": str(error)}
            return
        # The labels of this job are the numbers of its images.
        off, reason = usual.unlike(answer["labels"], np.asarray(answer["traits"]))
        known = {"images": count, "epochs": EPOCHS, "labels_equal": bool(off), "off": off, "allowed": usual.allowed}
        seen[remote.name] |= _known("check_training", known, reason)

    team.together(drawing, check)


def _known(what: str, answer: Mapping[str, Any], reason: str | None) -> dict[str, Any]:
    return {what: answer} if reason is None else {what: answer, "failed": reason}


def _wrong(seen: Mapping[str, Any], tolerance: Any) -> str | None:
    if not seen["labels_equal"]:
        return "its labels are not those of the same images"
    if tolerance is None:
        return None if seen["equal"] else "its batches must be equal bit for bit, but differ"
    if seen["mean_difference"] <= tolerance.mean:
        return None
    return f"its pixels may be off by {tolerance.mean} of 255 on average, but are by {seen['mean_difference']:.2f}"


def write_expected(job: Job, path: Path) -> None:
    """Write the first batches that torch's DataLoader gives of ``job``.

    Raises:
        UsageError: Torchvision cannot read an image.
    """
    dataset = job.dataset()
    torch.manual_seed(job.seed)
    loader = DataLoader(
        dataset, batch_size=job.batch_size, sampler=job.sampler(dataset), num_workers=job.threads if job.train else 0
    )
    arrays: dict[str, Any] = {}
    with readable(dataset, job.indices(dataset)):
        for number, (images, labels) in enumerate(itertools.islice(loader, CHECKED_BATCHES)):
            arrays |= {f"images{number}": images.numpy(), f"labels{number}": labels.numpy()}
    np.savez(path, **arrays)


@dataclass(frozen=True, slots=True)
class Likeness:
    """Figures of torchvision's crops of some images."""

    whole: NDArray[np.float64]  # traits of the whole images, (N, 9)
    usual: NDArray[np.float64]  # mean traits of torchvision's crops of each image, (N, 9)
    expected: Mapping[str, Any]  # figures of torchvision's crops, by name
    allowed: Mapping[str, float]  # largest difference of others' figures from them

    @classmethod
    def of(cls, job: Job) -> Likeness:
        """Measure torchvision's crops of the images of ``job``, which :func:`lay_out` has laid out."""
        plain = transforms.Compose(
            [transforms.Resize((SIDE, SIDE)), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        )
        whole = torchvision_traits(job, plain, epochs=1)[0]
        torch.manual_seed(job.seed)
        drawn = torchvision_traits(job, job.transform(), epochs=_RESEEDED * EPOCHS)
        runs = drawn.reshape(_RESEEDED, EPOCHS, *drawn.shape[1:])
        # Each run beside the others, as a contender's is beside all of them.
        each = [figures(run, whole, np.delete(runs, number, 0).mean((0, 1))) for number, run in enumerate(runs)]
        expected = {name: np.mean([one[name] for one in each], axis=0) for name in _FIGURES}
        allowed = {
            name: max(least, _SPREADS * float(max(np.abs(one[name] - expected[name]).max() for one in each)))
            for name, (least, _) in _FIGURES.items()
        }
        return cls(whole, runs.mean((0, 1)), expected, allowed)

    def unlike(self, labels: Sequence[Sequence[int]], seen: NDArray[np.float64]) -> tuple[dict[str, float], str | None]:
        """Compare epochs of crops with torchvision's.

        Args:
            labels: Labels of each epoch, as they came.
            seen: Traits, ``(epochs, N, 9)``, in the order of the labels.

        Returns:
            How far each figure is off, and the reason to refuse them or ``None``.
        """
        count = len(self.whole)
        if any(sorted(epoch) != list(range(count)) for epoch in labels):
            return {}, f"each of {count} images must come once in an epoch, with its label, but one does not"
        in_order = np.stack([epoch[np.argsort(came)] for epoch, came in zip(seen, labels, strict=True)])
        found = figures(in_order, self.whole, self.usual)
        off = {name: float(np.abs(found[name] - self.expected[name]).max()) for name in _FIGURES}
        too_far = [
            f"{_FIGURES[name][1]} by {value:.2f}, not {self.allowed[name]:.2f} at most"
            for name, value in off.items()
            if not value <= self.allowed[name]  # so that NaN is not let through
        ]
        if not too_far:
            return off, None
        return off, f"its training images are off from torchvision's crops of the same images: {'; '.join(too_far)}"


def figures(seen: NDArray[np.float64], whole: NDArray[np.float64], usual: NDArray[np.float64]) -> dict[str, Any]:
    """Figures that tell one way to crop from another.

    Args:
        seen: Traits of the images' crops, ``(epochs, N, 9)``.
        whole: Traits of the whole images.
        usual: Mean traits of torchvision's crops of each image.
    """
    by_image = seen.mean(0)
    tiny = 1e-9  # for crops that are all the same, or images of one color

    def along(column: int) -> float:
        # By the sign: otherwise a few images of great contrast would decide.
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
    """Link files into an ImageFolder, each under its own label; return how many.

    At most :data:`IMAGES`, which fill whole batches of :func:`batch_size`.
    """
    count = min(IMAGES, len(files))
    count -= count % batch_size(count)
    for number, file in enumerate(files[:count]):
        link = folder / f"{number:04d}" / f"0{Path(file).suffix}"
        link.parent.mkdir(parents=True)
        link.symlink_to(os.path.realpath(file))
    return count


def batch_size(images: int) -> int:
    """Images per batch of a check with so many."""
    return min(CHECKED_BATCH_SIZE, images)


def torchvision_traits(job: Job, transform: Any, epochs: int) -> NDArray[np.float64]:
    """Traits of ``transform``'s images by torch's DataLoader, ``(epochs, N, 9)``."""
    dataset = job.dataset(transform)
    count = len(dataset)
    loader = DataLoader(
        dataset, batch_size=batch_size(count), sampler=list(range(count)) * epochs, num_workers=min(8, usable_cpus())
    )
    with readable(dataset, range(count)):
        return np.concatenate([traits(images) for images, _ in loader]).reshape(epochs, count, -1)
