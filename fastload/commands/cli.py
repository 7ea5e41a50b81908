"""The command ``fastload``: finds the subcommand in a table and imports only its module."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fastload._version import __version__


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand.

    Attributes:
        module: Has ``add_arguments(parser)`` and ``main(args) -> int``; imported when chosen. ``"module:NAME"`` is an
            object of the module that has them.
        help: One line.
        extra: The extra with its optional dependencies.
    """

    module: str
    help: str
    extra: str | None = None

    def load(self) -> Any:
        """Import the module and return what has the two functions."""
        module, _, name = self.module.partition(":")
        imported = importlib.import_module(module)
        return getattr(imported, name) if name else imported


@dataclass(frozen=True, slots=True)
class Group:
    """Subcommands one level down.

    Attributes:
        commands: By name.
        help: One line.
        in_checkout: Names of the commands that only ``python -m benchmarks`` has.
    """

    commands: Table
    help: str
    in_checkout: Sequence[str] = ()


Table: TypeAlias = dict[str, "Command | Group"]

BENCH: Final[Table] = {
    "ceiling": Command("fastload.bench.ceiling", "how fast training would be with a perfect loader", "bench"),
    "decode": Command(
        "fastload.bench.decode", "JPEG files to training crops on the CPU, beside torchvision and DALI", "bench"
    ),
    "demo": Command("fastload.bench.demo", "FastLoader beside DataLoader on photographs", "bench"),
    "ladder": Command("fastload.bench.ladder", "the classic ladder of optimizations of a training run", "bench"),
    "photos": Command("fastload.bench.photos", "write a data set of real photographs", "bench"),
    "recipes": Command("fastload.bench.recipes", "20 well-known training recipes beside torch's DataLoader", "bench"),
    "slots": Command("fastload.bench.slots", "pinned shared slots beside pin_memory=True", "bench"),
    "step": Command("fastload.bench.step", "what the device side costs a training step", "bench"),
}

IN_CHECKOUT: Final = (
    *("all", "cpu", "figures", "firstbatch", "insight", "loaders", "memory"),
    *("multigpu", "peers", "scaling", "train", "tune", "verdicts"),
)
"""Benchmarks of ``python -m benchmarks``: they compare with peers, or measure the project itself."""

COMMANDS: Final[Table] = {
    "run": Command(
        "fastload.commands.run.script", "run a script with FastLoader in the place of DataLoader, no line changed"
    ),
    "verify": Command("fastload.commands.verify", "compare FastLoader with DataLoader on your data, bit by bit"),
    "profile": Command(
        "fastload.commands.profile", "a training script's bottleneck, from a recording of some steps", "insight"
    ),
    "kernels": Command(
        "fastload.commands.kernels", "what bounds the kernels of one range, by Nsight Compute", "insight"
    ),
    "tune": Command("fastload.commands.tune", "how many workers keep a training step fed", "insight"),
    "bench": Group(BENCH, "measure on this machine", IN_CHECKOUT),
    "doctor": Command("fastload.commands.doctor.doctor", "what this machine has and lacks"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: this process's) and return the exit code."""
    return dispatch("fastload", COMMANDS, argv, "torch's DataLoader, several times faster")


def dispatch(prog: str, table: Table, argv: Sequence[str] | None = None, description: str | None = None) -> int:
    """Run the command of ``table`` that ``argv`` names and return the exit code.

    ``argv`` defaults to this process's arguments.
    """
    try:
        return _dispatch(prog, table, list(sys.argv[1:] if argv is None else argv), description)
    except KeyboardInterrupt:
        return 130


def _dispatch(prog: str, table: Table, argv: list[str], description: str | None = None) -> int:
    parser = argparse.ArgumentParser(prog=prog, description=description)
    if table is COMMANDS:
        parser.add_argument("--version", action="version", version=f"fastload {__version__}")
    chosen = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, entry in table.items():
        chosen.add_parser(name, help=entry.help, add_help=False)
    # The first argument that is not an option of this level is the command; the command parses the rest.
    name = parser.parse_args(argv[:1]).command
    entry = table[name]
    if isinstance(entry, Group):
        if argv[1:2] and argv[1] in entry.in_checkout:
            print(f"{prog} {name} {argv[1]} runs from a checkout: python -m benchmarks {argv[1]}", file=sys.stderr)
            return 2
        return _dispatch(f"{prog} {name}", entry.commands, argv[1:])
    return _run(f"{prog} {name}", entry, argv[1:])


def _run(prog: str, command: Command, argv: list[str]) -> int:
    try:
        module = command.load()
        parser = argparse.ArgumentParser(prog=prog, description=command.help, allow_abbrev=False)
        module.add_arguments(parser)
        code: int = module.main(parser.parse_args(argv))
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if command.extra is None or missing.partition(".")[0] in ("fastload", "benchmarks"):
            raise
        print(f"{prog} needs {missing}: pip install 'fastload[{command.extra}]'", file=sys.stderr)
        return 1
    return code
