"""Keep what torch's loader makes in a test for the next run of it.

An outcome lies in ``build/references`` with a key of what decides it: the sources of the test and of all helpers, every
installed package, Python, the processor. ``pytest --all`` makes each outcome anew. One that took any of our own code is
not kept: no key covers that. A test that fails deletes what it was given from the disk.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import io
import mmap
import os
import pickle
import platform
import re
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import popen_fork
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

T = TypeVar("T")
TESTS = Path(__file__).parent
KEPT = TESTS.parent / "build" / "references"
OURS = tuple(f"{TESTS.parent / name}{os.sep}" for name in ("fastload", "benchmarks"))


@dataclass
class _Test:
    """The test that is running."""

    item: pytest.Item
    temporary: str  # folder of all tests' files, whose name is another in each run
    keeps: bool
    calls: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    given: set[Path] = field(default_factory=set)

    def folders(self) -> dict[str, str]:
        """Return the test's own folders by the fixtures' names, the longest paths first."""
        fixtures = getattr(self.item, "funcargs", {}).items()
        paths = {name: str(value) for name, value in fixtures if isinstance(value, str | Path)}
        below = {name: path for name, path in paths.items() if path.startswith(self.temporary + os.sep)}
        return dict(sorted(below.items(), key=lambda pair: len(pair[1]), reverse=True))


_FORKS = popen_fork.Popen._launch.__code__  # calls what we have registered with os.register_at_fork()
_test: _Test | None = None
_fresh = False
_made: dict[Path, Any] = {}  # in this run; a value that cannot be pickled, else None


def begin(item: pytest.Item) -> None:
    """Let references belong to this test."""
    global _test, _fresh
    _fresh = item.config.getoption("all")
    factory = item.config._tmp_path_factory  # type: ignore[attr-defined]
    drawn = hasattr(getattr(item, "obj", None), "hypothesis")  # its examples are others in each run
    _test = _Test(item, str(factory.getbasetemp()), not drawn)


def forget() -> bool:
    """Delete what the test was given; return whether there was anything."""
    given = _test.given if _test is not None else set()
    for path in given:
        path.unlink(missing_ok=True)
    return bool(given)


def kept(make: Callable[[], T], *, name: str | None = None) -> T:
    """Return what ``make()`` returns, from an earlier run if it is kept.

    Args:
        make: Needs none of our code. Whatever it does beside returning a value is not done again.
        name: Of the test, where several tests make the same.
    """
    test = _test
    if test is None or not test.keeps:
        return make()
    place = (name or test.item.nodeid, *_lines(sys._getframe(1)))
    test.calls[place] += 1
    path = KEPT / test.item.path.stem / hashlib.sha256(repr((place, test.calls[place])).encode()).hexdigest()[:24]
    key, folders = _key(test.item.path), test.folders()
    if path in _made or not _fresh:
        if path in _made and _made[path] is not None:
            return copy.deepcopy(_made[path])
        with contextlib.suppress(OSError, LookupError):
            kept_key, data = path.read_bytes().split(b"\n", 1)
            if kept_key.decode() == key:
                value = _unpickled(zlib.decompress(data), folders)
                test.given.add(path)
                return value
    value, by_us = _watched(make)
    try:
        data = _pickled(value, folders, test.temporary)
        value = _unpickled(data, folders)  # what later runs get
    except Exception:  # a class that a function has made, a tensor without memory, a file in no fixture's folder
        if name is not None:
            _made[path] = copy.deepcopy(value)
        return value
    if not by_us:
        _made[path] = None
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(key.encode() + b"\n" + zlib.compress(data, 1))
        os.replace(file.name, path)
    return value


def _lines(frame: Any) -> list[tuple[str, int]]:
    """Name the lines of tests that lead here."""
    lines = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(str(TESTS)):
            lines.append((frame.f_code.co_filename.removeprefix(str(TESTS)), frame.f_lineno))
        frame = frame.f_back
    return lines


def _watched(make: Callable[[], T]) -> tuple[T, bool]:
    """Call ``make``; tell whether that ran our code, in forked processes too."""
    ran = mmap.mmap(-1, 1)

    def look(frame: Any, event: str, _arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS) and frame.f_back.f_code is not _FORKS:
            ran[0] = 1

    former = sys.getprofile()
    sys.setprofile(look)
    try:
        value = make()
    finally:
        sys.setprofile(former)
    return value, bool(ran[0])


@functools.cache
def _key(file: Path) -> str:
    digest = hashlib.sha256(_surroundings().encode())
    sources, wanted = set(), {file, file.parent / "conftest.py", TESTS / "conftest.py"}
    while wanted:
        sources |= wanted
        wanted = {imported for path in wanted if path.exists() for imported in _imported(path)} - sources
    for path in sorted(sources):
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()


@functools.cache
def _imported(path: Path) -> set[Path]:
    """Return the files of helpers that a file of tests imports."""
    names = re.findall(r"^ *(?:from|import) +\.?(\w+)", path.read_text(), re.MULTILINE)
    found = {near / f"{name}.py" for name in names for near in (TESTS, path.parent)}
    found |= {inner for name in names for inner in (TESTS / name).glob("*.py")}
    return {path for path in found if path.is_file()}


@functools.cache
def _surroundings() -> str:
    """Describe the interpreter, all packages and the processor."""
    packages = {name for path in sys.path if os.path.isdir(path) for name in os.listdir(path) if "-info" in name}
    with contextlib.suppress(OSError):
        processor = sorted(set(Path("/proc/cpuinfo").read_text().splitlines()))
        processor = [line for line in processor if line.startswith(("model name", "flags", "Features", "CPU part"))]
    torchs = (torch.__config__.show(), torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
    return repr((sys.version, platform.platform(), TESTS, torch.__file__, sorted(packages), processor, torchs))


# Tensors are pickled without torch's own, slow way; paths of temporary files relative to the folders of fixtures, whose
# names have other numbers when other tests run.


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, folders: dict[str, str], temporary: str) -> None:
        super().__init__(file, protocol=5)
        self.folders, self.temporary = folders, temporary
        self.pattern = re.compile("|".join(rf"({re.escape(path)})\b" for path in folders.values()) or "(?!)")

    def persistent_id(self, value: Any) -> Any:
        if type(value) is bytes and self.temporary.encode() in value:
            raise pickle.PicklingError("names a temporary file")
        if type(value) is str and self.temporary in value:
            names = list(self.folders)
            parts, end = [], 0
            for found in self.pattern.finditer(value):
                parts += [value[end : found.start()], names[found.lastindex - 1]]  # type: ignore[operator]
                end = found.end()
            parts.append(value[end:])
            if any(self.temporary in text for text in parts[::2]):
                raise pickle.PicklingError("names a temporary file of no fixture")
            return parts
        if type(value) is torch.Tensor and value.layout == torch.strided and not value.requires_grad:
            if value._is_zerotensor():
                raise pickle.PicklingError("has no memory")
            if value.numel() == 0 or value.is_conj() or value.is_neg() or value.is_nested or value.is_quantized:
                return None
            spanned = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)) + 1
            data = value.as_strided((spanned,), (1,)).view(torch.uint8).numpy().tobytes()
            return data, value.dtype, tuple(value.shape), value.stride()
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, folders: dict[str, str]) -> None:
        super().__init__(file)
        self.folders = folders

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, list):
            return "".join(self.folders[part] if number % 2 else part for number, part in enumerate(pid))
        data, dtype, shape, stride = pid
        return torch.frombuffer(bytearray(data), dtype=dtype).as_strided(shape, stride)


def _pickled(value: Any, folders: dict[str, str], temporary: str) -> bytes:
    file = io.BytesIO()
    _Pickler(file, folders, temporary).dump(value)
    return file.getvalue()


def _unpickled(data: bytes, folders: dict[str, str]) -> Any:
    return _Unpickler(io.BytesIO(data), folders).load()
