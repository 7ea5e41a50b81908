"""What the benchmarks show on a terminal."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def extra(module: str) -> Any:
    """Import ``module`` of the ``bench`` extra.

    Raises:
        ModuleNotFoundError: It is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ModuleNotFoundError(
            f"the benchmarks need {package}, which is not installed; pip install 'fastload[bench]'", name=error.name
        ) from error


@lru_cache(maxsize=1)
def console() -> Console:
    """The terminal that the benchmarks write to."""
    created: Console = extra("rich.console").Console(highlight=False, soft_wrap=True)
    return created
