"""Write a profile as a self-contained HTML page: verdict, zoomable timeline, tables."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastload._version import __version__
from fastload.profiling.palette import readable_on
from fastload.profiling.report import LAYOUT_REMEDY, activities, milliseconds, sentence
from fastload.profiling.timeline import Bar, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fastload.profiling.findings import Findings
    from fastload.profiling.report import ProfileReport

TEMPLATE: Final = Path(__file__).with_name("page.html")
RANGES_SHOWN: Final = 40

_PLACEHOLDER: Final = re.compile(r"%%([A-Z]+)%%")
# Characters that could end a script, start a comment or break a line in it; in JSON they occur only in strings.
_NOT_IN_SCRIPTS: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


class _Html(str):
    """Text that is already HTML; other text is escaped."""

    __slots__ = ()


def write(report: ProfileReport, timeline: Timeline, path: str | Path) -> None:
    """Write the page: a megabyte for about 30,000 kernels and ranges."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(render(report, timeline), encoding="utf-8", errors="backslashreplace")  # lone surrogates


def render(report: ProfileReport, timeline: Timeline) -> str:
    """The page's text."""
    findings, verdict = report.findings, report.verdict
    parts = {
        "TITLE": html.escape(f"{verdict.name} · fastload profile"),
        "VERDICT": html.escape(verdict.name),
        "EVIDENCE": html.escape(sentence("; ".join(verdict.evidence))),
        "REMEDY": html.escape(sentence(verdict.remedy)),
        "TILES": "".join(_tile(*tile) for tile in _tiles(findings)),
        "TABLES": "".join(_tables(report)),
        "FOOT": "<br>".join(map(html.escape, _foot(report))),
        "DATA": json.dumps(_data(timeline), separators=(",", ":")).translate(_NOT_IN_SCRIPTS),
    }
    # In one pass, because a range's name may equal a placeholder.
    return _PLACEHOLDER.sub(lambda found: parts[found[1]], TEMPLATE.read_text(encoding="utf-8"))


def _escaped(text: str) -> str:
    return text if isinstance(text, _Html) else html.escape(text)


def _data(timeline: Timeline) -> dict[str, Any]:
    """The rows, with texts and colours as indices and times in nanoseconds."""
    texts: dict[str, int] = {}
    colours: dict[str, int] = {}

    def number(of: dict[str, int], value: str) -> int:
        return of.setdefault(value, len(of))

    def encode(bar: Bar) -> list[int]:
        fields = [bar.start_ns, bar.length_ns, number(texts, bar.name), number(colours, bar.colour), bar.depth]
        return [*fields, number(texts, bar.detail)] if bar.detail else fields

    rows = [
        {
            "label": row.label,
            "tells": row.tells,
            "depth": row.depth,
            "kind": row.kind,
            "bars": list(map(encode, row.bars)),
        }
        for row in timeline.rows
    ]
    return {
        "length": timeline.length_ns,
        "steps": timeline.steps,
        "gaps": timeline.gaps,
        "rows": rows,
        "texts": list(texts),
        "colours": list(colours),
        "inks": list(map(readable_on, colours)),
        "legend": timeline.legend,
    }


def _foot(report: ProfileReport) -> Iterable[str]:
    """Say what was recorded, when and where."""
    about, recorder = report.provenance, f"recorded by {report.findings.source}"
    if about is None:
        yield f"{recorder.capitalize()}. fastload {__version__}."
        return
    yield about.command
    yield about.loader
    yield f"{about.date}, {recorder}"
    yield "; ".join([about.machine, *(use.name for use in report.findings.devices)])
    yield about.versions


def _tiles(findings: Findings) -> Iterable[tuple[str, str, str]]:
    if findings.step_s:
        yield milliseconds(findings.step_s), "per step", f"{findings.steps} steps recorded"
    for use in findings.devices:
        name = f"{use.name} {use.device}" if len(findings.devices) > 1 else use.name
        yield f"{use.busy_share:.0%}", "GPU busy", f"{name}, {use.kernels:,} kernels"
        yield f"{use.starved_share:.0%}", "GPU idle for want of a batch", f"{use.idle_share:.0%} idle in all"
    yield f"{findings.wait_share:.0%}", "waited for batches", "the training thread"
    for copy in findings.copies:
        if copy.direction == "host to device":
            below = f"{copy.memory} memory, {copy.beside_kernels_share:.0%} beside kernels"
            yield f"{copy.gb_per_s:.1f} GB/s", "copies to the device", below
            break
    if (decode := findings.gpu_decode) is not None:
        below = f"{milliseconds(decode.mean_s)} a batch, {decode.beside_kernels_share:.0%} beside other kernels"
        yield f"{decode.share:.1%}", "of the time the GPU decoded", below
    if findings.layout:
        share = sum(use.share for use in findings.layout)
        yield f"{share:.0%}", "of kernels' time", "converts layouts only"


