"""Code that touches tensors made from images in workers sees what torch's loader shows."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from deferred import probes  # noqa: F401  # fills the table
from deferred.files import write_files
from deferred.outcomes import Cases, differences, kept_or_new, outcomes
from deferred.probing import KINDS, PROBES, WAYS, Trial, Trials
from effort import some
from torch.utils.data import DataLoader

from fastload import FastLoader

ours = functools.partial(FastLoader, device="cpu")
SLOW = [name for name, probe in PROBES.items() if probe.slow]
ALONE = [name for name, probe in PROBES.items() if probe.alone]
FORKING = [name for name, probe in PROBES.items() if probe.forks and not (probe.alone or probe.slow)]
QUICK = [name for name in PROBES if name not in {*SLOW, *ALONE, *FORKING}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("files"))


KNOWN = frozenset(
    [
        *("compiled_eagerly", "compiled_by_aot", "compiled_with_it_as_a_constant", "profiler"),
        *("resize_larger", "resize_storage", "resize_storage_larger", "freed_storage", "use_count_of_storage"),
        *("base_of_base", "view_of_a_view_after_a_change"),
    ]
)
"""Probes that tell in some contexts: torch.compile, the profiler, storages that are resized or counted, views of views.
"""


def compare(trials: list[Trial], folder: Path, **options: Any) -> None:
    """Run trials in the workers of both loaders, and name those that see something else."""
    cases = Cases(Trials(trials, folder), len(trials), folder, folder / "journal")
    theirs = kept_or_new(lambda: outcomes(DataLoader, cases, **options))
    differing = differences(outcomes(ours, cases, **options), theirs, lambda at: str(trials[at]))
    assert differing == "", differing


@pytest.mark.slow
def test_probes_see_what_torch_shows(folder):
    compare([Trial(name) for name in QUICK], folder)


@pytest.mark.slow
def test_probes_of_other_tensors_in_other_contexts(folder):
    """Each probe with one kind, in one context: the slow tests have all of them."""
    ways = [way for way in WAYS if way != "in a forked child"]
    trials = [Trial(name, ways[at % len(ways)], list(KINDS)[at % 3]) for at, name in enumerate(QUICK)]
    compare(some(trials[::3]), folder)


@pytest.mark.slow
def test_probes_that_fork(folder):
    compare([Trial(name) for name in FORKING], folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_probes_that_need_a_worker_each(folder):
    compare([Trial(name) for name in ALONE], folder, num_workers=len(ALONE), batch_size=1)


@pytest.mark.thorough
@pytest.mark.parametrize("way", [way for way in WAYS if way != "here"])
def test_all_probes_in_each_context(folder, way):
    names = [name for name in [*QUICK, *SLOW, *FORKING] if name not in KNOWN]
    compare([Trial(name, way, list(KINDS)[at % 3]) for at, name in enumerate(names)], folder)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.thorough] * (at > 0)) for at, kind in enumerate(KINDS)]
)
def test_all_probes_of_each_kind(folder, kind):
    compare([Trial(name, "here", kind) for name in [*QUICK, *SLOW] if name not in KNOWN], folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_probes_that_need_a_worker_each_in_a_thread(folder):
    trials = [Trial(name, "in a thread", list(KINDS)[at % 3]) for at, name in enumerate(ALONE)]
    compare(trials, folder, num_workers=len(trials), batch_size=1)


@pytest.mark.thorough
@pytest.mark.parametrize("start_method", [pytest.param("spawn", marks=pytest.mark.thorough), "forkserver"])
def test_probes_in_workers_that_are_not_forked(folder, start_method):
    names = [name for name in QUICK if name not in KNOWN]
    compare([Trial(name) for name in names], folder, multiprocessing_context=start_method)


@pytest.mark.thorough
def test_probes_in_a_persistent_worker_one_sample_a_batch(folder):
    names = [name for name in QUICK if name not in KNOWN]
    compare([Trial(name) for name in names], folder, batch_size=1, num_workers=1, persistent_workers=True)
