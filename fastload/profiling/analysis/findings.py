"""A recording's numbers: use of the devices, gaps, copies, kernels, ranges, threads."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fastload._result import Result
from fastload.nvtx.stages import DOMAIN
from fastload.profiling.analysis.communication import find_communication
from fastload.profiling.analysis.launches import find_launches
from fastload.profiling.recording import intervals
from fastload.profiling.recording.intervals import Enclosing, Interval
from fastload.profiling.recording.trace import DECODING, OPERATOR, STAGES, STEP, Copy, Kernel, ThreadKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastload.profiling.analysis.communication import CommunicationUse
    from fastload.profiling.analysis.launches import LaunchUse
    from fastload.profiling.recording.trace import Call, Range, Recording, Role

GAPS_SHOWN: Final = 8
KERNELS_SHOWN: Final = 12
ACTIVITIES_SHOWN: Final = 3
CALLERS_SHOWN: Final = 12
FRAMES_SHOWN: Final = 4
_LEAST_SHARE: Final = 0.05
_ARRIVING: Final = "host to device"


@dataclass(frozen=True, slots=True)
class Activity:
    """What one thread, or all threads of a kind, did in some interval."""

    what: str  # a range, a call or an operator; "nothing recorded" if there was none
    share: float  # share of the interval, from 0 to 1, over all threads of the kind


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device over whole steps."""

    device: int
    name: str
    busy_share: float  # share of the time in which at least one kernel ran; copies do not count
    window_s: float  # length of the whole steps
    kernels: int
    starved_share: float  # share of the time in which no kernel ran and the training loop waited for a batch

    @property
    def idle_share(self) -> float:
        """The share without a kernel."""
        return 1 - self.busy_share


@dataclass(frozen=True, slots=True)
class Gap:
    """An interval in which a device ran no kernel."""

    device: int
    start_s: float  # time since the window's start
    length_s: float
    copying_share: float  # share of the interval in which a copy to the device was running
    host: tuple[Activity, ...]  # activities of the training thread, the longest first
    loader: tuple[Activity, ...]  # activities of all of the loader's threads and processes


@dataclass(frozen=True, slots=True)
class CopyUse:
    """Copies of one direction from or to one kind of host memory."""

    direction: str
    memory: str
    count: int
    size_bytes: int
    seconds: float  # time in which at least one was running
    beside_kernels_share: float  # share of that time in which a kernel ran, too

    @property
    def gb_per_s(self) -> float:
        """1e9 bytes per second, while copies were running."""
        return self.size_bytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One kernel, over all its launches."""

    name: str
    count: int
    seconds: float
    share: float  # share of all kernels' time
    converts_layout: bool  # whether it only converts between NCHW and NHWC


@dataclass(frozen=True, slots=True)
class DecodeUse:
    """Decoding on the GPU."""

    batches: int  # number of batches whose decoding was launched
    kernels: int
    seconds: float  # time in which at least one of the kernels ran
    beside_kernels_share: float  # share of that time in which another kernel ran, too
    share: float  # share of the window in which at least one of the kernels ran
    awaited_share: float  # share of the window in which only they ran and the training loop waited for a batch

    @property
    def mean_s(self) -> float:
        """Seconds per batch."""
        return self.seconds / self.batches if self.batches else 0.0


@dataclass(frozen=True, slots=True)
class RangeUse:
    """Ranges of one name, over all threads of a role."""

    name: str
    domain: str
    role: Role
    threads: int
    count: int
    total_s: float  # time on the host
    device_s: float  # time of the kernels and copies launched within
    kernels: int  # number of those kernels

    @property
    def mean_s(self) -> float:
        """Mean time on the host."""
        return self.total_s / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class PartUse:
    """Kernels of one innermost range, such as a module's; outside of all, of one name."""

    name: str
    device_s: float
    kernels: int


@dataclass(frozen=True, slots=True)
class CallerUse:
    """Calls of one function of CUDA's from one place."""

    call: str
    frames: tuple[str, ...]  # functions that called it, the innermost first
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """One thread of the loop or the loader."""

    name: str
    role: Role
    process: int
    thread: int
    stages: dict[str, float]  # share of the window by innermost stage
    blocked_share: float | None = None  # share of its fetches, less waits for a core, asleep or waiting for storage

    @property
    def busy_share(self) -> float:
        """Share of the window spent in stages other than waiting."""
        return sum(share for stage, share in self.stages.items() if stage != "wait")


