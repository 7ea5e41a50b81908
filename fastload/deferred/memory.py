"""Tensors whose memory is not filled until it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.utils.dlpack

from fastload import _core
from fastload.deferred.geometry import part_of, placed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastload.deferred.content import Content


def tensor_of(content: Content, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor | None:
    """Make a plain tensor that will hold a content.

    Args:
        content: What it holds whenever it is read.
        shape: Of all its images.
        stride: In elements; without gaps.

    Returns:
        ``None`` if there is no memory for it.
    """
    try:
        memory: Any = _core.DeferredMemory(content.core())
    except MemoryError:
        return None
    memory.content = content
    dtype = str(content.table.dtype).removeprefix("torch.")
    made: torch.Tensor = torch.utils.dlpack.from_dlpack(memory.array(shape, stride, dtype))
    return made


def memory_of(tensor: torch.Tensor) -> Any:
    """The unfilled memory that a tensor is in; ``None`` if it is in other memory."""
    try:
        address = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own
        return None
    memory = _core.deferred_memory_at(address)
    return None if memory is None or memory.painted else memory


def is_deferred(tensor: torch.Tensor) -> bool:
    """Whether a tensor's first element is in memory that is not filled."""
    try:
        memory = _core.deferred_memory_at(tensor.data_ptr())
    except (RuntimeError, NotImplementedError):
        return False
    return memory is not None and not memory.painted


def part_of_memory(tensor: torch.Tensor) -> tuple[Any, Content, bool] | None:
    """Find the unfilled memory that a tensor is a view of, what the tensor holds, and whether that is all of it.

    Returns:
        ``None`` if it is in other memory, or a view that is no part of images.
    """
    memory = memory_of(tensor)
    if memory is None:
        return None
    content: Content = memory.content
    where = placed(tensor, content)
    part = None if where is None else part_of(content, *where)
    return None if part is None else (memory, part, part is content)


def content_of(tensor: torch.Tensor) -> Content | None:
    """Return what a tensor is to hold, without gaps; ``None`` for tensors in other memory, and once it is filled."""
    found = part_of_memory(tensor)
    return None if found is None else found[1]


def paint(memory: Any) -> None:
    """Fill memory now."""
    memory.paint()


def change(memory: Any, content: Content) -> bool:
    """Let unfilled memory hold another content.

    Returns:
        Whether it was still unfilled.
    """
    try:
        memory.program = content.core()
    except RuntimeError:
        return False
    memory.content = content
    return True
