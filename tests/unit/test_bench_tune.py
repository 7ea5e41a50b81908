"""Test ``python -m benchmarks tune``: how it judges "auto", and a whole run."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.data import Dataset

from benchmarks import tune
from benchmarks.__main__ import main as run_benchmark
from benchmarks.tune import TunedLoader, Workload, counts_up_to, evaluate, measure, model_of, settle, workers_of
from fastload import FastLoader
from fastload.measurement.record import Spread
from fastload.measurement.throughput import Rate

CPU = torch.device("cpu")


class Numbers(Dataset):
    """Samples without any cost."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor(index)


def rates(**by_number):
    return {name.removeprefix("n"): Spread.of(values) for name, values in by_number.items()}


def test_the_best_number_is_the_smallest_within_noise_of_the_fastest():
    found = evaluate(rates(n1=[50, 51], n2=[98, 99], n3=[100, 101], n8=[99, 101], auto=[97, 99]), [2, 2])
    assert (found["fastest"], found["best"]) == (3, 2)
    assert found["share_of_fastest"]["median"] == pytest.approx((97 / 100 + 99 / 101) / 2)
    assert found["workers_of_best"]["median"] == 1.0
    assert found["met"]


@pytest.mark.parametrize(
    ("auto", "workers", "met"),
    [([100.0], [5], True), ([97.1], [5], True), ([96.9], [5], False), ([100.0], [6], False), ([100.0], [4], True)],
)
def test_both_figures_have_to_be_met(auto, workers, met):
    found = evaluate(rates(n2=[50.0], n4=[100.0], n8=[100.0], auto=auto), workers)
    assert found["met"] is met


def test_every_number_is_tried_up_to_eight():
    assert counts_up_to(2) == [1, 2]
    assert counts_up_to(16) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16]


def test_auto_has_settled_when_its_number_stays():
    numbers = iter([8, 6, 6, 5, 5, 5, 4])
    seconds, seen = settle(TunedLoader(lambda: (Rate(1.0, 0.0, 1, 1.0), next(numbers))))
    assert seen == [8, 6, 6, 5, 5, 5]
    assert seconds >= 0
    changing = iter(range(100))
    assert len(settle(TunedLoader(lambda: (Rate(1.0, 0.0, 1, 1.0), next(changing))))[1]) == 20


def test_a_step_is_as_long_as_it_is_to_be():
    short, long = model_of(CPU, 1e-4), model_of(CPU, 1e-1)
    assert 1 <= short._products < long._products


def test_all_contenders_take_turns_at_a_workload():
    opened = []

    def loader(batches, num_workers):
        opened.append(num_workers)
        return FastLoader(
            Numbers(4 * min(batches, 10_000)),
            batch_size=4,
            num_workers=num_workers,
            persistent_workers=True,
            device="cpu",
        )

    steps = []
    result = measure(Workload(loader, steps.append), CPU, [1], seconds=0.01, epoch_s=0.01, repeats=5)
    assert opened == [1, 1, "auto"]  # a first look, then the turns
    assert set(result["images_per_s"]) == set(result["wait_share"]) == {"1", "auto"}
    assert all(len(rates["values"]) == 5 for rates in result["images_per_s"].values())
    assert len(result["auto_workers"]["values"]) == 5
    assert (result["fastest"], result["best"]) == (1, 1)
    assert all(len(batch) == 4 for batch in steps)
    assert result["numbers_while_settling"]


@pytest.mark.slow
def test_numbers_that_are_far_behind_take_no_turns(monkeypatch):
    looks = {1: 60.0, 2: 80.0, 4: 100.0}
    monkeypatch.setattr(tune, "first_look", lambda workload, loader, *_: looks[loader.num_workers])

    def loader(batches, num_workers):
        return FastLoader(Numbers(4 * min(batches, 100)), batch_size=4, num_workers=num_workers, device="cpu")

    result = measure(Workload(loader, len), CPU, [1, 2, 4], seconds=0.01, epoch_s=0.5, repeats=1)
    assert list(result["images_per_s"]) == ["2", "4", "auto"]
    assert result["first_look_images_per_s"] == {"1": 60.0, "2": 80.0, "4": 100.0}
    assert result["fastest"] in (2, 4)


@pytest.mark.slow
def test_worker_processes_of_auto_are_counted():
    with FastLoader(Numbers(8), batch_size=4, num_workers="auto", device="cpu") as loader:
        list(loader)
        assert workers_of(loader) == int(loader.num_workers)


@pytest.mark.timeout(600)
@pytest.mark.thorough
def test_the_command_writes_every_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["tune", "--quick", "--counts", "1", "--json", "tune.json"]
    assert run_benchmark(command) == 0
    record = json.loads((tmp_path / "tune.json").read_text())
    assert (len(record["workloads"]), record["complete"]) == (3, True)
    assert record["workloads"]["photographs, native"]["plan"][0].startswith("engine native")
    assert record["limits"] == {"share_min": 0.97, "workers_max": 1.25, "noise": 0.03}
    assert record["environment"]["torch"] == torch.__version__
    assert "of the rate with 1 workers" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_is_cut_off_keeps_its_workloads(tmp_path, monkeypatch):
    def cut_off(workload, *_, **__):
        if not workload.is_native:
            raise KeyboardInterrupt
        return evaluate({"1": Spread.of([1.0]), "auto": Spread.of([1.0])}, [1])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tune, "measure", cut_off)
    assert run_benchmark(["tune", "--quick", "--json", "tune.json"]) == 130
    record = json.loads((tmp_path / "tune.json").read_text())
    assert list(record["workloads"]) == ["photographs, native"]
    assert record["complete"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--counts", "1,x"], "--counts: must be numbers >= 1, such as 1,2,4, got '1,x'"),
        (["--workload", "gardening"], "--workload must be one of 'photographs, native'"),
        (["--model", "resnet5"], "--model must be one of torchvision's classifiers"),
        (["--data", "/no/such/folder"], "--data must be a folder"),
    ],
)
def test_wrong_arguments_are_refused(capsys, arguments, message):
    try:
        code = run_benchmark(["tune", *arguments])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert message in capsys.readouterr().err
