"""The thread that reads and copies for :func:`~fastload.prefetch.prefetch_to_device`, and its consumer's end."""

from __future__ import annotations

import _thread
import copy
import os
import threading
import weakref
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import torch

from fastload._batch import map_tensors
from fastload.device.transfer import DeviceBatch, Transfer
from fastload.nvtx import stages
from fastload.nvtx.stages import stage

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

JOIN_S: Final = 5.0
"""How long closing waits for the thread at most: as long as torch waits for a worker. It then ends by itself."""

WAKE_S: Final = 5.0
"""How long the consumer sleeps at most. A signal that comes just before it falls asleep does not wake it (CPython)."""


class State(NamedTuple):
    """What a source said when it was asked for its state, or what it raised."""

    value: Any = None
    error: Exception | None = None

    def get(self) -> Any:
        """The state."""
        if self.error is not None:
            raise self.error
        return self.value


class States:
    """The states of a source in one iteration; that of the last batch handed over is ``last``.

    Copied, because a source may give out what it goes on to change.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._left = False
        self._lock = threading.Lock()
        self.last = self.take()

    def take(self) -> State:
        """The source's state now. Between two batches, in the thread that reads."""
        with self._lock:
            if self._left:
                return State()
            try:
                return State(copy.deepcopy(self._source.state_dict()))
            except Exception as error:  # noqa: BLE001 - of interest to who wants the state; the batch is none the worse
                return State(error=error)

    def leave(self) -> None:
        """Ask the source no more: its state will be another iteration's."""
        with self._lock:
            self._left = True


def _use_one_thread() -> None:
    """Let torch compute with one thread in this thread: pinning must not take the CPU from the training loop.

    ``set_num_threads`` also says what threads that begin later start with; one of those puts that back.
    """
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    other = threading.Thread(target=torch.set_num_threads, args=(usual,), name="fastload-num-threads", daemon=True)
    other.start()
    other.join()


class Arrived(NamedTuple):
    """What the feeder has for the consumer: a batch, an error in its place, or, with neither, the end.

    A tuple, which the consumer's end can take over without running Python.
    """

    number: int
    copied: DeviceBatch | None = None
    error: BaseException | None = None
    state: State = State()


class Feeder:
    """A thread that reads a source and copies each batch as soon as there is room on the device.

    It sleeps on queues and events. It knows nothing of the iterator that it feeds.

    The two ends share queues made in C, flags, and nothing else: an interrupt may end the consumer's call anywhere in
    Python code, :class:`threading.Condition` and the like included, and must not leave a lock taken or a batch lost.
    """

    def __init__(self, source: Iterator[Any], transfer: Transfer, depth: int, states: States | None = None) -> None:
        self._source = source
        self.transfer = transfer
        self._depth = depth
        self.states = states
        self.scheduler: SimpleQueue[Arrived] = SimpleQueue()
        # Numbers of batches that are being handed over, which make room; anything else tells the thread to end.
        self.told: SimpleQueue[Any] = SimpleQueue()
        self._handed = 0
        self.closed = False
        self._in_source = False
        self._ended = True
        self._running = threading.Lock()  # not Thread.join: interrupted, that takes the thread for ended (bpo-45274)
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._feed, name="fastload-feeder", daemon=True)

    def start(self, consumer: Any) -> None:
        """Start the thread. It ends when ``consumer`` is garbage, at the latest."""
        self._gone = weakref.ref(consumer, self.told.put)  # no Python runs here, so that no interrupt can prevent it
        self._running.acquire()
        self._ended = False
        try:
            _thread.start_new_thread(self._start, ())  # Thread.start waits on a Condition
        except RuntimeError:
            self._ended = True
            raise

    def _start(self) -> None:
        try:
            self._thread.start()
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, who raises it
            self._end(0, error)

    def _feed(self) -> None:
        stages.name_thread("fastload-feeder")
        number = 0
        try:
            torch.accelerator.set_device_index(self.transfer.device)
            _use_one_thread()
            while self._read(number):
                number += 1
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, who raises it
            self._end(number, error)
        else:
            self._end(number)

    def _end(self, number: int, error: BaseException | None = None) -> None:
        """Say that nothing more comes, and let go of the source."""
        source, self._source = self._source, iter(())
        try:
            if error is not None:
                self.scheduler.put(Arrived(number, error=error))
            self.scheduler.put(Arrived(number, state=self._state()))
            if isinstance(source, Generator):  # another kind may be the user's own, still in use
                source.close()
            del source
            if self.closed:
                self._drop()
        finally:
            self._ended = True
            self._running.release()

    def _read(self, number: int) -> bool:
        """Read a batch, and copy it when there is room. Returns whether there was one, or an error in its place."""
        copied: DeviceBatch | None = None
        error: BaseException | None = None
        borrowed = False
        try:
            try:
                batch = self._next(number)
                if batch is _NO_MORE:
                    return False
                batch, borrowed = _pinned(batch)
            except BaseException as caught:  # noqa: BLE001 - handed to the consumer, who raises it
                error = caught
            state = self._state()
            if not self._has_room(number):
                return False
            if error is None:
                try:
                    copied = self.transfer.start(batch, number)
                except BaseException as caught:  # noqa: BLE001 - as above
                    error = caught
            self.scheduler.put(Arrived(number, copied, error, state))
            if borrowed and copied is not None:  # the source's own memory: it may be written again once we ask for more
                copied.wait_copied()
            return True
        finally:
            del error  # else this frame and its traceback would keep each other

    def _next(self, number: int) -> Any:
        self._in_source = True
        try:
            if self.closed:  # asked now, when close() can see that it must not wait
                return _NO_MORE
            with stage("fetch", number):
                return next(self._source, _NO_MORE)
        finally:
            self._in_source = False

    def _state(self) -> State:
        return State() if self.states is None or self.closed else self.states.take()

    def _has_room(self, number: int) -> bool:
        """Wait for room for a batch, asleep. Returns whether it is still wanted."""
        while not self.closed and (number >= self._handed + self._depth or not self.told.empty()):
            told = self.told.get()
            if isinstance(told, int):
                self._handed = max(self._handed, told + 1)
            else:
                self.closed = True
        return not self.closed

    def _drop(self) -> None:
        """Let go of what has arrived; leave the end of it, for whoever waits."""
        try:
            while True:
                self.scheduler.get_nowait()
        except Empty:
            self.scheduler.put(Arrived(0))

    def close(self) -> None:
        """Stop reading and wait, 5 s at most, for the thread and its copies. Idempotent; call it again if interrupted.

        While the thread is inside the source, which nobody can interrupt, it is not waited for.
        """
        if os.getpid() != self._pid:  # a forked child: the thread is its parent's
            return
        self.closed = True
        self.told.put(None)
        self._drop()
        if self._in_source or threading.get_ident() == self._thread.ident:
            return
        if not self._ended and self._running.acquire(timeout=JOIN_S):
            self._running.release()
        if self._ended:
            self.transfer.close()


