"""Where the benchmarks lie, for the processes that they start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def importable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` with the checkout at the end of ``PYTHONPATH``."""
    path = [*filter(None, [environment.get("PYTHONPATH")]), str(ROOT)]
    return {**environment, "PYTHONPATH": os.pathsep.join(path)}
