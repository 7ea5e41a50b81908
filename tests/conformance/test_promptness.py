"""A ready batch is delivered at once, and loading ends at once when told to."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
from backends import simulated
from backends.datasets import Gated, Images, Numbers, collect
from torch.utils.data import Dataset

from fastload import FastLoader, iterators
from fastload.workers.worker import SWITCH_S

WAIT_S = 60  # longer than any machine takes, short of the test's own limit
TESTS = Path(__file__).parents[1]


@pytest.fixture
def gate(backend):
    """Events that a worker shares: it got there, and it may go on."""
    events = [multiprocessing.Event(), multiprocessing.Event()]
    yield events
    events[-1].set()
    events.clear()  # pytest keeps the list longer than semaphores may live


class Computing(Dataset):
    """Python code makes these samples; each is its time and the worker's switch interval."""

    def __len__(self):
        return 16 * 14

    def __getitem__(self, index):
        end = time.thread_time() + 1e-3
        while time.thread_time() < end:
            pass
        return time.monotonic(), sys.getswitchinterval()


def test_a_batch_is_sent_while_python_code_makes_the_next_one():
    """Torch's worker sends from a thread that waits 5 ms for the GIL by default.

    Not where the worker has to wait for a core anyway, so that it is enough to see it once.
    """
    seen = []
    while len(seen) < 5 and not any(promptly < usually / 2 for usually, promptly in seen):
        took, intervals = {}, {}
        for engine in ("torch", "auto"):
            with FastLoader(Computing(), batch_size=16, num_workers=1, device="cpu", engine=engine) as loader:
                came = [(time.monotonic() - made[-1].item(), interval[0].item()) for made, interval in loader]
            took[engine] = statistics.median(seconds for seconds, _ in came)
            intervals[engine] = came[-1][1]
        assert intervals == {"torch": pytest.approx(sys.getswitchinterval()), "auto": pytest.approx(SWITCH_S)}
        seen.append((took["torch"], took["auto"]))
    assert any(promptly < usually / 2 for usually, promptly in seen), seen


@pytest.mark.parametrize("own_s", [1e-4, 1e-2])
def test_the_users_own_switch_interval_stands(own_s):
    """Set in ``worker_init_fn``, it is the last word; one of the parent's is inherited."""
    dataset = torch.utils.data.Subset(Computing(), range(2))
    with FastLoader(
        dataset, num_workers=1, device="cpu", worker_init_fn=lambda worker: sys.setswitchinterval(own_s)
    ) as loader:
        assert next(iter(loader))[1].item() == pytest.approx(own_s)
    before = sys.getswitchinterval()
    sys.setswitchinterval(own_s)
    try:
        with FastLoader(dataset, num_workers=1, device="cpu") as loader:
            assert next(iter(loader))[1].item() == pytest.approx(own_s)
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize(("num_workers", "persistent"), [(1, False), (2, True)])
def test_a_ready_batch_is_not_held_back_by_the_next_one(backend, gate, num_workers, persistent):
    reached, may_go_on = gate
    data = Gated(12, 6, reached, may_go_on)
    own = {"num_workers": num_workers, "persistent_workers": persistent, "timeout": WAIT_S}
    iterator = iter(backend.loader(data, batch_size=2, **own))
    for batch in range(3):  # the fourth cannot be loaded yet
        assert next(iterator)[1].tolist() == [2 * batch, 2 * batch + 1]
    assert reached.wait(WAIT_S)
    assert not may_go_on.is_set()
    may_go_on.set()
    assert [batch[1].tolist() for batch in iterator] == [[6, 7], [8, 9], [10, 11]]


def test_batches_out_of_order_pass_a_slow_one(backend, gate):
    reached, may_go_on = gate
    loader = backend.loader(Gated(8, 0, reached, may_go_on), 2, num_workers=2, in_order=False, timeout=WAIT_S)
    iterator = iter(loader)
    assert next(iterator)[1].tolist() == [2, 3]
    may_go_on.set()
    rest = sorted(batch[1].tolist() for batch in iterator)
    assert rest == [[0, 1], [4, 5], [6, 7]]


@pytest.fixture
def copies(monkeypatch):
    """Install the simulated backend; return a queue of the batches that have been copied."""
    simulated.install(monkeypatch)
    started: queue.Queue[int] = queue.Queue()

    class Noted(simulated.SimulatedTransfer):
        def start(self, data, batch=None, **rest):
            number = int(data[1][0])  # read now: a slot may be another batch's once it has been copied
            copied = super().start(data, batch, **rest)
            started.put(number)
            return copied

    monkeypatch.setattr(iterators, "Transfer", Noted)
    return started


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_the_next_batches_are_copied_before_they_are_asked_for(copies, num_workers, ahead):
    loader = FastLoader(Numbers(12), num_workers=num_workers, prefetch_factor=5, device="cuda", device_prefetch=ahead)
    iterator = iter(loader)
    for number in range(4):
        next(iterator)
        upto = number + ahead
        seen = []
        while upto not in seen:
            seen.append(copies.get(timeout=WAIT_S))
        assert max(seen) == upto
    assert copies.empty()


