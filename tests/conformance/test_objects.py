"""The loader as an object: copied, pickled, subclassed, rebuilt and rewired by frameworks, wrapped, closed."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from backends import BACKENDS, assert_same, raised_by, simulated
from backends.batches import Collator
from backends.datasets import Augmented, Numbers, Pids, collect, configure, first
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

import fastload
from fastload import FastLoader
from fastload.loader_state import state_of

OWN = {
    "device": "cpu",
    "memory_format": torch.contiguous_format,
    "dtype": torch.float32,
    "device_prefetch": 2,
    "engine": "torch",
    "max_pinned_bytes": 1000,
    "randomness": "sample",
    "exact": False,
    "max_index_bytes": 2000,
    "jpeg_index": None,  # whatever was given
    "decode": "cpu",
    "deferred": False,
    "device_cache_bytes": 1 << 20,
    "on_error": "skip",
    "max_errors": 3,
}
COPIES = {"pickle": lambda x: pickle.loads(pickle.dumps(x)), "deepcopy": copy.deepcopy, "copy": copy.copy}


@pytest.mark.each_value
@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_copy_loads_the_same(backend, how, num_workers):
    def case(loader_class):
        generator = torch.Generator().manual_seed(8)
        own = {"shuffle": True, "generator": generator, "collate_fn": Collator(2.0), "num_workers": num_workers}
        loader = loader_class(Numbers(6), batch_size=2, **own)
        before = collect(loader)
        twin = COPIES[how](loader)
        return before, collect(twin), collect(loader), collect(twin), generator.get_state()

    backend.same(case)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_has_the_same_arguments_and_a_runtime_of_its_own(how):
    loader = FastLoader(Numbers(6), batch_size=2, **OWN)
    collect(loader)
    twin = COPIES[how](loader)
    assert {name: vars(twin)[name] for name in OWN} == OWN
    assert state_of(twin) is not state_of(loader)
    loader.close()
    assert len(collect(twin)) == 3


class OwnState(FastLoader):
    """Says what it is made of, as subclasses do."""

    def __getstate__(self):
        return dict(vars(self), said=True)

    def __setstate__(self, state):
        vars(self).update(state)


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_a_subclass_with_a_state_of_its_own_has_a_runtime_of_its_own(how):
    loader = OwnState(Numbers(6), batch_size=2)
    twin = COPIES[how](loader)
    assert twin.said
    assert state_of(twin) is not state_of(loader)
    assert len(collect(twin)) == 3


class WithSlots(FastLoader):
    """Has more to its state than ``vars``."""

    __slots__ = ("noted",)


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_a_copy_of_a_subclass_with_slots_has_a_runtime_of_its_own(how):
    loader = WithSlots(Numbers(6), batch_size=2)
    loader.noted = 5
    twin = COPIES[how](loader)
    assert twin.noted == 5
    assert state_of(twin) is not state_of(loader)
    assert len(collect(twin)) == 3


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_every_protocol_leave_the_runtime_out(protocol):
    loader = FastLoader(Numbers(6), batch_size=2, memory_format=None)  # torch's formats need protocol 4
    pickled = pickle.dumps(loader, protocol)
    assert b"fastload.loader_state" not in pickled
    assert len(collect(pickle.loads(pickled))) == 3


class Holder:
    """Passes on what it has not, as wrappers do; also while it is unpickled."""

    def __init__(self, loader):
        self.loader = loader

    def __getattr__(self, name):
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __reduce__(self):
        return Holder, (FastLoader(Numbers(2)),), vars(self)


@pytest.mark.parametrize("how", COPIES)
def test_a_wrapper_that_delegates_is_copied_by_its_own_state(how):
    twin = COPIES[how](Holder(FastLoader(Numbers(6), batch_size=2)))
    assert len(collect(twin.loader)) == 3


class WithoutInit(FastLoader):
    """As torchdata's StatefulDataLoader: sets torch's attributes by itself."""

    def __init__(self, dataset):
        vars(self).update(vars(DataLoader(dataset, batch_size=2)))


def test_a_subclass_that_does_without_our_init_has_the_defaults():
    loader = WithoutInit(Numbers(6))
    assert len(collect(loader)) == 3
    assert loader.stats().batches == 3
    assert {name: getattr(loader, name) for name in OWN} == {
        name: getattr(FastLoader(Numbers(6)), name) for name in OWN
    }
    loader.close()
    assert "closed" in str(raised_by(lambda: iter(loader)))


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_a_loader_with_live_persistent_workers_is_not_copied(backend, how):
    def case(loader_class):
        loader = loader_class(Numbers(4), num_workers=1, persistent_workers=True)
        collect(loader)
        return type(raised_by(lambda: COPIES[how](loader)))

    assert backend.same(case).value is NotImplementedError


def test_a_loader_whose_iterators_are_gone_can_be_pickled(backend):
    loader = backend.loader(Numbers(4), num_workers=1)
    first(loader, 1)
    assert len(collect(pickle.loads(pickle.dumps(loader)))) == 4


def test_generic():
    assert FastLoader[int].__origin__ is FastLoader

    class Mine(FastLoader[torch.Tensor]):
        pass

    assert len(Mine(Numbers(4), batch_size=2)) == 2
    assert isinstance(Mine(Numbers(4)), DataLoader)


def test_the_short_name_is_the_same_class():
    assert fastload.DataLoader is FastLoader
    assert issubclass(FastLoader, DataLoader)


class Doubled(DataLoader):
    """A subclass as people write them: own arguments, an __iter__ that changes batches."""

    def __init__(self, dataset, factor=2, **kwargs):
        self.factor = factor
        super().__init__(dataset, **kwargs)

    def __iter__(self):
        for x, _ in super().__iter__():
            yield x * self.factor


def test_subclassing(backend):
    expected = collect(Doubled(Numbers(6), factor=3, batch_size=2, num_workers=1))

    class Multiplied(FastLoader):
        def __init__(self, dataset, factor=2, **kwargs):
            self.factor = factor
            super().__init__(dataset, **kwargs)

        def __iter__(self):
            for x, _ in super().__iter__():
                yield x * self.factor

    assert_same(collect(Multiplied(Numbers(6), factor=3, batch_size=2, num_workers=1, **backend.own)), expected)


def with_own_iterator(base):
    """As torch_geometric's loaders do: what is yielded is made behind torch's iterator."""

    class OfTorch(base):
        def _get_iterator(self):
            return (batch[0] * 100 for batch in super()._get_iterator())

    return OfTorch


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_subclass_that_makes_its_own_iterators_yields_its_own_batches(backend, num_workers):
    theirs = with_own_iterator(DataLoader)(Numbers(6), batch_size=2, num_workers=num_workers)
    ours = with_own_iterator(FastLoader)(Numbers(6), batch_size=2, num_workers=num_workers, **backend.own)
    assert_same(list(ours), list(theirs))
    assert ours.plan.engine == "torch"
    assert any("OfTorch has a _get_iterator of its own" in note for note in ours.plan.notes)


def test_vars_hold_every_argument_under_its_name():
    dataset, collate, generator = Numbers(6), Collator(1.0), torch.Generator()
    torchs = {"collate_fn": collate, "worker_init_fn": configure, "generator": generator, "timeout": 3, "batch_size": 2}
    more = {"num_workers": 1, "prefetch_factor": 3, "persistent_workers": True, "in_order": False, "drop_last": True}
    state = vars(FastLoader(dataset, **torchs, **more, **OWN))
    for name, value in {"dataset": dataset, **torchs, **more, **OWN}.items():
        assert state[name] is value, name
    assert type(state["batch_sampler"]) is BatchSampler
    public = {name for name in state if not name.startswith("_")}
    assert public == {*vars(DataLoader(dataset)), *OWN} - {name for name in vars(DataLoader(dataset)) if name[0] == "_"}


@pytest.fixture(scope="module")  # before the watch over leftovers begins: what it imports keeps semaphores for life
def lightning():
    return pytest.importorskip("lightning.fabric.utilities.data")


def test_lightning_rebuilds_it_with_another_sampler(backend, lightning):
    own = {**OWN, **backend.own}
    loader = FastLoader(Numbers(8), 2, True, num_workers=1, collate_fn=Collator(2.0), persistent_workers=True, **own)
    collect(loader)
    rebuilt = lightning._update_dataloader(loader, SequentialSampler(range(3, 6)))
    assert type(rebuilt) is FastLoader
    assert {name: vars(rebuilt)[name] for name in own} == own
    assert (rebuilt.num_workers, rebuilt.persistent_workers, rebuilt.batch_size) == (1, True, 2)
    expected = DataLoader(Numbers(8), 2, sampler=[0, 1, 2], collate_fn=Collator(2.0))
    assert_same(collect(rebuilt), collect(expected))
    assert rebuilt.collate_fn is loader.collate_fn


def test_lightning_rebuilds_it_to_predict(lightning):
    """A batch sampler notes each batch's samples: one ``next`` per batch, in this process."""
    from lightning.pytorch.trainer.states import RunningStage
    from lightning.pytorch.utilities.data import _update_dataloader

    loader = FastLoader(Numbers(7), batch_size=3, shuffle=True, num_workers=2, **OWN)
    rebuilt = _update_dataloader(loader, SequentialSampler(Numbers(7)), mode=RunningStage.PREDICTING)
    assert type(rebuilt) is FastLoader
    assert {name: vars(rebuilt)[name] for name in OWN} == OWN
    seen = [batch[1].tolist() for batch in rebuilt]
    assert seen == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(rebuilt.batch_sampler.seen_batch_indices) == seen


