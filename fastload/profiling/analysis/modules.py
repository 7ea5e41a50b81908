"""What there is to gain in each module, by its time and its kernels' ceilings.

The time is the recording's (Nsight Systems or torch.profiler), in which kernels run as they do in training; Nsight
Compute runs each one alone, with cold caches, and says what bounds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastload.profiling.analysis import ncu

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from fastload.profiling.analysis.findings import PartUse
    from fastload.profiling.analysis.ncu import Sum
    from fastload.profiling.analysis.roofline import Class

REMEDIES: Final[dict[Class, str]] = {
    "memory-bound": "it moves bytes nearly as fast as the memory can: fuse it with its neighbours (torch.compile), "
    "or move fewer bytes (bfloat16, channels_last)",
    "compute-bound": "it computes nearly as fast as the device can: narrower arithmetic is left (bfloat16, TF32, fp8)",
    "latency-bound": "its kernels are too small or wait: a larger batch, fusing (torch.compile), or a better kernel",
}


@dataclass(frozen=True, slots=True)
class ModuleUse:
    """One module, or another range: its own kernels, without those of ranges within it."""

    name: str
    device_s: float  # time of its kernels in the recording
    kernels: int
    share: float  # share of all kernels' time
    measured: Sum | None  # Nsight Compute's figures; None if it did not measure it

    @property
    def gain_s(self) -> float | None:
        """The part of the time above the nearer ceiling; None if not measured."""
        return None if self.measured is None else self.device_s * (1 - self.measured.roof_share)

    def to_dict(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        return {
            "name": self.name,
            "device_s": self.device_s,
            "kernels": self.kernels,
            "share": self.share,
            "gain_s": self.gain_s,
            "measured": None if self.measured is None else self.measured.to_dict(),
        }


def read_measured(folders: Iterable[Path]) -> dict[str, Sum]:
    """Read what ``fastload kernels --keep`` left in folders, by range.

    Of folders that have the same range the first counts.

    Raises:
        NsightError: A folder does not hold it.
    """
    found: dict[str, Sum] = {}
    for folder in folders:
        runs, ceilings = ncu.read_kept(folder)
        for each in ncu.sum_up(runs, "", ceilings):
            found.setdefault(each.name, each)
    return found


def join(parts: Sequence[PartUse], measured: Mapping[str, Sum]) -> tuple[ModuleUse, ...]:
    """Join a recording's parts with sums by name; the most to gain first."""
    total_s = sum(part.device_s for part in parts) or 1.0
    joined = [
        ModuleUse(part.name, part.device_s, part.kernels, part.device_s / total_s, measured.get(part.name))
        for part in parts
    ]
    return tuple(sorted(joined, key=lambda use: (use.gain_s is None, -(use.gain_s or 0.0), -use.device_s)))
