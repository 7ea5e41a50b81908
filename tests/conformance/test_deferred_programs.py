"""Programs of a user's own, which make tensors of images in workers, give what they give with torch's loader."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from deferred.files import write_files
from deferred.outcomes import Cases, differences, outcomes
from deferred.programs import Program, Runs
from deferred.random_programs import program
from references import kept
from torch.utils.data import DataLoader

from fastload import FastLoader

ours = functools.partial(FastLoader, device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


def compare(programs: list[Program], folder: Path, *, catches: bool = True, **options: Any) -> None:
    """Run programs in the workers of both loaders, and name those whose outcomes differ."""
    cases = Cases(Runs(programs, folder), len(programs), folder, folder / "journal", catches)
    theirs = kept(lambda: outcomes(DataLoader, cases, **options))
    differing = differences(outcomes(ours, cases, **options), theirs, lambda at: str(programs[at]))
    assert differing == "", differing


def test_random_programs(folder):
    compare([program(seed) for seed in range(500)], folder)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many_random_programs(folder, part):
    compare([program(seed) for seed in range(1000 + 250 * part, 1250 + 250 * part)], folder)
