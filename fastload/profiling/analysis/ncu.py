"""Nsight Compute's measurements of single kernels, summed per range or module."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from fastload.profiling.analysis.roofline import SCALAR, TENSOR, classify, shares
from fastload.profiling.recording.nsys import NsightError
from fastload.profiling.recording.trace import STEP, kernel_name, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from fastload.profiling.analysis.roofline import Ceilings, Class

By: TypeAlias = Literal["range", "kernel"]

TIME: Final = "gpu__time_duration.sum"
READ: Final = "dram__bytes_read.sum"
WRITTEN: Final = "dram__bytes_write.sum"

# Thread instructions by kind of arithmetic; a fused multiply-add is two operations.
_SCALAR: Final[dict[str, tuple[str, int]]] = {
    f"smsp__sass_thread_inst_executed_op_{letter}{what}_pred_on.sum": (kind, 2 if what == "fma" else 1)
    for letter, kind in (("f", "fp32"), ("h", "fp16"), ("d", "fp64"))
    for what in ("add", "mul", "fma")
}
# Operations on tensor cores by type of the factors; which of these metrics exist depends on the device.
_TENSOR: Final = {
    f"sm__ops_path_tensor_src_{source}.sum": kind
    for source, kind in (
        *(("bf16_dst_fp32", "tensor"), ("fp16", "tensor"), ("tf32_dst_fp32", "tf32")),
        *(("fp8", "fp8"), ("int8", "int8"), ("fp64", "fp64_tensor")),
    )
}

METRICS: Final = (TIME, READ, WRITTEN, *_SCALAR, *_TENSOR)  # all metrics requested from ncu, if the device has them

CLASS_COLOURS: Final[dict[str, str]] = {
    "compute-bound": "#c0392b",
    "memory-bound": "#2a7f62",
    "latency-bound": "#8d99a6",
}
LABELLED: Final = 12  # number of points labelled in the picture: the longest
_NEEDED: Final = (TIME, READ, WRITTEN)

_UNITS: Final = {
    **{"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9},
    **{"ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3, "s": 1.0, "second": 1.0},
    **{"": 1.0, "inst": 1.0},
}
_RANGES: Final = "thread Domain:Push/Pop_Range"
_RANGE: Final = re.compile(r'"([^"]*?):([^"]*?):[^:"]*:[^:"]*:[^:"]*:[^:"]*:[^:"]*:[^"]*"')


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One measured launch of a kernel."""

    name: str
    ranges: tuple[str, ...]  # ranges around its launch on its thread, the outermost first
    seconds: float
    read_bytes: float  # bytes from device memory to L2
    written_bytes: float  # bytes from L2 to device memory
    operations: Mapping[str, float] = field(default_factory=dict)  # number by kind, of roofline.TENSOR and SCALAR


@dataclass(frozen=True, slots=True)
class Sum:
    """All launches of one range, module or kernel."""

    name: str
    kernels: int  # number of launches
    seconds: float
    size_bytes: float  # bytes between L2 and device memory
    operations: Mapping[str, float]  # number by kind
    bound: Class
    memory_share: float  # share of the measured bandwidth
    compute_share: float  # share of the measured arithmetic rate

    @property
    def bytes_per_s(self) -> float:
        """Achieved bandwidth."""
        return self.size_bytes / self.seconds if self.seconds else 0.0

    @property
    def flops(self) -> float:
        """Achieved operations per second, of all kinds."""
        return sum(self.operations.values()) / self.seconds if self.seconds else 0.0

    @property
    def intensity(self) -> float | None:
        """Operations per byte; None if no bytes were moved."""
        return sum(self.operations.values()) / self.size_bytes if self.size_bytes else None

    def to_dict(self) -> dict[str, Any]:
        """Convert to a CSV or JSON record, in seconds, bytes and operations."""
        return {
            "name": self.name,
            "class": self.bound,
            "kernels": self.kernels,
            "seconds": self.seconds,
            "bytes": self.size_bytes,
            "bytes_per_s": self.bytes_per_s,
            "bandwidth_share": self.memory_share,
            **{f"{kind}_operations": self.operations.get(kind, 0.0) for kind in (*TENSOR, *SCALAR)},
            "operations_per_s": self.flops,
            "compute_share": self.compute_share,
            "operations_per_byte": self.intensity,
        }


