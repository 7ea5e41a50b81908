"""Test ``python -m benchmarks sources``: each row's figures, and that batches are compared first."""

from __future__ import annotations

import json

import optional
import pytest
import torch

from benchmarks.__main__ import main as run_benchmark
from benchmarks.sources import Row, different, epoch, measure
from benchmarks.tables import sources as table

optional.needed("skimage")


def batches(seed, count=3):
    generator = torch.Generator().manual_seed(seed)
    return [[torch.rand(4, 3, generator=generator), torch.arange(4)] for _ in range(count)]


def row(**options):
    return Row("photos", lambda photos, room, workers: {}, **options)


def test_loaders_of_other_batches_are_named():
    makers = {"torch": lambda: batches(1), "fastload": lambda: batches(2), "also": lambda: batches(1)}
    assert different(row(), makers) == ["fastload"]
    assert measure(row(), makers, 1) == {"different": ["fastload"]}
    assert different(row(own_order=("fastload",)), makers) == []
    assert different(row(same_bits=False), makers) == []
    short = {"torch": lambda: batches(1), "fastload": lambda: [batch[:1] for batch in batches(1)]}
    assert different(row(), short) == ["fastload"]


def test_a_row_has_the_figures_of_every_loader():
    makers = {"torch": lambda: batches(1), "fastload": lambda: batches(1)}
    answer = measure(row(), makers, 3)
    assert {name: len(speed["values"]) for name, speed in answer["images_per_s"].items()} == {"torch": 3, "fastload": 3}
    assert [*answer["speedup"]] == ["fastload"]
    shown = table({"rows": [{"what": "photos", **answer}, {"what": "others", "skipped": "it is not installed"}]})
    assert "| photos | fastload, beside torch | yes |" in shown
    assert "| others | it is not installed |" in shown
    assert epoch(batches(1)) > 0


@pytest.mark.thorough
def test_the_command_writes_every_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = ["folder", "zip"]
    file = tmp_path / "sources.json"
    assert run_benchmark(["sources", "--quick", "--json", str(file), "--only", *wanted]) == 0
    record = json.loads(file.read_text())
    assert [found["source"] for found in record["rows"]] == wanted
    assert all(found["speedup"]["fastload"]["median"] > 0 for found in record["rows"])


def test_unknown_rows_are_refused(capsys):
    assert run_benchmark(["sources", "--only", "floppy"]) != 0
    assert "--only must be one of 'arrays', 'folder'" in capsys.readouterr().err
