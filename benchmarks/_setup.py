"""Settings of the benchmarks against peers, from the command line."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contenders._registry import CONTENDERS, RECIPES, loading
from benchmarks.contenders._remote import Interpreters
from fastload._arguments import UsageError, check_names

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from benchmarks.contenders._job import Job

QUICK_NAMES = ("torch-pinned", "fastload")  # contenders of a quick run, unless some are named


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Contenders, and the length of their turns."""

    data: Path | None = None  # folder of an ImageFolder; None writes photographs
    names: tuple[str, ...] = field(default_factory=lambda: tuple(loading()))  # contenders
    interpreters: Interpreters = field(default_factory=Interpreters)  # interpreters and packages
    repeats: int = 5  # turns of each contender
    seconds: float = 2.0  # length of a turn, about
    batch_size: int = 256  # images per batch
    quick: bool = False  # whether everything is tiny, and the figures mean nothing
    device: str = field(default_factory=_device)  # device of the batches
    recipe: str = "crops"  # one of RECIPES
    # length of one point of a record, about, with the loaders' start; None: as long as it takes
    row_seconds: float | None = None

    def __post_init__(self) -> None:
        check_names("--recipe", [self.recipe], RECIPES)
        check_names("--contenders", self.names, CONTENDERS)
        for name in self.names:
            if self.recipe != "crops" and not CONTENDERS[name].any_recipe:
                raise UsageError(f"--contenders must take torchvision's transforms for --recipe, got {name!r}")

    def deadline(self) -> float | None:
        """When a point that begins now has had its time, by ``time.monotonic``; ``None``: never."""
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
        UsageError: A contender, a recipe or a path does not exist.
    """
    recipe = args.recipe or "crops"
    names = [name for name in loading() if recipe == "crops" or CONTENDERS[name].any_recipe]
    if args.contenders:
        names = [name.strip() for name in args.contenders.split(",")]
    elif args.quick:
        names = list(QUICK_NAMES)
    interpreters = Interpreters(pythons=_pairs("--python", args.python), sites=_pairs("--site", args.site))
    given = {name: getattr(args, name) for name in ("data", "quick", "repeats", "seconds", "batch_size", "row_seconds")}
    return Setup(names=tuple(names), interpreters=interpreters, recipe=recipe, **given)


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    known = {*CONTENDERS, *(contender.module for contender in CONTENDERS.values())}
    pairs = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or name not in known:
            raise UsageError(f"{option} must be NAME=PATH with a name among {', '.join(sorted(known))}, got {text!r}")
        if not Path(path).exists():
            raise UsageError(f"{option} must name something that exists, got {path!r}")
        pairs[name] = path
    return pairs
