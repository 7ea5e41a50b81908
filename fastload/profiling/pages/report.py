"""A profile's report: the verdict, tables for a terminal, JSON."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fastload.nvtx.stages import DOMAIN
from fastload.profiling.analysis.findings import find
from fastload.profiling.analysis.modules import REMEDIES, join
from fastload.profiling.analysis.ncu import waits
from fastload.profiling.analysis.trace_diagnosis import diagnose_trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from fastload.memory.gpu import GpuMemory
    from fastload.profiling.analysis.communication import CommunicationUse
    from fastload.profiling.analysis.findings import Activity, Findings, KernelUse
    from fastload.profiling.analysis.modules import ModuleUse
    from fastload.profiling.analysis.ncu import Sum
    from fastload.profiling.recording.provenance import Provenance
    from fastload.profiling.recording.trace import Recording
    from fastload.stats.verdict import Verdict

RANGES_SHOWN: Final = 24
MODULES_SHOWN: Final = 24
_KNOWN: Final = 0.9  # share of the kernels' time from which on nothing more is asked to be measured
_PIPED: Final = 1000  # columns where there is no terminal: tables take what they need
LAYOUT_REMEDY: Final = (
    "the model runs in NHWC inside and is fed NCHW: model.to(memory_format=torch.channels_last), and batches in "
    "channels_last (FastLoader's default)"
)


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """The report of a recording."""

    findings: Findings  # the numbers
    verdict: Verdict  # limit of the loop
    loader: str | None = None  # the loader's own verdict on the same run, if there is one
    provenance: Provenance | None = None  # origin of the recording, if known
    memory: GpuMemory | None = None  # the GPU's, at the window's end
    modules: tuple[ModuleUse, ...] = ()  # what there is to gain in each, the most first; with Nsight Compute's figures

    @property
    def other_verdict(self) -> str | None:
        """The loader's own verdict if it is another one; the same would be said twice."""
        same = self.loader is not None and self.loader.lower().startswith(f"{self.verdict.name.lower()}:")
        return None if same else self.loader

    def to_dict(self) -> dict[str, Any]:
        """The object of ``fastload profile --json``. Times in seconds, shares from 0 to 1."""
        about = {} if self.provenance is None else {"provenance": asdict(self.provenance)}
        about |= {} if self.memory is None else {"gpu_memory": self.memory.to_dict()}
        modules = {"modules": [use.to_dict() for use in self.modules]} if self.modules else {}
        return {"verdict": self.verdict.to_dict(), "loader": self.loader, **about, **modules, **self.findings.to_dict()}

    def tables(self, ranges_shown: int = RANGES_SHOWN) -> Iterator[Table]:
        """Yield all tables, with at most so many ranges."""
        if self.modules:
            yield _of_modules(self.modules, self.findings.steps)
        yield from tables(self.findings, ranges_shown)


def make_report(
    recording: Recording,
    reported: Verdict | None = None,
    provenance: Provenance | None = None,
    measured: Mapping[str, Sum] | None = None,
    others: Sequence[tuple[str, Recording]] = (),
) -> ProfileReport:
    """Compute the report of a recording.

    Args:
        recording: What was recorded.
        reported: The loader's own verdict.
        provenance: Where the recording comes from.
        measured: Nsight Compute's figures by range.
        others: Named recordings of other ranks.
    """
    findings = find(recording, others)
    said = None if reported is None else str(reported)
    modules = join(findings.parts, measured) if measured else ()
    return ProfileReport(findings, diagnose_trace(findings, reported), said, provenance, modules=modules)


def plain_console() -> Console:
    """A console without markup, as wide as the terminal or, piped, as its rows."""
    from rich.console import Console

    width = shutil.get_terminal_size((_PIPED, 40)).columns
    return Console(highlight=False, markup=False, emoji=False, width=width)


def show(report: ProfileReport, console: Console) -> None:
    """Print the report."""
    from rich.panel import Panel
    from rich.text import Text

    verdict = report.verdict
    body = Text(sentence("; ".join(verdict.evidence)))
    body.append(f"\n→ {sentence(verdict.remedy)}", "bold")
    title = Text(verdict.name, "bold")
    if console.is_terminal:
        console.print(Panel(body, title=title, title_align="left", border_style="cyan"))
    else:  # for grep and the like
        console.print(title, body, sep="\n")
    for line in overview(report.findings):
        console.print(Text(line))
    if report.memory is not None:
        console.print(Text(f"GPU memory: {report.memory}"))
    shown = list(report.tables())
    for table in shown:
        console.print()
        console.print(_for_terminal(table))
    for table in shown:
        if table.note:
            console.print(Text(f"→ {table.note}", "bold"))
    if report.other_verdict is not None:
        console.print()
        console.print(Text(f"the loader's own report: {report.other_verdict}"))
    for note in report.findings.notes:
        console.print(Text(f"note: {note}", "dim"))


