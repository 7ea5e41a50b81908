"""Write the tables and charts of README and docs from ``benchmarks/results``.

A page says what stands on it: between ``<!-- figures: RECORD TABLE -->`` and ``<!-- end -->`` is the table of that name
(:mod:`benchmarks.tables`; without a name that of the record's benchmark) of ``benchmarks/results/RECORD.json``, and
``![HEADING, as bars](charts/RECORD.svg)`` is a chart of it.

``python -m benchmarks figures`` writes them; ``--check`` says whether they are up to date and changes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks import charts, tables
from benchmarks._checkout import RESULTS, ROOT

DOCS: Final = ROOT / "docs"
README: Final = ROOT / "README.md"
TABLE: Final = re.compile(r"(<!-- figures: (\S+?)(?: (\S+))? -->\n).*?(<!-- end -->)", re.DOTALL)
CHART: Final = re.compile(r"!\[(.+), as bars\]\(charts/(\S+)\.svg\)")


def pages() -> list[Path]:
    """Pages with tables."""
    return [page for page in (README, *sorted(DOCS.glob("*.md"))) if TABLE.search(page.read_text())]


def read(name: str) -> dict[str, Any]:
    """Read a record.

    Raises:
        ValueError: It is of a quick run, or of one that was cut off.
    """
    record: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    if record.get("parameters", {}).get("quick"):
        raise ValueError(f"{name}.json must not be of a quick run, whose figures mean nothing")
    if not record.get("complete", True) and "rows" not in record:  # each row of recipes is whole by itself
        raise ValueError(f"{name}.json must be of a run that came to its end, but it was cut off")
    return record


def render(text: str, page: Path) -> str:
    """Return a page's ``text`` with its tables made anew."""

    def made(found: re.Match[str]) -> str:
        start, name, kind, end = found.groups()
        record = read(name)
        link = f"{os.path.relpath(ROOT, page.parent)}/benchmarks/results/{name}.json".removeprefix("./")
        source = f"[{name}.json]({link})" if page == README else f"`benchmarks/results/{name}.json`"
        shown = tables.shown(kind or record.get("benchmark") or record["bench"], record)
        return f"{start}{shown}\n\n{tables.where(record, source)}.\n{end}"

    return TABLE.sub(made, text)


def drawn() -> dict[Path, str]:
    """Charts of docs/benchmarks.md, by their files."""
    text = (DOCS / "benchmarks.md").read_text()
    kinds = {name: kind for _, name, kind, _ in TABLE.findall(text)}
    return {
        DOCS / "charts" / f"{name}.svg": charts.chart(heading, name, kinds[name], read(name))
        for heading, name in CHART.findall(text)
    }


def main(args: argparse.Namespace) -> int:
    """Write, or check."""
    wanted = {page: render(page.read_text(), page) for page in pages()} | drawn()
    stale = {path: text for path, text in wanted.items() if not path.exists() or path.read_text() != text}
    if args.check:
        for path in stale:
            sys.stderr.write(f"{path.name} is out of date: run 'make figures'\n")
        return int(bool(stale))
    for path, text in stale.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for dark in (False, True):
        draw_pictures(DOCS, dark=dark)
    return 0


def draw_pictures(folder: Path, *, dark: bool) -> None:
    """Draw the pictures of docs/ladder.md and docs/profiling.md, for light pages or for dark ones."""
    from fastload.bench._charts import draw_ladder
    from fastload.profiling.pages import timeline

    suffix = "-dark.png" if dark else ".png"
    draw_ladder(read("ladder"), folder / f"ladder{suffix}", dark=dark)
    record = read("timeline")
    rows = timeline.from_record(record["timeline"])
    timeline.draw(rows, folder / f"timeline{suffix}", record["title"], dark=dark)
