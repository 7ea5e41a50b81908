"""The verdict names each planted bottleneck that a CPU can have."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import verdicts
from benchmarks.__main__ import main as run_benchmark
from benchmarks._slowstore import slow_store
from benchmarks.verdicts import plants
from fastload.stats.verdict import Bottleneck

ON_CPU = {
    "slow storage": "storage",
    "heavy decode": "decode",
    "Python-heavy transform": "Python",
    "normalizing on the host": "epilogue",
    "a tenth CMYK files": "Python",
    "large collate": "collate/IPC",
    "heavy model": "step",
    "sleep in every step": "step",
    "prints in every step": "step",
}


@pytest.mark.parametrize(("told", "loops_own"), [(True, Bottleneck.LOOP), (False, Bottleneck.STEP)])
def test_there_are_twelve_and_three_are_the_loops_own(monkeypatch, told, loops_own):
    monkeypatch.setattr(verdicts, "tells_utilization", lambda: told)
    expected = [plant.expected for plant in plants(torch.device("cuda"), quick=True).values()]
    assert len(expected) == 12
    assert expected.count(loops_own) == 3
    assert len(set(expected)) == 9


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_verdicts_name_what_is_planted_on_a_cpu(tmp_path):
    file = tmp_path / "verdicts.json"
    assert run_benchmark(["verdicts", "--quick", "--device", "cpu", "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert {name: plant["verdict"] for name, plant in record["plants"].items()} == ON_CPU
    assert (record["named"], record["of"]) == (9, 9)
    of_the_loop = [plant for name, plant in record["plants"].items() if ON_CPU[name] == "step"]
    assert not any("GPU" in line for plant in of_the_loop for line in plant["report"]), "there is none"
    assert all(plant["is_bottleneck"] for plant in record["plants"].values())


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_verdicts_name_all_twelve_on_a_gpu(tmp_path):
    file = tmp_path / "verdicts.json"
    code = run_benchmark(["verdicts", "--quick", "--device", "cuda", "--json", str(file)])
    record = json.loads(file.read_text())
    assert (record["named"], record["of"], code) == (12, 12, 0), record


def test_a_plant_that_there_is_not_is_refused(capsys):
    assert run_benchmark(["verdicts", "--plant", "weeds"]) == 2
    assert "--plant must be one of 'slow storage'" in capsys.readouterr().err


def test_the_slow_store_serves_what_is_asked_for():
    with slow_store(1000, 1e9) as store:
        assert store.read(3) == bytes(range(3, 256)) + (bytes(range(256)) * 3)[: 1000 - 253]
        assert len(store.read(700)) == 1000
