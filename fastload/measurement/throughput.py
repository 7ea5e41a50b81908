"""Rates of training loops, for ``bench ceiling`` and ``tune``."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastload._arguments import UsageError
from fastload._batch import map_tensors
from fastload.measurement.clock import clock_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch.utils.data import DataLoader

    Step = Callable[[Any], object]

NATIVE_AHEAD = 6  # batches that the native engine may have ready in advance
FEW_STEPS = 3  # least steps to measure a rate over, however short the time


@dataclass(frozen=True, slots=True)
class Rate:
    """The measured rate of a loop."""

    images_per_s: float  # samples per second
    wait_share: float  # share of the time in which nothing was computed because the next batch was not there
    steps: int  # number of steps measured
    seconds: float  # their duration
    cores: float = 0.0  # average number of cores that this process and its workers kept busy


class EmptyLoaderError(UsageError):
    """The loader yields no batch to measure with."""


def loop_rate(
    batches: Iterator[Any],
    step: Step,
    device: torch.device,
    *,
    seconds: float,
    warm_steps: int,
    rounds_of: int = 1,
    steps: int = FEW_STEPS,
) -> Rate:
    """Run ``warm_steps``, then measure for about ``seconds``.

    Until the end it waits only for batches, not for the device.

    Args:
        batches: ``next()`` is called once a step; must not end during the measurement.
        step: Trains on one batch.
        device: Where the step runs; its clock is used.
        seconds: How long to measure, at least.
        warm_steps: Steps before the measurement.
        rounds_of: Measure a multiple of this number of steps: workers that start together deliver together.
        steps: Measure at least this many steps.
    """
    for _ in range(warm_steps):
        step(next(batches))
    clock = clock_for(device)
    clock.finish()
    waits: list[tuple[Any, Any]] = []
    images, fewest = 0, max(steps, 2 * rounds_of if rounds_of > 1 else 1)
    computed, host_begin = _processor_s(), time.perf_counter()
    begin, host_end = clock.mark(), host_begin + seconds
    while len(waits) < fewest or len(waits) % rounds_of or time.perf_counter() < host_end:
        asked = clock.mark()
        batch = next(batches)
        waits.append((asked, clock.mark()))
        step(batch)
        images += samples_in(batch)
    end = clock.mark()
    clock.finish()
    cores = (_processor_s() - computed) / (time.perf_counter() - host_begin)
    took = clock.between_s(begin, end)
    waited = sum(clock.between_s(*wait) for wait in waits)
    return Rate(images / took, waited / took, len(waits), took, max(0.0, cores))


def _processor_s() -> float:
    """Processor time so far of this process and, where ``/proc`` exists, its workers."""
    seconds = time.process_time()
    for child in multiprocessing.active_children():
        with contextlib.suppress(OSError, IndexError, ValueError):  # the child has ended, or there is no /proc
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def samples_in(batch: Any) -> int:
    """Number of samples in a batch: its first tensor's length, or 1 without tensors."""
    lengths: list[int] = []

    def collect(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            lengths.append(len(leaf))
        return leaf

    map_tensors(collect, batch)
    return lengths[0] if lengths else 1


def endless(epochs: Iterable[Any]) -> Iterator[Any]:
    """Yield batches of one epoch after the other.

    Raises:
        EmptyLoaderError: An epoch has no batch.
    """
    while True:
        some = False
        for batch in epochs:
            some = True
            yield batch
        if not some:
            raise EmptyLoaderError(
                "the loader must yield at least 1 batch per epoch, got 0: its dataset is empty, or drop_last drops all "
                "there is"
            )


def in_flight(loader: DataLoader[Any]) -> int:
    """Batches a loader may have ready in advance; a rate must not count these."""
    return loader.num_workers * (loader.prefetch_factor or 0) + 2
