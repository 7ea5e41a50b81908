"""Ctrl-C while an epoch starts: the program must end and leave nothing behind.

    python tests/interrupted_start.py EXECUTOR METHOD WHOM COUNT [SEED]

Each trial forks a program that has already imported everything and iterates in its own process group, and sends SIGINT
within the first half second: to the whole group like a terminal, or only to the program like ``kill``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from children import wait_for
from leaks import describe
from torch.utils.data import DataLoader, Dataset

from fastload import FastLoader

HUNG_S = 15.0
"""Time after which a program counts as hung; torch waits five seconds for a worker."""

GRACE_S = 10.0
"""Time for orphaned workers to end; they check for their parent every five seconds."""

WITHIN_S = 0.5


class Slow(Dataset[torch.Tensor]):
    """Samples that take a millisecond."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.001)
        return torch.full((64,), float(index))


def _torch(**arguments: Any) -> Any:
    return DataLoader(Slow(), **arguments)


def _workers(**arguments: Any) -> Any:
    return FastLoader(Slow(), device="cpu", **arguments)


def _device(**arguments: Any) -> Any:
    from backends import simulated

    simulated.install(pytest.MonkeyPatch())
    return FastLoader(Slow(), device="cuda", **arguments)


@functools.cache
def _photos() -> Path:
    """Make images before programs are forked; only this process removes them when it ends."""
    from photos import make_folder

    folder, maker = Path(tempfile.mkdtemp(prefix="interrupted-start-")), os.getpid()
    atexit.register(lambda: shutil.rmtree(folder) if os.getpid() == maker else None)
    return make_folder(folder)


def _native(**arguments: Any) -> Any:
    from photos import train_v1
    from torchvision.datasets import ImageFolder

    dataset = ImageFolder(_photos(), train_v1())
    return FastLoader(dataset, device="cpu", engine="native", **arguments)


EXECUTORS: dict[str, Callable[..., Any]] = {
    "torch": _torch,
    "workers": _workers,
    "device": _device,
    "native": _native,
}


@dataclass(frozen=True)
class Outcome:
    """How an interrupted program ended.

    Attributes:
        delay_s: Time from the first iteration to the signal.
        took_s: Time from the signal to the program's end.
        status: Exit status; ``None`` if it hung.
        left: Its processes that were still alive afterwards.
        error: Its output on stderr.
    """

    delay_s: float
    took_s: float
    status: int | None
    left: list[str]
    error: str

    @property
    def is_good(self) -> bool:
        """Whether the program ended by the signal and left nothing."""
        return self.status == -signal.SIGINT and not self.left


def trial(make_loader: Callable[[], Any], whom: str, delay_s: float) -> Outcome:
    """Fork a program, interrupt it, and observe its end. The caller should have one thread.

    Args:
        make_loader: Makes the program's loader, before the delay starts.
        whom: ``"group"`` or ``"parent"``.
        delay_s: Time until the interrupt.
    """
    _photos()
    ready, begins = os.pipe()
    with tempfile.TemporaryFile() as errors:
        pid = os.fork()
        if not pid:
            os.close(ready)
            os.setsid()
            os.dup2(errors.fileno(), 2)
            _ends_as_a_program(lambda: _iterate(make_loader(), begins))
        os.close(begins)
        os.read(ready, 1)
        os.close(ready)
        time.sleep(delay_s)
        sent = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if whom == "group" else os.kill)(pid, signal.SIGINT)
        status = wait_for(pid, HUNG_S)
        took_s = time.monotonic() - sent
        dumps = _dump(pid) if status is None else ""
        until = time.monotonic() + GRACE_S
        while (left := _group(pid)) and status is not None and time.monotonic() < until:
            time.sleep(0.02)
        described = [describe(process) for process in left]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if status is None:
            wait_for(pid, HUNG_S)
        errors.seek(0)
        return Outcome(delay_s, took_s, status, described, dumps + errors.read().decode(errors="replace"))


def _iterate(loader: Any, begins: int) -> None:
    os.write(begins, b".")
    until = time.monotonic() + 2 * WITHIN_S
    while time.monotonic() < until:
        for _ in loader:
            pass


class _ProgramEnds(BaseException):
    pass


def _ends_as_a_program(run: Callable[[], None]) -> None:
    """Run it as the rest of this program, followed by the interpreter's normal exit."""
    global _rest
    _rest = run
    raise _ProgramEnds


_rest: Callable[[], None] | None = None


def _group(pid: int) -> list[psutil.Process]:
    """Live processes of the process group ``pid``."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _dump(pid: int) -> str:
    """Stacks of a hung program, if py-spy is installed."""
    py_spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if py_spy is None:
        return ""
    commands = [[py_spy, "dump", "--pid", str(process.pid)] for process in _group(pid)]
    return "\n".join(subprocess.run(command, capture_output=True, text=True).stdout for command in commands)


def trials(executor: str, method: str, whom: str, count: int, seed: int = 0) -> Iterator[Outcome]:
    """Run trials at random moments. Needs a separate program, because it forks.

    Args:
        executor: One of :data:`EXECUTORS`.
        method: Start method of workers: ``"fork"``, ``"spawn"`` or ``"forkserver"``.
        whom: ``"group"`` or ``"parent"``.
        count: Number of trials.
        seed: Seed of the moments.
    """
    draw = random.Random(f"{executor} {method} {whom} {seed}")

    def make_loader() -> Any:
        multiprocessing.set_start_method(method, force=True)
        return EXECUTORS[executor](batch_size=8, num_workers=4)

    for _ in range(count):
        yield trial(make_loader, whom, draw.uniform(0.0, WITHIN_S))


def main(executor: str, method: str, whom: str, count: str, seed: str = "0") -> int:
    """Print each bad outcome and the counts of all. Returns the number of bad ones."""
    statuses: Counter[str] = Counter()
    bad, longest = 0, 0.0
    for outcome in trials(executor, method, whom, int(count), int(seed)):
        statuses["hung" if outcome.status is None else str(outcome.status)] += 1
        statuses["left"] += bool(outcome.left)
        statuses["noise"] += "Exception ignored" in outcome.error
        longest = max(longest, outcome.took_s)
        if not outcome.is_good:
            bad += 1
            print(json.dumps(asdict(outcome), indent=1).replace("\\n", "\n"), flush=True)
    print(f"{executor} {method} {whom}: {count} trials, {bad} not good, longest {longest:.2f} s, {dict(statuses)}")
    return bad


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        bad = main(*sys.argv[1:])
    except _ProgramEnds:
        assert _rest is not None
    if _rest is not None:
        _rest()
    else:
        sys.exit(min(bad, 100))
