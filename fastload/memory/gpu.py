"""GPU memory: what torch holds, what the driver says, and the largest batch that fits."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

FILE: Final = "memory.json"  # a recording's, at the end of its window
SPARE: Final = 0.05  # share of the room left free: torch's allocator cannot fill gaps between blocks


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory of one GPU, as torch and the driver see it."""

    allocated_bytes: int  # in tensors of this process
    reserved_bytes: int  # held by torch's allocator, tensors included
    peak_allocated_bytes: int  # the most so far
    peak_reserved_bytes: int
    free_bytes: int  # free by the driver
    total_bytes: int

    @property
    def other_bytes(self) -> int:
        """Used by the driver's account beyond torch's: CUDA's context, libraries, other processes."""
        return max(0, self.total_bytes - self.free_bytes - self.reserved_bytes)

    @property
    def room_bytes(self) -> int:
        """What tensors of this process can take in all."""
        return self.free_bytes + self.reserved_bytes

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        return asdict(self) | {"other_bytes": self.other_bytes, "room_bytes": self.room_bytes}

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> GpuMemory:
        """Make what :meth:`to_dict` converted."""
        return cls(**{each.name: int(said[each.name]) for each in fields(cls)})

    def __str__(self) -> str:
        used = self.total_bytes - self.free_bytes
        return (
            f"{_gb(self.peak_allocated_bytes)} GB allocated at most ({_gb(self.allocated_bytes)} now), "
            f"{_gb(self.peak_reserved_bytes)} reserved; the driver says {_gb(used)} of {_gb(self.total_bytes)} GB are "
            f"used, {_gb(self.other_bytes)} beyond torch's"
        )


@dataclass(frozen=True, slots=True)
class BatchFit:
    """A line through two or more measured peaks, and the largest batch below the room."""

    fixed_bytes: float  # memory at batch size 0: weights, gradients, the optimizer
    bytes_per_sample: float
    room_bytes: int
    largest: int  # the largest batch size that fits, with SPARE of the room left; 0 if none does

    def __str__(self) -> str:
        return (
            f"batches of up to {self.largest:,} samples fit: {_gb(self.fixed_bytes)} GB and "
            f"{self.bytes_per_sample / 1e6:,.1f} MB a sample in {_gb(self.room_bytes)} GB, {SPARE:.0%} left free"
        )


def gpu_memory(device: torch.device | int | None = None) -> GpuMemory:
    """Read a CUDA device's memory (default: the current one). Synchronizes nothing."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return GpuMemory(
        torch.cuda.memory_allocated(device),
        torch.cuda.memory_reserved(device),
        torch.cuda.max_memory_allocated(device),
        torch.cuda.max_memory_reserved(device),
        free,
        total,
    )


def fit_line(peaks: Mapping[int, int], room_bytes: int) -> BatchFit:
    """Extrapolate peaks of memory by batch size to the room.

    By the line through the smallest and the largest size.

    Raises:
        ValueError: There are fewer than two sizes, or a larger batch takes no more memory than a smaller one.
    """
    if len(peaks) < 2:
        raise ValueError(f"peaks must be of at least two batch sizes, got {len(peaks)}; measure another")
    small, large = min(peaks), max(peaks)
    slope = (peaks[large] - peaks[small]) / (large - small)
    if slope <= 0:
        raise ValueError(
            f"batches of {large} take no more memory than of {small} ({peaks[large]:,} and {peaks[small]:,} bytes); "
            "measure sizes farther apart"
        )
    fixed = peaks[small] - slope * small
    return BatchFit(fixed, slope, room_bytes, max(0, int(((1 - SPARE) * room_bytes - fixed) / slope)))


def largest_batch(
    train: Callable[[int], object], sizes: tuple[int, int], device: torch.device | int | None = None
) -> BatchFit:
    """Estimate the largest batch that fits, from a training step with two sizes.

    Each size runs twice: optimizers allocate their state in the first step. Libraries choose other algorithms, with
    other workspaces, for other sizes, so try the result before a long run. Blocks; resets torch's statistics of peaks.

    Args:
        train: Makes a batch of so many samples and runs a whole step on it, backward and optimizer included.
        sizes: Two batch sizes that fit.
        device: A CUDA device (default: the current one).

    Raises:
        ValueError: The sizes are equal or below 1, or memory does not grow with them.
    """
    import torch

    if len(set(sizes)) < 2 or min(sizes) < 1:
        raise ValueError(f"sizes must be two different batch sizes of at least 1, got {sizes}")
    peaks: dict[int, int] = {}
    for size in sorted(sizes):
        train(size)
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        train(size)
        torch.cuda.synchronize(device)
        peaks[size] = torch.cuda.max_memory_allocated(device)
    return fit_line(peaks, gpu_memory(device).room_bytes)


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:,.1f}"
