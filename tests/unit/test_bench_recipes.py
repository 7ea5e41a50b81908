"""Test ``python -m benchmarks recipes`` and ``onecore``: comparison, places and counts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import optional
import pytest
import torch
from torch.utils.data import DataLoader

from benchmarks import recipes
from benchmarks.__main__ import main as run_benchmark
from benchmarks._recipe_steps import Masks, RepeatedSampler, Segmentation, Views
from benchmarks._recipes import RECIPES, Source, TrainingRecipe
from fastload import FastLoader
from fastload.bench.photos import PhotoSet, write_photos

optional.needed("skimage", "rich")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos", PhotoSet(count=6, classes=2, edge_px=80)).path


@pytest.fixture
def source(folder: Path, tmp_path: Path) -> Source:
    return Source(folder, images=4, scratch=tmp_path / "shards", batch_size=2)


def named(name: str) -> TrainingRecipe:
    return next(recipe for recipe in RECIPES if recipe.name == name)


def run(*given: str) -> int:
    return run_benchmark(["recipes", *given])


def test_there_are_twenty_recipes_with_names_of_their_own() -> None:
    assert len(RECIPES) == len({recipe.name for recipe in RECIPES}) == 20


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_makes_batches(recipe: TrainingRecipe, source: Source) -> None:
    if recipe.needs is not None:
        pytest.importorskip(recipe.needs)
    batches = list(DataLoader(**{"batch_size": 2, **recipe.arguments(source)}))
    assert len(batches) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_every_worker_has_a_shard(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    file = tmp_path / "recipes.json"
    arguments = ["--data", str(folder), "--quick", "--images", "12", "--workers", "6", "--only", "open_clip"]
    assert run(*arguments, "--json", str(file)) == 0
    assert json.loads(file.read_text())["rows"][0]["same"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_record_says_what_ran_where(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "recipes.json"
    arguments = ["--data", str(folder), "--quick", "--workers", "1", "--only", "pytorch/examples,I-JEPA"]
    assert run(*arguments, "--json", str(file), "--note", "a busy machine") == 0
    record = json.loads(file.read_text())
    assert [row["where"] for row in record["rows"]] == [recipes.NATIVE, recipes.AROUND]
    assert [row["why"] for row in record["rows"]] == [[], []]
    assert all(row["same"] and row["speedup"]["median"] > 0 for row in record["rows"])
    assert (record["note"], record["complete"], record["parameters"]["quick"]) == ("a busy machine", False, True)
    assert "1 of 2 recipes run wholly natively" in capsys.readouterr().out


class Different:
    """Gives other values in every process."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        import os

        return float(os.getpid())


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_different_batches_are_not_timed(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "race", lambda *given: pytest.fail("timed"))
    row = recipes.measure(TrainingRecipe("other", "", lambda source: {"dataset": Different()}), source, 1, 1, 0.01)
    assert row["same"] is False
    assert recipes.counts([row]) == {"recipes": 1, "skipped": 0, "same": 0, "native": 0, "faster": 0}


def test_one_recipe_that_fails_does_not_end_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def measure(recipe: TrainingRecipe, *given: object) -> dict[str, object]:
        if recipe.name == "MoCo v3":
            raise ValueError("no such crop")
        return {"recipe": recipe.name, "skipped": "not today"}

    monkeypatch.setattr(recipes, "measure", measure)
    assert run("--data", str(folder), "--quick", "--only", "MoCo,DINO") == 1
    printed = capsys.readouterr().out
    assert "ValueError: no such crop" in printed
    assert printed.count("not today") == 2


def test_a_missing_package_is_named(source: Source) -> None:
    row = recipes.measure(TrainingRecipe("x", "", lambda source: {}, needs="no_such_package"), source, 1, 1, 0.01)
    assert row["skipped"] == "no_such_package is not installed"


@pytest.mark.parametrize("wrong", [["--only", "unknown"], ["--data", "/no/such/folder"]])
def test_wrong_arguments_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*wrong) == 2
    assert f"python -m benchmarks recipes: error: {wrong[0]} must" in capsys.readouterr().err


