"""A batch in host memory between engine and device, and functions that traverse it."""

from __future__ import annotations

import array
import collections
import collections.abc
import contextlib
import copy
import dataclasses
import functools
import inspect
import itertools
import operator
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Leaf:
    """Base of objects that replace a tensor in a batch."""

    __slots__ = ()


def is_movable(data: Any) -> bool:
    """Whether ``data`` has ``pin_memory()`` and a ``to()`` that takes a device: torch's protocol.

    Torch's storages have them, too, but are tensors' memory, and warn of torch's own calls: they stay on the host.
    """
    if isinstance(data, torch.UntypedStorage | torch.TypedStorage):
        return False
    return _method(data, "pin_memory") is not None and _call_of(_method(data, "to")) is not None


def _method(data: Any, name: str) -> Any:
    """Return a method of ``data``, or ``None``.

    What a container makes up for any name is an item, as in a ``dict`` whose keys are attributes; asking may even add
    one.
    """
    owner = type(data) if isinstance(data, collections.abc.Mapping | collections.abc.Sequence) else data
    try:
        return getattr(data, name) if callable(getattr(owner, name, None)) else None
    except Exception:  # noqa: BLE001 - any error of the type's __getattr__
        return None


# How a custom type's to() may be called: whether the device comes by its place, and which arguments by name.
_Call: TypeAlias = tuple[bool, tuple[str, ...]]
_CALLS: Final[tuple[_Call, ...]] = (
    (True, ("non_blocking",)),
    (False, ("device", "non_blocking")),
    (True, ()),
    (False, ("device",)),
)
_calls: weakref.WeakKeyDictionary[Any, _Call | None] = weakref.WeakKeyDictionary()


def _call_of(to: Any) -> _Call | None:
    """Return how to call a ``to()`` with a device; ``None`` if it takes none.

    By its signature, not by trying: a call that fails may have moved a part.
    """
    if to is None:
        return None
    function = getattr(to, "__func__", to)
    try:
        return _calls[function]
    except (KeyError, TypeError):  # TypeError: it cannot be referred to weakly, or hashed
        pass
    try:
        signature = inspect.signature(to)
    except Exception:  # noqa: BLE001 - not known, as of a function written in C
        return _CALLS[0]
    by_name = "device" in list(signature.parameters)[1:]  # then another argument is the first
    preferred = sorted(_CALLS, key=lambda call: by_name and call[0])
    call = next((call for call in preferred if _binds(signature, call)), None)
    with contextlib.suppress(TypeError):
        _calls[function] = call
    return call


def _binds(signature: inspect.Signature, call: _Call) -> bool:
    try:
        signature.bind(*[None] * call[0], **dict.fromkeys(call[1]))
    except TypeError:
        return False
    return True


def moved(leaf: Any, device: torch.device) -> Any:
    """Return a leaf on ``device``.

    That is the leaf itself if it cannot be moved, or if its ``to()`` moves it in place and returns nothing.

    Raises:
        Exception: Any error of a custom type's ``to()``.
    """
    if isinstance(leaf, torch.Tensor):
        try:
            return leaf.to(device, non_blocking=True)
        except (RuntimeError, TypeError) as error:
            return as_it_is(leaf, error)
    by_place, names = _call_of(leaf.to) or _CALLS[0]
    values = {"device": device, "non_blocking": True}
    result = leaf.to(*[device] * by_place, **{name: values[name] for name in names})
    return leaf if result is None else result


def pinned(leaf: Any) -> Any:
    """Return a leaf in pinned memory.

    That is the leaf itself if it cannot be pinned, or if its ``pin_memory()`` pins it in place and returns nothing.

    Raises:
        Exception: Any error of a custom type's ``pin_memory()``.
    """
    if isinstance(leaf, torch.Tensor):
        if leaf.device.type != "cpu" or leaf.layout != torch.strided:
            return leaf
        try:
            return leaf.pin_memory()
        except (RuntimeError, TypeError) as error:
            return as_it_is(leaf, error)
    result = leaf.pin_memory()
    return leaf if result is None else result


