"""Test ``python -m benchmarks programs``: the programs, comparison, record and table."""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Iterator
from multiprocessing import Value
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optional
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from benchmarks import programs, tables
from benchmarks.__main__ import main as run_benchmark
from benchmarks._programs import PROGRAMS
from benchmarks._programs._program import Program
from benchmarks._recipes import Source
from benchmarks.recipes import LAZY, NATIVE
from fastload import FastLoader
from fastload.bench.photos import PhotoSet, write_photos

optional.needed("skimage", "rich")
COUNTER = Value("i", 0)  # keeps the shared memory that I-JEPA's counter takes from
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos", PhotoSet(count=6, classes=2, edge_px=80)).path


@pytest.fixture
def source(folder: Path, tmp_path: Path) -> Source:
    return Source(folder, images=6, scratch=tmp_path / "scratch", batch_size=2, shards=1)


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the command in this process; returns its code and record."""
    monkeypatch.setattr(
        programs, "measured", lambda part, name, *given: programs.run_part(part, PROGRAMS[name], *given)
    )

    def command(*given: str) -> tuple[int, dict[str, Any]]:
        file = tmp_path / "programs.json"
        arguments = ["programs", "--quick", "--threads", "1", "--data", str(folder), "--json", str(file), *given]
        return run_benchmark(arguments), json.loads(file.read_text())

    return command


def made(dataset: Any, **rest: Any) -> Program:
    return Program("made", "what it loads", "a kind", "PIL", lambda source: {"dataset": dataset}, **rest)


def measure(program: Program, source: Source) -> dict[str, Any]:
    args = SimpleNamespace(threads=1, repeats=1, turn_seconds=0.01)
    return programs.known(program, **programs.run_part("load", program, source, args))


@pytest.mark.parametrize("name", [name for name, one in PROGRAMS.items() if not one.needs])
def test_a_program_makes_batches(name: str, source: Source) -> None:
    program = PROGRAMS[name]
    assert program.what
    given = programs.arguments(program, source, 0)
    loader = program.loader()(**{**given, "num_workers": 0, "persistent_workers": False})
    assert list(program.around(loader))


@pytest.mark.slow
def test_the_record_says_what_was_saved_and_what_looked(run) -> None:
    code, record = run("--only", "tut_transfer,own_dict", "--note", "a busy machine")
    assert (code, record["note"], record["complete"]) == (0, "a busy machine", False)
    native, own = record["rows"]
    assert (native["program"], native["engine"], native["where"]) == ("tut_transfer_learning", "native", NATIVE)
    assert (own["program"], own["where"], own["workers"], own["reads"]) == ("own_dict_pil", LAZY, 1, "PIL")
    assert own["deferred_per_image"] == 1.0
    for row in record["rows"]:
        assert (row["same"], row["states_same"], row["difference"]) == (True, True, {})
        assert row["speedup"]["median"] > 0
        assert row["processor_ms_per_image"]["torch"] >= 0
        assert row["why"]
    assert {key: record["counts"][key] for key in ("programs", "compared", "same", "native")} == {
        "programs": 2,
        "compared": 2,
        "same": 2,
        "native": 1,
    }
    text = tables.shown("programs", record)
    assert "2 of 2 programs get torch's batches" in text
    assert "The run ended early: the other programs were not measured. a busy machine" in text
    assert "| own datasets | `own_dict_pil` |" in text


def test_a_program_is_trained_from_each_loader_and_from_the_device(run) -> None:
    code, record = run("--only", "hflip_pil,own_dict", "--parts", "train")
    (row,) = record["train"]
    assert (code, row["program"], row["steps"]) == (0, "tvref_detection_hflip_pil", 2)
    assert set(row["ms_per_step"]) == {"torch", "fastload", "resident"}
    assert all(share["median"] > 0 for share in row["share_of_ceiling"].values())
    assert row["deferred_per_image"] > 0.5
    assert "| `tvref_detection_hflip_pil` |" in tables.shown("trained", record)


def test_training_of_a_program_needs_a_gpu(source: Source) -> None:
    found = programs.train(PROGRAMS["tvref_detection_hflip_pil"], source, 1, 1, 2, quick=False)
    assert torch.cuda.is_available() or found == {"skipped": "torch finds no CUDA device here"}


def test_a_quick_run_takes_one_program_of_each_kind() -> None:
    few = programs.chosen(None, quick=True)
    assert [one.family for one in few] == list(dict.fromkeys(one.family for one in PROGRAMS.values()))
    assert programs.chosen(None, quick=False) == list(PROGRAMS.values())


class OfProcess:
    """Gives other values in every process."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> float:
        return float(os.getpid())