def test_a_class_without_images_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "a.jpg").symlink_to(next(folder.glob("*/*.jpg")))
    assert run("--data", str(tmp_path)) == 2
    assert f"but {tmp_path / 'two'} holds none of .jpg, .jpeg, " in capsys.readouterr().err


@pytest.mark.parametrize("only", ["unknown", "DINO,unknown"])
def test_an_unknown_name_is_refused_with_those_there_are(only: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--only", only) == 2
    said = capsys.readouterr().err
    assert "got 'unknown'" in said
    assert all(repr(recipe.name) in said for recipe in RECIPES)


def test_the_plan_says_that_images_are_lazy_unless_engine_is_torch(source: Source) -> None:
    given = {"batch_size": 2, "num_workers": 1, **named("DINOv2").arguments(source)}
    assert recipes.where(FastLoader(**given).plan) == recipes.LAZY
    assert recipes.where(FastLoader(**given, engine="torch").plan) == "workers, as in torch"
    assert recipes.where(FastLoader(**{**given, "num_workers": 0}).plan) == "workers, as in torch"
    native = {"batch_size": 2, "num_workers": 1, **named("pytorch/examples").arguments(source)}
    assert recipes.where(FastLoader(**native).plan) == recipes.NATIVE


def test_repeated_augmentation_gives_each_index_several_times() -> None:
    drawn = list(RepeatedSampler(12, 3))
    assert len(drawn) == 12
    assert all(drawn[at] == drawn[at + 1] == drawn[at + 2] for at in range(0, 12, 3))
    assert len(set(drawn)) == 4


def test_masks_are_blocks_of_patches() -> None:
    torch.manual_seed(0)
    batch, masks = Masks()([torch.zeros(3)] * 2)
    assert batch.shape == (2, 3)
    assert all(16 <= len(mask) <= 36 and int(mask.max()) < 14 * 14 for mask in masks)


def test_a_view_is_repeated_as_often_as_said() -> None:
    assert Views((lambda x: x + 1, 2), (lambda x: x * 10, 1))(3) == [4, 4, 30]


def test_image_and_mask_are_cropped_together(source: Source) -> None:
    image, mask = Segmentation([source.samples[0][0]], (0.5,) * 3, (0.5,) * 3, crop=48)[0]
    assert image.shape == (3, 48, 48)
    assert mask.shape == (48, 48)


def test_samples_of_an_epoch_repeat_where_the_folder_is_small(folder: Path, tmp_path: Path) -> None:
    source = Source(folder, images=14, scratch=tmp_path, batch_size=2)
    assert len(source.samples) == 14
    assert set(source.indices) == set(range(6))


@pytest.mark.slow
def test_pipelines_run_where_their_names_say(folder, tmp_path, monkeypatch):
    seen = set()
    measure_all = recipes.measure_all

    def watched(*arguments):
        seen.add(len(os.sched_getaffinity(0)))
        return measure_all(*arguments)

    monkeypatch.setattr(recipes, "measure_all", watched)
    before = os.sched_getaffinity(0)
    file = tmp_path / "onecore.json"
    chosen = "TrivialAugmentWide,exact=False,own class,step of"
    assert run_benchmark(["onecore", "--quick", "--data", str(folder), "--only", chosen, "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert [(row["recipe"], row["where"]) for row in record["rows"]] == [
        ("TrivialAugmentWide", recipes.NATIVE),
        ("SimCLR, exact=False", recipes.NATIVE),
        ("one's own class", recipes.LAZY),
        ("one step of Python", recipes.LAZY),
    ]
    assert record["parameters"]["workers"] == 1
    assert seen == {1}
    assert os.sched_getaffinity(0) == before


def test_cores_are_given_back_after_wrong_arguments(capsys):
    before = os.sched_getaffinity(0)
    assert run_benchmark(["onecore", "--only", "unknown"]) == 2
    assert "--only must be part of" in capsys.readouterr().err
    assert os.sched_getaffinity(0) == before
