"""Keep the latest states of each worker process in shared memory.

A state is bytes of any length, kept after each of the worker's fetches and at the beginning of its epoch. Only the
worker writes there, over the oldest of its own, so neither process waits; the training process reads one only when it
is asked for.
"""

from __future__ import annotations

import os
import struct
import tempfile
from dataclasses import dataclass
from typing import Any, Final

from fastload._files import open_of_process
from fastload.torch_workers.signals import Finalizer

_HEAD: Final = struct.Struct("<4Q")
_PLACE_BYTES: Final = 1 << 32  # from one state to the next; what is not written takes no memory


@dataclass(frozen=True, slots=True)
class KeptState:
    """What a worker has kept."""

    epoch: int  # number of the worker's epoch, from 1
    number: int  # number of the fetch in that epoch, from 1; 0 at its beginning
    digest: int  # checksum of the fetch's indices
    state: bytes


class KeptStates:
    """The file in which an iterator's workers keep their states.

    Forked workers inherit it; spawned ones open it through ``/proc``. It has those of each worker's ``latest`` fetches
    and of the beginning of its epoch.
    """

    def __init__(self, workers: int, latest: int) -> None:
        if hasattr(os, "memfd_create"):
            self._open(os.memfd_create("fastload-states", os.MFD_CLOEXEC), workers, latest)
        else:
            with tempfile.TemporaryFile() as file:
                self._open(os.dup(file.fileno()), workers, latest)

    def _open(self, descriptor: int, workers: int, latest: int) -> None:
        self.workers, self.latest = workers, latest
        self.begun = 1  # epochs that the training process has asked for
        self._descriptor, self._pid = descriptor, os.getpid()
        self._closer = Finalizer(self, os.close, descriptor)
        self._closer.atexit = False

    def __reduce__(self) -> Any:
        return _reopened, (self._pid, self._descriptor, os.fstat(self._descriptor).st_ino, self.workers, self.latest)

    def keep(self, worker: int, kept: KeptState) -> None:
        """Keep a state in the place of the worker's oldest.

        Raises:
            ValueError: It is too long.
        """
        if _HEAD.size + len(kept.state) > _PLACE_BYTES:
            raise ValueError(f"a state must have less than {_PLACE_BYTES} bytes, got {len(kept.state)}")
        begin = self._place(worker, kept.number)
        head = _HEAD.pack(kept.epoch, kept.number, kept.digest, len(kept.state))
        os.pwrite(self._descriptor, bytes(_HEAD.size), begin)  # invalid while it is written
        left = memoryview(kept.state)
        while left:
            left = left[os.pwrite(self._descriptor, left, begin + _HEAD.size + len(kept.state) - len(left)) :]
        os.pwrite(self._descriptor, head, begin)

    def find(self, worker: int, epoch: int, number: int) -> KeptState | None:
        """Return a state; ``None`` if it is not kept (yet, or any more)."""
        found = self._read(self._place(worker, number))
        return found if found is not None and (found.epoch, found.number) == (epoch, number) else None

    def last(self, worker: int) -> KeptState | None:
        """Return the latest state of a worker; ``None`` if it has none."""
        found = [self._read(self._place(worker, number)) for number in range(self.latest + 1)]
        return max(filter(None, found), key=lambda kept: (kept.epoch, kept.number), default=None)

    def _read(self, begin: int) -> KeptState | None:
        head = os.pread(self._descriptor, _HEAD.size, begin)
        if len(head) < _HEAD.size or not any(head):
            return None
        epoch, number, digest, length = _HEAD.unpack(head)
        parts: list[bytes] = []
        while length > (got := sum(map(len, parts))):
            part = os.pread(self._descriptor, length - got, begin + _HEAD.size + got)
            if not part:
                return None
            parts.append(part)
        if os.pread(self._descriptor, _HEAD.size, begin) != head:  # written meanwhile
            return None
        return KeptState(epoch, number, digest, b"".join(parts))

    def _place(self, worker: int, number: int) -> int:
        place = 0 if not number else 1 + number % self.latest
        return (worker * (self.latest + 1) + place) * _PLACE_BYTES

    def close(self) -> None:
        """Close the file in this process; workers keep theirs. Idempotent."""
        self._closer()


def _reopened(pid: int, descriptor: int, inode: int, workers: int, latest: int) -> KeptStates | None:
    """Open the file in a spawned process; ``None`` if it cannot be."""
    try:
        own = open_of_process(pid, descriptor, inode)
    except OSError:
        return None
    states = object.__new__(KeptStates)
    states._open(own, workers, latest)
    return states
