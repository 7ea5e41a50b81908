"""A program that loads data, and the files that several programs read."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from benchmarks._recipes import Source

Arguments = dict[str, Any]
"""Keyword arguments of a DataLoader."""


def _torchs() -> type[Any]:
    return DataLoader


def _itself(loader: Any) -> Iterable[Any]:
    iterable: Iterable[Any] = loader
    return iterable


@dataclass(frozen=True, slots=True)
class Program:
    """How a program loads its data."""

    name: str
    what: str  # its dataset and transforms, in short
    family: str  # kind of program
    reads: str  # what it reads images with
    arguments: Callable[[Source], Arguments]  # its loader's arguments
    needs: tuple[str, ...] = ()  # optional packages that it needs
    loader: Callable[[], type[Any]] = _torchs  # gives its class of DataLoader
    around: Callable[[Any], Iterable[Any]] = _itself  # what it iterates instead of the loader
    repeatable: bool = True  # whether torch's own loader gives the same batches twice


PROGRAMS: Final[dict[str, Program]] = {}
"""All programs by name, once the modules of their families are imported."""


def program(
    family: str, reads: str, *needs: str, **rest: Any
) -> Callable[[Callable[[Source], Arguments]], Callable[[Source], Arguments]]:
    """Add a function to :data:`PROGRAMS`, with its name and docstring."""

    def add(function: Callable[[Source], Arguments]) -> Callable[[Source], Arguments]:
        name = function.__name__
        what = (function.__doc__ or "").rstrip(".")
        PROGRAMS[name] = Program(name, what, family, reads, function, needs, **rest)
        return function

    return add


def seed_all(seed: int = 0) -> None:
    """Seed torch, NumPy and Python's ``random``."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def beside(source: Source, name: str, make: Callable[[Image.Image], Image.Image]) -> list[str]:
    """Return the paths of PNG files made of the samples' photographs; each is written once."""
    (source.scratch / name).mkdir(parents=True, exist_ok=True)
    paths = []
    for photo, _ in source.samples:
        path = source.scratch / name / f"{Path(photo).parent.name}-{Path(photo).stem}.png"
        if not path.exists():
            with Image.open(photo) as image:
                make(image.convert("RGB")).save(path, compress_level=1)
        paths.append(str(path))
    return paths


def masks(source: Source, classes: int = 21) -> list[str]:
    """Return the paths of the samples' masks: PNG files of class numbers."""

    def mask(image: Image.Image) -> Image.Image:
        return Image.fromarray((np.indices(image.size[::-1]).sum(0) // 64 % classes).astype(np.uint8))

    return beside(source, f"masks-{classes}", mask)


def png_of(image: Image.Image) -> bytes:
    """Encode an image as a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def boxes(size: tuple[int, int]) -> list[list[float]]:
    """Two boxes inside an image of a size, as left, top, right and bottom."""
    width, height = size
    shares = ((0.1, 0.2, 0.6, 0.9), (0.4, 0.1, 0.8, 0.5))
    return [[round(share * edge) for share, edge in zip(box, (width, height) * 2, strict=True)] for box in shares]


def captions(source: Source) -> list[str]:
    """A caption of each sample, of several lengths."""
    words = [
        "a",
        "photograph",
        "of",
        "one",
        "thing",
        "that",
        "stands",
        "on",
        "a",
        "table",
        "beside",
        "other",
        "things",
        "in",
        "the",
        "light",
    ]
    return [" ".join(words[: 3 + place % 13]) for place in range(len(source.samples))]


def hugging_face(source: Source, **columns: list[Any]) -> Any:
    """Make a ``datasets.Dataset`` of the samples' files, with ``image``, ``label`` and other columns.

    Columns of paths whose names end in ``image`` hold images.
    """
    datasets = import_module("datasets")
    datasets.disable_progress_bars()
    paths, labels = ([*column] for column in zip(*source.samples, strict=True))
    made = datasets.Dataset.from_dict({"image": paths, "label": labels, **columns})
    for name in made.column_names:
        if name.endswith("image"):
            made = made.cast_column(name, datasets.Image())
    return made


def tokenizer() -> Any:
    """Make one of transformers' tokenizers with a small vocabulary."""
    parts, transformers = import_module("tokenizers"), import_module("transformers")
    words = [
        "<pad>",
        "<unk>",
        "<bos>",
        "<image>",
        *["a", "photograph", "of", "one", "thing", "that", "stands", "on", "table", "beside", "other"],
    ]
    model = parts.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    fast = parts.Tokenizer(model)
    fast.pre_tokenizer = parts.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast, pad_token="<pad>", unk_token="<unk>", bos_token="<bos>", model_max_length=77
    )
