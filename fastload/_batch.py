"""A batch in host memory between engine and device, and functions that traverse it."""

from __future__ import annotations

import array
import collections
import collections.abc
import copy
import dataclasses
import itertools
import operator
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class Leaf:
    """Base of objects that replace a tensor in a batch."""

    __slots__ = ()


def is_movable(data: Any) -> bool:
    """Whether ``data`` has ``pin_memory()`` and ``to()``, torch's protocol for custom types."""
    return hasattr(data, "pin_memory") and hasattr(data, "to")


def map_tensors(function: Callable[[Any], Any], data: Any, tuple_type: type | None = None) -> Any:
    """Rebuild ``data`` with ``function`` applied to every tensor, :class:`Leaf` and movable object.

    Containers are those that torch's ``pin_memory`` traverses (mappings, sequences, tuples, namedtuples; extra
    attributes of mutable ones survive), and dataclasses. Other objects (numbers, strings, ``None``, NumPy arrays) are
    returned unchanged, and so are containers in which nothing changed.

    Args:
        function: Called once per leaf, in the order of the containers.
        data: Any nested batch.
        tuple_type: If given, rebuild every container, as torch does when the user asks it to pin: a range becomes a
            list, and a tuple becomes this type, which differs between versions of torch. An object that only has
            ``pin_memory()`` is then also a leaf.
    """
    # Recursive by name, not through an inner function: its reference cycle would keep a batch's device memory until the
    # garbage collector runs (seen: 22 batches instead of 4).
    if isinstance(data, torch.Tensor | Leaf):
        return function(data)
    if data is None or isinstance(data, str | bytes | int | float | collections.UserString):
        return data
    if tuple_type is None and isinstance(data, bytearray | memoryview | array.array | range):
        return data  # only numbers, possibly millions: traversing 32 JPEG files of 100 kB took 4.5 s
    if type(data) is list:  # the usual container, without the looks and the copy that others need
        made = [map_tensors(function, value, tuple_type) for value in data]
        return data if tuple_type is None and all(map(operator.is_, made, data)) else made
    if is_movable(data):
        return function(data)
    if isinstance(data, collections.abc.Mapping):
        old = list(data.items())
        entries = {key: map_tensors(function, value, tuple_type) for key, value in old}
        if tuple_type is None and all(entries[key] is value for key, value in old):
            return data
        try:
            if isinstance(data, collections.abc.MutableMapping):
                clone = copy.copy(data)
                for key, value in entries.items():  # not update(), which adds to a Counter
                    clone[key] = value
                return clone
            return type(data)(entries)  # type: ignore[call-arg]
        except TypeError:  # no copy(), no __setitem__ or no __init__(mapping)
            return entries
    if isinstance(data, collections.abc.Sequence):
        former = list(data)
        values = [map_tensors(function, value, tuple_type) for value in former]
        if tuple_type is None and all(map(operator.is_, values, former)):
            return data
        if isinstance(data, tuple):
            if hasattr(data, "_fields"):
                return type(data)(*values)
            return type(data)(values) if tuple_type in (None, tuple) else tuple_type(values)
        try:
            if isinstance(data, collections.abc.MutableSequence):
                sequence = copy.copy(data)
                for index, value in enumerate(values):
                    sequence[index] = value
                return sequence
            return type(data)(values)  # type: ignore[call-arg]
        except TypeError:  # no copy(), no __setitem__ or no __init__(iterable), such as range
            return values
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        moved = data
        for field in dataclasses.fields(data):
            value = getattr(data, field.name, None)
            new = map_tensors(function, value, tuple_type)
            if new is not value:
                moved = copy.copy(data) if moved is data else moved
                object.__setattr__(moved, field.name, new)
        return moved
    if tuple_type is not None and hasattr(data, "pin_memory"):  # can be pinned, as requested, but not moved
        return function(data)
    return data


def as_inference_tensors(data: Any) -> Any:
    """Convert a batch to inference tensors, as torch makes them in ``torch.inference_mode()``.

    Copies no strided tensor. Torch makes batches in the consumer's thread; ours may come from another thread, where the
    mode, which is per thread, is off.

    Args:
        data: Any nested batch. Tensors that require gradients, and other objects, are unchanged.
    """
    return map_tensors(_as_inference_tensor, data)


def _as_inference_tensor(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.requires_grad or leaf.is_inference():
        return leaf
    kind = type(leaf)
    lazy = leaf.is_nested or leaf.is_quantized or leaf.is_conj() or leaf.is_neg()
    if lazy or leaf.layout != torch.strided or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return leaf.clone()  # cannot be aliased by its storage alone, and rare
    with torch._C.DisableTorchFunctionSubclass():  # not a view, which would be a normal tensor like its base
        where = leaf.untyped_storage(), leaf.storage_offset(), leaf.size(), leaf.stride()
        alias = torch.empty(0, dtype=leaf.dtype, device=leaf.device).set_(*where)
        if kind is not torch.Tensor:
            alias = alias.as_subclass(kind)
            vars(alias).update(vars(leaf))
    return alias


class Receiver(Protocol):
    """Receives the host batches of one iterator, in the training process."""

    def arrive(self, batch: HostBatch) -> Any:
        """Take a finished batch; return the object that replaces it in torch's queue."""
        ...


_receivers: weakref.WeakValueDictionary[int, Receiver] = weakref.WeakValueDictionary()
_keys = itertools.count()  # never reused, so that a late batch cannot find another iterator's receiver


def register(receiver: Receiver) -> int:
    """Return a key by which batches from other processes find ``receiver``; holds it weakly."""
    key = next(_keys)
    _receivers[key] = receiver
    return key


class HostBatch:
    """A batch that an engine passes to the device side: the interface between the two.

    Torch's pin-memory thread (or the main process, without workers) calls :meth:`pin_memory`, as for any custom batch
    type, and so delivers the batch to its receiver as soon as it is ready.

    Attributes:
        data: The batch as the collate function returned it, tensors in host memory; or, with ``stamp``, a
            :class:`fastload.memory.packing.Packed`, whose tensors are in a slot.
        worker: The worker that made it; 0 in the main process.
        receiver: Key from :func:`register`.
        stamp: The slot, a :class:`fastload.memory.slots.Stamp`, or ``None``.
        missed: Why the batch is not in a slot, if slots are in use.
        holds_pixels: Whether its images are pixels, for the device to finish.
    """

    __slots__ = ("data", "holds_pixels", "missed", "receiver", "stamp", "worker")

    def __init__(self, data: Any, worker: int, receiver: int, stamp: Any = None, missed: str | None = None) -> None:
        self.data = data
        self.worker = worker
        self.receiver = receiver
        self.stamp = stamp
        self.missed = missed
        self.holds_pixels = False

    def pin_memory(self) -> Any:
        """Deliver the batch to its receiver, or drop it if the receiver's iterator is gone."""
        receiver = _receivers.get(self.receiver)
        return None if receiver is None else receiver.arrive(self)


def count_pinned(data: Any) -> tuple[int, int]:
    """Count the pinned leaves and all leaves of ``data``.

    Queries CUDA, so do not call it in a forked process.
    """
    pinned: list[bool] = []

    def note(leaf: Any) -> Any:
        pinned.append(isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.is_pinned())
        return leaf

    map_tensors(note, data)
    return sum(pinned), len(pinned)