class OwnBatches(BatchSampler):
    pass


def test_lightning_rebuilds_it_with_a_batch_sampler_and_a_context(lightning):
    sampler = OwnBatches(RandomSampler(range(8)), 3, drop_last=True)
    loader = FastLoader(Numbers(8), batch_sampler=sampler, num_workers=1, multiprocessing_context="fork", **OWN)
    rebuilt = lightning._update_dataloader(loader, [5, 4, 3, 2])
    assert {name: vars(rebuilt)[name] for name in OWN} == OWN
    assert rebuilt.multiprocessing_context.get_start_method() == "fork"
    assert [batch[1].tolist() for batch in rebuilt] == [[5, 4, 3]]


class Repeated(Sampler):
    """As timm's: an endless batch sampler around the original."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


def test_timm_puts_another_batch_sampler_into_it(backend):
    def case(loader_class):
        loader = loader_class(Augmented(6), batch_size=2, num_workers=2, shuffle=True)
        loader._DataLoader__initialized = False
        loader.batch_sampler = Repeated(loader.batch_sampler)
        loader._DataLoader__initialized = True
        iterator = iter(loader)
        return [[next(iterator) for _ in range(len(loader.batch_sampler.sampler))] for _ in range(3)]

    epochs = backend.same(case).value
    assert sorted(i for batch in epochs[1] for i in batch[1].tolist()) == list(range(6))


@pytest.fixture(scope="module")
def accelerate():
    return pytest.importorskip("accelerate")


def test_accelerate_prepares_it_and_wrap_takes_it_back(monkeypatch, accelerate):
    prepared = accelerate.Accelerator(cpu=True).prepare(DataLoader(Numbers(7), batch_size=2, shuffle=True))
    assert type(prepared).__module__ == "accelerate.data_loader"
    torch.manual_seed(3)
    expected = collect(prepared)
    simulated.install(monkeypatch)
    prepared.iteration = 0
    wrapped = FastLoader.wrap(prepared, device="cuda")
    assert isinstance(wrapped, FastLoader)
    assert isinstance(wrapped.base_dataloader, FastLoader)
    torch.manual_seed(3)
    assert_same(collect(wrapped), expected)
    assert wrapped.end_of_dataloader  # gradient accumulation goes by it


def test_wrap_keeps_what_the_loader_was(backend):
    def case(loader_class):
        generator = torch.Generator().manual_seed(8)
        own = {
            "shuffle": True,
            "generator": generator,
            "num_workers": 2,
            "drop_last": True,
            "collate_fn": Collator(3.0),
        }
        loader = DataLoader(Numbers(7), batch_size=2, worker_init_fn=configure, **own)
        if loader_class is not DataLoader:
            loader = FastLoader.wrap(loader, **backend.own)
        return (
            collect(loader),
            collect(loader),
            generator.get_state(),
            len(loader),
            loader.drop_last,
            loader.num_workers,
        )

    backend.same(case)


def test_wrap_shares_and_leaves_the_loader_alone():
    loader = DataLoader(Numbers(7), batch_size=2, shuffle=True)
    before = dict(vars(loader))
    wrapped = FastLoader.wrap(loader, **OWN)
    assert type(wrapped) is FastLoader
    assert vars(loader) == before
    assert wrapped.sampler is loader.sampler
    assert wrapped.batch_sampler is loader.batch_sampler
    assert {name: vars(wrapped)[name] for name in OWN} == OWN
    assert vars(FastLoader.wrap(wrapped))["device"] == "auto"
    with pytest.raises(ValueError, match="batch_size attribute should not be set after FastLoader is initialized"):
        wrapped.batch_size = 3


def test_wrap_does_not_take_over_live_workers():
    loader = DataLoader(Pids(4), num_workers=1, persistent_workers=True)
    theirs = collect(loader)
    wrapped = FastLoader.wrap(loader)
    assert collect(wrapped) != theirs
    assert collect(loader) == theirs


def test_wrap_refuses_what_is_no_loader():
    with pytest.raises(TypeError, match=r"takes a torch\.utils\.data\.DataLoader, got list.*prefetch_to_device"):
        FastLoader.wrap([torch.zeros(1)])
    unknown = r"^FastLoader\.wrap\(\) got an unexpected keyword argument 'engin'; .* dtype, device_prefetch, engine"
    with pytest.raises(TypeError, match=unknown):
        FastLoader.wrap(DataLoader(Numbers(2)), engin="torch")
    with pytest.raises(ValueError, match="device_prefetch must be >= 0, got -1"):
        FastLoader.wrap(DataLoader(Numbers(2)), device_prefetch=-1)


def test_wrap_refuses_a_loader_that_iterates_in_its_own_way():
    """Its batches would differ from those that it yields."""
    with pytest.raises(TypeError, match=r"Doubled, which has an __iter__ of its own.*prefetch_to_device"):
        FastLoader.wrap(Doubled(Numbers(2)))

    class Resumable(Doubled):
        def state_dict(self):
            return {}

    with pytest.raises(TypeError, match=r"prefetch_to_device\(loader\), which keeps it, and whose state_dict\(\)"):
        FastLoader.wrap(Resumable(Numbers(2)))
    with pytest.raises(TypeError, match=r"OfTorch, which has a _get_iterator of its own.*prefetch_to_device"):
        FastLoader.wrap(with_own_iterator(DataLoader)(Numbers(2)))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_close_ends_live_iterators_and_is_final(backend, num_workers, persistent):
    loader = backend.loader(Numbers(20), 2, num_workers=num_workers, persistent_workers=persistent and num_workers > 0)
    one, two = iter(loader), iter(loader)
    next(one)
    next(two)
    workers = [*getattr(one, "_workers", []), *getattr(two, "_workers", [])]
    loader.close()
    loader.close()
    assert not any(worker.is_alive() for worker in workers)
    with pytest.raises(RuntimeError, match="this FastLoader is closed"):
        iter(loader)
    assert len(loader) == 10  # what needs no workers still answers
    if backend.name != "plain":
        for iterator in (one, two):
            with pytest.raises(RuntimeError, match="the FastLoader of this iterator was closed"):
                next(iterator)


def test_close_before_and_after_use(backend):
    loader = backend.loader(Numbers(4), num_workers=1)
    loader.close()
    with backend.loader(Numbers(4), num_workers=1) as loader:
        assert len(collect(loader)) == 4
    assert "closed" in str(raised_by(lambda: collect(loader)))


def test_context_manager_closes_on_an_error(backend):
    def run():
        with backend.loader(Numbers(20), num_workers=1) as loader:
            iterators.append(iter(loader))
            workers.extend(iterators[0]._workers)
            raise KeyError("mine")

    iterators, workers = [], []
    assert type(raised_by(run)) is KeyError
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize("name", ["wrapped", "simulated"])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_dropped_loader_is_gone_at_once(monkeypatch, name, persistent):
    """With it its workers and memory, without waiting for the garbage collector."""
    if name == "simulated":
        simulated.install(monkeypatch)
    gc.collect()
    gc.disable()
    try:
        loader = BACKENDS[name].loader(Numbers(20), batch_size=2, num_workers=1, persistent_workers=persistent)
        iterator = iter(loader)
        next(iterator)
        workers = iterator._workers
        gone = [weakref.ref(loader), weakref.ref(iterator), weakref.ref(state_of(loader))]
        del iterator
        del loader
        assert [reference() for reference in gone] == [None] * 3
        assert not any(worker.is_alive() for worker in workers)
    finally:
        gc.enable()


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.zeros(1)


def test_endless_streams_end_with_the_loop(backend):
    assert len(first(backend.loader(Endless(), batch_size=2, num_workers=2), 5)) == 5
