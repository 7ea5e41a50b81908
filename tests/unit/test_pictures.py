"""Pictures of README and documentation: legible, in light and in dark, and what they show."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import optional
import pytest

from benchmarks.charts import Bar, Panel, draw
from fastload.profiling.pages import timeline
from fastload.profiling.pages.palette import DARK, LIGHT, TEXT, contrast, readable_on, style
from fastload.profiling.pages.timeline import COLOURS, Row, Timeline

optional.needed("matplotlib", "docutils", "sphinx")
pytestmark = pytest.mark.usefixtures("fonts_are_open")

DOCS = Path(__file__).parents[2] / "docs"
DRAWINGS = sorted(DOCS.rglob("*.svg"))
GROUND = ("card", "zone")


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_contrast_as_wcag_asks(colours):
    fills = [name for name in colours if name.endswith("-fill")]
    for text, ground in itertools.product(TEXT, (*GROUND, *fills)):
        if text == "ink" or ground in GROUND:
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    lines = [name for name in colours if name not in (*TEXT, *GROUND, *fills, "rule")]
    for line, ground in itertools.product(lines, GROUND):
        assert contrast(colours[line], colours[ground]) >= 3, (line, ground)
    for fill in fills:
        assert contrast(colours[fill.removesuffix("-fill")], colours[fill]) >= 3, fill
    for bar in ("own", "peer", "ceiling"):  # the line of the repeats stands on it
        assert contrast(colours["ink"], colours[bar]) >= 3, bar


def test_names_on_bars_of_the_timeline_are_readable():
    assert min(contrast(readable_on(colour), colour) for colour in COLOURS.values()) >= 4.5
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.skipif(not DRAWINGS, reason="tests of a checkout")
@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.name)
def test_a_drawing_follows_light_and_dark_and_says_what_it_shows(path):
    text = path.read_text()
    assert style() in text, "the colours are those of fastload/profiling/pages/palette.py"
    root = ET.fromstring(text)
    assert root.get("role") == "img"
    assert f"0 0 {root.get('width')} {root.get('height')}" == root.get("viewBox")  # else a page stretches it
    assert len(root.get("aria-label").split()) > 3
    rest = text.replace(style(), "")
    assert re.findall(r"#[0-9a-f]{6}\b", rest) == []
    assert min(float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", rest)) >= 12


@pytest.mark.skipif(not DRAWINGS, reason="tests of a checkout")
def test_drawings_in_the_documentation_follow_its_own_switch():
    import docutils.utils
    from docutils import nodes

    conf = runpy.run_path(str(DOCS / "conf.py"))
    document = docutils.utils.new_document("page")
    document += [nodes.image(uri="batch.svg"), nodes.image(uri="ladder.png")]
    builds = SimpleNamespace(builder=SimpleNamespace(format="html"), srcdir=str(DOCS))
    conf["put_drawings_into_the_page"](builds, document, "page")
    drawing, picture = document.children
    assert isinstance(picture, nodes.image)
    dark = f"{{ --card: {DARK['card']};"
    assert f'(prefers-color-scheme: dark) {{ body:not([data-theme="light"]) .fl {dark}' in drawing.astext()
    assert f'body[data-theme="dark"] .fl {dark}' in drawing.astext()
    assert drawing.astext().count(DARK["card"]) == 2


def test_a_bar_is_as_long_as_its_value_and_its_line_reaches_over_the_repeats():
    bars = [Bar("A & B", 50, 40, 100, "50 ▲", "peer"), Bar("ours", 25, 25, 25, "25", "own")]
    picture = ET.fromstring(draw("title", [Panel("panel", bars)], "note\nmore"))
    names = {part.get("class"): part for part in picture}
    assert float(names["peer"].get("width")) == 2 * float(names["own"].get("width")) == 224
    lines = [part.get("d") for part in picture if part.get("class") == "e"]
    assert len(lines) == 1  # ours was measured once
    low, high = re.match(r"M([\d.]+) [\d.]+ H([\d.]+)", lines[0]).groups()
    assert (float(low), float(high)) == pytest.approx((16 + 0.4 * 448, 16 + 448))
    assert [part.text for part in picture if part.tag.endswith("text")][1] == "A & B"


def threads(label, count):
    bars = [(timeline.Bar(number, 10, "decode", COLOURS["decode"]),) for number in range(count)]
    return [Row(f"{label} {number}", "host", one) for number, one in enumerate(bars)]


def test_many_threads_of_a_kind_share_a_row_and_few_do_not(tmp_path):
    rows = (Row("main thread", "host", ()), *threads("worker", 3), *threads("decode thread", 14))
    made = Timeline(rows, 30, (0, 20), ((5, 2),))
    timeline.draw(made, tmp_path / "x.svg", "title")
    shown = re.findall(r"<!-- (.+?) -->", (tmp_path / "x.svg").read_text())
    assert {"main thread", "worker 0", "worker 2", "14 decode threads"} <= set(shown)
    assert "decode thread 0" not in shown
    assert {"decode", "start of a step", "3 longest gaps of the GPU"} <= set(shown)


def test_a_timeline_comes_back_from_its_record():
    made = Timeline((*threads("worker", 2),), 30, (0, 20), ((5, 2),))
    assert timeline.from_record(json.loads(json.dumps(dataclasses.asdict(made)))) == made
