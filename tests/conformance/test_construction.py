"""Wrong arguments meet torch's errors, right ones end up where torch puts them."""

from __future__ import annotations

import inspect
import multiprocessing
from typing import Any

import pytest
import torch
from backends.batches import Collator
from backends.datasets import Numbers, SizedStream, Stream, configure
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler


class _NoSamples(torch.utils.data.Sampler):
    """Fails as a sampler that was given nothing to draw from does."""

    def __iter__(self):
        raise ValueError("num_samples should be a positive integer value, but got num_samples=0")


WRONG: dict[str, dict[str, Any]] = {
    "num_workers": {"num_workers": -1},
    "timeout": {"timeout": -1},
    "prefetch_factor without workers": {"prefetch_factor": 2},
    "prefetch_factor": {"num_workers": 1, "prefetch_factor": -1},
    "persistent_workers without workers": {"persistent_workers": True},
    "batch_size": {"batch_size": 0},
    "batch_size of another type": {"batch_size": 2.5},
    "batch_size a bool": {"batch_size": True},
    "drop_last of another type": {"drop_last": "yes"},
    "drop_last without batches": {"batch_size": None, "drop_last": True},
    "sampler and shuffle": {"sampler": [0, 1], "shuffle": True},
    "batch_sampler and batch_size": {"batch_sampler": [[0]], "batch_size": 2},
    "batch_sampler and shuffle": {"batch_sampler": [[0]], "shuffle": True},
    "batch_sampler and sampler": {"batch_sampler": [[0]], "sampler": [0]},
    "batch_sampler and drop_last": {"batch_sampler": [[0]], "drop_last": True},
    "context without workers": {"multiprocessing_context": "fork"},
    "context by a wrong name": {"num_workers": 1, "multiprocessing_context": "knife"},
    "context of another type": {"num_workers": 1, "multiprocessing_context": 5},
    "stream and shuffle": {"dataset": Stream([1]), "shuffle": True},
    "stream and sampler": {"dataset": Stream([1]), "sampler": [0]},
    "stream and batch_sampler": {"dataset": Stream([1]), "batch_sampler": [[0]]},
    "replacement without samples": {"sampler": _NoSamples()},
    "generator of another type": {"shuffle": True, "generator": "none"},
    "an unknown argument": {"batchsize": 2},
    "no dataset": {"dataset": ...},
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments(backend, what):
    def case(loader_class):
        arguments = {"dataset": Numbers(4), **WRONG[what]}
        if arguments["dataset"] is ...:
            del arguments["dataset"]
        list(loader_class(**arguments))

    assert backend.same(case).error is not None


@pytest.mark.parametrize("num_workers", ["two", 2.5, None])
def test_num_workers_of_another_type_has_torchs_type_of_error(backend, num_workers):
    """FastLoader's text is better, and it refuses 2.5 at construction, not at the start."""
    for loader_class in (DataLoader, backend.loader):
        with pytest.raises(TypeError):
            list(loader_class(Numbers(4), num_workers=num_workers))


def test_too_many_positional_arguments(backend):
    """Torch's last ones are keyword-only, and so are FastLoader's own."""
    with pytest.raises(TypeError, match="positional argument"):
        backend.loader(Numbers(2), 1, False, None, None, 0, None, False, False, 0, None, None, None, 2)


def test_positional_arguments(backend):
    def case(loader_class):
        generator = torch.Generator().manual_seed(1)
        arguments = (Numbers(6), 2, True, None, None, 0, Collator(1.0), False, True, 0, configure, None, generator)
        return _arguments_of(loader_class(*arguments)), list(loader_class(*arguments))

    backend.same(case)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_attributes_are_torchs(backend):
    def case(loader_class):
        seen = []
        for arguments in (
            {"batch_size": 3, "shuffle": True, "num_workers": 1},
            {"batch_size": None, "collate_fn": Collator(1.0)},
            {"batch_sampler": BatchSampler(SequentialSampler(range(4)), 2, False), "num_workers": 64},
            {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True, "timeout": 3, "in_order": False},
            {"pin_memory": True, "pin_memory_device": "cuda"},
        ):
            seen.append(_arguments_of(loader_class(Numbers(6), **arguments)))
        seen.append(_arguments_of(loader_class(SizedStream([4], 4), batch_size=2)))
        return seen

    backend.same(case)


def _arguments_of(loader):
    """The arguments as attributes; objects by their types."""
    found = {}
    for name in inspect.signature(DataLoader).parameters:
        if name != "shuffle":
            value = getattr(loader, name)
            found[name] = value if isinstance(value, int | str | float | None) else type(value).__qualname__
    return found, loader._auto_collation, type(loader._index_sampler).__name__, loader._dataset_kind


ASSIGNMENTS = ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_what_may_not_be_assigned_later(backend, name):
    def case(loader_class):
        setattr(loader_class(Numbers(4)), name, None)

    error = backend.same(case).error
    assert error is not None
    assert error[0] is ValueError


def test_context_assigned_later(backend):
    def case(loader_class):
        loader = loader_class(Numbers(4), num_workers=1)
        loader.multiprocessing_context = "fork"
        name = loader.multiprocessing_context.get_start_method()
        loader.multiprocessing_context = multiprocessing.get_context("spawn")
        again = loader.multiprocessing_context.get_start_method()
        loader.num_workers = 0
        loader.multiprocessing_context = "fork"
        return name, again

    assert backend.same(case).error is not None


def test_too_many_workers_get_torchs_warning(backend):
    outcome = backend.same(lambda loader_class: len(loader_class(Numbers(4), num_workers=500)))
    assert "500 worker processes" in outcome.warnings[0][1]