def _tile(number: str, what: str, below: str) -> str:
    cells = map(html.escape, (number, what, below))
    return "<div class=tile><b>{}</b><span>{}</span><small>{}</small></div>".format(*cells)


def _tables(report: ProfileReport) -> Iterable[str]:
    findings = report.findings
    rows: list[Sequence[str]]
    if findings.gaps:
        rows = [
            (
                _Html(
                    f"<a href='#' data-at='{round(gap.start_s * 1e9)}' data-length='{round(gap.length_s * 1e9)}'>"
                    f"{milliseconds(gap.start_s)}</a>"
                ),
                milliseconds(gap.length_s),
                f"{gap.copying_share:.0%}",
                activities(gap.host),
                activities(gap.loader),
            )
            for gap in findings.gaps
        ]
        yield _table("Longest stretches without a kernel", ("at", ">length", ">copying", "main thread", "loader"), rows)
    if findings.copies:
        rows = []
        for copy in findings.copies:
            bad = copy.memory == "pageable" and copy.direction == "host to device"
            memory = _Html(f"<mark>{html.escape(copy.memory)}</mark>") if bad else copy.memory
            size = f"{copy.size_bytes / 1e6:,.1f}", f"{copy.gb_per_s:.1f}", f"{copy.beside_kernels_share:.0%}"
            rows.append((copy.direction, memory, f"{copy.count:,}", *size))
        titles = ["direction", "host memory", ">count", ">MB", ">GB/s", ">beside kernels"]
        yield _table("Copies", titles, rows)
    if findings.layout:
        rows = [(use.name, f"{use.count:,}", milliseconds(use.seconds), f"{use.share:.1%}") for use in findings.layout]
        titles = ["kernel", ">launches", ">time", ">of all kernels"]
        yield _table("Kernels that only convert layouts", titles, rows, LAYOUT_REMEDY)
    if findings.ranges:
        rows = []
        for span in findings.ranges[:RANGES_SHOWN]:
            place = f"{span.role} × {span.threads}" if span.threads > 1 else str(span.role)
            device = milliseconds(span.device_s) if span.device_s else ""
            times = milliseconds(span.mean_s), milliseconds(span.total_s), device
            rows.append((span.name, place, f"{span.count:,}", *times, f"{span.kernels or ''}"))
        titles = ["range", "on", ">count", ">host, each", ">host, all", ">device, all", ">kernels"]
        yield _table("Ranges", titles, rows)
    if findings.threads:
        rows = []
        for thread in findings.threads:
            stages = ", ".join(f"{name} {share:.0%}" for name, share in thread.stages.items() if share >= 0.005)
            blocked = "" if thread.blocked_share is None else f"{thread.blocked_share:.0%}"
            rows.append((thread.role, thread.name, f"{thread.busy_share:.0%}", stages, blocked))
        yield _table("Threads", ("thread", "name", ">busy", "in", ">fetch blocked"), rows)
    if findings.kernels:
        rows = [(use.name, f"{use.count:,}", milliseconds(use.seconds), f"{use.share:.1%}") for use in findings.kernels]
        yield _table("Longest kernels", ("kernel", ">launches", ">time", ">of all kernels"), rows)
    notes = [*findings.notes, *([f"The loader's own report: {report.other_verdict}"] if report.other_verdict else [])]
    if notes:
        yield "<section class=notes>" + "".join(f"<p>{html.escape(note)}</p>" for note in notes) + "</section>"


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """An HTML table; columns whose name begins with ``>`` are right-aligned."""
    right = [column.startswith(">") for column in columns]

    def line(cells: Sequence[str], tag: str) -> str:
        pairs = zip(cells, right, strict=True)
        return "".join(f"<{tag}{' class=r' if flush else ''}>{_escaped(cell)}</{tag}>" for cell, flush in pairs)

    head = line([column.lstrip(">") for column in columns], "th")
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    below = f"<p class=do>{html.escape(note)}</p>" if note else ""
    return (
        f"<section><h2>{html.escape(title)}</h2><div class=scroll><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{below}</section>"
    )