def test_different_batches_are_not_timed(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "race", lambda *given: pytest.fail("timed"))
    row = measure(made(OfProcess()), source)
    assert (row["same"], row["states_same"]) == (False, True)
    assert "batches of epoch 0[0]" in row["difference"]["batches"]
    assert programs.counts([row])["same"] == 0


def test_what_torch_does_not_repeat_is_not_compared(source: Source) -> None:
    row = measure(made(OfProcess(), repeatable=False), source)
    assert (row["same"], row["difference"]) == (None, {})
    assert row["speedup"]["median"] > 0
    found = programs.counts([row])
    assert (found["compared"], found["measured"]) == (0, 1)
    text = tables.shown("programs", {"rows": [row], "counts": found})
    assert "epochs of torch's own loader differ: made." in text


def draws_beside_ours(loader: Any) -> Iterator[Any]:
    yield from loader
    if isinstance(loader, FastLoader):
        random.random()


def test_generators_that_differ_after_an_epoch_are_found(source: Source) -> None:
    row = measure(made(range(6), around=draws_beside_ours), source)
    assert (row["same"], row["states_same"]) == (True, False)
    assert "states of epoch 0[2]" in row["difference"]["states"]


class Doubled(DataLoader[Any]):
    """A program's own class of loader."""

    def __iter__(self) -> Any:
        return (2 * batch for batch in super().__iter__())


def test_a_program_keeps_its_own_class_of_loader(source: Source) -> None:
    program = made(range(6), loader=lambda: Doubled)
    opened = {name: programs.Opened(program, name, programs.arguments(program, source, 0)) for name in programs.LOADERS}
    assert type(opened["torch"].loader) is Doubled
    assert isinstance(opened["fastload"].loader, FastLoader)
    assert isinstance(opened["fastload"].loader, Doubled)
    for one in opened.values():
        assert [batch.tolist() for batch in one.batches] == [[0, 2], [4, 6], [8, 10]]
        one.close()


def test_one_program_that_fails_does_not_end_the_others(run, monkeypatch, capsys) -> None:
    def measure(part: str, name: str, *given: object) -> dict[str, object]:
        if name == "moco_v3":
            raise ValueError("traceback\nno such crop")
        return {"skipped": "not today"}

    monkeypatch.setattr(programs, "measured", measure)
    code, record = run("--only", "moco,dinov2")
    assert code == 1
    assert [row.get("failed") for row in record["rows"]] == ["ValueError: no such crop", None]
    assert "not today" in capsys.readouterr().out
    assert "| ValueError: no such crop |" in tables.shown("programs", record)


def test_a_missing_package_is_named(source: Source) -> None:
    row = measure(made(range(6), needs=("no_such_package", "no_other", "os")), source)
    assert row["skipped"] == "no_such_package and no_other are not installed"


@pytest.mark.slow
def test_no_program_begins_after_the_limit(run, monkeypatch) -> None:
    monkeypatch.setattr(programs, "time", SimpleNamespace(monotonic=iter([0.0, 5.0, 11.0]).__next__))
    code, record = run("--only", "own_dict,own_multi", "--seconds", "10")
    assert (code, [row["program"] for row in record["rows"]]) == (0, ["own_dict_pil"])


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_benchmark(["programs", "--only", "unknown"]) == 2
    assert "got 'unknown'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_program_has_a_process_of_its_own(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "open", Image.open.__get__(Image))  # as Ultralytics does, which ends the native engine
    args = argparse.Namespace(threads=1, repeats=1, turn_seconds=0.01)
    row = programs.measured("load", "png_masks_only", source, args)
    assert (row["same"], row["where"]) == (True, NATIVE)
