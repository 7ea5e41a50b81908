"""Datasets and collate functions, importable by spawned workers."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Numbers(Dataset[Any]):
    """Sample ``i`` is a float32 vector computed from ``i``, and ``i`` itself."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([index, index + 0.5]), index


class Slow(Dataset[Any]):
    """Samples that take ``seconds`` each."""

    def __init__(self, count: int, seconds: float = 0.0) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        time.sleep(self.seconds)
        return torch.zeros(4, 4), index


class Augmented(Numbers):
    """Sample ``i`` has a draw from each random generator that torch seeds in the worker."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = torch.tensor([float(torch.rand(())), random.random(), np.random.rand()])
        return noise, index


class WhoLoaded(Numbers):
    """Sample ``i`` is ``i`` and the id of the worker that loaded it."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        info = get_worker_info()
        return index, -1 if info is None else info.id


class Images(Numbers):
    """Sample ``i`` is a small float32 image with a label."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.arange(3 * 4 * 5, dtype=torch.float32).reshape(3, 4, 5) + index, index


class Stream(IterableDataset[Any]):
    """Worker ``w`` yields ``lengths[w]`` samples; without workers, one reader yields all.

    In an epoch that is broken off, how much a worker reads depends on when the other workers end, with torch's loader
    too. So do its draws in the next epoch if workers persist: there, compare only streams without draws.
    """

    def __init__(self, lengths: list[int], *, draws: bool = True) -> None:
        self.lengths, self.draws = lengths, draws

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        for worker, length in enumerate(self.lengths):
            if info is None or info.id == worker:
                yield from (torch.tensor([worker, i, self.draws and float(torch.rand(()))]) for i in range(length))


class SizedStream(Stream):
    """A stream with a ``__len__`` that may be wrong."""

    def __init__(self, lengths: list[int], claimed: int) -> None:
        super().__init__(lengths)
        self.claimed = claimed

    def __len__(self) -> int:
        return self.claimed


class Failing(Numbers):
    """Raises ``error()`` at the given samples."""

    def __init__(self, length: int, at: set[int], error: Callable[[], Exception]) -> None:
        super().__init__(length)
        self.at, self.error = at, error

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index in self.at:
            raise self.error()
        return super().__getitem__(index)


class FailingStream(Stream):
    """A stream that raises after its first sample."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield torch.zeros(3)
        raise OSError("the stream broke")


class Gated(Numbers):
    """Sets ``reached`` at one sample, then waits for ``gate``."""

    def __init__(self, length: int, at: int, reached: Any, gate: Any) -> None:
        super().__init__(length)
        self.at, self.reached, self.gate = at, reached, gate

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == self.at:
            self.reached.set()
            self.gate.wait(60)
        return super().__getitem__(index)


class Deadly(Numbers):
    """Kills its worker at sample 0 once ``armed`` is set, and clears it."""

    def __init__(self, length: int, armed: Any) -> None:
        super().__init__(length)
        self.armed = armed

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 0 and self.armed.is_set():
            self.armed.clear()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def collect(loader: Any) -> list[Any]:
    """All batches of an epoch."""
    return list(loader)


def first(loader: Any, count: int) -> list[Any]:
    """The first batches of an epoch, which is then broken off."""
    seen = []
    for batch in loader:
        seen.append(batch)
        if len(seen) == count:
            break
    return seen


class Pids(Numbers):
    """Sample ``i`` is the id of the process that loaded it."""

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        return os.getpid()


class Configured(Numbers):
    """Sample ``i`` is the setting from :func:`configure`, and torch's worker info."""

    setting: Any = None

    def __getitem__(self, index: int) -> tuple[Any, ...]:  # type: ignore[override]
        info = get_worker_info()
        return index, self.setting, info and (info.id, info.num_workers, info.seed, type(info.dataset).__name__)


def configure(worker_id: int) -> None:
    """Set up the worker's copy of the dataset; a ``worker_init_fn``."""
    info = get_worker_info()
    assert info is not None
    info.dataset.setting = f"set in {worker_id}"  # type: ignore[attr-defined]


def as_list(samples: list[Any]) -> list[Any]:
    """Return the samples unchanged; a collate function."""
    return samples
