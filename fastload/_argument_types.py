"""Types of command-line arguments, for ``argparse``."""

from __future__ import annotations

import argparse
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_PICTURES: Final = (".png", ".svg", ".pdf", ".jpg")


def at_least(least: int, most: float = math.inf) -> Any:
    """Return a type for ``argparse``: an integer of at least ``least``, which is not negative."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            bounds = f">= {least}" if most == math.inf else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"must be an integer {bounds}, got {text!r}")
        return int(text)

    return parse


def positive(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number > 0, got {text!r}")
    return value


def output_file(text: str) -> Path:
    """Parse a writable file, checked before minutes of measuring."""
    path = Path(text)
    with suppress(OSError):
        folder = path.absolute().parent
        if folder.is_dir() and not path.is_dir() and os.access(path if path.exists() else folder, os.W_OK):
            return path
    raise argparse.ArgumentTypeError(f"must be a file that can be written, in a folder that exists, got {text!r}")


def file_in_new_folder(text: str) -> Path:
    """Parse a writable file, whose folder may have to be made first."""
    path = Path(text)
    with suppress(OSError):
        nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
        if (nearest.is_file() if nearest == path else nearest.is_dir()) and os.access(nearest, os.W_OK):
            return path
    raise argparse.ArgumentTypeError(f"must be a file that can be written, got {text!r}")


def picture_file(text: str) -> Path:
    """Parse a writable file in a format that matplotlib draws."""
    path = output_file(text)
    if path.suffix not in _PICTURES:
        raise argparse.ArgumentTypeError(f"must end in one of {', '.join(_PICTURES)}, got {text!r}")
    return path
