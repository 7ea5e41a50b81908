"""``python -m benchmarks NAME``: picks a benchmark from a table and imports only its module."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from fastload.commands.cli import Command, Table, dispatch

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence


def _benchmark(name: str, help: str, module: str = "", *, photographs: bool = False) -> Command:
    needs: dict[str, Callable[[argparse.Namespace], object]] = {"rich": lambda args: True}
    if photographs:
        needs["skimage"] = lambda args: not args.data
    arguments = f"benchmarks.arguments:{name if name != 'all' else 'everything'}"
    return Command(f"benchmarks.{module or name}", help, "bench", needs, arguments)


def _question(name: str, help: str) -> Command:
    return _benchmark(name, help, f"questions:{name.upper()}", photographs=True)


BENCHMARKS: Final[Table] = {
    "all": _benchmark("all", "every benchmark in turn, each in a process of its own", photographs=True),
    "cpu": _question("cpu", "processor seconds per image, beside peers"),
    "energy": _question("energy", "energy of the GPU per million images, beside peers"),
    "figures": Command(
        "benchmarks.readme_tables",
        "write the tables and charts of README and docs from results",
        arguments="benchmarks.arguments:figures",
    ),
    "firstbatch": _question("firstbatch", "time to the first batch, beside peers"),
    "gpudecode": _benchmark(
        "gpudecode", "decoding on the GPU: kernels, beside a step, the same bits", photographs=True
    ),
    "insight": _benchmark("insight", "what annotations, stages and windows cost without a tool"),
    "loaders": _question("loaders", "loaders alone against threads, beside peers"),
    "memory": _question("memory", "host and GPU memory of loaders, beside peers"),
    "multigpu": _benchmark("multigpu", "one GPU and several, under torchrun, beside torch", photographs=True),
    "onecore": _benchmark("onecore", "augmentations on one core beside torch's DataLoader", photographs=True),
    "peers": _benchmark("peers", "several questions to the same contenders", photographs=True),
    "scaling": _question("scaling", "loaders alone against the size of images and batches"),
    "sources": _benchmark("sources", "folders, archives, Parquet ..., beside their own loaders", photographs=True),
    "state": _benchmark("state", "what state_dict() costs, and how soon a loader goes on"),
    "tune": _benchmark("tune", "num_workers='auto' beside every fixed number of workers", photographs=True),
    "verdicts": _benchmark("verdicts", "whether the verdict names bottlenecks that are planted"),
    "train": _question("train", "training fed by each loader, as a share of the ceiling"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark that ``argv`` names (default: the process's own) and return its exit code."""
    return dispatch("python -m benchmarks", BENCHMARKS, argv, "FastLoader beside its peers, and what it costs")


if __name__ == "__main__":
    sys.exit(main())
