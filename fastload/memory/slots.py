"""Slots: fixed-size parts of one shared, pinned arena that workers write batches into.

Free slots are *tokens in a pipe*: a worker that reads one owns that slot, and the parent writes it back when the slot's
copy to the device has completed. The kernel gives each token to exactly one reader, so there is no lock that a killed
worker could hold, and reading an empty pipe returns at once, so no worker waits for a slot. Workers open the pipes and
the arena through ``/proc/<parent>/fd`` on first use, since the size is known only after the first batch.

Each worker has its own pipe, its home, to which its slots return: a process pays 60 ms of page faults for every 154 MB
that it touches for the first time, so it should reuse the same slots. A worker whose home is empty takes slots from
other homes.

States: FREE (token in the pipe) → FILLING (a worker owns it) → READY (arrived) → COPYING → FREE. The arena stores them;
only this file changes them.

A worker that is killed takes along what it has: slots in FILLING are known by their owner. A token that it had read and
not yet marked, or marked as free and not yet written, is missed once none of the workers is left that might hold it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from fastload._files import open_of_process
from fastload.memory.arena import PAGE, SLOTS_MAX, TOKEN_BYTES, Arena, Mapping, SlotState, Token
from fastload.torch_workers.processes import JOIN_S, is_alive
from fastload.torch_workers.signals import Finalizer, deferred_signals

if TYPE_CHECKING:
    from collections.abc import Callable

HOMES_MAX: Final = 64  # each has two file descriptors
_POISON: Final = 0xA5


@dataclass(frozen=True, slots=True)
class Handle:
    """Locates the tokens for a worker. Picklable, for every start method.

    Attributes:
        pid: The process that owns the pool.
        homes: For each pipe, the owner's file descriptors of its reading and writing end, and its inode.
    """

    pid: int
    homes: tuple[tuple[int, int, int], ...]

    def open(self, descriptor: int, inode: int, flags: int) -> int:
        """Open one of the owner's file descriptors.

        Raises:
            OSError: It cannot be opened, or the owner has closed it and it now refers to another file.
        """
        return open_of_process(self.pid, descriptor, inode, flags)


@dataclass(frozen=True, slots=True)
class Stamp:
    """A reference to a filled slot, which a worker sends instead of a batch's bytes.

    Attributes:
        token: The slot that the worker filled.
        pid: The worker; a slot reclaimed from a dead worker has another owner.
    """

    token: Token
    pid: int


class Lease:
    """Holds an arrived slot until its copy is done. Dropping it frees the slot."""

    def __init__(self, pool: SlotPool, arena: Arena, index: int) -> None:
        self._arena = arena
        self._index = index
        self.buffer = arena.mapping.slot(index)
        self._finalizer = Finalizer(self, pool._free, arena, index)
        self._finalizer.atexit = False

    def copying(self) -> None:
        """Mark the slot as copying, before the copy is issued."""
        self._arena.mapping.move(self._index, SlotState.COPYING)

    def not_copying(self) -> None:
        """Mark the slot as ready again, if the copy could not be issued."""
        self._arena.mapping.move(self._index, SlotState.READY)

    def release(self) -> None:
        """Free the slot after its copy has completed. Idempotent."""
        self._finalizer()


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """Size of a pool.

    Attributes:
        slots: Number of slots.
        slot_bytes: Bytes per slot.
        pinned_bytes: Bytes of all slots, and of old arenas that are being drained.
    """

    slots: int
    slot_bytes: int
    pinned_bytes: int


class SlotPool:
    """Owns the slots of one loader, in the training process. Thread-safe.

    Args:
        count: Number of slots wanted.
        max_bytes: Maximum number of pinned bytes.
        homes: Number of workers.
        register: Whether to pin (tests without CUDA do not).
        device: See :class:`Arena`.
    """

    def __init__(
        self, count: int, max_bytes: int, homes: int = 1, *, register: bool = True, device: torch.device | None = None
    ) -> None:
        self._device = device
        self._count = min(count, SLOTS_MAX)
        self._max_bytes = max_bytes
        self._register = register
        self._lock = threading.RLock()
        self._homes: tuple[tuple[int, int], ...] = tuple(
            os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) for _ in range(min(max(1, homes), HOMES_MAX))
        )
        self._arenas: dict[int, Arena] = {}
        self._current: Arena | None = None
        self._outside: dict[int, int] = {}  # by retired arena: number of slots not returned yet
        self._number = 0
        self._wanted = 0
        self._builder: threading.Thread | None = None
        self._closed = False
        self._users: list[tuple[Callable[[], Any], list[int]]] = []  # iterators and their workers
        self.refusal: str | None = None  # why there are no slots, if that is final
        self._paints = False
        self._poison = os.environ.get("FASTLOAD_DEBUG") == "1"
        self._pid = os.getpid()  # a forked child has a copy of this object but owns none of its resources

    @property
    def handle(self) -> Handle:  # noqa: D102
        return Handle(self._pid, tuple((*ends, os.fstat(ends[0]).st_ino) for ends in self._homes))

    def counts(self) -> SlotCounts:  # noqa: D102
        with self._lock:
            current = self._current
            pinned = sum(arena.nbytes for arena in list(self._arenas.values()))
            if current is None:
                return SlotCounts(0, 0, pinned)
            return SlotCounts(current.count, current.mapping.slot_bytes, pinned)

    @property
    def paints(self) -> bool:
        """Whether workers stage deferred tensors, for the device to paint."""
        return self._paints

    @paints.setter
    def paints(self, value: bool) -> None:
        with self._lock:
            self._paints = value
            for arena in list(self._arenas.values()):
                arena.mapping.paints = value

    def want(self, nbytes: int, *, wait: bool = False) -> None:
        """Make slots of at least ``nbytes`` in a background thread, unless there are some.

        Slots of a second arena are at least twice as large, so that batches of varying size settle after a few steps.
        """
        with self._lock:
            if self._closed or self.refusal is not None or self._builder is not None or nbytes <= self._wanted:
                return
            slot_bytes = nbytes if self._wanted == 0 else max(nbytes + nbytes // 4, 2 * self._wanted)
            slot_bytes = -(-slot_bytes // PAGE) * PAGE
            held = sum(arena.nbytes for arena in list(self._arenas.values()))  # until they are drained
            count = min(self._count, (self._max_bytes - held) // slot_bytes)
            if count < 2:  # too large for now; smaller batches continue to use the current arena
                if not self._arenas:
                    limit = self._max_bytes / 1e6
                    self.refusal = f"two batches of {nbytes / 1e6:.1f} MB exceed max_pinned_bytes ({limit:.1f} MB)"
                return
            builder = threading.Thread(target=self._build, args=(count, slot_bytes), name="fastload-arena", daemon=True)
            try:
                with deferred_signals():
                    builder.start()
                    self._wanted, self._builder = slot_bytes, builder
            except RuntimeError as error:  # no more threads, or the interpreter is shutting down
                self.refusal = f"no thread to make slots: {error}"
                return
        if wait:
            builder.join()

    def _build(self, count: int, slot_bytes: int) -> None:
        arena = None
        refusal = None
        self._number += 1
        try:
            arena = Arena(self._number, count, slot_bytes, register=self._register, device=self._device)
        except (OSError, RuntimeError) as error:
            refusal = f"{count} slots of {slot_bytes} bytes could not be pinned: {error}"
        with self._lock:
            self._builder = None
            self.refusal = refusal
            if arena is None:
                return
            if self._closed:
                arena.close()
                return
            self._retire()
            arena.mapping.paints = self._paints
            self._arenas[arena.number] = arena
            self._current = arena
            for index in range(count):
                self._publish(arena, index)

    def _publish(self, arena: Arena, index: int) -> None:
        home = index % len(self._homes)
        with contextlib.suppress(BlockingIOError):  # never full: the pipe holds more tokens than there are slots
            os.write(self._homes[home][1], arena.token(index, home).pack())

    def _drain(self) -> list[Token]:
        """Read all tokens from the pipes."""
        tokens = []
        for reader, _ in self._homes:
            with contextlib.suppress(BlockingIOError):
                while data := os.read(reader, TOKEN_BYTES):
                    tokens.append(Token.unpack(data))
        return tokens

    def _retire(self) -> None:
        """Retire the current arena; it is closed when its last slot returns."""
        old, self._current = self._current, None
        if old is not None:
            self._outside[old.number] = old.count
            for token in self._drain():
                self._count_back(token.arena)

    def _sweep(self) -> None:
        """Count slots that workers returned to a pipe after their arena was retired."""
        for token in self._drain():
            arena = self._arenas.get(token.arena)
            if arena is not None and arena is self._current:
                self._publish(arena, token.index)
            else:
                self._count_back(token.arena)

    def _count_back(self, number: int) -> None:
        if number not in self._outside:
            return
        self._outside[number] -= 1
        if self._outside[number] == 0:
            del self._outside[number]
            self._arenas.pop(number).close()

    def adopt(self, stamp: Stamp) -> Lease:
        """Lease a slot that a worker has filled.

        Raises:
            RuntimeError: The slot was taken back before, because its worker died or the pool was closed.
        """
        token = stamp.token
        with self._lock:
            arena = self._arenas.get(token.arena)
            if arena is None or arena.mapping.owner(token.index) != stamp.pid:
                raise RuntimeError(f"slot {token.index} of worker process {stamp.pid} was taken back before it arrived")
            arena.mapping.move(token.index, SlotState.READY)
            return Lease(self, arena, token.index)

    def _free(self, arena: Arena, index: int) -> None:
        if os.getpid() != self._pid:
            return
        with deferred_signals(), self._lock:  # an interrupt halfway would lose the slot
            if arena.descriptor < 0:
                return
            if self._poison:
                arena.mapping.slot(index).fill_(_POISON)
            arena.mapping.move(index, SlotState.FREE, owner=0)
            if arena is self._current and not self._closed:
                self._publish(arena, index)
            else:
                self._count_back(arena.number)
            if self._outside and not self._closed:
                self._sweep()

    def open_for(self, iterator: Any) -> list[int]:
        """Return a list for the process ids of ``iterator``'s workers, which start next.

        It stays empty if batches are made here.
        """
        pids: list[int] = []
        with self._lock:
            self._users.append((weakref.ref(iterator), pids))
        return pids

    def reclaim(self) -> None:
        """Free the slots of workers that died while they filled, took or returned them.

        Called before new workers start.
        """
        with self._lock:
            for arena in list(self._arenas.values()):
                for index in range(arena.count):
                    if arena.descriptor < 0:
                        break  # freeing its last slot closed it
                    if arena.mapping.state(index) == SlotState.FILLING and not is_alive(arena.mapping.owner(index)):
                        self._free(arena, index)
            before, self._users = self._users, [user for user in self._users if _is_in_use(*user)]
            if before and not self._users:
                self._recover()

    def _recover(self) -> None:
        """Make tokens anew for all slots that are not leased. There must be no workers."""
        self._drain()
        for arena in list(self._arenas.values()):
            leased = 0
            for index in range(arena.count):
                state = arena.mapping.state(index)
                if state == SlotState.FILLING:  # by this process, which was interrupted
                    arena.mapping.move(index, SlotState.FREE, owner=0)
                if state >= SlotState.READY:
                    leased += 1
                elif arena is self._current:
                    self._publish(arena, index)
            if arena is not self._current:
                self._outside[arena.number] = leased + 1
                self._count_back(arena.number)

    def close(self) -> None:
        """Free registration, memory and descriptors. Copies must have completed.

        Idempotent; if interrupted, a second call completes it.
        """
        if os.getpid() != self._pid:  # checked before locking: another thread may have held the lock during the fork
            return
        with deferred_signals():
            with self._lock:
                self._closed = True
                builder = self._builder
            # The garbage collector may call this in any thread, including the builder.
            if builder is not None and builder is not threading.current_thread():
                builder.join(JOIN_S)  # if it takes longer, it closes its arena itself
            with self._lock:
                self._current = None
                for arena in list(self._arenas.values()):  # a copy: collecting a lease may change the dict
                    arena.close()
                self._arenas.clear()
                homes, self._homes = self._homes, ()
                _close_all(*(end for pipe in homes for end in pipe))


class SlotWriter:
    """Takes free slots in a worker. Attaches on first use; one per worker process.

    Args:
        handle: From :attr:`SlotPool.handle`.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.too_small = False  # whether the last acquire() found a free slot but it was too small
        self._ends: dict[int, int] = {}  # our descriptors by the parent's
        self._mappings: dict[int, Mapping] = {}
        self._touched: set[tuple[int, int]] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {"handle": self.handle}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["handle"])  # type: ignore[misc]

    def acquire(self, home: int, nbytes: int = 0) -> tuple[Stamp, torch.Tensor] | None:
        """Take a free slot of at least ``nbytes``, or return ``None`` at once.

        Args:
            home: The worker's number: the home to try first.
            nbytes: Size of the batch, if known.

        Raises:
            OSError: The parent's descriptors cannot be opened (no ``/proc``, another user's process, parent gone).
        """
        token = self._take(home)
        if token is None:
            return None
        self.too_small = token.slot_bytes < nbytes
        if self.too_small:
            self._put_back(token)
            return None
        try:
            mapping = self._mapping(token)
        except BaseException:  # out of memory or descriptors here; another worker may succeed
            self._put_back(token)
            raise
        stamp = Stamp(token, os.getpid())
        mapping.move(token.index, SlotState.FILLING, owner=stamp.pid)
        if (token.arena, token.index) not in self._touched:
            self._touched.add((token.arena, token.index))
            mapping.populate(token.index * token.slot_bytes, nbytes or token.slot_bytes)
        return stamp, mapping.slot(token.index)

    def _take(self, home: int) -> Token | None:
        homes = self.handle.homes
        for step in range(len(homes)):
            descriptor, _, inode = homes[(home + step) % len(homes)]
            reader = self._end(descriptor, inode, os.O_RDONLY)
            with contextlib.suppress(BlockingIOError):
                if data := os.read(reader, TOKEN_BYTES):  # empty if the parent has closed the pool
                    return Token.unpack(data)
        return None

    def _end(self, descriptor: int, inode: int, flags: int) -> int:
        if descriptor not in self._ends:
            with deferred_signals():
                own = self.handle.open(descriptor, inode, flags | os.O_NONBLOCK)
                Finalizer(self, _close_all, own)
                self._ends[descriptor] = own
        return self._ends[descriptor]

    def _mapping(self, token: Token) -> Mapping:
        if token.arena not in self._mappings:
            self._mappings.clear()  # a new arena replaces the old one, which is being drained
            self._touched.clear()
            with deferred_signals():
                descriptor = self.handle.open(token.descriptor, token.inode, os.O_RDWR)
                try:
                    self._mappings[token.arena] = Mapping(descriptor, token.slot_bytes)
                finally:
                    os.close(descriptor)
        return self._mappings[token.arena]

    def paints(self, stamp: Stamp) -> bool:
        """Whether the device paints what is staged in a slot, which this process fills."""
        return self._mappings[stamp.token.arena].paints

    def give_back(self, stamp: Stamp) -> None:
        """Return a slot unused."""
        token = stamp.token
        self._mappings[token.arena].move(token.index, SlotState.FREE, owner=0)
        self._put_back(token)

    def _put_back(self, token: Token) -> None:
        _, descriptor, inode = self.handle.homes[token.home]
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._end(descriptor, inode, os.O_WRONLY), token.pack())


def _is_in_use(iterator: Callable[[], Any], pids: list[int]) -> bool:
    return any(map(is_alive, pids)) if pids else iterator() is not None


def _close_all(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
