"""Measure what an epoch's start costs: ``python -m benchmarks epochs``.

Seconds from ``iter(loader)`` to the first batch where the loop uses it, on the GPU if there is one. Loaders take turns
of an epoch each: FastLoader's decode threads, and an own dataset in worker processes, beside torch's DataLoader on the
same; persistent and not. A new loader's first epoch is told apart from later ones; CUDA is ready then. The longest wait
for a batch of the first two epochs shows whether the loop waited for a compiler: with ``--augment`` the GPU needs one
kernel more.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks._peers import prepared
from benchmarks._recipe_steps import OwnImages
from fastload import FastLoader
from fastload._batch import map_tensors
from fastload.bench._data import MEAN, STD
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, interleave, save

WARM: Final = 3
"""Epochs of a loader before the turns."""


class Epochs:
    """Runs the epochs of one loader.

    Args:
        make: Makes it.
        copies: Whether the loop copies batches to the device, as torch's loader does not.
    """

    def __init__(self, make: Callable[[], Any], *, copies: bool) -> None:
        self._loader: Any = make()
        self._copies = copies and torch.cuda.is_available()
        self.longest_s = 0.0  # of the waits for a batch so far

    def start_s(self) -> float:
        """Run an epoch; return the seconds to its first batch."""
        begin = before = time.perf_counter()
        first = 0.0
        for batch in self._loader:
            if self._copies:
                map_tensors(lambda tensor: tensor.to("cuda", non_blocking=True), batch)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            now = time.perf_counter()
            first = first or now - begin
            self.longest_s, before = max(self.longest_s, now - before), now
        return first

    def close(self) -> None:
        """End its workers."""
        self._loader = None


def loaders(folder: Path, args: argparse.Namespace) -> dict[str, Callable[[], Epochs]]:
    """Return what makes each loader, by name."""
    augmented = [transforms.RandAugment()] if args.augment else []
    crop = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *augmented]
    transform = transforms.Compose([*crop, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    images = ImageFolder(str(folder), transform)
    images.samples = images.imgs = [images.samples[number % len(images.samples)] for number in range(args.images)]
    datasets = {"ImageFolder": images, "own dataset": OwnImages(images.samples, transform)}
    options = {"batch_size": args.batch_size, "shuffle": True, "num_workers": args.threads}
    torchs = functools.partial(DataLoader, pin_memory=torch.cuda.is_available())
    return {
        f"{name}, {what}{', persistent' if persistent else ''}": functools.partial(
            Epochs,
            functools.partial(kind, dataset, persistent_workers=persistent, **options),
            copies=kind is torchs,
        )
        for what, dataset in datasets.items()
        for persistent in (False, True)
        for name, kind in (("fastload", FastLoader), ("torch", torchs))
    }


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks epochs``."""
    folder, described = prepared(args.data, quick=args.quick)
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
    sizes = {name: getattr(args, name) for name in ("images", "batch_size", "threads", "repeats", "augment")}
    record: dict[str, Any] = {"benchmark": "epochs", "environment": environment(), "dataset": described}
    made = {name: make() for name, make in loaders(Path(folder), args).items()}
    found: dict[str, dict[str, Any]] = {}
    record |= {"parameters": sizes, "loaders": found, "complete": False}
    for name, epochs in made.items():
        starts = [epochs.start_s() for _ in range(2)]
        found[name] = {"first_start_s": starts[0], "longest_wait_s": epochs.longest_s}
        save(args.json, record)
        for _ in range(WARM):
            epochs.start_s()
    spreads: dict[str, Spread] = interleave({name: epochs.start_s for name, epochs in made.items()}, args.repeats)
    for name, spread in spreads.items():
        found[name]["start_s"] = spread.record()
        first, longest = (1e3 * found[name][figure] for figure in ("first_start_s", "longest_wait_s"))
        console().print(
            f"{name}: {1e3 * spread.median:,.1f} ms to an epoch's first batch, {first:,.0f} ms in the first epoch; "
            f"longest wait of the first two epochs {longest:,.0f} ms"
        )
        made[name].close()
    save(args.json, record | {"complete": True})
    return 0
