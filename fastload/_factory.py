"""``module:factory`` on the command line: a user's function that makes a loader."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from torch.utils.data import DataLoader


class FactoryError(ValueError):
    """The factory does not exist, raises, or returns an object of the wrong type."""


def add_factory_argument(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Declare ``module:factory`` and its arguments."""
    parser.add_argument(
        "factory",
        metavar="module:factory",
        nargs="?" if optional else None,
        help="a function that makes the loader, or a pair (loader, step): step(batch) trains on one batch",
    )
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
        made = found(*arguments)
    except Exception as error:
        traceback.print_exc()  # shows where the user's code failed
        raise FactoryError(f"{name} raised {type(error).__name__}: {error}") from error
    return _loader_and_step(name, made)


def _loader_and_step(name: str, made: Any) -> tuple[DataLoader[Any], Callable[[Any], object] | None]:
    loader, step = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    from torch.utils.data import DataLoader  # here: fastload run replaces it where a module holds it

    if not isinstance(loader, DataLoader):
        raise FactoryError(f"{name} must return a DataLoader, or (DataLoader, step), got {type(made).__name__}")
    if step is not None and not callable(step):
        raise FactoryError(f"{name} must return a step that can be called with a batch, got {type(step).__name__}")
    return loader, step
