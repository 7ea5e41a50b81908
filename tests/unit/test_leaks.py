"""The watch over leftovers sees each kind of them; otherwise it would pass everything."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from multiprocessing import shared_memory

import pytest
from leaks import Holdings, survivors


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
