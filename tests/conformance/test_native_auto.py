"""``num_workers="auto"`` natively: threads come and go, and the batches are torch's all the same."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from photos import jpeg, make_folder, train_v1
from plans import text_of
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.autoscale import policy, threads
from fastload.autoscale.policy import NATIVE_STREAMS, AutoWorkers

COUNT = 96


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = make_folder(tmp_path_factory.mktemp("photos"))
    return Subset(ImageFolder(folder, train_v1()), [index % 23 for index in range(COUNT)])


@pytest.fixture
def six_cores(monkeypatch):
    monkeypatch.setattr(policy, "usable_cpus", lambda: 6)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


def make(dataset, **arguments):
    arguments = {"batch_size": 3, "shuffle": True, "num_workers": "auto", "device": "cpu", **arguments}
    return FastLoader(dataset, engine="native", **arguments)


def copies(batches):
    return [[leaf.clone() for leaf in batch] for batch in batches]


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_are_torchs_with_eight_workers_whatever_the_threads_do(dataset, six_cores, monkeypatch, persistent):
    sizes = itertools.cycle([1, 5, 2, 6, 1, 3, 4])
    resized = []
    monkeypatch.setattr(threads, "WINDOW_S", 0.0)
    monkeypatch.setattr(threads, "WINDOW_BATCHES", 1)
    monkeypatch.setattr(threads, "_GAP", 2.0)
    monkeypatch.setattr(threads.ThreadSizer, "_decide", lambda self, _: resized.append(self._pool.resize(next(sizes))))
    torch.manual_seed(2)
    with make(dataset, persistent_workers=persistent) as loader:
        ours = [copies(loader) for _ in range(2)]
        assert loader.num_workers == NATIVE_STREAMS
        after = torch.get_rng_state()
    assert len(resized) > 30
    torch.manual_seed(2)
    monkeypatch.setattr(DataLoader, "check_worker_number_rationality", lambda self: None)
    torchs = DataLoader(dataset, 3, shuffle=True, num_workers=NATIVE_STREAMS, persistent_workers=persistent)
    for epoch in ours:
        for mine, theirs in zip(epoch, torchs, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert torch.equal(torch.get_rng_state(), after)


def test_the_number_of_cores_shows_in_no_batch(dataset, monkeypatch):
    epochs = []
    for cores in (1, 5):
        monkeypatch.setattr(policy, "usable_cpus", lambda cores=cores: cores)
        torch.manual_seed(4)
        with make(dataset) as loader:
            epochs.append(copies(loader))
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(*epochs, strict=True))


@pytest.mark.parametrize("persistent", [False, True])
def test_a_slow_consumer_gets_fewer_threads_and_the_next_epoch_starts_with_them(
    dataset, six_cores, monkeypatch, persistent
):
    monkeypatch.setattr(threads, "WINDOW_S", 0.05)
    with make(dataset, persistent_workers=persistent) as loader:
        iterator = iter(loader)
        pool = iterator.decode_pipeline.pool
        assert pool.threads == 6
        for _ in iterator:
            time.sleep(0.02)
        assert loader.num_workers.sizing.threads == pool.threads <= 2
        again = iter(loader)
        assert again.decode_pipeline.pool.threads <= 2
        assert (again is iterator) == persistent
        assert "1 to 6 decode threads" in text_of(loader)
        assert f"fed, {pool.threads} of late; random draws are those of 8 workers" in text_of(loader)


def test_a_fast_consumer_gets_more_threads(tmp_path, six_cores, monkeypatch):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "large.jpg").write_bytes(jpeg(1, 1200, 1600))
    monkeypatch.setattr(threads, "WINDOW_S", 0.02)
    with make(Subset(ImageFolder(tmp_path, train_v1()), [0] * COUNT)) as loader:
        loader.num_workers.sizing.threads = 1
        iterator = iter(loader)
        assert iterator.decode_pipeline.pool.threads == 1
        for _ in iterator:
            pass
        assert loader.num_workers.sizing.threads > 1


def test_a_fixed_number_stays(dataset):
    with make(dataset, num_workers=2) as loader:
        iterator = iter(loader)
        for _ in iterator:
            time.sleep(0.01)
        assert iterator.decode_pipeline.pool.threads == 2
        assert not isinstance(loader.num_workers, AutoWorkers)


def test_when_it_can_no_longer_run_natively_processes_are_chosen(dataset, six_cores, monkeypatch):
    monkeypatch.setattr(DataLoader, "check_worker_number_rationality", lambda self: None)
    with make(dataset) as loader:
        next(iter(loader))
        assert loader.num_workers == NATIVE_STREAMS
        loader.engine = "torch"
        next(iter(loader))
        assert loader.plan.engine == "torch"
        assert 1 <= loader.num_workers <= 6
        assert loader.num_workers.sizing.processes == loader.num_workers
