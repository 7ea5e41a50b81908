"""Test what FastLoader adds to torch's loader: its iterators, counters and end."""

from __future__ import annotations

import pickle
import threading
import weakref

import pytest
import torch
from backends import BACKENDS, parameters, raised_by, simulated
from backends.datasets import Images, Numbers, Pids, collect, first
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from fastload import FastLoader
from fastload.device.transfer import Transfer
from fastload.iterators import TorchDeviceIterator
from fastload.nvtx import stages
from fastload.stats.stats import Stats


@pytest.fixture
def cuda(monkeypatch):
    simulated.install(monkeypatch)


@pytest.fixture
def profiled(monkeypatch):
    """As if a profiler listened, which then hears nothing."""
    monkeypatch.setattr(stages, "active", lambda: True)


@pytest.mark.parametrize(
    ("num_workers", "kind"), [(0, _SingleProcessDataLoaderIter), (1, _MultiProcessingDataLoaderIter)]
)
def test_on_the_cpu_the_iterator_is_torchs(num_workers, kind):
    loader = FastLoader(Numbers(2), num_workers=num_workers, device="cpu")
    assert type(iter(loader)) is kind


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_without_an_accelerator_auto_is_the_plain_loader():
    loader = FastLoader(Images(2))
    iterator = iter(loader)
    assert type(iterator) is _SingleProcessDataLoaderIter
    assert next(iterator)[0].is_contiguous()  # memory_format is for devices


def test_where_there_is_something_to_do_the_iterator_is_ours(cuda):
    assert type(iter(FastLoader(Numbers(2), device="cpu", dtype=torch.float32))) is TorchDeviceIterator
    assert type(iter(FastLoader(Numbers(2)))) is TorchDeviceIterator


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_dtype_casts_floating_point_only(dtype, num_workers):
    loader = FastLoader(Numbers(3), batch_size=2, num_workers=num_workers, device="cpu", dtype=dtype)
    x, y = next(iter(loader))
    assert (x.dtype, y.dtype) == (dtype, torch.int64)
    assert x.tolist() == [[0, 0.5], [1, 1.5]]


def test_batches_are_counted_over_epochs_and_iterators(cuda):
    loader = FastLoader(Numbers(6), batch_size=2, num_workers=1, device="cuda")
    assert loader.stats() == Stats(workers=1)
    collect(loader)
    assert loader.stats().batches == 3
    assert loader.stats().device_bytes == 3 * 2 * (8 + 8)
    one, two = iter(loader), iter(loader)
    next(one)
    next(two)
    assert loader.stats().batches >= 3 + 2
    del one, two
    before = loader.stats().batches
    assert loader.stats().batches == before
    loader.close()
    assert loader.stats().batches == before


def test_workers_come_to_write_into_slots(cuda):
    loader = FastLoader(Images(64), batch_size=8, num_workers=2, persistent_workers=True, device="cuda")
    expected = [batch[0].clone() for batch in FastLoader(Images(64), batch_size=8, device="cpu")]
    for _ in range(50):
        for batch, images in zip(loader, expected, strict=True):
            assert torch.equal(batch[0], images)
        if loader.stats().slot_batches > 8:
            break
        for thread in threading.enumerate():
            if thread.name == "fastload-arena":
                thread.join()
    stats = loader.stats()
    assert stats.slot_batches > 8
    assert stats.pinned_bytes == stats.slots * stats.slot_bytes
    assert stats.slot_batches + sum(stats.missed.values()) == stats.batches


def test_a_profiler_changes_nothing(profiled):
    loader = FastLoader(Pids(6), batch_size=2, num_workers=1, persistent_workers=True, device="cpu")
    assert type(iter(loader)) is TorchDeviceIterator  # whose workers name their stages
    epochs = [torch.cat(collect(loader)).unique() for _ in range(3)]
    assert epochs[0].numel() == 1
    assert all(torch.equal(epoch, epochs[0]) for epoch in epochs)
    assert type(iter(FastLoader(Numbers(2), device="cpu"))) is TorchDeviceIterator  # and so does the main process
    x, _ = next(iter(FastLoader(Images(2), num_workers=1, device="cpu")))
    assert x.is_contiguous()


def test_arguments_changed_between_epochs_of_persistent_workers(cuda):
    loader = FastLoader(Numbers(4), num_workers=1, persistent_workers=True, device="cuda")
    assert type(iter(loader)) is TorchDeviceIterator
    loader.device = "cpu"
    workers = loader._iterator._workers
    plain = iter(loader)
    assert type(plain) is _MultiProcessingDataLoaderIter
    assert not any(worker.is_alive() for worker in workers)
    assert len(list(plain)) == 4
    loader.device = "cuda"
    del plain
    assert type(iter(loader)) is TorchDeviceIterator
    assert len(collect(loader)) == 4