@dataclass(frozen=True, slots=True)
class Findings(Result):
    """All numbers of one recording; shares are of its window."""

    source: str  # the recorder, "nsys" or "torch.profiler"
    seconds: float  # the window's length
    steps: int
    devices: tuple[DeviceUse, ...]  # devices that ran a kernel
    gaps: tuple[Gap, ...]  # intervals without a kernel, the longest first
    copies: tuple[CopyUse, ...]  # copies by direction and kind of memory, the most bytes first
    kernels: tuple[KernelUse, ...]  # kernels by name, the longest first
    layout: tuple[KernelUse, ...]  # kernels that only convert layouts
    ranges: tuple[RangeUse, ...]  # ranges by name, the longest first
    threads: tuple[ThreadUse, ...]  # threads of the loop and the loader
    wait_share: float  # share in which the training loop waited for a batch
    waiting: tuple[Activity, ...] = ()  # activities of the loader's threads during those waits
    link_share: float = 0.0  # share in which a copy to the device was running
    notes: tuple[str, ...] = ()  # sentences about what the recording lacks
    gpu_decode: DecodeUse | None = None
    parts: tuple[PartUse, ...] = ()  # kernels by innermost range, the longest first
    communication: CommunicationUse | None = None
    launching: LaunchUse | None = None  # of the device with the longest window
    callers: tuple[CallerUse, ...] = ()  # places of CUDA's calls, the longest first; if backtraces were recorded

    @property
    def step_s(self) -> float | None:
        """Time per step."""
        return self.seconds / self.steps if self.steps else None


def find(recording: Recording, others: Sequence[tuple[str, Recording]] = ()) -> Findings:
    """Compute all findings. Takes about a second per million events.

    Args:
        recording: The recording.
        others: Named recordings of other ranks, whose collectives are compared.
    """
    return _Finder(recording).findings(others)


