"""A batch in host memory, on its way from an engine to the device, and how to walk through one."""

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
    """Stands for a tensor during a walk."""

    __slots__ = ()


def is_movable(data: Any) -> bool:
    """Whether ``data`` is of a type of the user's own that pins and moves itself, as torch's documentation asks."""
    return hasattr(data, "pin_memory") and hasattr(data, "to")


def map_tensors(function: Callable[[Any], Any], data: Any, tuple_type: type | None = None) -> Any:
    """Rebuild ``data`` with ``function`` applied to every tensor, :class:`Leaf` and movable object in it.

    Containers are those that torch's ``pin_memory`` walks through (mappings, sequences, tuples, namedtuples; extra
    attributes of mutable ones survive), and dataclasses as well. Whatever else there is (numbers, strings, ``None``,
    NumPy arrays) stays as it is, and so does a container in which nothing changed.

    Args:
        function: Called once per leaf, in the order of the containers.
        data: Any nested batch.
        tuple_type: Rebuild every container, as torch does when the user asks it to pin: a range becomes a list then,
            and a tuple this type, which differs between versions of torch. An object that only has ``pin_memory()`` is
            a leaf then, too.
    """
    # Recursive by its own name, not through an inner function: that would be a reference cycle, which keeps a batch's
    # device memory until the garbage collector runs (seen: 22 batches instead of 4).
    if isinstance(data, torch.Tensor | Leaf):
        return function(data)
    if data is None or isinstance(data, str | bytes | int | float | collections.UserString):
        return data
    if tuple_type is None and isinstance(data, bytearray | memoryview | array.array | range):
        return data  # numbers only, millions perhaps: 32 JPEG files of 100 kB took 4.5 s to walk
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
        except TypeError:  # no copy(), no __setitem__ or no __init__(iterable), as range has none
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
    if tuple_type is not None and hasattr(data, "pin_memory"):  # can be pinned, which was asked for, but not moved
        return function(data)
    return data


def as_inference_tensors(data: Any) -> Any:
    """A batch as torch's iterator would make it here, inside ``torch.inference_mode()``. Copies no strided tensor.

    Torch makes them in the consumer's thread. Ours may come from another one, where the mode is off: each has its own.

    Args:
        data: Any nested batch. Tensors that require gradients, and what is no tensor, stay as they are.
    """
    return map_tensors(_as_inference_tensor, data)


def _as_inference_tensor(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.requires_grad or leaf.is_inference():
        return leaf
    kind = type(leaf)
    lazy = leaf.is_nested or leaf.is_quantized or leaf.is_conj() or leaf.is_neg()
    if lazy or leaf.layout != torch.strided or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return leaf.clone()  # more than memory, and rare
    with torch._C.DisableTorchFunctionSubclass():  # a view would be an ordinary tensor, as what it is a view of
        where = leaf.untyped_storage(), leaf.storage_offset(), leaf.size(), leaf.stride()
        alias = torch.empty(0, dtype=leaf.dtype, device=leaf.device).set_(*where)
        if kind is not torch.Tensor:
            alias = alias.as_subclass(kind)
            vars(alias).update(vars(leaf))
    return alias


class Receiver(Protocol):
    """Where host batches of one iterator arrive; lives in the process that trains."""

    def arrive(self, batch: HostBatch) -> Any:
        """Take a batch that an engine has finished; return what goes to the consumer in its place."""
        ...


_receivers: weakref.WeakValueDictionary[int, Receiver] = weakref.WeakValueDictionary()
_keys = itertools.count()  # never the same twice: a late batch must not find another iterator's receiver


def register(receiver: Receiver) -> int:
    """Give ``receiver`` a key under which batches from other processes find it; holds it weakly."""
    key = next(_keys)
    _receivers[key] = receiver
    return key


class HostBatch:
    """What an engine hands to the device side: the seam between the two.

    Torch's pin-memory thread (or the main process, with no workers) calls :meth:`pin_memory`, as it does for any custom
    batch type, and thereby delivers the batch to its receiver the moment it is ready.

    Attributes:
        data: The batch as the collate function returned it, tensors in host memory; or, with ``stamp``, a
            :class:`fastload.memory.packing.Packed`, whose tensors lie in a slot.
        worker: The worker that made it; 0 in the main process.
        receiver: Key from :func:`register`.
        stamp: The slot, a :class:`fastload.memory.slots.Stamp`, or ``None``.
        missed: Why there is no slot, where there could have been one.
    """

    __slots__ = ("data", "missed", "receiver", "stamp", "worker")

    def __init__(self, data: Any, worker: int, receiver: int, stamp: Any = None, missed: str | None = None) -> None:
        self.data = data
        self.worker = worker
        self.receiver = receiver
        self.stamp = stamp
        self.missed = missed

    def pin_memory(self) -> Any:
        """Deliver the batch; without a receiver (its iterator is gone) it is dropped."""
        receiver = _receivers.get(self.receiver)
        return None if receiver is None else receiver.arrive(self)


def count_pinned(data: Any) -> tuple[int, int]:
    """How many leaves of ``data`` are pinned, and how many there are. Asks CUDA: not for a forked process."""
    pinned: list[bool] = []

    def note(leaf: Any) -> Any:
        pinned.append(isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.is_pinned())
        return leaf

    map_tensors(note, data)
    return sum(pinned), len(pinned)
