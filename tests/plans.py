"""What a plan says, for tests that look for a part of it."""

from __future__ import annotations

from typing import Any


def text_of(loader: Any) -> str:
    """A loader's plan as one line."""
    return " ".join(str(loader.plan).split())