def as_it_is(tensor: torch.Tensor, error: Exception) -> torch.Tensor:
    """Return a tensor whose kind a device does not know; raise other errors."""
    lacks_memory = isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError)
    if isinstance(error, NotImplementedError) or not (lacks_memory or is_plain(tensor)):
        return tensor
    raise error


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all said by its bytes, dtype, sizes and strides.

    By what torch decides, too: a tensor that is sparse, nested, quantized, conjugate, or of a type with operations of
    its own has other dispatch keys.
    """
    return torch._C._dispatch_keys(tensor) in _plain_keys(tensor.device.type)


@functools.cache
def _plain_keys(device: str) -> tuple[Any, Any]:
    usual = torch.empty(0, device=device)
    with torch.inference_mode():
        return torch._C._dispatch_keys(usual), torch._C._dispatch_keys(torch.empty(0, device=device))


class _EndlessError(Exception):
    """A container contains itself, or is nested too deeply."""


_DEPTH_MAX: Final = 200
_NUMBERS: Final = frozenset((type(None), int, float, bool, str, bytes))


def map_tensors(function: Callable[[Any], Any], data: Any, tuple_type: type | None = None) -> Any:
    """Rebuild ``data`` with ``function`` applied to every tensor, :class:`Leaf` and movable object.

    Containers are those that torch's ``pin_memory`` traverses (mappings, sequences, tuples, namedtuples; extra
    attributes of mutable ones survive), and dataclasses. Other objects (numbers, strings, ``None``, NumPy arrays) are
    returned unchanged, and so are containers in which nothing changed, that cannot be read or rebuilt, and the whole
    batch if a container contains itself.

    Args:
        function: Called once per leaf, in the order of the containers.
        data: Any nested batch.
        tuple_type: If given, rebuild every container, as torch does when the user asks it to pin: a range becomes a
            list, and a tuple becomes this type, which differs between versions of torch. An object that only has
            ``pin_memory()`` is then also a leaf, and what torch cannot rebuild raises its error.
    """
    try:
        return _mapped(function, data, tuple_type, set())
    except _EndlessError:
        if tuple_type is not None:
            raise RecursionError("a batch that contains itself cannot be pinned") from None
        return data


# Recursive by name, not through an inner function: its reference cycle would keep a batch's device memory until the
# garbage collector runs (seen: 22 batches instead of 4).
def _mapped(function: Callable[[Any], Any], data: Any, tuple_type: type | None, path: set[int]) -> Any:
    kind = type(data)  # looked at first: for what batches mostly are, the rest takes longer than most functions
    if kind is torch.Tensor:
        return function(data)
    if kind in _NUMBERS:
        return data
    if tuple_type is None and (kind is tuple or kind is list) and id(data) not in path and len(path) < _DEPTH_MAX:
        path.add(id(data))
        values = [_mapped(function, value, None, path) for value in data]
        path.remove(id(data))
        return data if all(map(operator.is_, values, data)) else values if kind is list else tuple(values)
    if isinstance(data, torch.Tensor | Leaf):
        return function(data)
    if data is None or isinstance(data, str | bytes | int | float | collections.UserString):
        return data
    if tuple_type is None and isinstance(data, bytearray | memoryview | array.array | range):
        return data  # only numbers, possibly millions: traversing 32 JPEG files of 100 kB took 4.5 s
    if type(data) not in (list, tuple, dict) and is_movable(data):
        return function(data)
    if isinstance(data, collections.abc.Mapping | collections.abc.Sequence):
        try:
            keys, former = _items(data)
        except Exception:
            if tuple_type is not None:
                raise
            return data
        if id(data) in path or len(path) == _DEPTH_MAX:
            raise _EndlessError
        path.add(id(data))
        values = [_mapped(function, value, tuple_type, path) for value in former]
        path.remove(id(data))
        if tuple_type is not None:
            return _rebuilt_as_torch(data, keys, values, tuple_type)
        return data if all(map(operator.is_, values, former)) else _rebuilt(data, keys, values, former)
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return _mapped_dataclass(function, data, tuple_type, path)
    if tuple_type is not None and hasattr(data, "pin_memory"):  # can be pinned, as requested, but not moved
        return function(data)
    return data


def _items(data: Any) -> tuple[Sequence[Any], list[Any]]:
    """Return the keys of a mapping, or the places of a sequence, and their values."""
    if isinstance(data, collections.abc.Mapping):
        items = list(data.items())
        return [key for key, _ in items], [value for _, value in items]
    values = list(data)
    return range(len(values)), values


def _rebuilt(data: Any, keys: Sequence[Any], values: list[Any], former: list[Any]) -> Any:
    """Return a container like ``data`` with these values.

    That is ``data`` itself, as it was, if its type makes none that has them.
    """
    if type(data) is list:
        return values
    if type(data) is tuple:
        return tuple(values)
    if type(data) is dict:
        return dict(zip(keys, values, strict=True))
    new = [(key, value, old) for key, value, old in zip(keys, values, former, strict=True) if value is not old]
    for deeper in (False, True):
        made = None
        with contextlib.suppress(Exception):  # any error of the container's own methods
            made = _filled(data, keys, values, new, deeper)
        if _has_any(data, new):  # the copy has the same items
            made = None
            with contextlib.suppress(Exception):
                for key, _, old in new:
                    data[key] = old
        with contextlib.suppress(Exception):
            now_keys, now = _items(made)
            if now_keys == keys and len(now) == len(values) and all(map(operator.is_, now, values)):
                return made
    return data


def _filled(data: Any, keys: Sequence[Any], values: list[Any], new: list[tuple[Any, Any, Any]], deeper: bool) -> Any:
    if isinstance(data, tuple):
        return _tuple_of(data, values)
    if isinstance(data, collections.abc.MutableMapping | collections.abc.MutableSequence):
        clone = copy.copy(data)
        if deeper:
            _separate(clone, {id(old) for _, _, old in new})
        for key, value, _ in new:  # not update(), which adds to a Counter
            clone[key] = value
        return clone
    if isinstance(data, collections.abc.Mapping):
        return type(data)(dict(zip(keys, values, strict=True)))  # type: ignore[call-arg]
    return type(data)(values)


def _has_any(data: Any, new: list[tuple[Any, Any, Any]]) -> bool:
    if not isinstance(data, collections.abc.MutableMapping | collections.abc.MutableSequence):
        return False
    try:
        return any(data[key] is value for key, value, _ in new)
    except Exception:  # noqa: BLE001 - what it has now cannot be read
        return True


def _separate(clone: Any, items: set[int]) -> None:
    """Copy the attributes that hold ``items``, by their ids."""
    for name, held in vars(clone).items():
        if isinstance(held, dict | list) and items & set(map(id, held.values() if isinstance(held, dict) else held)):
            vars(clone)[name] = copy.copy(held)


def _tuple_of(data: Any, values: list[Any]) -> Any:
    """Return a tuple like ``data``, without calling its type, which may take other arguments."""
    kind = type(data)
    try:
        made = tuple.__new__(kind, values)
    except TypeError:  # a type written in C, as of torch.return_types
        return kind(values)
    if hasattr(data, "__dict__"):
        vars(made).update(vars(data))
    return made


def _rebuilt_as_torch(data: Any, keys: Sequence[Any], values: list[Any], tuple_type: type) -> Any:
    entries = dict(zip(keys, values, strict=True)) if isinstance(data, collections.abc.Mapping) else values
    if isinstance(data, tuple):
        if hasattr(data, "_fields"):
            return type(data)(*values)
        return _tuple_of(data, values) if tuple_type is tuple else tuple_type(values)
    try:
        if isinstance(data, collections.abc.MutableMapping | collections.abc.MutableSequence):
            clone = copy.copy(data)
            for key, value in zip(keys, values, strict=True):
                clone[key] = value
            return clone
        return type(data)(entries)
    except TypeError:  # no copy(), no __setitem__ or no such __init__, as of range
        return entries


def _mapped_dataclass(function: Callable[[Any], Any], data: Any, tuple_type: type | None, path: set[int]) -> Any:
    if id(data) in path or len(path) == _DEPTH_MAX:
        raise _EndlessError
    path.add(id(data))
    changed = {}
    for field in dataclasses.fields(data):
        value = getattr(data, field.name, None)
        new = _mapped(function, value, tuple_type, path)
        if new is not value:
            changed[field.name] = new
    path.remove(id(data))
    if not changed:
        return data
    try:
        made = copy.copy(data)
        for name, value in changed.items():
            object.__setattr__(made, name, value)
        same = all(getattr(made, name) is value for name, value in changed.items())
    except Exception:  # noqa: BLE001 - as for other containers
        return data
    return made if same else data


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
    if not is_plain(leaf):
        with contextlib.suppress(RuntimeError, TypeError):  # a type or layout that cannot be copied
            return leaf.clone()  # cannot be aliased by its storage alone, and rare
        return leaf
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
        needs: Bytes of a slot in which a GPU would have painted it; 0 if it has nothing to paint.
        is_small: Whether its tensors are pageable, and together so small that they need neither slot nor pinning.
    """

    __slots__ = ("data", "is_small", "missed", "needs", "receiver", "stamp", "worker")

    def __init__(
        self,
        data: Any,
        worker: int,
        receiver: int,
        stamp: Any = None,
        missed: str | None = None,
        needs: int = 0,
        *,
        is_small: bool = False,
    ) -> None:
        self.data = data
        self.worker = worker
        self.receiver = receiver
        self.stamp = stamp
        self.missed = missed
        self.needs = needs
        self.is_small = is_small

    def pin_memory(self) -> Any:
        """Deliver the batch to its receiver, or drop it if the receiver's iterator is gone."""
        receiver = _receivers.get(self.receiver)
        return None if receiver is None else receiver.arrive(self)


def count_pinned(data: Any) -> tuple[int, int]:
    """Count the pinned leaves and all leaves of ``data``.

    Queries CUDA, so do not call it in a forked process.
    """
    found: list[bool] = []

    def note(leaf: Any) -> Any:
        found.append(isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and _is_pinned(leaf))
        return leaf

    map_tensors(note, data)
    return sum(found), len(found)


def _is_pinned(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_pinned()
    except (RuntimeError, TypeError):  # a type or layout without memory of its own
        return False
