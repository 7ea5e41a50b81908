"""Pack a nested batch into a slot, and unpack it.

Layout of a slot: the large tensors, then the small ones, each at a multiple of 64 bytes. The small ones are adjacent so
that one copy moves them all to the device, and separate from the large ones so that on the device a small tensor never
keeps a large one alive.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
import torch.utils.data._utils.collate as torch_collate
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from fastload._batch import Leaf, is_plain, map_tensors
from fastload.memory import unfilled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastload.memory.unfilled import Parts, SlotStager

ALIGNMENT: Final = 64  # bytes: a cache line, enough for any vector load
SMALL_BYTES: Final = 64 * 1024  # a copy of this size takes about as long as starting it


class CannotPackError(Exception):
    """A batch cannot be sent in a slot; the message briefly says why.

    Attributes:
        needed: Bytes of a slot in which it can; 0 if unknown.
    """

    needed = 0


class DoesNotFitError(CannotPackError):
    """A batch is larger than its slot."""

    def __init__(self, needed: int = 0) -> None:
        super().__init__("larger than a slot")
        self.needed = needed


class EscapedError(CannotPackError):
    """A tensor stacked into the slot is held by an opaque object."""

    def __init__(self) -> None:
        super().__init__("stacked into a slot, but not found in the batch")


@dataclass(frozen=True, slots=True)
class Ref(Leaf):
    """Replaces a tensor whose bytes are in a slot.

    Attributes:
        offset: Byte offset in the slot.
        dtype: The tensor's dtype.
        size: The tensor's size.
        stride: The tensor's stride, in elements.
    """

    offset: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch whose tensors are in a slot.

    Attributes:
        tree: The batch with a :class:`Ref` for each tensor in the slot; other objects are unchanged.
        small: ``(begin, end)`` of the small tensors, in bytes.
        nbytes: Bytes of the slot in use.
        staged: What is staged for a GPU, and where in the slot.
    """

    tree: Any
    small: tuple[int, int]
    nbytes: int
    staged: tuple[Any, int] | None = None


def aligned(nbytes: int) -> int:
    """Round up to the next multiple of :data:`ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def is_packable(leaf: Any) -> bool:
    """Whether ``leaf`` is a plain tensor in host memory, dense and without autograd history."""
    return type(leaf) is torch.Tensor and leaf.device.type == "cpu" and not leaf.requires_grad and is_plain(leaf)


def packed_bytes(data: Any) -> int:
    """Number of bytes that ``data`` needs in a slot."""
    total = 0

    def add(leaf: Any) -> Any:
        nonlocal total
        if is_packable(leaf):
            total += aligned(leaf.numel() * leaf.element_size())
        return leaf

    map_tensors(add, data)
    return total


class Packer:
    """Fills one slot, front to back.

    Args:
        buffer: The slot: 1-D uint8, its first byte at a multiple of :data:`ALIGNMENT`.
        stager: Stages unfilled tensors for a GPU.
    """

    def __init__(self, buffer: torch.Tensor, stager: SlotStager | None = None) -> None:
        self._buffer = buffer
        self._stager = stager
        self._taken: list[Leaf] = []  # stacks of unfilled tensors
        self._used = 0
        self._begin = buffer.data_ptr()
        self._stacked: set[int] = set()  # offsets

    def allocate(self, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        """Reserve space for a dense tensor and return it, uninitialised.

        Raises:
            DoesNotFitError: The slot is too small.
        """
        nbytes = math.prod(size) * dtype.itemsize
        if self._used + nbytes > self._buffer.numel():
            raise DoesNotFitError
        flat = self._buffer[self._used : self._used + nbytes]
        self._used += aligned(nbytes)
        return flat.view(dtype).as_strided(size, stride) if nbytes else torch.empty(size, dtype=dtype)

    def _is_inside(self, tensor: torch.Tensor) -> bool:
        return (
            unfilled.content_of(tensor) is None
            and self._begin <= tensor.data_ptr() < self._begin + self._buffer.numel()
        )

    def stack(self, samples: list[torch.Tensor], parts: Parts | None = None) -> torch.Tensor | Leaf:
        """Stack samples into the slot, as ``default_collate`` stacks them into shared memory."""
        if (
            self._stager is not None
            and parts is not None
            and len(parts) == 1
            and not isinstance(parts[0], torch.Tensor)
        ):
            size = (len(samples), *samples[0].size())
            if (leaf := self._stager.take(parts[0], size, contiguous_stride(size))) is not None:
                self._taken.append(leaf)
                return leaf
        stacked = stack_to(self.allocate, samples, parts)
        self._stacked.add(stacked.data_ptr() - self._begin)
        return stacked

    def pack(self, data: Any) -> Packed:
        """Copy every packable tensor of ``data`` that is not in the slot yet into it.

        Raises:
            DoesNotFitError: The slot is too small.
            EscapedError: The batch would keep a view into the slot after it is reused.
        """
        small: list[torch.Tensor] = []
        found: set[int] = set()

        def place(leaf: Any) -> Any:
            if isinstance(leaf, Leaf):
                found.add(id(leaf))
            if not is_packable(leaf) or not leaf.numel():
                return leaf
            if self._stager is not None and leaf.numel() * leaf.element_size() > SMALL_BYTES:
                content = unfilled.content_of(leaf)
                staged = None if content is None else self._stager.take(content, leaf.size(), leaf.stride())
                if staged is not None:
                    return staged
            if self._is_inside(leaf):
                found.add(leaf.data_ptr() - self._begin)
                return self._ref(leaf)
            if leaf.numel() * leaf.element_size() <= SMALL_BYTES:
                small.append(leaf)
                return _Small(len(small) - 1)
            return self._ref(self._copied(leaf))

        tree = map_tensors(place, data)
        if not self._stacked.union(map(id, self._taken)) <= found:
            raise EscapedError
        begin = self._used
        if small:
            refs = [self._ref(self._copied(leaf)) for leaf in small]
            tree = map_tensors(lambda leaf: refs[leaf.index] if isinstance(leaf, _Small) else leaf, tree)
        end = self._used
        staged = None
        if self._stager is not None:
            with torch._C.DisableTorchFunction():
                staged = self._stager.write(self._buffer[end:])
        if staged is not None:
            self._used += aligned(staged[1])
            staged = staged[0], end
        return Packed(tree, (begin, end), self._used, staged)

    def _copied(self, leaf: torch.Tensor) -> torch.Tensor:
        # Dense strides (channels_last, a transposed matrix) are kept; tensors with gaps or overlaps become contiguous,
        # as in torch's own pinning and copying.
        with torch._C.DisableTorchFunction():
            stride = torch.empty_like(leaf, device="meta").stride()
            copy = self.allocate(leaf.dtype, leaf.size(), stride)
            content = unfilled.content_of(leaf)
            if content is None or stride != leaf.stride():
                return copy.copy_(leaf)
            unfilled.paint([content], bytes_of(copy))
            return copy

    def _ref(self, tensor: torch.Tensor) -> Ref:
        return Ref(tensor.data_ptr() - self._begin, tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()))


@dataclass(frozen=True, slots=True)
class _Small(Leaf):
    index: int


def stack_to(
    allocate: Callable[[torch.dtype, Sequence[int], Sequence[int]], torch.Tensor],
    samples: list[torch.Tensor],
    parts: Parts | None,
) -> torch.Tensor:
    """Stack samples into a tensor from ``allocate``, by their parts if some are unfilled."""
    size = (len(samples), *samples[0].size())
    out = allocate(samples[0].dtype, size, contiguous_stride(size))
    if parts is None:
        return torch.stack(samples, 0, out=out)
    unfilled.paint(parts, bytes_of(out))
    return out


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor's memory, 1-D uint8."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def contiguous_stride(size: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor of ``size``, in elements."""
    stride = [1] * len(size)
    for axis in range(len(size) - 2, -1, -1):
        stride[axis] = stride[axis + 1] * max(1, size[axis + 1])
    return tuple(stride)


