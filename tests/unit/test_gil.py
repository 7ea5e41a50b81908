"""Test whether waits for the GIL are seen, and who holds it."""

from __future__ import annotations

import contextlib
import threading
import time

from fastload.stats import gil
from fastload.stats.gil import GilHolders, gil_wait_s, holds_gil


def compute(stop):
    while not stop.is_set():
        sum(range(1000))


@contextlib.contextmanager
def threads(**functions):
    """Run functions in threads of these names, until the context ends."""
    stop = threading.Event()
    started = [threading.Thread(target=run, args=(stop,), name=name) for name, run in functions.items()]
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in started:
            thread.join()


def test_a_wait_for_the_gil_is_measured():
    assert not holds_gil(min(gil_wait_s() for _ in range(20)))
    with threads(other=compute):
        assert any(holds_gil(gil_wait_s()) for _ in range(2000))  # few of them where cores are scarce


def test_the_thread_that_computes_is_named_with_its_line_and_no_thread_that_waits():
    holders = GilHolders()
    with threads(metrics=compute, idle=threading.Event.wait):
        until = time.monotonic() + 30.0
        while holders.most() is None and time.monotonic() < until:
            holders._looks = 0
            holders.look()
    assert holders.most().startswith("thread 'metrics', mostly at test_gil.py:")
    assert holders.most().endswith(" in compute")


def test_the_most_frequent_line_is_that_of_the_most_frequent_thread():
    holders = GilHolders()
    assert holders.most() is None
    holders._found.update({("a", "x.py:1 in f"): 3, ("b", "y.py:1 in g"): 2, ("b", "y.py:2 in g"): 2})
    holders._found["b", "y.py:2 in g"] += 1
    assert holders.most() == "thread 'b', mostly at y.py:2 in g"


def test_looks_end(monkeypatch):
    waits = []
    monkeypatch.setattr(gil, "gil_wait_s", lambda: waits.append(1) or 0.0)
    holders = GilHolders()
    for _ in range(gil.LOOKS_MAX + 20):
        holders.look()
    assert len(waits) == gil.LOOKS_MAX
    assert holders.most() is None


def test_without_the_schedulers_figures_nobody_is_named(monkeypatch):
    monkeypatch.setattr(gil, "_scheduled", lambda thread: (0.0, 0.0))
    monkeypatch.setattr(gil, "gil_wait_s", lambda: 5e-3)
    holders = GilHolders()
    with threads(metrics=compute):
        holders.look()
    assert holders.most() is None
