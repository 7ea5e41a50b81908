"""Compare crops decoded on the GPU with the decode threads' and Pillow's.

The files are those of ``tests/torture/varied.py``: any sampling, tables, restart markers, grey, any size, and some that
only the threads decode. Each transform has a loader that decodes on the GPU and one that decodes on threads, from the
same seeds; their batches are compared bit for bit on the device. The first batches of each are compared with those of
torch's DataLoader, too, whose workers use Pillow.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode

from benchmarks._varied_files import make_files
from fastload import FastLoader
from fastload.bench._data import MEAN, STD

CHUNK_BATCHES: Final = 64  # of one transform, before it is the next one's turn
DIFFERENCES_KEPT: Final = 20


def _crop(size: int | tuple[int, int], how: InterpolationMode = InterpolationMode.BILINEAR, **more: Any) -> Any:
    return transforms.RandomResizedCrop(size, interpolation=how, **more)


TRANSFORMS: Final[Mapping[str, Callable[[], list[Any]]]] = {
    "224, bilinear": lambda: [_crop(224), transforms.RandomHorizontalFlip()],
    "96, bicubic": lambda: [_crop(96, InterpolationMode.BICUBIC), transforms.RandomVerticalFlip()],
    "63, lanczos": lambda: [_crop(63, InterpolationMode.LANCZOS), transforms.RandomHorizontalFlip()],
    "64, box": lambda: [_crop(64, InterpolationMode.BOX)],
    "80, hamming": lambda: [_crop(80, InterpolationMode.HAMMING)],
    "37 x 160, bilinear": lambda: [_crop((37, 160)), transforms.RandomHorizontalFlip()],
    "160 x 37, bicubic": lambda: [_crop((160, 37), InterpolationMode.BICUBIC)],
    "256, enlarged": lambda: [_crop(256, scale=(0.005, 0.1))],
    "whole images": lambda: [transforms.Resize((112, 112)), transforms.RandomHorizontalFlip()],
    "centre": lambda: [transforms.Resize(72), transforms.CenterCrop(64)],
    "96, RandAugment": lambda: [_crop(96), transforms.RandomHorizontalFlip(), transforms.RandAugment()],
    "80, colours": lambda: [_crop(80), transforms.ColorJitter(0.4, 0.4, 0.4, 0.1), transforms.RandomGrayscale(0.2)],
}
"""Transforms of images, before they become tensors."""


def composed(name: str) -> transforms.Compose:
    """One of the transforms, to normalized tensors."""
    return transforms.Compose([*TRANSFORMS[name](), transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Sizes of the comparison."""

    crops: int  # least number of crops
    files: int  # number of files that they are taken from
    pillow_crops: int  # least number of them that are compared with Pillow's
    batch_size: int  # crops per batch
    workers: int  # number of threads of each loader, and of torch's worker processes
    device: str  # device on which batches are compared; "cpu": only the threads' batches with Pillow's
    seed: int = 0  # seed of files and draws
    deadline: float | None = None  # time (time.monotonic) at which the comparison ends; None: when there are enough

    def late(self) -> bool:
        """Whether time is up."""
        return self.deadline is not None and time.monotonic() > self.deadline


