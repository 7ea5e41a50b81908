"""``python -m benchmarks NAME``: picks a benchmark from a table and imports only its module."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from fastload.commands.cli import Command, Table, dispatch

BENCHMARKS: Final[Table] = {
    "all": Command("benchmarks.all", "every benchmark in turn, each in a process of its own", "bench"),
    "cpu": Command("benchmarks.questions:CPU", "processor seconds per image, beside peers", "bench"),
    "figures": Command("benchmarks.readme_tables", "write the tables and charts of README and docs from results"),
    "firstbatch": Command("benchmarks.questions:FIRSTBATCH", "time to the first batch, beside peers", "bench"),
    "insight": Command("benchmarks.insight", "what annotations, stages and windows cost without a tool", "bench"),
    "loaders": Command("benchmarks.questions:LOADERS", "loaders alone against threads, beside peers", "bench"),
    "memory": Command("benchmarks.questions:MEMORY", "host and GPU memory of loaders, beside peers", "bench"),
    "multigpu": Command("benchmarks.multigpu", "one GPU and several, under torchrun, beside torch", "bench"),
    "onecore": Command("benchmarks.onecore", "augmentations on one core beside torch's DataLoader", "bench"),
    "peers": Command("benchmarks.peers", "several questions to the same contenders", "bench"),
    "scaling": Command("benchmarks.questions:SCALING", "loaders alone against the size of images and batches", "bench"),
    "state": Command("benchmarks.state", "what state_dict() costs, and how soon a loader goes on", "bench"),
    "tune": Command("benchmarks.tune", "num_workers='auto' beside every fixed number of workers", "bench"),
    "verdicts": Command("benchmarks.verdicts", "whether the verdict names bottlenecks that are planted", "bench"),
    "train": Command("benchmarks.questions:TRAIN", "training fed by each loader, as a share of the ceiling", "bench"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark that ``argv`` names (default: the process's own) and return its exit code."""
    return dispatch("python -m benchmarks", BENCHMARKS, argv, "FastLoader beside its peers, and what it costs")


if __name__ == "__main__":
    sys.exit(main())
