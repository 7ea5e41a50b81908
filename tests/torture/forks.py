"""Fork in mid-epoch: the child can use its own loaders, the parent's batches stay right."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from children import exit_code, wait_for

from .holdings import Holdings, beyond
from .loaders import KINDS, checksum, close, expected, values, warm_up
from .outcome import Outcome, Setting

TITLE = "forks in mid-epoch"
COUNT, EACH, OUTSIDE, PROGRAM = 100, 1, False, 10
LIMIT_S = 60.0
CHILD_S = 20.0
WORKERS = ("workers", "workers, persistent", "workers, device side")
NATIVE = ("native", "native, Python samples", "native, persistent")


def _own_loader(root: Path, kind: str, loader: Any, batches: Any) -> str:
    own = KINDS[kind].loader(root, ours=True)
    got = values(iter(own))
    close(own)
    return "" if got == expected(root, kind)[0] else f"wrong values {got}"


def _next(root: Path, kind: str, loader: Any, batches: Any) -> str:
    try:
        next(batches)
    except Exception:
        return ""
    return "next() of the inherited iterator gave something"


def _drop(root: Path, kind: str, loader: Any, batches: Any) -> str:
    close(loader)
    del loader, batches
    gc.collect()
    return ""


def _nothing(root: Path, kind: str, loader: Any, batches: Any) -> str:
    return ""


def trial(number: int, setting: Setting) -> Outcome:
    """Fork once during an epoch."""
    outcome = Outcome()
    rng = random.Random(f"forks {setting.seed} {number}")
    kind = rng.choice(NATIVE if rng.random() < 0.6 else WORKERS)
    # An inherited iterator of torch's may have a batch that came early.
    action = rng.choice((_own_loader, _drop, _nothing, *((_next,) if kind in NATIVE else ())))
    wanted = expected(setting.scratch, kind)[0]
    place, delay = rng.randrange(len(wanted)), 10 ** rng.uniform(-5, -2)
    warm_up(setting.scratch, kind)
    before = Holdings.now()
    loader: Any = KINDS[kind].loader(setting.scratch, ours=True)
    batches = iter(loader)
    got = []
    for at in range(len(wanted)):
        if at == place:
            time.sleep(delay)
            child = os.fork()
            if child == 0:
                _leave(action, setting.scratch, kind, loader, batches)
            code = _wait(child)
        got.append(checksum(next(batches)))
    told = setting.scratch / f"fork-{child}.txt"
    said = told.read_text() if told.exists() else ""
    told.unlink(missing_ok=True)
    what = f"{kind}, {action.__name__.strip('_').replace('_', ' ')} in a child forked before batch {place}"
    if code is None:
        output = Path(os.readlink("/proc/self/fd/1")).read_text()  # includes the child's stacks
        outcome.failures.append(f"{what}: hung for {CHILD_S:g} s\n{output[-3000:]}")
    elif code != 0 or said:
        outcome.failures.append(f"{what}: code {code} {said}")
    if got != wanted:
        outcome.failures.append(f"{what}: the parent got {got} instead of {wanted}")
    close(loader)
    del loader, batches
    outcome.failures += [f"{what}: {left}" for left in beyond(before)]
    outcome.counts["children well"] += code == 0 and not said
    return outcome


def _leave(action: Callable[..., str], root: Path, kind: str, loader: Any, batches: Any) -> None:
    """Run the child's action, then exit as a program does."""
    failed = action(root, kind, loader, batches)
    if failed:
        (root / f"fork-{os.getpid()}.txt").write_text(failed)
    raise SystemExit(bool(failed))


def _wait(child: int) -> int | None:
    """Wait for the child's exit code; ``None`` if it had to be killed."""
    if (code := wait_for(child, CHILD_S)) is None:
        os.kill(child, signal.SIGUSR1)
        exit_code(child, 0.5)
    return code