class _Finder:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._window = recording.window
        self._by_thread: dict[ThreadKey, list[Range]] = defaultdict(list)
        for span in recording.ranges:
            self._by_thread[span.thread].append(span)
        by_device: dict[int, list[Interval]] = defaultdict(list)
        for kernel in recording.kernels:
            by_device[kernel.device].append(kernel.interval)
        self._windows: dict[int, Interval] = {}  # whole steps by device
        self._busy = {device: intervals.union(spans) for device, spans in sorted(by_device.items())}
        self._arriving = intervals.union(copy.interval for copy in recording.copies if copy.direction == _ARRIVING)
        self._launches = {(call.thread.process, call.correlation): call for call in recording.calls}
        self._enclosing = {
            thread: Enclosing((*span.interval, index) for index, span in enumerate(spans))
            for thread, spans in self._by_thread.items()
        }
        self._of_main = [] if recording.main is None else self._by_thread[recording.main]
        waits = (span.interval for span in self._of_main if span.domain == DOMAIN and span.name == "wait")
        self._waits = intervals.union(intervals.clip(waits, self._window))
        self._host = self._host_pieces()
        self._stages = {
            thread.key: intervals.innermost(
                (*span.interval, span.name)
                for span in self._by_thread[thread.key]
                if span.domain == DOMAIN and span.name in STAGES
            )
            for thread in recording.threads.values()
            if thread.role != "other"
        }

    def findings(self, others: Sequence[tuple[str, Recording]]) -> Findings:
        recording = self._recording
        steps = [span for span in self._of_main if span.name == STEP]
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
            gpu_decode=_decode_use(recording, self._waits),
            parts=self._parts(),
            communication=find_communication(recording, others),
            launching=self._launching(devices),
            callers=self._callers(),
        )

    def _devices(self, steps: Sequence[Range]) -> tuple[list[DeviceUse], list[Gap]]:
        devices: list[DeviceUse] = []
        gaps: list[Gap] = []
        for device, busy in self._busy.items():
            window = self._windows[device] = self._device_window(device, steps)
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

    def _launching(self, devices: Sequence[DeviceUse]) -> LaunchUse | None:
        if not devices:
            return None
        device = max(devices, key=lambda use: use.window_s).device
        window = self._windows[device]
        of_main = (call for call in self._recording.calls if call.thread == self._recording.main)
        waiting = [call.interval for call in of_main if "Synchronize" in call.name]
        return find_launches(
            [kernel for kernel in self._recording.kernels if kernel.device == device],
            self._launches,
            window,
            intervals.gaps(self._busy[device], window),
            intervals.union([*waiting, *self._waits]),
        )

    def _device_window(self, device: int, steps: Sequence[Range]) -> Interval:
        """Whole steps on the device: from the first step's first kernel to the last step's.

        The device runs behind the host, so the host's window would count work launched before it as idle time.
        """
        first: dict[int, int] = {}
        for kernel in self._recording.kernels:
            if kernel.device == device and (call := self._launch(kernel)) is not None:
                for number, step in enumerate(steps):
                    if step.start_ns <= call.start_ns < step.end_ns:
                        first[number] = min(first.get(number, kernel.start_ns), kernel.start_ns)
        if len(first) >= 3:
            return first[min(first)], first[max(first)]
        return self._busy[device][0][0], self._busy[device][-1][1]

    def _launch(self, work: Kernel | Copy) -> Call | None:
        return None if work.correlation is None else self._launches.get((work.process, work.correlation))

    def _gap(self, device: int, gap: Interval) -> Gap:
        span = gap[1] - gap[0]
        start_s, copying = (gap[0] - self._window[0]) / 1e9, intervals.length(intervals.part(self._arriving, gap))
        return Gap(device, start_s, span / 1e9, copying / span, self._host_in(gap), self._loader_in([gap]))

    def _host_in(self, gap: Interval) -> tuple[Activity, ...]:
        """What the training thread did in ``gap``, the longest first."""
        total = gap[1] - gap[0]
        seconds: Counter[str] = Counter()
        for start, end, name in self._host:
            seconds[name] += intervals.length(intervals.clip([(start, end)], gap))
        rest = "nothing recorded", total - sum(seconds.values())
        found = (Activity(name, time / total) for name, time in [*seconds.most_common(ACTIVITIES_SHOWN), rest])
        return tuple(sorted((one for one in found if one.share >= _LEAST_SHARE), key=lambda one: -one.share))

    def _host_pieces(self) -> list[tuple[int, int, str]]:
        """The training thread's activity, by innermost range and call within it."""
        own = [span for span in self._of_main if span.name != STEP]
        spans: list[tuple[int, int, str]] = [(*span.interval, span.name) for span in own]
        enclosing = Enclosing((*span.interval, index) for index, span in enumerate(own))
        for call in (*self._recording.calls, *self._recording.os_calls):
            if call.thread == self._recording.main:
                around = enclosing.at(call.start_ns)
                name = f"{own[around[0]].name} › {call.name}" if around else call.name
                spans.append((*call.interval, name))
        return intervals.innermost(spans)

    def _loader_in(self, stretches: Sequence[Interval]) -> tuple[Activity, ...]:
        """What the loader's threads did in ``stretches``, as shares of their total time."""
        threads = self._recording.of_role("feeder", "worker", "decode")
        total = intervals.length(stretches) * len(threads)
        if not total:
            return ()
        seconds: Counter[str] = Counter()
        for thread in threads:
            for start, end, name in self._stages[thread.key]:
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
        for kind, copies in groups.items():
            under_way = intervals.union(copy.interval for copy in copies)
            span = intervals.length(under_way)
            beside = intervals.length(intervals.common(under_way, busy)) / span if span else 0.0
            size_bytes = sum(copy.size_bytes for copy in copies)
            found.append(CopyUse(*kind, len(copies), size_bytes, span / 1e9, beside))
        return tuple(sorted(found, key=lambda use: -use.size_bytes))

    def _kernels(self) -> tuple[KernelUse, ...]:
        groups: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in self._recording.kernels:
            groups[kernel.name].append(kernel)
        times = {name: sum(kernel.length_ns for kernel in kernels) for name, kernels in groups.items()}
        total = sum(times.values()) or 1
        return tuple(
            KernelUse(name, len(groups[name]), time / 1e9, time / total, groups[name][0].converts_layout)
            for name, time in Counter(times).most_common()
        )

    def _ranges(self) -> tuple[RangeUse, ...]:
        device_ns: Counter[tuple[str, str, Role]] = Counter()
        kernels: Counter[tuple[str, str, Role]] = Counter()
        works: list[Kernel | Copy] = [*self._recording.kernels, *self._recording.copies]
        for work in works:
            if (call := self._launch(work)) is not None:
                for key in {self._key(span) for span in self._around(call)}:
                    device_ns[key] += work.length_ns
                    kernels[key] += isinstance(work, Kernel)
        host: dict[tuple[str, str, Role], list[Range]] = defaultdict(list)
        for span in self._recording.ranges:
            if span.domain != OPERATOR and span.start_ns < self._window[1] and span.end_ns > self._window[0]:
                host[self._key(span)].append(span)
        found = [
            RangeUse(
                *key,
                threads=len({span.thread for span in spans}),
                count=len(spans),
                total_s=sum(span.length_ns for span in spans) / 1e9,
                device_s=device_ns[key] / 1e9,
                kernels=kernels[key],
            )
            for key, spans in host.items()
        ]
        return tuple(sorted(found, key=lambda use: -use.total_s))

    def _parts(self) -> tuple[PartUse, ...]:
        time_ns: Counter[str] = Counter()
        kernels: Counter[str] = Counter()
        for kernel in self._recording.kernels:
            call = self._launch(kernel)
            around = [] if call is None else [span for span in self._around(call) if span.name != STEP]
            # As in Nsight Compute's tables, which do not tell how ranges of several domains nest.
            own = [span for span in around if span.domain == DOMAIN]
            name = next((span.name for span in [*own, *around] if span.domain != OPERATOR), kernel.name)
            time_ns[name] += kernel.length_ns
            kernels[name] += 1
        return tuple(PartUse(name, time / 1e9, kernels[name]) for name, time in time_ns.most_common())

    def _callers(self) -> tuple[CallerUse, ...]:
        time_ns: Counter[tuple[str, tuple[str, ...]]] = Counter()
        count: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for call in self._recording.calls:
            if call.backtrace:
                place = call.name, call.backtrace[:FRAMES_SHOWN]
                time_ns[place] += call.length_ns
                count[place] += 1
        longest = time_ns.most_common(CALLERS_SHOWN)
        return tuple(CallerUse(*place, count[place], time / 1e9) for place, time in longest)

    def _around(self, call: Call) -> list[Range]:
        """The ranges around a call; in backward also those of the waiting main thread."""
        keys = [call.thread]
        thread = self._recording.threads.get(call.thread)
        if thread is not None and thread.role == "backward" and self._recording.main is not None:
            keys.append(self._recording.main)
        known = [key for key in keys if key in self._enclosing]
        return [self._by_thread[key][index] for key in known for index in self._enclosing[key].at(call.start_ns)]

    def _key(self, span: Range) -> tuple[str, str, Role]:
        thread = self._recording.threads.get(span.thread)
        return span.name, span.domain, thread.role if thread is not None else "other"

    def _threads(self) -> tuple[ThreadUse, ...]:
        found = []
        for thread in self._recording.of_role("main", "feeder", "worker", "decode"):
            seconds: Counter[str] = Counter()
            for start, end, name in self._stages[thread.key]:
                seconds[name] += intervals.length(intervals.clip([(start, end)], self._window))
            fetches = [span for span in self._by_thread[thread.key] if span.blocked_ns is not None]
            total = sum(span.length_ns - (span.queued_ns or 0) for span in fetches)
            blocked = sum(span.blocked_ns or 0 for span in fetches) / total if total else None
            shares = {name: time / self._recording.window_ns for name, time in seconds.most_common()}
            found.append(ThreadUse(thread.name, thread.role, *thread.key, shares, blocked))
        return tuple(found)


