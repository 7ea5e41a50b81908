"""A decode thread that is stuck in a read blocks no other thread."""

from __future__ import annotations

import functools
import io
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from jpeg_writer import write_jpeg
from native_shim import CSRC, compiled
from PIL import Image

from fastload import _core

PRELUDE = """
import gc, importlib.util, os, signal, sys, threading, time, weakref
import numpy as np

core_file, stalled, sound, entered, gate = sys.argv[1:]
spec = importlib.util.spec_from_file_location("_core", core_file)  # without the package, so that it starts at once
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
names = core.status_names()

def submit(pool, *paths):
    out = np.full((len(paths), 16, 16, 3), 7, np.uint8)
    return pool.submit(paths, out, geometry=np.zeros((len(paths), 12), np.int32)), out

def stuck(threads):  # a pool with a thread that is in a stalled read, the job, and its output
    pool = core.Pool(threads)
    job, out = submit(pool, stalled, sound)
    open(entered, "rb").read()
    return pool, job, out

def release():
    open(gate, "wb").close()

def soon(begun):
    return time.monotonic() - begun < 30  # a stalled read is released by the script alone
"""


def run_stalling(tmp_path: Path, script: str, **more: str) -> None:
    """Run ``script`` after the prelude; reading one file stalls until it is released."""
    names = ("stalled.jpg", "sound.jpg", "entered", "gate")
    stalled, sound, entered, gate = (str(tmp_path / name) for name in names)
    for path in (stalled, sound):
        if not Path(path).exists():
            Path(path).write_bytes(write_jpeg(16, 16))
    os.mkfifo(entered)
    os.mkfifo(gate)
    preload = {"STALL_FILE": stalled, "STALL_ENTERED": entered, "STALL_GATE": gate}
    preload["LD_PRELOAD"] = compiled([CSRC / "tests" / "stall.cpp"])
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script), _core.__file__, stalled, sound, entered, gate],
        env={**os.environ, **preload, **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    return functools.partial(run_stalling, tmp_path)


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="preloads a library")


def test_close_and_waiters_do_not_wait_for_a_stuck_thread(run: Callable[..., None]) -> None:
    run(
        """
        pool, job, out = stuck(2)
        answers = []
        waiter = threading.Thread(target=lambda: answers.append(job.wait()))
        waiter.start()
        begun = time.monotonic()
        assert pool.close(0.05) is False
        waiter.join()
        assert soon(begun)
        assert answers == ["done"]
        assert names[job.statuses()[0]] == "cancelled"
        release()
        assert pool.close() is True
        assert names[job.statuses()[0]] == "cancelled"  # what the thread found out is dropped
        assert (out[0] == 7).all()
        """,
        STALL_FAILS="1",
    )


def test_output_and_bytes_stay_until_the_stuck_thread_has_left_them(run: Callable[..., None]) -> None:
    run(
        """
        pool = core.Pool(1)
        data = np.fromfile(sound, np.uint8)
        out = np.full((2, 16, 16, 3), 7, np.uint8)
        job = pool.submit([stalled, data], out, geometry=np.zeros((2, 12), np.int32))
        open(entered, "rb").read()
        begun = time.monotonic()
        assert job.cancel(0.05) is False
        alive = weakref.ref(out), weakref.ref(data)
        del job, out, data
        gc.collect()
        assert soon(begun)
        assert all(ref() is not None for ref in alive)
        later, _ = submit(pool, sound)  # looks whether anything can be freed: nothing can
        assert all(ref() is not None for ref in alive)
        release()
        assert later.wait() == "done"  # by the same thread, so it has left the former job
        submit(pool, sound)[0].wait()
        assert all(ref() is None for ref in alive)
        assert pool.close() is True
        """
    )


def test_dropped_job_of_a_closed_pool_does_not_wait_again(run: Callable[..., None]) -> None:
    run("""
        pool, job, out = stuck(1)
        begun = time.monotonic()
        assert pool.close(0.05) is False
        alive = weakref.ref(out)
        del job, out, pool
        assert soon(begun)
        assert alive() is not None
        release()
        while alive() is not None:
            core.Pool(1).close()
        """)


def test_others_run_while_one_waits_for_a_stuck_thread(run: Callable[..., None]) -> None:
    """Cancelling, closing and dropping release the GIL: else the read would never end."""
    run("""
        sys.setswitchinterval(10)  # so that the waiter has the GIL until it lets go of it
        for wait in (lambda: held[1].cancel(), lambda: held[0].close(60), lambda: held.pop(0)):
            held = list(stuck(1))
            begun = time.monotonic()
            begun_to_wait = threading.Event()
            waiter = threading.Thread(target=lambda: (begun_to_wait.set(), wait()))
            waiter.start()
            begun_to_wait.wait()
            release()
            waiter.join()
            assert soon(begun)
        """)


def test_signals_interrupt_an_unbounded_cancel(run: Callable[..., None]) -> None:
    run("""
        pool, job, out = stuck(1)

        def interrupt(number, frame):
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        begun = time.monotonic()
        try:
            job.cancel()
            raise AssertionError("not interrupted")
        except KeyboardInterrupt:
            assert soon(begun)
        release()
        assert job.cancel() is True
        assert pool.close() is True
        """)


def test_stuck_read_in_the_middle_of_a_pool_that_shrinks(run: Callable[..., None]) -> None:
    run("""
        pool, job, out = stuck(3)
        begun = time.monotonic()
        for threads in (1, 3, 1, 2):
            assert pool.resize(threads) == threads
        assert submit(pool, sound)[0].wait(30.0) == "done"
        assert soon(begun)
        release()
        assert job.wait() == "done"
        assert set(job.statuses()) == {0}
        assert pool.close() is True
        """)


@pytest.mark.slow
@pytest.mark.parametrize("closed", [True, False])
def test_process_ends_with_a_stuck_thread(closed: bool, run: Callable[..., None]) -> None:
    begun = time.monotonic()
    run(f"""
        pool, job, out = stuck(1)
        if {closed}:
            assert pool.close(0.05) is False
            del job, out
        """)
    assert time.monotonic() - begun < (5 if closed else 12)


@pytest.mark.parametrize("sound_bytes", [0, 1 << 18, 1 << 19, 3 << 20])
def test_failing_read_of_a_large_file_says_why(sound_bytes: int, run: Callable[..., None], tmp_path: Path) -> None:
    """The read fails in the header, in the scan, or behind the region."""
    fill = b"\xff" * (1 << 20) if sound_bytes < 1 << 19 else b""
    noise = np.random.default_rng(0).integers(0, 256, (1400, 1200, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "JPEG", quality=100, subsampling="4:4:4")
    file = buffer.getvalue()
    assert len(file) > 3 << 20
    (tmp_path / "stalled.jpg").write_bytes(file[:2] + fill + file[2:])
    run(
        """
        pool = core.Pool(1)
        for crop in ([0, 0, 16, 16], [1300, 0, 16, 16]):
            geometry = np.zeros((1, 12), np.int32)
            geometry[:, :4] = crop
            job = pool.submit([stalled], np.empty((1, 16, 16, 3), np.uint8), geometry=geometry)
            assert job.wait() == "done"
            assert job.outcome(0)[:2] == ("unreadable", 5), job.outcome(0)
        pool.close()
        """,
        FAIL_FROM=str(sound_bytes),
    )
