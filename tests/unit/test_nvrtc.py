"""Test how kernels are compiled and launched, without a device."""

from __future__ import annotations

import importlib
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastload.device import nvrtc


def test_one_thread_at_a_time_imports_cuda_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not whole in ``sys.modules`` meanwhile, and Python lets other threads have it."""
    inside = threading.Semaphore()
    others, free = threading.Barrier(2), []

    def slow_import(name: str) -> Any:
        free.append(inside.acquire(blocking=False))
        others.wait() if len(free) == 1 else None
        inside.release()
        return name

    monkeypatch.setattr(importlib, "import_module", slow_import)
    first = threading.Thread(target=nvrtc._core_module)
    second = threading.Thread(target=nvrtc._core_module)
    first.start()
    second.start()
    second.join(0.05)
    others.wait(10.0)
    first.join()
    second.join()
    assert free == [True, True]


def test_a_thread_makes_a_device_current_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    current = threading.local()

    def device_of(index: int) -> SimpleNamespace:
        def set_current() -> None:
            made.append(index)
            current.device = index

        return SimpleNamespace(set_current=set_current)

    monkeypatch.setattr(nvrtc, "_core_module", lambda: SimpleNamespace(Device=device_of))
    monkeypatch.setattr(nvrtc, "_stream", lambda handle: handle)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: getattr(current, "device", 0), raising=False)

    def launch() -> None:
        for index in (0, 0, 1, 1, 0):
            nvrtc.launcher(torch.device("cuda", index))
        current.device = 1  # by the program
        nvrtc.launcher(torch.device("cuda", 0))

    for _ in range(2):
        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
    assert made == [0, 1, 0, 0] * 2


def test_what_is_compiled_once_is_there_for_all_who_ask():
    may_end, made = threading.Event(), []

    def compile_one(key: str) -> list[str] | str:
        made.append((key, threading.current_thread().name))
        may_end.wait(20)
        return f"no {key}" if key == "bad" else [key]

    compiled = nvrtc.Compiled(compile_one)
    assert compiled.get("good") is None
    for key in ("good", "bad", "good"):
        compiled.start(key)
    assert compiled.is_compiling("good")
    assert compiled.get("good") is None
    waiting = [threading.Thread(target=compiled.wait, args=("good",)) for _ in range(3)]
    for thread in waiting:
        thread.start()
    may_end.set()
    for thread in waiting:
        thread.join(20)
    assert compiled.wait("bad") == compiled.get("bad") == "no bad"
    assert compiled.wait("good") is compiled.get("good")
    assert compiled.wait("other") == ["other"]
    assert not compiled.is_compiling("good")
    assert sorted(made) == [("bad", "fastload-nvrtc"), ("good", "fastload-nvrtc"), ("other", "MainThread")]


def test_what_was_interrupted_is_compiled_by_who_waits_or_comes_next():
    begun, may_end, made = threading.Event(), threading.Event(), []

    def compile_one(key: str) -> str:
        made.append(threading.current_thread().name)
        if len(made) == 1:
            begun.set()
            may_end.wait(20)
            raise KeyboardInterrupt
        return key

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            compiled.wait("key")

    compiled = nvrtc.Compiled(compile_one)
    first = threading.Thread(target=interrupted, name="first")
    second = threading.Thread(target=compiled.wait, args=("key",), name="second")
    first.start()
    begun.wait(20)
    second.start()
    may_end.set()
    first.join(20)
    second.join(20)
    assert compiled.get("key") == "key"
    assert made == ["first", "second"]
    assert not compiled.is_compiling("key")


@pytest.mark.parametrize("how", ["start", "wait"])
def test_an_interrupt_at_any_moment_leaves_nobody_waiting(monkeypatch, how):
    """Here right after the job was noted."""

    class Jobs(dict):
        def setdefault(self, key: str, job: object) -> object:
            noted = super().setdefault(key, job)
            if not interrupted:
                interrupted.append(key)
                raise KeyboardInterrupt
            return noted

    interrupted: list[str] = []
    compiled = nvrtc.Compiled(str.upper)
    compiled._jobs = Jobs()
    with pytest.raises(KeyboardInterrupt):
        getattr(compiled, how)("key")
    assert not compiled.is_compiling("key")
    assert compiled.wait("key") == "KEY"


def test_without_threads_it_is_compiled_at_once(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no more")))
    compiled = nvrtc.Compiled(str.upper)
    compiled.start("key")
    assert compiled.get("key") == "KEY"
