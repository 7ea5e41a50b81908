"""The loaders under test, ours and torch's, and their expected batches."""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from photos import SIZE, make_folder, mix_in, train_v1
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder

from fastload import FastLoader, prefetch_to_device

EPOCHS, SEEDS = 3, 2  # for which expected batches are stored


class Drawn(Dataset[tuple[torch.Tensor, int]]):
    """Random tensors, which the native engine does not support."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.rand(3, SIZE, SIZE) + index, index


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of loader.

    Attributes:
        executor: ``"native"`` (threads), ``"workers"`` (processes) or ``"main"`` (neither).
        data: ``"clean"`` (JPEG files), ``"mixed"`` (also other formats), ``"damaged"`` (also broken files) or
            ``"drawn"``.
        arguments: DataLoader's arguments.
        own: FastLoader's additional arguments.
        prefetch: Whether the loader is wrapped in ``prefetch_to_device``.
    """

    executor: str
    data: str
    arguments: dict[str, Any]
    own: dict[str, Any]
    prefetch: bool = False

    def loader(self, root: Path, *, ours: bool, seed: int = 0, **more: Any) -> Iterable[Any]:
        """Make a loader whose batches depend only on ``seed``.

        In the main process they also depend on other draws.
        """
        if self.executor == "main":
            torch.manual_seed(seed)
        arguments = {"batch_size": 4, "shuffle": True, **self.arguments, **more}
        arguments["generator"] = torch.Generator().manual_seed(seed)
        dataset: Any = Drawn() if self.data == "drawn" else ImageFolder(root / self.data, train_v1())
        if not ours:
            return DataLoader(dataset, **arguments)
        loader = FastLoader(dataset, **arguments, device="cpu", **self.own)
        return prefetch_to_device(loader, "cpu") if self.prefetch else loader


_REQUIRE = {"engine": "native"}
_FORK = {"num_workers": 2, "multiprocessing_context": "fork"}
KINDS = {
    "native": Kind("native", "clean", {"num_workers": 2}, _REQUIRE),
    "native, Python samples": Kind("native", "mixed", {"num_workers": 2}, _REQUIRE),
    "native, errors": Kind("native", "damaged", {"num_workers": 2}, _REQUIRE),
    "native, persistent": Kind("native", "clean", {"num_workers": 2, "persistent_workers": True}, _REQUIRE),
    "native, prefetched": Kind("native", "clean", {"num_workers": 2}, _REQUIRE, prefetch=True),
    "workers": Kind("workers", "drawn", _FORK, {}),
    "workers, persistent": Kind("workers", "drawn", {**_FORK, "persistent_workers": True}, {}),
    "workers, device side": Kind("workers", "drawn", _FORK, {"dtype": torch.float32}),
    "workers, prefetched": Kind("workers", "drawn", _FORK, {}, prefetch=True),
    "workers, spawned": Kind("workers", "drawn", {**_FORK, "multiprocessing_context": "spawn"}, {}),
    "main process": Kind("main", "clean", {"num_workers": 0}, {}),
}

SOUND = [name for name, kind in KINDS.items() if kind.data != "damaged"]


def close(loader: Any) -> None:
    """Close a loader, if it has ``close()``; torch's and ``prefetch_to_device``'s have none."""
    getattr(loader, "close", lambda: None)()


def checksum(batch: Any) -> int:
    """Checksum of a batch's images and targets."""
    if batch is None:
        return -1
    value = 0
    for tensor in batch:
        value = zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy(), value)
    return value


def values(batches: Iterator[Any], most: int | None = None) -> list[int]:
    """Checksums of the next batches; for an error, of its type's name."""
    found: list[int] = []
    while most is None or len(found) < most:
        try:
            found.append(checksum(next(batches)))
        except StopIteration:
            break
        except Exception as error:
            found.append(zlib.crc32(type(error).__name__.encode()))
    return found


def write_folders(root: Path, count: int) -> dict[str, Path]:
    """Write the images of each kind of data."""
    mixed, damaged = (mix_in(make_folder(root / name, count - 5)) for name in ("mixed", "damaged"))
    first, second = sorted(damaged.rglob("*.jpg"))[2:10:4]
    first.write_bytes(first.read_bytes()[:-200])
    second.write_bytes(b"no image")
    return {"clean": make_folder(root / "clean", count), "mixed": mixed, "damaged": damaged}


def prepare(scratch: str) -> None:
    """Write the images and the checksums of torch's batches. Runs as a program."""
    root = Path(scratch)
    write_folders(root, 24)
    warnings.simplefilter("ignore")
    found: dict[str, list[list[list[int]]]] = {}
    same: dict[str, str] = {}
    for name, kind in KINDS.items():
        arguments = {**kind.arguments}
        if arguments.get("multiprocessing_context") == "spawn":  # gives the same values
            arguments["multiprocessing_context"] = "fork"
        first = same.setdefault(repr((kind.data, arguments)), name)
        if first == name:
            found[name] = []
            for seed in range(SEEDS):
                loader = kind.loader(root, ours=False, seed=seed, **arguments)
                found[name].append([values(iter(loader)) for _ in range(EPOCHS)])
        else:
            found[name] = found[first]
    (root / "expected.json").write_text(json.dumps(found))


@cache
def expected(root: Path, kind: str, seed: int = 0) -> list[list[int]]:
    """Expected checksums of the batches of :data:`EPOCHS` epochs."""
    epochs: list[list[int]] = json.loads((root / "expected.json").read_text())[kind][seed]
    return epochs


@cache
def warm_up(root: Path, kind: str, *, ours: bool = True) -> None:
    """Run an epoch once per program, so that permanent allocations exist before measuring."""
    loader = KINDS[kind].loader(root, ours=ours)
    values(iter(loader))
    close(loader)
