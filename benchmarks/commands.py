"""Benchmarks of ``python -m benchmarks`` and their options; ``--help`` needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from benchmarks._setup import QUICK_NAMES, Setup
from benchmarks.contenders._registry import RECIPES, loading
from fastload._arguments import Sized, at_least, positive
from fastload._machine import usable_cpus
from fastload.bench import TINY, VIT_S
from fastload.commands.bench import DATA, JSON, PHOTOS, QUICK, Option, model, number, option
from fastload.commands.cli import Command, Table, always

ORDER: Final = (
    *("peers", "decode", "recipes", "slots", "step", "ladder", "multigpu", "gpudecode", "ceiling", "insight", "state"),
    *("overhead", "onecore", "own", "programs", "verdicts", "tune", "sources", "epochs"),
)
"""Benchmarks of ``all``; ``peers`` asks several questions, and ``demo`` shows what ``ladder`` measures."""

THREADS: Final = {"loaders": (1, 2, 4, 8, 16), "firstbatch": (8,), "cpu": (8,), "memory": (16,), "energy": (16,)}
"""Default numbers of threads of the questions that are asked by threads."""

MODELS: Final = ("resnet50", "resnet18", VIT_S)  # default models of `train`
GPU_PARTS: Final = ("kernels", "epochs", "step", "verify")  # parts of `gpudecode`
OWN_PARTS: Final = ("python", "loader", "step")  # parts of `own`
PROGRAM_PARTS: Final = ("load", "train")  # parts of `programs`

EDGES: Final = {256: 1000, 500: 1000, 1000: 500, 2000: 160, 4000: 64}
"""Long edges in pixels of ``scaling``, and the images of each: enough to be varied, few enough to be written soon."""

TUNED_MODEL: Final = "resnet34"
"""Model of ``tune``, light enough for several threads: with three, one more would be a third more."""

_CORES: Final = Sized(min(16, usable_cpus()), min(2, usable_cpus()))
_DEFAULT: Final = Setup(device="cpu")


def numbers(text: str) -> tuple[int, ...]:
    """Parse ``"4,16"``."""
    if not all(part.isdecimal() and int(part) for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"must be numbers >= 1, such as 1,2,4, got {text!r}")
    return tuple(map(int, text.split(",")))


def _only(name: str) -> Option:
    return option(name, action="append", metavar="NAME", help="only this one; may be given again")


def _paths(name: str, what: str) -> Option:
    text = f"{what} of one contender, or of a module of contenders; may be given again"
    return option(name, metavar="NAME=PATH", action="append", default=[], help=text)


_OF_ALL: Final = (
    DATA,
    _paths("--python", "interpreter"),
    _paths("--site", "folder with packages"),
    option("--json", metavar="PATH", type=Path, help="write every figure there; of peers, a folder"),
    QUICK,
)
"""Options that hold for all questions to peers."""

ASKED: Final = (
    option(
        "--contenders",
        metavar="A,B",
        help=f"who takes part (default: all that can: {','.join(loading())}; if quick: {','.join(QUICK_NAMES)})",
    ),
    number("--repeats", "turns of each contender", Sized(_DEFAULT.repeats, 1)),
    number("--seconds", "length of each turn, about", Sized(_DEFAULT.seconds, 0.1), positive),
    option(
        "--row-seconds",
        type=positive,
        help="length of a point, about, with the loaders' start: turns are as short and as few as that takes, at least "
        "one of each (default: as long as it takes)",
    ),
    number("--batch-size", "images per batch", Sized(_DEFAULT.batch_size, 8)),
    option("--recipe", help=f"transforms of training: {', '.join(RECIPES)} (default: {_DEFAULT.recipe})"),
)
"""Options that each question may have of its own."""


QUESTIONS: Final[dict[str, tuple[Option, ...]]] = {
    "train": (
        option("--models", help=f"torchvision's names, or {VIT_S} (default: {','.join(MODELS)})"),
        number("--threads", "threads or workers, all cores (default: 6,16)", kind=numbers),
        number("--cores", "cores, and as many threads: 4,8", kind=numbers),
        number("--steps", "most steps per turn", Sized(30, 2)),
    ),
    "scaling": (
        number("--threads", "threads or workers", _CORES),
        number("--edges", "long edges in px", Sized(tuple(EDGES), (64, 128)), numbers),
        number("--batches", "images per batch", Sized((16, 64, 256, 1024), (4, 8)), numbers),
    ),
    "total": (
        model(Sized("resnet18", TINY)),
        number("--threads", "threads, or worker processes, such as 4,16", Sized((16,), (2,)), numbers),
        number("--passes", "passes through the images", Sized(10, 2)),
    ),
}
"""Options of each question to peers alone."""
for _name, _counts in THREADS.items():
    _shown = f"threads, or worker processes, such as 4,16 (default: {','.join(map(str, _counts))})"
    QUESTIONS[_name] = (number("--threads", _shown, kind=numbers),)


def _benchmark(name: str, help: str, *options: Option, data: bool = True, quick: bool = True) -> Command:
    """A benchmark with ``--json``, and ``--data`` and ``--quick`` unless it is said otherwise."""
    common = (*([DATA] if data else []), JSON, *([QUICK] if quick else []))
    return Command(
        f"benchmarks.{name}", help, "bench", {"rich": always, **(PHOTOS if data else {})}, (*options, *common)
    )


def _peers(name: str | None, help: str, *options: Option) -> Command:
    """Benchmark against peers: one question, or several."""
    options = (lambda parser: parser.set_defaults(question=name), *options, *ASKED, *_OF_ALL)
    return Command("benchmarks.questions", help, "bench", {"rich": always, **PHOTOS}, options)


def _question(name: str, help: str) -> Command:
    return _peers(name, help, *QUESTIONS[name])


def _recipes(name: str, help: str, workers: int) -> Command:
    return _benchmark(
        "recipes",
        help,
        lambda parser: parser.set_defaults(benchmark=name),
        number("--images", "samples of the datasets", Sized(256, 8)),
        number("--batch-size", "images per batch", Sized(16, 4)),
        number("--workers", "num_workers of both loaders", workers),
        number("--turn-seconds", "length of each turn, about", Sized(1.0, 0.02), positive),
        number("--repeats", "turns of each loader", Sized(5, 1)),
        option("--only", metavar="A,B", help="recipes whose names contain one of these"),
        option("--note", help="remark for readers of the record"),
    )


BENCHMARKS: Final[Table] = {
    "all": Command(
        "benchmarks.all",
        "every benchmark in turn, each in a process of its own",
        "bench",
        {"rich": always, **PHOTOS},
        (
            DATA,
            option("--json", metavar="DIR", type=Path, help="write NAME.json of each benchmark there"),
            option("--only", metavar="A,B", help=f"benchmarks to run, among {','.join(ORDER)}"),
            QUICK,
        ),
    ),
    "arrays": _benchmark(
        "arrays",
        "CIFAR-10's usual loop beside torch's DataLoader",
        option("what", choices=["loaders", "train"], nargs="?", default="loaders"),
        option("--batch-sizes", type=at_least(1), nargs="+", default=[128, 512], help="(default: 128 512)"),
        number("--images", "images of an epoch", 50_000),
        number("--workers", "worker processes or decode threads", 2),
        number("--cores", "cores of the process, its workers and threads (default: all)"),
        number("--repeats", "turns of each loader", 5),
        number("--steps", "steps of each turn of training", 300),
        option("--compile", action="store_true", help="compile the model, for a higher ceiling"),
        option("--device", help="device of the batches (default: the GPU if there is one)"),
        data=False,
        quick=False,
    ),
    "cluster": _benchmark(
        "cluster",
        "samples made by tasks of Ray Data, beside worker processes",
        number("--images", "images of an epoch", 512),
        number("--batch-size", "images per batch", 32),
        number("--workers", "worker processes, and tasks at a time", 2),
        number("--repeats", "epochs of each", 5),
        data=False,
        quick=False,
    ),
    "cpu": _question("cpu", "processor seconds per image, beside peers"),
    "decode": _benchmark(
        "decode",
        "JPEG files to training crops on the CPU, beside torchvision and DALI",
        number("--images", "images per run", Sized(512, 16)),
        number("--large", "large photos per run", Sized(12, 1)),
        number("--threads", "most threads", usable_cpus()),
        number("--repeats", "runs of each contender", Sized(7, 1)),
        option("--simd-python", metavar="FILE", type=Path, help="interpreter with Pillow-SIMD, to measure its resize"),
    ),
    "energy": _question("energy", "energy of the GPU per million images, beside peers"),
    "figures": Command(
        "benchmarks.figures",
        "write the tables and charts of README and docs from results",
        arguments=[option("--check", action="store_true", help="change nothing; exit 1 if something is out of date")],
    ),
    "epochs": _benchmark(
        "epochs",
        "what an epoch's start costs, beside torch's DataLoader",
        number("--images", "samples of an epoch", Sized(5120, 16)),
        number("--batch-size", "images per batch", Sized(256, 4)),
        number("--threads", "threads, or worker processes", Sized(4, 2)),
        number("--repeats", "epochs of each loader", Sized(15, 1)),
        option("--augment", action="store_true", help="with RandAugment"),
    ),
    "firstbatch": _question("firstbatch", "time to the first batch, beside peers"),
    "gpudecode": _benchmark(
        "gpudecode",
        "decoding on the GPU: kernels, beside a step, the same bits",
        option("--parts", metavar="A,B", default=",".join(GPU_PARTS), help="parts to run (default: %(default)s)"),
        number("--seconds", "length of all parts, about; what is left then is left out", kind=positive),
        option("--recipe", help=f"transforms of training: {', '.join(RECIPES)}", default=_DEFAULT.recipe),
        number("--verify", "crops to compare", Sized(100_000, 320)),
        number("--files", "files that these crops are taken from", Sized(2000, 32)),
        model(Sized("resnet50", TINY)),
        number("--batch-size", "images per batch", Sized(256, 8)),
        number("--threads", "decode threads", _CORES),
        number("--epoch-threads", "decode threads of 'epochs'", Sized((1, 4, 16), (1, 2)), kind=numbers),
        number("--epoch-images", "images of each of its epochs", Sized(49_152, 64)),
        number("--repeats", "epochs and turns that are timed", Sized(5, 2)),
        number("--steps", "training steps of a turn", Sized(20, 2)),
    ),
    "insight": _benchmark(
        "insight",
        "what annotations, stages and windows cost without a tool",
        number("--repeats", "repeats of each measurement", Sized(30, 5)),
        data=False,
    ),
    "loaders": _question("loaders", "loaders alone against threads, beside peers"),
    "memory": _question("memory", "host and GPU memory of loaders, beside peers"),
    "multigpu": _benchmark(
        "multigpu",
        "one GPU and several, under torchrun, beside torch",
        number("--processes", "such as 1,2 (default: 1,2,4, as far as there are GPUs)", kind=numbers),
        model(Sized("resnet50", TINY)),
        number("--batch-size", "images per batch and process", Sized(256, 8)),
        number("--repeats", "turns of each loader", Sized(5, 2)),
        number("--seconds", "length of each turn, about", Sized(2.0, 0.1), positive),
        number("--row-seconds", "length of all turns of a number of processes, about: shortens turns", kind=positive),
        number("--cores", "cores and threads of each process (default: its share of all; at most 16 threads)"),
        option("--contenders", metavar="A,B", default="torch-pinned,fastload", help="loaders (default: %(default)s)"),
    ),
    "objectstore": _benchmark(
        "objectstore",
        "images in an object store beside a folder",
        number("--count", "photographs that are written", 200),
        number("--edge-px", "long edge of these", 500),
        number("--times", "samples of each photograph", 20),
        option("--latencies-ms", metavar="MS", type=float, nargs="+", default=[50.0], help="(default: 50)"),
        number("--batch-size", "images per batch", 64),
        number("--threads", "decode threads", 16),
        number("--repeats", "epochs of each loader", 5),
        quick=False,
    ),
    "onecore": _recipes("onecore", "augmentations on one core beside torch's DataLoader", workers=1),
    "overhead": _benchmark(
        "overhead",
        "programs that gain nothing: what they lose",
        number("--repeats", "pairs of epochs", Sized(20, 2)),
        data=False,
    ),
    "own": _benchmark(
        "own",
        "a dataset of one's own: its Python alone, its loader, training",
        option("--parts", metavar="A,B", default=",".join(OWN_PARTS), help="parts to run (default: %(default)s)"),
        option("--only", metavar="A,B", help="recipes whose names contain one of these"),
        number("--seconds", "length of all parts, about; what is left then is left out", kind=positive),
        number("--threads", "worker processes", Sized(max(1, min(15, usable_cpus() - 1)), 2)),
        number("--images", "samples of the datasets", Sized(3840, 16)),
        number("--batch-size", "images per batch", Sized(64, 4)),
        number("--turn-seconds", "length of each turn, about", Sized(1.5, 0.02), positive),
        number("--repeats", "turns of each", Sized(5, 1)),
        model(Sized("resnet50", TINY)),
        number("--step-batch-size", "images per training step", Sized(256, 4)),
        number("--steps", "training steps of a turn, about", Sized(20, 2)),
    ),
    "peers": _peers(
        None,
        "several questions to the same contenders",
        option("questions", nargs="*", metavar="QUESTION", help="such as 'loaders --threads 4,16' (default: all)"),
        number("--total-seconds", "length of the run: no point begins later", kind=positive),
    ),
    "programs": _benchmark(
        "programs",
        "data pipelines of programs of today beside torch's DataLoader",
        option("--parts", metavar="A,B", default="load", help="parts to run, of load and train (default: load)"),
        option("--only", metavar="A,B", help="programs whose names contain one of these"),
        number("--seconds", "length of the run: no program begins later", kind=positive),
        number("--threads", "worker processes", 2),
        number("--images", "samples of the datasets", Sized(512, 16)),
        number("--batch-size", "images per batch, where a program has none of its own", Sized(16, 4)),
        number("--turn-seconds", "length of each turn, about", Sized(1.5, 0.02), positive),
        number("--steps", "training steps of a turn, about", Sized(30, 2)),
        number("--repeats", "turns of each loader", Sized(5, 1)),
        option("--note", help="remark for readers of the record"),
    ),
    "recipes": _recipes("recipes", "20 well-known training recipes beside torch's DataLoader", workers=2),
    "scaling": _question("scaling", "loaders alone against the size of images and batches"),
    "slots": _benchmark(
        "slots",
        "pinned shared slots beside pin_memory=True",
        number("--workers", "worker processes for images", Sized(8, 2)),
        number("--batch-size", "images per batch", Sized(256, 8)),
        number("--batches", "image batches per epoch", Sized(96, 6)),
        number("--repeats", "epochs per contender", Sized(5, 1)),
        _only("--case"),
        data=False,
    ),
    "sources": _benchmark(
        "sources",
        "folders, archives, Parquet ..., beside their own loaders",
        option("--only", nargs="+", metavar="SOURCE", help="rows to measure (default: all)"),
        number("--workers", "worker processes or decode threads", 2),
        number("--repeats", "turns of each loader", Sized(5, 1)),
    ),
    "state": _benchmark(
        "state",
        "what state_dict() costs, and how soon a loader goes on",
        number("--repeats", "first batches, and a tenth of the calls", Sized(5, 1)),
        data=False,
    ),
    "step": _benchmark(
        "step",
        "what the device side costs a training step",
        model(),
        number("--batch-size", "images per step", Sized(256, 8)),
        number("--steps", "steps per repeat", Sized(30, 2)),
        number("--repeats", "repeats per contender", Sized(5, 2)),
        number("--calls", "calls of next() to time", Sized(200, 10)),
    ),
    "train": _question("train", "training fed by each loader, as a share of the ceiling"),
    "total": _question("total", "seconds of some passes of training from the beginning, beside peers"),
    "tune": _benchmark(
        "tune",
        "num_workers='auto' beside every fixed number of workers",
        model(TUNED_MODEL),
        number("--counts", "fixed numbers of workers (default: all up to 8, then every second one)", kind=numbers),
        number("--seconds", "length of a first look (default: 0.25 on a GPU, else 0.8)", kind=positive),
        number("--repeats", "turns of each number", Sized(5, 1)),
        _only("--workload"),
    ),
    "verdicts": _benchmark(
        "verdicts",
        "whether the verdict names bottlenecks that are planted",
        option("--device", default="auto", help="device to train on: auto, cpu, cuda"),
        number("--minutes", "train for so long each, with a report at every epoch", kind=positive),
        _only("--only"),
        data=False,
    ),
}
