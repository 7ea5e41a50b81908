"""The command ``fastload``: finds the subcommand in a table and imports only its module."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from fastload._install import with_extra
from fastload._version import __version__


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand.

    Attributes:
        module: Module with ``add_arguments(parser)`` and ``main(args) -> int``, imported when chosen; or, as
            ``"module:NAME"``, an object of a module that has them.
        help: One line.
        extra: The extra with its optional dependencies.
        needs: The optional packages, and whether given arguments need them.
        arguments: ``"module:function"`` that declares the arguments, where ``module`` imports torch.
    """

    module: str
    help: str
    extra: str | None = None
    needs: Mapping[str, Callable[[argparse.Namespace], object]] = field(default_factory=dict)
    arguments: str | None = None

    def load(self) -> Any:
        """Import the module and return what has the function ``main``."""
        return _import(self.module)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        declare = self.load().add_arguments if self.arguments is None else _import(self.arguments)
        declare(parser)

    def missing(self, args: argparse.Namespace) -> list[str]:
        """The packages that these arguments need and that are not installed."""
        return [name for name, wanted in self.needs.items() if wanted(args) and importlib.util.find_spec(name) is None]


def _import(place: str) -> Any:
    module, _, name = place.partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, name) if name else imported


def _always(args: argparse.Namespace) -> bool:
    return True


def _with(option: str) -> Callable[[argparse.Namespace], object]:
    return lambda args: getattr(args, option)


def _without(option: str) -> Callable[[argparse.Namespace], object]:
    return lambda args: not getattr(args, option)


@dataclass(frozen=True, slots=True)
class Group:
    """Subcommands one level down.

    Attributes:
        commands: Commands by name.
        help: One line.
        in_checkout: Names of the commands that only ``python -m benchmarks`` has.
    """

    commands: Table
    help: str
    in_checkout: Sequence[str] = ()


Table: TypeAlias = dict[str, "Command | Group"]

_DISTRIBUTIONS: Final = {"skimage": "scikit-image"}
"""Packages whose distribution has another name."""


def _bench(name: str, help: str, needs: Mapping[str, Callable[[argparse.Namespace], object]]) -> Command:
    return Command(
        f"fastload.bench.{name}", help, "bench", {"rich": _always, **needs}, f"fastload.bench.arguments:{name}"
    )


_PHOTOS: Final = {"skimage": _without("data")}

BENCH: Final[Table] = {
    "ceiling": _bench(
        "ceiling",
        "how fast training would be with a perfect loader",
        {"skimage": lambda args: not (args.data or args.factory)},
    ),
    "decode": _bench("decode", "JPEG files to training crops on the CPU, beside torchvision and DALI", _PHOTOS),
    "demo": _bench("demo", "FastLoader beside DataLoader on photographs", {**_PHOTOS, "matplotlib": _always}),
    "ladder": _bench(
        "ladder",
        "the classic ladder of optimizations of a training run",
        {**_PHOTOS, "matplotlib": _with("plot")},
    ),
    "photos": _bench("photos", "write a data set of real photographs", {"skimage": _always}),
    "recipes": _bench("recipes", "20 well-known training recipes beside torch's DataLoader", _PHOTOS),
    "slots": _bench("slots", "pinned shared slots beside pin_memory=True", {}),
    "step": _bench("step", "what the device side costs a training step", _PHOTOS),
}

IN_CHECKOUT: Final = (
    *("all", "cpu", "energy", "figures", "firstbatch", "gpudecode", "insight", "loaders", "memory"),
    *("multigpu", "onecore", "peers", "scaling", "sources", "state", "train", "tune", "verdicts"),
)
"""Benchmarks of ``python -m benchmarks``: they compare with peers, or measure the project itself."""

_TABLES: Final = {"rich": _without("json"), "matplotlib": _with("png")}

COMMANDS: Final[Table] = {
    "run": Command(
        "fastload.commands.run.script", "run a script with FastLoader in the place of DataLoader, no line changed"
    ),
    "index": Command("fastload.commands.index", "note where decoding can begin within JPEG files, ahead of time"),
    "verify": Command("fastload.commands.verify", "compare FastLoader with DataLoader on your data, bit by bit"),
    "profile": Command(
        "fastload.commands.profile",
        "a training script's bottleneck, from a recording of some steps",
        "insight",
        _TABLES,
    ),
    "kernels": Command(
        "fastload.commands.kernels", "what bounds the kernels of one range, by Nsight Compute", "insight", _TABLES
    ),
    "tune": Command(
        "fastload.commands.tune", "how many workers keep a training step fed", "insight", {"rich": _always}
    ),
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
        code = _dispatch(prog, table, list(sys.argv[1:] if argv is None else argv), description)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe has seen enough; Python would say so at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def _dispatch(prog: str, table: Table, argv: list[str], description: str | None = None) -> int:
    parser = argparse.ArgumentParser(prog=prog, description=description)
    if table is COMMANDS:
        parser.add_argument("--version", action="version", version=f"fastload {__version__}")
    chosen = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, entry in table.items():
        chosen.add_parser(name, help=entry.help, add_help=False)
    if not argv:  # a stranger's first try
        parser.print_help(sys.stderr)
        parser.exit(2, f"\n{prog}: error: the following arguments are required: command\n")
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
        parser = argparse.ArgumentParser(prog=prog, description=command.help, allow_abbrev=False)
        command.add_arguments(parser)
        args = parser.parse_args(argv)
        if missing := command.missing(args):
            return _lacks(prog, command, missing)
        code: int = command.load().main(args)
    except ModuleNotFoundError as error:
        missing = [error.name or ""]
        if command.extra is None or missing[0].partition(".")[0] in ("fastload", "benchmarks"):
            raise
        return _lacks(prog, command, missing)
    return code


def _lacks(prog: str, command: Command, missing: Sequence[str]) -> int:
    names = ", ".join(_DISTRIBUTIONS.get(name, name) for name in missing)
    print(f"{prog} needs {names}; {with_extra(command.extra or '')}", file=sys.stderr)
    return 1
