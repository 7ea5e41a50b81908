"""Whatever a user's code does with a tensor made from an image in a worker, it sees what it sees with torch's loader."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from deferred import probes  # noqa: F401  # fills the table
from deferred.files import write_files
from deferred.outcomes import Cases, differences, outcomes
from deferred.probing import KINDS, PROBES, WAYS, Trial, Trials
from references import kept
from torch.utils.data import DataLoader

from fastload import FastLoader

ours = functools.partial(FastLoader, device="cpu")
QUICK = [name for name, probe in PROBES.items() if not probe.alone and not probe.slow]
SLOW = [name for name, probe in PROBES.items() if probe.slow]
ALONE = [name for name, probe in PROBES.items() if probe.alone]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


def compare(trials: list[Trial], folder: Path, **options) -> None:
    """Run trials in the workers of both loaders, and name those that see something else."""
    numbers = range(len(trials))
    cases = Cases(Trials(trials, folder), len(trials), folder, folder / "journal")
    theirs = kept(lambda: outcomes(DataLoader, cases, numbers, **options))
    differing = differences(outcomes(ours, cases, numbers, **options), theirs, lambda at: str(trials[at]))
    assert differing == "", differing


@pytest.mark.parametrize("kind", KINDS)
def test_probes_see_what_torch_shows(folder, kind):
    compare([Trial(name, "here", kind) for name in QUICK], folder, num_workers=2, batch_size=4)
