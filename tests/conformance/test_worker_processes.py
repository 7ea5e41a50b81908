"""Workers: how they are set up, kept, shared out, and given up."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from backends import forkserver_too
from backends.datasets import (
    Augmented,
    Configured,
    Numbers,
    Pids,
    SizedStream,
    Stream,
    WhoLoaded,
    as_list,
    collect,
    configure,
    first,
)
from references import kept


@forkserver_too
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.matrix
def test_what_a_worker_knows_of_itself(backend, num_workers):
    def case(loader_class):
        generator = torch.Generator().manual_seed(3)
        own = {"collate_fn": as_list, "worker_init_fn": configure, "generator": generator}
        return collect(loader_class(Configured(4), batch_size=2, num_workers=num_workers, **own))

    samples = backend.same(case).value[0]
    assert samples[0][1] == ("set in 0" if num_workers else None)


def test_worker_init_fn_may_be_set_later_and_be_a_closure(backend):
    def case(loader_class):
        loader = loader_class(Configured(4), num_workers=2, collate_fn=as_list)
        before = collect(loader)
        loader.worker_init_fn = configure
        once = collect(loader)
        mark = "closure"

        def init(worker_id):
            torch.utils.data.get_worker_info().dataset.setting = mark

        loader.worker_init_fn = init
        return before, once, collect(loader), loader.worker_init_fn is init

    before, once, twice, _ = backend.same(case).value
    assert [epoch[1][0][1] for epoch in (before, once, twice)] == [None, "set in 1", "closure"]


@pytest.mark.slow
@forkserver_too
def test_other_attributes_may_be_set_later_too(backend):
    def case(loader_class):
        loader = loader_class(WhoLoaded(8), batch_size=2)
        seen = [collect(loader)]
        loader.num_workers, loader.prefetch_factor = 2, 1
        seen.append(collect(loader))
        loader.collate_fn = as_list
        loader.num_workers, loader.prefetch_factor = 1, 3
        seen.append(collect(loader))
        loader.generator = torch.Generator().manual_seed(9)
        return seen, collect(loader)

    backend.same(case)


@forkserver_too
@pytest.mark.matrix
def test_persistent_workers_stay_the_same_processes(backend):
    loader = backend.loader(Pids(8), batch_size=2, num_workers=2, persistent_workers=True)
    epochs = []
    for _ in range(3):
        first(loader, 2)
        epochs.append({int(pid) for batch in loader for pid in batch})
        assert epochs[-1] == {worker.pid for worker in loader._iterator._workers}
    assert epochs[0] == epochs[1] == epochs[2]


def test_workers_that_do_not_persist_are_new_in_each_epoch(backend):
    loader = backend.loader(Pids(8), batch_size=2, num_workers=2)
    epochs = [{int(pid) for batch in loader for pid in batch} for _ in range(2)]
    assert not epochs[0] & epochs[1]
    assert loader._iterator is None


@forkserver_too
@pytest.mark.parametrize("taken", [[2, 0, 3], [0, 1, 1]], ids=str)
def test_persistent_workers_after_several_breaks_draw_what_torchs_draw(backend, taken):
    def case(loader_class):
        loader = loader_class(Augmented(10), batch_size=1, shuffle=True, num_workers=2, persistent_workers=True)
        broken_off = []
        for count in taken:
            iterator = iter(loader)
            broken_off.append([next(iterator) for _ in range(count)])
        return broken_off, collect(loader), collect(loader)

    backend.same(case)


def test_a_persistent_iterator_is_one_object(backend):
    def case(loader_class):
        loader = loader_class(Numbers(6), batch_size=2, num_workers=1, persistent_workers=True)
        one = iter(loader)
        next(one)
        two = iter(loader)  # begins again
        return one is two, loader._iterator is one, len(one), [next(two), next(one), next(two)], next(two, "end")

    backend.same(case)


def test_persistent_workers_end_when_the_iterator_is_set_to_none(backend):
    loader = backend.loader(Numbers(6), batch_size=2, num_workers=2, persistent_workers=True)
    collect(loader)
    workers = loader._iterator._workers
    loader._iterator = None
    assert not any(worker.is_alive() for worker in workers)
    assert len(collect(loader)) == 3


def test_persistent_workers_of_a_stream_that_end_early_come_back(backend):
    def case(loader_class):
        stream = Stream([1, 4], draws=False)
        loader = loader_class(stream, batch_size=2, num_workers=2, persistent_workers=True)
        return collect(loader), first(loader, 1), collect(loader), collect(loader)

    backend.same(case)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_several_iterators_at_once(backend, num_workers):
    def case(loader_class):
        loader = loader_class(Augmented(8), batch_size=2, num_workers=num_workers)
        in_step = list(zip(loader, loader, strict=True))
        one, two = iter(loader), iter(loader)
        mixed = [next(one), next(two), next(two), next(one), next(two)]
        three = iter(loader)
        return in_step, mixed, list(three), list(one), list(two)

    backend.same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterator_outlives_its_loader(backend, num_workers):
    def case(loader_class):
        iterator = iter(loader_class(Numbers(10), batch_size=2, num_workers=num_workers))
        return [next(iterator), len(iterator), *iterator]

    backend.same(case)


def test_a_persistent_iterator_outlives_its_loader(backend):
    def case(loader_class):
        iterator = iter(loader_class(Numbers(10), batch_size=2, num_workers=1, persistent_workers=True))
        return [next(iterator), *iterator]

    backend.same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exhausted_iterator_stays_exhausted(backend, num_workers):
    def case(loader_class):
        iterator = iter(loader_class(Numbers(3), num_workers=num_workers))
        return [*iterator, next(iterator, "end"), next(iterator, "end"), iter(iterator) is iterator]

    backend.same(case)


def test_what_is_known_of_torchs_iterators(backend):
    def case(loader_class):
        iterator = iter(loader_class(Numbers(6), batch_size=2, num_workers=2, prefetch_factor=3))
        seen = [len(iterator), iterator._num_workers, len(iterator._workers), iterator._prefetch_factor]
        next(iterator)
        seen += [iterator._num_yielded, iterator._rcvd_idx, all(worker.daemon for worker in iterator._workers)]
        return seen, hasattr(iterator, "no_such_attribute")

    backend.same(case)


def test_length_of_a_stream_is_checked_by_the_iterator(backend):
    def case(loader_class):
        loader = loader_class(SizedStream([4], claimed=2), batch_size=1, num_workers=1, persistent_workers=True)
        return len(loader), collect(loader), collect(loader)

    assert len(backend.same(case).warnings) == 4


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.slow
def test_start_methods(backend, method):
    """The results are those of forked workers. Forked ones are what all other cases use."""
    if method == "forkserver" and backend.name == "plain":
        pytest.skip("torch's own, and slow to start")
    own = {"batch_size": 3, "collate_fn": as_list, "worker_init_fn": configure, "num_workers": 1}
    torch.manual_seed(4)
    expected = kept(lambda: collect(torch.utils.data.DataLoader(Configured(5), **own, multiprocessing_context="fork")))
    torch.manual_seed(4)
    context = method if method == "spawn" else multiprocessing.get_context(method)
    loader = backend.loader(Configured(5), **own, multiprocessing_context=context)
    assert loader.multiprocessing_context.get_start_method() == method
    assert collect(loader) == expected


def test_fork_named_explicitly(backend):
    def case(loader_class):
        by_name = loader_class(Numbers(4), num_workers=1, multiprocessing_context="fork")
        by_context = loader_class(
            Numbers(4), num_workers=1, multiprocessing_context=multiprocessing.get_context("fork")
        )
        return collect(by_name), collect(by_context), type(by_name.multiprocessing_context).__name__

    backend.same(case)
