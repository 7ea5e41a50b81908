"""Tensors of every dtype and layout, and their observable properties."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch

from fastload._batch import map_tensors
from fastload.memory.packing import ALIGNMENT, is_packable


@dataclasses.dataclass
class Seen:
    """All observable properties of a tensor."""

    kind: type
    dtype: torch.dtype
    layout: torch.layout
    size: tuple[int, ...]
    stride: tuple[int, ...] | None
    requires_grad: bool
    bits: bytes


def bits(tensor: torch.Tensor) -> bytes:
    """A tensor's bytes, because for ``torch.equal`` NaN differs from itself."""
    dense = tensor.detach().resolve_conj().resolve_neg()
    dense = dense if dense.layout == torch.strided else dense.to_dense()
    packed = torch.empty(dense.numel(), dtype=dense.dtype).copy_(
        dense.reshape(-1)
    )  # also for tensors with one element and a gap
    return packed.view(torch.uint8).numpy().tobytes()


def seen(batch: Any) -> Any:
    """Replace each tensor of ``batch`` by its :class:`Seen`."""

    def look(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        stride = leaf.stride() if leaf.layout == torch.strided else None
        return Seen(type(leaf), leaf.dtype, leaf.layout, tuple(leaf.size()), stride, leaf.requires_grad, bits(leaf))

    return map_tensors(look, batch)


def made(dtype: torch.dtype, size: tuple[int, ...], layout: str, seed: int) -> torch.Tensor:
    """Make a tensor of ``dtype`` and about ``size``, filled with random bits."""
    count = math.prod(size)
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == torch.bool else 256, count * dtype.itemsize, np.uint8)
    flat = torch.from_numpy(raw).view(dtype) if count else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(size)
    if layout == "transposed":
        return tensor.permute(tuple(reversed(range(tensor.dim()))))
    if layout == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout == "every other" and tensor.dim():
        return tensor[..., ::2]
    if layout == "expanded":
        return tensor.unsqueeze(0).expand(3, *tensor.size())
    if layout == "tail" and tensor.dim() and size[0] > 1:
        return tensor[1:]  # begins in the middle of its storage
    return tensor


class Subclass(torch.Tensor):
    """A user-defined tensor type."""


def slot(nbytes: int) -> torch.Tensor:
    """Memory to pack into, aligned like a slot."""
    buffer = torch.full((nbytes,), 0xEE, dtype=torch.uint8)
    assert buffer.data_ptr() % ALIGNMENT == 0 or not nbytes
    return buffer


def dense(batch: Any) -> Any:
    """The expected result of packing: dense tensors keep their layout, others become copies."""
    return map_tensors(lambda leaf: leaf.clone() if is_packable(leaf) and leaf.numel() else leaf, batch)
