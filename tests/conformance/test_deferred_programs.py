"""Users' programs that make tensors of images in workers give torch's batches."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from deferred.canvas_programs import canvas_program, canvas_programs
from deferred.collates import (
    COLLATES,
    TRANSFORMS,
    Caches,
    ChangesTheImage,
    Decoded,
    KeepsLast,
    LeavesModesOn,
    Photos,
    ReusesOneTensor,
    States,
    Stream,
    WholeBatches,
    collate_in_turn,
)
from deferred.files import DAMAGED, write_files
from deferred.mask_programs import mask_program
from deferred.odd_programs import odd_programs
from deferred.outcomes import Cases, differences, epochs, kept_or_new, outcomes
from deferred.programs import Program, Runs
from deferred.random_programs import program
from deferred.read_programs import read_program, read_programs
from deferred.view_programs import view_programs
from references import kept
from torch.utils.data import DataLoader, default_collate

from fastload import FastLoader
from fastload.deferred import decoding, functions, memory
from fastload.deferred.calls import canvas

ours = functools.partial(FastLoader, device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(autouse=True)
def _small_levels_are_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "LEVELS_MIN_BYTES", 1)  # those of files other than JPEG, too
    monkeypatch.setattr(functions, "MASK_MIN_BYTES", 1)
    monkeypatch.setattr(canvas, "MIN_BYTES", 1)
    monkeypatch.setattr(canvas, "TRIED_MIN", 1 << 30)


def compare(programs: list[Program], folder: Path, *, catches: bool = True, seeds: bool = True, **options: Any) -> None:
    """Run programs in the workers of both loaders, and name those whose outcomes differ."""
    cases = Cases(Runs(programs, folder), len(programs), folder, folder / "journal", catches, seeds)
    theirs = kept_or_new(lambda: outcomes(DataLoader, cases, **options))
    differing = differences(outcomes(ours, cases, **options), theirs, lambda at: str(programs[at]))
    assert differing == "", differing


@pytest.mark.slow
def test_programs_written_by_hand(folder):
    compare(odd_programs(), folder)


def test_programs_with_views_and_inexact_values(folder):
    compare(view_programs(), folder, num_workers=1)


@pytest.mark.slow
def test_programs_that_fill_constant_tensors(folder):
    compare([*canvas_programs(), *map(canvas_program, range(300))], folder)


@pytest.fixture
def _defers_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "TRIED_MIN", 1 << 30)


@pytest.mark.usefixtures("_defers_always")
def test_programs_of_masks(folder):
    compare([mask_program(seed) for seed in range(120)], folder)


@pytest.mark.slow
@pytest.mark.usefixtures("_defers_always")
def test_more_programs_of_masks(folder):
    compare([mask_program(seed) for seed in range(120, 1000)], folder)


@pytest.mark.slow
def test_random_programs(folder):
    compare([program(seed) for seed in range(500)], folder)


class DecodesAtOnce(functions.Deferral):
    def __init__(self) -> None:
        super().__init__()
        self._trials[decoding].is_lost = True


@pytest.mark.slow
@pytest.mark.parametrize("deferral", [functions.Deferral, DecodesAtOnce])
def test_programs_that_read_tensors(folder, monkeypatch, deferral):
    monkeypatch.setattr(functions, "Deferral", deferral)
    compare([*read_programs(), *map(read_program, range(250))], folder)


def test_programs_whose_errors_reach_the_loader(folder):
    some = [dataclasses.replace(program(seed), file=DAMAGED[seed % len(DAMAGED)]) for seed in range(600, 642)]
    compare(some, folder, catches=False, batch_size=1)


def test_generators_go_on_from_program_to_program(folder):
    compare([program(seed) for seed in range(700, 780)], folder, seeds=False, batch_size=5)


def compare_epochs(dataset: Any, **options: Any) -> None:
    """Compare batches, errors and states of two epochs."""
    options = {"num_workers": 2, "batch_size": 4, **options}
    theirs = kept(lambda: epochs(DataLoader(dataset, **options)))
    differing = differences(epochs(ours(dataset, **options)), theirs, lambda at: f"batch {at}")
    assert differing == "", differing


@pytest.mark.slow
@pytest.mark.parametrize("transforms", [1, pytest.param(len(TRANSFORMS), marks=pytest.mark.slow)])
def test_collate_functions(folder, transforms):
    """The first batches, which workers may compare, have the functions of the last."""
    count = 6 + len(COLLATES) * transforms
    compare_epochs(Photos(folder, 4 * count), collate_fn=collate_in_turn)


def are_deferred(samples: list[Any]) -> tuple[bool, bool]:
    batch = default_collate(samples)
    with torch._C.DisableTorchFunction():
        return memory.is_deferred(batch["image"]), memory.is_deferred(batch["view"])


@pytest.mark.parametrize("kind", [Photos, Decoded])
def test_a_batch_of_torchs_collation_in_a_users_function_is_deferred(folder, kind):
    with ours(kind(folder, 24), batch_size=4, num_workers=1, collate_fn=are_deferred) as loader:
        assert list(loader)[-3] == (True, True)


KINDS = [Decoded, KeepsLast, LeavesModesOn, Caches, ReusesOneTensor, WholeBatches, ChangesTheImage, States, Stream]


@pytest.mark.parametrize(
    ("kind", "persistent"),
    [
        pytest.param(kind, persistent, marks=[pytest.mark.slow] if (at + persistent) % 2 else [])
        for at, kind in enumerate(KINDS)
        for persistent in (False, True)
    ],
)
def test_datasets_that_keep_share_or_change(folder, kind, persistent):
    compare_epochs(kind(folder, 38), persistent_workers=persistent)


@pytest.mark.slow
@pytest.mark.parametrize("part", [*range(2), *(pytest.param(part, marks=pytest.mark.thorough) for part in range(2, 8))])
def test_many_random_programs(folder, part):
    compare([program(seed) for seed in range(1000 + 250 * part, 1250 + 250 * part)], folder)
