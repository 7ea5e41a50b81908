"""``prefetch_to_device``: the device side for any iterable of batches."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from fastload import _nvtx
from fastload._nvtx import stage
from fastload.device.transfer import DeviceBatch, Transfer, new_stream
from fastload.host import map_leaves
from fastload.options import (
    check_device,
    check_device_prefetch,
    check_dtype,
    check_memory_format,
    has_streams,
    resolve_device,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")


def prefetch_to_device(
    iterable: Iterable[T],
    device: str | int | torch.device = "auto",
    *,
    depth: int = 1,
    memory_format: torch.memory_format | None = torch.channels_last,
    dtype: torch.dtype | None = None,
) -> DevicePrefetcher[T]:
    """Yield the batches of ``iterable`` on the device, copied on a side stream while the previous ones are used.

    For sources that are no :class:`torch.utils.data.DataLoader`: torchdata, webdataset, Hugging Face datasets, a
    generator. A background thread reads the source (so the source runs beside the training loop and up to ``depth + 1``
    batches ahead of it), pins what is not pinned, and starts each copy the moment its batch is there.

    A source that yields pinned tensors may overwrite them once it is asked for the next batch.

    >>> import torch
    >>> batches = prefetch_to_device([torch.zeros(2, 3), torch.ones(2, 3)], device="cpu")
    >>> [int(batch.sum()) for batch in batches], len(batches)
    ([0, 6], 2)

    Args:
        iterable: Batches in host memory: tensors in any nesting of mappings, sequences, tuples and dataclasses, or
            types with ``pin_memory()`` and ``to()``. Iterated anew each time that the result is.
        device: ``"auto"`` is the current accelerator when iteration starts, else the CPU. On the CPU nothing is copied
            and no thread is started.
        depth: Batches that may wait on the device beyond the one in use; at least 1.
        memory_format: For 4-D floating-point or uint8 tensors; ``None`` leaves the layout.
        dtype: For floating-point tensors; cast on the device, after the copy. ``None`` leaves it.

    Returns:
        An iterable of the same batches; it has a length if the source has one.

    Raises:
        TypeError: ``iterable`` is not iterable, or an argument is of the wrong type.
        ValueError: ``depth`` is less than 1, or a format or dtype that does not apply.
        RuntimeError: ``device`` is not there.
    """
    return DevicePrefetcher(iterable, device, depth, memory_format, dtype)


class DevicePrefetcher(Generic[T]):
    """What :func:`prefetch_to_device` returns. Each iteration has a thread of its own, which ends with it."""

    def __init__(
        self,
        iterable: Iterable[T],
        device: str | int | torch.device,
        depth: int,
        memory_format: torch.memory_format | None,
        dtype: torch.dtype | None,
    ) -> None:
        if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
            raise TypeError(f"iterable must be an iterable of batches, got {type(iterable).__name__}")
        check_device(device)
        check_device_prefetch(depth, "depth", minimum=1)
        check_memory_format(memory_format)
        check_dtype(dtype)
        self._iterable = iterable
        self._device = device
        self._depth = depth
        self._memory_format = memory_format
        self._dtype = dtype
        self._streams: dict[torch.device, Any] = {}

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        device = resolve_device(self._device)
        if not has_streams(device):
            return self._in_turn(device)
        if device not in self._streams:  # kept across epochs: device memory is reused by stream
            self._streams[device] = new_stream(device)
        transfer = Transfer(device, self._streams[device], self._memory_format, self._dtype)
        return _Prefetching(Feeder(iter(self._iterable), transfer, self._depth))

    def _in_turn(self, device: torch.device) -> Iterator[T]:
        memory_format = None if device.type == "cpu" else self._memory_format
        transfer = Transfer(device, None, memory_format, self._dtype)
        for batch in self._iterable:
            yield transfer.take(transfer.start(batch))


def _use_one_thread() -> None:
    """Let torch compute with one thread in this thread: pinning must not take the CPU from the training loop.

    ``set_num_threads`` also says what threads that begin later start with; one of those puts that back.
    """
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    other = threading.Thread(target=torch.set_num_threads, args=(usual,), name="fastload-num-threads", daemon=True)
    other.start()
    other.join()


class Feeder:
    """A thread that reads a source and copies each batch as soon as there is room on the device.

    It sleeps on conditions and events, and never polls. It knows nothing of the iterator that it feeds.
    """

    def __init__(self, source: Iterator[Any], transfer: Transfer, depth: int) -> None:
        self._source = source
        self.transfer = transfer
        self._depth = depth
        self._ready: deque[DeviceBatch] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._in_source = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._feed, name="fastload-feeder", daemon=True)
        self._thread.start()

    def _feed(self) -> None:
        _nvtx.name_thread("fastload-feeder")
        try:
            torch.accelerator.set_device_index(self.transfer.device)
            _use_one_thread()
            number = 0
            while self._read(number):
                number += 1
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, who raises it
            with self._changed:
                self._error = error
        finally:
            source, self._source = self._source, iter(())
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            if isinstance(source, Generator):  # another kind may be the user's own, still in use
                source.close()

    def _read(self, number: int) -> bool:
        with self._changed:
            if self._closed:
                return False
            self._in_source = True
        try:
            with stage("fetch", number):
                batch = next(self._source)
        except StopIteration:
            return False
        finally:
            with self._changed:
                self._in_source = False
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

        batch = map_leaves(pin, batch)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < self._depth)
            if self._closed:
                return False
        copied = self.transfer.start(batch, number)
        with self._changed:
            self._ready.append(copied)
            self._changed.notify_all()
        if borrowed:  # the source's own memory: it may be written again as soon as we ask for more
            copied.wait_copied()
        return True

    def get(self) -> DeviceBatch | None:
        """The next batch, or ``None`` after the last. Blocks until one is there; raises what the source raised."""
        self.transfer.mark_step()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended or self._closed)
            if self._ready:
                return self._ready.popleft()
            error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # else this frame and its traceback would keep each other, and the device memory in flight
        return None

    def go_on(self) -> None:
        """Let the feeder know that there is room for another batch."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop reading. Joins the thread, unless it is inside the source, which nobody can interrupt. Idempotent."""
        if os.getpid() != self._pid:  # a forked child: the thread is its parent's, and may have held the lock
            return
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
            in_source = self._in_source
        if not in_source and self._thread is not threading.current_thread():
            self._thread.join()
            self.transfer.close()


class _Prefetching(Generic[T]):
    """The consumer's end of a feeder; dropping it stops the feeder."""

    def __init__(self, feeder: Feeder) -> None:
        self._feeder = feeder
        self._number = 0
        self._finalizer = weakref.finalize(self, feeder.close)

    def __iter__(self) -> _Prefetching[T]:
        return self

    def __next__(self) -> T:
        with stage("wait", self._number):
            copied = self._feeder.get()
        if copied is None:
            raise StopIteration
        self._number += 1
        batch: T = self._feeder.transfer.take(copied)
        self._feeder.go_on()  # last, so that the feeder's work does not delay this call
        return batch

    def close(self) -> None:
        """Stop early. Idempotent."""
        self._finalizer()
