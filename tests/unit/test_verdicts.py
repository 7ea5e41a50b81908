"""The verdict names each planted bottleneck that a CPU can have."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks import verdicts
from benchmarks.__main__ import main as run_benchmark
from benchmarks.verdicts import plants, slow_store
from fastload.stats.diagnosis import Report
from fastload.stats.verdict import Bottleneck, Verdict

ON_CPU = {
    "slow storage": "storage",
    "heavy decode": "decode",
    "Python-heavy transform": "Python",
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
    assert len(set(expected)) == 8


@pytest.mark.timeout(600)
@pytest.mark.thorough
def test_verdicts_name_what_is_planted_on_a_cpu(tmp_path):
    file = tmp_path / "verdicts.json"
    assert run_benchmark(["verdicts", "--quick", "--device", "cpu", "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert {name: plant["verdict"] for name, plant in record["plants"].items()} == ON_CPU
    assert (record["named"], record["of"]) == (8, 8)
    of_the_loop = [plant for name, plant in record["plants"].items() if ON_CPU[name] == "step"]
    assert not any("GPU" in line for plant in of_the_loop for line in plant["report"]), "there is none"
    assert all(plant["is_bottleneck"] for plant in record["plants"].values())


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_verdicts_name_all_on_a_gpu(tmp_path):
    file = tmp_path / "verdicts.json"
    code = run_benchmark(["verdicts", "--quick", "--device", "cuda", "--json", str(file)])
    record = json.loads(file.read_text())
    assert (record["named"], record["of"], code) == (12, 12, 0), record


def test_what_needs_a_gpu_is_left_out_and_said_to_be(capsys):
    assert run_benchmark(["verdicts", "--quick", "--device", "cpu", "--plant", "heavy decode on the GPU"]) == 0
    printed = capsys.readouterr().out
    assert "heavy decode on the GPU: left out, it needs a CUDA device" in printed
    assert "0 of 0 named" in printed


def test_a_gpu_that_decodes_has_large_images_and_next_to_no_step(monkeypatch):
    class Loader:
        def __init__(self, dataset, **given):
            opened.append((given, [dataset.loader(path).size for path, _ in dataset.samples]))

        __enter__ = __exit__ = lambda self, *_: None

    opened, steps = [], []
    monkeypatch.setattr(verdicts, "FastLoader", Loader)
    monkeypatch.setattr(verdicts, "Model", lambda device, products, side: steps.append((device.type, products)))
    plant = plants(torch.device("cuda"), quick=True)["heavy decode on the GPU"]
    for loop in (plant.planted, plant.relieved):
        with loop():
            pass
    (planted, large), (relieved, small) = opened
    assert (set(large), set(small)) == ({(2048, 2048)}, {(32, 32)})
    assert (planted["decode"], planted["engine"], planted["device"].type) == ("gpu", "native", "cuda")
    assert {**planted, "sampler": None} == {**relieved, "sampler": None}
    assert steps == [("cuda", 0)] * 2


@pytest.mark.parametrize(("by", "named"), [("the GPU decoded the next batch", True), ("decode threads read", False)])
def test_a_verdict_that_names_another_limit_of_that_name_is_wrong(monkeypatch, by, named):
    """Threads that decode are another limit than the GPU."""
    stats = SimpleNamespace(images_per_s=1.0, stall=0.9, device_stall=0.9)
    verdict = Verdict(Bottleneck.DECODE, (f"90% of that while {by}",), "")
    monkeypatch.setattr(verdicts, "run", lambda *_: Report(verdict, stats))
    plant = plants(torch.device("cuda"), quick=True)["heavy decode on the GPU"]
    loop = lambda: contextlib.nullcontext((None, None))  # noqa: E731
    monkeypatch.setattr(Report, "__str__", lambda self: str(self.verdict))
    assert verdicts.try_plant(dataclasses.replace(plant, planted=loop, relieved=loop), 1.0)["named"] is named


def test_a_plant_that_there_is_not_is_refused(capsys):
    assert run_benchmark(["verdicts", "--plant", "weeds"]) == 2
    assert "--plant must be one of 'slow storage'" in capsys.readouterr().err


def test_the_slow_store_serves_what_is_asked_for():
    with slow_store(1000, 1e9) as store:
        assert store.read(3) == bytes(range(3, 256)) + (bytes(range(256)) * 3)[: 1000 - 253]
        assert len(store.read(700)) == 1000
