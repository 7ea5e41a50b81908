"""Measure an object store beside a folder: ``python -m benchmarks objectstore``.

The same photographs lie in a local folder and on a server of this machine, which answers each read after a latency. The
server keeps them in memory and has cores of its own, so that it takes none of the loader's: a real one is elsewhere. A
few photographs are read many times an epoch, so that they fit there. Loaders take turns, whole epochs each, and run on
the same cores, decode threads and process of requests together; their first batches are compared.

Beside images per second stand a core's microseconds per image, of the loader and its process of requests: on a machine
that others use, too, these say what the rates would be.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

from torchvision.datasets import ImageFolder

from benchmarks import _objectserver
from benchmarks._checkout import served
from benchmarks.contenders._processes import children, processor_s
from benchmarks.sources import Epochs, first_batches
from fastload import FastLoader
from fastload._compare import difference
from fastload.bench._data import training_transform
from fastload.bench.photos import PhotoSet, write_photos
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, interleave, ratio, save
from fastload.sources import ObjectStoreImageFolder

FOLDER: Final = "folder"
STORE: Final = "object store"
CACHED: Final = "object store, cached on a disk"


def datasets_of(root: Path, url: str, times: int, cache: str) -> dict[str, Any]:
    """Make each dataset, of which each photograph is ``times`` samples."""
    local = ImageFolder(root, training_transform())
    keys = [os.path.relpath(path, root) for path, _ in local.samples]
    local.samples = local.imgs = [sample for sample in local.samples for _ in range(times)]
    options: dict[str, Any] = {"client_options": {"allow_http": True}}
    stored = [key for key in keys for _ in range(times)]
    return {
        FOLDER: local,
        STORE: ObjectStoreImageFolder(url, training_transform(), keys=stored, **options),
        CACHED: ObjectStoreImageFolder(url, training_transform(), keys=stored, cache_dir=cache, **options),
    }


def loaders_of(datasets: dict[str, Any], batch_size: int, threads: int) -> dict[str, Any]:
    """Make a loader of each dataset."""
    options: dict[str, Any] = {"batch_size": batch_size, "num_workers": threads, "persistent_workers": True}
    options |= {"device": "cpu", "engine": "native", "max_index_bytes": 0}
    return {name: FastLoader(dataset, shuffle=True, **options) for name, dataset in datasets.items()}


def cpu_s(server: int) -> float:
    """Return a core's seconds that this process and its children, except the server, have taken."""
    own = os.getpid()
    return processor_s({own, *children(own)} - {server})


def check_same(loaders: dict[str, Any]) -> None:
    """Compare the first batches.

    Raises:
        RuntimeError: They differ.
    """
    found = {name: first_batches(partial(iter, loader), 1) for name, loader in loaders.items()}
    for name, batches in found.items():
        if (differs := difference(found[FOLDER], batches)) is not None:
            raise RuntimeError(f"the batches of {name} must be those of the folder: {differs}")


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks objectstore``; writes the record after each latency."""
    before = sorted(os.sched_getaffinity(0))
    server_cores, own = set(before[: max(1, len(before) // 4)]), set(before[max(1, len(before) // 4) :]) or set(before)
    os.sched_setaffinity(0, own)
    try:
        with tempfile.TemporaryDirectory(prefix="fastload-objects-") as scratch:
            root = args.data or Path(scratch) / "photos"
            if args.data is None:
                write_photos(root, PhotoSet(count=args.count, classes=4, edge_px=args.edge_px))
            measure(args, root, scratch, server_cores, own)
    finally:
        os.sched_setaffinity(0, before)
    return 0


def measure(args: argparse.Namespace, root: Path, scratch: str, server_cores: set[int], own: set[int]) -> None:
    """Measure at each latency, and write the record after each."""
    sizes = [path.stat().st_size for path in root.rglob("*.jpg")]
    points: list[dict[str, Any]] = []
    described = {"name": "photographs", "images": len(sizes), "mean_bytes": sum(sizes) / len(sizes)}
    record: dict[str, Any] = {"benchmark": "objectstore", "environment": environment(), "dataset": described}
    record["cores"] = {"loader": len(own), "server": len(server_cores)}
    record["parameters"] = {**vars(args), "data": str(args.data), "json": str(args.json)}
    for latency_ms in args.latencies_ms:
        where = [str(root), str(latency_ms / 1e3), ",".join(map(str, server_cores))]
        with served(_objectserver.__file__, *where) as (port, server):
            url = f"http://127.0.0.1:{port}"
            loaders = loaders_of(datasets_of(root, url, args.times, f"{scratch}/cache"), args.batch_size, args.threads)
            check_same(loaders)
            readers = {
                name: Epochs(itertools.repeat(loader), partial(cpu_s, server)) for name, loader in loaders.items()
            }
            for reader in readers.values():
                reader.read()  # fills the cache, and finds the number of requests
                reader.cpu_s.clear()
            rates = interleave({name: reader.read for name, reader in readers.items()}, args.repeats)
            for loader in loaders.values():
                loader.close()
        shares = {name: ratio(rate, rates[FOLDER]) for name, rate in rates.items()}
        cpu = {name: Spread.of([1e6 * value for value in reader.cpu_s]) for name, reader in readers.items()}
        for name, rate in rates.items():
            shown = f"{rate.median:,.0f} images/s, {shares[name].median:.1%}; {cpu[name].median:,.0f} us of a core"
            console().print(f"{latency_ms:g} ms, {name}: {shown}")
        rows = {
            name: {
                "images_per_s": rate.record(),
                "of_folder": shares[name].record(),
                "cpu_us_per_image": cpu[name].record(),
                "of_folder_by_cpu": ratio(cpu[FOLDER], cpu[name]).record(),
            }
            for name, rate in rates.items()
        }
        points.append({"latency_ms": latency_ms, "contenders": rows})
        save(args.json, {**record, "complete": len(points) == len(args.latencies_ms), "points": points})
