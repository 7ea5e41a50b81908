"""Make tensors whose memory is painted when it is touched first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import ImageFile

from fastload import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastload.deferred.content import Content

_DECODER = str(Path(__file__).with_name("decode_by_pillow.py"))


def guard_pages() -> bool:
    """Prepare this process; return whether it can have deferred tensors.

    Call it again if :func:`fastload._core.guard_is_ours` is false: the action that was installed meanwhile is asked for
    all other faults then.
    """
    truncated = str(int(ImageFile.LOAD_TRUNCATED_IMAGES))
    # Without site and its hooks; but with the variables that say where Python is.
    return _core.guard_pages([sys.executable, "-S", "-W", "ignore", _DECODER, truncated, *sys.path])


def tensor_of(content: Content, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """Make a tensor that is painted when it is touched first.

    Any instruction that reads or writes it, in any thread and in forked children, finds the values of ``content``. The
    kernel does not: system calls on the memory fail with EFAULT until it is painted.

    Args:
        content: What it holds. Its table's dtype is the tensor's.
        shape: All elements, in memory of the content's size.
        stride: Values.

    Raises:
        MemoryError: There are too many, or :func:`guard_pages` was not called or is false.
    """
    memory = _core.DeferredMemory(content.core())
    memory.content = content
    return torch.from_dlpack(memory.array(shape, stride, str(content.table.dtype).removeprefix("torch.")))


def memory_of(tensor: torch.Tensor) -> _core.DeferredMemory | None:
    """Find the deferred memory that a tensor, or what it is a view of, has."""
    return _core.deferred_memory_at(tensor.untyped_storage().data_ptr())


def replace(memory: _core.DeferredMemory, content: Content) -> None:
    """Change what a memory is to hold, to something of the same size.

    Raises:
        ValueError: It is painted already.
    """
    memory.program = content.core()
    memory.content = content


def paint(memory: _core.DeferredMemory) -> None:
    """Paint a memory now. Images that the core does not take are made by Pillow, whose errors are raised."""
    statuses = memory.paint()
    if any(statuses):
        images = memory.content.images
        memory.paint([(i, np.ascontiguousarray(images[i].pixels())) for i, status in enumerate(statuses) if status])
