"""SIGKILL a program, whose workers must end, or a worker, whose program must raise."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .loaders import KINDS, SOUND, checksum, close, expected
from .outcome import Outcome, Setting, more_than_torch, tell
from .programs import Launcher, Program, command, session

TITLE = "kills of programs and of workers"
COUNT, EACH, OUTSIDE = 200, 1, True
GONE_S = 10.0
SPAWNED_GONE_S = 60.0  # they may be importing torch, on a busy machine
HEARD_S = 15.0
# What torch raises: its own error, or an error of the connection that it was reading from.
RAISED = re.compile(r"RuntimeError: DataLoader worker|(Connection\w*|BrokenPipe|EOF)Error: ")
WITH_WORKERS = [name for name, kind in KINDS.items() if kind.executor == "workers"]
SHARED = "left shared memory"  # by a worker killed between creating and unlinking it
WEIGHTS = {"workers, spawned": 0.25}


def program(root: str, kind: str, ours: bool) -> None:
    """Run epochs until one raises, then a new epoch, which must be right."""
    error, loader = "", None
    for last in (False, False, False, True):  # torch raises for each killed worker, at any point of the program
        try:
            close(loader)  # the previous loader; torch may raise here
            loader = KINDS[kind].loader(Path(root), ours=ours)
            if not error:
                _epochs(loader, expected(Path(root), kind))
            tell(error=error)
            if [checksum(batch) for batch in loader] != expected(Path(root), kind)[0]:
                raise SystemExit("wrong values after a worker was killed")
            close(loader)
            return
        except (RuntimeError, OSError, EOFError) as raised:
            error = error or f"{type(raised).__name__}: {raised}"
            if last:
                raise


def _epochs(loader: Iterable[Any], wanted: list[list[int]]) -> None:
    for epoch in itertools.count():
        for number, batch in enumerate(loader):
            value = checksum(batch)
            if epoch < len(wanted) and value != wanted[epoch][number]:
                raise SystemExit("wrong values")
            tell(batch=number)


def trial(number: int, setting: Setting, launcher: Launcher) -> Outcome:
    """Kill a worker if ``number`` is odd, else the program."""
    outcome = Outcome()
    for ours in (True, False):
        rng = random.Random(f"kills {setting.seed} {number}")
        names = WITH_WORKERS if number % 2 else SOUND
        (kind,) = rng.choices(names, [WEIGHTS.get(name, 1.0) for name in names])
        program = launcher.start("torture.kills:program", str(setting.scratch), kind, ours)
        for _ in range(rng.randint(0, 20) if number % 2 == 0 else rng.randint(1, 20)):
            program.next(60.0)
        time.sleep(10 ** rng.uniform(-4, -1.5))
        if number % 2:
            what = _kill_worker(program, rng)
            did = "a worker killed"
        else:
            program.signal(signal.SIGKILL)
            grace_s = SPAWNED_GONE_S if "spawned" in kind else GONE_S
            ended = program.finish(5.0, grace_s)
            what = [f"{grace_s:g} s later there is {thing}" for thing in ended.left]
            did = "the program killed"
        counts = outcome.counts if ours else outcome.torch
        if kind.startswith("workers"):
            counts[SHARED] += any("/dev/shm" in text for text in what)
            what = [text for text in what if "/dev/shm" not in text]
        counts[f"{did}: {'failed' if what else 'well'}"] += 1
        if ours:
            outcome.failures += [f"{kind}, {did}: {text}" for text in what]
    return outcome


def conclude(total: Outcome) -> list[str]:
    """Check that our workers leave no more shared memory than torch's."""
    return more_than_torch(total, SHARED)


def _kill_worker(program: Program, rng: random.Random) -> list[str]:
    """Kill workers until the program reports an error; describe what went wrong."""
    error, code, begun = None, None, time.monotonic()
    while error is None and code is None and time.monotonic() < begun + HEARD_S:
        others = [pid for pid in session(program.pid) if pid != program.pid]
        workers = [pid for pid in others if "resource_tracker" not in command(pid)]
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGKILL)
        again = time.monotonic() + 3.0  # the worker may have been about to end with its epoch
        while error is None and code is None and time.monotonic() < again:
            news = program.next(0.5) or {}
            error, code = news.get("error"), news.get("ended")
    ended = program.finish(60.0 if error is not None else 0.0)  # time for another epoch, possibly with spawned workers
    what = [f"left {thing}" for thing in ended.left]
    if error is None:
        what.append(f"no error after {HEARD_S:g} s\n{ended.output[-3000:]}")
    elif not RAISED.match(error):
        what.append(f"raised {error!r}")
    if error is not None and ended.code != 0:
        what.append(f"ended with code {ended.code}\n{ended.output[-3000:]}")
    return what
