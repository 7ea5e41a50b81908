"""Import optional packages when a test first uses them.

What a process has imported, its forks copy.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


class _Module:
    """Stands for a module until something of it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # pytest looks at all names of a file of tests
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def needed(*packages: str) -> None:
    """Skip a file of tests, where it calls this, unless all packages are installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)


def module(name: str) -> Any:
    """Return a module; skip the file of tests if its package is not installed."""
    needed(name.partition(".")[0])
    return _Module(name)
