"""Compare reports of the recordings in ``tests/data`` with stored text and JSON.

``FASTLOAD_RENEW_GOLDEN=1 pytest tests/unit/test_golden.py`` writes ``tests/data/golden`` anew; read the difference.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import optional
import pytest

from fastload.commands.kernels import show as show_kernels
from fastload.profiling.analysis import ncu
from fastload.profiling.analysis.ncu import read_ceilings
from fastload.profiling.pages.report import make_report, show
from fastload.profiling.recording import nsys_export

DATA = Path(__file__).parent.parent / "data"
GOLDEN = DATA / "golden"
WIDTH = 140
rich_console = optional.module("rich.console")


def agrees(name: str, text: str) -> None:
    """Compare with the file of that name, or write it when asked to."""
    path = GOLDEN / name
    if os.environ.get("FASTLOAD_RENEW_GOLDEN") == "1":
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()


def plain() -> Any:
    return rich_console.Console(
        file=io.StringIO(), width=WIDTH, color_system=None, force_terminal=False, highlight=False
    )


def lines_of(console: Any) -> str:
    """What was printed, without the blanks that fill its lines."""
    file = console.file
    assert isinstance(file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def rounded(value: Any) -> Any:
    """Python 3.12 adds floats up more exactly than 3.11, which shows in the last digits."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.fixture(scope="module")
def report():
    return make_report(nsys_export.read(DATA / "nsys.sqlite"))


def test_the_text_of_a_profile(report):
    console = plain()
    show(report, console)
    agrees("profile.txt", lines_of(console))


def test_the_json_of_a_profile(report):
    agrees("profile.json", json.dumps(rounded(report.to_dict()), indent=2) + "\n")


@pytest.mark.parametrize("by", ["range", "kernel"])
def test_the_table_of_a_ranges_kernels(by):
    runs = ncu.read(DATA / "ncu" / "ncu.csv")
    ceilings = read_ceilings(DATA / "ncu")
    console = plain()
    show_kernels(ncu.sum_up(runs, "forward", ceilings, by), ncu.total(runs, ceilings), ceilings, "forward", console)
    agrees(f"kernels-by-{by}.txt", lines_of(console))


def test_the_table_of_kernels_fits_80_columns():
    runs, ceilings = ncu.read(DATA / "ncu" / "ncu.csv"), read_ceilings(DATA / "ncu")
    console = rich_console.Console(file=io.StringIO(), width=80)
    show_kernels(
        ncu.sum_up(runs, "forward", ceilings, "kernel"), ncu.total(runs, ceilings), ceilings, "forward", console
    )
    lines = lines_of(console).splitlines()
    assert max(map(len, lines)) <= 80
    head = next(line for line in lines if line.startswith("range or kernel"))
    assert head.split() == ["range", "or", "kernel", "kernels", "time", "of", "all", "GB/s", "TFLOP/s", "class"]
    assert "…" not in "".join(lines)