@pytest.mark.parametrize("backend", parameters("wrapped", "simulated"))
def test_a_persistent_iterator_that_was_closed_is_replaced(monkeypatch, backend):
    if backend == "simulated":
        simulated.install(monkeypatch)
    with BACKENDS[backend].loader(Numbers(4), num_workers=1, persistent_workers=True) as loader:
        closed = iter(loader)
        next(closed)
        closed._shutdown_workers()
        with pytest.raises(RuntimeError, match="was closed"):
            next(closed)
        again = iter(loader)
        assert again is not closed
        assert len(list(again)) == 4
        assert loader.stats().batches == 5
        assert iter(loader) is again


def test_an_attribute_that_torchs_iterator_lacks_is_named_with_ours():
    iterator = iter(FastLoader(Numbers(2), device="cpu", dtype=torch.float32))
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = iterator.no_such_thing
    iterator._shutdown_workers()
    with pytest.raises(AttributeError, match="'TorchDeviceIterator' object has no attribute '_num_yielded'"):
        _ = iterator._num_yielded
    iterator._shutdown_workers()


def test_a_closed_loader_says_what_to_do():
    loader = FastLoader(Numbers(2))
    loader.close()
    with pytest.raises(RuntimeError, match="this FastLoader is closed; make a new one to iterate again"):
        iter(loader)
    copy = pickle.loads(pickle.dumps(loader))
    assert len(collect(copy)) == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_a_simulated_device_keeps_no_loader(cuda, workers):
    loader = FastLoader(Numbers(8), num_workers=workers, device="cuda")
    gone = weakref.ref(loader)
    collect(loader)
    del loader
    assert gone() is None


def test_an_iterator_does_not_keep_its_loader(cuda):
    loader = FastLoader(Numbers(8), num_workers=1, persistent_workers=True, device="cuda")
    gone = weakref.ref(loader)
    iterator = iter(loader)
    del loader
    assert gone() is None
    assert len(list(iterator)) == 8


def test_the_end_of_an_iterator_ends_its_copy_thread(cuda):
    loader = FastLoader(Numbers(8), num_workers=1, device="cuda")
    first(loader, 2)
    assert "fastload-copy-scheduler" not in {thread.name for thread in threading.enumerate()}
    iterator = iter(loader)
    next(iterator)
    thread = next(thread for thread in threading.enumerate() if thread.name == "fastload-copy-scheduler")
    assert thread.daemon
    iterator._shutdown_workers()
    assert not thread.is_alive()


@pytest.mark.parametrize("backend", parameters("wrapped", "simulated"))
def test_an_iterator_that_could_not_be_made_leaves_nothing(monkeypatch, backend):
    if backend == "simulated":
        simulated.install(monkeypatch)

    class Unready(torch.utils.data.Sampler):
        def __iter__(self):
            raise ConnectionError("not yet")

    loader = BACKENDS[backend].loader(Numbers(4), sampler=Unready(), num_workers=2, persistent_workers=True)
    for _ in range(2):
        assert type(raised_by(lambda: iter(loader))) is ConnectionError
    assert loader._iterator is None
    loader.close()


def test_a_sampler_that_fails_between_epochs_of_persistent_workers(cuda):
    class Moody(torch.utils.data.Sampler):
        epochs = 0

        def __iter__(self):
            self.epochs += 1
            if self.epochs == 3:
                raise ConnectionError("not now")
            return iter(range(4))

    loader = FastLoader(Numbers(4), sampler=Moody(), num_workers=1, persistent_workers=True, device="cuda")
    for _ in range(2):
        assert len(collect(loader)) == 4
    assert type(raised_by(lambda: collect(loader))) is ConnectionError
    assert len(collect(loader)) == 4


@pytest.mark.parametrize("collate_fn", [None, list], ids=["default", "custom"])
def test_batches_with_nothing_to_copy_miss_no_slots(cuda, collate_fn):
    loader = FastLoader(["a"] * 6, batch_size=2, num_workers=1, collate_fn=collate_fn)
    assert collect(loader) == [["a", "a"]] * 3
    assert not loader.stats().missed


def test_a_step_ends_when_the_next_batch_is_asked_for_not_when_it_has_come(monkeypatch):
    order = []

    class Noting(Numbers):
        def __getitem__(self, index):
            order.append("made")
            return super().__getitem__(index)

    monkeypatch.setattr(Transfer, "mark_step", lambda self: order.append("step ended"))
    list(FastLoader(Noting(2), device="cpu", dtype=torch.float32))
    assert order == ["step ended", "made", "step ended", "made", "step ended"]
