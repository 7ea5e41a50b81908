"""What a benchmark against peers is asked for, on the command line."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contenders._registry import CONTENDERS, RECIPES, loading
from benchmarks.contenders._remote import Interpreters

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from benchmarks.contenders._job import Job

QUICK = ("torch-pinned", "fastload")
"""Contenders of a quick run, unless some are named."""


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a benchmark against peers is asked for.

    Attributes:
        data: An ImageFolder; ``None`` writes photographs.
        names: Contenders.
        interpreters: Interpreters and packages.
        repeats: Turns of each contender.
        seconds: Of a turn, about.
        batch_size: Images per batch.
        quick: Tiny; the figures mean nothing.
        device: Where batches go.
        recipe: One of :data:`~benchmarks.contenders._registry.RECIPES`.
        row_seconds: Of one point of a record, about, with the loaders' start; ``None``: as long as it takes.
    """

    data: Path | None = None
    names: tuple[str, ...] = field(default_factory=lambda: tuple(loading()))
    interpreters: Interpreters = field(default_factory=Interpreters)
    repeats: int = 5
    seconds: float = 2.0
    batch_size: int = 256
    quick: bool = False
    device: str = field(default_factory=_device)
    recipe: str = "crops"
    row_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.recipe not in RECIPES:
            raise ValueError(f"--recipe must be among {', '.join(RECIPES)}, got {self.recipe!r}")
        for name in self.names:
            if name not in CONTENDERS:
                raise ValueError(f"--contenders must be among {', '.join(CONTENDERS)}, got {name!r}")
            if self.recipe != "crops" and not CONTENDERS[name].any_recipe:
                raise ValueError(f"--contenders must take torchvision's transforms for --recipe, got {name!r}")
        for name, low in (("repeats", 1), ("batch_size", 1), ("seconds", 0), ("row_seconds", 0)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"--{name.replace('_', '-')} must be >= {low}, got {value}")

    def deadline(self) -> float | None:
        """When a point that begins now has had its time, by ``time.monotonic``; None: never."""
        return None if self.row_seconds is None else time.monotonic() + self.row_seconds

    def turn_seconds(self, contenders: int) -> float:
        """Return the length of a turn with which a point keeps to its time."""
        if self.row_seconds is None:
            return self.seconds
        return min(self.seconds, self.row_seconds / (max(1, contenders) * (self.repeats + 2)))

    def job(self, folder: str, threads: int) -> Job:
        """Return the job of loading ``folder`` with so many threads."""
        from benchmarks.contenders._job import Job

        device, recipe = self.device, self.recipe
        return Job(data=folder, threads=threads, batch_size=self.batch_size, device=device, recipe=recipe)


def setup_of(args: argparse.Namespace) -> Setup:
    """The setup that the arguments ask for.

    Raises:
        ValueError: An argument is not what it has to be.
    """
    values: dict[str, Any] = {}
    if args.quick:
        values = {"repeats": 1, "seconds": 0.1, "batch_size": 8, "names": QUICK}
    given = {name: getattr(args, name) for name in ("repeats", "seconds", "batch_size", "recipe", "row_seconds")}
    values |= {name: value for name, value in given.items() if value is not None}
    if args.contenders:
        values["names"] = tuple(name.strip() for name in args.contenders.split(","))
    elif args.recipe and not args.quick:
        values["names"] = tuple(name for name in loading() if args.recipe == "crops" or CONTENDERS[name].any_recipe)
    interpreters = Interpreters(pythons=_pairs("--python", args.python), sites=_pairs("--site", args.site))
    return Setup(data=args.data, interpreters=interpreters, quick=args.quick, **values)


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    known = {*CONTENDERS, *(contender.group for contender in CONTENDERS.values())}
    pairs = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or name not in known:
            raise ValueError(f"{option} must be NAME=PATH with a name among {', '.join(sorted(known))}, got {text!r}")
        if not Path(path).exists():
            raise ValueError(f"{option} must name something that exists, got {path!r}")
        pairs[name] = path
    return pairs
