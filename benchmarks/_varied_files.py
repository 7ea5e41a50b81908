"""Write varied JPEG files with several processes, which import nothing that they do not need."""

from __future__ import annotations

import importlib
import multiprocessing
import random
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from benchmarks._checkout import ROOT

CLASSES: Final = 8
CMYK_SHARE: Final = 0.002  # of the files: the user's own Python makes these, one after another
FILES_MIN: Final = 16  # for a process of their own


def make_files(folder: Path, files: int, seed: int, processes: int) -> Counter[str]:
    """Write an ImageFolder of ``files`` files; return how many there are of each kind.

    Args:
        folder: Folder to write to.
        files: Number of files; each depends on ``seed`` and its number alone.
        seed: Seed of all files.
        processes: Largest number of processes that write.
    """
    count = max(1, min(files // FILES_MIN, processes))
    parts = [(str(folder), seed, first, files, count) for first in range(count)]
    if count == 1:
        return write(*parts[0])
    kinds: Counter[str] = Counter()
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        for part in pool.map(write, *zip(*parts, strict=True)):
            kinds.update(part)
    return kinds


def write(folder: str, seed: int, first: int, stop: int, step: int) -> Counter[str]:
    """Write every ``step``-th file; return how many there are of each kind."""
    sys.path.append(str(ROOT / "tests"))
    varied = importlib.import_module("torture.varied").varied
    kinds: Counter[str] = Counter()
    for number in range(first, stop, step):
        rng = random.Random(f"varied {seed} {number}")
        wants_cmyk = rng.random() < CMYK_SHARE
        while (kind := kind_of(data := varied(rng))) == "CMYK" and not wants_cmyk:
            continue
        kinds[kind] += 1
        path = Path(folder) / str(number % CLASSES) / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return kinds


def kind_of(data: bytes) -> str:
    """``"progressive"``, or how many components a baseline file has: ``"grey"``, ``"colour"``, ``"CMYK"``."""
    at = 2
    while data[at + 1] not in (0xC0, 0xC1, 0xC2):
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    components = {1: "grey", 3: "colour", 4: "CMYK"}[data[at + 9]]
    return components if components == "CMYK" or data[at + 1] != 0xC2 else "progressive"
