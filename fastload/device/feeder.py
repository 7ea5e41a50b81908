"""The feeder thread of :func:`~fastload.prefetch.prefetch_to_device`, and the iterator that consumes its batches."""

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

from fastload._batch import map_tensors, pinned
from fastload.device.transfer import DeviceBatch, Transfer
from fastload.nvtx import stages
from fastload.nvtx.stages import stage
from fastload.torch_workers.signals import Finalizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

T = TypeVar("T")

JOIN_S: Final = 5.0
"""Longest wait for the thread on closing, as long as torch waits for a worker. The thread then ends by itself."""

WAKE_S: Final = 5.0
"""Longest sleep of the consumer. A signal just before it falls asleep does not wake it (CPython)."""


class State(NamedTuple):
    """A source's state, or the error that ``state_dict()`` raised."""

    value: Any = None
    error: Exception | None = None
    traceback: TracebackType | None = None

    def get(self) -> Any:
        """The state."""
        if self.error is not None:
            raise self.error.with_traceback(self.traceback)  # else it would grow with each call
        return self.value


class States:
    """Copies a source's states during one iteration; ``last`` belongs to the last batch handed over.

    Copies, because a source may go on to change the object that it returned.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._left = False
        self._lock = threading.Lock()
        self.last = self.take()

    def take(self) -> State:
        """Return the source's state now. Called between two batches, in the reading thread."""
        with self._lock:
            if self._left:
                return State()
            try:
                return State(copy.deepcopy(self._source.state_dict()))
            except Exception as error:  # noqa: BLE001 - raised only when the state is requested; the batch is still good
                return State(error=error, traceback=error.__traceback__)

    def leave(self) -> None:
        """Stop reading the source's state, which will belong to another iteration."""
        with self._lock:
            self._left = True


def _use_one_thread() -> None:
    """Make torch single-threaded in this thread, so that pinning leaves the CPU to training.

    ``set_num_threads`` also sets the default of threads started later; one of those restores it.
    """
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    other = threading.Thread(target=torch.set_num_threads, args=(usual,), name="fastload-num-threads", daemon=True)
    other.start()
    other.join()


class Arrived(NamedTuple):
    """A message to the consumer: a batch, an error, or, with neither, the end.

    A tuple, so that the consumer can receive it without running Python code.
    """

    number: int
    copied: DeviceBatch | None = None
    error: BaseException | None = None
    state: State = State()


