"""Nsight Compute's measurements of single kernels, summed per range or module."""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from fastload.nvtx.stages import DOMAIN
from fastload.profiling.analysis.roofline import SCALAR, TENSOR, Ceilings, classify, shares
from fastload.profiling.recording.nsys import NsightError
from fastload.profiling.recording.trace import STEP, kernel_name, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from fastload.profiling.analysis.roofline import Class

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

OCCUPANCY: Final = "sm__warps_active.avg.pct_of_peak_sustained_active"

# Cycles of a warp per instruction: all, and by what it waits for in them (the section WarpStateStats). A fixed choice,
# because each few counters take one more run of every kernel.
_CYCLES: Final = "smsp__average_warp_latency_per_inst_issued.ratio"
_STALLS: Final = {
    f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio": reason
    for name, reason in (
        ("long_scoreboard", "memory"),
        ("short_scoreboard", "shared memory"),
        ("mio_throttle", "shared memory's queue"),
        ("lg_throttle", "memory's queue"),
        ("barrier", "barriers"),
        ("gmma", "tensor cores"),
        ("math_pipe_throttle", "arithmetic units"),
        ("wait", "fixed latencies"),
        ("no_instruction", "instructions"),
        ("not_selected", "their turn"),
    )
}

METRICS: Final = (TIME, READ, WRITTEN, *_SCALAR, *_TENSOR, OCCUPANCY, _CYCLES, *_STALLS)
"""All metrics requested from ncu, if the device has them."""

TABLE: Final = "ncu.csv"  # the log of ncu in a folder of kept files
REPORT: Final = "kernels.ncu-rep"  # its report there, for Nsight Compute's window
CEILINGS: Final = "ceilings.json"

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
    occupancy: float | None = None  # share of the warps that fit which were resident; None if not measured
    # shares of the warps' time spent waiting, by what for; empty if not measured
    stalls: Mapping[str, float] = field(default_factory=dict)


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
    roof_share: float = 0.0  # share of the time that its kernels would take at the nearer of their two ceilings
    occupancy: float | None = None  # resident warps as a share of those that fit, over time; None if not measured
    stalls: Mapping[str, float] = field(default_factory=dict)  # shares of the warps' time waiting, the longest first

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
            "roof_share": self.roof_share,
            "occupancy": self.occupancy,
            **{f"waiting for {reason}": self.stalls.get(reason) for reason in _STALLS.values()},
        }


def read_kept(folder: Path) -> tuple[list[KernelRun], Ceilings]:
    """Read what ``fastload kernels --keep`` left; raises ``NsightError`` without it."""
    return read(folder / TABLE), read_ceilings(folder)


def read_ceilings(folder: Path) -> Ceilings:
    """Read the ceilings saved by ``--keep``; raises ``NsightError`` without them."""
    try:
        return Ceilings(**json.loads((folder / CEILINGS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise NsightError(f"{folder} has no {CEILINGS} ({error}): measure again with --keep") from error


def has_table(path: Path) -> bool:
    """Whether ``path`` is a log of ncu with a table."""
    return path.exists() and any(line.startswith('"ID",') for line in _lines(path))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise NsightError(f"{path} cannot be read ({error.strerror}): measure again with --keep") from error


def read(path: Path) -> list[KernelRun]:
    """Read the log of ``ncu --csv --page raw``; raises ``NsightError`` without a table."""
    lines = _lines(path)
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
        cycles = value(row, _CYCLES)
        found.append(
            KernelRun(
                kernel_name(row[column["Kernel Name"]]),
                () if ranges is None else _nested(row[ranges]),
                value(row, TIME),
                value(row, READ),
                value(row, WRITTEN),
                {kind: count for kind, count in operations.items() if count},
                value(row, OCCUPANCY) / 100 or None,
                {reason: value(row, name) / cycles for name, reason in _STALLS.items() if cycles and name in column},
            )
        )
    return found


def _nested(ranges: str) -> tuple[str, ...]:
    """The names of ranges: within a domain as they nest, fastload's, with modules, last."""
    found = _RANGE.findall(ranges)
    return tuple(name for own in (False, True) for domain, name in found if (domain.strip() == DOMAIN) is own)


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
    return Sum(
        name,
        len(runs),
        seconds,
        size_bytes,
        dict(operations),
        bound,
        memory,
        compute,
        _over_time([(run.seconds, _roof_share(run, ceilings)) for run in runs]) or 0.0,
        _over_time([(run.seconds, run.occupancy) for run in runs]),
        _stalls(runs),
    )


def _roof_share(run: KernelRun, ceilings: Ceilings) -> float:
    """The share of a kernel's time that it would take at the nearer ceiling."""
    both = shares(run.seconds, run.read_bytes + run.written_bytes, run.operations, ceilings)
    return min(1.0, max(both))  # what a product of another shape reaches may be above the measured ceiling


def _over_time(shares_of_times: Iterable[tuple[float, float | None]]) -> float | None:
    """The mean of shares, weighted by time, of the kernels that have one."""
    known = [(seconds, share) for seconds, share in shares_of_times if share is not None]
    total_s = sum(seconds for seconds, _ in known)
    return sum(seconds * share for seconds, share in known) / total_s if total_s else None


def _stalls(runs: Sequence[KernelRun]) -> dict[str, float]:
    reasons = dict.fromkeys(reason for run in runs for reason in run.stalls)
    means = {reason: _over_time([(run.seconds, run.stalls.get(reason)) for run in runs]) for reason in reasons}
    return dict(sorted(((reason, share) for reason, share in means.items() if share), key=lambda item: -item[1]))


def total(runs: Sequence[KernelRun], ceilings: Ceilings) -> Sum:
    """Sum of all launches."""
    return _sum("all", runs, ceilings)


def waits(of: Sum, most: int = 2) -> str:
    """What a sum's warps wait for the longest, with its shares of their time."""
    return ", ".join(f"{reason} {share:.0%}" for reason, share in list(of.stalls.items())[:most] if share >= 0.05)


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