def overview(findings: Findings) -> Iterator[str]:
    """Summarize the run in a few lines."""
    step = f", {milliseconds(findings.step_s)} each" if findings.step_s else ""
    what = f"{findings.steps} steps{step}" if findings.steps else milliseconds(findings.seconds)
    yield f"{what}; waited for batches {findings.wait_share:.1%} of the time; recorded by {findings.source}"
    for use in findings.devices:
        yield (
            f"{use.name} {use.device}: busy {use.busy_share:.1%}, idle {use.idle_share:.1%} "
            f"(of that {use.starved_share:.1%} for want of a batch), {use.kernels:,} kernels"
        )
    if (decode := findings.gpu_decode) is not None:
        yield (
            f"decoding on the GPU: {milliseconds(decode.mean_s)} a batch, {decode.share:.1%} of the time, "
            f"{decode.beside_kernels_share:.0%} of that beside other kernels"
        )
    if (launching := findings.launching) is not None:
        yield (
            f"launches: one every {microseconds(launching.every_s)} for kernels of {microseconds(launching.kernel_s)}, "
            f"{launching.ahead:.1f} kernels queued ahead; {launching.late_share:.1%} of the time the GPU waited for one"
        )
    if (of := findings.communication) is not None:
        yield (
            f"collectives: {of.share:.1%} of the time, {of.exposed_share:.1%} beside no other kernel"
            + ("" if of.straggler is None else f"; the others wait {of.waited_share:.1%} for {of.straggler.label}")
        )
    if not findings.devices:
        yield "no GPU was used"