def read(path: Path) -> list[KernelRun]:
    """Read the log of ``ncu --csv --page raw``; raises ``NsightError`` without a table."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise NsightError(f"{path} cannot be read ({error.strerror}): measure again with --keep") from error
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        raise NsightError(_why(lines))
    head, units, *rows = csv.reader(line for line in lines[start:] if line.startswith('"'))
    column = {name: number for number, name in enumerate(head)}
    if missing := [name for name in _NEEDED if name not in column]:
        raise NsightError(f"{path} lacks {', '.join(missing)}: ask ncu for them with --metrics")
    ranges = next((number for name, number in column.items() if name.startswith(_RANGES)), None)

    def value(row: Sequence[str], name: str) -> float:
        number = column.get(name)
        text = row[number].replace(",", "") if number is not None else ""
        try:
            return float(text) * _UNITS.get(units[number or 0], 1.0)
        except ValueError:  # "n/a"
            return 0.0

    found = []
    for row in rows:
        operations: dict[str, float] = defaultdict(float)
        for name, (kind, weight) in _SCALAR.items():
            operations[kind] += weight * value(row, name)
        for name, kind in _TENSOR.items():
            operations[kind] += value(row, name)
        found.append(
            KernelRun(
                kernel_name(row[column["Kernel Name"]]),
                () if ranges is None else tuple(name for _, name in _RANGE.findall(row[ranges])),
                value(row, TIME),
                value(row, READ),
                value(row, WRITTEN),
                {kind: count for kind, count in operations.items() if count},
            )
        )
    return found


def _why(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    if "ERR_NVGPUCTRPERM" in text:
        return (
            "the driver keeps the GPU's counters from this user (ERR_NVGPUCTRPERM): run as root, or load the driver "
            "with NVreg_RestrictProfilingToAdminUsers=0"
        )
    if "No kernels were profiled" in text:
        return (
            "ncu measured no kernel: none was launched inside the range, on the thread that opened it, within the "
            "capture window; see --range, --warmup and --steps"
        )
    errors = [line for line in lines if line.startswith("==ERROR==")]
    return f"ncu wrote no table: {errors[0].removeprefix('==ERROR==').strip() if errors else 'it said nothing'}"


def sum_up(runs: Iterable[KernelRun], inside: str, ceilings: Ceilings, by: By = "range") -> list[Sum]:
    """Sum up launches, the longest first.

    Args:
        runs: The measured launches.
        inside: The measured range; its own launches, outside of ranges within it, count by kernel.
        ceilings: The device's ceilings.
        by: ``"range"``: per innermost range, such as those of ``annotate_modules``; ``"kernel"``: per kernel.
    """
    groups: dict[str, list[KernelRun]] = defaultdict(list)
    for run in runs:
        # ncu does not give the order of ranges in several domains, but the step encloses all others.
        innermost = next((name for name in reversed(run.ranges) if name != STEP), inside)
        groups[innermost if by == "range" and innermost != inside else run.name].append(run)
    sums = [_sum(name, members, ceilings) for name, members in groups.items()]
    return sorted(sums, key=lambda each: -each.seconds)


def _sum(name: str, runs: Sequence[KernelRun], ceilings: Ceilings) -> Sum:
    operations: dict[str, float] = defaultdict(float)
    for run in runs:
        for kind, count in run.operations.items():
            operations[kind] += count
    seconds = sum(run.seconds for run in runs)
    size_bytes = sum(run.read_bytes + run.written_bytes for run in runs)
    memory, compute = shares(seconds, size_bytes, operations, ceilings)
    bound = classify(seconds, size_bytes, operations, ceilings)
    return Sum(name, len(runs), seconds, size_bytes, dict(operations), bound, memory, compute)


def total(runs: Sequence[KernelRun], ceilings: Ceilings) -> Sum:
    """Sum of all launches."""
    return _sum("all", runs, ceilings)


def write_csv(sums: Sequence[Sum], path: Path) -> None:
    """Write one line per sum."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = [each.to_dict() for each in sums]
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["name"])
        writer.writeheader()
        writer.writerows(rows)


def draw(sums: Sequence[Sum], ceilings: Ceilings, path: Path, title: str) -> None:
    """Plot time against bytes moved, both logarithmic, with the measured bandwidth's limit.

    Needs matplotlib; the suffix of ``path`` names the format.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(11, 6.2), dpi=120, layout="constrained")
    axes: Any = figure.subplots()
    moved = [max(each.size_bytes, 1.0) for each in sums]
    for bound, colour in CLASS_COLOURS.items():
        chosen = [(max(each.size_bytes, 1.0), each.seconds) for each in sums if each.bound == bound]
        if chosen:
            xs, ys = zip(*chosen, strict=True)
            axes.scatter(xs, ys, s=46, color=colour, label=bound, edgecolors="white", linewidths=0.6, zorder=3)
    low, high = min(moved) / 2, max(moved) * 2
    line = [low / ceilings.bytes_per_s, high / ceilings.bytes_per_s]
    speed = ceilings.bytes_per_s / 1e12
    axes.plot([low, high], line, color="#333333", lw=1, label=f"measured bandwidth, {speed:.2f} TB/s", zorder=2)
    for number, each in enumerate(sums[:LABELLED], start=1):
        at = (max(each.size_bytes, 1.0), each.seconds)
        axes.annotate(str(number), at, textcoords="offset points", xytext=(5, 4), fontsize=8.5, color="#222222")
    key = [f"{number}  {shortened(each.name, 40)}" for number, each in enumerate(sums[:LABELLED], start=1)]
    axes.text(1.02, 1, "\n".join(["the longest", *key]), transform=axes.transAxes, va="top", fontsize=8.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    shortest = min(each.seconds for each in sums)
    axes.set_ylim(max(shortest / 4, line[0]), max(each.seconds for each in sums) * 2.5)
    axes.xaxis.set_major_formatter(EngFormatter("B"))
    axes.yaxis.set_major_formatter(EngFormatter("s"))
    axes.set_xlabel("bytes between L2 and device memory")
    axes.set_ylabel("time on the device")
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(color="#e6e9ec", lw=0.7, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(str(path))
