"""Find what the memory of a deferred tensor is to hold."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from fastload.deferred.content import Content

_contents: dict[int, tuple[weakref.ref[Any], int, Content]] = {}


def content_of(tensor: torch.Tensor) -> Content | None:
    """Return what a whole deferred tensor is to hold; ``None`` for others, and once it is painted."""
    found = _contents.get(id(tensor))
    return found[2] if found is not None and found[0]() is tensor and found[1] == tensor.data_ptr() else None


def register(tensor: torch.Tensor, content: Content) -> None:
    """Make a tensor a deferred one."""
    _contents[id(tensor)] = weakref.ref(tensor), tensor.data_ptr(), content
