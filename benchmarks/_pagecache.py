"""Measure how much of some files is in the page cache.

A loader that reads from disk is a different benchmark.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def resident_share(files: Sequence[str | Path]) -> float | None:
    """Return the share of the files' pages in the page cache, by mincore(2).

    ``None`` where it is not available.
    """
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError):
        return None
    pages = resident = 0
    for file in files:
        with open(file, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if not size:
                continue
            with mmap.mmap(
                opened.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            ) as view:
                count = -(-size // mmap.PAGESIZE)
                marks = (ctypes.c_ubyte * count)()
                start = ctypes.c_char.from_buffer(view)
                failed = mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), marks)
                del start  # or the mapping could not be closed
                if failed:
                    return None
                pages += count
                resident += sum(mark & 1 for mark in marks)
    return resident / pages if pages else None
