"""Collectives between GPUs: their time, what nothing hides of it, and the late rank."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fastload.profiling.recording import intervals
from fastload.profiling.recording.intervals import Enclosing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fastload.profiling.recording.trace import Kernel, Recording, ThreadKey

DOMAIN: Final = "NCCL"  # NCCL's own NVTX ranges, such as ncclAllReduce
# ncclDevKernel_AllReduce_Sum_bf16_RING_LL, ncclKernel_SendRecv, ncclSymDevKernel_AllGather_..., and RCCL's
_KERNEL: Final = re.compile(r"^[nr]ccl\w*?Kernel_([A-Za-z]+)")
_OTHER: Final = "collective"
_ONE_SIDED: Final = ("SendRecv",)  # its time differs between ranks by what they send
STRAGGLING_MIN: Final = 0.05  # least share of the time that the other ranks wait for one


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """All collectives of one kind, over all ranks."""

    kind: str  # such as "AllReduce"
    count: int
    seconds: float  # time in which at least one ran, summed over ranks
    exposed_s: float  # the part of it in which no other kernel ran on the same device


@dataclass(frozen=True, slots=True)
class RankUse:
    """The collectives of one process on one device."""

    label: str  # process and device, or the file of its recording
    count: int
    share: float  # share of the time from its first kernel to its last in which a collective ran
    exposed_share: float  # share in which one ran and no other kernel did
    waited_share: float | None = None  # share in which it waited in one for a later rank; None for a single rank


@dataclass(frozen=True, slots=True)
class CommunicationUse:
    """Collectives of all ranks; shares are means over the ranks."""

    ranks: tuple[RankUse, ...]
    kinds: tuple[CollectiveUse, ...]  # the longest first
    straggler: RankUse | None = None  # the rank that the others wait for, if there is one

    @property
    def share(self) -> float:
        """Share of the time in which a collective ran."""
        return sum(rank.share for rank in self.ranks) / len(self.ranks)

    @property
    def exposed_share(self) -> float:
        """Share in which one ran and no other kernel did."""
        return sum(rank.exposed_share for rank in self.ranks) / len(self.ranks)

    @property
    def waited_share(self) -> float:
        """Mean share in which the other ranks waited for the straggler."""
        others = [rank.waited_share or 0.0 for rank in self.ranks if rank is not self.straggler]
        return sum(others) / len(others) if self.straggler is not None and others else 0.0


@dataclass(frozen=True, slots=True)
class _Rank:
    """One rank's collectives in order, before they are compared with other ranks'."""

    use: RankUse
    span_ns: int
    collectives: list[tuple[str, int]]  # kind and length of each
    by_kind: dict[str, CollectiveUse]


def find_communication(recording: Recording, others: Sequence[tuple[str, Recording]] = ()) -> CommunicationUse | None:
    """Sum up collectives; ``None`` if none was recorded.

    Args:
        recording: The recording; each process and device in it that ran a collective is a rank.
        others: Recordings of other ranks, named.
    """
    ranks = list(_ranks(recording, ""))
    for name, other in others:
        ranks += _ranks(other, name)
    if not ranks:
        return None
    uses = [rank.use for rank in ranks]
    straggler = None
    if len(ranks) > 1:
        waited = _waited(ranks)
        uses = [replace(use, waited_share=ns / rank.span_ns) for use, rank, ns in zip(uses, ranks, waited, strict=True)]
        straggler = _straggler(uses)
    kinds: dict[str, CollectiveUse] = {}
    for rank in ranks:
        for kind, one in rank.by_kind.items():
            known = kinds.get(kind, CollectiveUse(kind, 0, 0.0, 0.0))
            seconds, exposed_s = known.seconds + one.seconds, known.exposed_s + one.exposed_s
            kinds[kind] = CollectiveUse(kind, known.count + one.count, seconds, exposed_s)
    longest = sorted(kinds.values(), key=lambda use: -use.seconds)
    return CommunicationUse(tuple(uses), tuple(longest), straggler)


def _ranks(recording: Recording, name: str) -> Iterable[_Rank]:
    launched = _launched_by_nccl(recording)
    groups: dict[tuple[int, int], list[tuple[Kernel, str | None]]] = defaultdict(list)
    for kernel in recording.kernels:
        found = _KERNEL.match(kernel.name)
        kind = found[1] if found else _OTHER if (kernel.process, kernel.correlation) in launched else None
        groups[kernel.process, kernel.device].append((kernel, kind))
    communicating = {key: members for key, members in groups.items() if any(kind for _, kind in members)}
    for (process, device), members in sorted(communicating.items()):
        place = f"process {process}, GPU {device}"
        label = (name if len(communicating) == 1 else f"{name}: {place}") if name else place
        yield _rank(label, members)


def _rank(label: str, members: Sequence[tuple[Kernel, str | None]]) -> _Rank:
    computing = intervals.union(kernel.interval for kernel, kind in members if kind is None)
    start, end = min(kernel.start_ns for kernel, _ in members), max(kernel.end_ns for kernel, _ in members)
    span = max(1, end - start)
    counts = Counter(kind for _, kind in members if kind is not None)
    by_kind = {}
    for kind, count in counts.items():
        running = intervals.union(kernel.interval for kernel, of in members if of == kind)
        total_ns, exposed_ns = intervals.length(running), _alone(running, computing)
        by_kind[kind] = CollectiveUse(kind, count, total_ns / 1e9, exposed_ns / 1e9)
    running = intervals.union(kernel.interval for kernel, kind in members if kind is not None)
    use = RankUse(label, counts.total(), intervals.length(running) / span, _alone(running, computing) / span)
    ordered = sorted(members, key=lambda member: member[0].start_ns)
    return _Rank(use, span, [(kind, kernel.length_ns) for kernel, kind in ordered if kind is not None], by_kind)


def _alone(running: Sequence[intervals.Interval], others: Sequence[intervals.Interval]) -> int:
    return intervals.length(running) - intervals.length(intervals.common(running, others))


def _launched_by_nccl(recording: Recording) -> set[tuple[int, int | None]]:
    """The correlations of work launched in a range of NCCL's, whatever its kernels are called."""
    spans: dict[ThreadKey, list[tuple[int, int, int]]] = defaultdict(list)
    for number, span in enumerate(recording.ranges):
        if span.domain == DOMAIN:
            spans[span.thread].append((*span.interval, number))
    enclosing = {thread: Enclosing(found) for thread, found in spans.items()}
    return {
        (call.thread.process, call.correlation)
        for call in recording.calls
        if call.correlation is not None and call.thread in enclosing and enclosing[call.thread].at(call.start_ns)
    }


def _waited(ranks: Sequence[_Rank]) -> list[int]:
    """Nanoseconds in which each rank waited in collectives for others.

    A collective ends for all ranks when the last has come: what it takes longer than on the rank where it was shortest,
    a rank has waited. Lengths are compared, not moments, because each host has a clock of its own.
    """
    columns = [[(kind, ns) for kind, ns in rank.collectives if kind not in _ONE_SIDED] for rank in ranks]
    if len({tuple(kind for kind, _ in column) for column in columns}) == 1:
        waited = [0] * len(ranks)
        for row in zip(*columns, strict=True):
            shortest = min(ns for _, ns in row)
            waited = [total + ns - shortest for total, (_, ns) in zip(waited, row, strict=True)]
        return waited
    totals = [sum(ns for _, ns in column) for column in columns]  # windows that were cut differently
    return [total - min(totals) for total in totals]


def _straggler(ranks: Sequence[RankUse]) -> RankUse | None:
    """The rank that waits the least, if all others wait twice as long."""
    first, *others = sorted(ranks, key=lambda rank: rank.waited_share or 0.0)
    least = others[0].waited_share or 0.0
    return first if least >= max(STRAGGLING_MIN, 2 * (first.waited_share or 0.0)) else None
