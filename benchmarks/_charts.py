"""Draw bars as SVG text, in light and dark.

The same record gives the same bytes; text is legible on a phone.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from fastload.profiling.pages.palette import style

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 480  # px, of which a phone shows three quarters
PAD = 16
ROW = 37
BAR = 11


@dataclass(frozen=True)
class Bar:
    """One contender.

    Attributes:
        name: Its name.
        value: The median.
        low: Smallest of the repeats; the median where there is one only.
        high: The largest of them.
        text: The value in words.
        kind: ``own``, ``peer`` or ``ceiling``: its colour.
    """

    name: str
    value: float
    low: float
    high: float
    text: str
    kind: str


@dataclass(frozen=True)
class Panel:
    """Bars on one axis, which starts at zero."""

    title: str
    bars: Sequence[Bar]


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
