"""The command ``fastload``: finds the subcommand in a table and imports only its module."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from fastload._version import __version__


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand.

    Attributes:
        module: Has ``add_arguments(parser)`` and ``main(args) -> int``; imported when chosen.
        help: One line.
        extra: The extra with its optional dependencies.
    """

    module: str
    help: str
    extra: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Subcommands one level down."""

    commands: Table
    help: str


Table: TypeAlias = dict[str, "Command | Group"]

BENCH: Final[Table] = {
    "all": Command("fastload.bench.all", "every benchmark in turn, each in a process of its own", "bench"),
    "ceiling": Command("fastload.bench.ceiling", "how fast training would be with a perfect loader", "bench"),
    "cpu": Command("fastload.bench.cpu", "processor seconds per image, beside peers", "bench"),
    "decode": Command(
        "fastload.bench.decode", "JPEG files to training crops on the CPU, beside torchvision and DALI", "bench"
    ),
    "demo": Command("fastload.bench.demo", "FastLoader beside DataLoader on photographs", "bench"),
    "firstbatch": Command("fastload.bench.firstbatch", "time to the first batch, beside peers", "bench"),
    "insight": Command("fastload.bench.insight", "what annotations, stages and windows cost without a tool", "bench"),
    "ladder": Command("fastload.bench.ladder", "the classic ladder of optimizations of a training run", "bench"),
    "loaders": Command("fastload.bench.loaders", "loaders alone against threads, beside peers", "bench"),
    "memory": Command("fastload.bench.memory", "host and GPU memory of loaders, beside peers", "bench"),
    "multigpu": Command("fastload.bench.multigpu", "one GPU and several, under torchrun, beside torch", "bench"),
    "peers": Command("fastload.bench.peers", "several questions to the same contenders", "bench"),
    "photos": Command("fastload.bench.photos", "write a data set of real photographs", "bench"),
    "scaling": Command("fastload.bench.scaling", "loaders alone against the size of images and batches", "bench"),
    "slots": Command("fastload.bench.slots", "pinned shared slots beside pin_memory=True", "bench"),
    "step": Command("fastload.bench.step", "what the device side costs a training step", "bench"),
    "tune": Command("fastload.bench.tune", "num_workers='auto' beside every fixed number of workers", "bench"),
    "verdicts": Command("fastload.bench.verdicts", "whether the verdict names bottlenecks that are planted", "bench"),
    "train": Command("fastload.bench.train", "training fed by each loader, as a share of the ceiling", "bench"),
}

COMMANDS: Final[Table] = {
    "run": Command(
        "fastload.commands.run.script", "run a script with FastLoader in the place of DataLoader, no line changed"
    ),
    "verify": Command("fastload.verify", "compare FastLoader with DataLoader on your data, bit by bit"),
    "profile": Command(
        "fastload.commands.profile", "a training script's bottleneck, from a recording of some steps", "insight"
    ),
    "kernels": Command(
        "fastload.commands.kernels", "what bounds the kernels of one range, by Nsight Compute", "insight"
    ),
    "tune": Command("fastload.commands.tune", "how many workers keep a training step fed", "insight"),
    "bench": Group(BENCH, "measure on this machine"),
    "doctor": Command("fastload.commands.doctor.doctor", "what this machine has and lacks"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: this process's) and return the exit code."""
    try:
        return _dispatch("fastload", COMMANDS, list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return 130


def _dispatch(prog: str, table: Table, argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=prog, description=_describe(prog))
    if table is COMMANDS:
        parser.add_argument("--version", action="version", version=f"fastload {__version__}")
    chosen = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, entry in table.items():
        chosen.add_parser(name, help=entry.help, add_help=False)
    # The first argument that is not an option of this level is the command; the command parses the rest.
    name = parser.parse_args(argv[:1]).command
    entry = table[name]
    if isinstance(entry, Group):
        return _dispatch(f"{prog} {name}", entry.commands, argv[1:])
    return _run(f"{prog} {name}", entry, argv[1:])


def _run(prog: str, command: Command, argv: list[str]) -> int:
    try:
        module = importlib.import_module(command.module)
        parser = argparse.ArgumentParser(prog=prog, description=command.help, allow_abbrev=False)
        module.add_arguments(parser)
        code: int = module.main(parser.parse_args(argv))
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if command.extra is None or missing.partition(".")[0] == "fastload":
            raise
        print(f"{prog} needs {missing}: pip install 'fastload[{command.extra}]'", file=sys.stderr)
        return 1
    return code


def _describe(prog: str) -> str | None:
    return "torch's DataLoader, several times faster" if prog == "fastload" else None
