"""Run every benchmark in its own process: ``python -m benchmarks all --json DIR``.

The questions about peers are one process: their contenders are started once. A benchmark that fails keeps no other from
running.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._checkout import importable
from benchmarks.arguments import ORDER, QUESTIONS
from fastload.bench._data import check_data
from fastload.commands.cli import BENCH
from fastload.measurement.console import console, refuse

if TYPE_CHECKING:
    import argparse

PEERS = "peers"
TAKE_DATA = (
    "peers",
    "decode",
    "recipes",
    "step",
    "ladder",
    "multigpu",
    "gpudecode",
    "ceiling",
    "tune",
    "onecore",
    "sources",
)
"""Those that load images; the others measure with figures of their own."""


@dataclass(frozen=True, slots=True)
class Run:
    """How one benchmark went.

    Attributes:
        name: Its own.
        code: Its exit code.
        seconds: How long it took.
        tail: The last lines that it wrote.
    """

    name: str
    code: int
    seconds: float
    tail: str


def command(name: str, folder: Path, *, quick: bool, data: Path | None = None) -> list[str]:
    """How one benchmark is run; ``data`` goes to those that take it."""
    options = {
        PEERS: ["--json", str(folder)],
        "ladder": ["--json", str(folder / "ladder.json"), "--plot", str(folder / "ladder.png")],
    }.get(name, ["--json", str(folder / f"{name}.json")])
    if data is not None and name in TAKE_DATA:
        options = [*options, "--data", str(data)]
    program = ("fastload", "bench") if name in BENCH else ("benchmarks",)
    return [sys.executable, "-m", *program, name, *options, *(["--quick"] if quick else [])]


def run_one(name: str, folder: Path, *, quick: bool, data: Path | None = None) -> Run:
    """Run one benchmark; what it writes is shown as it comes."""
    console().rule(name)
    begin = time.perf_counter()
    lines: list[str] = []
    with subprocess.Popen(
        command(name, folder, quick=quick, data=data),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=importable({**os.environ, "PYTHONUNBUFFERED": "1"}),
    ) as process:
        for line in process.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            lines = [*lines[-19:], line]
    return Run(name, process.returncode, time.perf_counter() - begin, "".join(lines))


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks all``; 1 when a benchmark failed."""
    chosen = args.only.split(",") if args.only else list(ORDER)
    if unknown := [name for name in chosen if name not in ORDER]:
        sys.stderr.write(f"error: --only must be among {', '.join(ORDER)}, got {', '.join(unknown)}\n")
        return 2
    try:
        check_data(args.data)
    except FileNotFoundError as error:
        return refuse(error)
    with tempfile.TemporaryDirectory(prefix="fastload-") as scratch:
        folder = args.json or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        runs = [run_one(name, folder, quick=args.quick, data=args.data) for name in chosen]
        show(runs, folder)
    return int(any(run.code for run in runs))


def show(runs: list[Run], folder: Path) -> None:
    """The summary: what ran, for how long, what failed and with which last words."""
    from rich.table import Table

    table = Table(title="python -m benchmarks all")
    for column in ("benchmark", "", "seconds", "figures"):
        table.add_column(column)
    for run in runs:
        expected = [f"{question}.json" for question in QUESTIONS] if run.name == PEERS else [f"{run.name}.json"]
        written = " ".join(name for name in expected if (folder / name).exists())
        table.add_row(run.name, "right" if run.code == 0 else f"failed ({run.code})", f"{run.seconds:.0f}", written)
    console().print(table)
    for run in runs:
        if run.code:
            console().print(f"{run.name}, at the end:\n{run.tail}", markup=False)
