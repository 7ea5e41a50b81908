"""Measure CIFAR-10's usual loop: ``python -m benchmarks._array_rows``.

The images are random, in torchvision's layout of memory: a loader does the same work for them. ``loaders`` reads whole
epochs through each loader alone, their start included; ``train`` trains ResNet-18 with CIFAR's stem (bf16 autocast,
channels_last, SGD) and gives each as a share of the ceiling, which is data that the GPU has already. ``--cores``
limits the process, and all workers and threads, to so many cores.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms
from torchvision.datasets import VisionDataset

from fastload import FastLoader
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, interleave, ratio, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
CEILING, TORCH, FASTLOAD = "ceiling", "torch", "fastload"
WARM_STEPS = 20  # in which the libraries choose their kernels


def cifar10(images: int) -> Any:
    """Make a CIFAR-10 of random images, with the transforms of most tutorials."""
    dataset: Any = object.__new__(datasets.CIFAR10)
    steps = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    VisionDataset.__init__(dataset, "", transform=transforms.Compose([*steps, transforms.Normalize(MEAN, STD)]))
    rng = np.random.default_rng(0)
    dataset.data = rng.integers(0, 256, (images, 3, 32, 32), dtype=np.uint8).transpose(0, 2, 3, 1)
    dataset.targets = rng.integers(0, 10, images).tolist()
    return dataset


def loaders(images: int, batch_size: int, workers: int, device: torch.device) -> dict[str, Any]:
    """Make each loader, of a dataset of its own."""
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "num_workers": workers, "drop_last": True}
    pin = device.type == "cuda"
    return {
        TORCH: DataLoader(cifar10(images), **options, pin_memory=pin, persistent_workers=workers > 0),
        FASTLOAD: FastLoader(cifar10(images), **options, pin_memory=pin, persistent_workers=workers > 0, device=device),
    }


def alone(loader: Any, batches: int) -> float:
    """Read at least so many batches in whole epochs, and return images per second."""
    begun, seen, images = time.perf_counter(), 0, 0
    while seen < batches:
        for pixels, _ in loader:
            seen, images = seen + 1, images + len(pixels)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return images / (time.perf_counter() - begun)


def compare_loaders(images: int, batch_size: int, workers: int, device: torch.device, repeats: int) -> dict[str, Any]:
    """Read through each loader in turn."""
    made = loaders(images, batch_size, workers, device)
    batches = images // batch_size
    for loader in made.values():
        alone(loader, 1)
    turns = {name: functools.partial(alone, loader, batches) for name, loader in made.items()}
    return _rows(interleave(turns, repeats), TORCH)


def resnet18(device: torch.device) -> torch.nn.Module:
    """Make a ResNet-18 for images of 32 pixels."""
    model: torch.nn.Module = models.resnet18(num_classes=10)
    model.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = torch.nn.Identity()
    return model.to(device).to(memory_format=torch.channels_last)


class Trainer:
    """Trains on batches, and counts images per second."""

    def __init__(self, device: torch.device, *, compiled: bool) -> None:
        self.device = device
        model = resnet18(device)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        self.model = torch.compile(model) if compiled else model

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Train on one batch."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def train(self, batches: Iterator[Any], steps: int) -> float:
        """Train for so many steps, and return images per second."""
        seen = 0
        self._wait()
        begun = time.perf_counter()
        for images, labels in itertools.islice(batches, steps):
            images = images.to(self.device, non_blocking=True, memory_format=torch.channels_last)
            self.step(images, labels.to(self.device, non_blocking=True))
            seen += len(images)
        self._wait()
        return seen / (time.perf_counter() - begun)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def compare_training(
    images: int, batch_size: int, workers: int, device: torch.device, repeats: int, steps: int, *, compiled: bool
) -> dict[str, Any]:
    """Train with each loader in turn, and with one batch that stays on the device."""
    trainer = Trainer(device, compiled=compiled)
    made = loaders(images, batch_size, workers, device)
    resident = next(iter(made[FASTLOAD]))
    batch = [part.to(device) for part in resident]
    feeds: dict[str, Iterator[Any]] = {CEILING: itertools.repeat(batch)}
    feeds |= {name: _endless(loader) for name, loader in made.items()}
    for feed in feeds.values():
        trainer.train(feed, min(WARM_STEPS, steps))
    turns = {name: functools.partial(trainer.train, feed, steps) for name, feed in feeds.items()}
    return _rows(interleave(turns, repeats), CEILING)


def _rows(rates: dict[str, Spread], reference: str) -> dict[str, Any]:
    return {
        name: {"images_per_s": rate.record(), f"of_{reference}": ratio(rate, rates[reference]).record()}
        for name, rate in rates.items()
    }


def main() -> None:
    """Measure, print the rows and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["loaders", "train"], nargs="?", default="loaders")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cores", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300, help="of each turn of training")
    parser.add_argument("--compile", action="store_true", help="the model, for a higher ceiling")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    before = os.sched_getaffinity(0), torch.get_num_threads()
    if args.cores:
        os.sched_setaffinity(0, sorted(before[0])[: args.cores])
        torch.set_num_threads(args.cores)
    try:
        measure(args)
    finally:
        os.sched_setaffinity(0, before[0])
        torch.set_num_threads(before[1])


def measure(args: argparse.Namespace) -> None:
    """Measure what :func:`main` was asked for, and write the record after each batch size."""
    device = torch.device(args.device)
    points = []
    for batch_size in args.batch_sizes:
        common = args.images, batch_size, args.workers, device, args.repeats
        if args.what == "loaders":
            rows = compare_loaders(*common)
        else:
            rows = compare_training(*common, args.steps, compiled=args.compile)
        points.append({"batch_size": batch_size, "contenders": rows})
        for name, row in rows.items():
            rate, share = row.values()
            console().print(f"batch {batch_size}, {name}: {rate['median']:,.0f} images/s, {share['median']:.3g}")
        if args.json:
            described = {"name": "CIFAR-10, random images", "images": args.images, "synthetic": True}
            record = {"benchmark": f"arrays-{args.what}", "environment": environment(), "dataset": described}
            write_json(args.json, {**record, "parameters": vars(args), "points": points})


if __name__ == "__main__":
    main()
