"""Make memory files to send, and use again those that no one else has.

The kernel takes as long to find a new file's pages as to copy into them four times over. Whether others still have a
file is what it looks at before it grants a lease for writing: none is granted while a file is open elsewhere, in any
process or on its way to one, and a mapping keeps it open. So the receiver says nothing, and may end at any time.
"""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os
import signal
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from torch.utils.data import get_worker_info

from fastload._machine import usable_memory_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAME: Final = "fastload-batch"

KEPT_MAX: Final = 64
"""Files that a process keeps: two batches of 16 images that torch asks for ahead, one in use, one that is made."""

LOOKED_AFTER: Final = 4 * KEPT_MAX
"""Files taken, after which those that were none of them are not kept any more."""

KEPT_SHARE: Final = 1 / 8
"""Of the memory, at most, for those of all workers."""

REUSED_MIN_BYTES: Final = 1 << 18
"""Smaller files are made anew each time, as quickly."""


class MemoryFile(NamedTuple):
    """A file that nothing else refers to.

    Attributes:
        descriptor: To be closed by who has asked for the file.
        memory: Its bytes, ``(nbytes,)``, with anything in them; ``None`` if it is empty and has to be written.
    """

    descriptor: int
    memory: NDArray[np.uint8] | None


class _ReusedFile:
    """A file that is used again.

    Raises:
        OSError: There are no more files, or no memory.
    """

    def __init__(self, nbytes: int) -> None:
        first = _created()
        try:
            self.descriptor = _opened_again(first)
        finally:
            os.close(first)  # which the kernel does not count
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_SETSIG, signal.SIGURG)  # who opens it during a look ends nothing
            self.resize(nbytes)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.is_used = False  # since files were looked after

    def resize(self, nbytes: int) -> None:
        os.posix_fallocate(self.descriptor, 0, nbytes)  # fails where a write to the mapping would end the process
        mapping = mmap.mmap(self.descriptor, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._memory: NDArray[np.uint8] = np.frombuffer(mapping, np.uint8)  # which unmaps it

    @property
    def nbytes(self) -> int:
        return self._memory.size

    def opened(self, nbytes: int) -> MemoryFile:
        self.is_used = True
        return MemoryFile(_opened_again(self.descriptor), self._memory[:nbytes])

    def close(self) -> None:
        os.close(self.descriptor)


class MemoryFiles:
    """Makes memory files, and uses some again that only this process has.

    Thread-safe; belongs to the process that made it.

    Args:
        max_bytes: Of files that are kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: list[_ReusedFile] = []
        self._taken = 0
        self._tells: bool | None = None  # whether the kernel tells who has a file; unknown at first

    def take(self, nbytes: int) -> MemoryFile:
        """Return a file for so many bytes.

        Raises:
            OSError: There are no more files.
        """
        if not REUSED_MIN_BYTES <= nbytes <= self._max_bytes:
            return MemoryFile(_created(), None)
        with self._lock:
            if self._tells is None:
                self._tells = _tells()
            kept = self._free_or_new(nbytes) if self._tells else None
            return MemoryFile(_created(), None) if kept is None else kept.opened(nbytes)

    def _free_or_new(self, nbytes: int) -> _ReusedFile | None:
        """Return the smallest free file that is large enough.

        If there is none, the largest one is resized, or a new one made. ``None`` if more would be kept than may be.
        """
        self._taken += 1
        if self._taken % LOOKED_AFTER == 0:
            self._drop_unused()
        self._kept.sort(key=lambda kept: kept.nbytes)
        at = bisect.bisect_left(self._kept, nbytes, key=lambda kept: kept.nbytes)
        free = next((kept for kept in (*self._kept[at:], *self._kept[:at][::-1]) if _is_free(kept.descriptor)), None)
        if free is not None and free.nbytes >= nbytes:
            return free
        held = sum(kept.nbytes for kept in self._kept)
        if free is not None:
            if held - free.nbytes + nbytes > self._max_bytes:
                self._drop(free)
                return None
            free.resize(nbytes)
            return free
        if len(self._kept) == KEPT_MAX or held + nbytes > self._max_bytes:
            return None
        self._kept.append(_ReusedFile(nbytes))
        return self._kept[-1]

    def _drop_unused(self) -> None:
        """Keep fewer files if fewer are under way than were before."""
        for kept in list(self._kept):
            if not kept.is_used and _is_free(kept.descriptor):
                self._drop(kept)
            kept.is_used = False

    def _drop(self, kept: _ReusedFile) -> None:
        self._kept.remove(kept)
        kept.close()

    def close(self) -> None:
        """Keep no files."""
        while self._kept:
            self._kept.pop().close()


def _created() -> int:
    return os.memfd_create(NAME, os.MFD_CLOEXEC)


def _opened_again(file: int) -> int:
    return os.open(f"/proc/self/fd/{file}", os.O_RDWR | os.O_CLOEXEC)


def _is_free(file: int) -> bool:
    """Whether only this process, by this descriptor, has a file."""
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


def _tells() -> bool:
    """Whether the kernel grants leases for such files only."""
    try:
        first = _created()
        try:
            os.ftruncate(first, mmap.PAGESIZE)
            kept = _opened_again(first)
        finally:
            os.close(first)
        try:
            told = [_is_free(kept)]
            other = _opened_again(kept)
            try:
                told.append(not _is_free(kept))
                mapping = mmap.mmap(other, 0)
            finally:
                os.close(other)
            with mapping:  # which has a descriptor of its own
                told.append(not _is_free(kept))
            told.append(_is_free(kept))
        finally:
            os.close(kept)
    except OSError:
        return False
    return all(told)


of_processes: dict[int, MemoryFiles] = {}
"""This process's, by its id."""


def memory_file(nbytes: int) -> MemoryFile:
    """Return a file of this process, as :meth:`MemoryFiles.take` does."""
    pid = os.getpid()
    if (files := of_processes.get(pid)) is None:
        info = get_worker_info()
        workers = 1 if info is None else info.num_workers
        made = MemoryFiles(int(KEPT_SHARE * usable_memory_bytes()) // max(1, workers))
        files = of_processes.setdefault(pid, made)  # another thread may have been quicker
        for other in [each for each in of_processes if each != pid]:  # of those whom this process was forked from
            of_processes.pop(other).close()
    return files.take(nbytes)
