"""Keep JPEG files in a GPU's memory after their first visit.

All loaders of a process share them. A later visit asks the file system for a file's version (size, times and inode) and
reads nothing. The memory is taken in parts, and given back a part at a time, the oldest first.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
import warnings
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from fastload import _core
from fastload.stats.pace import Hold
from fastload.torch_workers.signals import Finalizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastload.options import DeviceCacheBytes

PART_BYTES: Final = 256 << 20
"""Bytes that are taken, and given back, at a time."""

SHARE: Final = 0.5
"""Largest share, by ``"auto"``, of what was free without these files."""

SPARE: Final = 1 / 16
"""Share of the device's memory that stays free; below it, files are given up."""

_HOLD_MIN_S: Final = 10  # between a failure and the next try, at first
_HOLD_MAX_S: Final = 3600
_LOOK_S: Final = 0.1  # between two looks at the free memory, each of which asks the driver


class Memory(Protocol):
    """A device's memory."""

    def info(self) -> tuple[int, int]:
        """Return the free bytes, and all bytes."""
        ...

    def take(self, nbytes: int) -> int | None:
        """Return the address of so many bytes, a multiple of 16, or ``None``."""
        ...

    def free(self, address: int) -> None:
        """Free them, once no kernel uses them."""
        ...


class CudaMemory:
    """Memory of a CUDA device, beside torch's allocator, which would hold on to it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def info(self) -> tuple[int, int]:  # noqa: D102
        return torch.cuda.mem_get_info(self._device)

    def take(self, nbytes: int) -> int | None:  # noqa: D102
        driver = _driver()
        with torch.cuda.device(self._device):
            error, address = driver.cuMemAlloc(nbytes)
        return int(address) if error == driver.CUresult.CUDA_SUCCESS else None

    def free(self, address: int) -> None:  # noqa: D102
        driver = _driver()
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            (error,) = driver.cuMemFree(address)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise OSError(f"cuMemFree: {error.name}")


def _driver() -> Any:
    return importlib.import_module("cuda.bindings.driver")  # typed in some versions only


@dataclass(slots=True)
class _Part:
    memory: _core.KeptMemory
    nbytes: int
    used: int = 0


class FilesOnDevice:
    """The files in one device's memory. Thread-safe.

    Nothing of it raises; what fails is tried again later.

    Args:
        memory: The device's.
        settle_s: Seconds since its last change after which a file is kept, if other than the core's.
        clock: Returns the time in seconds.

    Attributes:
        files: The core's table of them.
    """

    def __init__(
        self, memory: Memory, settle_s: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.files = _core.KeptFiles() if settle_s is None else _core.KeptFiles(settle_s)
        self._memory = memory
        self._clock = clock
        self._lock = threading.Lock()
        self._parts: list[_Part] = []
        self._leaving: list[_Part] = []  # which batches may still use
        self._most: DeviceCacheBytes = 0
        self._looked_at = -_LOOK_S
        self._hold = Hold(_HOLD_MIN_S, _HOLD_MAX_S)  # after a failure
        self._lacked = 1  # bytes that there was no room for
        Finalizer(self, _free_all, memory, os.getpid(), self._parts, self._leaving).atexit = False

    def allow(self, most: DeviceCacheBytes) -> None:
        """Let these files take so much; the largest of all limits counts."""
        with self._lock:
            if self._most != "auto":
                self._most = most if most == "auto" else max(self._most, most)
            self._looked_at = -_LOOK_S
        self.look()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that they take."""
        return sum(part.nbytes for part in (*self._parts, *self._leaving))

    def place(self, staging: _core.Staging) -> None:
        """Take memory for what a batch has to keep, if there is room.

        Called before the batch is finished.
        """
        self.look()
        nbytes = staging.keep_bytes
        if not nbytes:
            return
        with self._lock, self._failing_softly():
            part = self._parts[-1] if self._parts else None
            if part is None or part.used + nbytes > part.nbytes:
                part = self._grow(nbytes)
            if part is not None:
                staging.keep_in(part.memory, part.memory.address + part.used)
                part.used += nbytes

    def look(self) -> None:
        """Give memory back if others need it; else see whether more may be taken.

        Called for each batch; looks ten times a second at most.
        """
        if self._clock() - self._looked_at < _LOOK_S:
            return
        with self._lock, self._failing_softly():
            self._looked_at = self._clock()
            free, total = self._memory.info()
            lacking = int(SPARE * total) - free - sum(part.nbytes for part in self._leaving)
            while lacking > 0 and self._parts:
                lacking -= self._parts[0].nbytes
                self._forget()
            left = self._parts[-1].nbytes - self._parts[-1].used if self._parts else 0
            self.files.wants = max(left, self._room()) >= self._lacked
        self._free_left()

    def give_back(self) -> bool:
        """Give all memory back, and take no more for a while.

        What batches still use is given back once they do not.

        Returns:
            Whether there is less than before, or will be.
        """
        with self._lock:
            had_any = bool(self._parts or self._leaving)
            self._fail()
            while self._parts:
                self._forget()
        self._free_left()
        return had_any

    @contextlib.contextmanager
    def _failing_softly(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - driver and bindings each have their own
            again = bool(self._hold.until)
            self._fail()
            if not again:
                with contextlib.suppress(RuntimeWarning):  # the loader goes on even if warnings are errors
                    warnings.warn(f"no files are kept on the GPU: {error!r}", RuntimeWarning, stacklevel=4)

    def _fail(self) -> None:
        self._hold.fail(int(self._clock()), again=bool(self._hold.until))
        self.files.wants = False

    def _room(self) -> int:
        """How many bytes more may be taken."""
        if not self._most or not self._hold.allows(int(self._clock())):
            return 0
        free, total = self._memory.info()
        held = self.nbytes
        most = int(SHARE * (free + held)) if self._most == "auto" else self._most
        return max(0, min(most - held, free - 2 * int(SPARE * total)))

    def _grow(self, nbytes: int) -> _Part | None:
        size = min(max(PART_BYTES, nbytes), self._room())
        address = self._memory.take(size) if size >= nbytes else None
        if address is None:
            self.files.wants = False
            self._lacked = nbytes
            if size >= nbytes:
                self._fail()
            return None
        self._parts.append(_Part(_core.KeptMemory(address), size))
        return self._parts[-1]

    def _forget(self) -> None:
        part = self._parts.pop(0)
        self.files.forget(part.memory)
        self._leaving.append(part)

    def _free_left(self) -> None:
        """Free what no batch uses any more.

        Not with the lock held: the driver may wait for kernels.
        """
        with self._lock:
            unused = [part for part in self._leaving if not part.memory.users]
            for part in unused:
                self._leaving.remove(part)
        for part in unused:
            try:
                self._memory.free(part.memory.address)
            except Exception:  # noqa: BLE001 - as above
                self._leaving.append(part)  # to be tried again


def _free_all(memory: Memory, pid: int, *parts: list[_Part]) -> None:
    if os.getpid() != pid:  # the parent's, in a forked child
        return
    for part in (part for some in parts for part in some):
        with contextlib.suppress(Exception):  # the driver may have gone
            memory.free(part.memory.address)


_all: Final[weakref.WeakValueDictionary[Any, FilesOnDevice]] = weakref.WeakValueDictionary()
_making: Final = threading.Lock()


def files_on(device: torch.device, most: DeviceCacheBytes) -> FilesOnDevice:
    """Return what a loader may keep on a CUDA device.

    All loaders of the process share it. It is given back once none has it.
    """
    with _making:
        found = _all.get(device) or _all.setdefault(device, FilesOnDevice(CudaMemory(device)))
    found.allow(most)
    return found


def give_back_on(device: torch.device) -> bool:
    """Give back what any loader of this process keeps on a device; see :meth:`FilesOnDevice.give_back`."""
    found = _all.get(device)
    return found is not None and found.give_back()
