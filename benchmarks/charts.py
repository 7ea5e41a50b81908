"""Charts of the tables of peers: bars as SVG text, in light and dark.

The same record gives the same bytes; text is legible on a phone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from benchmarks.tables import COLUMNS, MARK, NO_PEER, OURS
from fastload.profiling.pages.palette import style

WIDTH = 480  # px, of which a phone shows three quarters
PAD = 16
ROW = 37
BAR = 11

DRAWN: Final = {
    "loaders-decode": ("16 threads",),
    "loaders-ffcv": ("16 threads",),
    "loaders-nvjpeg": ("16 threads",),
}
"""Titles of the columns that a record's chart shows, where not all."""


@dataclass(frozen=True)
class Bar:
    """One contender."""

    name: str
    value: float  # median of the repeats
    low: float  # smallest repeat; the median where there is one only
    high: float  # largest repeat
    text: str  # value with its unit
    kind: str  # colour: own, peer or ceiling


@dataclass(frozen=True)
class Panel:
    """Bars on one axis, which starts at zero."""

    title: str
    bars: Sequence[Bar]


def chart(heading: str, name: str, kind: str, record: dict[str, Any]) -> str:
    """Draw a record's columns as bars, with the repeats' range; mark peers that are ahead.

    ``heading`` is that of the chart's section; ``kind`` names the table, empty for that of the record's benchmark.
    """
    every = {one.title.partition("<br>")[0]: one for one in COLUMNS[kind or record["benchmark"]](record)}
    columns = [every[title] for title in DRAWN.get(name, ()) if title in every] or list(every.values())
    more_is_better = columns[0].more_is_better  # as the legend says of all
    columns = [one for one in columns if one.is_ranked and one.more_is_better is more_is_better]
    panels = []
    for one in columns:
        bars = []
        for contender, known in record["contenders"].items():
            if contender in one.values:
                value = one.values[contender]
                low, high = one.spread.get(contender, (value, value))
                colour = "own" if contender in OURS else "ceiling" if contender in NO_PEER else "peer"
                bars.append(Bar(known["title"], value, low, high, one.cell(contender, spread=False), colour))
        unit = ": images/s" if one.figure == "images_per_s" and "images/s" not in one.title else ""
        panels.append(Panel(one.title.replace("<br>", ": share ") + unit, bars))
    which = "longer is better" if more_is_better else "shorter is better"
    legend = f"Bar: median, {which}. Line: smallest to largest repeat."
    if any(one.ahead() for one in columns):
        legend += f"\n{MARK.strip()} ahead of {record['contenders']['fastload']['title']}"
    return draw(f"{heading}: {'; '.join(panel.title for panel in panels)}", panels, legend)


def draw(title: str, panels: Sequence[Panel], note: str) -> str:
    """Draw panels below each other; ``title`` is for readers who do not see them."""
    body: list[str] = []
    y = 0
    for panel in panels:
        y += 30
        body.append(f'  <text class="h" x="{PAD}" y="{y}">{escape(panel.title)}</text>')
        longest = max(max(bar.high, bar.value) for bar in panel.bars)
        for bar in panel.bars:
            body += _row(bar, y + 8, (WIDTH - 2 * PAD) / longest)
            y += ROW
    y += 14
    for line in note.splitlines():
        y += 17
        body.append(f'  <text class="t" x="{PAD}" y="{y}">{escape(line)}</text>')
    size = {"width": WIDTH, "height": y + PAD, "right": WIDTH - 1, "inner": y + PAD - 1}
    return _PAGE.format(**size, title=escape(title, quote=True), style=style(), body="\n".join(body))


def _row(bar: Bar, y: int, scale: float) -> list[str]:
    top = y + 21
    middle = top + BAR / 2
    low, high = PAD + bar.low * scale, PAD + bar.high * scale
    weight = ' font-weight="600"' if bar.kind == "own" else ""
    lines = [
        f'  <text class="n" x="{PAD}" y="{y + 15}"{weight}>{escape(bar.name)}</text>',
        f'  <text class="n" x="{WIDTH - PAD}" y="{y + 15}" text-anchor="end"{weight}>{escape(bar.text)}</text>',
        f'  <rect class="{bar.kind}" x="{PAD}" y="{top}" width="{bar.value * scale:.1f}" height="{BAR}"/>',
    ]
    if high - low >= 1:
        ends = "".join(f" M{x:.1f} {middle - 4:.1f} V{middle + 4:.1f}" for x in (low, high))
        lines.append(f'  <path class="e" d="M{low:.1f} {middle:.1f} H{high:.1f}{ends}"/>')
    return lines


_PAGE = """\
<svg xmlns="http://www.w3.org/2000/svg" class="fl" width="{width}" height="{height}"
     viewBox="0 0 {width} {height}" role="img" aria-label="{title}">
  <style>
    {style}
    .fl text {{ font: 14px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: var(--ink) }}
    .fl .h {{ font-weight: 600; font-size: 15px }}
    .fl .t {{ font-size: 12.5px; fill: var(--muted) }}
    .fl .card {{ fill: var(--card); stroke: var(--rule) }}
    .fl .own {{ fill: var(--own) }}
    .fl .peer {{ fill: var(--peer) }}
    .fl .ceiling {{ fill: var(--ceiling) }}
    .fl .e {{ fill: none; stroke: var(--ink); stroke-width: 1.5 }}
  </style>
  <rect class="card" x="0.5" y="0.5" width="{right}" height="{inner}" rx="8"/>
{body}
</svg>
"""
