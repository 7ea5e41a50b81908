"""Arguments of the command line: types, defaults, and ``module:factory``."""

from __future__ import annotations

import argparse
import importlib
import math
import os
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.utils.data import DataLoader

_PICTURES: Final = (".png", ".svg", ".pdf", ".jpg")


class UsageError(ValueError):
    """An argument or a file of the user's cannot be used.

    Commands print the message in place of a traceback.
    """


@dataclass(frozen=True, slots=True)
class Sized:
    """A default that ``--quick`` makes small.

    Attributes:
        full: Value without ``--quick``.
        quick: Value with it.
    """

    full: Any
    quick: Any

    def __str__(self) -> str:
        shown = (
            ",".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in (self.full, self.quick)
        )
        return "; if quick: ".join(shown)


def settled(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with one of the two values in the place of each :class:`Sized`."""
    chosen = {
        name: (value.quick if args.quick else value.full) if isinstance(value, Sized) else value
        for name, value in vars(args).items()
    }
    return argparse.Namespace(**chosen)


def check_names(option: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise :class:`UsageError` unless all names that an option was given are known."""
    known = list(known)
    for name in given:
        if name not in known:
            raise UsageError(f"{option} must be one of {', '.join(map(repr, known))}, got {name!r}")


def at_least(least: int, most: float = math.inf) -> Any:
    """Return a type for ``argparse``: an integer of at least ``least``, which is not negative."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            bounds = f">= {least}" if most == math.inf else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"must be an integer {bounds}, got {text!r}")
        return int(text)

    return parse


def positive(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number > 0, got {text!r}")
    return value


def output_file(text: str) -> Path:
    """Parse a writable file, checked before minutes of measuring."""
    path = Path(text)
    with suppress(OSError):
        folder = path.absolute().parent
        if folder.is_dir() and not path.is_dir() and os.access(path if path.exists() else folder, os.W_OK):
            return path
    raise argparse.ArgumentTypeError(f"must be a file that can be written, in a folder that exists, got {text!r}")


def file_in_new_folder(text: str) -> Path:
    """Parse a writable file, whose folder may have to be made first."""
    path = Path(text)
    with suppress(OSError):
        nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
        if (nearest.is_file() if nearest == path else nearest.is_dir()) and os.access(nearest, os.W_OK):
            return path
    raise argparse.ArgumentTypeError(f"must be a file that can be written, got {text!r}")


def picture_file(text: str) -> Path:
    """Parse a writable file in a format that matplotlib draws."""
    path = output_file(text)
    if path.suffix not in _PICTURES:
        raise argparse.ArgumentTypeError(f"must end in one of {', '.join(_PICTURES)}, got {text!r}")
    return path


class FactoryError(UsageError):
    """The factory does not exist, raises, or returns an object of the wrong type."""


def add_factory_argument(
    parser: argparse.ArgumentParser,
    *,
    optional: bool = False,
    metavar: str = "module:factory",
    help: str = "a function that makes the loader, or a pair (loader, step): step(batch) trains on one batch",
) -> None:
    """Declare ``module:factory`` and its arguments."""
    parser.add_argument("factory", metavar=metavar, nargs="?" if optional else None, help=help)
    parser.add_argument(
        "--arg", metavar="VALUE", action="append", default=[], help="an argument of it, as a string; may be given again"
    )


def call_factory(name: str, arguments: Sequence[str] = ()) -> tuple[DataLoader[Any], Callable[[Any], object] | None]:
    """Import a factory, call it, and return its loader and optional step.

    Modules are also found in the current folder.

    Raises:
        FactoryError: ``name`` is not ``module:function``, no function, or it raises or returns another type.
    """
    module_name, colon, function = name.partition(":")
    if not colon or not module_name or not function:
        raise FactoryError(f"the factory must be given as module:function, got {name!r}")
    if module_name.endswith(".py"):
        raise FactoryError(f"the module must be given without .py, as {module_name[:-3]}:{function}, got {name!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    given, sys.argv = sys.argv, [module_name]  # fastload's own arguments are no program's
    try:
        made = _called(name, module_name, function, arguments)
    finally:
        sys.argv = given
    return _loader_and_step(name, made)


def _called(name: str, module_name: str, function: str, arguments: Sequence[str]) -> Any:
    try:
        factory = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise FactoryError(f"there must be a module {module_name} to import, but {error}") from error
    found: Any = factory
    for part in function.split("."):
        if not hasattr(found, part):
            raise FactoryError(f"module {module_name} must have a function {function}, but it has none")
        found = getattr(found, part)
    if not callable(found):
        raise FactoryError(f"{name} must be a function, got {type(found).__name__}")
    try:
        return found(*arguments)
    except Exception as error:
        traceback.print_exc()  # shows where the user's code failed
        raise FactoryError(f"{name} raised {type(error).__name__}: {error}") from error


def _loader_and_step(name: str, made: Any) -> tuple[DataLoader[Any], Callable[[Any], object] | None]:
    loader, step = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    from torch.utils.data import DataLoader  # here: fastload run replaces it where a module holds it

    several = made if isinstance(made, tuple | list) else made.values() if isinstance(made, dict) else ()
    if len(several) > 1 and all(isinstance(each, DataLoader) for each in several):
        raise FactoryError(f"{name} must return one DataLoader, got {len(several)}; name a function that returns one")
    if not isinstance(loader, DataLoader):
        raise FactoryError(f"{name} must return a DataLoader, or (DataLoader, step), got {type(made).__name__}")
    if step is not None and not callable(step):
        raise FactoryError(f"{name} must return a step that can be called with a batch, got {type(step).__name__}")
    return loader, step
