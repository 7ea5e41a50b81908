"""Loaders with an ``__iter__`` of their own, as detection and classification libraries have them.

Some ask for one endless iterator and keep it, some call torch's ``_get_iterator`` themselves, some reset what they keep.
Each is made over torch's DataLoader and over FastLoader.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import random
import weakref

import numpy as np
import pytest
import torch
from backends import BACKENDS, forkserver_too, raised_by
from backends.datasets import Augmented, Failing, Numbers, Stream, collect, first
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from fastload import FastLoader, verify
from fastload.loader_state import state_of


class Forever:
    """Goes through a sampler again and again."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        return itertools.chain.from_iterable(itertools.repeat(self.sampler))


def endless(base):
    """As Ultralytics': one endless iterator, made in ``__init__``, whose workers ``__del__`` terminates."""

    class Endless(base):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))
            self.kept = super().__iter__()

        def __len__(self):
            return len(self.batch_sampler.sampler)

        def __iter__(self):
            for _ in range(len(self)):
                yield next(self.kept)

        def __del__(self):
            for worker in getattr(self.kept, "_workers", ()):
                if worker.is_alive():
                    worker.terminate()
            getattr(self.kept, "_shutdown_workers", int)()

        def reset(self):
            self.kept = self._get_iterator()

    return Endless


def multi_epochs(base):
    """As timm's: sets the sampler between two looks at whether it may; single samples, too."""

    class MultiEpochs(base):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._DataLoader__initialized = False
            name = "sampler" if self.batch_sampler is None else "batch_sampler"
            setattr(self, name, Forever(getattr(self, name)))
            self._DataLoader__initialized = True
            self.source = super().__iter__()

        def __len__(self):
            return len(self._index_sampler.sampler)

        def __iter__(self):
            return (next(self.source) for _ in range(len(self)))

        def reset(self):
            self.source = super().__iter__()

    return MultiEpochs


def reusing(base):
    """As YOLOv5's, but makes its endless iterator at the first epoch, by torch's own method."""

    class Reusing(base):
        source = None

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))

        def __len__(self):
            return len(self.batch_sampler.sampler)

        def __iter__(self):
            if self.source is None:
                self.reset()
            yield from itertools.islice(self.source, len(self))

        def reset(self):
            self.source = self._get_iterator()

    return Reusing


def resetting(base):
    """What torch's ``__iter__`` does, written again, with workers that persist or not."""

    class Resetting(base):
        held = None

        def __iter__(self):
            if self.held is None:
                self.reset()
            else:
                self.held._reset(self)
            return self.held

        def reset(self):
            self.held = self._get_iterator()

    return Resetting


def restarting(base):
    """Is its own iterator, and asks for another one whenever that ends."""

    class Restarting(base):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.reset()

        def reset(self):
            self.batches = DataLoader._get_iterator(self) if base is DataLoader else self._get_iterator()

        def __iter__(self):
            return self

        def __next__(self):
            try:
                return next(self.batches)
            except StopIteration:
                self.reset()
                raise

    return Restarting


LOADERS = {make.__name__: make for make in (endless, multi_epochs, reusing, resetting, restarting)}
each_loader = pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
KEPT = ("kept", "source", "held", "batches")


def kept_by(loader):
    return next(value for name in KEPT if (value := vars(loader).get(name)) is not None)


def bound(make, loader_class):
    """Make the loader over a case's class, with the backend's arguments."""
    base, own = getattr(loader_class, "func", loader_class), getattr(loader_class, "keywords", {})
    return lambda *args, **kwargs: make(base)(*args, **own, **kwargs)


def alive():
    gc.collect()
    return len(multiprocessing.active_children())


def states():
    return torch.get_rng_state(), random.getstate(), np.random.get_state()[1]


@forkserver_too
@each_loader
@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_batches_draws_and_processes_are_torchs(backend, make, num_workers, persistent):
    if make is resetting and num_workers and not persistent:
        pytest.skip("torch's own iterator cannot be reset once its workers have ended")

    def case(loader_class):
        before = alive()
        generator = torch.Generator().manual_seed(4)
        own = {"shuffle": True, "generator": generator, "num_workers": num_workers, "persistent_workers": persistent}
        loader = bound(make, loader_class)(Augmented(10), batch_size=4, drop_last=False, **own)
        seen = []
        for epoch in range(4):
            if epoch == 2:
                loader.reset()
            seen.append((collect(loader), states(), generator.get_state(), alive() - before))
        iterator = kept_by(loader)
        host = getattr(iterator, "_num_workers", None), getattr(iterator, "_num_yielded", None)
        same = iterator._index_sampler is loader._index_sampler, hasattr(iterator._sampler_iter, "__next__")
        workers = [worker.is_alive() for worker in getattr(iterator, "_workers", ())]
        del iterator, loader
        return seen, host, same, workers, alive() - before

    epochs, host, *_, left = backend.same(case).value
    assert [len(batches) for batches, *_ in epochs] == [3] * 4
    assert host[0] == num_workers
    assert left == 0


@each_loader
@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_are_torchs_and_the_next_epoch_goes_on_as_there(backend, make, num_workers):
    def case(loader_class):
        dataset = Failing(8, {5}, lambda: LookupError("no such file"))
        options = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
        loader = bound(make, loader_class)(dataset, batch_size=2, **options)
        error = raised_by(lambda: collect(loader))
        return type(error), first(loader, 2), first(loader, 1)

    assert backend.same(case).value[0] is LookupError


@each_loader
def test_batches_are_copied_counted_and_planned(make, monkeypatch):
    """On a simulated device: what the plan says is what happens, and workers write into slots."""
    backend = BACKENDS["simulated"]
    backend.install(monkeypatch)
    loader = make(FastLoader)(Numbers(32), batch_size=4, num_workers=2, persistent_workers=True, **backend.own)
    for _ in range(3):
        assert len(collect(loader)) == 8
    stats = loader.stats()
    assert stats.batches == 24 <= stats.copied
    assert stats.slot_batches > 0
    assert loader.plan.engine == "workers"
    assert [step.name for step in loader.plan.steps] == ["fetch", "collate", "slots", "h2d", "epilogue"]
    assert not any("of its own" in note for note in loader.plan.notes)
    assert "24 batches" in str(loader.report())
    iterator = kept_by(loader)
    workers = [*iterator._workers]
    loader.close()
    assert not any(worker.is_alive() for worker in workers)
    assert "closed" in str(raised_by(lambda: next(iterator)))
    assert "closed" in str(raised_by(lambda: iterator._reset(loader)))
    assert "closed" in str(raised_by(loader.reset))


@each_loader
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_reset_frees_the_iterator_before_at_once(backend, make, num_workers):
    loader = bound(make, backend.loader)(Numbers(8), batch_size=2, num_workers=num_workers)
    first(loader, 1)
    gc.disable()
    try:
        for _ in range(3):
            before = kept_by(loader)
            gone, workers = weakref.ref(before), [*getattr(before, "_workers", ())]
            del before
            loader.reset()
            assert gone() is None
            assert not any(worker.is_alive() for worker in workers)
    finally:
        gc.enable()
