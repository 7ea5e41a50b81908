"""Every contender's output, compared with that of torch's DataLoader before any clock starts."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastload.bench.contenders._job import Job
from fastload.bench.contenders._remote import ContenderError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastload.bench.contenders._remote import Remote, Team

CHECKED_BATCHES = 2
CHECKED_BATCH_SIZE = 16
CHECKED_WORKERS = 2
CHECKED_DRAWS = 16  # batches whose statistics are compared, where the crops are others

# Of normalized values. Means of two halves of 512 random crops of the photographs differ by less than 0.1.
STATISTICS_TOLERANCE = 0.25


def check_outputs(team: Team, data: str) -> dict[str, dict[str, Any]]:
    """Compare each contender's batches of whole images and of random crops, all contenders at once.

    Returns:
        What was seen, by name; with ``failed``, the reason, where it is off by more than it may be.
    """
    seen: dict[str, dict[str, Any]] = {remote.name: {} for remote in team.loading}
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
            )
            expected = Path(folder) / f"{train}.npz"
            usual = write_expected(job, expected)

            def check(remote: Remote, job: Job = job, expected: Path = expected, usual: Any = usual) -> None:
                seen[remote.name] |= _check(remote, job, expected, usual)

            team.together([remote for remote in team.loading if "failed" not in seen[remote.name]], check)
    return seen


def _check(remote: Remote, job: Job, expected: Path, usual: Mapping[str, Any]) -> dict[str, Any]:
    tolerance = remote.contender.tolerance
    try:
        if job.train and tolerance is not None:  # it draws crops of its own
            answer = remote.ask("statistics", batches=CHECKED_DRAWS, **job.record())
            reason = _unlike(answer, usual)
        else:
            answer = remote.ask("check", expected=str(expected), **job.record())
            reason = _wrong(answer, tolerance)
    except ContenderError as error:
        return {"failed": str(error)}
    known = {"check_training" if job.train else "check": answer}
    return known if reason is None else {**known, "failed": reason}


def _wrong(seen: Mapping[str, Any], tolerance: Any) -> str | None:
    if not seen["labels_equal"]:
        return "its labels are not those of the same images"
    if tolerance is None:
        return None if seen["equal"] else "its batches must be equal bit for bit, but differ"
    if seen["mean_difference"] <= tolerance.mean:
        return None
    return f"its pixels may be off by {tolerance.mean} of 255 on average, but are by {seen['mean_difference']:.2f}"


def _unlike(seen: Mapping[str, Any], usual: Mapping[str, Any]) -> str | None:
    for name in ("mean", "deviation"):
        off = max(abs(a - b) for a, b in zip(seen[name], usual[name], strict=True))
        if not off <= STATISTICS_TOLERANCE:  # so that NaN is not let through
            return (
                f"the {name} of its training images may be off by {STATISTICS_TOLERANCE} from that of the same images "
                f"by torchvision, but is by {off:.2f}"
            )
    return None


def write_expected(job: Job, path: Path) -> dict[str, list[float]]:
    """Write the first batches that torch's DataLoader gives of ``job``; returns mean and deviation of the channels."""
    dataset = job.dataset()
    torch.manual_seed(job.seed)
    loader = DataLoader(
        dataset, batch_size=job.batch_size, sampler=job.sampler(dataset), num_workers=job.threads if job.train else 0
    )
    arrays: dict[str, Any] = {}
    drawn = []
    for number, (images, labels) in enumerate(itertools.islice(loader, CHECKED_DRAWS if job.train else None)):
        drawn.append(images)
        if number < CHECKED_BATCHES:
            arrays |= {f"images{number}": images.numpy(), f"labels{number}": labels.numpy()}
    np.savez(path, **arrays)
    whole = torch.cat(drawn)
    return {"mean": whole.mean((0, 2, 3)).tolist(), "deviation": whole.std((0, 2, 3)).tolist()}
