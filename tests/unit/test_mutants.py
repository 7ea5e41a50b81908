"""``make mutants`` of a small package: kills by each suite, survivors, and non-mutants."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "mutants.py"
spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
assert spec is not None
mutants = importlib.util.module_from_spec(spec)
sys.modules["mutants"] = mutants  # its dataclass looks there
spec.loader.exec_module(mutants)

FILES = {
    "fastload/__init__.py": "",
    "fastload/native/__init__.py": "",
    "fastload/native/sums.py": '''
from __future__ import annotations

def total(a: int | None, b: int | None) -> int | None:
    """Add."""
    return a + b

def double(a):
    return a * 2

def never(a):
    return a - 1
''',
    "tests/conftest.py": """
import pytest

def pytest_addoption(parser):
    parser.addoption("--all", action="store_true")

def pytest_collection_modifyitems(config, items):
    if not config.getoption("all"):
        items[:] = [item for item in items if item.get_closest_marker("slow") is None]
""",
    "tests/test_sums.py": """
import pytest
from fastload.native.sums import double, total

def test_total():
    assert total(2, 3) == 5

@pytest.mark.slow
def test_double():
    assert double(3) == 6

def test_that_fails_anyway():
    assert double(3) == total(3, 4)
""",
    "pytest.ini": "[pytest]\nmarkers = slow\n",
}


@pytest.mark.thorough  # starts an interpreter with torch
def test_mutants_are_killed_by_the_suite_that_notices_them(tmp_path):
    tree = tmp_path / "tree"
    for name, text in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    subprocess.run(["git", "init", "-q", tree], check=True)
    subprocess.run(["git", "-C", tree, "add", "."], check=True)
    command = [
        sys.executable,
        SCRIPT,
        "--tree",
        tree,
        "--folders",
        "fastload",
        "--jobs",
        "1",
        "--out",
        tmp_path / "r.json",
    ]
    subprocess.run(command, check=True, timeout=150)

    record = json.loads((tmp_path / "r.json").read_text())
    assert record["mutants"] == 5  # three operators, two numbers
    assert record["killed"] == {"quick": 1, "slow": 3}
    assert record["tests_left_out"] == ["tests/test_sums.py::test_that_fails_anyway"]
    assert [entry["before"] for entry in record["survivors"]] == ["return a - 1"] * 2
    assert {entry["runs"]["slow"]["reach"] for entry in record["survivors"]} == {0}
    assert [entry["before"] for entry in record["survivors_of_quick_suite_only"]] == ["return a * 2"] * 2
    assert {name: (tree / name).read_text() for name in FILES} == FILES  # the checkout is as it was


def test_marks_are_in_front_of_the_statements_that_run():
    code = '''
LIMIT = 1

def kind(n, limit=LIMIT):
    """Tell."""
    if n < 0:
        return -1
    elif n > limit:
        return [
            n
            for _ in range(2)
        ]
    return 0
'''
    lines = {2: 0, 6: 1, 7: 2, 8: 3, 10: 4, 13: 5}
    text, imported = mutants.marked(code, lines, 6)
    assert imported == {0}

    def reached(n: int) -> set[int]:
        marks = bytearray(7)
        names = {"_mutant_marks": marks}
        exec(text, names)
        assert not any(marks)
        names["kind"](n)
        return {mark for mark, byte in enumerate(marks) if byte}

    assert reached(-1) == {1, 2, 3, 6}  # the conditions of one statement have one mark
    assert reached(2) == {1, 3, 4, 6}
    assert reached(0) == {1, 3, 5, 6}


def test_the_seed_decides_what_is_drawn(tmp_path):
    (tmp_path / "sums.py").write_text(FILES["fastload/native/sums.py"])
    source = mutants.Source(tmp_path, "sums.py")
    assert sorted(line for line, _ in source.positions) == [6, 9, 9, 12, 12]  # no annotation
    assert mutants.sample([source], 3, seed=1) == mutants.sample([source], 3, seed=1)
    assert len({tuple(m.line for m in mutants.sample([source], 3, seed=seed)) for seed in range(9)}) > 1
    drawn = mutants.sample([source], 5, seed=1)
    survivors = [{"operator": m.operator, "before": m.before, "after": m.after} for m in drawn]
    assert sorted(m.after for m in mutants.matching([source], survivors)) == sorted(m.after for m in drawn)
