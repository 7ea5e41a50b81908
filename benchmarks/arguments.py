"""Arguments of ``python -m benchmarks``, apart from its modules: ``--help`` needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks._setup import QUICK, Setup
from benchmarks.contenders._registry import RECIPES, loading
from fastload.bench import arguments
from fastload.bench.arguments import TINY, VIT_S, add_data_argument, add_json, add_quick

if TYPE_CHECKING:
    from collections.abc import Callable

ORDER: Final = (
    *("peers", "decode", "recipes", "slots", "step", "ladder", "multigpu", "gpudecode", "ceiling", "insight", "state"),
    *("onecore", "verdicts", "tune", "sources"),
)
"""Every benchmark of ``all``; ``peers`` asks several, and ``demo`` shows what ``ladder`` measures."""

THREADS: Final = {"loaders": (1, 2, 4, 8, 16), "firstbatch": (8,), "cpu": (8,), "memory": (16,), "energy": (16,)}
"""Of questions that are asked by threads, when none are given."""

MODELS: Final = ("resnet50", "resnet18", VIT_S)
"""Of ``train``."""

GPU_PARTS: Final = ("kernels", "step", "verify")
"""Of ``gpudecode``."""

EDGES: Final = {256: 1000, 500: 1000, 1000: 500, 2000: 160, 4000: 64}
"""Of ``scaling``: long edge in pixels, and how many images: enough to be varied, few enough to be written soon."""

BATCH_SIZES: Final = (16, 64, 256, 1024)
"""Of ``scaling``."""

TUNED_MODEL: Final = "resnet34"
"""Light enough for several threads of an H200's host: of three, one more is a third more, however good its reason."""


def numbers(text: str) -> tuple[int, ...]:
    """``"4,16"`` as numbers; for ``argparse``."""
    values = tuple(int(part) for part in text.split(","))
    if any(value < 1 for value in values):
        raise ValueError(f"numbers must be >= 1, got {text}")
    return values