_NO_MORE: Final = object()


def _pinned(batch: Any) -> tuple[Any, bool]:
    """A batch in pinned memory, and whether some of that is the source's own."""
    borrowed = False

    def pin(leaf: Any) -> Any:
        nonlocal borrowed
        if not isinstance(leaf, torch.Tensor):
            return leaf.pin_memory()
        if leaf.device.type != "cpu" or leaf.layout != torch.strided:
            return leaf
        pinned = leaf.pin_memory()
        borrowed = borrowed or pinned is leaf
        return pinned

    return map_tensors(pin, batch), borrowed


class Prefetching(Generic[T]):
    """The consumer's end of a feeder; dropping it stops the feeder."""

    def __init__(self, feeder: Feeder) -> None:
        self._feeder = feeder
        self._number = 0
        self._taken: dict[int, list[Arrived]] = {}  # by thread: what it has taken over and not yet handed to its caller
        self._finalizer = weakref.finalize(self, feeder.close)
        feeder.start(self)

    def __iter__(self) -> Prefetching[T]:
        return self

    def __next__(self) -> T:
        feeder = self._feeder
        feeder.transfer.mark_step()
        taken = self._taken.setdefault(threading.get_ident(), [])
        with stage("wait", self._number):
            while not taken:
                with suppress(Empty):
                    # No Python between the queue and the list: an interrupt finds the batch in one of them.
                    taken.extend(islice(iter(partial(feeder.scheduler.get, True, WAKE_S), None), 1))
        arrived = taken[0]
        at_end = arrived.copied is None and arrived.error is None
        batch: Any = None
        if at_end:
            feeder.scheduler.put(arrived)  # for whoever asks next
        elif not feeder.closed:
            if arrived.copied is not None:
                batch = feeder.transfer.take(arrived.copied)
            feeder.told.put(arrived.number)  # late, so that the feeder's work does not delay this call
        # From here on nothing is called, and so nothing interrupted: the batch is handed over, and that is noted.
        error, ended = arrived.error, at_end or feeder.closed
        if not feeder.closed:
            self._number = arrived.number + 1
            if feeder.states is not None:
                feeder.states.last = arrived.state
        del taken[0], arrived
        if ended:
            raise StopIteration
        if error is None:
            return batch  # type: ignore[no-any-return]
        try:
            raise error
        finally:
            del error  # else this frame and its traceback would keep each other, and the device memory in flight

    def close(self) -> None:
        """Stop early. Idempotent."""
        self._feeder.close()  # not the finalizer, which an interrupt could use up before it has called
        self._taken.clear()
