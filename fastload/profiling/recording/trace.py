"""A profiler's recording of a training loop as plain data, the same for every profiler.

All times are nanoseconds on one clock, the recording's own.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, get_args

from fastload.nvtx.stages import DOMAIN, StageName

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Role: TypeAlias = Literal["main", "feeder", "worker", "decode", "backward", "other"]
"""A thread's job: training loop, copying batches, reading samples, native decoding, autograd."""

Memory: TypeAlias = Literal["pageable", "pinned", "device", "managed", "unknown"]

Direction: TypeAlias = Literal["host to device", "device to host", "device to device", "other"]
STAGES: Final[tuple[str, ...]] = get_args(StageName)  # the loader's own ranges, in the domain `fastload`
LOADING: Final = ("fetch", "collate", "h2d")  # stages of the loader's threads and processes other than decode threads
DECODING: Final = ("decode", "paint")  # stages in which a device decodes; painting is that of deferred samples
OPERATOR: Final = "operator"  # the domain of torch's operators, which are not NVTX ranges but show the host's work
STEP: Final = "step"  # the range that the capture window puts around each training step, in the domain `fastload`

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
    """Identifies a thread by the operating system's ids of its process and itself."""

    process: int
    thread: int


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of the recorded program."""

    key: ThreadKey
    name: str  # name set by the operating system or the program; may be empty
    role: Role


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of time."""

    start_ns: int
    end_ns: int

    @property
    def interval(self) -> tuple[int, int]:
        """Start and end."""
        return self.start_ns, self.end_ns

    @property
    def length_ns(self) -> int:
        """Time from start to end."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Range(Span):
    """A named interval on a thread."""

    name: str  # name, the same for all batches
    thread: ThreadKey
    domain: str = ""  # DOMAIN: the loader's own and annotate's; "torch": torch.profiler's; OPERATOR; else the user's
    payload: int | None = None  # the batch number
    blocked_ns: int | None = None  # time in which the thread slept or waited for storage; None if not recorded
    queued_ns: int | None = None  # time in which it waited for a core; None if not recorded


@dataclass(frozen=True, slots=True)
class Call(Span):
    """A call of the CUDA API or of the operating system."""

    name: str
    thread: ThreadKey
    correlation: int | None = None  # number shared with the kernel or copy that it started
    backtrace: tuple[str, ...] = ()  # functions that called it, the innermost first; empty if not recorded


@dataclass(frozen=True, slots=True)
class Kernel(Span):
    """A kernel that ran on a device, and the process that launched it."""

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
class Copy(Span):
    """A copy of memory by a device, and the process that requested it."""

    direction: Direction
    memory: Memory  # kind of host memory; "device" between devices
    size_bytes: int
    device: int
    stream: int
    process: int
    correlation: int | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """All events of one capture window, each kind in order of its start."""

    source: str  # "nsys" or "torch.profiler"
    start_ns: int
    end_ns: int
    threads: dict[ThreadKey, Thread]
    ranges: tuple[Range, ...] = ()
    calls: tuple[Call, ...] = ()  # calls of the CUDA API
    os_calls: tuple[Call, ...] = ()  # calls of the operating system that may block
    kernels: tuple[Kernel, ...] = ()
    copies: tuple[Copy, ...] = ()
    devices: dict[int, str] = field(default_factory=dict)  # names by index
    notes: tuple[str, ...] = ()  # sentences about what the recording lacks

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


def training_thread(ranges: Iterable[Range], process: int | None = None) -> ThreadKey | None:
    """Return the thread with the steps, or else with the waits for batches."""
    marks = [span for span in ranges if span.name in (STEP, "wait") and process in (None, span.thread.process)]
    steps = [span.thread for span in marks if span.name == STEP]
    return most_common(steps or [span.thread for span in marks])


def most_common(threads: Iterable[ThreadKey]) -> ThreadKey | None:
    """Return the thread that is mentioned most often, or ``None`` without any."""
    return next((thread for thread, _ in Counter(threads).most_common(1)), None)


def extent(spans: Sequence[Span]) -> tuple[int, int]:
    """Return the first start and the last end; zeros without any span."""
    return min((span.start_ns for span in spans), default=0), max((span.end_ns for span in spans), default=0)


def assign_roles(
    names: dict[ThreadKey, str], main: ThreadKey | None, ranges: Iterable[Range]
) -> dict[ThreadKey, Thread]:
    """Assign a role to each recorded thread, by its process, its name and its ranges."""
    reading = {span.thread for span in ranges if span.domain == DOMAIN and span.name in LOADING}
    threads: dict[ThreadKey, Thread] = {}
    for key, name in names.items():
        role: Role = "other"
        if key == main:
            role = "main"
        elif main is not None and key.process != main.process:
            leads = key.process == key.thread
            role = "worker" if key in reading or (leads and name == _WORKER) else "other"
        else:
            by_name = (role for pattern, role in _ROLES if pattern.match(name))
            role = next(by_name, "feeder" if key in reading else "other")
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


def shortened(name: str, most: int) -> str:
    """Cut a name to so many characters."""
    return name if len(name) <= most else f"{name[: most - 1]}…"
