"""Data for the examples to train on in seconds, when they are called without any.

It is made up, and gone when the program ends.
"""

from __future__ import annotations

import argparse
import csv
import io
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torchvision import datasets

SIZES = {"model": "resnet18", "classes": 2, "epochs": 2, "batch_size": 8, "image_size": 48, "workers": 2}


def photographs() -> Path:
    """Make a folder of 32 JPEG files in two classes, and ``labels.csv``."""
    folder = Path(_kept().name)
    rng = np.random.default_rng(0)
    with (folder / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        for number in range(32):
            label = ("cold", "warm")[number % 2]
            image = folder / label / f"{number:02}.jpg"
            image.parent.mkdir(exist_ok=True)
            coarse = rng.integers(0, 160, (5, 6, 3)).astype(np.uint8)
            coarse[..., 2 - number % 2 * 2] += 90  # blue or red
            Image.fromarray(coarse).resize((96, 80), Image.Resampling.BICUBIC).save(image, quality=90)
            table.writerow([image.relative_to(folder), number % 2])
    return folder


def shards() -> list[str]:
    """Make two tar files of the photographs, as webdataset has them."""
    images = sorted(photographs().glob("*/*.jpg"), key=lambda path: path.name)
    folder = Path(_kept().name)
    for shard in range(2):
        with tarfile.open(folder / f"train-{shard}.tar", "w") as tar:
            for image in images[shard::2]:
                label = b"%d" % (image.parent.name == "warm")
                for name, content in ((f"{image.stem}.jpg", image.read_bytes()), (f"{image.stem}.cls", label)):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return sorted(map(str, folder.glob("*.tar")))


class CIFAR10(datasets.CIFAR10):
    """CIFAR-10 with 64 images of noise in the place of its archive."""

    def __init__(self, root: object, train: bool, transform: Any, download: bool = False) -> None:
        datasets.VisionDataset.__init__(self, "", transform=transform)
        rng = np.random.default_rng(train)
        self.train, self.targets = train, rng.integers(0, 10, 64).tolist()
        self.data = rng.integers(0, 256, (64, 32, 32, 3), dtype=np.uint8)


def parse(
    parser: argparse.ArgumentParser, name: str = "data", make: Callable[[], object] = photographs
) -> argparse.Namespace:
    """Parse a program's arguments; make data and small sizes if none are given."""
    args = parser.parse_args()
    if not vars(args)[name]:
        parser.set_defaults(**{size: value for size, value in SIZES.items() if size in vars(args)}, **{name: make()})
        args = parser.parse_args()
    return args


_folders: list[tempfile.TemporaryDirectory[str]] = []


def _kept() -> tempfile.TemporaryDirectory[str]:
    """Make a folder that is removed when the program ends."""
    _folders.append(tempfile.TemporaryDirectory(prefix="fastload-example-"))
    return _folders[-1]
