"""Terminal output of the benchmarks."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@lru_cache(maxsize=1)
def console() -> Console:
    """The terminal that the benchmarks write to."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)
