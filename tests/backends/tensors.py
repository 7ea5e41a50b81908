"""Tensors of every dtype and layout, and all that can be told of one."""

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
    """All that one can tell of a tensor."""

    kind: type
    dtype: torch.dtype
    layout: torch.layout
    size: tuple[int, ...]
    stride: tuple[int, ...] | None
    requires_grad: bool
    bits: bytes


def bits(tensor: torch.Tensor) -> bytes:
    """Not ``torch.equal``, for which NaN differs from itself."""
    dense = tensor.detach().resolve_conj().resolve_neg()
    dense = dense if dense.layout == torch.strided else dense.to_dense()
    packed = torch.empty(dense.numel(), dtype=dense.dtype).copy_(
        dense.reshape(-1)
    )  # also what has one element but a gap
    return packed.view(torch.uint8).numpy().tobytes()


def seen(batch: Any) -> Any:
    """``batch`` with what can be told of each tensor in its place."""

    def look(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        stride = leaf.stride() if leaf.layout == torch.strided else None
        return Seen(type(leaf), leaf.dtype, leaf.layout, tuple(leaf.size()), stride, leaf.requires_grad, bits(leaf))

    return map_tensors(look, batch)


def made(dtype: torch.dtype, size: tuple[int, ...], layout: str, seed: int) -> torch.Tensor:
    """A tensor of ``dtype`` and about ``size``, filled with random bits."""
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
    """A tensor type of the user's own."""


def slot(nbytes: int) -> torch.Tensor:
    """Memory to pack into, as aligned as a slot."""
    buffer = torch.full((nbytes,), 0xEE, dtype=torch.uint8)
    assert buffer.data_ptr() % ALIGNMENT == 0 or not nbytes
    return buffer


def dense(batch: Any) -> Any:
    """What packing is to give back: the same layout where it is dense, what a copy makes of it elsewhere."""
    return map_tensors(lambda leaf: leaf.clone() if is_packable(leaf) and leaf.numel() else leaf, batch)