def everything(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks all``."""
    add_data_argument(parser)
    parser.add_argument("--json", metavar="DIR", type=Path, help="write NAME.json of each benchmark there")
    add_quick(parser)
    parser.add_argument("--only", metavar="A,B", help=f"these alone, among {','.join(ORDER)}")


def figures(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks figures``."""
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something is out of date")


def gpudecode(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks gpudecode``."""
    add_data_argument(parser)
    parser.add_argument("--parts", metavar="A,B", help=f"(default: {','.join(GPU_PARTS)})")
    parser.add_argument("--seconds", type=float, help="of all parts, about; what is left then is left out")
    parser.add_argument("--verify", metavar="N", type=int, help="crops to compare (default: 100000; if quick: 320)")
    parser.add_argument("--files", type=int, help="that these are taken of (default: 2000; if quick: 32)")
    parser.add_argument("--model", help=f"that is trained (default: resnet50; if quick: {TINY})")
    parser.add_argument("--batch-size", type=int, help="images per batch (default: 256; if quick: 8)")
    parser.add_argument("--threads", type=int, help="of the loader (default: the usable cores, at most 16)")
    parser.add_argument("--repeats", type=int, help="epochs and turns that are timed (default: 5; if quick: 2)")
    parser.add_argument("--steps", type=int, help="of a turn (default: 20; if quick: 2)")
    add_json(parser)
    add_quick(parser)


def insight(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks insight``."""
    parser.add_argument("--repeats", type=int, help="repeats of each measurement (default: 30)")
    add_json(parser)
    add_quick(parser)


def multigpu(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks multigpu``."""
    add_data_argument(parser)
    parser.add_argument("--processes", type=numbers, help="such as 1,2 (default: 1,2,4, as far as there are GPUs)")
    parser.add_argument("--model", help=f"torchvision's name (default: resnet50; if quick: {TINY})")
    parser.add_argument("--threads", type=int, help="of each process (default: its share of the cores, 16 at most)")
    parser.add_argument("--batch-size", type=int, help="images per batch and process (default: 256; if quick: 8)")
    parser.add_argument("--repeats", type=int, help="turns of each loader (default: 5; if quick: 2)")
    parser.add_argument("--seconds", type=float, help="of each turn, about (default: 2; if quick: 0.1)")
    parser.add_argument(
        "--row-seconds", type=float, help="of all turns of a number of processes, about: shortens turns"
    )
    parser.add_argument("--cores", type=int, help="of all processes together (default: all that this one may use)")
    parser.add_argument(
        "--contenders", metavar="A,B", help="such as fastload-gpu, fastload-cpu (default: torch-pinned,fastload)"
    )
    add_json(parser)
    add_quick(parser)


def onecore(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks onecore``: those of ``fastload bench recipes``."""
    arguments.recipes(parser)
    parser.set_defaults(workers=1)


def sources(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks sources``."""
    add_data_argument(parser)
    parser.add_argument("--only", nargs="+", metavar="SOURCE", help="only these rows")
    parser.add_argument("--workers", type=int, default=2, help="worker processes or decode threads (default: 2)")
    parser.add_argument("--repeats", type=int, help="turns of each loader (default: 5)")
    add_json(parser)
    add_quick(parser)


def state(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks state``."""
    parser.add_argument("--repeats", type=int, help="first batches, and a tenth of the calls (default: 5)")
    add_json(parser)
    add_quick(parser)


def tune(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks tune``."""
    add_data_argument(parser)
    parser.add_argument("--model", default=TUNED_MODEL, help="trained natively on a GPU (default: %(default)s)")
    parser.add_argument(
        "--counts", type=_counts, help="fixed numbers of workers (default: all up to 8, every other on)"
    )
    parser.add_argument("--seconds", type=float, help="of a first look (default: 0.25 on a GPU, else 0.8)")
    parser.add_argument("--repeats", type=int, help="turns of each (default: 5)")
    parser.add_argument("--workload", action="append", metavar="NAME", help="only this one; may be given again")
    add_json(parser)
    add_quick(parser)


def _counts(text: str) -> list[int]:
    if not all(part.isdecimal() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"must be numbers >= 1, such as 1,2,4, got {text!r}")
    return sorted({int(part) for part in text.split(",")})


def verdicts(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks verdicts``."""
    parser.add_argument("--seconds", type=float, default=8.0, help="of each planted loop (default: 8)")
    parser.add_argument("--device", default="auto", help="where to train: auto, cpu, cuda")
    parser.add_argument("--plant", action="append", metavar="NAME", help="only this one; may be given again")
    parser.add_argument("--quick", action="store_true", help="small sizes and 3 seconds each, 2 on a CPU")
    add_json(parser)


def peers(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks peers``."""
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"default: {' '.join(QUESTIONS)}")
    parser.add_argument("--total-seconds", type=float, help="after which no point begins, and what is left is left out")
    add_peer_arguments(parser)


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what every benchmark against peers takes."""
    default = Setup(device="cpu")
    add_data_argument(parser)
    parser.add_argument(
        "--contenders",
        metavar="A,B",
        help=f"who takes part (default: all that can: {','.join(loading())}; if quick: {','.join(QUICK)})",
    )
    for name, what in (("python", "interpreter"), ("site", "folder with packages")):
        parser.add_argument(
            f"--{name}",
            metavar="NAME=PATH",
            action="append",
            default=[],
            help=f"{what} of one contender, or of a module of contenders; may be given again",
        )
    parser.add_argument("--repeats", type=int, help=f"turns of each contender (default: {default.repeats})")
    parser.add_argument("--seconds", type=float, help=f"of each turn, about (default: {default.seconds})")
    parser.add_argument(
        "--row-seconds",
        type=float,
        help="of a point, about, the loaders' start included: turns are as short and as few as that takes, at least "
        "one of each (default: as long as it takes)",
    )
    parser.add_argument("--batch-size", type=int, help=f"images per batch (default: {default.batch_size})")
    parser.add_argument("--recipe", help=f"transforms of training: {', '.join(RECIPES)} (default: {default.recipe})")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write every figure there; of peers, a folder")
    add_quick(parser)


def _by_threads(name: str) -> Callable[[argparse.ArgumentParser], None]:
    def declare(parser: argparse.ArgumentParser) -> None:
        add_peer_arguments(parser)
        shown = ",".join(map(str, THREADS[name]))
        parser.add_argument(
            "--threads", type=numbers, help=f"threads, or worker processes, such as 4,16 (default: {shown})"
        )

    return declare


def scaling(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks scaling``."""
    add_peer_arguments(parser)
    parser.add_argument("--threads", type=int, help="threads or workers (default: the usable cores, at most 16)")
    parser.add_argument("--edges", type=numbers, help=f"long edges in px (default: {','.join(map(str, EDGES))})")
    parser.add_argument("--batches", type=numbers, help=f"(default: {','.join(map(str, BATCH_SIZES))})")


def train(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``python -m benchmarks train``."""
    add_peer_arguments(parser)
    parser.add_argument("--models", help=f"torchvision's names, or {VIT_S} (default: {','.join(MODELS)})")
    parser.add_argument("--threads", type=numbers, help="threads or workers, all cores (default: 6,16)")
    parser.add_argument("--cores", type=numbers, help="cores, and as many threads: 4,8")
    parser.add_argument("--steps", type=int, help="most steps per turn (default: 30)")


loaders: Final = _by_threads("loaders")
firstbatch: Final = _by_threads("firstbatch")
cpu: Final = _by_threads("cpu")
memory: Final = _by_threads("memory")
energy: Final = _by_threads("energy")

QUESTIONS: Final = {
    "loaders": loaders,
    "train": train,
    "firstbatch": firstbatch,
    "cpu": cpu,
    "scaling": scaling,
    "memory": memory,
    "energy": energy,
}
"""What declares the options of each question to peers."""