def test_nothing_is_copied_ahead_when_that_is_turned_off(copies):
    loader = FastLoader(Numbers(6), num_workers=1, prefetch_factor=5, device="cuda", device_prefetch=0)
    iterator = iter(loader)
    names = {thread.name for thread in threading.enumerate()}
    for number in range(6):
        next(iterator)
        assert copies.get(timeout=WAIT_S) == number
        assert copies.empty()
    assert "fastload-copy-scheduler" not in names


def test_images_are_laid_out_as_asked(monkeypatch):
    simulated.install(monkeypatch)
    for memory_format in (torch.channels_last, torch.contiguous_format):
        loader = FastLoader(Images(4), 2, num_workers=1, device="cuda", memory_format=memory_format)
        for images, _ in loader:
            assert images.is_contiguous(memory_format=memory_format)
            assert torch.equal(images[0], Images(4)[int(images[0, 0, 0, 0])][0])


PROGRAM = """
import multiprocessing, sys
import pytest, torch
from backends import BACKENDS
from backends.datasets import *

if __name__ == "__main__":
    backend = BACKENDS[sys.argv[1]]
    backend.install(pytest.MonkeyPatch())
    loader_class = backend.loader
"""


def program(backend, body, folder):
    script = folder / "program.py"
    script.write_text(PROGRAM + textwrap.indent(textwrap.dedent(body), "    "))
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, script, backend.name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )


@pytest.mark.slow
def test_a_killed_worker_is_an_error_and_the_next_epoch_is_whole(backend, tmp_path):
    """Uses another process: torch's handler of a dead child may raise anywhere here.

    The worker dies in its first batch; with one under way the error may be one of the connection, in torch too.
    """
    if backend.name == "plain":
        pytest.skip("torch's own, and slow to start")
    body = """
    deadly = multiprocessing.Event()
    for persistent in (False, True):
        deadly.set()
        loader = loader_class(Deadly(8, deadly), batch_size=2, num_workers=1, persistent_workers=persistent)
        try:
            list(loader)
        except RuntimeError as error:
            print("RuntimeError:", error)
        if persistent:
            loader._iterator = None
        print(sum(len(batch[1]) for batch in loader))
        loader.close()
    """
    process = program(backend, body, tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    lines = out.splitlines()
    assert [line for line in lines if not line.startswith("RuntimeError")] == ["8", "8"]
    errors = [line for line in lines if line.startswith("RuntimeError: DataLoader worker (pid")]
    assert len(errors) == 2, out + err
    assert all("is killed by signal: Killed" in line or "exited unexpectedly" in line for line in errors)


@pytest.mark.slow
def test_ctrl_c_ends_everything(backend, tmp_path):
    if backend.name == "plain":
        pytest.skip("torch's own, and slow to start")
    body = """
    data = Gated(8, 4, multiprocessing.Event(), multiprocessing.Event())
    iterator = iter(loader_class(data, batch_size=2, num_workers=2, persistent_workers=True))
    print(*(worker.pid for worker in iterator._workers), flush=True)
    for batch in iterator:
        print("batch", batch[1].tolist(), flush=True)
    """
    process = program(backend, body, tmp_path)
    try:
        workers = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
        assert [process.stdout.readline() for _ in range(2)] == ["batch [0, 1]\n", "batch [2, 3]\n"]
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
        assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT, 1)
        assert "KeyboardInterrupt" in err
        _, alive = psutil.wait_procs(workers, timeout=WAIT_S)
        assert not alive
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_breaking_off_ends_the_threads_at_once(backend):
    """No garbage collection is needed: nothing here may be part of a reference cycle."""
    import gc

    gc.collect()
    gc.disable()
    try:
        before = set(threading.enumerate())
        iterator = iter(backend.loader(Numbers(20), batch_size=2, num_workers=1))
        next(iterator)
        workers = iterator._workers
        del iterator
        assert not any(worker.is_alive() for worker in workers)
        assert {t.name for t in set(threading.enumerate()) - before} <= {"QueueFeederThread"}
        assert len(collect(backend.loader(Numbers(4), num_workers=1))) == 4
    finally:
        gc.enable()
