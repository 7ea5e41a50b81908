"""The arguments of ``fastload bench``'s commands whose modules import torch: ``--help`` does not need it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastload._argument_types import at_least, file_in_new_folder, picture_file, positive
from fastload._factory import add_factory_argument

if TYPE_CHECKING:
    import argparse

_COUNT: Final = at_least(1)

VIT_S: Final = "vit_s_16"
"""ViT-S/16: 12 layers, 6 heads, 384 wide, 22 million weights."""

TINY: Final = "tiny"
"""One convolution on 32 px: a step that a CPU does in milliseconds."""


def add_data_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--data``."""
    parser.add_argument(
        "--data",
        metavar="DIR",
        type=Path,
        help="folder with one folder of images per class (default: photographs, written to .fastload/ if need be)",
    )


def add_quick(parser: argparse.ArgumentParser) -> None:
    """Declare ``--quick``."""
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it works; the figures mean nothing")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", metavar="FILE", type=file_in_new_folder, help="write every figure there")


def ceiling(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``fastload bench ceiling``."""
    add_factory_argument(parser, optional=True)
    add_data_argument(parser)
    parser.add_argument(
        "--model", help="without a factory: a classifier of torchvision's (default: resnet50; a small net on a CPU)"
    )
    parser.add_argument("--batch-size", type=_COUNT, help="without a factory: images per step (default: 256)")
    parser.add_argument("--workers", type=_COUNT, help="without a factory: workers (default: about one per core)")
    parser.add_argument("--seconds", type=positive, help="how long each loop is measured each time (default: 5)")
    parser.add_argument("--repeats", type=_COUNT, help="how often each loop is measured (default: 3)")
    parser.add_argument("--hold", type=_COUNT, default=8, help="batches to replay (default: %(default)s)")
    add_json(parser)
    add_quick(parser)


def decode(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``fastload bench decode``."""
    add_data_argument(parser)
    parser.add_argument("--images", type=_COUNT, default=512, help="images per run (default: %(default)s)")
    parser.add_argument("--large", type=_COUNT, default=12, help="large photos per run (default: %(default)s)")
    parser.add_argument("--threads", type=_COUNT, help="most threads (default: the usable cores)")
    parser.add_argument("--repeats", type=_COUNT, default=7, help="runs of each contender (default: %(default)s)")
    parser.add_argument(
        "--simd-python", metavar="FILE", type=Path, help="interpreter with Pillow-SIMD, to measure its resize too"
    )
    add_json(parser)
    add_quick(parser)


def demo(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``fastload bench demo``."""
    add_data_argument(parser)
    parser.add_argument("--repeats", type=_COUNT, default=3, help="epochs per loader (default: %(default)s)")
    parser.add_argument("--ladder", action="store_true", help="then train ResNet-50 on the GPU, rung by rung (minutes)")
    parser.add_argument("--json", metavar="FILE", type=file_in_new_folder, help="write the comparison's figures there")
    add_quick(parser)


def ladder(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``fastload bench ladder``."""
    add_data_argument(parser)
    parser.add_argument("--model", default="resnet50", help="any of torchvision's classifiers (default: %(default)s)")
    parser.add_argument("--batch-size", type=_COUNT, help="images per step (default: 256)")
    parser.add_argument("--steps", type=_COUNT, help="steps per rung and climb (default: 30)")
    parser.add_argument("--repeats", type=_COUNT, help="climbs (default: 5)")
    add_json(parser)
    parser.add_argument("--plot", metavar="FILE", type=picture_file, help="draw the climb there, as a bar chart")
    add_quick(parser)


def photos(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``fastload bench photos``; the defaults are those of ``PhotoSet``."""
    parser.add_argument("dir", metavar="DIR", type=Path, help="folder to write (kept if it is complete already)")
    parser.add_argument("--count", type=_COUNT, default=1000, help="images (default: %(default)s)")
    parser.add_argument("--classes", type=_COUNT, help="classes (default: 8, or one per image if fewer)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="(default: %(default)s)")
    parser.add_argument("--quality", type=_COUNT, default=90, help="of the JPEGs (default: %(default)s)")
    parser.add_argument("--edge-px", type=_COUNT, default=500, help="long edge, up to 8192 (default: %(default)s)")


def recipes(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``fastload bench recipes``."""
    add_data_argument(parser)
    parser.add_argument("--images", type=_COUNT, default=256, help="images per turn (default: %(default)s)")
    parser.add_argument("--batch-size", type=_COUNT, default=16, help="images per batch (default: %(default)s)")
    parser.add_argument("--workers", type=_COUNT, default=2, help="num_workers of both loaders (default: %(default)s)")
    parser.add_argument("--repeats", type=_COUNT, default=5, help="turns of each loader (default: %(default)s)")
    parser.add_argument("--only", metavar="A,B", help="recipes whose names contain one of these")
    parser.add_argument("--note", help="what a reader of the record should know of this run")
    add_json(parser)
    add_quick(parser)


def slots(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``fastload bench slots``."""
    parser.add_argument("--workers", type=_COUNT, default=8, help="worker processes for images (default: %(default)s)")
    parser.add_argument("--batch-size", type=_COUNT, default=256, help="images per batch (default: %(default)s)")
    parser.add_argument("--batches", type=_COUNT, default=96, help="image batches per epoch (default: %(default)s)")
    parser.add_argument("--repeats", type=_COUNT, default=5, help="epochs per contender (default: %(default)s)")
    parser.add_argument("--case", action="append", help="only this case; may be given again")
    add_json(parser)
    add_quick(parser)


def step(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``fastload bench step``."""
    add_data_argument(parser)
    parser.add_argument("--model", default="resnet50", help="any of torchvision's classifiers (default: %(default)s)")
    parser.add_argument("--batch-size", type=_COUNT, help="images per step (default: 256)")
    parser.add_argument("--steps", type=_COUNT, help="steps per repeat (default: 30)")
    parser.add_argument("--repeats", type=_COUNT, help="repeats per contender (default: 5)")
    parser.add_argument("--calls", type=_COUNT, help="calls of next() to time (default: 200)")
    add_json(parser)
    add_quick(parser)
