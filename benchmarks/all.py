"""Run every benchmark in its own process: ``python -m benchmarks all --json DIR``.

The questions to peers are one process: their contenders are started once. A benchmark that fails keeps no other from
running.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks._checkout import importable
from benchmarks.commands import ORDER, QUESTIONS
from fastload._arguments import check_names
from fastload.bench._data import check_data
from fastload.commands.bench import COMMANDS
from fastload.measurement.console import console

PEERS = "peers"
WITHOUT_DATA = ("slots", "insight", "overhead", "state", "verdicts")  # benchmarks that load no images of the user's


@dataclass(frozen=True, slots=True)
class Run:
    """A benchmark that has run."""

    name: str
    code: int  # exit code
    seconds: float  # duration
    tail: str  # last lines of its output


def command(name: str, folder: Path, *, quick: bool, data: Path | None = None) -> list[str]:
    """The command line of one benchmark; ``data`` goes to those that take it."""
    options = {
        PEERS: ["--json", str(folder)],
        "ladder": ["--json", str(folder / "ladder.json"), "--plot", str(folder / "ladder.png")],
    }.get(name, ["--json", str(folder / f"{name}.json")])
    if data is not None and name not in WITHOUT_DATA:
        options = [*options, "--data", str(data)]
    program = ("fastload", "bench") if name in COMMANDS else ("benchmarks",)
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
    check_names("--only", chosen, ORDER)
    check_data(args.data)
    with tempfile.TemporaryDirectory(prefix="fastload-") as scratch:
        folder = args.json or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        runs = [run_one(name, folder, quick=args.quick, data=args.data) for name in chosen]
        show(runs, folder)
    return int(any(run.code for run in runs))


def show(runs: list[Run], folder: Path) -> None:
    """Print what ran, for how long, and the last lines of failures."""
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
