"""Compute a report's numbers from a recording."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from fastload.profiling import intervals
from fastload.profiling.findings import (
    Activity,
    CopyUse,
    DeviceUse,
    Findings,
    Gap,
    KernelUse,
    RangeUse,
    ThreadUse,
)
from fastload.profiling.gpu_decode import use_of
from fastload.profiling.intervals import Enclosing, Interval
from fastload.profiling.trace import DOMAIN, OPERATOR, STAGES, STEP, Copy, Kernel, ThreadKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fastload.profiling.trace import Call, Range, Recording, Role

GAPS_SHOWN: Final = 8
KERNELS_SHOWN: Final = 12
ACTIVITIES_SHOWN: Final = 3
_LEAST_SHARE: Final = 0.05


def find(recording: Recording) -> Findings:
    """Compute all findings. Takes about a second per million events."""
    return _Finder(recording).findings()


class _Finder:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._window = recording.window
        self._busy: dict[int, list[Interval]] = {}
        self._by_thread: dict[ThreadKey, list[Range]] = defaultdict(list)
        for span in recording.ranges:
            self._by_thread[span.thread].append(span)
        by_device: dict[int, list[Interval]] = defaultdict(list)
        for kernel in recording.kernels:
            by_device[kernel.device].append((kernel.start_ns, kernel.end_ns))
        self._busy = {device: intervals.union(spans) for device, spans in sorted(by_device.items())}
        arriving = [(copy.start_ns, copy.end_ns) for copy in recording.copies if copy.direction == "host to device"]
        self._arriving = intervals.union(arriving)
        self._launches = {(call.thread.process, call.correlation): call for call in recording.calls}
        self._enclosing = {
            thread: Enclosing((span.start_ns, span.end_ns, index) for index, span in enumerate(spans))
            for thread, spans in self._by_thread.items()
        }
        main = recording.main
        waits = [span for span in self._by_thread.get(main, []) if _is_stage(span, "wait")] if main else []
        self._waits = intervals.union(intervals.clip(((s.start_ns, s.end_ns) for s in waits), self._window))
        self._host = _pieces(self._by_thread.get(main, []), recording, main) if main else []
        self._stages = {
            thread.key: intervals.innermost(
                (span.start_ns, span.end_ns, span.name)
                for span in self._by_thread.get(thread.key, [])
                if span.domain == DOMAIN and span.name in STAGES
            )
            for thread in recording.threads.values()
            if thread.role != "other"
        }

    def findings(self) -> Findings:
        recording = self._recording
        steps = [span for span in self._by_thread.get(recording.main or ThreadKey(0, 0), []) if span.name == STEP]
        devices, gaps = self._devices(steps)
        kernels = self._kernels()
        return Findings(
            source=recording.source,
            seconds=recording.window_ns / 1e9,
            steps=len(steps),
            devices=tuple(devices),
            gaps=tuple(sorted(gaps, key=lambda gap: -gap.length_s)[:GAPS_SHOWN]),
            copies=self._copies(),
            kernels=kernels[:KERNELS_SHOWN],
            layout=tuple(kernel for kernel in kernels if kernel.converts_layout),
            ranges=self._ranges(),
            threads=self._threads(),
            wait_share=intervals.length(self._waits) / recording.window_ns,
            waiting=self._loader_in(self._waits),
            link_share=intervals.length(intervals.part(self._arriving, self._window)) / recording.window_ns,
            notes=recording.notes,
            gpu_decode=use_of(recording, self._waits),
        )

    def _devices(self, steps: Sequence[Range]) -> tuple[list[DeviceUse], list[Gap]]:
        devices: list[DeviceUse] = []
        gaps: list[Gap] = []
        for device, busy in self._busy.items():
            window = self._device_window(device, steps)
            span = max(1, window[1] - window[0])
            idle = intervals.gaps(busy, window)
            starved = intervals.length(intervals.common(idle, self._waits))
            busy_share = 1 - intervals.length(idle) / span
            count = sum(1 for kernel in self._recording.kernels if kernel.device == device)
            name = self._recording.devices.get(device, "GPU")
            devices.append(DeviceUse(device, name, busy_share, span / 1e9, count, starved / span))
            longest = sorted(idle, key=lambda gap: gap[0] - gap[1])[:GAPS_SHOWN]
            gaps += [self._gap(device, gap) for gap in longest]
        return devices, gaps

    def _device_window(self, device: int, steps: Sequence[Range]) -> Interval:
        """Whole steps on the device: from the first step's first kernel to the last step's.

        The device runs behind the host, so the host's window would count work launched before it as idle time.
        """
        first: dict[int, int] = {}
        bounds = [(step.start_ns, step.end_ns) for step in steps]
        for kernel in self._recording.kernels:
            if kernel.device == device and (call := self._launch(kernel)) is not None:
                for number in _containing(bounds, call.start_ns):
                    first[number] = min(first.get(number, kernel.start_ns), kernel.start_ns)
        if len(first) >= 3:
            return first[min(first)], first[max(first)]
        return self._busy[device][0][0], self._busy[device][-1][1]

    def _launch(self, work: Kernel | Copy) -> Call | None:
        return None if work.correlation is None else self._launches.get((work.process, work.correlation))

    def _gap(self, device: int, gap: Interval) -> Gap:
        span = gap[1] - gap[0]
        return Gap(
            device,
            (gap[0] - self._window[0]) / 1e9,
            span / 1e9,
            intervals.length(intervals.part(self._arriving, gap)) / span,
            _activities(self._host, [gap]),
            self._loader_in([gap]),
        )

    def _loader_in(self, stretches: Sequence[Interval]) -> tuple[Activity, ...]:
        """What the loader's threads did in ``stretches``, as shares of their total time."""
        threads = self._recording.of_role("feeder", "worker", "decode")
        total = intervals.length(stretches) * len(threads)
        if not total:
            return ()
        seconds: Counter[str] = Counter()
        for thread in threads:
            for start, end, name in self._stages.get(thread.key, []):
                time = intervals.length(intervals.part(stretches, (start, end)))
                if time:
                    seconds[f"{thread.role} {name}"] += time
        return tuple(Activity(what, time / total) for what, time in seconds.most_common() if time / total >= 0.005)

    def _copies(self) -> tuple[CopyUse, ...]:
        groups: dict[tuple[str, str], list[Copy]] = defaultdict(list)
        for copy in self._recording.copies:
            groups[copy.direction, copy.memory].append(copy)
        busy = intervals.union(span for spans in self._busy.values() for span in spans)
        found = []
        for (direction, memory), copies in groups.items():
            under_way = intervals.union((copy.start_ns, copy.end_ns) for copy in copies)
            span = intervals.length(under_way)
            beside = intervals.length(intervals.common(under_way, busy)) / span if span else 0.0
            size_bytes = sum(copy.size_bytes for copy in copies)
            found.append(CopyUse(direction, memory, len(copies), size_bytes, span / 1e9, beside))
        return tuple(sorted(found, key=lambda use: -use.size_bytes))

    def _kernels(self) -> tuple[KernelUse, ...]:
        seconds: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        converting = set()
        for kernel in self._recording.kernels:
            seconds[kernel.name] += kernel.end_ns - kernel.start_ns
            counts[kernel.name] += 1
            if kernel.converts_layout:
                converting.add(kernel.name)
        total = sum(seconds.values()) or 1
        return tuple(
            KernelUse(name, counts[name], time / 1e9, time / total, name in converting)
            for name, time in seconds.most_common()
        )

    def _ranges(self) -> tuple[RangeUse, ...]:
        device_ns: Counter[tuple[str, str, Role]] = Counter()
        kernels: Counter[tuple[str, str, Role]] = Counter()
        works: list[Kernel | Copy] = [*self._recording.kernels, *self._recording.copies]
        for work in works:
            if (call := self._launch(work)) is None:
                continue
            for key in {self._key(span) for span in self._around(call)}:
                device_ns[key] += work.end_ns - work.start_ns
                kernels[key] += isinstance(work, Kernel)
        host: dict[tuple[str, str, Role], list[Range]] = defaultdict(list)
        for span in self._recording.ranges:
            if span.domain != OPERATOR and span.start_ns < self._window[1] and span.end_ns > self._window[0]:
                host[self._key(span)].append(span)
        found = [
            RangeUse(
                name=key[1],
                domain=key[0],
                role=key[2],
                threads=len({span.thread for span in spans}),
                count=len(spans),
                total_s=sum(span.end_ns - span.start_ns for span in spans) / 1e9,
                device_s=device_ns[key] / 1e9,
                kernels=kernels[key],
            )
            for key, spans in host.items()
        ]
        return tuple(sorted(found, key=lambda use: -use.total_s))

    def _around(self, call: Call) -> list[Range]:
        """The ranges around a call; in backward also those of the waiting main thread."""
        threads = [call.thread]
        thread = self._recording.threads.get(call.thread)
        if thread is not None and thread.role == "backward" and self._recording.main is not None:
            threads.append(self._recording.main)
        found = []
        for key in threads:
            if (enclosing := self._enclosing.get(key)) is not None:
                found += [self._by_thread[key][index] for index in enclosing.at(call.start_ns)]
        return found

    def _key(self, span: Range) -> tuple[str, str, Role]:
        thread = self._recording.threads.get(span.thread)
        return span.domain, span.name, thread.role if thread is not None else "other"

    def _threads(self) -> tuple[ThreadUse, ...]:
        found = []
        for thread in self._recording.of_role("main", "feeder", "worker", "decode"):
            seconds: Counter[str] = Counter()
            for start, end, name in self._stages.get(thread.key, []):
                seconds[name] += intervals.length(intervals.clip([(start, end)], self._window))
            fetches = [span for span in self._by_thread.get(thread.key, []) if span.blocked_ns is not None]
            total = sum(span.end_ns - span.start_ns - (span.queued_ns or 0) for span in fetches)
            blocked = sum(span.blocked_ns or 0 for span in fetches) / total if total else None
            shares = {name: time / self._recording.window_ns for name, time in seconds.most_common()}
            found.append(ThreadUse(thread.name, thread.role, *thread.key, shares, blocked))
        return tuple(found)


