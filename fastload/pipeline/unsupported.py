"""How the readers of datasets and transforms say no."""

from __future__ import annotations

from typing import Any


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """Why a pipeline cannot be supported natively."""


def name_of(thing: Any) -> str:
    """As the user knows it."""
    return getattr(thing, "__qualname__", None) or type(thing).__name__
