"""The exception by which a pipeline is refused."""

from __future__ import annotations

from typing import Any


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The pipeline cannot run natively; the message says why."""


def name_of(thing: Any) -> str:
    """Name of a class, function or object's class, for messages."""
    return getattr(thing, "__qualname__", None) or type(thing).__name__
