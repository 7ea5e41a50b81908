"""A report's numbers: device use, gaps, copies, kernels, ranges, threads.

``analysis`` computes them from a recording.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fastload.profiling.trace import Role

_NOT_WORK: Final = frozenset({"wait"})


@dataclass(frozen=True, slots=True)
class Activity:
    """What one thread, or all threads of a kind, did in some interval.

    Attributes:
        what: A range, a call, or an operator; ``"nothing recorded"`` if there was none.
        share: Share of the interval, from 0 to 1, over all threads of the kind.
    """

    what: str
    share: float


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device over whole steps.

    Attributes:
        device: Its index.
        name: Its name.
        busy_share: Share of the time in which at least one kernel ran; copies do not count.
        window_s: Length of the whole steps.
        kernels: Number of kernels that ran.
        starved_share: Share of the time in which no kernel ran and the training loop waited for a batch.
    """

    device: int
    name: str
    busy_share: float
    window_s: float
    kernels: int
    starved_share: float

    @property
    def idle_share(self) -> float:
        """The share without a kernel."""
        return 1 - self.busy_share


@dataclass(frozen=True, slots=True)
class Gap:
    """An interval in which a device ran no kernel.

    Attributes:
        device: Its index.
        start_s: Start, relative to the window's.
        length_s: Its length.
        copying_share: Share of it in which a copy to the device was running.
        host: What the training thread did, the longest first.
        loader: What the loader's threads and processes did, as shares of all of them.
    """

    device: int
    start_s: float
    length_s: float
    copying_share: float
    host: tuple[Activity, ...]
    loader: tuple[Activity, ...]


@dataclass(frozen=True, slots=True)
class CopyUse:
    """Copies of one kind.

    Attributes:
        direction: From where to where.
        memory: Kind of host memory: pageable or pinned.
        count: Number of copies.
        size_bytes: Their total size.
        seconds: Time in which at least one was running.
        beside_kernels_share: Share of ``seconds`` in which a kernel ran at the same time.
    """

    direction: str
    memory: str
    count: int
    size_bytes: int
    seconds: float
    beside_kernels_share: float

    @property
    def gb_per_s(self) -> float:
        """1e9 bytes per second, while copies were running."""
        return self.size_bytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One kernel, over all its launches.

    Attributes:
        name: Its name.
        count: Launches.
        seconds: Their total time.
        share: Share of all kernels' time.
        converts_layout: Whether it only converts between NCHW and NHWC.
    """

    name: str
    count: int
    seconds: float
    share: float
    converts_layout: bool


@dataclass(frozen=True, slots=True)
class DecodeUse:
    """Decoding on the GPU.

    Attributes:
        batches: Batches whose decoding was launched.
        kernels: Number of kernels.
        seconds: Time in which at least one of them ran.
        beside_kernels_share: Share of ``seconds`` in which another kernel ran, too.
        share: ``seconds`` as a share of the window.
        awaited_share: Share of the window in which only they ran and the training loop waited for a batch.
    """

    batches: int
    kernels: int
    seconds: float
    beside_kernels_share: float
    share: float
    awaited_share: float

    @property
    def mean_s(self) -> float:
        """Seconds per batch."""
        return self.seconds / self.batches if self.batches else 0.0


@dataclass(frozen=True, slots=True)
class RangeUse:
    """One range by name, over all threads of a kind.

    Attributes:
        name: Its name.
        domain: Its NVTX domain.
        role: Role of its threads.
        threads: Number of threads.
        count: Number of ranges.
        total_s: Total time on the host.
        device_s: Total time of the kernels and copies launched within it.
        kernels: Number of those kernels.
    """

    name: str
    domain: str
    role: Role
    threads: int
    count: int
    total_s: float
    device_s: float
    kernels: int

    @property
    def mean_s(self) -> float:
        """Mean time on the host."""
        return self.total_s / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """One thread of the loop or the loader.

    Attributes:
        name: Its name.
        role: What it does.
        process: Its process's id.
        thread: Its own id.
        stages: Share of the window by innermost stage.
        blocked_share: Share of its ``fetch`` in which it waited for storage or slept, without the time in which it
            waited for a core; None if not recorded.
    """

    name: str
    role: Role
    process: int
    thread: int
    stages: dict[str, float]
    blocked_share: float | None = None

    @property
    def busy_share(self) -> float:
        """Share of the window spent in stages other than waiting."""
        return sum(share for stage, share in self.stages.items() if stage not in _NOT_WORK)


@dataclass(frozen=True, slots=True)
class Findings:
    """All numbers of one recording.

    Attributes:
        source: The recorder: ``"nsys"`` or ``"torch.profiler"``.
        seconds: The window's length.
        steps: Training steps in it.
        devices: Every device that ran a kernel.
        gaps: The longest intervals without a kernel, the longest first.
        copies: By direction and kind of memory, the most bytes first.
        kernels: The longest, summed by name.
        layout: Kernels that only convert layouts.
        ranges: By name, the longest first.
        threads: Threads of the loop and the loader.
        wait_share: Share of the window in which the training loop waited for a batch.
        waiting: What the loader's threads did during those waits.
        link_share: Share of the window in which a copy to the device was running.
        notes: What the recording lacks.
        gpu_decode: Decoding on the GPU; ``None`` if there was none.
    """

    source: str
    seconds: float
    steps: int
    devices: tuple[DeviceUse, ...]
    gaps: tuple[Gap, ...]
    copies: tuple[CopyUse, ...]
    kernels: tuple[KernelUse, ...]
    layout: tuple[KernelUse, ...]
    ranges: tuple[RangeUse, ...]
    threads: tuple[ThreadUse, ...]
    wait_share: float
    waiting: tuple[Activity, ...] = ()
    link_share: float = 0.0
    notes: tuple[str, ...] = ()
    gpu_decode: DecodeUse | None = None

    @property
    def step_s(self) -> float | None:
        """Time per step."""
        return self.seconds / self.steps if self.steps else None


def to_dict(findings: Findings) -> dict[str, Any]:
    """Convert the numbers to a JSON object."""
    found = asdict(findings)
    found["step_s"] = findings.step_s
    if findings.gpu_decode is not None:
        found["gpu_decode"]["mean_s"] = findings.gpu_decode.mean_s
    for use, copy in zip(found["copies"], findings.copies, strict=True):
        use["gb_per_s"] = copy.gb_per_s
    for use, device in zip(found["devices"], findings.devices, strict=True):
        use["idle_share"] = device.idle_share
    for use, span in zip(found["ranges"], findings.ranges, strict=True):
        use["mean_s"] = span.mean_s
    for use, thread in zip(found["threads"], findings.threads, strict=True):
        use["busy_share"] = thread.busy_share
    return found
