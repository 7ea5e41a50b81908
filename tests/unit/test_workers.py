"""Test what runs in a worker, and the view that torch's iterator is made from."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace

import pytest
import torch
from backends import raised_by
from backends.batches import Collator
from backends.datasets import Numbers, as_list, configure
from children import exit_code, forked
from torch.utils.data import DataLoader, _DatasetKind, default_collate
from torch.utils.data._utils import fetch as torch_fetch

from fastload import FastLoader
from fastload._batch import HostBatch, register
from fastload.memory.sending import Sent
from fastload.state.in_worker import WorkerProgress
from fastload.stats.shared_counters import SharedCounters
from fastload.torch_workers import orphans
from fastload.torch_workers.orphans import take_signals
from fastload.torch_workers.view import refresh, view_of
from fastload.workers import start, worker
from fastload.workers.start import Collate, route_of, start_epoch

WAIT_S = 60


def test_collate_runs_the_users_function_and_labels_the_result():
    batch = Collate(as_list, receiver=7)([1, 2])
    assert (batch.data, batch.worker, batch.receiver, batch.stamp) == ([1, 2], 0, 7, None)


class NoSlot:
    too_small = False

    def acquire(self, worker, needed):
        return None


@pytest.mark.parametrize(
    ("batch", "is_small"),
    [
        ([torch.zeros(100, 100), torch.zeros(5), "text"], True),
        ([torch.zeros(100, 100), torch.zeros(7000)], False),  # together too large
        ([torch.zeros(5), torch.zeros(30_000, requires_grad=True)], False),  # one that no slot takes
        ([torch.zeros(5), torch.eye(3).to_sparse()], False),
        (["text"], False),
    ],
)
def test_small_batches_of_this_process_need_no_slot(batch, is_small, monkeypatch):
    collate = Collate(lambda _: batch, 0, NoSlot())
    made = collate([1])
    assert made.is_small == is_small
    assert made.data is batch
    monkeypatch.setattr(start, "get_worker_info", lambda: SimpleNamespace(id=3))
    made = collate([1])
    assert not made.is_small
    assert made.worker == 3


def test_no_batch_is_small_that_a_copy_may_read_later(monkeypatch):
    """Pinned memory is read after the call, as pageable memory may be without CUDA."""
    collate = Collate(lambda _: [torch.zeros(5), torch.zeros(6)], 0, NoSlot())
    assert collate([1]).is_small
    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "is_pinned", lambda tensor: len(tensor) == 5)
        assert not collate([1]).is_small
    monkeypatch.setattr(torch.version, "cuda", None)
    assert not collate([1]).is_small


def test_collate_lets_the_users_errors_through():
    def fail(samples):
        raise LookupError("mine")

    error = raised_by(lambda: Collate(fail, 0)([1]))
    assert (type(error), str(error)) == (LookupError, "mine")


def test_collate_is_picklable_if_the_users_function_is():
    collate = pickle.loads(pickle.dumps(Collate(Collator(2.0), 3)))
    assert (collate.collate_fn.scale, collate.receiver) == (2.0, 3)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(Collate(lambda samples: samples, 3))


def test_a_host_batch_travels():
    batch = pickle.loads(pickle.dumps(HostBatch([1, "a"], 2, 3, missed="no slot is free")))
    assert (batch.data, batch.worker, batch.receiver, batch.missed) == ([1, "a"], 2, 3, "no slot is free")


def test_a_host_batch_finds_its_receiver_while_that_lives():
    class Receiver:
        def arrive(self, batch):
            return batch.data * 2

    receiver = Receiver()
    batch = HostBatch("ab", 0, register(receiver))
    assert batch.pin_memory() == "abab"
    del receiver
    gc.collect()
    assert batch.pin_memory() is None


def test_a_view_shares_all_but_the_changes():
    loader = FastLoader(Numbers(4), batch_size=2, shuffle=True, num_workers=1, persistent_workers=True)
    before = dict(vars(loader))
    view = view_of(loader, collate_fn=as_list)
    assert isinstance(view, DataLoader)
    assert not isinstance(view, FastLoader)
    assert view.collate_fn is as_list
    assert view.batch_sampler is loader.batch_sampler
    assert view.generator is loader.generator
    assert vars(loader) == before
    assert loader.collate_fn is default_collate


def test_a_view_keeps_its_own_iterator_when_it_is_refreshed():
    loader = DataLoader(Numbers(4))
    view = view_of(loader)
    assert view._iterator is None
    view._iterator = mine = object()
    loader.worker_init_fn = configure
    loader.timeout = 9
    refresh(view, loader, collate_fn=as_list)
    assert (view.worker_init_fn, view.timeout, view.collate_fn) == (configure, 9, as_list)
    assert view._iterator is mine
    assert loader._iterator is None


def test_a_setup_is_picklable_and_runs_the_users_worker_init_fn_last(monkeypatch):
    """Spawned workers get a copy; a copy knows the process that the loader is in."""
    calls = []
    for name in ("take_signals", "show_own_dataset", "send_errors", "install_lazy_images"):
        monkeypatch.setattr(worker, name, lambda *arguments, name=name: calls.append((name, *arguments)))
    monkeypatch.setattr(worker.Worker, "install", lambda self: calls.append(("install", self._promptly)))
    monkeypatch.setattr(worker.sys, "setswitchinterval", lambda seconds: calls.append(("switch", seconds)))
    with FastLoader(Numbers(4), num_workers=1, worker_init_fn=configure) as loader:
        setup = worker.setup_of(loader, route_of(loader), SharedCounters(1, 2))
    copied = pickle.loads(ForkingPickler.dumps(dataclasses.replace(setup, parent=7)))
    assert (copied.worker_init_fn, copied.promptly, copied.native) == (configure, True, None)
    dataclasses.replace(copied, worker_init_fn=lambda number: calls.append(("user", number)))(0)
    start = [("take_signals", 7), ("show_own_dataset",), ("send_errors",), ("install", True)]
    assert calls == [*start, ("switch", worker.SWITCH_S), ("install_lazy_images", True), ("user", 0)]
    with pytest.raises(ZeroDivisionError):
        dataclasses.replace(copied, worker_init_fn=lambda number: 1 // number)(0)


@pytest.mark.parametrize("fails", [False, True])
def test_a_fetch_measures_making_alone_then_keeps_and_sends(monkeypatch, fails):
    calls, sampled = [], [1, 2]

    class Noting:
        def __getattr__(self, name):
            return lambda *arguments: calls.append(name)

    @contextlib.contextmanager
    def stage(name, batch):
        calls.append((name, batch))
        yield
        calls.append("ended")

    def collate(samples):
        calls.append("made")
        sampled.clear()
        if fails:
            raise LookupError
        return samples

    def _worker_loop(fetcher, idx):
        return fetcher.fetch(sampled)

    monkeypatch.setattr(worker, "stage", stage)
    monkeypatch.setattr(worker, "WorkerCounters", lambda *arguments, **more: Noting())
    monkeypatch.setattr(worker, "digest_of", lambda indices: calls.append(list(indices)))
    one = worker.Worker(worker.WorkerSetup(None, SharedCounters(1, 2)), 0, Noting())
    fetcher = one._follow(torch_fetch._MapDatasetFetcher(Numbers(4), True, collate, False), sends=True)
    made = [("fetch", 5), [1, 2], "begin", "collates", "made"]
    if fails:
        assert type(raised_by(lambda: _worker_loop(fetcher, 5))) is LookupError
        assert calls == [*made, "fail", "keep"]
    else:
        assert type(_worker_loop(fetcher, 5)) is Sent
        assert calls == [*made, "end", "keep", "ended"]


def test_another_loop_of_that_name_gets_batches_as_they_are(monkeypatch):
    """Torchdata's sends each with its worker's state."""

    def _worker_loop(idx):
        fetcher = _DatasetKind.create_fetcher(_DatasetKind.Map, Numbers(4), True, as_list, False)
        return fetcher.fetch([idx])

    monkeypatch.setattr(_DatasetKind, "create_fetcher", staticmethod(_DatasetKind.create_fetcher))
    progress = WorkerProgress(None, 0, generators=False)
    worker.Worker(worker.WorkerSetup(None, counters := SharedCounters(1, 2)), 0, progress).install()
    assert type(_worker_loop(3)) is list
    assert counters.total("images") == 1


class Garbage:
    """A cycle that notes its collecting process; device tensors would abort a forked worker."""

    def __init__(self, log):
        self.me = self
        self.log = log

    def __del__(self):
        self.log.put(os.getpid())


class Collecting(Numbers):
    def __getitem__(self, index):
        gc.collect()
        return index


def test_workers_do_not_collect_the_garbage_that_they_inherit():
    log = multiprocessing.get_context("fork").SimpleQueue()
    gc.collect()
    gc.disable()
    try:
        frozen = gc.get_freeze_count()
        Garbage(log)
        view = view_of(DataLoader(Collecting(3), num_workers=2))
        assert [int(index) for index in start_epoch(view)] == [0, 1, 2]
        assert log.empty()
        assert gc.get_freeze_count() <= frozen  # nothing of it in this process; what was frozen may go meanwhile
    finally:
        gc.enable()
    gc.collect()
    assert log.get() == os.getpid()
    assert log.empty()
    log.close()


def test_a_fork_that_is_not_ours_freezes_nothing():
    context = multiprocessing.get_context("fork")
    log = context.SimpleQueue()
    before = gc.get_freeze_count()
    process = context.Process(target=lambda: log.put(gc.get_freeze_count()))
    process.start()
    assert log.get() <= before  # what is frozen may end meanwhile
    process.join()
    process.close()
    log.close()


def test_an_error_at_the_start_of_an_epoch_passes_through():
    class Broken(torch.utils.data.Sampler):
        def __iter__(self):
            raise ConnectionError("not yet")

    view = view_of(DataLoader(Numbers(2), batch_size=None, sampler=Broken()))
    assert type(raised_by(lambda: start_epoch(view))) is ConnectionError


@pytest.mark.parametrize("start_method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
@pytest.mark.parametrize("parent", ["dead", "here"])
def test_a_worker_whose_parent_was_killed_while_it_started_ends(start_method, parent):
    context = multiprocessing.get_context(start_method)
    gone = context.Process(target=int)
    gone.start()
    gone.join()
    worker = context.Process(target=take_signals, args=(gone.pid if parent == "dead" else os.getpid(),))
    worker.start()
    worker.join(30)
    assert worker.exitcode == (1 if parent == "dead" else 0)


def test_a_worker_of_a_fork_server_ends_with_the_program(monkeypatch):
    """The server, its parent, lives on: its workers hold what it would end by."""
    monkeypatch.setattr(orphans, "LOOK_S", 0.01)
    program, (begun, begins) = forked(threading.Event().wait), os.pipe()

    def work():
        take_signals(program)
        os.write(begins, b".")
        threading.Event().wait(WAIT_S)

    worker = forked(work)  # this process is the server
    os.read(begun, 1)
    os.kill(program, signal.SIGKILL)
    os.waitpid(program, 0)
    assert exit_code(worker, WAIT_S) == 1
    os.close(begun)
    os.close(begins)


IMAGES_WITHOUT_TORCHVISION = """
import io, sys
import numpy as np, torch
from PIL import Image
from fastload import DataLoader

