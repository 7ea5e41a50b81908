"""Tensors whose memory is not filled until it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fastload import _core

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
    made: torch.Tensor = torch.from_dlpack(memory.array(shape, stride, str(content.table.dtype).removeprefix("torch.")))
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
