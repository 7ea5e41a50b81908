"""Measure samples made by tasks of Ray Data beside workers: ``python -m benchmarks._cluster --json FILE``.

Both make the same samples on the same cores of this machine and hand over the same batches, which is checked. A core's
milliseconds per image, over all processes, say what the hand-over from another process or node costs on top of a
transform; they hardly depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastload import FastLoader, prefetch_to_device
from fastload.bench.photos import PhotoSet, write_photos
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, interleave, ratio, write_json
from fastload.sources import SeededSamples, seed_of

if TYPE_CHECKING:
    from collections.abc import Callable

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
    mark, ticks = f"{MARK}={os.environ[MARK]}".encode(), 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                fields = (folder / "stat").read_text().rpartition(") ")[2].split()
                ticks += sum(map(int, fields[11:15]))  # with those of its ended children
    return ticks / os.sysconf("SC_CLK_TCK")


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


class Epochs:
    """Reads epochs, and notes a core's milliseconds per image of each."""

    def __init__(self, batches_of: Callable[[int], Any]) -> None:
        self._batches_of = batches_of
        self._epoch = 0
        self.cpu_ms: list[float] = []

    def read(self) -> float:
        """Read the next epoch, its start included, and return images per second."""
        begun, cpu, images = time.perf_counter(), cpu_s(), 0
        for pixels, _ in self._batches_of(self._epoch):
            images += len(pixels)
        self._epoch += 1
        self.cpu_ms.append((cpu_s() - cpu) / images * 1e3)
        return images / (time.perf_counter() - begun)

    def first(self) -> list[Any]:
        """Return copies of the next epoch's batches."""
        self._epoch += 1
        return [(images.clone(), labels.clone()) for images, labels in self._batches_of(self._epoch - 1)]


def compare(dataset: Any, images: int, batch_size: int, workers: int, repeats: int) -> dict[str, Any]:
    """Measure both with one dataset.

    Raises:
        RuntimeError: Their batches differ.
    """
    order = [number % len(dataset) for number in range(images)]
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": True, "device": "cpu"}
    loader = FastLoader(
        dataset,
        batch_size,
        sampler=order,
        randomness="sample",
        generator=torch.Generator().manual_seed(0),
        **options,
    )
    seed = seed_of(torch.Generator().manual_seed(0))
    tasks = functools.partial(made_by_tasks, dataset, order, batch_size, seed)
    readers = {WORKERS: Epochs(lambda epoch: loader), TASKS: Epochs(lambda epoch: tasks(epoch, workers))}
    ours, theirs = (reader.first() for reader in readers.values())
    if not all(torch.equal(*pair) for both in zip(ours, theirs, strict=True) for pair in zip(*both, strict=True)):
        raise RuntimeError("the batches of both must be equal, and are not")
    for reader in readers.values():
        reader.read()
        reader.cpu_ms.clear()
    rates = interleave({name: reader.read for name, reader in readers.items()}, repeats)
    loader.close()
    return {
        name: {
            "images_per_s": rate.record(),
            "of_workers": ratio(rate, rates[WORKERS]).record(),
            "cpu_ms_per_image": Spread.of(readers[name].cpu_ms).record(),
        }
        for name, rate in rates.items()
    }


def main() -> None:
    """Measure, print the rows and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=512, help="of an epoch")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if MARK not in os.environ:  # forked processes show the variables that this one was started with
        command = [sys.executable, "-m", "benchmarks._cluster", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, MARK: str(os.getpid())})
    import ray

    ray.init(num_cpus=args.workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    settings = ray.data.DataContext.get_current()
    settings.execution_options.preserve_order = True
    settings.enable_progress_bars = False
    points: list[dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="fastload-cluster-") as scratch:
            root = Path(scratch) / "photos"
            write_photos(root, PhotoSet(count=100, classes=4))
            for name, dataset in datasets_of(root).items():
                rows = compare(dataset, args.images, args.batch_size, args.workers, args.repeats)
                points.append({"transform": name, "contenders": rows})
                for contender, row in rows.items():
                    rate, _, cpu = (row[key]["median"] for key in row)
                    console().print(f"{name}, {contender}: {rate:,.0f} images/s, {cpu:.2f} ms of a core per image")
                if args.json:
                    described = {"name": "photographs", "images": 100}
                    record = {"benchmark": "cluster", "environment": environment(), "dataset": described}
                    record |= {"ray": ray.__version__, "parameters": vars(args)}
                    write_json(args.json, {**record, "points": points})
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
