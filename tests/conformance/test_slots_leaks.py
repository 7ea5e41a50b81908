"""No slot leaks, however an epoch, a worker or the whole program ends.

The backend is the simulated one: the arena is real, but not registered with CUDA. A test that kills or interrupts a
program starts one of its own.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import leaks
import psutil
import pytest
import torch
from backends import simulated
from backends.datasets import Numbers
from slots_on_cpu import free

from fastload import FastLoader
from fastload.memory.slots import SlotWriter

WAIT_S = 60  # longer than any machine takes, short of the test's own limit
TESTS = Path(__file__).parents[1]
LARGE = 50_000  # floats: larger than what is packed beside, so that it is stacked into the slot


class Rows(Numbers):
    """Sample ``i`` is a long row of ``i``; at ``bad`` too short to be stacked."""

    def __init__(self, length: int, bad: int = -1) -> None:
        super().__init__(length)
        self.bad = bad

    def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
        return torch.full((LARGE - (index == self.bad),), float(index))


def with_slots(loader):
    """Wait for the arena, which is made after the first batch."""
    deadline = time.monotonic() + WAIT_S
    while not loader.stats().slots:
        list(loader)
        assert time.monotonic() < deadline
    return loader._state.slots


@pytest.fixture
def loader_of(monkeypatch):
    simulated.install(monkeypatch)
    loaders = []

    def make(data, **own):
        loaders.append(FastLoader(data, batch_size=2, device="cuda", **{"num_workers": 2, **own}))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()


def all_come_back(pool):
    """As at the beginning of the next epoch."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        gc.collect()
        pool.reclaim()
        if free(pool) == pool.counts().slots:
            return True
        time.sleep(0.01)
    return False


def until_it_fails(loader, error, match):
    """Iterate and end the epoch."""
    iterator = iter(loader)
    with pytest.raises(error, match=match) as caught:
        for _ in iterator:
            pass
    iterator.close()
    caught.value.__traceback__ = None


@pytest.mark.parametrize("persistent", [False, True])
def test_an_error_in_the_default_collate_costs_no_slot(loader_of, persistent):
    data = Rows(16)
    loader = loader_of(data, persistent_workers=persistent, num_workers=1)
    pool = with_slots(loader)
    loader._iterator = None
    data.bad = 5
    before = loader.stats().slot_batches
    for _ in range(3):
        until_it_fails(loader, RuntimeError, r"equal size|resize storage")
        loader._iterator = None
    assert loader.stats().slot_batches - before >= 6
    data.bad = -1
    assert [int(batch[0, 0]) for batch in loader] == list(range(0, 16, 2))
    loader._iterator = None
    assert all_come_back(pool)


def test_a_worker_that_is_killed_while_it_takes_a_slot_costs_none(loader_of, monkeypatch):
    loader = loader_of(Rows(16))
    pool = with_slots(loader)
    with monkeypatch.context() as patched:
        patched.setattr(SlotWriter, "_mapping", lambda self, token: os.kill(os.getpid(), signal.SIGKILL))
        until_it_fails(loader, RuntimeError, "DataLoader worker")
    assert free(pool) < pool.counts().slots
    iterator = iter(loader)
    assert [pids for _, pids in pool._users] == [[worker.pid for worker in iterator._workers]]  # also when it is gone
    del iterator
    assert [int(batch[0, 0]) for batch in loader] == list(range(0, 16, 2))
    assert all_come_back(pool)


def test_an_error_in_a_users_collate_costs_no_slot(loader_of):
    def collate(samples):
        if float(samples[0][0]) == 10:
            raise ValueError("of the user's")
        return {"x": torch.stack(samples)}

    loader = loader_of(Rows(10), collate_fn=collate)
    pool = with_slots(loader)
    loader.dataset.length = 16
    assert list(loader.batch_sampler)[5] == [10, 11]
    before = loader.stats().slot_batches
    for _ in range(3):
        until_it_fails(loader, ValueError, "of the user's")
    assert loader.stats().slot_batches - before >= 15
    assert all_come_back(pool)


@pytest.mark.each_value
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 4])
def test_slots_come_back_from_an_epoch_that_is_broken_off(loader_of, taken, persistent):
    loader = loader_of(Rows(24), persistent_workers=persistent)
    pool = with_slots(loader)
    for _ in range(3):
        iterator = iter(loader)
        seen = [next(iterator) for _ in range(taken)]
        del iterator
    del seen
    before = loader.stats()
    assert [int(batch[0, 0]) for batch in loader] == list(range(0, 24, 2))
    after = loader.stats()
    if not persistent:  # else what was left of the last one arrives too, and is dropped
        assert after.slot_batches - before.slot_batches == 12, after.missed  # the next epoch lacks none
    loader._iterator = None
    assert all_come_back(pool)


