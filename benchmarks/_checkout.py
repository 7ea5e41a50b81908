"""The checkout's folders, and its path for processes that are started."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def importable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` with the checkout at the end of ``PYTHONPATH``."""
    path = [*filter(None, [environment.get("PYTHONPATH")]), str(ROOT)]
    return {**environment, "PYTHONPATH": os.pathsep.join(path)}


@contextlib.contextmanager
def on_cores(count: int | None) -> Iterator[None]:
    """Keep this thread, and all that it starts, on so many cores; ``None``: all."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def served(script: str, *arguments: str) -> Iterator[tuple[str, int]]:
    """Run a script that serves until its standard input closes.

    Yields:
        The line that it prints when it is ready, and the process's number.
    """
    command = [sys.executable, "-P", script, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or not (said := process.stdout.readline().strip()):
                raise RuntimeError(f"{Path(script).name} did not start")
            yield said, process.pid
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(10)
