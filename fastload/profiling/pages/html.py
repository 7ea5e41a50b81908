"""Write a profile as a self-contained HTML page: verdict, zoomable timeline, tables."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastload._version import __version__
from fastload.profiling.pages.palette import readable_on
from fastload.profiling.pages.report import milliseconds, sentence
from fastload.profiling.pages.timeline import Bar, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastload.profiling.pages.report import ProfileReport, Table

TEMPLATE: Final = Path(__file__).with_name("page.html")
RANGES_SHOWN: Final = 40

_TILE: Final = "<div class=tile><b>{}</b><span>{}</span><small>{}</small></div>"
_PLACEHOLDER: Final = re.compile(r"%%([A-Z]+)%%")
# Characters that could end a script, start a comment or break a line in it; in JSON they occur only in strings.
_NOT_IN_SCRIPTS: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def write(report: ProfileReport, timeline: Timeline, path: str | Path) -> None:
    """Write the page: a megabyte for about 30,000 kernels and ranges."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(render(report, timeline), encoding="utf-8", errors="backslashreplace")  # lone surrogates


def render(report: ProfileReport, timeline: Timeline) -> str:
    """The page's text."""
    verdict = report.verdict
    parts = {
        "TITLE": html.escape(f"{verdict.name} · fastload profile"),
        "VERDICT": html.escape(verdict.name),
        "EVIDENCE": html.escape(sentence("; ".join(verdict.evidence))),
        "REMEDY": html.escape(sentence(verdict.remedy)),
        "TILES": "".join(_TILE.format(*map(html.escape, tile)) for tile in _tiles(report)),
        "TABLES": "".join(map(_table, report.tables(RANGES_SHOWN))) + _notes(report),
        "FOOT": "<br>".join(map(html.escape, _foot(report))),
        "DATA": json.dumps(_data(timeline), separators=(",", ":")).translate(_NOT_IN_SCRIPTS),
    }
    # In one pass, because a range's name may equal a placeholder.
    return _PLACEHOLDER.sub(lambda found: parts[found[1]], TEMPLATE.read_text(encoding="utf-8"))


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
        {"label": row.label, "tells": row.tells, "depth": row.depth, "kind": row.kind, "bars": [*map(encode, row.bars)]}
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


def _tiles(report: ProfileReport) -> Iterable[tuple[str, str, str]]:
    findings = report.findings
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
    if (of := findings.communication) is not None:
        yield (
            f"{of.exposed_share:.0%}",
            "of the time only collectives ran",
            f"{of.share:.0%} beside other kernels or not",
        )
    if findings.layout:
        share = sum(use.share for use in findings.layout)
        yield f"{share:.0%}", "of kernels' time", "converts layouts only"
    if (memory := report.memory) is not None:
        total, reserved = memory.total_bytes / 1e9, memory.peak_reserved_bytes / 1e9
        below = f"of {total:,.0f} at most; {reserved:,.1f} reserved, {memory.free_bytes / 1e9:,.1f} free"
        yield f"{memory.peak_allocated_bytes / 1e9:,.1f} GB", "of GPU memory allocated", below


def _table(table: Table) -> str:
    right = [column.startswith(">") for column in table.columns]

    def line(cells: Iterable[str], tag: str) -> str:
        pairs = zip(cells, right, strict=True)
        return "".join(f"<{tag}{' class=r' if flush else ''}>{cell}</{tag}>" for cell, flush in pairs)

    body = ""
    for number, (texts, style) in enumerate(table.rows):
        first, *others = map(html.escape, texts)
        if table.spans:
            start, length = table.spans[number]
            first = f"<a href='#' data-at='{start}' data-length='{length}'>{first}</a>"
        body += f"<tr{f' class={style}' if style else ''}>{line([first, *others], 'td')}</tr>"
    head = line((html.escape(column.lstrip(">")) for column in table.columns), "th")
    below = f"<p class=do>{html.escape(table.note)}</p>" if table.note else ""
    title = html.escape(f"{table.title[0].upper()}{table.title[1:]}")
    return (
        f"<section><h2>{title}</h2><div class=scroll><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{below}</section>"
    )


def _notes(report: ProfileReport) -> str:
    notes = [*report.findings.notes]
    if report.other_verdict:
        notes.append(f"The loader's own report: {report.other_verdict}")
    lines = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return f"<section class=notes>{lines}</section>" if notes else ""