def _is_stage(span: Range, name: str) -> bool:
    return span.domain == DOMAIN and span.name == name


def _containing(bounds: Sequence[Interval], moment: int) -> list[int]:
    return [number for number, (start, end) in enumerate(bounds) if start <= moment < end]


def _pieces(ranges: Iterable[Range], recording: Recording, main: ThreadKey) -> list[tuple[int, int, str]]:
    """The training thread's activity, by innermost range and call within it."""
    own = [span for span in ranges if span.name != STEP]
    spans: list[tuple[int, int, str]] = [(span.start_ns, span.end_ns, span.name) for span in own]
    enclosing = Enclosing((span.start_ns, span.end_ns, index) for index, span in enumerate(own))
    for calls in (recording.calls, recording.os_calls):
        for call in calls:
            if call.thread == main:
                around = enclosing.at(call.start_ns)
                name = f"{own[around[0]].name} › {call.name}" if around else call.name
                spans.append((call.start_ns, call.end_ns, name))
    return intervals.innermost(spans)


def _activities(pieces: Sequence[tuple[int, int, str]], stretches: Sequence[Interval]) -> tuple[Activity, ...]:
    total = intervals.length(stretches) or 1
    seconds: Counter[str] = Counter()
    for start, end, name in pieces:
        seconds[name] += intervals.length(intervals.part(stretches, (start, end)))
    rest = total - sum(seconds.values())
    found = [Activity(name, time / total) for name, time in seconds.most_common(ACTIVITIES_SHOWN)]
    found.append(Activity("nothing recorded", rest / total))
    return tuple(activity for activity in sorted(found, key=lambda a: -a.share) if activity.share >= _LEAST_SHARE)