def sentence(text: str) -> str:
    """Make a sentence of a clause: capital letter and full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def milliseconds(seconds: float) -> str:
    """Format a time for people."""
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:,.0f} ms"


def microseconds(seconds: float) -> str:
    """Format the time of a kernel or a call for people."""
    return f"{seconds * 1e6:,.1f} µs" if seconds < 1e-3 else milliseconds(seconds)


@dataclass(slots=True)
class Table:
    """One table of the report, for a terminal or a page."""

    title: str  # one line
    columns: tuple[str, ...]  # titles; those of right-aligned columns have a ">" before
    note: str = ""  # remedy, if there is one
    # cells of each row, and its style: "red", "magenta", "dim" or none
    rows: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    # start and length of the rows' stretches of time in ns, if they have some
    spans: list[tuple[int, int]] = field(default_factory=list)

    def add(self, *cells: str, style: str = "") -> None:
        """Add a row."""
        self.rows.append((cells, style))


def tables(findings: Findings, ranges_shown: int = RANGES_SHOWN) -> Iterator[Table]:
    """Yield the tables of what was found, with at most so many ranges."""
    if findings.gaps:
        table = Table("longest stretches without a kernel", ("at", ">length", ">copying", "main thread", "loader"))
        for gap in findings.gaps:
            times = milliseconds(gap.start_s), milliseconds(gap.length_s), f"{gap.copying_share:.0%}"
            table.add(*times, _activities(gap.host), _activities(gap.loader))
            table.spans.append((round(gap.start_s * 1e9), round(gap.length_s * 1e9)))
        yield table
    elif findings.waiting:
        table = Table("while the training loop waited", ("the loader's threads", ">share of their time"))
        for activity in findings.waiting:
            table.add(activity.what, f"{activity.share:.0%}")
        yield table
    if findings.copies:
        table = Table("copies", ("direction", "host memory", ">count", ">MB", ">GB/s", ">beside kernels"))
        for copy in findings.copies:
            size = f"{copy.size_bytes / 1e6:,.1f}", f"{copy.gb_per_s:.1f}", f"{copy.beside_kernels_share:.0%}"
            bad = copy.memory == "pageable" and copy.direction == "host to device"
            table.add(copy.direction, copy.memory, f"{copy.count:,}", *size, style="red" if bad else "")
        yield table
    if findings.communication is not None:
        yield from _of_communication(findings.communication)
    if findings.layout:
        yield _of_kernels("kernels that only convert layouts", findings.layout, "magenta", LAYOUT_REMEDY)
    if findings.ranges:
        table = Table("ranges", ("range", "on", ">count", ">host, each", ">host, all", ">device, all", ">kernels"))
        for span in findings.ranges[:ranges_shown]:
            name = span.name if span.domain in ("", DOMAIN) else f"{span.name} ({span.domain})"
            place = f"{span.role} × {span.threads}" if span.threads > 1 else str(span.role)
            device = milliseconds(span.device_s) if span.device_s else ""
            times = milliseconds(span.mean_s), milliseconds(span.total_s), device
            table.add(name, place, f"{span.count:,}", *times, f"{span.kernels:,}" if span.kernels else "")
        if (more := len(findings.ranges) - ranges_shown) > 0:
            table.add(f"... and {more} more", *[""] * 6, style="dim")
        yield table
    if findings.threads:
        columns = ("thread", "process", ">busy", "in", ">fetch blocked")
        table = Table("threads of the loop and the loader", columns)
        for thread in findings.threads:
            stages = ", ".join(f"{name} {share:.0%}" for name, share in thread.stages.items() if share >= 0.005)
            blocked = "" if thread.blocked_share is None else f"{thread.blocked_share:.0%}"
            name = thread.role if thread.name in ("", thread.role) else f"{thread.role}: {thread.name}"
            table.add(name, str(thread.process), f"{thread.busy_share:.0%}", stages, blocked)
        yield table
    if findings.kernels:
        yield _of_kernels("longest kernels", findings.kernels)
    if findings.callers:
        table = Table("where CUDA's longest calls come from", ("call", ">count", ">time", "called by"))
        for caller in findings.callers:
            table.add(caller.call, f"{caller.count:,}", milliseconds(caller.seconds), " ← ".join(caller.frames))
        yield table


def _of_modules(modules: Sequence[ModuleUse], steps: int) -> Table:
    """What there is to gain, per step if there are some."""
    time = "time of a step" if steps else "time"
    columns = ("range", ">device", ">share", "bound by", ">of roof", ">to gain", ">occupancy", "warps wait for")
    table = Table(f"modules by what there is to gain on the device ({time})", columns)
    for use in modules[:MODULES_SHOWN]:
        kept = use.name, milliseconds(use.device_s / max(1, steps)), f"{use.share:.1%}"
        if use.measured is None or use.gain_s is None:
            table.add(*kept, "not measured", *[""] * 4, style="dim")
            continue
        of = use.measured
        gain = f"{of.roof_share:.0%}", milliseconds(use.gain_s / max(1, steps))
        occupancy = "" if of.occupancy is None else f"{of.occupancy:.0%}"
        table.add(*kept, of.bound.removesuffix("-bound"), *gain, occupancy, waits(of, 1))
    if (more := len(modules) - MODULES_SHOWN) > 0:
        table.add(f"... and {more} more", *[""] * 7, style="dim")
    known = sum(use.share for use in modules if use.measured is not None)
    if (first := modules[0]).measured is not None:
        table.note = f"{first.name}: {REMEDIES[first.measured.bound]}"
    if known < _KNOWN:
        table.note += (". " if table.note else "") + (
            f"Nsight Compute measured the ranges of {known:.0%} of the kernels' time; for the others, "
            "fastload kernels --range NAME --keep DIR, and --kernels DIR here for each such folder; annotate_modules "
            "names the modules in both"
        )
    return table


def _of_communication(use: CommunicationUse) -> Iterator[Table]:
    table = Table("collectives", ("kind", ">count", ">time", ">beside no other kernel"))
    for kind in use.kinds:
        table.add(kind.kind, f"{kind.count:,}", milliseconds(kind.seconds), milliseconds(kind.exposed_s))
    yield table
    if len(use.ranks) > 1:
        columns = ("rank", ">collectives", ">of the time", ">beside no other kernel", ">waited for others")
        table = Table("ranks: the one that waits the least is the one that the others wait for", columns)
        for rank in use.ranks:
            shares = rank.share, rank.exposed_share, rank.waited_share or 0.0
            style = "red" if use.straggler is rank else ""
            table.add(rank.label, f"{rank.count:,}", *(f"{share:.1%}" for share in shares), style=style)
        yield table


def _activities(found: Sequence[Activity]) -> str:
    return ", ".join(f"{activity.what} {activity.share:.0%}" for activity in found[:3]) or "nothing recorded"


def _of_kernels(title: str, uses: Sequence[KernelUse], style: str = "", note: str = "") -> Table:
    table = Table(title, ("kernel", ">launches", ">time", ">of all kernels"), note)
    for use in uses:
        table.add(use.name, f"{use.count:,}", milliseconds(use.seconds), f"{use.share:.1%}", style=style)
    return table


def _for_terminal(table: Table) -> Any:
    from rich.table import Table as RichTable

    shown = RichTable(title=table.title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in table.columns:
        right = column.startswith(">")
        shown.add_column(column.lstrip(">"), justify="right" if right else "left", no_wrap=right, header_style="dim")
    for cells, style in table.rows:
        shown.add_row(*cells, style=style)
    return shown