def test_slots_come_back_from_iterators_at_the_same_time(loader_of):
    loader = loader_of(Rows(24))
    pool = with_slots(loader)
    one, two = iter(loader), iter(loader)
    mixed = [next(one), next(two), next(two), next(one)]
    three = iter(loader)
    assert [int(batch[0, 0]) for batch in three] == list(range(0, 24, 2))
    assert [int(batch[0, 0]) for batch in [*one, *two]] == 2 * list(range(4, 24, 2))
    assert [int(batch[0, 0]) for batch in mixed] == [0, 0, 2, 2]
    del one, two, three
    assert all_come_back(pool)


def memfds() -> list[str]:
    """The arenas that this process has open or mapped."""
    maps = Path("/proc/self/maps").read_text()
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [name for name in [*links, *maps.split("\n")] if "fastload-arena" in name]


@pytest.mark.parametrize("how", ["closed", "garbage", "garbage with an iterator", "in a cycle"])
def test_the_arena_is_gone_with_its_loader(monkeypatch, how):
    simulated.install(monkeypatch)
    assert not memfds()
    loader = FastLoader(Rows(16), batch_size=2, num_workers=1, device="cuda")
    with_slots(loader)
    iterator = iter(loader) if how in ("garbage with an iterator", "in a cycle") else None
    batch = next(iterator) if iterator is not None else None
    assert memfds()
    if how == "closed":
        loader.close()
    if how == "in a cycle":
        loader.me = [loader, iterator]
    del loader, iterator
    gc.collect()
    deadline = time.monotonic() + WAIT_S
    while memfds() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert not memfds()
    assert batch is None or batch[0, 0] == 0


PROGRAM = """
import os, signal, sys, time
import pytest, torch
from backends import simulated
from conformance_slots import *
from fastload.workers.start import route_of

if __name__ == "__main__":
    simulated.install(pytest.MonkeyPatch())
"""


