"""What pages say of suites, trials, formats, datasets and limits is what the code has."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import effort
import pytest
import torchvision.datasets
from torture.__main__ import FAMILIES, SOAK_MINUTES

from fastload.pipeline.datasets.folders import OF_ARRAYS, OF_FILES

ROOT = Path(__file__).parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
pytestmark = pytest.mark.skipif(not CONTRIBUTING.exists(), reason="tests of a checkout")
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]


def said(pattern: str) -> list[str]:
    """What CONTRIBUTING says there, whose lines may break anywhere; at least once."""
    found = re.findall(pattern, " ".join(CONTRIBUTING.read_text().split()))
    assert found, f"CONTRIBUTING no longer says {pattern}"
    return found


def rows(title: str) -> dict[str, list[str]]:
    """The table under a title: first cells without backticks, and the others."""
    text = CONTRIBUTING.read_text().partition(f" {title}\n")[2]
    lines = re.search(r"^\|.*?^\|[-:|]+\|\n(.*?)\n(?!\|)", text, re.DOTALL | re.MULTILINE)
    assert lines
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1].splitlines()]
    return {first.strip("`"): rest for first, *rest in cells}


def number(text: str) -> int:
    return int(text.replace(",", ""))


def script(name: str, pattern: str) -> list[str]:
    found = re.findall(pattern, (ROOT / "scripts" / name).read_text(), re.MULTILINE)
    assert found
    return found


def test_suites_exist_and_each_target_is_on_a_page() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):.* ## ", makefile, re.MULTILINE)
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert sorted(phony.split()) == sorted(targets)
    suites = rows("Suites")
    for command in suites:
        program, *words = command.split()
        assert words[0] in targets if program == "make" else (ROOT / program).exists(), command
    assert {"make thorough", "make release", ".ci/run"} <= suites.keys()
    text = "\n".join(page.read_text() for page in (CONTRIBUTING, *PAGES))
    pointed = set(re.findall(r"\bmake ([a-z-]+)\b", text))
    assert set(targets) - pointed == {"help", "clean", "unsimd"}


def test_the_number_of_tests_is_about_what_is_said(request: pytest.FixtureRequest) -> None:
    """Counts those of this run, which must be the whole quick suite."""
    options = request.config.option
    if options.file_or_dir or options.keyword or options.markexpr or options.all or options.slow:
        pytest.skip("not the quick suite as a whole")
    count = len(request.session.items)
    (told,) = map(number, said(r"about ([\d,]+) tests"))
    assert told == pytest.approx(count, rel=0.1)


def test_limits_of_the_quick_suite_are_those_of_the_code() -> None:
    assert said(r"one (tenth) of Hypothesis's examples") == ["tenth"]
    assert effort.QUICK_SHARE == 0.1
    assert said(r"an interrupt at every (\d+)th opcode") == [str(effort.QUICK_STRIDE)]
    assert said(r"(\d+) cases of each test") == [str(effort.QUICK_CASES)]
    assert said(r"runs (\d+) of each, and (\d+) of each that is marked `slow`") == [
        (str(effort.MERGE_CASES), str(effort.SLOW_CASES))
    ]


def test_rows_of_the_matrix_are_those_of_its_script() -> None:
    (default,) = script("matrix.sh", r"^\[ \$# -gt 0 \] \|\| set -- (.+)$")
    (oldest, *newest) = said(r"on Python (3\.\d+) with the oldest torch, on (3\.\d+) and (3\.\d+) with the newest")[0]
    assert default == " ".join([f"{oldest}:oldest", *(f"{python}:newest" for python in newest)])
    assert f"part make matrix ARGS={oldest}:oldest\n" in (ROOT / ".ci" / "run").read_text()


def test_what_a_merge_does_not_wait_for_is_what_its_script_runs() -> None:
    what, _ = rows("Suites")["make thorough"]
    count = len(script("thorough.sh", r"^part other_pillow "))
    assert f"{['no', 'one', 'two', 'three', 'four', 'five'][count]} other Pillows" in what
    assert ("ten minutes of fuzzing" in what) is ("600" in script("thorough.sh", r"FUZZ_SECONDS:-(\d+)"))
    assert ("a tenth of the torture" in what) is ("0.1" in script("thorough.sh", r"SHARE:-([\d.]+)"))
    for target in re.findall(r"make ([a-z-]+)", what):
        assert f"part make {target}" in (ROOT / "scripts" / "thorough.sh").read_text()


def test_families_of_trials_and_their_counts_are_those_of_the_harness() -> None:
    table = rows("make torture")
    assert list(table) == list(FAMILIES)
    for family, (what, minutes) in table.items():
        counts = [number(found) for found in re.findall(r"\b[\d,]*\d{3}\b(?! px)", what)] or [1]
        each = 3 if "each," in what else 1  # PNG, WebP, deflate
        assert sum(counts) * each == importlib.import_module(f"torture.{family}").COUNT, family
        assert int(minutes) > 0
    assert number(table["soak"][1]) == SOAK_MINUTES
    together = sum(number(minutes) for family, (_, minutes) in table.items() if family != "soak")
    assert together == pytest.approx(number(rows("Suites")["make torture"][1].split(",")[0]), rel=0.25)


def test_the_sample_of_mutants_is_as_large_as_is_said() -> None:
    counts = {number(found) for found in said(r"fixed sample of (\d+) mutants")}
    (default,) = map(number, script("mutants.py", r'"--count", type=int, default=(\d+)'))
    assert counts == {default}
    assert f"{default} small changes" in (ROOT / "Makefile").read_text()


def test_limits_of_the_code_are_those_of_its_test() -> None:
    house = (ROOT / "tests" / "unit" / "test_house.py").read_text()
    assert re.findall(r"^LINES_MAX = (\d+)$", house, re.MULTILINE) == said(r"Files stay under (\d+) lines")
    assert re.findall(r"^WORDS_MAX = (\d+)$", house, re.MULTILINE) == said(r"object in at most (\d+) words")


# What a page says of torchvision's datasets that are not native.
PYTHON = re.compile(r"stay Python")


def test_datasets_that_pages_name_are_native_unless_they_say_otherwise() -> None:
    known = tuple(OF_FILES) + tuple(OF_ARRAYS)
    native, python = set(), set()
    for page in PAGES:
        for sentence in re.split(r"\.\s", page.read_text()):
            named = {getattr(torchvision.datasets, name, None) for name in re.findall(r"`([A-Z]\w+)`", sentence)}
            (python if PYTHON.search(sentence) else native).update(kind for kind in named if isinstance(kind, type))
    assert {kind.__name__ for kind in native if not issubclass(kind, known)} == set()
    assert {kind.__name__ for kind in python if kind in known} == set()
    assert len(native) > 20
    assert python


NAMED = re.compile(r"\b(JPEG|PNG|WebP|GIF|BMP|TIFF|AVIF|HEIC)\b")


def test_formats_that_pages_promise_are_those_of_the_core() -> None:
    """Each page that lists what is decoded natively lists all of it, and no more."""
    header = (ROOT / "csrc" / "base" / "header.h").read_text()
    formats = set(re.findall(r'return "(\w+)', header))
    listing = re.compile(r"JPEG, PNG(?:,? (?:and|or) WebP|, WebP) (?:files|images)")
    found = [page.name for page in PAGES if listing.search(" ".join(page.read_text().split()))]
    assert {"README.md", "fit.md", "index.md", "faq.md", "quickstart.md"} <= set(found)
    assert formats == {"JPEG", "PNG", "WebP"}
    lists = {frozenset(NAMED.findall(listed)) for page in PAGES for listed in listing.findall(page.read_text())}
    assert lists == {frozenset(formats)}
    assert {name for page in PAGES for name in NAMED.findall(page.read_text())} - formats <= {
        "AVIF",
        "BMP",
        "GIF",
        "TIFF",
    }