class Comparison:
    """The loaders of one transform of a folder's files, and the differences seen."""

    def __init__(self, name: str, folder: Path, asked: Asked) -> None:
        self.name = name
        self.seen: Counter[str] = Counter()
        self.differences: list[dict[str, Any]] = []
        self._asked = asked
        self._dataset = ImageFolder(str(folder), composed(name))
        self._indices = list(range(len(self._dataset)))
        self._common: dict[str, Any] = {"batch_size": asked.batch_size, "num_workers": asked.workers}
        self._common["sampler"] = self._indices
        common = {"device": asked.device, "engine": "native", **self._common}
        self._loaders = {"cpu": FastLoader(self._dataset, decode="cpu", **common)}
        if asked.device != "cpu":
            self._loaders["gpu"] = FastLoader(self._dataset, decode="gpu", **common)
            # To which each file is new.
            self._loaders["new"] = FastLoader(self._dataset, decode="gpu", max_index_bytes=0, **common)
        for loader in self._loaders.values():  # makes the index
            for _ in loader:
                pass

    def run(self, crops: int, pillow_batches: int, seed: int) -> None:
        """Compare so many crops of any of the files, the first batches with Pillow's, too."""
        rng = random.Random(f"{self._asked.seed} {self.name} {seed}")
        self._indices[:] = [rng.randrange(len(self._dataset)) for _ in range(crops)]
        feeds: dict[str, Iterator[Any]] = {}
        before = {place: loader.stats() for place, loader in self._loaders.items()}
        for place, loader in self._loaders.items():
            torch.manual_seed(seed)
            feeds[place] = iter(loader)
        if pillow_batches:
            # The workers' generators follow from the seed, however many batches are taken.
            torch.manual_seed(seed)
            feeds["pillow"] = iter(DataLoader(self._dataset, **self._common))
        for number in range(-(-crops // self._asked.batch_size)):
            if self._asked.late():
                break
            if number >= pillow_batches:
                feeds.pop("pillow", None)
            batches = {name: next(feed) for name, feed in feeds.items()}
            self._compare(batches, number, seed)
        feeds.clear()
        for place, loader in self._loaders.items():
            now = loader.stats()
            self.seen[f"{place}_staged"] += now.gpu_images - before[place].gpu_images
            self.seen[f"{place}_python"] += now.python_images - before[place].python_images

    def _compare(self, batches: Mapping[str, Any], number: int, seed: int) -> None:
        self.seen["crops"] += len(batches["cpu"][0])
        self.seen["pillow_crops"] += len(batches["cpu"][0]) if "pillow" in batches else 0
        reference = "pillow" if "pillow" in batches else "cpu"
        images, labels = (value.to(self._asked.device) for value in batches[reference])
        for name in batches.keys() - {reference}:
            got, got_labels = batches[name]
            differs = got_labels != labels
            if not torch.equal(_bits(got), _bits(images)):
                differs |= (_bits(got) != _bits(images)).flatten(1).any(1)
            for place in differs.nonzero().flatten().tolist():
                self.seen["differ"] += 1
                if len(self.differences) < DIFFERENCES_KEPT:
                    index = self._indices[number * self._asked.batch_size + place]
                    one = {"transform": self.name, "seed": seed, "batch": number, "place": place, "which": name}
                    file = Path(self._dataset.samples[index][0]).stem
                    largest = float((got[place] - images[place]).abs().max())
                    self.differences.append({**one, "beside": reference, "file": int(file), "largest": largest})

    def close(self) -> None:
        """End the loaders' threads."""
        for loader in self._loaders.values():
            loader.close()


def _bits(images: torch.Tensor) -> torch.Tensor:
    return images.contiguous().view(torch.int32)


def compare(folder: Path, asked: Asked, keep: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Compare crops, transform after transform, until there are enough or time is up.

    Args:
        folder: Empty folder for the files.
        asked: Sizes of the comparison.
        keep: Function that gets the record so far after each transform's turn.

    Returns:
        The record: ``refused`` are crops that the kernels found undecodable, ``gpu_staged`` those that they decoded;
        ``new_refused`` and ``new_staged`` the same of files without an index. A crop that differs twice counts twice.
    """
    begin = time.monotonic()
    kinds = make_files(folder, asked.files, asked.seed, 2 * asked.workers)
    made_s = time.monotonic() - begin
    chunk = min(CHUNK_BATCHES * asked.batch_size, -(-asked.crops // len(TRANSFORMS)))
    pillow_batches = math.ceil(asked.pillow_crops / len(TRANSFORMS) / asked.batch_size)
    pillow_batches = min(pillow_batches, -(-chunk // asked.batch_size))
    comparisons: dict[str, Comparison] = {}
    record: dict[str, Any] = {}

    def noted() -> dict[str, Any]:
        seen: Counter[str] = Counter()
        for comparison in comparisons.values():
            seen.update(comparison.seen)
        names = ("crops", "pillow_crops", "differ", "gpu_staged", "new_staged")
        refused = {name: max(0, seen[f"{name}_python"] - seen["cpu_python"]) for name in ("gpu", "new")}
        return {
            **{name: seen[name] for name in names},
            "refused": refused["gpu"] if asked.device != "cpu" else 0,
            "new_refused": refused["new"] if asked.device != "cpu" else 0,
            "asked": asked.crops,
            "files": dict(kinds),
            "on_gpu": asked.device != "cpu",
            "by_transform": {name: dict(comparison.seen) for name, comparison in comparisons.items()},
            "differences": [one for comparison in comparisons.values() for one in comparison.differences],
            "files_made_s": made_s,
            "seconds": time.monotonic() - begin,
            "seed": asked.seed,
        }

    try:
        for turn, name in ((turn, name) for turn in itertools.count() for name in TRANSFORMS):
            if asked.late() or (record and record["crops"] >= asked.crops):
                break
            if name not in comparisons:
                comparisons[name] = Comparison(name, folder, asked)
            comparisons[name].run(chunk, pillow_batches if turn == 0 else 0, seed=turn)
            record = noted()
            keep(record)
    finally:
        for comparison in comparisons.values():
            comparison.close()
    return record or noted()
