"""Record calls that join deferred tensors to a batch."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data._utils.collate import collate_tensor_fn

from fastload.deferred import memory as deferred_memory
from fastload.deferred.content import Content, joined
from fastload.deferred.recorder import (
    CallRecorder,
    painted_as,
    part_of_tensor,
    record_by,
    recorded,
    small_ordinary,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def _stack(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Stack images to a batch."""
    tensors = args[0] if args else kwargs.get("tensors")
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if not isinstance(tensors, list | tuple) or len(args) > 2 or dim != 0:
        return NotImplemented
    out = kwargs.get("out")
    if out is None and not set(kwargs) - {"tensors", "dim", "out"}:
        return _stacked(recorder, func, tensors)
    if type(out) is not torch.Tensor or getattr(out, "stands_for", None) is not _SharedToBe:
        return NotImplemented
    made = _stacked(recorder, func, tensors)
    if not isinstance(made, torch.Tensor):
        recorder.paint(func, args, kwargs)
        storage: Any = torch.empty(0, dtype=out.dtype)._typed_storage()  # type: ignore[no-untyped-call]
        shared = tensors[0].new(storage._new_shared(out.numel())).resize_(out.size())
        return func(tensors, 0, out=shared)
    memory = deferred_memory.any_memory_of(made)
    if memory is not None:
        memory.is_shared, memory.resizable = True, False
    torch._C._increment_version([made] * _VERSION_OF_COLLATED)
    return made


def _stacked(recorder: CallRecorder, func: Any, tensors: Sequence[Any], *, of_batches: bool = False) -> Any:
    """Join images, or batches of them, to a batch."""
    contents = []
    for each in tensors:
        found = part_of_tensor(each)
        if found is None or each.dim() != tensors[0].dim():
            return NotImplemented
        contents.append(found[1])
    if not contents or not _are_alike(contents, of_batches=of_batches):
        return NotImplemented
    dims, is_of_masks = tensors[0].dim() + (not of_batches), contents[0].channels == 1
    if dims != 4 and not (is_of_masks and dims == 3):
        return NotImplemented
    small = func([small_ordinary(each, content) for each, content in zip(tensors[:2], contents, strict=False)])
    made = joined(contents, planar=is_of_masks or small.is_contiguous())

    def by_torch() -> Any:
        return func([painted_as(each, content) for each, content in zip(tensors, contents, strict=True)])

    key = func, dims, made.channels, contents[0].planar, made.table.dtype, type(small)
    return recorded(recorder, key, made, dims, type(small), by_torch, small=small if is_of_masks else None)


def _cat(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Put batches one behind the other."""
    if len(args) > 2 or set(kwargs) - {"tensors", "dim"} or not (args or "tensors" in kwargs):
        return NotImplemented
    tensors = args[0] if args else kwargs["tensors"]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if not isinstance(tensors, list | tuple) or (dim != 0 and not _is_first(dim, tensors)):
        return NotImplemented
    return _stacked(recorder, func, tensors, of_batches=True)


def _is_first(dim: Any, tensors: Sequence[Any]) -> bool:
    """Whether a negative dimension is the first of each tensor."""
    return all(isinstance(each, torch.Tensor) and dim == -each.dim() for each in tensors)


def _are_alike(contents: list[Content], *, of_batches: bool) -> bool:
    """Whether all are of images of one kind; each of one, but for batches."""
    first = contents[0]
    kind = first.planar, first.image_size
    return all(
        each.table is first.table and (of_batches or len(each.images) == 1) and (each.planar, each.image_size) == kind
        for each in contents
    )


_COLLATES: Final = collate_tensor_fn.__code__
"""``default_collate`` of tensors. In a worker it asks its first sample for shared memory, to stack all into that."""

_VERSION_OF_COLLATED: Final = 3
"""Of the stack then: its memory is set, resized and written."""


class _SharedToBe:
    """Takes the place of a deferred stack's shared memory, which torch would clear."""


_STAND_IN: Final = SimpleNamespace(_new_shared=lambda *_arguments, **_rest: _SharedToBe())
"""For the storage of a stack's first sample: torch asks it for shared memory."""


def storage_to_stack_into() -> Any:
    """Return a storage's stand-in, if the caller's caller is :data:`_COLLATES`.

    Returns:
        ``None`` if it is not, nothing records here, or torch is to make the stack or raise its error.
    """
    frame = sys._getframe(2)
    if frame.f_code is not _COLLATES or not torch._C._is_torch_function_mode_enabled():
        return None
    with torch._C.DisableTorchFunction():
        batch = frame.f_locals["batch"]
        kind = batch[0].size(), batch[0].dtype
        alike = all(
            isinstance(each, torch.Tensor) and (each.size(), each.dtype) == kind and deferred_memory.is_deferred(each)
            for each in batch
        )
    return _STAND_IN if alike else None


def _make_shared(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a tensor on shared memory that is not needed."""
    if len(args) != 2 or type(args[1]) is not _SharedToBe:
        return NotImplemented
    made = torch.empty(0, dtype=args[0].dtype)
    made.stands_for = _SharedToBe  # type: ignore[attr-defined]
    return made


@functools.cache
def install() -> None:
    """Let recorders record these."""
    record_by(_stack, [torch.stack])
    record_by(_cat, [torch.cat, torch.concat, torch.concatenate])
    record_by(_make_shared, [torch.Tensor.new])
