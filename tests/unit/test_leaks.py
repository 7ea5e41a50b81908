"""The watch over leftovers sees each kind of them; otherwise it would pass everything."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from multiprocessing import resource_tracker, shared_memory, synchronize
from types import SimpleNamespace

import leaks
import pytest
from leaks import SHARED_MEMORY, Holdings, survivors


def test_nothing_is_reported_when_nothing_is_left():
    before = Holdings.now()
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert survivors(before) == []


def test_a_thread_is_reported():
    before = Holdings.now()
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="lingers")
    thread.start()
    try:
        assert survivors(before, grace_s=0.02) == ["thread lingers"]
    finally:
        done.set()
        thread.join()
    assert survivors(before) == []


def test_a_process_and_its_descriptors_are_reported():
    context = multiprocessing.get_context("fork")
    before = Holdings.now()
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=reader.recv, daemon=True)
    child.start()
    try:
        left = survivors(before, grace_s=0.02)
        assert [what for what in left if what.startswith(f"process {child.pid} ")]
        assert [what for what in left if what.startswith(f"descriptor {reader.fileno()} -> pipe")]
    finally:
        writer.send(None)
        child.join()
        child.close()
        reader.close()
        writer.close()
    assert survivors(before) == []


def test_a_stuck_queue_of_torchs_is_let_pass_and_nothing_beside_it():
    before = Holdings.now()
    queue = multiprocessing.get_context("fork").Queue()
    queue._wlock.acquire()  # as a process that ended while it wrote has left it
    queue.put(None)
    try:
        assert survivors(before, grace_s=0.02) == []
        done = threading.Event()
        thread = threading.Thread(target=done.wait, name="lingers")
        thread.start()
        assert "thread lingers" in survivors(before, grace_s=0.02)
        done.set()
        thread.join()
    finally:
        queue._wlock.release()
        queue.close()
        queue.join_thread()


def test_a_descriptor_is_reported(tmp_path):
    before = Holdings.now()
    number = os.open(tmp_path, os.O_RDONLY)
    try:
        assert survivors(before, grace_s=0.02) == [f"descriptor {number} -> {tmp_path}"]
    finally:
        os.close(number)


def test_shared_memory_without_an_owner_is_reported():
    before = Holdings.now()
    block = shared_memory.SharedMemory(create=True, size=64)
    block.close()  # its name stays
    try:
        assert survivors(before, grace_s=0.02) == [f"shared memory {block.name}"]
    finally:
        block.unlink()
    assert survivors(before) == []


def ended_process():
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


# Another program, and no child of this process: the one that was started has ended. For each line of input it makes
# things of all kinds and removes the former. By its first argument some of them stay open, or none.
OTHER_PROGRAM = """
import multiprocessing, os, sys
from multiprocessing import shared_memory

if os.fork():
    os._exit(0)

class Things:
    def __init__(self, number, opened, ended):
        self.block = shared_memory.SharedMemory(create=True, size=64)
        self.block.close()
        self.semaphore = multiprocessing.get_context("spawn").Lock()
        names = [f"torch_{os.getpid()}_{number}_0", f"torch_{ended}_{number}_0", f"other_{os.getpid()}_{number}"]
        self.files = [open(f"/dev/shm/{name}", "w") for name in names]
        for file in self.files[:1] if opened == "opened" else self.files:
            file.close()

    def remove(self):
        self.block.unlink()
        for file in self.files:
            file.close()
            os.unlink(file.name)

former = None
for number, _ in enumerate(sys.stdin):
    things = Things(number, *sys.argv[1:])
    if former is not None:
        former.remove()
    former = things
    print("made", flush=True)
former.remove()
"""


@contextmanager
def another_program(opened):
    """Start a program beside this one that makes and removes things on demand."""
    command = [sys.executable, "-c", OTHER_PROGRAM, opened, str(ended_process())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.wait() == 0

        def make():
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "made\n"

        try:
            yield make
        finally:
            process.stdin.close()
            assert process.stdout.read() == ""  # until it has ended


def test_shared_memory_that_another_program_keeps_is_not_reported():
    with another_program("opened") as make:
        before = Holdings.now()
        make()
        assert len(Holdings.now().shared_memory - before.shared_memory) == 5
        assert survivors(before, grace_s=0.02) == []


def test_shared_memory_that_another_program_makes_and_removes_is_not_reported(monkeypatch):
    with another_program("closed") as make:
        before = Holdings.now()
        make()
        monkeypatch.setattr(leaks, "time", SimpleNamespace(sleep=lambda seconds: make()))
        assert survivors(before, grace_s=0.02) == []


def test_shared_memory_of_the_tests_own_is_reported_beside_another_programs(monkeypatch):
    resource_tracker.ensure_running()  # else the forked process would have one of its own, which cleans up after it
    with another_program("closed") as make:
        make()
        before = Holdings.now()
        monkeypatch.setattr(leaks, "time", SimpleNamespace(sleep=lambda seconds: make()))
        of_ended = SHARED_MEMORY / f"torch_{ended_process()}_1_0"
        of_ended.touch()
        reader, writer = os.pipe()

        def leave():
            block = shared_memory.SharedMemory(create=True, size=64)
            semaphore = multiprocessing.get_context("spawn").Lock()
            os.write(writer, f"{block.name} {semaphore._semlock.name}".encode())
            os._exit(0)

        child = multiprocessing.get_context("fork").Process(target=leave)
        child.start()
        child.join()
        block_name, semaphore_name = os.read(reader, 1000).decode().split()
        os.close(reader)
        os.close(writer)
        names = [of_ended.name, block_name, f"sem.{semaphore_name.removeprefix('/')}"]
        try:
            assert sorted(survivors(before, grace_s=0.3)) == sorted(f"shared memory {name}" for name in names)
        finally:
            of_ended.unlink()
            block = shared_memory.SharedMemory(block_name)
            block.unlink()
            block.close()
            synchronize.SemLock._cleanup(semaphore_name)


def test_shared_memory_that_a_child_has_open_is_reported():
    program = (
        "import sys; from multiprocessing.shared_memory import SharedMemory; b = SharedMemory(create=True, size=64)"
    )
    program += "; print(b.name, flush=True); sys.stdin.read(); b.close(); b.unlink()"
    before = Holdings.now()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as process:
        name = process.stdout.readline().strip()
        left = survivors(before, grace_s=0.02)
        process.stdin.close()
        process.wait()
    assert f"shared memory {name}" in left


def test_shared_memory_of_another_user_is_not_reported(monkeypatch):
    before = Holdings.now()
    block = shared_memory.SharedMemory(create=True, size=64)
    block.close()
    owner = (SHARED_MEMORY / block.name).stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    try:
        assert survivors(before, grace_s=0.02) == []
    finally:
        block.unlink()


def test_what_only_a_cycle_holds_is_no_leftover(tmp_path):
    class Holder:
        def __init__(self) -> None:
            self.file = (tmp_path / "f").open("w")
            self.me = self

    gc.disable()
    try:
        before = Holdings.now()
        Holder()
        with pytest.warns(ResourceWarning):
            assert survivors(before) == []
    finally:
        gc.enable()
