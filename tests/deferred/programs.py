"""Programs as texts, which make samples of image files as users' datasets do.

A program is the body of a function. It sees ``path``, ``number``, ``kept`` (a dictionary of its process), ``look``
(notes what it has seen), and the names of ``PRELUDE`` and of the classes here.
"""

from __future__ import annotations

import linecache
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .outcomes import described

PRELUDE = """
import collections, copy, ctypes, functools, gc, io, math, os, pickle, random, threading, types, warnings
import numpy as np
import torch
import torch.nn.functional as nn
import torchvision.transforms as v1
import torchvision.transforms.functional as F
import torchvision.transforms.v2.functional as VF
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from torchvision.io import ImageReadMode, decode_image, decode_jpeg, read_file, read_image
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageOps, ImageStat
from torchvision import tv_tensors
from torchvision.transforms import v2
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
"""


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Record:
    x: Any
    more: Any = None


class Opaque:
    """Hides a tensor from all who look into containers only."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __reduce__(self) -> Any:
        return Opaque, (self.x,)


class Marked(torch.Tensor):
    """A subclass of tensors."""


class Counting(torch.overrides.TorchFunctionMode):
    """Counts the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        self.count += 1
        return function(*arguments, **(options or {}))


@dataclass(frozen=True)
class Program:
    """A program's name, text, and the name of the file that it reads."""

    name: str
    text: str
    file: str

    def __str__(self) -> str:
        return f"program {self.name} of {self.file}:\n{textwrap.indent(self.text, '    ')}"


class Runs:
    """Runs programs by their numbers."""

    def __init__(self, programs: list[Program], folder: Path) -> None:
        self.programs = programs
        self.folder = folder
        self.kept: dict[str, Any] = {}
        self._names: dict[str, Any] = {}

    def __call__(self, number: int) -> Any:
        program = self.programs[number]
        looks: list[Any] = []

        def look(value: Any) -> None:
            looks.append(described(value))

        source = "def program(path, number, kept, look):\n" + textwrap.indent(program.text, "    ") + "\n"
        file = f"<program {program.name}>"
        linecache.cache[file] = len(source), None, source.splitlines(True), file
        if not self._names:
            exec(PRELUDE, self._names)
            self._names.update({each.__name__: each for each in (Pair, Record, Opaque, Marked, Counting)})
        space = dict(self._names)
        exec(compile(source, file, "exec"), space)
        sample = space["program"](str(self.folder / program.file), number, self.kept, look)
        return {"sample": sample, "looks": looks}
