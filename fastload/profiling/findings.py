"""The numbers of a report: how busy the device was, what held it up, what was copied how, and where time went.

``finder`` computes them from a recording.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fastload.profiling.trace import Role

_NOT_WORK: Final = frozenset({"wait"})


@dataclass(frozen=True, slots=True)
class Activity:
    """What a thread, or several of a kind, did in some stretch of time.

    Attributes:
        what: A range, a call, or an operator; ``"nothing recorded"`` where there was none.
        share: Of the stretch, from 0 to 1; of all threads of the kind together.
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
        window_s: That time.
        kernels: How many ran.
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
        """The rest."""
        return 1 - self.busy_share


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch in which a device ran no kernel.

    Attributes:
        device: Its index.
        start_s: Since the window's start.
        length_s: How long.
        copying_share: Share of it in which a copy to the device was under way.
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
        memory: The host's end: pageable or pinned.
        count: How many.
        size_bytes: Together.
        seconds: In which at least one was under way.
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
        """1e9 bytes per second, while copies were under way."""
        return self.size_bytes / self.seconds / 1e9 if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class KernelUse:
    """One kernel, over all its launches.

    Attributes:
        name: Its name.
        count: Launches.
        seconds: Together.
        share: Of all kernels' time.
        converts_layout: Whether it only turns NCHW into NHWC or back.
    """

    name: str
    count: int
    seconds: float
    share: float
    converts_layout: bool


@dataclass(frozen=True, slots=True)
class RangeUse:
    """One range by name, over all threads of a kind.

    Attributes:
        name: Its name.
        domain: Whose it is.
        role: What kind of thread it was on.
        threads: On how many of them.
        count: How often.
        total_s: On the host, added up.
        device_s: Of kernels and copies that were launched within it, added up.
        kernels: How many kernels.
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
        """On the host, each."""
        return self.total_s / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """One thread of the loop or the loader.

    Attributes:
        name: Its name.
        role: What it does.
        process: Its process's id.
        thread: Its own.
        stages: Share of the window by innermost stage.
        blocked_share: Share of its ``fetch`` in which it waited for storage or slept; None where nobody saw. The time
            in which it waited for a core is left out.
    """

    name: str
    role: Role
    process: int
    thread: int
    stages: dict[str, float]
    blocked_share: float | None = None

    @property
    def busy_share(self) -> float:
        """Share of the window in which it was in some stage other than waiting."""
        return sum(share for stage, share in self.stages.items() if stage not in _NOT_WORK)


@dataclass(frozen=True, slots=True)
class Findings:
    """All numbers of one recording.

    Attributes:
        source: What recorded it: ``"nsys"`` or ``"torch.profiler"``.
        seconds: The window's length.
        steps: Training steps in it.
        devices: Each one that ran a kernel.
        gaps: The longest stretches without a kernel, the longest first.
        copies: By direction and kind of memory, the most bytes first.
        kernels: The longest, added up by name.
        layout: Those that only convert layouts.
        ranges: By name, the longest first.
        threads: Those of the loop and the loader.
        wait_share: Share of the window in which the training loop waited for a batch.
        waiting: What the loader's threads did meanwhile.
        link_share: Share of the window in which a copy to the device was under way.
        notes: What the recording lacks.
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

    @property
    def step_s(self) -> float | None:
        """Time per step."""
        return self.seconds / self.steps if self.steps else None


def to_dict(findings: Findings) -> dict[str, Any]:
    """The numbers as JSON writes them."""
    found = asdict(findings)
    found["step_s"] = findings.step_s
    for use, copy in zip(found["copies"], findings.copies, strict=True):
        use["gb_per_s"] = copy.gb_per_s
    for use, device in zip(found["devices"], findings.devices, strict=True):
        use["idle_share"] = device.idle_share
    for use, span in zip(found["ranges"], findings.ranges, strict=True):
        use["mean_s"] = span.mean_s
    for use, thread in zip(found["threads"], findings.threads, strict=True):
        use["busy_share"] = thread.busy_share
    return found
