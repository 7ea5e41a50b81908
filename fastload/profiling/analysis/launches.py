"""Launches of kernels: how far the host runs ahead, and how long the device waits."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from fastload.profiling.recording import intervals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastload.profiling.recording.intervals import Interval
    from fastload.profiling.recording.trace import Call, Kernel

# Longest time between two launches that is taken for launching. PyTorch's operators take 5 to 50 µs of the host each,
# its modules and optimizers several times that; what takes longer is the loop's own code.
CADENCE_NS: Final = 200_000


@dataclass(frozen=True, slots=True)
class LaunchUse:
    """The launches of one device's kernels; times are means."""

    launches: int  # calls; one of a CUDA graph launches many kernels
    kernel_s: float  # time of a kernel
    call_s: float  # time of a call that launches
    every_s: float  # time from one such call to the next, without pauses longer than CADENCE_NS
    ahead: float  # kernels that were launched but had not begun, when another was launched
    late: int  # gaps between kernels that ended with a launch of the usual pace
    late_share: float  # share of the time that the device waited for those, without waits for batches


def find_launches(
    kernels: Sequence[Kernel],
    launches: Mapping[tuple[int, int | None], Call],
    window: Interval,
    idle: Sequence[Interval],
    excused: Sequence[Interval],
) -> LaunchUse | None:
    """Look at one device's launches; ``None`` if they were not recorded.

    Args:
        kernels: The device's kernels, by start.
        launches: Calls by process and correlation.
        window: The device's window.
        idle: The parts of the window without a kernel, in order.
        excused: Union of intervals in which the host waited for something: for a batch, or for the device.
    """
    known = [
        (call, kernel)
        for kernel in kernels
        if (call := launches.get((kernel.process, kernel.correlation))) is not None and "Launch" in call.name
    ]
    calls = sorted({call.interval for call, _ in known})
    if len(calls) < 2:
        return None
    starts = [kernel.start_ns for _, kernel in known]
    # Of the kernels launched before, those that have not begun.
    ahead = [number - bisect_right(starts, at) for number, at in enumerate(sorted(call.start_ns for call, _ in known))]
    first_after: dict[int, Call] = {}
    for call, kernel in known:
        first_after.setdefault(kernel.start_ns, call)
    begun = [start for start, _ in calls]
    steps = [pause for one, other in pairwise(begun) if (pause := other - one) <= CADENCE_NS]
    late, late_ns = 0, 0
    for gap in idle:
        call = first_after.get(gap[1])
        if call is None or call.end_ns <= gap[0]:  # it was queued before the gap
            continue
        before = bisect_right(begun, call.start_ns) - 2
        if before < 0 or call.start_ns - begun[before] > CADENCE_NS:
            continue
        waited = gap[0], min(gap[1], call.end_ns)
        late += 1
        late_ns += waited[1] - waited[0] - intervals.length(intervals.part(excused, waited))
    return LaunchUse(
        launches=len(calls),
        kernel_s=sum(kernel.length_ns for _, kernel in known) / len(known) / 1e9,
        call_s=intervals.length(calls) / len(calls) / 1e9,
        every_s=sum(steps) / max(1, len(steps)) / 1e9,
        ahead=sum(max(0, depth) for depth in ahead) / len(ahead),
        late=late,
        late_share=late_ns / max(1, window[1] - window[0]),
    )