class Feeder:
    """Reads a source in a thread, and copies each batch once the device has room.

    The thread sleeps on queues and events, and holds no strong reference to the iterator that it feeds.

    Thread and consumer share only flags and queues implemented in C: an interrupt may end the consumer's call anywhere
    in Python code, including :class:`threading.Condition`, and must neither leave a lock taken nor lose a batch.
    """

    def __init__(self, source: Iterator[Any], transfer: Transfer, depth: int, states: States | None = None) -> None:
        self._source = source
        self.transfer = transfer
        self._depth = depth
        self.states = states
        self.arrivals: SimpleQueue[Arrived] = SimpleQueue()
        # Numbers of batches being handed over, which makes room; any other value tells the thread to end.
        self.messages: SimpleQueue[Any] = SimpleQueue()
        self._handed = 0
        self.closed = False
        self._in_source = False
        self._ended = True
        self._running = threading.Lock()  # not Thread.join, which treats the thread as ended if interrupted (bpo-45274)
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._feed, name="fastload-feeder", daemon=True)

    def start(self, consumer: Any) -> None:
        """Start the thread. It ends at the latest when ``consumer`` is garbage."""
        self._gone = weakref.ref(consumer, self.messages.put)  # runs no Python code, so no interrupt can prevent it
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
        except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
            self._end(0, error)

    def _feed(self) -> None:
        stages.name_thread("fastload-feeder")
        number = 0
        try:
            torch.accelerator.set_device_index(self.transfer.device)
            _use_one_thread()
            while self._read(number):
                number += 1
        except BaseException as error:  # noqa: BLE001 - raised in the consumer's thread
            self._end(number, error)
        else:
            self._end(number)

    def _end(self, number: int, error: BaseException | None = None) -> None:
        """Send the end of the iteration and release the source."""
        source, self._source = self._source, iter(())
        try:
            if error is not None:
                self.arrivals.put(Arrived(number, error=error))
            self.arrivals.put(Arrived(number, state=self._state()))
            if isinstance(source, Generator):  # other iterators may still be in use by the user
                source.close()
            del source
            if self.closed:
                self._drop()
        finally:
            self._ended = True
            self._running.release()

    def _read(self, number: int) -> bool:
        """Read a batch, and copy it when there is room.

        Returns whether there was a batch, or an error in its place.
        """
        copied: DeviceBatch | None = None
        error: BaseException | None = None
        borrowed = False
        try:
            try:
                batch = self._next(number)
                if batch is _NO_MORE:
                    return False
                batch, borrowed = _pinned(batch)
            except BaseException as caught:  # noqa: BLE001 - raised in the consumer's thread
                error = caught
            state = self._state()
            if not self._has_room(number):
                return False
            if error is None:
                try:
                    copied = self.transfer.start(batch, number)
                except BaseException as caught:  # noqa: BLE001 - as above
                    error = caught
            self.arrivals.put(Arrived(number, copied, error, state))
            if borrowed and copied is not None:  # the source may overwrite its memory when the next batch is requested
                copied.wait_copied()
            return True
        finally:
            del error  # breaks the reference cycle of this frame and its traceback

    def _next(self, number: int) -> Any:
        self._in_source = True
        try:
            if self.closed:  # checked after setting the flag that tells close() not to wait
                return _NO_MORE
            with stage("fetch", number):
                return next(self._source, _NO_MORE)
        finally:
            self._in_source = False

    def _state(self) -> State:
        return State() if self.states is None or self.closed else self.states.take()

    def _has_room(self, number: int) -> bool:
        """Sleep until there is room for a batch. Returns whether it is still wanted."""
        while not self.closed and (number >= self._handed + self._depth or not self.messages.empty()):
            message = self.messages.get()
            if isinstance(message, int):
                self._handed = max(self._handed, message + 1)
            else:
                self.closed = True
        return not self.closed

    def _drop(self) -> None:
        """Drop the waiting batches, and leave an end message for a waiting consumer."""
        try:
            while True:
                self.arrivals.get_nowait()
        except Empty:
            self.arrivals.put(Arrived(0))

    def close(self) -> None:
        """Stop reading; wait at most 5 s for the thread and its copies.

        Idempotent; call it again if interrupted. Does not wait while the thread is inside the source, which cannot be
        interrupted.
        """
        if os.getpid() != self._pid:  # a forked child: the thread is the parent's
            return
        self.closed = True
        self.messages.put(None)
        self._drop()
        if self._in_source or threading.get_ident() == self._thread.ident:
            return
        if not self._ended and self._running.acquire(timeout=JOIN_S):
            self._running.release()
        if self._ended:
            self.transfer.close()


_NO_MORE: Final = object()


def _pinned(batch: Any) -> tuple[Any, bool]:
    """Pin a batch; also return whether some of the memory is the source's own."""
    borrowed = False

    def pin(leaf: Any) -> Any:
        nonlocal borrowed
        now = pinned(leaf)
        borrowed = borrowed or (now is leaf and isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu")
        return now

    return map_tensors(pin, batch), borrowed


class Prefetching(Generic[T]):
    """Iterates over a feeder's batches; dropping it stops the feeder."""

    def __init__(self, feeder: Feeder) -> None:
        self._feeder = feeder
        self._number = 0
        self._taken: dict[int, list[Arrived]] = {}  # by thread: messages received and not yet handed to the caller
        self._finalizer = Finalizer(self, feeder.close)
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
                    # No Python code runs between queue and list: at an interrupt, the batch is in one of them.
                    taken.extend(islice(iter(partial(feeder.arrivals.get, True, WAKE_S), None), 1))
        arrived = taken[0]
        at_end = arrived.copied is None and arrived.error is None
        batch: Any = None
        if at_end:
            feeder.arrivals.put(arrived)  # for the next call of next()
        elif not feeder.closed:
            if arrived.copied is not None:
                batch = feeder.transfer.take(arrived.copied)
            feeder.messages.put(arrived.number)  # late, so that the feeder's work does not delay this call
        # No calls from here on, and so no interrupts: the batch is handed over and recorded as such.
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
            del error  # breaks the cycle of this frame and its traceback, which would keep device memory

    def close(self) -> None:
        """Stop early. Idempotent."""
        self._feeder.close()  # not the finalizer: an interrupt could mark it as done before it has called
        self._taken.clear()
