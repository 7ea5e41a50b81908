"""All ranks' statistics, and the rank that waits most for its loader."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fastload._result import Result
from fastload.stats.diagnosis import report
from fastload.stats.verdict import STALL_MIN

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from fastload.stats.diagnosis import Report
    from fastload.stats.stats import Stats

SHOWN_MAX: Final = 16  # number of ranks to print, those that waited most; the rest is counted
_SUMMED: Final = (
    *("batches", "images", "python_images", "gpu_images", "kept_images", "thread_images"),
    *("device_bytes", "pinned_bytes", "workers", "startup_s", "wait_s", "step_s", "images_per_s"),
)


@dataclass(frozen=True, slots=True)
class RankStats(Result):
    """The statistics of all ranks; ``print`` them.

    Attributes:
        stats: Each rank's statistics, by its number in the group.
        hosts: Each rank's machine.
    """

    stats: tuple[Stats, ...]
    hosts: tuple[str, ...]

    @property
    def slowest(self) -> int:
        """The rank that waited for batches for the largest share of its time.

        Ranks that step together have the same rate: in each step all wait for the last one, those whose batches came in
        time within the all-reduce. So the wait for batches tells which loader holds the job up, if any does.
        """
        return max(range(len(self.stats)), key=lambda rank: self.stats[rank].loader_stall)

    @property
    def sums(self) -> dict[str, float]:
        """Sums of counts, bytes, seconds and ``images_per_s``, by the names of :class:`Stats`."""
        return {name: sum(getattr(stats, name) for stats in self.stats) for name in _SUMMED}

    @property
    def extents(self) -> dict[str, tuple[float, float]]:
        """The least and greatest value of each number, by names of :meth:`Stats.scalars`."""
        return self._extents("fastload", "/")

    def _extents(self, prefix: str, separator: str) -> dict[str, tuple[float, float]]:
        numbers = [stats.scalars(prefix, separator) for stats in self.stats]
        names = dict.fromkeys(name for each in numbers for name in each)
        found = {name: [each[name] for each in numbers if name in each] for name in names}
        return {name: (min(values), max(values)) for name, values in found.items()}

    def scalars(self, prefix: str = "fastload", separator: str = "/") -> dict[str, float]:
        """Return the least value, the greatest and the sum of each number, by name.

        Names are as ``fastload/images_per_s/min``, ``max`` and ``sum``; only numbers in :attr:`sums` have a sum, and
        ``fastload/slowest`` is the slowest rank. Arguments are those of :meth:`Stats.scalars`.
        """
        numbers = {"slowest": float(self.slowest)} | {f"{name}{separator}sum": each for name, each in self.sums.items()}
        found = {f"{prefix}{separator}{name}": float(each) for name, each in numbers.items()}
        for name, (least, most) in self._extents(prefix, separator).items():
            found |= {f"{name}{separator}min": least, f"{name}{separator}max": most}
        return found

    def report(self, rank: int | None = None) -> Report:
        """Judge one rank; by default the slowest."""
        return report(self.stats[self.slowest if rank is None else rank])

    def __repr__(self) -> str:
        waited = self.stats[self.slowest].loader_stall
        return f"RankStats({_ranks(len(self.stats))}, rank {self.slowest} waited most: {waited:.0%})"

    def __str__(self) -> str:
        by_wait = sorted(range(len(self.stats)), key=lambda rank: -self.stats[rank].loader_stall)
        slowest, *others = (self.stats[rank].loader_stall for rank in by_wait)
        rates = [stats.images_per_s for stats in self.stats]
        each = f", {min(rates):,.0f} to {max(rates):,.0f} each" if others else ""
        lines = [f"{_ranks(len(rates))}: {sum(rates):,.0f} images/s together{each}"]
        if others and slowest < STALL_MIN:
            most = f"at most {slowest:.0%} of the time"
            lines.append(f"no rank's loader holds the others up: they waited for batches {most}")
        elif others:
            rest = f"{others[0]:.0%}" if len(others) == 1 else f"{others[-1]:.0%} to {others[0]:.0%}"
            lines.append(f"rank {by_wait[0]} waited for batches {slowest:.0%} of the time, the others {rest}")
            lines.append("ranks that step together wait in each step for the last of them")
        lines.append(f"rank {by_wait[0]}: {self.report().verdict}")
        hosts = max(4, *map(len, self.hosts))
        lines.append(f"  rank  {'host':<{hosts}}  {'images/s':>9}  stall  {'waited s':>9}  {'batches':>9}")
        for rank in by_wait[:SHOWN_MAX]:
            stats, host = self.stats[rank], f"{self.hosts[rank]:<{hosts}}"
            figures = f"{stats.images_per_s:>9,.0f}  {stats.loader_stall:>5.0%}  {stats.batch_wait_s:>9,.2f}"
            lines.append(f"  {rank:>4}  {host}  {figures}  {stats.batches:>9,}")
        if (more := len(by_wait) - SHOWN_MAX) > 0:
            lines.append(f"  and {_ranks(more)} that waited less")
        return "\n".join(lines)


def _ranks(count: int) -> str:
    return f"{count:,} rank{'' if count == 1 else 's'}"


def all_gather_stats(stats: Stats, group: ProcessGroup | None = None) -> RankStats:
    """Gather the statistics of all ranks of a ``torch.distributed`` job, on every rank.

    A collective: all ranks of ``group`` call it, and each waits for the others. Without a process group the result has
    this process alone. NCCL sends by way of the GPU that ``init_process_group`` got as ``device_id``, else of the
    current one: give it that, or call ``torch.cuda.set_device`` first.

    Args:
        stats: This rank's, of all epochs or of a part: ``loader.stats()``, or ``loader.stats().since(before)``.
        group: The ranks that take part; by default all.

    Raises:
        ValueError: This process is not in ``group``.
    """
    import torch
    import torch.distributed as dist

    mine = (stats, socket.gethostname())
    if not (dist.is_available() and dist.is_initialized()):
        return RankStats((stats,), (mine[1],))
    if (ranks := dist.get_world_size(group)) < 1:
        raise ValueError(
            "all_gather_stats is for the ranks of its group, and this process is none of them: call it on those only"
        )
    everyone: list[Any] = [None] * ranks
    # NCCL sends objects by way of the current device, which is GPU 0 in every process that has not set it.
    bound = getattr(dist.group.WORLD, "bound_device_id", None)
    with torch.accelerator.device_index(None if bound is None else bound.index):
        dist.all_gather_object(everyone, mine, group)
    return RankStats(tuple(each for each, _ in everyone), tuple(host for _, host in everyone))
