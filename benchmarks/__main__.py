"""``python -m benchmarks NAME``: picks a benchmark from a table and imports only its module."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from benchmarks.commands import BENCHMARKS
from fastload.commands.cli import dispatch

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark that ``argv`` names (default: the process's own) and return its exit code."""
    return dispatch("python -m benchmarks", BENCHMARKS, argv, "FastLoader beside its peers, and what it costs")


if __name__ == "__main__":
    sys.exit(main())
