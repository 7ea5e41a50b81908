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


def test_an_interrupted_compilation_keeps_nobody_waiting():
    def compile_one(key: str) -> str:
        raise KeyboardInterrupt

    compiled = nvrtc.Compiled(compile_one)
    with pytest.raises(KeyboardInterrupt):
        compiled.wait("key")
    assert compiled.wait("key") == "compiling was interrupted"


def test_without_threads_it_is_compiled_at_once(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no more")))
    compiled = nvrtc.Compiled(str.upper)
    compiled.start("key")
    assert compiled.get("key") == "KEY"
