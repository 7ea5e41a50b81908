"""``prefetch_to_device``: device prefetching for any iterable of batches."""

from __future__ import annotations

import copy
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from fastload.device.feeder import Feeder, Prefetching, States
from fastload.device.transfer import Transfer, new_stream
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
    device_prefetch: int = 1,
    memory_format: torch.memory_format | None = torch.channels_last,
    dtype: torch.dtype | None = None,
) -> DevicePrefetcher[T]:
    """Yield the batches of ``iterable`` on the device, each copied while earlier ones are used.

    For sources that are not a :class:`torch.utils.data.DataLoader`: torchdata, webdataset, Hugging Face datasets, a
    generator. A background thread reads the source (in parallel with the training loop, up to ``device_prefetch + 1``
    batches ahead of it), pins unpinned tensors, and starts each copy on a side stream as soon as its batch is ready.

    A source that yields pinned tensors may overwrite them when the next batch is requested. An error is raised in its
    batch's turn, and iteration continues after it if the source can.

    If the source has a ``state_dict()``, as torchdata's ``StatefulDataLoader`` has, so does the result: it returns the
    source's state as of the last batch handed over. The source itself is ahead, so resuming from its own state would
    lose batches.

    >>> import torch
    >>> batches = prefetch_to_device([torch.zeros(2, 3), torch.ones(2, 3)], device="cpu")
    >>> [int(batch.sum()) for batch in batches], len(batches)
    ([0, 6], 2)

    Args:
        iterable: Batches in host memory: tensors in any nesting of mappings, sequences, tuples and dataclasses, or
            types with ``pin_memory()`` and a ``to()`` that takes a device; others stay. Each iteration of the result
            iterates it again.
        device: ``"auto"`` is the current accelerator when iteration starts, or the CPU if there is none. On the CPU
            nothing is copied and no thread is started.
        device_prefetch: Batches that may wait on the device beyond the one in use; at least 1.
        memory_format: For 4-D floating-point or uint8 tensors; ``None`` leaves the layout.
        dtype: For floating-point tensors; cast on the device, after the copy. ``None`` leaves it.

    Returns:
        An iterable of the same batches; it has a length if the source has one, and a :class:`StatefulPrefetcher` if the
        source has a state.

    Raises:
        TypeError: ``iterable`` is not iterable, or an argument has the wrong type.
        ValueError: ``device_prefetch`` is less than 1, or the memory format or dtype is not supported.
        RuntimeError: ``device`` is not available.
    """
    kind = StatefulPrefetcher if hasattr(iterable, "state_dict") else DevicePrefetcher
    return kind(iterable, device, device_prefetch, memory_format, dtype)


class DevicePrefetcher(Generic[T]):
    """The result of :func:`prefetch_to_device`. Each iteration has its own thread."""

    def __init__(
        self,
        iterable: Iterable[T],
        device: str | int | torch.device,
        device_prefetch: int,
        memory_format: torch.memory_format | None,
        dtype: torch.dtype | None,
    ) -> None:
        if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
            raise TypeError(f"iterable must be an iterable of batches, got {type(iterable).__name__}")
        check_device(device)
        check_device_prefetch(device_prefetch, "device_prefetch", minimum=1)
        check_memory_format(memory_format)
        check_dtype(dtype)
        self._iterable = iterable
        self._device = device
        self._device_prefetch = device_prefetch
        self._memory_format = memory_format
        self._dtype = dtype
        self._streams: dict[torch.device, Any] = {}

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        device = resolve_device(self._device)
        if not has_streams(device):
            memory_format = None if device.type == "cpu" else self._memory_format
            return _InTurn(iter(self._iterable), Transfer(device, None, memory_format, self._dtype))
        if device not in self._streams:  # kept across epochs: device memory is reused by stream
            self._streams[device] = new_stream(device)
        transfer = Transfer(device, self._streams[device], self._memory_format, self._dtype)
        return Prefetching(Feeder(iter(self._iterable), transfer, self._device_prefetch, self._states_of_epoch()))

    def _states_of_epoch(self) -> States | None:
        """Return an object that records the source's states; ``None`` if it has none."""
        return None


class StatefulPrefetcher(DevicePrefetcher[T]):
    """The result of :func:`prefetch_to_device` for a source with a state.

    The state is that of the newest iteration. During one, do not read the source's own state or iterate the source.
    """

    _states: States | None = None

    def state_dict(self) -> Any:
        """Copy the source's state as of the last batch handed over.

        If no iteration has begun, it is the current state.

        Raises:
            Exception: The error that the source raised when its state was read.
        """
        return copy.deepcopy((States(self._iterable) if self._states is None else self._states).last.get())

    def load_state_dict(self, state_dict: Any) -> None:
        """Make the source resume from ``state_dict`` in the next iteration."""
        self._forget()
        source: Any = self._iterable
        source.load_state_dict(state_dict)

    def _forget(self) -> None:
        states, self._states = self._states, None
        if states is not None:
            states.leave()

    def _states_of_epoch(self) -> States:
        self._forget()
        self._states = States(self._iterable)
        return self._states


class _InTurn(Generic[T]):
    """Iterates without a side stream: reads and moves each batch on request."""

    def __init__(self, source: Iterator[Any], transfer: Transfer) -> None:
        self._source = source
        self._transfer = transfer

    def __iter__(self) -> _InTurn[T]:
        return self

    def __next__(self) -> T:
        batch: T = self._transfer.take(self._transfer.start(next(self._source)))
        return batch

    def close(self) -> None:
        """Stop early. Idempotent."""
        source, self._source = self._source, iter(())
        if isinstance(source, Generator):  # other iterators may still be in use by the user
            source.close()
