"""A profiler's recording of a training loop as plain data, the same for every profiler.

All times are nanoseconds on one clock, the recording's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Role: TypeAlias = Literal["main", "feeder", "worker", "decode", "backward", "other"]
"""A thread's job: training loop, copying batches, reading samples, native decoding, autograd."""

Memory: TypeAlias = Literal["pageable", "pinned", "device", "managed", "unknown"]

Direction: TypeAlias = Literal["host to device", "device to host", "device to device", "other"]

STAGES: Final = ("fetch", "read", "decode", "collate", "h2d", "epilogue", "wait")
"""The loader's own ranges, in the domain ``fastload``."""

LOADING: Final = ("fetch", "collate", "h2d")
"""Stages of the loader's threads and processes other than decode threads."""

DOMAIN: Final = "fastload"
OPERATOR: Final = "operator"
"""The domain of torch's operators, which are not NVTX ranges but show the host's work."""

STEP: Final = "step"
"""The range that the capture window puts around each training step, in the domain ``fastload``."""

# cuDNN and similar libraries name their conversions; torch's layout copies are indistinct element-wise kernels.
_LAYOUT: Final = re.compile(r"nchw\w{0,12}nhwc|nhwc\w{0,12}nchw|convertTensor|nchwAddPadding", re.IGNORECASE)

_ROLES: Final[tuple[tuple[re.Pattern[str], Role], ...]] = (
    (re.compile(r"fastload-(?:feeder|copy-s|pipeli)"), "feeder"),
    (re.compile(r"fl-decode|fastload-dec"), "decode"),
    (re.compile(r"pt_autograd"), "backward"),
)
_WORKER: Final = "pt_data_worker"  # torch's name for all threads of a worker process

# Names that mean nothing without their template arguments.
_GENERIC: Final = re.compile(r"(elementwise|reduce|copy|index|cat)\w*kernel\w*$|Cat\w*Copy$", re.IGNORECASE)
_FUNCTOR: Final = re.compile(r"(\w*(?:[Ff]unctor|_kernel_cuda|_kernel_impl|Ops|_op_|launch_)\w*)")


