"""Counters and timestamps in memory shared by the workers and the training process.

Each worker writes only its own column and the training process only reads, so there are no locks. Each figure is eight
aligned bytes; two figures read together may be a batch apart.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import zlib
from typing import TYPE_CHECKING, Any, Final

from fastload._files import open_of_process
from fastload.torch_workers.signals import Finalizer

if TYPE_CHECKING:
    from fastload.memory.kept_states import KeptStates

FIGURES: Final = (
    "batches",
    "images",
    "fetch_s",  # wall time
    "collate_s",
    "sampled_s",  # part of fetch_s: in batches whose fetch was divided
    "busy_s",  # part of sampled_s: computing
    "queued_s",  # part of sampled_s: ready to compute, but without a core
    "decode_s",  # by stack samples: computing in a codec
    "python_s",  # by stack samples: computing elsewhere
    "samples",  # number of these
    "deferred",  # images whose pixels were not made at once
    "looked_at",  # of these: calls for which their pixels were made before the batch was sent
    "painted_s",  # part of busy_s: making their pixels when it was
)
TEXT_BYTES: Final = 256
_TEXTS: Final = 4  # of a worker: where it waits and computes most, what looks at pixels, why nothing is native any more
_ENTRY: Final = 5  # doubles per ring entry: batch + 1, images, start of fetch, start of collate, end


class SharedCounters:
    """The shared memory of one iterator.

    Forked workers inherit it; spawned ones open it through ``/proc``.

    Args:
        workers: Number of columns; 0 is one in the main process, which shares no memory.
        in_flight: Most batches between the workers and the consumer at a time.
        inherited: Whether the workers are forked.
        states: Where they keep their states; closed with the counters.
        sampled: Whether the workers' stacks are sampled.
    """

    def __init__(
        self,
        workers: int,
        in_flight: int,
        *,
        inherited: bool = True,
        states: KeptStates | None = None,
        sampled: bool = True,
    ) -> None:
        self.states = states
        self.sampled = sampled
        self.workers = max(1, workers)
        self.in_flight = max(1, in_flight)
        self._descriptor = -1
        if not inherited and hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("fastload-stats", os.MFD_CLOEXEC)
            self._closer = Finalizer(self, os.close, self._descriptor)  # if workers fail to start, no close()
            self._closer.atexit = False
            os.ftruncate(self._descriptor, self._nbytes)
            self._map(self._descriptor)
        elif workers:
            self._map(-1)
        else:
            self._view(bytearray(self._nbytes))
        self._pid = os.getpid()

    @property
    def _nbytes(self) -> int:
        return 8 * (len(FIGURES) * self.workers + _ENTRY * self.in_flight) + _TEXTS * TEXT_BYTES * self.workers

    def _map(self, descriptor: int) -> None:
        self._view(mmap.mmap(descriptor, self._nbytes))

    def _view(self, memory: mmap.mmap | bytearray) -> None:
        self._memory = memory
        self._bytes = memoryview(memory)
        self._ring = len(FIGURES) * self.workers
        self._texts = 8 * (self._ring + _ENTRY * self.in_flight)
        self._figures = self._bytes[: self._texts].cast("d")

    def __reduce__(self) -> Any:
        if self._descriptor < 0:  # no shared file here: the worker's figures stay its own
            return _alone, (self.workers, self.in_flight, self.states)
        inode = os.fstat(self._descriptor).st_ino
        about = self.workers, self.in_flight, self.states, self.sampled
        return _reopened, (self._pid, self._descriptor, inode, *about)

    def total(self, figure: str) -> float:
        """Sum of a figure over all workers."""
        begin = FIGURES.index(figure) * self.workers
        return sum(self._figures[begin : begin + self.workers])

    def add(self, worker: int, figure: int, value: float) -> None:
        """Add to one of the worker's :data:`FIGURES`."""
        self._figures[figure * self.workers + worker] += value

    def note(self, batch: int, images: int, fetch: float, collate: float, made: float) -> None:
        """Record when a batch's stages began and when it was complete."""
        begin = self._ring + batch % self.in_flight * _ENTRY
        figures = self._figures
        figures[begin + 1] = images
        figures[begin + 2] = fetch
        figures[begin + 3] = collate
        figures[begin + 4] = made
        figures[begin] = batch + 1

    def noted(self, batch: int) -> tuple[int, float, float, float] | None:
        """A batch's entry from :meth:`note`; ``None`` if absent or overwritten."""
        begin = self._ring + batch % self.in_flight * _ENTRY
        tag, images, fetch, collate, made = self._figures[begin : begin + _ENTRY]
        return (int(images), fetch, collate, made) if tag == batch + 1 else None

    def write(self, worker: int, line: int, text: str) -> None:
        """Write one of the worker's texts; a long one is cut."""
        encoded, most = text.encode("utf-8", "replace"), TEXT_BYTES - 6
        if len(encoded) > most:
            encoded = encoded[: most - 4].decode("utf-8", "ignore").encode() + b" ..."
        record = zlib.crc32(encoded).to_bytes(4, "little") + len(encoded).to_bytes(2, "little") + encoded
        begin = self._texts + (_TEXTS * worker + line) * TEXT_BYTES
        self._bytes[begin : begin + len(record)] = record

    def read(self, worker: int, line: int) -> str:
        """A worker's text; empty while it is being written."""
        begin = self._texts + (_TEXTS * worker + line) * TEXT_BYTES
        record = bytes(self._bytes[begin : begin + TEXT_BYTES])
        encoded = record[6 : 6 + int.from_bytes(record[4:6], "little")]
        whole = int.from_bytes(record[:4], "little") == zlib.crc32(encoded)
        return encoded.decode("utf-8", "replace") if whole else ""

    def close(self) -> None:
        """Unmap the memory in this process; workers keep theirs. Idempotent."""
        if self.states is not None:
            self.states.close()
        self._figures.release()
        self._bytes.release()
        if isinstance(self._memory, mmap.mmap):
            with contextlib.suppress(BufferError, ValueError):
                self._memory.close()
        if self._descriptor >= 0:
            self._descriptor = -1
            self._closer()


def _alone(workers: int, in_flight: int, states: KeptStates | None) -> SharedCounters:
    return SharedCounters(workers, in_flight, states=states)


def _reopened(
    pid: int, descriptor: int, inode: int, workers: int, in_flight: int, states: KeptStates | None, sampled: bool
) -> SharedCounters:
    """The same memory in a spawned process; private memory if it cannot be opened."""
    try:
        own = open_of_process(pid, descriptor, inode)
    except OSError:
        return _alone(workers, in_flight, states)
    try:
        shared = object.__new__(SharedCounters)
        shared.states, shared.sampled = states, sampled
        shared.workers, shared.in_flight, shared._descriptor, shared._pid = workers, in_flight, -1, os.getpid()
        shared._map(own)
        return shared
    except OSError:
        return _alone(workers, in_flight, states)
    finally:
        os.close(own)