def _decode_ranges(recording: Recording) -> list[Range]:
    """The ranges that launch kernels to decode a batch, or to paint a deferred one.

    Decode threads and workers launch none.
    """
    launching = {key for key, thread in recording.threads.items() if thread.role not in ("decode", "worker")}
    stages = (span for span in recording.ranges if span.name in DECODING and span.domain == DOMAIN)
    return [span for span in stages if span.thread in launching]


def decode_kernels(recording: Recording, names: Sequence[str] = DECODING) -> list[Kernel]:
    """The kernels that decode images: those launched in ranges of these names."""
    spans: dict[ThreadKey, list[tuple[int, int, int]]] = defaultdict(list)
    for number, span in enumerate(_decode_ranges(recording)):
        if span.name in names:
            spans[span.thread].append((*span.interval, number))
    enclosing = {thread: Enclosing(found) for thread, found in spans.items()}
    launched = {
        (call.thread.process, call.correlation)
        for call in recording.calls
        if call.correlation is not None and call.thread in enclosing and enclosing[call.thread].at(call.start_ns)
    }
    return [kernel for kernel in recording.kernels if (kernel.process, kernel.correlation) in launched]


def _decode_use(recording: Recording, waits: Sequence[Interval]) -> DecodeUse | None:
    """Sum up what decoding took of the GPUs; ``None`` if they decoded nothing."""
    kernels = decode_kernels(recording)
    if not kernels:
        return None
    window = recording.window
    decoding = intervals.union(intervals.clip((kernel.interval for kernel in kernels), window))
    mine = {id(kernel) for kernel in kernels}
    others = intervals.union(kernel.interval for kernel in recording.kernels if id(kernel) not in mine)
    alone = intervals.common(decoding, intervals.gaps(others, window))
    total = intervals.length(decoding)
    return DecodeUse(
        batches=sum(window[0] <= span.start_ns < window[1] for span in _decode_ranges(recording)),
        kernels=len(kernels),
        seconds=total / 1e9,
        beside_kernels_share=1.0 - intervals.length(alone) / total if total else 0.0,
        share=total / recording.window_ns,
        awaited_share=intervals.length(intervals.common(alone, waits)) / recording.window_ns,
    )
