"""Test ``python -m benchmarks own``: its three parts at tiny size."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import optional
import pytest
from PIL import Image

from benchmarks import own
from benchmarks.__main__ import main as run_benchmark
from benchmarks._recipe_steps import OwnImages, ThroughArray
from fastload.bench import _compare
from fastload.bench.photos import PhotoSet, write_photos

optional.needed("skimage", "rich")

CLASSIC = "own dataset, classic"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos", PhotoSet(count=6, classes=2, edge_px=80)).path


@pytest.fixture
def run(folder: Path, tmp_path: Path):
    """Runs the command; returns its code and record."""

    def command(*given: str, only: str = "classic") -> tuple[int, dict[str, Any]]:
        file = tmp_path / "own.json"
        arguments = ["own", "--quick", "--data", str(folder), "--only", only, "--json", str(file), *given]
        return run_benchmark(arguments), json.loads(file.read_text())

    return command


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_every_part_is_measured(run) -> None:
    code, record = run("--repeats", "2")
    assert (code, record["complete"]) == (0, True)
    alone = record["python"]["processes"]["2"][CLASSIC]
    assert alone["images_per_s"]["min"] > 0
    assert (alone["deferred_per_image"]["min"], alone["looks"]["max"]) == (1.0, 0.0)
    (row,) = record["loader"]["rows"]
    assert row["same"]
    assert set(row["images_per_s"]) == {"torch", "deferred=False", "deferred=True"}
    assert row["deferred_per_image"] == 1.0
    trained = record["step"]["recipes"][CLASSIC]
    ms, shares = (
        {name: spread["values"] for name, spread in trained[key].items()} for key in ("ms_per_step", "share_of_ceiling")
    )
    assert set(ms) - set(shares) == {"resident"}
    for name, share in shares.items():
        assert share == pytest.approx([a / b for a, b in zip(ms["resident"], ms[name], strict=True)])


def test_rates_of_all_processes_are_added_up(run, monkeypatch) -> None:
    monkeypatch.setattr(own.Alone, "turn", lambda self, name, seconds: (10.0, 0.5, 2))
    _, record = run("--parts", "python", "--threads", "3", "--repeats", "2")
    found = {count: by[CLASSIC] for count, by in record["python"]["processes"].items()}
    assert {count: of["images_per_s"]["values"] for count, of in found.items()} == {"2": [20.0] * 2, "3": [30.0] * 2}
    assert (found["3"]["deferred_per_image"]["median"], found["3"]["looks"]["median"]) == (0.5, 6.0)


def test_a_process_that_dies_ends_its_part_alone(run, monkeypatch) -> None:
    forks: list[None] = []
    forking = own.forking_workers

    def turn(self, name, seconds):
        if len(forks) == 2:  # the last process, of whose pipe only this one may have held the other end
            os._exit(1)
        return 1.0, 1.0, 0

    monkeypatch.setattr(own, "forking_workers", lambda: forks.append(None) or forking())
    monkeypatch.setattr(own.Alone, "turn", turn)
    monkeypatch.setattr(own, "measure", lambda *given: {"skipped": "not today"})
    code, record = run("--parts", "python,loader")
    assert (code, record["complete"]) == (1, True)
    assert "ended early" in record["python"]["failed"]
    assert record["loader"]["rows"][0]["skipped"] == "not today"


def test_python_is_skipped_where_nothing_can_be_deferred(run, monkeypatch, capsys) -> None:
    monkeypatch.setattr(own, "install_lazy_images", lambda deferred: None)
    code, record = run("--parts", "python")
    assert (code, record["complete"]) == (0, True)
    assert "no guard pages" in record["python"]["skipped"]
    assert "python: not measured, tensors cannot be deferred here" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_each_loaders_epochs_take_a_turn_and_a_streams_are_its_own(run, monkeypatch) -> None:
    lengths: dict[str, list[int]] = {}
    speeds = {"torch": 1.0, "deferred=False": 3.0, "deferred=True": 10.0}

    def race(loaders, images, repeats, receive):
        for name, loader in loaders.items():
            lengths.setdefault(name, []).append(sum(1 for _ in loader))
        if len(loaders) == 1:
            return {name: own.Spread.of([speeds[name]]) for name in loaders}
        return {name: own.Spread.of([float(images[name])] * 5) for name in loaders}

    monkeypatch.setattr(own, "race", race)
    monkeypatch.setattr(_compare, "race", race)  # as `lengthen` calls it
    monkeypatch.setattr(own, "verify", lambda make, batches: True)
    options = ("--parts", "loader", "--threads", "1", "--turn-seconds", "2")
    code, record = run(*options)
    assert code == 0
    assert lengths == {"torch": [1, 2], "deferred=False": [1, 6], "deferred=True": [1, 20]}
    (row,) = record["loader"]["rows"]
    assert row["images"] == {"torch": 8, "deferred=False": 24, "deferred=True": 80}
    assert (row["speedup"]["median"], row["over_undeferred"]["median"]) == pytest.approx((10, 80 / 24))
    pytest.importorskip("webdataset")
    _, record = run(*options, only="open_clip")
    assert set(record["loader"]["rows"][0]["images"].values()) == {16}


def test_different_batches_are_not_timed_and_fail_the_run(run, monkeypatch, capsys) -> None:
    monkeypatch.setattr(own, "race", lambda *given: pytest.fail("timed"))

    class Different:
        def __bool__(self) -> bool:
            return False

        def __str__(self) -> str:
            return "batch 3 differs"

    monkeypatch.setattr(own, "verify", lambda make, batches: Different() if make.keywords["deferred"] else True)
    code, record = run("--parts", "loader")
    assert (code, record["loader"]["rows"][0]["same"]) == (1, False)
    assert "with deferred=True batch 3 differs" in capsys.readouterr().out


def test_one_recipe_that_fails_does_not_end_the_others(run, monkeypatch) -> None:
    def measure(args, recipe, source):
        if recipe.name == CLASSIC:
            raise KeyError("pixel_values")
        return {"skipped": "not today"}

    monkeypatch.setattr(own, "measure", measure)
    code, record = run("--parts", "loader", only="own dataset")
    assert code == 1
    assert [row.get("skipped") or row["failed"] for row in record["loader"]["rows"]] == [
        "KeyError: 'pixel_values'",
        *["not today"] * 3,
    ]


def test_nothing_begins_after_the_deadline(run, monkeypatch) -> None:
    monkeypatch.setattr(own, "measure", lambda *given: pytest.fail("measured"))
    code, record = run("--seconds", "1e-9")
    assert (code, record["complete"]) == (0, True)
    assert (record["python"]["processes"], record["loader"]["rows"], record["step"]["recipes"]) == ({}, [], {})


@pytest.mark.parametrize("wrong", [["--only", "unknown"], ["--parts", "haste"], ["--model", "haste"]])
def test_wrong_arguments_are_refused(wrong: list[str], capsys) -> None:
    assert run_benchmark(["own", "--quick", *wrong]) == 2
    assert f"python -m benchmarks own: error: {wrong[0]} must" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_a_black_image(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"no image")
    Image.new("RGB", (5, 4), "red").save(tmp_path / "b.png")
    dataset = OwnImages(
        [(str(tmp_path / name), label) for label, name in enumerate(("a.jpg", "b.png"))], ThroughArray()
    )
    black, red = dataset[0], dataset[1]
    assert (black["pixel_values"].size, black["pixel_values"].getextrema()) == ((224, 224), ((0, 0),) * 3)
    assert (np.asarray(red["pixel_values"]) == (255, 0, 0)).all()
    assert (black["label"], red["label"]) == (0, 1)
