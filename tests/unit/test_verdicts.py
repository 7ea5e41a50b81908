"""Each planted bottleneck of a CPU is named, or it is too early."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks import tables, verdicts
from benchmarks.__main__ import main as run_benchmark
from benchmarks.verdicts import EPOCHS, STEPS, Plant, judge, plants, slow_store
from fastload.stats.diagnosis import Report
from fastload.stats.stats import Stats
from fastload.stats.verdict import Bottleneck, Verdict

NEED_A_GPU = ["pageable", "link", "another program on the GPU"]
CPU = torch.device("cpu")
ROWS = {
    "rows": [{"steps": 9, "epoch": 9, "judged": "right", "sentence": "So.", "images_per_s": 1.0}],
    "speedup_when_relieved": None,
}


@pytest.mark.parametrize(("told", "loops_own"), [(True, Bottleneck.LOOP), (False, Bottleneck.STEP)])
def test_there_are_twelve_and_three_are_the_loops_own(monkeypatch, told, loops_own):
    monkeypatch.setattr(verdicts, "tells_utilization", lambda: told)
    made = plants(torch.device("cuda"), quick=False)
    expected = [plant.expected for plant in made.values()]
    assert len(expected) == 12
    assert expected.count((loops_own,)) == 3 + (not told)
    assert [name for name, plant in made.items() if plant.epochs == EPOCHS] == [
        *("GPU", "decode", "Python"),
        "synchronizing loop",
    ]
    assert [name for name, plant in made.items() if plant.needs_gpu] == NEED_A_GPU


@pytest.mark.timeout(600)
@pytest.mark.thorough
def test_no_verdict_is_wrong_on_a_cpu(tmp_path):
    file = tmp_path / "verdicts.json"
    assert run_benchmark(["verdicts", "--quick", "--device", "cpu", "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert record["complete"]
    assert [*record["plants"]] == [name for name in plants(CPU, quick=True) if name not in NEED_A_GPU]
    assert record["judged"]["wrong"] == 0
    assert record["judged"]["right"] > record["judged"]["too early"]


@pytest.mark.gpu
@pytest.mark.timeout(600)
def test_no_verdict_is_wrong_on_a_gpu(tmp_path):
    file = tmp_path / "verdicts.json"
    code = run_benchmark(["verdicts", "--quick", "--device", "cuda", "--json", str(file)])
    record = json.loads(file.read_text())
    assert (record["judged"]["wrong"], len(record["plants"]), code) == (0, 12, 0), record


def test_what_needs_a_gpu_is_left_out_and_said_to_be(capsys):
    assert run_benchmark(["verdicts", "--quick", "--device", "cpu", "--only", "link"]) == 0
    printed = capsys.readouterr().out
    assert "link: left out, it needs a CUDA device" in printed
    assert "0 right, 0 too early, 0 wrong" in printed


def a_plant(**more):
    return Plant((Bottleneck.STEP,), lambda: contextlib.nullcontext([torch.zeros(2)] * 9999), **more)


@pytest.mark.parametrize(
    ("named", "is_last", "judged"),
    [
        (Bottleneck.STEP, False, "right"),
        (Bottleneck.STEP, True, "wrong"),  # without the evidence
        (Bottleneck.DECODE, False, "wrong"),
        (None, True, "too early"),
    ],
)
def test_a_verdict_is_right_too_early_or_wrong(named, is_last, judged):
    row = judge(a_plant(evidence="first epoch"), 30, 8, Report(Verdict(named, ("so",), ""), Stats()), is_last=is_last)
    assert (row["steps"], row["epoch"], row["expected"], row["judged"]) == (30, 8, ["step"], judged)
    assert row["said"] == (None if named is None else named.value)


def test_a_plant_is_run_at_all_its_lengths_with_one_dataset_and_one_model(monkeypatch):
    runs, steps = [], []

    def reports(plant, dataset, step, asked, epoch, **arguments):
        runs.append((tuple(asked), epoch))
        steps.append(step)
        return [(number, Report(Verdict(None, ("so",), ""), Stats())) for number in asked]

    monkeypatch.setattr(verdicts, "reports", reports)
    verdicts.try_plant(a_plant(epochs=EPOCHS), CPU, quick=False)
    assert runs == [(STEPS, 600), (STEPS, 8), (STEPS, 30), ((30, 60, 360), 300)]
    assert len(set(map(id, steps))) == 1


def test_reports_are_of_so_many_steps_and_of_all_epochs(monkeypatch):
    monkeypatch.setattr(verdicts, "WARM_S", 0.0)
    between = []
    plant = a_plant(between=lambda dataset: between.append(len(dataset)))
    step, given = verdicts.Step(plant, CPU), {"batch_size": 2, "num_workers": 0, "device": CPU}
    seen = [
        (number, report.stats.batches, len(between))
        for number, report in verdicts.reports(plant, plant.dataset().__enter__(), step, [3, 7], 3, **given)
    ]
    assert [(number, epochs) for number, _, epochs in seen] == [(3, 0), (7, 2)]


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_a_training_is_judged_at_every_epoch_until_its_time_is_over(tmp_path):
    file = tmp_path / "minutes.json"
    given = ["--quick", "--device", "cpu", "--minutes", "0.1", "--only", "Python", "--json", str(file)]
    assert run_benchmark(["verdicts", *given]) == 0
    record = json.loads(file.read_text())
    rows = record["plants"]["Python"]["rows"]
    assert [row["steps"] for row in rows] == [30 * (1 + number) for number in range(len(rows))]
    assert rows[-1]["judged"] == "right"
    assert rows[-1]["after_s"] >= 6.0 > max([0.0, *(row["after_s"] for row in rows[:-1])])


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([None, Bottleneck.DECODE, None, Bottleneck.DECODE], 0),
        ([None, Bottleneck.PYTHON, Bottleneck.DECODE], 1),
        ([Bottleneck.DECODE, None], 1),  # at last it has to be right
    ],
)
def test_a_word_that_is_wrong_at_one_epoch_fails_the_run(monkeypatch, tmp_path, said, code):
    def reports(plant, dataset, step, steps, epoch, **arguments):
        for number, named in zip(steps, said, strict=False):
            yield number, Report(Verdict(named, ("so",), ""), Stats())

    monkeypatch.setattr(verdicts, "reports", reports)
    file = tmp_path / "minutes.json"
    given = ["--quick", "--device", "cpu", "--minutes", "9", "--only", "decode", "--json", str(file)]
    assert run_benchmark(["verdicts", *given]) == code
    record = json.loads(file.read_text())
    assert [row["said"] for row in record["plants"]["decode"]["rows"]] == [each and each.value for each in said]
    assert f"| {len(said)} |" in tables.minutes(record)


def test_minutes_are_trained_with_what_makes_sense_on_a_cpu(monkeypatch, tmp_path):
    tried = []
    monkeypatch.setattr(verdicts, "train_for", lambda seconds, plant, *_, **__: tried.append((seconds, plant)) or ROWS)
    args = SimpleNamespace(device="cpu", quick=True, minutes=2.0, only=None, json=tmp_path / "minutes.json")
    assert verdicts.main(args) == 0
    assert [(seconds, plant.expected) for seconds, plant in tried] == [
        (120.0, (Bottleneck.DECODE,)),
        (120.0, (Bottleneck.PYTHON,)),
    ]


def test_a_run_that_is_cut_off_leaves_its_plants(monkeypatch, tmp_path):
    def try_plant(plant, device, *, quick):
        if tried:
            raise KeyboardInterrupt
        tried.append(plant)
        return {"rows": [], "speedup_when_relieved": None}

    tried, file = [], tmp_path / "verdicts.json"
    monkeypatch.setattr(verdicts, "try_plant", try_plant)
    args = SimpleNamespace(device="cpu", quick=True, minutes=None, only=None, json=file)
    with pytest.raises(KeyboardInterrupt):
        verdicts.main(args)
    record = json.loads(file.read_text())
    assert [*record["plants"]] == ["GPU"]
    assert not record["complete"]


def test_a_plant_that_there_is_not_is_refused(capsys):
    assert run_benchmark(["verdicts", "--only", "weeds"]) == 2
    assert "--only must be one of 'GPU'" in capsys.readouterr().err


def test_the_slow_store_serves_what_is_asked_for():
    with slow_store(1000, 1e9) as store:
        assert store.read(3) == bytes(range(3, 256)) + (bytes(range(256)) * 3)[: 1000 - 253]
        assert len(store.read(700)) == 1000
