"""The kernels of a recording that decode images, launched in a ``decode`` range."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from fastload.profiling import intervals
from fastload.profiling.findings import DecodeUse
from fastload.profiling.trace import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastload.profiling.intervals import Interval
    from fastload.profiling.trace import Kernel, Range, Recording, ThreadKey


def decode_ranges(recording: Recording) -> list[Range]:
    """The ranges in which a batch's decoding is launched; decode threads and workers launch none."""
    threads = recording.threads
    return [
        span
        for span in recording.ranges
        if span.name == "decode"
        and span.domain == DOMAIN
        and span.thread in threads
        and threads[span.thread].role not in ("decode", "worker")
    ]


def decode_kernels(recording: Recording) -> list[Kernel]:
    """The kernels that decode, in order of their start."""
    spans: dict[ThreadKey, list[Interval]] = defaultdict(list)
    for span in decode_ranges(recording):
        spans[span.thread].append((span.start_ns, span.end_ns))
    if not spans:
        return []
    enclosing = {
        thread: intervals.Enclosing((start, end, number) for number, (start, end) in enumerate(found))
        for thread, found in spans.items()
    }
    launched = {
        (call.thread.process, call.correlation)
        for call in recording.calls
        if call.correlation is not None and call.thread in enclosing and enclosing[call.thread].at(call.start_ns)
    }
    return [kernel for kernel in recording.kernels if (kernel.process, kernel.correlation) in launched]


def use_of(recording: Recording, waits: Sequence[Interval]) -> DecodeUse | None:
    """Sum up what decoding took of the GPUs; ``None`` if they decoded nothing.

    Args:
        recording: Everything recorded.
        waits: When the training loop waited for a batch.
    """
    kernels = decode_kernels(recording)
    if not kernels:
        return None
    window = recording.window
    decoding = intervals.union(intervals.clip(((k.start_ns, k.end_ns) for k in kernels), window))
    mine = {id(kernel) for kernel in kernels}
    others = intervals.union((k.start_ns, k.end_ns) for k in recording.kernels if id(k) not in mine)
    alone = intervals.common(decoding, intervals.gaps(intervals.union(intervals.clip(others, window)), window))
    total = intervals.length(decoding)
    inside = [span for span in decode_ranges(recording) if window[0] <= span.start_ns < window[1]]
    return DecodeUse(
        batches=len(inside),
        kernels=len(kernels),
        seconds=total / 1e9,
        beside_kernels_share=1.0 - intervals.length(alone) / total if total else 0.0,
        share=total / recording.window_ns,
        awaited_share=intervals.length(intervals.common(alone, waits)) / recording.window_ns,
    )
