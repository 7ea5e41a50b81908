"""Every contender's output, compared with that of torch's DataLoader before any clock starts."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from benchmarks._likeness import EPOCHS, Likeness, batch_size, lay_out
from benchmarks.contenders._job import Job
from benchmarks.contenders._remote import ContenderError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.contenders._remote import Remote, Team

CHECKED_BATCHES = 2
CHECKED_BATCH_SIZE = 16
CHECKED_WORKERS = 2


def check_outputs(team: Team, data: str, recipe: str = "crops") -> dict[str, dict[str, Any]]:
    """Compare each contender's batches of whole images and of random crops, all contenders at once.

    A contender that draws crops as torch does, from its generator and in its order, is compared image by image; the
    others' crops are compared statistically by :mod:`benchmarks._likeness`, without the recipe's augmentations. Who
    does not have the recipe is not asked.

    Raises:
        ValueError: Torchvision cannot read an image.

    Returns:
        What was seen, by name; with ``failed``, the reason, where it is off by more than it may be.
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
            with _readable():
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
    with _readable():
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


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Describe an unreadable image in one line.

    A worker's error ends with the one raised in the worker.
    """
    try:
        yield
    except OSError as error:
        said = str(error).strip().splitlines()
        raise ValueError(
            f"--data must hold images that torchvision reads: {said[-1] if said else type(error).__name__}"
        ) from error


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
    """Write the first batches that torch's DataLoader gives of ``job``."""
    dataset = job.dataset()
    torch.manual_seed(job.seed)
    loader = DataLoader(
        dataset, batch_size=job.batch_size, sampler=job.sampler(dataset), num_workers=job.threads if job.train else 0
    )
    arrays: dict[str, Any] = {}
    for number, (images, labels) in enumerate(itertools.islice(loader, CHECKED_BATCHES)):
        arrays |= {f"images{number}": images.numpy(), f"labels{number}": labels.numpy()}
    np.savez(path, **arrays)
