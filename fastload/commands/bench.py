"""Commands of ``fastload bench`` and their options; ``--help`` needs no torch."""

from __future__ import annotations

import argparse
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from fastload._arguments import Sized, add_factory_argument, at_least, file_in_new_folder, picture_file, positive
from fastload.commands.cli import Command, Needs, Table, always, not_given

Option: TypeAlias = Callable[[argparse.ArgumentParser], object]  # declares an option of a command


def option(*names: str, **settings: Any) -> Option:
    """Return an option with these names and settings of ``ArgumentParser.add_argument``."""
    return lambda parser: parser.add_argument(*names, **settings)


def number(name: str, what: str, default: Any = None, kind: Callable[[str], Any] | None = None) -> Option:
    """Return an option that is a number of at least 1, or of another type."""
    shown = what if default is None else f"{what} (default: {default})"
    return option(name, type=kind or at_least(1), default=default, help=shown)


def model(default: str | Sized = "resnet50") -> Option:
    """Return ``--model``."""
    return option("--model", default=default, help=f"any of torchvision's classifiers (default: {default})")


DATA: Final = option(
    "--data",
    metavar="DIR",
    type=Path,
    help="folder with one folder of images per class (default: photographs, written to .fastload/ if need be)",
)
QUICK: Final = option("--quick", action="store_true", help="tiny, to see that it works; the figures mean nothing")
JSON: Final = option("--json", metavar="FILE", type=file_in_new_folder, help="write every figure there")

PHOTOS: Final = {"skimage": not_given("data")}
"""The package that photographs come from, which images of the user's own do not need."""


def _bench(name: str, help: str, needs: Needs, *options: Option) -> Command:
    return Command(f"fastload.bench.{name}", help, "bench", {"rich": always, **needs}, options)


COMMANDS: Final[Table] = {
    "ceiling": _bench(
        "ceiling",
        "how fast training would be with a perfect loader",
        {"skimage": lambda args: not (args.data or args.factory)},
        lambda parser: add_factory_argument(parser, optional=True),
        DATA,
        option("--model", help="without a factory: a classifier of torchvision's (default: resnet50; tiny on a CPU)"),
        number("--batch-size", "without a factory: images per step (default: 256)"),
        number("--workers", "without a factory: workers (default: about one per core)"),
        number("--seconds", "length of each measurement", Sized(5.0, 0.3), positive),
        number("--repeats", "measurements of each loop", Sized(3, 1)),
        number("--hold", "batches to replay", 8),
        JSON,
        QUICK,
    ),
    "demo": _bench(
        "demo",
        "FastLoader beside DataLoader on photographs",
        {**PHOTOS, "matplotlib": always},
        DATA,
        number("--repeats", "epochs per loader", 3),
        option("--ladder", action="store_true", help="then train ResNet-50 on the GPU, rung by rung (minutes)"),
        JSON,
        QUICK,
    ),
    "ladder": _bench(
        "ladder",
        "the classic ladder of optimizations of a training run",
        {**PHOTOS, "matplotlib": operator.attrgetter("plot")},
        DATA,
        model(),
        number("--batch-size", "images per step", Sized(256, 8)),
        number("--steps", "steps per rung and climb", Sized(30, 2)),
        number("--repeats", "climbs", Sized(5, 2)),
        JSON,
        option("--plot", metavar="FILE", type=picture_file, help="draw the climb there, as a bar chart"),
        QUICK,
    ),
    "photos": _bench(
        "photos",
        "write a data set of real photographs",
        {"skimage": always},
        option("dir", metavar="DIR", type=Path, help="folder to write (kept if it is complete already)"),
        number("--count", "images", 1000),
        number("--classes", "classes (default: 8, or one per image if fewer)"),
        number("--seed", "seed of all draws", 0, at_least(0)),
        number("--quality", "quality of the JPEGs", 90),
        number("--edge-px", "long edge, up to 8192", 500),
    ),
}

IN_CHECKOUT: Final = (
    *("all", "arrays", "cluster", "cpu", "decode", "energy", "epochs", "figures", "firstbatch", "gpudecode", "insight"),
    *("loaders", "memory", "multigpu", "objectstore", "onecore", "peers", "recipes", "scaling", "slots", "sources"),
    *("overhead", "own", "programs", "state", "step", "total", "train", "tune", "verdicts"),
)
"""Benchmarks of ``python -m benchmarks``: they compare with peers, or measure the project itself."""
