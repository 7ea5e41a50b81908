"""Measure programs that gain nothing: ``python -m benchmarks overhead``.

Their datasets return tensors, arrays or plain values, which FastLoader makes as torch does, in torch's worker
processes. Batches are compared first. Then turns of whole epochs alternate, and each pair gives a ratio: torch's
processor time, and time, over FastLoader's.
"""

from __future__ import annotations

import argparse
import collections
import math
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fastload import FastLoader
from fastload._compare import difference
from fastload.measurement.console import console
from fastload.measurement.record import environment, save

STANDARD_ERRORS: Final = 2.1  # half the width of a 95% interval of the mean of some 20 logarithms (Student's t)
Pair = collections.namedtuple("Pair", ("image", "target"))


class Made(Dataset[Any]):
    """Samples that a function makes of their index."""

    def __init__(self, make: Callable[[int], Any], count: int) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Program(NamedTuple):
    """A dataset and how it is loaded."""

    dataset: Callable[[int], Dataset[Any]]  # of so many samples
    samples: int
    batch_size: int
    workers: int = 1


def programs() -> dict[str, Program]:
    """Return what is measured, by name."""
    small, large = torch.rand(64, 1, 28, 28), torch.rand(16, 3, 224, 224)
    arrays = np.random.default_rng(0).integers(0, 255, (32, 96, 96, 3), dtype=np.uint8)
    tokens = torch.randint(0, 30_000, (64, 128))

    def made(make: Callable[[int], Any], *rest: int) -> Program:
        return Program(lambda count: Made(make, count), *rest)

    def digit(i: int) -> tuple[torch.Tensor, int]:
        return small[i % 64].clone(), i % 10

    def scaled(i: int) -> tuple[Any, int]:
        return arrays[i % 32].astype(np.float32).transpose(2, 0, 1) / 255, i % 10

    return {
        "float32 (1, 28, 28), batches of 16": made(digit, 20_000, 16),
        "float32 (1, 28, 28), batches of 64": made(digit, 20_000, 64),
        "float32 (1, 28, 28), batches of 512": made(digit, 60_000, 512),
        "float32 (3, 224, 224)": made(lambda i: (large[i % 16].clone(), i % 10), 1_024, 32, 2),
        "NumPy, uint8 (96, 96, 3)": made(lambda i: (arrays[i % 32].copy(), i % 10), 4_096, 64, 2),
        "NumPy, float32 (3, 96, 96)": made(scaled, 4_096, 64, 2),
        "dicts of tokens": made(lambda i: {"ids": tokens[i % 64].clone(), "target": i}, 8_192, 32),
        "namedtuples": made(lambda i: Pair(*digit(i)), 8_192, 64),
        "numbers": made(lambda i: (float(i), i % 10), 40_000, 256),
        "strings": made(lambda i: (f"text number {i}", i), 20_000, 64),
        "lists in lists": made(lambda i: [1.0 * i, [i, i + 1]], 8_192, 64),
        "TensorDataset, no workers": Program(
            lambda count: TensorDataset(small.repeat(1 + count // 64, 1, 1, 1)[:count]), 64_000, 64, 0
        ),
    }


def loader_of(loader_class: Any, program: Program, dataset: Dataset[Any]) -> Any:
    """Return a loader whose order is the same for both classes."""
    torch.manual_seed(0)
    options = {} if loader_class is DataLoader else {"device": "cpu"}
    return loader_class(dataset, program.batch_size, num_workers=program.workers, shuffle=True, **options)


def epoch(loader_class: Any, program: Program, samples: int) -> tuple[float, float]:
    """Return an epoch's seconds of processors, workers included, and of the clock."""
    dataset = program.dataset(samples)
    processors, begin = _processor_s(), time.perf_counter()
    loader = loader_of(loader_class, program, dataset)
    for _ in loader:
        pass
    del loader  # waits for workers, whose time counts once they have ended
    return _processor_s() - processors, time.perf_counter() - begin


def _processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def compare(program: Program, samples: int, repeats: int) -> dict[str, Any]:
    """Return the geometric mean of the pairs' ratios, by what was measured, and all turns.

    A mean comes with its 95% interval.

    Raises:
        ValueError: The batches differ.
    """
    few = program.dataset(4 * program.batch_size)
    theirs, ours = (list(loader_of(kind, program, few)) for kind in (DataLoader, FastLoader))
    if found := difference(theirs, ours):
        raise ValueError(f"the batches must be torch's, but {found}")
    turns: dict[str, list[tuple[float, float]]] = {"torch": [], "fastload": []}
    classes = {"torch": DataLoader, "fastload": FastLoader}
    for place in range(repeats + 1):
        for name in sorted(classes, reverse=place % 2 == 0):
            turns[name].append(epoch(classes[name], program, samples))
    turns = {name: times[1:] for name, times in turns.items()}  # the first warms up
    result: dict[str, Any] = {"turns": turns}
    for place, what in enumerate(("processor", "clock")):
        logs = [math.log(a[place] / b[place]) for a, b in zip(turns["torch"], turns["fastload"], strict=True)]
        half = STANDARD_ERRORS * statistics.stdev(logs) / math.sqrt(repeats)
        mean = statistics.mean(logs)
        result[what] = {key: math.exp(mean + sign * half) for key, sign in (("low", -1), ("mean", 0), ("high", 1))}
    return result


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks overhead``."""
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    torch.set_num_threads(1)
    found = {}
    for name, program in programs().items():
        samples = 4 * program.batch_size if args.quick else program.samples
        found[name] = compare(program, samples, args.repeats)
        low = {what: found[name][what]["low"] for what in ("processor", "clock")}
        lows = f"{low['processor']:.2f} times ours, its time {low['clock']:.2f}"
        console().print(f"{name}: torch's processor time is at least {lows}")
    record = {"benchmark": "overhead", "environment": environment()}
    save(args.json, {**record, "parameters": {"repeats": args.repeats, "quick": args.quick}, "programs": found})
    return 0
