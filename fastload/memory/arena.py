"""The arena: shared memory divided into slots, with a header that holds their states.

It is an anonymous ``memfd``: it has no name, so nothing is left behind however a process ends, and it does not count
against ``/dev/shm``.

States: FREE (token in the pipe) → FILLING (a worker owns it) → READY (arrived) → COPYING → FREE. The header also holds
each owner's process id. Only :meth:`Mapping.move` changes states, in that order.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Final

import torch

PAGE: Final = mmap.PAGESIZE
SLOTS_MAX: Final = 1024  # so that all tokens fit into one pipe
_TOKEN: Final = struct.Struct("=QqQqQq")  # arena number, its descriptor and inode, slot index, bytes per slot, home
TOKEN_BYTES: Final = _TOKEN.size
_OWNERS: Final = SLOTS_MAX  # the owners' process ids (int32) follow the states (uint8) in the header
_PAINTS: Final = SLOTS_MAX * 5  # a flag, behind the owners
_HEADER_BYTES: Final = -(-(_PAINTS + 1) // PAGE) * PAGE
_MADV_POPULATE_WRITE: Final = 23
_libc: Final = ctypes.CDLL(None, use_errno=True)


class SlotState(enum.IntEnum):
    """State of a slot."""

    FREE = 0
    FILLING = 1
    READY = 2
    COPYING = 3


_BEFORE: Final = {
    SlotState.FILLING: (SlotState.FREE,),
    SlotState.READY: (SlotState.FILLING, SlotState.COPYING),  # back from COPYING when the copy could not be issued
    SlotState.COPYING: (SlotState.READY,),
    SlotState.FREE: (SlotState.FILLING, SlotState.READY, SlotState.COPYING),
}


@dataclass(frozen=True, slots=True)
class Token:
    """The right to one slot."""

    arena: int
    descriptor: int
    inode: int
    index: int
    slot_bytes: int
    home: int

    def pack(self) -> bytes:  # noqa: D102
        return _TOKEN.pack(self.arena, self.descriptor, self.inode, self.index, self.slot_bytes, self.home)

    @classmethod
    def unpack(cls, data: bytes) -> Token:  # noqa: D102
        return cls(*_TOKEN.unpack(data))


class Mapping:
    """An arena mapped into this process: header, then slots."""

    def __init__(self, descriptor: int, slot_bytes: int) -> None:
        self._memory = mmap.mmap(descriptor, 0)
        whole = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._states = whole[:SLOTS_MAX].numpy()
        self._owners = whole[_OWNERS : _OWNERS + 4 * SLOTS_MAX].view(torch.int32).numpy()
        self._paints = whole[_PAINTS : _PAINTS + 1].numpy()
        self.bytes = whole[_HEADER_BYTES:]
        self.slot_bytes = slot_bytes

    @property
    def paints(self) -> bool:
        """Whether the device paints what workers stage in slots."""
        return bool(self._paints[0])

    @paints.setter
    def paints(self, value: bool) -> None:
        self._paints[0] = value

    def slot(self, index: int) -> torch.Tensor:  # noqa: D102
        begin = index * self.slot_bytes
        return self.bytes[begin : begin + self.slot_bytes]

    def state(self, index: int) -> SlotState:  # noqa: D102
        return SlotState(int(self._states[index]))

    def owner(self, index: int) -> int:  # noqa: D102
        return int(self._owners[index])

    def move(self, index: int, state: SlotState, owner: int | None = None) -> None:
        """Change a slot's state; raise if the transition is not allowed."""
        if self.state(index) not in _BEFORE[state]:
            raise RuntimeError(f"slot {index} cannot go from {self.state(index).name} to {state.name}")
        if owner is not None:
            self._owners[index] = owner
        self._states[index] = state

    def discard(self) -> None:
        """Free the slots' memory, even if forked processes still have it mapped.

        Does nothing while there is a lease, whose bytes may still be read.
        """
        if (self._states >= SlotState.READY).any():
            return
        with contextlib.suppress(OSError):
            self._memory.madvise(mmap.MADV_REMOVE, _HEADER_BYTES)

    def populate(self, begin: int, nbytes: int) -> None:
        """Fault pages in with one call, not one by one; no effect before kernel 5.14."""
        address = self.bytes.data_ptr() + begin
        start = address // PAGE * PAGE
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(address + nbytes - start), _MADV_POPULATE_WRITE)


class Arena:
    """Owns an arena in the parent: allocated, registered with CUDA, closed in reverse order.

    Args:
        number: Unique in its pool.
        count: Number of slots.
        slot_bytes: Bytes per slot.
        register: Whether to pin the memory.
        device: CUDA device whose context registers it; ``None`` is the calling thread's. A new thread's is device 0,
            and each process would use some of that device's memory for a context there.

    Raises:
        OSError, RuntimeError: There is not enough memory, or CUDA fails to register it.
    """

    def __init__(
        self, number: int, count: int, slot_bytes: int, *, register: bool = True, device: torch.device | None = None
    ) -> None:
        self.number = number
        self._device = device
        self.count = count
        self.nbytes = count * slot_bytes
        self.descriptor = os.memfd_create("fastload-arena", os.MFD_CLOEXEC)
        self._inode = os.fstat(self.descriptor).st_ino
        self._address = 0
        try:
            os.ftruncate(self.descriptor, _HEADER_BYTES + self.nbytes)
            self.mapping = Mapping(self.descriptor, slot_bytes)
            if register:
                self.mapping.populate(0, self.nbytes)
                # The header too: torch checks whether a tensor's storage, which begins there, is pinned.
                address = self.mapping.bytes.data_ptr() - _HEADER_BYTES
                with torch.cuda.device(device):
                    _register(address, _HEADER_BYTES + self.nbytes)
                self._address = address
        except BaseException:
            os.close(self.descriptor)
            raise

    def token(self, index: int, home: int) -> Token:  # noqa: D102
        return Token(self.number, self.descriptor, self._inode, index, self.mapping.slot_bytes, home)

    def close(self) -> None:
        """Unregister, then unmap: a registered address cannot be registered again. Idempotent."""
        if self._address:
            with torch.cuda.device(self._device):
                torch.cuda.cudart().cudaHostUnregister(self._address)  # type: ignore[no-untyped-call]
            self._address = 0
        if self.descriptor >= 0:
            self.mapping.discard()
            os.close(self.descriptor)
            self.descriptor = -1
            del self.mapping  # the last view of the memory unmaps it


def _register(address: int, nbytes: int) -> None:
    portable = 1  # cudaHostRegisterPortable: pinned for every context, so that any device may copy from it
    status = torch.cuda.cudart().cudaHostRegister(address, nbytes, portable)  # type: ignore[no-untyped-call]
    if int(status) != 0:
        raise RuntimeError(f"cudaHostRegister of {nbytes} bytes failed with CUDA error {int(status)}")
