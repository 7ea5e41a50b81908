"""The profile's page and the terminal's report show user-given names verbatim."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from handmade import FEEDER, MAIN, WORKERS, h2d, kernel, launch, recording, span, stage

from fastload.profiling.pages import html, timeline
from fastload.profiling.pages.palette import contrast
from fastload.profiling.pages.report import make_report, plain_console, sentence, show
from fastload.profiling.recording import nsys_export
from fastload.profiling.recording.trace import Call
from fastload.stats.verdict import Verdict

HOSTILE = [
    "%%TABLES%%",
    "%%DATA%%",
    "%%REMEDY%%",
    "<img src=x onerror=\"document.title='owned'\">",
    "<!--<script>",
    "</script><script>document.title='owned'</script>",
    "--></td></table><h1 id=owned>",
    "' onmouseover='document.title=1' x='",
    '" onfocus="document.title=1',
    "</title><meta http-equiv=refresh content='0'>",
    "]]>\u2028document.title='owned'\u2029",
    "\\u003c/script\\u003e&lt;b&gt;&amp;",
    "\\",
    "[/bold] [red]:smile: $\\frac$",
]


def named(names):
    """A recording in which everything that has a name has one of ``names``."""
    ranges = [stage("step", 0, 1000), stage("wait", 0, 300), stage("h2d", 100, 200, FEEDER)]
    ranges += [stage("fetch", 0, 900, worker, blocked=0) for worker in WORKERS]
    calls, kernels = [], []
    for number, name in enumerate(names):
        begin = 310 + 45 * number
        ranges += [span(name, begin, begin + 40), span(name, begin, begin + 40, FEEDER, name)]
        calls += [Call(1000 * begin, 1000 * (begin + 30), name, MAIN, 100 + number), launch(number, begin, begin + 5)]
        kernels.append(kernel(number, begin + 10, begin + 20, name))
        kernels.append(kernel(None, begin + 20, begin + 25, f"nchwToNhwc{name}"))
    copies = [h2d(1, 0, 100), h2d(2, 150, 200, memory="pageable")]
    made = recording(0, 1000, ranges, calls, kernels, copies, calls, names[0], tuple(names))
    known = enumerate(made.threads.items())
    threads = {key: replace(thread, name=names[number % len(names)]) for number, (key, thread) in known}
    return replace(made, threads=threads, devices={0: names[3]})


def report_on(names):
    seen = Verdict(None, tuple(names), names[0])
    made = named(names)
    found = make_report(made, seen)
    found = replace(found, verdict=Verdict(None, tuple(names), names[-1]))
    return found, timeline.lay_out(made, found.findings)


class Elements(HTMLParser):
    """Collects a page's elements, attributes, text outside of scripts and styles, and script."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.text, self.inside = [], {None: ""}, None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        fixed = {"data-at": None, "data-length": None}
        self.elements.append((tag, sorted((name, fixed.get(name, value)) for name, value in attrs)))
        if tag in ("script", "style"):
            self.inside = tag

    def handle_endtag(self, tag):
        self.elements.append(f"/{tag}")
        self.inside = None

    def handle_comment(self, data):
        self.elements.append(f"comment {data}")

    def handle_data(self, data):
        self.text[self.inside] = self.text.get(self.inside, "") + data


def data_of(script):
    (line,) = [line for line in script.split("\n") if line.startswith("const data = ")]
    return line.removeprefix("const data = ").removesuffix(";")


@pytest.fixture(scope="module")
def names():
    return HOSTILE


@pytest.fixture(scope="module")
def pages(names):
    return [Elements(html.render(*report_on(given))) for given in (names, [f"name {n}" for n in range(len(names))])]


def test_names_bring_no_element_and_no_attribute(pages):
    hostile, plain = pages
    assert hostile.elements == plain.elements
    assert len(plain.elements) > 500, "there is something to compare"


def test_names_stand_in_the_tables_as_they_are(pages, names):
    text = pages[0].text[None]
    for name in names:
        assert text.count(name) >= 4, name  # as a range, a kernel, a note, and in the evidence


def test_names_stand_in_the_scripts_data_and_nowhere_else_in_it(pages, names):
    hostile, plain = (found.text["script"] for found in pages)
    assert hostile.replace(data_of(hostile), "") == plain.replace(data_of(plain), "")
    assert set(names) <= set(json.loads(data_of(hostile))["texts"])


def test_the_scripts_data_has_nothing_that_a_browser_or_an_old_engine_could_take_for_markup(pages):
    """``<!--<script>`` moves the end of the script in browsers; Python's parser ignores it."""
    assert not set(data_of(pages[0].text["script"])) & set("<>&\u2028\u2029")


def test_the_legend_names_every_colour_and_names_on_bars_are_readable(pages):
    data = json.loads(data_of(pages[0].text["script"]))
    assert {colour for _, colour in data["legend"]} == set(data["colours"])
    assert len({name for name, _ in data["legend"]}) == len(data["legend"])
    assert min(map(contrast, data["inks"], data["colours"])) >= 4.5


def test_names_are_no_markup_in_a_terminal(monkeypatch, names):
    monkeypatch.setenv("COLUMNS", "400")
    console = plain_console()
    console.file = io.StringIO()
    show(report_on(names)[0], console)
    shown = console.file.getvalue()
    assert shown.count("[/bold] [red]:smile: $\\frac$") >= 4


@pytest.mark.parametrize("columns", [80, None])
def test_tables_fit_a_terminal_and_their_rows_are_lines_in_a_pipe(monkeypatch, columns):
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((columns or 0, 40)))
    monkeypatch.delenv("COLUMNS", raising=False)
    console = plain_console()
    console.file = io.StringIO()
    report = make_report(nsys_export.read(Path(__file__).parents[1] / "data/nsys.sqlite"))
    show(report, console)
    lines = console.file.getvalue().splitlines()
    if columns is None:
        name = max((use.name for use in report.findings.kernels), key=len)
        assert len([line for line in lines if line.startswith(name) and line.rstrip().endswith("%")]) == 1
        assert f"→ {sentence(report.verdict.remedy)}" in lines
    else:
        assert max(map(len, lines)) <= columns