def stacks_into(collate_fn: Any) -> bool:
    """Whether :func:`collate_into` can replace ``collate_fn``: torch's default, not extended.

    A function that the user has added may hide a tensor in an opaque object.
    """
    return (
        collate_fn is default_collate
        and torch_collate.collate is collate
        and torch_collate.default_collate_fn_map is default_collate_fn_map
        and default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn
        and all(map(_is_from_torch, (default_collate, collate, *default_collate_fn_map.values())))
    )


def _is_from_torch(function: Any) -> bool:
    """Whether a function is torch's own, annotated for profiling or not.

    ``__module__`` does not tell, because ``functools.wraps`` copies it.
    """
    return getattr(function, "__globals__", None) is vars(torch_collate) and (
        function.__code__.co_filename == torch_collate.__file__ or "__fastload__" in (function.__kwdefaults__ or ())
    )


class Stacker(Protocol):
    """Stacks large tensors for :func:`collate_into`."""

    def stack(self, samples: list[torch.Tensor], parts: Parts | None = None) -> torch.Tensor | Leaf:
        """Stack samples; raises ``TypeError`` or ``RuntimeError`` for those that torch should stack.

        Args:
            samples: At least one.
            parts: See :func:`fastload.memory.unfilled.parts_of`.
        """
        ...


def collate_into(packer: Stacker, samples: list[Any]) -> Any:
    """Collate like ``default_collate``, but let ``packer`` stack large tensors, such as straight into its slot.

    Containers, dtypes and errors are the same.

    Raises:
        DoesNotFitError: The slot is too small.
    """
    return collate(samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: _StackInto(packer)})


class _StackInto:
    def __init__(self, packer: Stacker) -> None:
        self._packer = packer

    def __call__(self, batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor | Leaf:
        first = batch[0]
        parts = unfilled.parts_of(batch)
        # In a worker, torch gives every batch the first sample's dtype; in the main process it promotes.
        packs = is_packable(first) and (get_worker_info() is not None or all(_is_like(first, other) for other in batch))
        if parts is not None or packs:
            with contextlib.suppress(RuntimeError, TypeError):
                if first.numel() * first.element_size() * len(batch) > SMALL_BYTES:
                    return self._packer.stack(batch, parts)
                # Small: packed with the other small tensors later.
                return stack_to(_allocated, batch, parts)
        stacked: torch.Tensor = collate_tensor_fn(batch, collate_fn_map=collate_fn_map)  # may raise torch's error
        return stacked


def _allocated(dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


def _is_like(first: torch.Tensor, other: Any) -> bool:
    return isinstance(other, torch.Tensor) and other.dtype == first.dtype and other.is_contiguous()


def unpack(packed: Packed, buffer: torch.Tensor, others: Callable[[Any], Any], tuple_type: type | None = None) -> Any:
    """Rebuild the batch with views into ``buffer``, and apply ``others`` to its unpacked leaves."""

    def view(leaf: Any) -> Any:
        if not isinstance(leaf, Ref):
            return others(leaf)
        flat = buffer[leaf.offset : leaf.offset + math.prod(leaf.size) * leaf.dtype.itemsize]
        return flat.view(leaf.dtype).as_strided(leaf.size, leaf.stride)

    return map_tensors(view, packed.tree, tuple_type)
