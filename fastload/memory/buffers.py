"""Pinned memory for batches, used again once no tensor refers to it any more."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def pinned(nbytes: int) -> torch.Tensor:
    """Allocate pinned memory, ``(nbytes,)`` uint8."""
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


class BufferPool:
    """Lends memory to batches. Thread-safe.

    The memory of a tensor from :meth:`take` comes back by itself when its last view is gone, in any thread. A view has
    to be kept until a copy from it is done.

    Args:
        allocate: Returns so many bytes of memory, ``(nbytes,)`` uint8.
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor] = pinned) -> None:
        self._allocate = allocate
        self._lock = threading.Lock()
        self._free: list[torch.Tensor] = []
        self._lent: set[_Loan] = set()
        self._returned: queue.SimpleQueue[_Loan] = queue.SimpleQueue()

    @property
    def nbytes(self) -> int:
        """Bytes of all memory, lent or free."""
        with self._lock:
            return sum(memory.nbytes for memory in [*self._free, *(loan.memory for loan in self._lent)])

    def take(self, nbytes: int) -> torch.Tensor:
        """Return memory, ``(nbytes,)`` uint8, with any contents."""
        memory = self._free_memory(nbytes)
        if memory is None:  # not with the lock held: memory is scarce, and the collector may run
            memory = self._allocate(nbytes)
        array = memory.numpy()[:nbytes]
        # The callback is C code: an interrupt would end Python code, and be lost.
        loan = _Loan(array, self._returned.put)
        loan.memory = memory
        with self._lock:
            self._lent.add(loan)
        return torch.from_numpy(array)  # whose storage keeps the array

    def _free_memory(self, nbytes: int) -> torch.Tensor | None:
        outgrown: list[torch.Tensor] = []
        with self._lock, contextlib.suppress(queue.Empty):
            while True:
                loan = self._returned.get_nowait()
                self._lent.discard(loan)
                self._free.append(loan.memory)
        with self._lock:
            fitting = [memory for memory in self._free if memory.nbytes >= nbytes]
            if not fitting:
                outgrown, self._free = self._free, outgrown  # freed without the lock
                return None
            memory = min(fitting, key=lambda memory: memory.nbytes)
            self._free = [other for other in self._free if other is not memory]
            return memory


class _Loan(weakref.ref):  # type: ignore[type-arg]
    """A reference to the array that uses ``memory``."""

    __slots__ = ("memory",)
    memory: torch.Tensor

    __eq__ = object.__eq__  # an array has no hash
    __hash__ = object.__hash__
