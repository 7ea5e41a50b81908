"""A few pages that worker processes and the one that trains share: what each worker has done, and when.

A worker adds to its own column and nobody else's, and the process that trains only reads, so there are no locks. Each
figure is eight aligned bytes; two figures that are read together may be a batch apart.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import weakref
import zlib
from typing import Any, Final

FIGURES: Final = (
    "batches",
    "images",
    "fetch_s",  # by the clock
    "collate_s",
    "looked_s",  # of fetch_s: in batches that were looked at closely
    "busy_s",  # of looked_s: computing
    "queued_s",  # of looked_s: could compute, but had no core
    "decode_s",  # of the samples of the stack: computing, in a codec
    "python_s",  # likewise, elsewhere
)
TEXT_BYTES: Final = 128
_ENTRY: Final = 5  # of the ring: batch + 1, images, fetch began, collate began, was made


class SharedCounters:
    """The shared pages of one iterator. Inherited by forked workers; spawned ones open it through ``/proc``.

    Args:
        workers: Columns; 1 in the main process.
        in_flight: Batches that may be between a worker and the consumer at the same time.
        inherited: Whether the workers are forked.
    """

    def __init__(self, workers: int, in_flight: int, *, inherited: bool = True) -> None:
        self.workers = max(1, workers)
        self.in_flight = max(1, in_flight)
        self._descriptor = -1
        if not inherited and hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("fastload-stats", os.MFD_CLOEXEC)
            self._closer = weakref.finalize(self, os.close, self._descriptor)  # workers that cannot start close nothing
            self._closer.atexit = False
            os.ftruncate(self._descriptor, self._nbytes)
            self._map(self._descriptor)
        else:
            self._map(-1)
        self._pid = os.getpid()

    @property
    def _nbytes(self) -> int:
        return 8 * (len(FIGURES) * self.workers + _ENTRY * self.in_flight) + 2 * TEXT_BYTES * self.workers

    def _map(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, self._nbytes)
        self._bytes = memoryview(self._memory)
        self._ring = len(FIGURES) * self.workers
        self._texts = 8 * (self._ring + _ENTRY * self.in_flight)
        self._figures = self._bytes[: self._texts].cast("d")

    def __reduce__(self) -> Any:
        if self._descriptor < 0:  # no such thing as a shared file here: the worker's figures stay its own
            return _alone, (self.workers, self.in_flight)
        inode = os.fstat(self._descriptor).st_ino
        return _reopened, (self._pid, self._descriptor, inode, self.workers, self.in_flight)

    def total(self, figure: str) -> float:
        """Over all workers."""
        begin = FIGURES.index(figure) * self.workers
        return sum(self._figures[begin : begin + self.workers])

    def add(self, worker: int, figure: int, value: float) -> None:
        """Add to one of the worker's own :data:`FIGURES`."""
        self._figures[figure * self.workers + worker] += value

    def note(self, batch: int, images: int, fetch: float, collate: float, made: float) -> None:
        """Say when a batch's stages began, and when it was made."""
        begin = self._ring + batch % self.in_flight * _ENTRY
        figures = self._figures
        figures[begin + 1] = images
        figures[begin + 2] = fetch
        figures[begin + 3] = collate
        figures[begin + 4] = made
        figures[begin] = batch + 1

    def noted(self, batch: int) -> tuple[int, float, float, float] | None:
        """What :meth:`note` was told of a batch; ``None`` if nothing, or if another has taken its place."""
        begin = self._ring + batch % self.in_flight * _ENTRY
        tag, images, fetch, collate, made = self._figures[begin : begin + _ENTRY]
        return (int(images), fetch, collate, made) if tag == batch + 1 else None

    def write(self, worker: int, line: int, text: str) -> None:
        """Leave one of two short texts."""
        encoded = text.encode("utf-8", "replace")[: TEXT_BYTES - 6]
        record = zlib.crc32(encoded).to_bytes(4, "little") + len(encoded).to_bytes(2, "little") + encoded
        begin = self._texts + (2 * worker + line) * TEXT_BYTES
        self._bytes[begin : begin + len(record)] = record

    def read(self, worker: int, line: int) -> str:
        """A worker's text; nothing if it is being written just now."""
        begin = self._texts + (2 * worker + line) * TEXT_BYTES
        record = bytes(self._bytes[begin : begin + TEXT_BYTES])
        encoded = record[6 : 6 + int.from_bytes(record[4:6], "little")]
        whole = int.from_bytes(record[:4], "little") == zlib.crc32(encoded)
        return encoded.decode("utf-8", "replace") if whole else ""

    def close(self) -> None:
        """Let go of the pages here; workers keep theirs. Idempotent."""
        self._figures.release()
        self._bytes.release()
        with contextlib.suppress(BufferError, ValueError):
            self._memory.close()
        if self._descriptor >= 0:
            self._descriptor = -1
            self._closer()


def _alone(workers: int, in_flight: int) -> SharedCounters:
    return SharedCounters(workers, in_flight)


def _reopened(pid: int, descriptor: int, inode: int, workers: int, in_flight: int) -> SharedCounters:
    """The same pages, in a process that was not forked; pages of its own if they cannot be had."""
    try:
        own = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return _alone(workers, in_flight)
    try:
        if os.fstat(own).st_ino != inode:
            raise OSError(errno.ESTALE, "closed meanwhile")
        board = object.__new__(SharedCounters)
        board.workers, board.in_flight, board._descriptor, board._pid = workers, in_flight, -1, os.getpid()
        board._map(own)
        return board
    except OSError:
        return _alone(workers, in_flight)
    finally:
        os.close(own)
