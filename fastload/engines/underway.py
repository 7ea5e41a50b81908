"""A batch on its way through the decode threads, and the errors that it may meet there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch._utils import ExceptionWrapper


@dataclass(eq=False)
class Batch:
    """One batch of the epoch, from its indices on."""

    worker: int
    number: int
    indices: Any
    sources: list[Any] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)  # of each sample, where randomness is by index
    error: ExceptionWrapper | None = None  # of the sample after the last of `sources`
    pixels: Any = None  # the tensor and the job that fills it, once it is started
    job: Any = None
    awaited: tuple[float, float] = (0.0, 0.0)  # from when to when its pixels were waited for, by whoever saw it through
    boxes: torch.Tensor | None = None  # to be erased, where that is done
    images: int = 0
    stuck: bool = False  # until the consumer has made some of its samples
    made: bool = False
    decoded_at: float = 0.0  # when its pixels and targets were there
    made_at: float = 0.0
    data: Any = None  # once made; an ExceptionWrapper for what torch's worker would have sent
    failure: BaseException | None = None  # ours, not the worker's


class PythonError(Exception):
    """A sample raised in Python; carries what torch's worker would have sent, and where its generator stood then."""

    def __init__(self, sample: int, wrapper: ExceptionWrapper, state: bytes | None) -> None:
        super().__init__(sample)
        self.sample = sample
        self.wrapper = wrapper
        self.state = state


class TookTooLongError(Exception):
    """A batch was not there in time."""


class NeedsConsumerError(Exception):
    """A sample has to be made in Python, which the line's own thread may not do."""


def wrapped(worker: int, where: str | None) -> ExceptionWrapper:
    """The exception being handled, as torch's worker sends it; its message says which sample it was."""
    result: ExceptionWrapper = ExceptionWrapper(where=f"in DataLoader worker process {worker}")  # type: ignore[no-untyped-call]
    if where is not None:
        result.exc_msg = f"{result.exc_msg}\n{where}"
    return result


def check_size(pixels: Any, size: tuple[int, ...]) -> None:
    """Raise what default_collate raises of images that differ in size."""
    if pixels.shape[:2] != size:
        torch.stack([torch.empty(3, *size), torch.empty(3, *pixels.shape[:2])])