def program(body, folder, *before):
    (folder / "conformance_slots.py").write_text(f"from test_slots_leaks import {', '.join(SHARED)}\n")
    script = folder / "program.py"
    script.write_text(PROGRAM + textwrap.indent(textwrap.dedent(body), "    "))
    path = os.pathsep.join(map(str, [folder, TESTS, Path(__file__).parent, os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [*before, sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )


SHARED = ["FastLoader", "Rows", "all_come_back", "with_slots", "free", "gc"]
RUNNING = """
loader = FastLoader(Rows(100_000), batch_size=2, num_workers=2, device="cuda")
iterator = iter(loader)
while not loader.stats().slot_batches:
    next(iterator)
for _ in range(8):  # until each worker has come to a slot
    next(iterator)
arena = loader._state.slots._current
print(os.fstat(arena.descriptor).st_ino, *(worker.pid for worker in iterator._workers), flush=True)
sys.stdin.readline()
"""


class Watched:
    """A running program, its workers and its arena."""

    def __init__(self, process):
        self.process = process
        self.shared_memory = leaks._shared_memory()
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        self.inode, *pids = map(int, line.split())
        self.workers = [psutil.Process(pid) for pid in pids]
        assert len(self.holders()) == 3
        process.stdin.write("\n")
        process.stdin.flush()

    def holders(self):
        """The processes that have the arena open or mapped."""
        pattern = re.compile(rf"\s{self.inode}\s+/memfd:fastload-arena")
        found = set()
        for process in psutil.process_iter():
            try:
                if pattern.search(Path(f"/proc/{process.pid}/maps").read_text()):
                    found.add(process.pid)
            except OSError:
                continue
        return found

    def all_gone(self):
        _, alive = psutil.wait_procs(self.workers, timeout=WAIT_S)
        assert not alive
        assert not self.holders()
        assert not leaks._ours(leaks._shared_memory() - self.shared_memory)

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        for worker in self.workers:
            if worker.is_running():
                worker.kill()


@pytest.fixture
def running(tmp_path):
    started = []

    def start(body):
        started.append(Watched(program(RUNNING + textwrap.dedent(body), tmp_path)))
        return started[-1]

    yield start
    for watched in started:
        watched.end()


@pytest.mark.slow
def test_nothing_is_left_when_the_program_is_killed(running):
    watched = running("for batch in iterator: pass")
    watched.process.kill()
    watched.process.wait(WAIT_S)
    watched.all_gone()


@pytest.mark.slow
def test_nothing_is_left_after_ctrl_c(running):
    watched = running("for batch in iterator: pass")
    os.killpg(watched.process.pid, signal.SIGINT)
    _, err = watched.process.communicate(timeout=WAIT_S)
    assert watched.process.returncode in (-signal.SIGINT, 128 + signal.SIGINT, 1)
    assert "KeyboardInterrupt" in err
    watched.all_gone()


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "del loader", "next(iterator); batch = next(iterator)"])
@pytest.mark.slow
def test_nothing_is_left_or_said_when_the_program_ends_in_the_middle_of_an_epoch(running, end):
    watched = running(end)
    _, err = watched.process.communicate(timeout=WAIT_S)
    assert (watched.process.returncode, err) == (0, "")
    watched.all_gone()


@pytest.mark.slow
def test_an_error_in_the_program_leaves_nothing(running):
    watched = running("raise ValueError('of the training loop')")
    _, err = watched.process.communicate(timeout=WAIT_S)
    assert watched.process.returncode == 1
    assert err.rstrip().endswith("ValueError: of the training loop")
    watched.all_gone()


@pytest.mark.slow
def test_the_slot_of_a_worker_that_is_killed_while_it_fills_it_serves_the_next_epoch(tmp_path):
    """Uses another program: torch's handler of a dead child may raise anywhere here."""
    body = """
    from fastload.memory.slots import SlotWriter, SlotState

    acquire = SlotWriter.acquire

    def deadly(self, home, nbytes=0):
        acquired = acquire(self, home, nbytes)
        if acquired is not None and home == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return acquired

    def filling():
        arena = pool._current
        return sum(arena.mapping.state(index) is SlotState.FILLING for index in range(arena.count))

    loader = FastLoader(Rows(40), batch_size=2, num_workers=2, device="cuda")
    pool = with_slots(loader)
    for _ in range(3):
        SlotWriter.acquire = deadly
        try:
            list(loader)
        except RuntimeError as error:
            print("RuntimeError:", error)
        SlotWriter.acquire = acquire
        gc.collect()
        print(filling() > 0)
        before = loader.stats().slot_batches
        print([int(batch[0, 0]) for batch in loader] == list(range(0, 40, 2)))
        print(loader.stats().slot_batches - before, filling(), free(pool) == pool.counts().slots)
    """
    process = program(body, tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    lines = out.splitlines()
    errors = [line for line in lines if line.startswith("RuntimeError: ")]
    assert len(errors) == 3, out + err
    assert all(
        re.search(r"DataLoader worker \(pid.* (is killed by signal: Killed|exited unexpectedly)", e) for e in errors
    )
    assert [line for line in lines if line not in errors] == ["True", "True", "20 0 True"] * 3


SMALL_BYTES = 2**18  # room for the semaphores of torch's queues


def small_shared_memory() -> list[str]:
    """A command that runs what follows with a small /dev/shm of its own."""
    mount = f'mount -t tmpfs -o size={SMALL_BYTES} tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small /dev/shm")
    return command


@pytest.mark.slow
def test_a_small_dev_shm_gives_one_clear_error(tmp_path):
    """The first batch, whose size sets that of the slots, goes through torch's shared memory."""
    body = """
    print(os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize)
    loader = FastLoader(Rows(40), batch_size=2, num_workers=1, device="cuda")
    for _ in range(2):
        try:
            print([int(batch[0, 0]) for batch in loader] == list(range(0, 40, 2)))
        except RuntimeError as error:
            print("RuntimeError:", str(error).splitlines()[-1])
    """
    process = program(body, tmp_path, *small_shared_memory())
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    size, *lines = out.splitlines()
    assert int(size) == SMALL_BYTES
    assert len(lines) == 2
    assert all(re.search(r"shared memory.*(No space left|limit)", line) for line in lines), out


@pytest.mark.slow
def test_slots_do_not_count_against_dev_shm(tmp_path):
    """Not one batch would fit there."""
    body = """
    loader = FastLoader(Rows(400), batch_size=2, num_workers=2, device="cuda")
    pool = loader._state.slot_pool(loader, route_of(loader))
    pool.want(401_408, wait=True)
    for _ in range(3):
        print([int(batch[0, 0]) for batch in loader] == list(range(0, 400, 2)))
    print(loader.stats().slot_batches, dict(loader.stats().missed))
    """
    process = program(body, tmp_path, *small_shared_memory())
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.splitlines() == ["True", "True", "True", "600 {}"]