file = io.BytesIO()
Image.new("RGB", (20, 10), (9, 99, 200)).save(file, "JPEG")

class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(file.getvalue())).convert("RGB")
        return torch.from_numpy(np.array(image)), "torchvision" in sys.modules

if __name__ == "__main__":
    print([batch[1].tolist() for batch in DataLoader(Pictures(), batch_size=1, num_workers=1)])
"""


@pytest.mark.slow
def test_workers_import_no_torchvision_for_the_sake_of_lazy_images():
    done = subprocess.run(
        [sys.executable, "-c", IMAGES_WITHOUT_TORCHVISION], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.stdout, done.returncode) == ("[[False], [False]]\n", 0), done.stderr


PREPARED_IN_SERVER = """
import multiprocessing
import sys
from fastload import FastLoader

class Prepared:
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.is_prepared

    def __getstate__(self):
        return {"of": "the parent"}

    def __setstate__(self, state):  # in the worker, before anything of fastload's runs there
        self.is_prepared = hasattr(sys.modules.get("fastload.lazy.images"), "_known")

if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["fastload.loader", "torchvision.transforms"])
    print(list(FastLoader(Prepared(), batch_size=None, num_workers=1, multiprocessing_context="forkserver")))
"""


@pytest.mark.slow
def test_a_fork_server_prepares_lazy_images_for_its_workers(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PREPARED_IN_SERVER)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.returncode) == ("[True]\n", 0), done.stderr
