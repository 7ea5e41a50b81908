"""Measure an object store beside a folder: ``python -m benchmarks._objectstore --json FILE``.

The same photographs lie in a local folder and on a server of this machine, which answers each read after a latency. The
server keeps them in memory and has cores of its own, so that it takes none of the loader's: a real one is elsewhere. A
few photographs are read many times an epoch, so that they fit there. Loaders take turns, whole epochs each, and run on
the same cores, decode threads and process of requests together; their first batches are compared.

Beside images per second stand a core's microseconds per image, of the loader and its process of requests: on a machine
that others use, too, these say what the rates would be.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks._objectserver import object_server
from fastload import FastLoader
from fastload.bench.photos import PhotoSet, write_photos
from fastload.measurement.console import console
from fastload.measurement.record import Spread, environment, interleave, ratio, write_json
from fastload.sources import ObjectStoreImageFolder

FOLDER: Final = "folder"
STORE: Final = "object store"
CACHED: Final = "object store, cached on a disk"


def transform() -> Any:
    """Return the classic recipe's steps."""
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    return transforms.Compose([*steps, transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])


def datasets_of(root: Path, url: str, times: int, cache: str) -> dict[str, Any]:
    """Make each dataset, of which each photograph is ``times`` samples."""
    local = ImageFolder(root, transform())
    keys = [os.path.relpath(path, root) for path, _ in local.samples]
    local.samples = local.imgs = [sample for sample in local.samples for _ in range(times)]
    options: dict[str, Any] = {"client_options": {"allow_http": True}}
    stored = [key for key in keys for _ in range(times)]
    return {
        FOLDER: local,
        STORE: ObjectStoreImageFolder(url, transform(), keys=stored, **options),
        CACHED: ObjectStoreImageFolder(url, transform(), keys=stored, cache_dir=cache, **options),
    }


def loaders_of(datasets: dict[str, Any], batch_size: int, threads: int) -> dict[str, Any]:
    """Make a loader of each dataset."""
    options: dict[str, Any] = {"batch_size": batch_size, "num_workers": threads, "persistent_workers": True}
    options |= {"device": "cpu", "engine": "native", "max_index_bytes": 0}
    return {name: FastLoader(dataset, shuffle=True, **options) for name, dataset in datasets.items()}


def cpu_s(server: int) -> float:
    """Return a core's seconds that this process and its children, but the server, have taken."""
    own, ticks = os.getpid(), 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            number, _, rest = stat.read_text().partition(" (")
            fields = rest.rpartition(") ")[2].split()  # from the state on: parent at 1, user and system time at 11
            if own in (int(number), int(fields[1])) and int(number) != server:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Epochs:
    """Reads epochs of a loader.

    Attributes:
        cpu_us: A core's microseconds per image of each epoch.
    """

    def __init__(self, loader: Any, server: int) -> None:
        self._loader = loader
        self._server = server
        self.cpu_us: list[float] = []

    def read(self) -> float:
        """Read an epoch, its start included, and return images per second."""
        begun, cpu, images = time.perf_counter(), cpu_s(self._server), 0
        for pixels, _ in self._loader:
            images += len(pixels)
        self.cpu_us.append((cpu_s(self._server) - cpu) / images * 1e6)
        return images / (time.perf_counter() - begun)


def check_same(loaders: dict[str, Any]) -> None:
    """Compare the first batches.

    Raises:
        RuntimeError: They differ.
    """
    found = {}
    for name, loader in loaders.items():
        torch.manual_seed(0)
        images, labels = next(iter(loader))
        found[name] = images.clone(), labels.clone()
    for name, (images, labels) in found.items():
        if not (torch.equal(images, found[FOLDER][0]) and torch.equal(labels, found[FOLDER][1])):
            raise RuntimeError(f"the batches of {name} must be those of the folder, and are not")


def main() -> None:
    """Measure, print the rows and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR", help="photographs; by default some are written")
    parser.add_argument("--count", type=int, default=200, help="of them")
    parser.add_argument("--edge-px", type=int, default=500)
    parser.add_argument("--times", type=int, default=20, help="samples of each")
    parser.add_argument("--latencies-ms", type=float, nargs="+", default=[50.0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    before = sorted(os.sched_getaffinity(0))
    served, own = set(before[: max(1, len(before) // 4)]), set(before[max(1, len(before) // 4) :]) or set(before)
    os.sched_setaffinity(0, own)
    try:
        with tempfile.TemporaryDirectory(prefix="fastload-objects-") as scratch:
            root = args.data or Path(scratch) / "photos"
            if args.data is None:
                write_photos(root, PhotoSet(count=args.count, classes=4, edge_px=args.edge_px))
            measure(args, root, scratch, served, own)
    finally:
        os.sched_setaffinity(0, before)


def measure(args: argparse.Namespace, root: Path, scratch: str, served: set[int], own: set[int]) -> None:
    """Measure at each latency, and write the record after each."""
    sizes = [path.stat().st_size for path in root.rglob("*.jpg")]
    points: list[dict[str, Any]] = []
    for latency_ms in args.latencies_ms:
        with object_server(root, latency_ms / 1e3, served) as (url, server):
            loaders = loaders_of(datasets_of(root, url, args.times, f"{scratch}/cache"), args.batch_size, args.threads)
            check_same(loaders)
            readers = {name: Epochs(loader, server) for name, loader in loaders.items()}
            for reader in readers.values():
                reader.read()  # fills the cache, and finds the number of requests
                reader.cpu_us.clear()
            rates = interleave({name: reader.read for name, reader in readers.items()}, args.repeats)
            for loader in loaders.values():
                loader.close()
        shares = {name: ratio(rate, rates[FOLDER]) for name, rate in rates.items()}
        cpu = {name: Spread.of(reader.cpu_us) for name, reader in readers.items()}
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
        if args.json:
            described = {"name": "photographs", "images": len(sizes), "mean_bytes": sum(sizes) / len(sizes)}
            record = {"benchmark": "objectstore", "environment": environment(), "dataset": described}
            cores = {"loader": len(own), "server": len(served)}
            parameters = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
            write_json(args.json, {**record, "cores": cores, "parameters": parameters, "points": points})


if __name__ == "__main__":
    main()
