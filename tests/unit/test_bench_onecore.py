"""Test ``python -m benchmarks onecore``: what ran where, on one core."""

from __future__ import annotations

import json
import os

import optional
import pytest

from benchmarks import onecore
from benchmarks.__main__ import main as run_benchmark
from fastload.bench.photos import PhotoSet, write_photos
from fastload.bench.recipes import LAZY, NATIVE

optional.needed("skimage", "rich")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("data") / "photos", PhotoSet(count=6, classes=2, edge_px=80)).path


def test_pipelines_run_where_their_names_say(folder, tmp_path, monkeypatch):
    seen = set()
    measure_all = onecore.measure_all

    def watched(*arguments):
        seen.add(len(os.sched_getaffinity(0)))
        return measure_all(*arguments)

    monkeypatch.setattr(onecore, "measure_all", watched)
    before = os.sched_getaffinity(0)
    file = tmp_path / "onecore.json"
    chosen = "TrivialAugmentWide,exact=False,own class,step of"
    assert run_benchmark(["onecore", "--quick", "--data", str(folder), "--only", chosen, "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert [(row["recipe"], row["where"]) for row in record["rows"]] == [
        ("TrivialAugmentWide", NATIVE),
        ("SimCLR, exact=False", NATIVE),
        ("one's own class", LAZY),
        ("one step of Python", LAZY),
    ]
    assert record["parameters"]["workers"] == 1
    assert seen == {1}
    assert os.sched_getaffinity(0) == before


def test_cores_are_given_back_after_wrong_arguments(capsys):
    before = os.sched_getaffinity(0)
    assert run_benchmark(["onecore", "--only", "unknown"]) == 2
    assert "--only must be part of" in capsys.readouterr().err
    assert os.sched_getaffinity(0) == before
