"""What a profiler recorded of a training loop, as plain data: whoever recorded it, the report is the same.

All times are nanoseconds on one clock, the recording's own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Role: TypeAlias = Literal["main", "feeder", "worker", "decode", "backward", "other"]
"""What a thread does: runs the training loop, copies batches, reads samples, decodes natively, runs autograd."""

Memory: TypeAlias = Literal["pageable", "pinned", "device", "managed", "unknown"]

Direction: TypeAlias = Literal["host to device", "device to host", "device to device", "other"]

STAGES: Final = ("fetch", "decode", "collate", "h2d", "epilogue", "wait")
"""The loader's own ranges, in the domain ``fastload``."""

LOADING: Final = ("fetch", "collate", "h2d")
"""Those of them that the loader's own threads and processes are in, and not the decode threads."""

DOMAIN: Final = "fastload"
OPERATOR: Final = "operator"
"""The domain of torch's operators, which are no ranges of anybody's, but tell what the host did."""

STEP: Final = "step"
"""The range that the capture window puts around each training step, in the domain ``fastload``."""

# cuDNN and its kin name what they do; torch's own layout copies are element-wise kernels that nothing tells apart.
_LAYOUT: Final = re.compile(r"nchw\w{0,12}nhwc|nhwc\w{0,12}nchw|convertTensor|nchwAddPadding", re.IGNORECASE)

_ROLES: Final[tuple[tuple[re.Pattern[str], Role], ...]] = (
    (re.compile(r"fastload-(?:feeder|copy-s|pipeli)"), "feeder"),
    (re.compile(r"fl-decode|fastload-dec"), "decode"),
    (re.compile(r"pt_autograd"), "backward"),
)
_WORKER: Final = "pt_data_worker"  # torch names the threads of a worker process so, all of them

# Names that say nothing by themselves; the template arguments tell more.
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
        name: As the operating system or the program calls it; may be empty.
        role: What it does.
    """

    key: ThreadKey
    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Range:
    """A named stretch of time on a thread.

    Attributes:
        start_ns: When it began.
        end_ns: When it ended.
        name: Constant over batches.
        thread: Where.
        domain: :data:`DOMAIN` for the loader's own and those of ``annotate``, ``"torch"`` for torch.profiler's,
            :data:`OPERATOR`, else the user's.
        payload: The batch number, if it carries one.
        blocked_ns: How much of it the thread neither ran nor could have run: it waited for storage or slept. None where
            that was not recorded.
        queued_ns: How much of it the thread waited for a core; None likewise.
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
        correlation: What a kernel or copy that it started carries too; None for the operating system's.
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
        name: The function, without template arguments where the recording has it so.
        device: Index of the device.
        stream: The stream's id.
        process: The process that launched it.
        correlation: The launch's.
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
        """Whether all it does is to turn NCHW into NHWC or back."""
        return _LAYOUT.search(self.name) is not None


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of memory by the device.

    Attributes:
        start_ns: When it began on the device.
        end_ns: When it ended.
        direction: From where to where.
        memory: The kind of host memory at one end; for others ``"device"``.
        size_bytes: What was copied.
        device: Index of the device.
        stream: The stream's id.
        process: The process that asked for it.
        correlation: The call's.
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
    """Everything of one capture window.

    Attributes:
        source: ``"nsys"`` or ``"torch.profiler"``.
        start_ns: The window's start.
        end_ns: Its end.
        threads: By key.
        ranges: In order of their start.
        calls: Of the CUDA API.
        os_calls: Of the operating system: those that may block.
        kernels: In order of their start.
        copies: Likewise.
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
        """The thread that runs the training loop, if it was seen."""
        return next((key for key, thread in self.threads.items() if thread.role == "main"), None)

    def of_role(self, *roles: Role) -> list[Thread]:
        """The threads with one of these roles, by name."""
        found = [thread for thread in self.threads.values() if thread.role in roles]
        return sorted(found, key=lambda thread: (thread.role, thread.key))


def assign_roles(
    names: dict[ThreadKey, str], main: ThreadKey | None, readers: Iterable[ThreadKey]
) -> dict[ThreadKey, Thread]:
    """Say what each thread does.

    Args:
        names: Every thread that was seen.
        main: The one that runs the training loop.
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
    """A name that a person recognizes and that fits into a table.

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
