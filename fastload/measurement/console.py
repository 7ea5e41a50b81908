"""Terminal output of the benchmarks."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@lru_cache(maxsize=1)
def console() -> Console:
    """The terminal that the benchmarks write to."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def refuse(error: Exception) -> int:
    """Print what is wrong with the arguments; returns the exit code."""
    sys.stderr.write(f"error: {error}\n")
    return 2
