"""A profile's report: the verdict, tables for a terminal, JSON."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from fastload.profiling import findings as numbers
from fastload.profiling.analysis import find
from fastload.profiling.trace import DOMAIN
from fastload.profiling.trace_diagnosis import diagnose_trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

    from fastload.profiling.findings import Activity, Findings
    from fastload.profiling.provenance import Provenance
    from fastload.profiling.trace import Recording
    from fastload.stats.verdict import Verdict

RANGES_SHOWN: Final = 24
_PIPED: Final = 1000
"""Columns where there is no terminal: tables take what they need."""

LAYOUT_REMEDY: Final = (
    "the model runs in NHWC inside and is fed NCHW: model.to(memory_format=torch.channels_last), and batches in "
    "channels_last (FastLoader's default)"
)


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """The report of a recording.

    Attributes:
        findings: The numbers.
        verdict: What limits the loop.
        loader: The loader's own verdict on the same run, if there is one.
        provenance: What was recorded, if known.
    """

    findings: Findings
    verdict: Verdict
    loader: str | None = None
    provenance: Provenance | None = None

    @property
    def other_verdict(self) -> str | None:
        """The loader's own verdict if it is another one; the same would be said twice."""
        same = self.loader is not None and self.loader.lower().startswith(f"{self.verdict.name.lower()}:")
        return None if same else self.loader

    def to_dict(self) -> dict[str, Any]:
        """The object of ``fastload profile --json``. Times in seconds, shares from 0 to 1."""
        bottleneck = self.verdict.bottleneck
        verdict = {
            "name": self.verdict.name,
            "bottleneck": None if bottleneck is None else bottleneck.value,
            "evidence": list(self.verdict.evidence),
            "remedy": self.verdict.remedy,
        }
        about = {} if self.provenance is None else {"provenance": asdict(self.provenance)}
        return {"verdict": verdict, "loader": self.loader, **about, **numbers.to_dict(self.findings)}


def make_report(
    recording: Recording, reported: Verdict | None = None, provenance: Provenance | None = None
) -> ProfileReport:
    """Compute the report of a recording.

    Args:
        recording: From ``nsys_export`` or ``torch_trace``.
        reported: The loader's own verdict.
        provenance: What was recorded, if known.
    """
    findings = find(recording)
    said = None if reported is None else str(reported)
    return ProfileReport(findings, diagnose_trace(findings, reported), said, provenance)


def plain_console() -> Console:
    """A console as wide as the terminal, or as its rows in a pipe.

    Prints names without interpreting markup.
    """
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
    for table in _tables(report.findings):
        console.print()
        console.print(table)
    if report.findings.layout:
        console.print(Text(f"→ {LAYOUT_REMEDY}", "bold"))
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


def activities(found: Sequence[Activity], most: int = 3) -> str:
    """Format the longest activities."""
    return ", ".join(f"{activity.what} {activity.share:.0%}" for activity in found[:most]) or "nothing recorded"


def _tables(findings: Findings) -> Iterator[Table]:
    if findings.gaps:
        table = _table("longest stretches without a kernel", "at", ">length", ">copying", "main thread", "loader")
        for gap in findings.gaps:
            times = milliseconds(gap.start_s), milliseconds(gap.length_s), f"{gap.copying_share:.0%}"
            table.add_row(*times, activities(gap.host), activities(gap.loader))
        yield table
    elif findings.waiting:
        table = _table("while the training loop waited", "the loader's threads", ">share of their time")
        for activity in findings.waiting:
            table.add_row(activity.what, f"{activity.share:.0%}")
        yield table
    if findings.copies:
        table = _table("copies", "direction", "host memory", ">count", ">MB", ">GB/s", ">beside kernels")
        for copy in findings.copies:
            size = f"{copy.size_bytes / 1e6:,.1f}", f"{copy.gb_per_s:.1f}", f"{copy.beside_kernels_share:.0%}"
            style = "red" if copy.memory == "pageable" and copy.direction == "host to device" else None
            table.add_row(copy.direction, copy.memory, f"{copy.count:,}", *size, style=style)
        yield table
    if findings.layout:
        table = _table("kernels that only convert layouts", "kernel", ">launches", ">time", ">of all kernels")
        for use in findings.layout:
            table.add_row(use.name, f"{use.count:,}", milliseconds(use.seconds), f"{use.share:.1%}", style="magenta")
        yield table
    if findings.ranges:
        columns = ("range", "on", ">count", ">host, each", ">host, all", ">device, all", ">kernels")
        table = _table("ranges", *columns)
        for span in findings.ranges[:RANGES_SHOWN]:
            name = span.name if span.domain == DOMAIN or not span.domain else f"{span.name} ({span.domain})"
            place = f"{span.role} × {span.threads}" if span.threads > 1 else str(span.role)
            device = milliseconds(span.device_s) if span.device_s else ""
            times = milliseconds(span.mean_s), milliseconds(span.total_s), device
            table.add_row(name, place, f"{span.count:,}", *times, f"{span.kernels:,}" if span.kernels else "")
        if (more := len(findings.ranges) - RANGES_SHOWN) > 0:
            table.add_row(f"... and {more} more", *[""] * 6, style="dim")
        yield table
    if findings.threads:
        table = _table("threads of the loop and the loader", "thread", "process", ">busy", "in", ">fetch blocked")
        for thread in findings.threads:
            stages = ", ".join(f"{name} {share:.0%}" for name, share in thread.stages.items() if share >= 0.005)
            blocked = "" if thread.blocked_share is None else f"{thread.blocked_share:.0%}"
            name = thread.role if thread.name in ("", thread.role) else f"{thread.role}: {thread.name}"
            table.add_row(name, str(thread.process), f"{thread.busy_share:.0%}", stages, blocked)
        yield table
    if findings.kernels:
        table = _table("longest kernels", "kernel", ">launches", ">time", ">of all kernels")
        for use in findings.kernels:
            table.add_row(use.name, f"{use.count:,}", milliseconds(use.seconds), f"{use.share:.1%}")
        yield table


def _table(title: str, *columns: str) -> Table:
    """A table; columns whose name begins with ``>`` are right-aligned."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.lstrip(">"), justify="right" if right else "left", no_wrap=right, header_style="dim")
    return table
