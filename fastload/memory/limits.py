"""Limits of pinned memory: whether batches use it, and how much slots may take."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fastload._machine import usable_memory_bytes
from fastload.options import has_streams

if TYPE_CHECKING:
    import torch

    from fastload.options import LoaderConfig


def unpinned_because(loader: LoaderConfig[Any], device: torch.device) -> str | None:
    """Why batches are not copied through pinned memory; ``None`` if they are."""
    if not has_streams(device):
        return f"{device.type} has none"
    return "max_pinned_bytes=0" if loader.max_pinned_bytes == 0 else None


def pins(loader: LoaderConfig[Any], device: torch.device) -> bool:
    """Whether batches are copied through pinned memory."""
    return unpinned_because(loader, device) is None


def no_slots_because(loader: LoaderConfig[Any], device: torch.device) -> str | None:
    """Why workers cannot write into pinned slots; ``None`` if they can."""
    if device.type != "cuda":
        return f"batches go to {device.type}, and slots are registered with CUDA"
    if (why := unpinned_because(loader, device)) is not None:
        return why
    if loader.engine == "torch":
        return "engine='torch'"
    if not hasattr(os, "memfd_create"):
        return "this system has no memfd"
    return None


def slots_wanted(loader: LoaderConfig[Any]) -> int:
    """Number of slots: torch's batches in flight, plus four whose copies may be running.

    With two instead of four, one batch in 20 found no slot and cost 60 ms (H200, 8 workers, 154 MB); with four, none.
    """
    return loader.num_workers * (loader.prefetch_factor or 0) + 4


def pinned_limit(loader: LoaderConfig[Any]) -> int:
    """Maximum number of bytes that slots may pin."""
    if loader.max_pinned_bytes is not None:
        return loader.max_pinned_bytes
    return usable_memory_bytes() // 4
