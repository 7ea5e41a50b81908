"""The README's figures are those of benchmarks/results, and nobody else's."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def figures():
    spec = importlib.util.spec_from_file_location("figures", ROOT / "scripts" / "figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_is_up_to_date(figures):
    readme = (ROOT / "README.md").read_text()
    assert figures.render(readme) == readme, "run 'make figures'"


def test_a_changed_result_makes_the_readme_stale(figures, tmp_path, monkeypatch):
    readme = (ROOT / "README.md").read_text()
    for name in figures.SECTIONS:
        text = (ROOT / "benchmarks" / "results" / f"{name}.json").read_text()
        (tmp_path / f"{name}.json").write_text(text)
    record = json.loads((tmp_path / "ladder.json").read_text())
    record["rungs"][0]["workers"] = 77
    (tmp_path / "ladder.json").write_text(json.dumps(record))
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    assert figures.render(readme) != readme


def test_every_result_says_what_it_ran_on():
    files = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    assert files
    for file in files:
        ran = json.loads(file.read_text())["environment"]
        assert {"cpu", "gpu", "torch", "date", "commit", "driver", "usable_cpus"} <= set(ran), file.name