class ThreadKey(NamedTuple):
    """Identifies a thread.

    Attributes:
        process: Its process's id.
        thread: The operating system's id for it.
    """

    process: int
    thread: int


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of the recorded program.

    Attributes:
        key: Its ids.
        name: Set by the operating system or the program; may be empty.
        role: Its job.
    """

    key: ThreadKey
    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Range:
    """A named interval on a thread.

    Attributes:
        start_ns: When it began.
        end_ns: When it ended.
        name: Constant over batches.
        thread: Its thread.
        domain: :data:`DOMAIN` for the loader's own and those of ``annotate``, ``"torch"`` for torch.profiler's,
            :data:`OPERATOR`, else the user's.
        payload: The batch number, if it has one.
        blocked_ns: Time in it in which the thread was not ready to run: it waited for storage or slept. None if not
            recorded.
        queued_ns: Time in it in which the thread waited for a core; None if not recorded.
    """

    start_ns: int
    end_ns: int
    name: str
    thread: ThreadKey
    domain: str = ""
    payload: int | None = None
    blocked_ns: int | None = None
    queued_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the CUDA API or of the operating system.

    Attributes:
        start_ns: When it began.
        end_ns: When it returned.
        name: The function.
        thread: The caller.
        correlation: Shared with the kernel or copy that it started; None for calls of the operating system.
    """

    start_ns: int
    end_ns: int
    name: str
    thread: ThreadKey
    correlation: int | None = None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that ran.

    Attributes:
        start_ns: When it began on the device.
        end_ns: When it ended.
        name: The function, without template arguments if the recording omits them.
        device: Index of the device.
        stream: The stream's id.
        process: The process that launched it.
        correlation: That of the launch.
    """

    start_ns: int
    end_ns: int
    name: str
    device: int
    stream: int
    process: int
    correlation: int | None = None

    @property
    def converts_layout(self) -> bool:
        """Whether it only converts between NCHW and NHWC."""
        return _LAYOUT.search(self.name) is not None


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of memory by the device.

    Attributes:
        start_ns: When it began on the device.
        end_ns: When it ended.
        direction: From where to where.
        memory: The kind of host memory; ``"device"`` between devices.
        size_bytes: Bytes copied.
        device: Index of the device.
        stream: The stream's id.
        process: The process that requested it.
        correlation: That of the call.
    """

    start_ns: int
    end_ns: int
    direction: Direction
    memory: Memory
    size_bytes: int
    device: int
    stream: int
    process: int
    correlation: int | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """All events of one capture window.

    Attributes:
        source: ``"nsys"`` or ``"torch.profiler"``.
        start_ns: The window's start.
        end_ns: Its end.
        threads: By key.
        ranges: In order of their start.
        calls: Calls of the CUDA API.
        os_calls: Calls of the operating system that may block.
        kernels: In order of their start.
        copies: In order of their start.
        devices: Names of the devices, by index.
        notes: What the recording lacks, for the report.
    """

    source: str
    start_ns: int
    end_ns: int
    threads: dict[ThreadKey, Thread]
    ranges: tuple[Range, ...] = ()
    calls: tuple[Call, ...] = ()
    os_calls: tuple[Call, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    copies: tuple[Copy, ...] = ()
    devices: dict[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def window(self) -> tuple[int, int]:
        """Start and end."""
        return self.start_ns, self.end_ns

    @property
    def window_ns(self) -> int:
        """Its length, at least 1."""
        return max(1, self.end_ns - self.start_ns)

    @property
    def main(self) -> ThreadKey | None:
        """The thread that runs the training loop, if recorded."""
        return next((key for key, thread in self.threads.items() if thread.role == "main"), None)

    def of_role(self, *roles: Role) -> list[Thread]:
        """The threads with one of these roles, by name."""
        found = [thread for thread in self.threads.values() if thread.role in roles]
        return sorted(found, key=lambda thread: (thread.role, thread.key))


def assign_roles(
    names: dict[ThreadKey, str], main: ThreadKey | None, readers: Iterable[ThreadKey]
) -> dict[ThreadKey, Thread]:
    """Assign a role to each thread.

    Args:
        names: Every recorded thread.
        main: The thread that runs the training loop.
        readers: Threads with a range of :data:`LOADING`.
    """
    reading = set(readers)
    threads: dict[ThreadKey, Thread] = {}
    for key, name in names.items():
        role: Role = "other"
        if key == main:
            role = "main"
        elif main is not None and key.process != main.process:
            leads = key.process == key.thread
            role = "worker" if key in reading or (leads and name == _WORKER) else "other"
        else:
            role = next((role for pattern, role in _ROLES if pattern.match(name)), "other")
            if role == "other" and key in reading:
                role = "feeder"
        threads[key] = Thread(key, name, role)
    return threads


def kernel_name(demangled: str, short: str = "") -> str:
    """A short, recognizable name of a kernel, for tables.

    >>> kernel_name("void at::native::elementwise_kernel<128, 4, at::native::CUDAFunctor_add<float>>(int, T3)")
    'elementwise_kernel (CUDAFunctor_add)'
    >>> kernel_name("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_128x64>(T1::Params)", "Kernel2")
    'cutlass_80_tensorop_f16_s16816gemm_128x64'
    """
    plain = re.sub(r"<unnamed>::|\(anonymous namespace\)::", "", demangled)
    head, _, arguments = plain.partition("<")
    name = short or head.partition("(")[0].rpartition("::")[2].rpartition(" ")[2]
    if name in ("Kernel", "Kernel2") and (found := re.match(r"\w+", arguments)):
        return found[0]
    if _GENERIC.search(name):
        for found in _FUNCTOR.finditer(arguments):
            if found[1] not in ("gpu_kernel_impl", "gpu_kernel_impl_nocast", name):
                return f"{name} ({found[1]})"
    return name or demangled
