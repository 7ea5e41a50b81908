"""Record calls that put deferred tensors' values in another order.

So image processors make patches of images, which they join.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torchvision import tv_tensors

from fastload.deferred import memory as deferred_memory
from fastload.deferred.content import Content, Rearranged
from fastload.deferred.geometry import part_of
from fastload.deferred.recorder import CallRecorder, as_view, named, painted, part_of_tensor, record_by
from fastload.memory.packing import contiguous_stride

if TYPE_CHECKING:
    from collections.abc import Callable

_T: Final[Any] = torch.Tensor


def _reshape(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A view, where torch makes one; else a copy in the order of its dimensions."""
    if not args or type(args[0]) not in (torch.Tensor, tv_tensors.Image):
        return NotImplemented
    tensor = args[0]
    with torch._C.DisableTorchFunctionSubclass():
        like = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
        try:
            made = func(like, *args[1:], **kwargs)
        except (RuntimeError, TypeError, ValueError):  # torch raises it again
            return NotImplemented
    if made.untyped_storage()._cdata == like.untyped_storage()._cdata:
        return as_view(recorder, func, args, kwargs)
    return _copy(recorder, func, args, kwargs, made)


def _contiguous(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tensor without gaps as it is; a copy of any other view."""
    if len(args) != 1 or kwargs:
        return NotImplemented
    if args[0].is_contiguous():
        return as_view(recorder, func, args, kwargs)
    if part_of_tensor(args[0]) is not None:
        return NotImplemented
    return _copy(recorder, func, args, kwargs, torch.empty(args[0].size(), dtype=args[0].dtype, device="meta"))


def _copy(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], like: torch.Tensor) -> Any:
    """Record a copy of a view of images, which has no gaps.

    Args:
        recorder: Records the call.
        func: Makes the copy.
        args: Of the call; the first is the view.
        kwargs: Of the call.
        like: A tensor of the copy's size and strides.
    """
    tensor = args[0]
    memory = deferred_memory.memory_of(tensor)
    if memory is None or type(tensor) is not torch.Tensor or tensor.requires_grad:
        return NotImplemented
    content = memory.content
    if not isinstance(content, Content) or tensor.dtype != content.table.dtype:
        return NotImplemented
    part = _part_in_order(tensor, content)
    if part is None:
        return NotImplemented

    def by_torch() -> Any:
        # All images, as a tensor of which the copied one is the same view.
        whole = painted(content, torch.empty(content.nbytes // tensor.element_size(), device="meta"))
        return func(whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()), *args[1:], **kwargs)

    key = func, content.planar, content.table.dtype, len(part.axes)
    return _made(recorder, key, Rearranged((part,)), like.size(), by_torch)


def _part_in_order(tensor: torch.Tensor, content: Content) -> Content | None:
    """Return the images that a view is of, with its dimensions.

    Returns:
        ``None`` if it takes different parts of them.
    """
    height, width = content.image_size
    size = content.channels * height * width
    image, first = divmod(int(tensor.storage_offset()), size)
    dims = [dim for dim in zip(tensor.size(), tensor.stride(), strict=True) if dim[0] != 1]
    count = 1
    if dims and dims[0][1] == size:
        (count, _), *dims = dims
    if first + sum((n - 1) * stride for n, stride in dims) >= size:
        return None
    chosen = part_of(content, range(image, image + count), (0, 0, height, width))
    return None if chosen is None else replace(chosen, axes=tuple(dims) or ((1, 1),), first=first)


def _made(recorder: CallRecorder, key: Any, content: Rearranged, size: torch.Size, by_torch: Callable[[], Any]) -> Any:
    try:
        made = deferred_memory.tensor_of(content, size, contiguous_stride(size))
    except MemoryError:
        return NotImplemented
    return made if recorder.checked(key, content, made, by_torch) else NotImplemented


def _join(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Put such tensors one behind the other, by ``cat`` or ``stack``."""
    given = {**dict(zip(("tensors", "dim"), args, strict=False)), **kwargs}
    tensors = given.get("tensors")
    if len(args) > 2 or given.keys() - {"tensors", "dim"} or not isinstance(tensors, list | tuple) or not tensors:
        return NotImplemented
    if not all(type(each) is torch.Tensor and not each.requires_grad for each in tensors):
        return NotImplemented
    contents = [deferred_memory.rearranged_of(each) for each in tensors]
    parts = [part for content in contents if content is not None for part in content.parts]
    if None in contents or len({each.dtype for each in tensors}) > 1:
        return NotImplemented
    likes = [torch.empty(each.size(), dtype=each.dtype, device="meta") for each in tensors]
    try:
        like = func(likes, **{name: value for name, value in given.items() if name != "tensors"})
    except (RuntimeError, TypeError, ValueError, IndexError):  # torch raises it again
        return NotImplemented
    dims = tensors[0].dim() + (func is torch.stack)
    if given.get("dim", 0) not in (0, -dims):
        return NotImplemented

    def by_torch() -> Any:
        reals = [painted(content, like) for content, like in zip(contents, likes, strict=True) if content is not None]
        return func(reals, **{name: value for name, value in given.items() if name != "tensors"})

    return _made(recorder, (func, tensors[0].dtype), Rearranged(tuple(parts)), like.size(), by_torch)


@functools.cache
def install() -> None:
    """Let recorders record these."""
    record_by(_reshape, named("reshape", "flatten"))
    record_by(_contiguous, [_T.contiguous])
    record_by(_join, [torch.cat, torch.concat, torch.concatenate, torch.stack])
