"""Measure samples made by tasks of Ray Data beside workers: ``python -m benchmarks cluster``.

Both make the same samples on the same cores of this machine and hand over the same batches, which is checked. A core's
milliseconds per image, over all processes, say what the hand-over from another process or node costs on top of a
transform; they hardly depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import itertools
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.contenders._processes import processor_s
from benchmarks.sources import Epochs
from fastload import FastLoader, prefetch_to_device
from fastload._compare import difference
from fastload.bench.photos import PhotoSet, write_photos
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, interleave, ratio, save
from fastload.sources import SeededSamples, seed_of

MARK: Final = "FASTLOAD_BENCHMARK"
WORKERS: Final = "FastLoader"
TASKS: Final = "Ray Data"


def datasets_of(root: Path) -> dict[str, Any]:
    """Make a dataset for each transform, from light to heavy."""
    geometry = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    steps = {"classic": [], "AugMix": [transforms.AugMix()], "GaussianBlur(23)": [transforms.GaussianBlur(23)]}
    return {
        name: ImageFolder(root, transforms.Compose([*geometry, *own, transforms.ToTensor()]))
        for name, own in steps.items()
    }


def cpu_s() -> float:
    """Return a core's seconds that this process and all that it has started have taken."""
    mark, found = f"{MARK}={os.environ[MARK]}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return processor_s(found)


def made_by_tasks(dataset: Any, order: list[int], batch_size: int, seed: int, epoch: int, tasks: int) -> Any:
    """Return batches made by so many tasks at a time."""
    import ray

    pyarrow: Any = importlib.import_module("pyarrow")

    indices = np.array(order)
    parts = [pyarrow.table({"index": part}) for part in np.split(indices, range(batch_size, len(indices), batch_size))]
    make = SeededSamples(dataset, seed, epoch)
    made = ray.data.from_arrow(parts).map_batches(
        make, batch_size=None, num_cpus=1, compute=ray.data.TaskPoolStrategy(tasks)
    )
    batches = ((batch["image"], batch["target"]) for batch in made.iter_torch_batches(batch_size=batch_size))
    return prefetch_to_device(batches, "cpu")


def compare(dataset: Any, images: int, batch_size: int, workers: int, repeats: int) -> dict[str, Any]:
    """Measure both with one dataset.

    Raises:
        RuntimeError: Their batches differ.
    """
    order = [number % len(dataset) for number in range(images)]
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": True, "device": "cpu"}
    loader = FastLoader(
        dataset, batch_size, sampler=order, randomness="sample", generator=torch.Generator().manual_seed(0), **options
    )
    seed = seed_of(torch.Generator().manual_seed(0))
    tasks = functools.partial(made_by_tasks, dataset, order, batch_size, seed)
    readers = {
        WORKERS: Epochs(itertools.repeat(loader), cpu_s),
        TASKS: Epochs((tasks(epoch, workers) for epoch in itertools.count()), cpu_s),
    }
    ours, theirs = (reader.first() for reader in readers.values())
    if (found := difference(ours, theirs)) is not None:
        raise RuntimeError(f"the batches of both must be equal, but are not: {found}")
    for reader in readers.values():
        reader.read()
        reader.cpu_s.clear()
    rates = interleave({name: reader.read for name, reader in readers.items()}, repeats)
    loader.close()
    return {
        name: {
            "images_per_s": rate.record(),
            "of_workers": ratio(rate, rates[WORKERS]).record(),
            "cpu_ms_per_image": Spread.of([1e3 * value for value in readers[name].cpu_s]).record(),
        }
        for name, rate in rates.items()
    }


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks cluster``; writes the record after each transform."""
    if MARK not in os.environ:  # forked processes show the variables that this one was started with
        command = [sys.executable, "-m", "benchmarks", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, MARK: str(os.getpid())})
    import ray

    ray.init(num_cpus=args.workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    settings = ray.data.DataContext.get_current()
    settings.execution_options.preserve_order = True
    settings.enable_progress_bars = False
    points: list[dict[str, Any]] = []
    record = {"benchmark": "cluster", "environment": environment(), "ray": ray.__version__}
    record |= {"dataset": {"name": "photographs", "images": 100}, "parameters": {**vars(args), "json": str(args.json)}}
    try:
        with tempfile.TemporaryDirectory(prefix="fastload-cluster-") as scratch:
            root = Path(scratch) / "photos"
            write_photos(root, PhotoSet(count=100, classes=4))
            datasets = datasets_of(root)
            for name, dataset in datasets.items():
                rows = compare(dataset, args.images, args.batch_size, args.workers, args.repeats)
                points.append({"transform": name, "contenders": rows})
                for contender, row in rows.items():
                    rate, _, cpu = (row[key]["median"] for key in row)
                    console().print(f"{name}, {contender}: {rate:,.0f} images/s, {cpu:.2f} ms of a core per image")
                save(args.json, {**record, "complete": len(points) == len(datasets), "points": points})
    finally:
        ray.shutdown()
    return 0
