"""The command ``fastload``: finds the subcommand in a table and imports only its module."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from fastload._arguments import UsageError, settled
from fastload._version import __version__, with_extra

Needs: TypeAlias = Mapping[str, Callable[[argparse.Namespace], object]]
"""Optional packages, and whether given arguments need them."""


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand."""

    # module with add_arguments(parser) and main(args) -> int, imported when chosen; or, as "module:NAME", an object of
    # a module that has them
    module: str
    help: str  # one line
    extra: str | None = None  # the extra with its optional dependencies
    needs: Needs = field(default_factory=dict)  # optional packages of given arguments
    # functions that declare the arguments, where `module` imports torch
    arguments: Sequence[Callable[[argparse.ArgumentParser], object]] = ()

    def load(self) -> Any:
        """Import the module and return what has the function ``main``."""
        module, _, name = self.module.partition(":")
        imported = importlib.import_module(module)
        return getattr(imported, name) if name else imported

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        for declare in self.arguments or [self.load().add_arguments]:
            declare(parser)

    def parse(self, prog: str, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments; exits where they are wrong."""
        parser = argparse.ArgumentParser(prog=prog, description=self.help, allow_abbrev=False)
        self.add_arguments(parser)
        return settled(parser.parse_args(argv))

    def missing(self, args: argparse.Namespace) -> list[str]:
        """The packages that these arguments need and that are not installed."""
        return [name for name, wanted in self.needs.items() if wanted(args) and importlib.util.find_spec(name) is None]


def always(args: argparse.Namespace) -> bool:
    """Whether a package is needed that is needed whatever the arguments."""
    return True


def not_given(option: str) -> Callable[[argparse.Namespace], object]:
    """Say whether an option is not given."""
    return lambda args: not getattr(args, option, None)


@dataclass(frozen=True, slots=True)
class Group:
    """Subcommands one level down."""

    module: str  # module with the table COMMANDS, and in IN_CHECKOUT names that only python -m benchmarks has
    help: str  # one line

    def load(self) -> Any:
        """Import the module."""
        return importlib.import_module(self.module)


Table: TypeAlias = dict[str, "Command | Group"]
_DISTRIBUTIONS: Final = {"skimage": "scikit-image"}  # packages whose distribution has another name
_TABLES: Final[Needs] = {"rich": not_given("json"), "matplotlib": operator.attrgetter("png")}

COMMANDS: Final[Table] = {
    "run": Command(
        "fastload.commands.run.script", "run a script with FastLoader in the place of DataLoader, no line changed"
    ),
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
    "tune": Command("fastload.commands.tune", "how many workers keep a training step fed", "insight", {"rich": always}),
    "bench": Group("fastload.commands.bench", "measure on this machine"),
    "check": Command("fastload.commands.check.check", "read every image once and name the broken and odd ones"),
    "doctor": Command("fastload.commands.doctor.doctor", "what this machine has and lacks"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: this process's) and return the exit code."""
    return dispatch("fastload", COMMANDS, argv, "torch's DataLoader, several times faster")


def dispatch(prog: str, table: Table, argv: Sequence[str] | None = None, description: str | None = None) -> int:
    """Run the command that ``argv`` (default: this process's) names; return the exit code."""
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
        group = entry.load()
        if argv[1:2] and argv[1] in group.IN_CHECKOUT:
            print(f"{prog} {name} {argv[1]} runs from a checkout: python -m benchmarks {argv[1]}", file=sys.stderr)
            return 2
        return _dispatch(f"{prog} {name}", group.COMMANDS, argv[1:])
    return _run(f"{prog} {name}", entry, argv[1:])


def _run(prog: str, command: Command, argv: list[str]) -> int:
    try:
        args = command.parse(prog, argv)
        if missing := command.missing(args):
            return _lacks(prog, command, missing)
        code: int = command.load().main(args)
    except UsageError as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2
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
