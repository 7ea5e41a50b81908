"""Make forks of this process cheap."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import linecache
import re
import sys
from pathlib import Path

_MADV_COLLAPSE = 25  # Linux 6.1; works whatever the setting of transparent huge pages is
_WRITABLE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *(?:\[heap\])?$")


def into_huge_pages() -> None:
    """Move this process's own memory into huge pages, where the kernel can.

    A fork copies a page table entry for every page: for the 500 MB of a process with torch and all tests, it takes
    20 ms, and its end as long. With huge pages they take a third.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            if found := _WRITABLE.match(line):
                begin, end = (int(number, 16) for number in found.groups())
                madvise(begin, end - begin, _MADV_COLLAPSE)


def freeze() -> None:
    """Freeze all objects, so that later garbage collections and forked processes skip them.

    Else a collection takes half a second once tests have imported what they need, as long as many tests.
    """
    gc.collect()
    gc.freeze()


def read_sources() -> None:
    """Read the sources of what starts workers.

    Torch formats the stack when it seeds a device that is not initialized; each worker would read ten files for that,
    and copy the pages where it keeps them.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(("fastload.", "multiprocessing.", "torch.utils.data.")):
            file = getattr(module, "__file__", None) or ""
            if file.endswith(".py"):
                linecache.getlines(file)
