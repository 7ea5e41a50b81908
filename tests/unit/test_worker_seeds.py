"""Functions for ``worker_init_fn`` that only seed are told from others."""

from __future__ import annotations

import functools
import os
import random

import numpy as np
import pytest
import torch
import torchvision  # noqa: F401 - replaces torch.manual_seed by a wrapper
from torch.utils.data import get_worker_info

from fastload.pipeline.code.worker_seeds import only_seeds, seeded_by

SEED = 5
STATE = [0]


def documented(worker_id):
    """As torch's notes on reproducibility write it."""
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


def by_state(worker_id):
    np.random.seed(np.random.get_state()[1][0] + worker_id)


def by_sequence(worker_id):
    info = torch.utils.data.get_worker_info()
    sequence = np.random.SeedSequence([info.seed, worker_id])
    np.random.seed(sequence.generate_state(4))
    torch.set_num_threads(1)


def nested(worker_id):
    import random as other

    other.seed(SEED)
    documented(worker_id)


def make(seed):
    return lambda worker: torch.manual_seed(seed + worker)


class Seeding:
    def __call__(self, worker_id):
        random.seed(worker_id)


def of_dataset(worker_id):
    get_worker_info().dataset.rng = np.random.default_rng(worker_id)


def looks_at_dataset(worker_id):
    random.seed(len(get_worker_info().dataset))


def of_a_list(worker_id):
    STATE[0] = worker_id
    random.seed(worker_id)


def of_a_global(worker_id):
    global SEED
    SEED = worker_id


def of_the_system(worker_id):
    os.chdir("/")


def of_torch(worker_id):
    torch.set_default_dtype(torch.float64)


def imports(worker_id):
    import os

    os.umask(0)


def nests_another(worker_id):
    of_torch(worker_id)


def calls_itself(worker_id):
    calls_itself(worker_id)


def has_a_set(worker_id, chosen={3}):  # noqa: B006
    random.seed(worker_id)


@pytest.mark.parametrize(
    "function",
    [
        *(documented, by_state, by_sequence, nested, make(4)),
        functools.partial(documented),
        lambda worker: random.seed(worker + SEED),
    ],
)
def test_functions_that_only_seed(function):
    assert only_seeds(function)


@pytest.mark.parametrize(
    "function",
    [
        *(of_dataset, looks_at_dataset, of_a_list, of_a_global, of_the_system, of_torch, imports, nests_another),
        *(calls_itself, has_a_set, Seeding(), Seeding().__call__, print, torch.manual_seed, make([4])),
        functools.partial(documented, {}),
        functools.wraps(documented)(lambda worker: random.seed(worker)),
    ],
)
def test_functions_that_may_do_more(function):
    assert not only_seeds(function)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
        ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
        ("transformers.trainer_utils", "seed_worker"),
        ("timm.data.loader", "_worker_init"),
    ],
)
def test_functions_of_libraries_unless_they_are_replaced(module, name, monkeypatch):
    library = pytest.importorskip(module)
    function = getattr(library, name)
    assert only_seeds(functools.partial(function, 1))
    assert not only_seeds(functools.partial(function, worker_seeding=lambda info: 3))
    monkeypatch.setattr(library, name, documented)
    assert not only_seeds(function)


def of_an_attribute(worker_id):
    random.seed(nested.seed + worker_id)


def test_attributes_of_functions(monkeypatch):
    monkeypatch.setattr(nested, "seed", 3, raising=False)
    assert not only_seeds(of_an_attribute)


def test_an_empty_cell():
    def function(worker_id):
        random.seed(later)

    assert not only_seeds(function)
    later = 3
    assert only_seeds(function)
    assert later


@pytest.mark.parametrize(
    ("holder", "name"),
    [
        *((random, "seed"), (np.random, "seed"), (np.random, "get_state"), (torch, "manual_seed")),
        *((torch, "initial_seed"), (torch.utils.data, "get_worker_info"), (torch, "seed"), (random, "random")),
        (np.random, "random"),
    ],
)
def test_functions_that_seed_must_be_the_librarys(monkeypatch, holder, name):
    original = getattr(holder, name)
    monkeypatch.setattr(holder, name, lambda *args: STATE.append(original(*args)))
    assert not only_seeds(documented)
    assert not only_seeds(lambda worker: random.seed(worker))


@pytest.mark.parametrize("change", ["global", "default", "closure", "nested", "code", "patched", "argument", "rank"])
def test_what_seeds_depend_on(change, monkeypatch):
    function, other = functools.partial(nested), None
    if change == "default":
        function = other = lambda worker, seed=3: random.seed(worker + seed)
    elif change == "closure":
        function, other = make(4), make(4.0)
    elif change == "argument":
        function, other = functools.partial(documented, 1), functools.partial(documented, True)
    elif change == "rank":
        function = pytest.importorskip("lightning.fabric.utilities.seed").pl_worker_init_function
    before = seeded_by(function)
    assert before == seeded_by(function) is not None
    if change == "global":
        monkeypatch.setattr(f"{__name__}.SEED", 6)
    elif change == "default":
        monkeypatch.setattr(function, "__defaults__", (4,))
    elif change == "nested":
        monkeypatch.setitem(globals(), "documented", by_sequence)
    elif change == "code":
        monkeypatch.setattr(nested, "__code__", by_state.__code__)
    elif change == "patched":
        monkeypatch.setattr(np.random, "seed", random.seed)
    elif change == "rank":
        monkeypatch.setattr(function.__globals__["rank_zero_only"], "rank", 3)
    assert seeded_by(other or function) != before
