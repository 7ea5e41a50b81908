"""The dialogue with a job of the core: what it gets, asks and is answered."""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torchvision.transforms import functional

from fastload.bad_samples import described, is_of_sample
from fastload.pipeline.datasets.arrays import Pixels
from fastload.pipeline.datasets.folders import OddPath
from fastload.pipeline.datasets.samples import one_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload import _core


class TookTooLongError(Exception):
    """What was waited for was not ready in time."""


def submitted(sources: Any, views: int, directory: str | None) -> dict[str, Any]:
    """Return the arguments of ``_core.Pool.submit`` that give a batch's images.

    Args:
        sources: Encoded images, or pixels; see :func:`unchanging`.
        views: How many of each image.
        directory: What relative paths start from; ``None``: the working directory.
    """
    if isinstance(sources, Pixels):
        return {"inputs": sources.images, "indices": sources.indices}
    if views == 1 and _are_absolute(sources):
        return {"inputs": sources}
    return {"inputs": [as_seen_from(directory, one_of(source, view)) for source in sources for view in range(views)]}


def _are_absolute(sources: list[Any]) -> bool:
    """Whether all are absolute paths, the usual case, which is decided quickly."""
    try:
        return all(map(str.startswith, sources, itertools.repeat("/")))
    except TypeError:  # some are no strings
        return False


def as_seen_from(directory: str | None, source: Any) -> Any:
    """Resolve ``source`` against ``directory`` if it is a relative path.

    An odd one becomes no image, and so is left to Python.
    """
    if isinstance(source, OddPath):
        return b""
    if directory is None or not isinstance(source, str | os.PathLike):
        return source
    path = os.fspath(source)
    return source if os.path.isabs(path) else os.path.join(directory, os.fsdecode(path))


def working_directory() -> str | None:
    """The process's working directory, or ``None`` if it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def unchanging(source: Any) -> Any:
    """Copy an encoded image that may be overwritten before threads read it."""
    if type(source) is tuple:
        return tuple(map(unchanging, source))
    if isinstance(source, str | os.PathLike | np.ndarray | OddPath):  # an array is a copy
        return source
    data = memoryview(source)
    if data.ndim != 1:  # the core would take it for pixels
        return bytes(data)
    return data if data.readonly and data.c_contiguous else bytes(data)


def checked(source: Any) -> Any:
    """Check and keep a sample's encoded image, or several.

    Raises what a worker would of a path.
    """
    if type(source) is str and source.isascii() and "\0" not in source:  # the usual case, decided quickly
        return source
    if type(source) is tuple:
        return tuple(map(checked, source))
    if isinstance(source, str | os.PathLike) and not _is_name(source):
        open(source, "rb").close()  # raises the same error as in a worker
    return unchanging(source)


def _is_name(path: Any) -> bool:
    """Whether a file may have such a path."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def converse(job: _core.Job, make: Callable[[int], bytes | None], timeout_s: float | None = None) -> bool:
    """Answer what a job asks until it is done. Blocks.

    Args:
        job: A batch's.
        make: Makes a sample that the core does not support, in the turn of its draws; returns the generators' state
            after it, from which the job goes on, or ``None`` to leave the job.
        timeout_s: For all of it; ``None`` waits indefinitely.

    Returns:
        Whether it is done; ``False`` if ``make`` has left it.

    Raises:
        TookTooLongError: It takes longer.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while (state := job.wait(-1.0 if until is None else max(0.0, until - time.monotonic()))) == "requested":
        kind, sample, question = job.request()
        if kind in ("exp", "perspective"):
            job.provide(kind, question, answer_to(kind, question))
        elif kind == "sample":
            if (after := make(sample)) is None:
                return False
            job.skip(after)
    if state == "timeout":
        raise TookTooLongError
    return True


def answer_to(kind: str, question: list[float]) -> list[float]:
    """What torch and torchvision compute, for :class:`_core.DrawPlan`.

    Args:
        kind: ``"exp"``, in float32, or ``"perspective"``, torchvision's coefficients.
        question: One number; or an image's width and height, and the x and y of where its four corners go.

    Returns:
        One number, or eight; none if it raises an error.
    """
    if kind == "exp":
        return torch.exp(torch.tensor(question, dtype=torch.float32)).tolist()
    width, height, *ends = map(int, question)
    starts = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    try:
        coefficients: list[float] = functional._get_perspective_coeffs(
            starts, [ends[i : i + 2] for i in range(0, 8, 2)]
        )
    except RuntimeError:  # torch.linalg's
        return []
    return coefficients


def failed_of(job: _core.Job) -> list[int]:
    """List the samples that a finished job has not made."""
    statuses = job.statuses()
    return [sample for sample, status in enumerate(statuses) if status] if any(statuses) else []


def wrapped(worker: int, where: str | None) -> ExceptionWrapper:
    """Wrap the current exception as torch's worker does, and name the sample in its message.

    Its ``summary`` is the error's type and message; ``None`` if it cannot be blamed on the sample.
    """
    result: Any = ExceptionWrapper(where=f"in DataLoader worker process {worker}")  # type: ignore[no-untyped-call]
    error = sys.exception()
    result.summary = described(error) if error is not None and is_of_sample(error) else None
    if where is not None:
        result.exc_msg = f"{result.exc_msg}\n{where}"
    return result  # type: ignore[no-any-return]
