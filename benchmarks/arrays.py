"""Measure CIFAR-10's usual loop: ``python -m benchmarks arrays``.

The images are random, in torchvision's layout of memory: a loader does the same work for them. ``loaders`` reads whole
epochs through each loader alone, their start included; ``train`` trains ResNet-18 with CIFAR's stem (bf16 autocast,
channels_last, SGD) and gives each as a share of the ceiling: batches drawn from tensors that are on the GPU, and
normalized there, but not augmented. Beside the loaders it trains from such tensors with crops and flips in torch's
operations, as people write them by hand. ``--cores`` limits the process, and all workers and threads, to so many cores.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from benchmarks._checkout import on_cores
from benchmarks._recipe_steps import cifar_of
from fastload import FastLoader
from fastload.bench._steps import TrainingStep, time_steps
from fastload.measurement.clock import clock_for
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, interleave, ratio, save
from fastload.measurement.throughput import endless

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
CEILING, BY_HAND, TORCH, FASTLOAD = "ceiling", "by hand", "torch", "fastload"
SIDE, PADDING = 32, 4
WARM_STEPS = 20  # in which the libraries choose their kernels


def cifar10(images: int) -> Any:
    """Make a CIFAR-10 of random images, with the transforms of most tutorials."""
    steps = [transforms.RandomCrop(SIDE, padding=PADDING), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (images, 3, SIDE, SIDE), dtype=np.uint8).transpose(0, 2, 3, 1)
    transform = transforms.Compose([*steps, transforms.Normalize(MEAN, STD)])
    return cifar_of(pixels, rng.integers(0, 10, images).tolist(), transform)


def loaders(images: int, batch_size: int, workers: int, device: torch.device) -> dict[str, Any]:
    """Make each loader, of a dataset of its own."""
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "num_workers": workers, "drop_last": True}
    options |= {"pin_memory": device.type == "cuda", "persistent_workers": workers > 0}
    return {
        TORCH: DataLoader(cifar10(images), **options),
        FASTLOAD: FastLoader(cifar10(images), **options, device=device),
    }


class OnDevice:
    """Endless batches of a CIFAR-10 that is on the device, shuffled in each epoch.

    Args:
        dataset: Its images and targets are used.
        batch_size: The last batch of an epoch is left out if it has fewer.
        device: Where they are.
        augmented: Whether they are cropped and flipped.
    """

    def __init__(self, dataset: Any, batch_size: int, device: torch.device, *, augmented: bool) -> None:
        self._images = torch.from_numpy(dataset.data).to(device).contiguous()  # (images, 32, 32, 3)
        self._labels = torch.tensor(dataset.targets, device=device)
        self._batch_size = batch_size
        self._augmented = augmented
        self._mean, self._std = (255 * torch.tensor(values, device=device)[:, None, None] for values in (MEAN, STD))
        if augmented:
            self._images = torch.nn.functional.pad(self._images, (0, 0, *2 * (PADDING, PADDING)))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield ``(images, labels)``; images ``(N, 3, 32, 32)`` in channels_last, float32."""
        device = self._images.device
        while True:
            order = torch.randperm(len(self._images), device=device)
            for drawn in torch.split(order[: len(order) // self._batch_size * self._batch_size], self._batch_size):
                images = self._cropped(drawn) if self._augmented else self._images[drawn]
                yield (images.permute(0, 3, 1, 2).float() - self._mean) / self._std, self._labels[drawn]

    def _cropped(self, drawn: torch.Tensor) -> torch.Tensor:
        device, count = self._images.device, len(drawn)
        top, left = torch.randint(2 * PADDING + 1, (2, count, 1), device=device)
        within = torch.arange(SIDE, device=device)
        flip = torch.rand(count, 1, device=device) < 0.5
        rows, columns = top + within, left + torch.where(flip, SIDE - 1 - within, within)
        return self._images[drawn[:, None, None], rows[:, :, None], columns[:, None, :]]


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


def cifar_stem(model: Any, *, compiled: bool) -> torch.nn.Module:
    """Change a ResNet for images of 32 pixels."""
    stem: Any = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.conv1 = stem.to(model.conv1.weight.device, memory_format=torch.channels_last)
    model.maxpool = torch.nn.Identity()
    return cast("torch.nn.Module", torch.compile(model) if compiled else model)


def compare_training(
    images: int, batch_size: int, workers: int, device: torch.device, repeats: int, steps: int, *, compiled: bool
) -> dict[str, Any]:
    """Train with each loader in turn, and from images that stay on the device."""
    adapt = functools.partial(cifar_stem, compiled=compiled)
    train, clock = TrainingStep("resnet18", device, channels_last=True, classes=10, wrap=adapt), clock_for(device)
    made = loaders(images, batch_size, workers, device)

    def move(images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        return images, labels.to(device, non_blocking=True)

    resident = cifar10(images)
    feeds: dict[str, Iterator[Any]] = {
        name: iter(OnDevice(resident, batch_size, device, augmented=name == BY_HAND)) for name in (CEILING, BY_HAND)
    }
    feeds |= {name: endless(loader) for name, loader in made.items()}

    def rate(name: str, count: int) -> float:
        return batch_size * count / time_steps(feeds[name], train, clock, count, warm=1, move=move).seconds

    for name in feeds:
        rate(name, min(WARM_STEPS, steps))
    turns = {name: functools.partial(rate, name, steps) for name in feeds}
    return _rows(interleave(turns, repeats), CEILING)


def _rows(rates: dict[str, Spread], reference: str) -> dict[str, Any]:
    return {
        name: {"images_per_s": rate.record(), f"of_{reference}": ratio(rate, rates[reference]).record()}
        for name, rate in rates.items()
    }


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks arrays``; writes the record after each batch size."""
    before = torch.get_num_threads()
    torch.set_num_threads(args.cores or before)
    try:
        with on_cores(args.cores):
            measure(args)
    finally:
        torch.set_num_threads(before)
    return 0


def measure(args: argparse.Namespace) -> None:
    """Measure at each batch size, on all cores that this process may use."""
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    described = {"name": "CIFAR-10, random images", "images": args.images, "synthetic": True}
    record = {"benchmark": f"arrays-{args.what}", "environment": environment(), "dataset": described}
    record["parameters"] = {**vars(args), "json": str(args.json), "device": str(device)}
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
        save(args.json, {**record, "complete": len(points) == len(args.batch_sizes), "points": points})
