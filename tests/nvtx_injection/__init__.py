"""Run a script under a tool that logs every NVTX call.

    from nvtx_injection import run_traced

    trace = run_traced("from fastload.nvtx.stages import stage\nwith stage('h2d', 3): pass", tmp_path)
    assert [r.name for r in trace.ranges()] == ["h2d"]

The tool is ``injection.c``, built on first use with the C compiler and the NVTX headers that torch's NVIDIA packages
(or a CUDA toolkit) carry.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import interpreters
import pytest

__all__ = ["Event", "Range", "Trace", "injection_library", "run_traced"]

_SOURCE = Path(__file__).with_name("injection.c")
_HEADER = "nvtx3/nvToolsExt.h"


@dataclass(frozen=True)
class Event:
    """One NVTX call.

    ``kind`` is ``push``, ``pop``, ``start``, ``end``, ``mark``, ``domain_create``, ``register_string`` or
    ``name_thread``.
    """

    kind: str
    domain: str
    pid: int
    tid: int
    time_ns: int
    message: str | None = None
    payload: int | float | None = None
    payload_type: str | None = None
    color: int | None = None
    thread: int | None = None
    range: int | None = None


@dataclass(frozen=True)
class Range:
    """A push with its pop. ``parents`` names the ranges around it, outermost first."""

    name: str | None
    domain: str
    payload: int | float | None
    payload_type: str | None
    pid: int
    tid: int
    start_ns: int
    end_ns: int
    parents: tuple[str | None, ...]

    @property
    def depth(self) -> int:
        return len(self.parents)


@dataclass(frozen=True)
class Trace:
    """A script's output, and its NVTX calls in the order they were logged."""

    events: tuple[Event, ...]
    stdout: str
    stderr: str

    @property
    def pids(self) -> set[int]:
        return {event.pid for event in self.events if event.kind == "push"}

    def ranges(self, name: str | None = None, domain: str = "fastload") -> list[Range]:
        """Return a domain's finished ranges by start time; fail on an unmatched push or pop."""
        open_ranges: dict[tuple[int, int], list[Event]] = defaultdict(list)
        finished: list[Range] = []
        for event in self.events:
            if event.domain != domain or event.kind not in ("push", "pop"):
                continue
            stack = open_ranges[event.pid, event.tid]
            if event.kind == "push":
                stack.append(event)
                continue
            assert stack, f"pop without a push in process {event.pid}, thread {event.tid}"
            start = stack.pop()
            finished.append(
                Range(
                    name=start.message,
                    domain=domain,
                    payload=start.payload,
                    payload_type=start.payload_type,
                    pid=start.pid,
                    tid=start.tid,
                    start_ns=start.time_ns,
                    end_ns=event.time_ns,
                    parents=tuple(outer.message for outer in stack),
                )
            )
        unfinished = {where: [event.message for event in stack] for where, stack in open_ranges.items() if stack}
        assert not unfinished, f"push without a pop, by (process, thread): {unfinished}"
        finished.sort(key=lambda found: found.start_ns)
        return [found for found in finished if name is None or found.name == name]

    def process_ranges(self, domain: str = "fastload") -> list[tuple[str | None, int, int]]:
        """Return name, starting and ending thread of each range of a process; all must end."""
        starts = {(event.pid, event.range): event for event in self.events if event.kind == "start"}
        ends = {(event.pid, event.range): event for event in self.events if event.kind == "end"}
        assert starts.keys() == ends.keys(), f"starts and ends do not match up: {starts.keys() ^ ends.keys()}"
        assert len(ends) == sum(event.kind == "end" for event in self.events), "a range ended twice"
        return [(start.message, start.tid, ends[key].tid) for key, start in starts.items() if start.domain == domain]

    def thread_names(self) -> dict[int, str | None]:
        """Names that threads were given, by thread id."""
        return {event.thread: event.message for event in self.events if event.kind == "name_thread" and event.thread}


def _include_folder() -> Path:
    for package in ("nvidia-nvtx", "nvidia-nvtx-cu13", "nvidia-nvtx-cu12"):
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.as_posix().endswith(_HEADER) and file.locate().is_file():
                return Path(str(file.locate())).parents[1]
    toolkits = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    for include in (
        *(toolkit / "include" for toolkit in toolkits),
        Path("/usr/local/cuda/include"),
        Path("/usr/include"),
    ):
        if (include / _HEADER).is_file():
            return include
    raise FileNotFoundError(
        f"{_HEADER} is needed to build the test profiler; looked in the nvidia-nvtx package and in the CUDA toolkit. "
        "Remedy: pip install nvidia-nvtx"
    )


@functools.cache
def _build_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fastload-nvtx-injection-")  # removed when this process ends


@functools.cache
def injection_library() -> Path:
    """The compiled tool, for ``NVTX_INJECTION64_PATH``. Skips the calling test when there is no C compiler."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang) to build the NVTX test profiler with")
    library = Path(_build_folder().name) / "libfastload_nvtx_injection.so"
    flags = ["-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-pthread"]
    command = [compiler, *flags, "-isystem", str(_include_folder()), str(_SOURCE), "-o", str(library), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, f"{' '.join(command)}\n{built.stderr}"
    return library


def run_traced(
    script: str | Path | Sequence[str],
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120,
    check: bool = True,
) -> Trace:
    """Run a script with the tool attached, and return what the tool received.

    Python source or a script runs in a fork of an interpreter that has imported torch but neither fastload nor NVTX;
    other arguments get a fresh interpreter.

    Args:
        script: Python source, the path of a script, or the interpreter's arguments (``["-m", "module", "argument"]``).
        folder: Where the script and the log are written; give ``tmp_path``.
        env: Variables set on top of this process's own.
        timeout_s: The script is killed after this many seconds, and the test fails.
        check: Whether the script has to exit with status 0.
    """
    log = folder / "nvtx.jsonl"
    log.unlink(missing_ok=True)
    if isinstance(script, str):
        # A real file: spawned workers import the main module from it.
        path = folder / "traced_script.py"
        path.write_text(script)
        arguments = [str(path)]
    elif isinstance(script, Path):
        arguments = [str(script)]
    else:
        arguments = list(script)
    environment = os.environ | {
        "NVTX_INJECTION64_PATH": str(injection_library()),
        "FASTLOAD_NVTX_LOG": str(log),
    }
    environment |= dict(env or {})
    if isinstance(script, str | Path):
        done = interpreters.run(arguments, env=environment, timeout_s=timeout_s)
    else:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert not check or done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    lines = log.read_text().splitlines() if log.exists() else []
    return Trace(tuple(Event(**json.loads(line)) for line in lines), done.stdout, done.stderr)
