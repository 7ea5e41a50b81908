"""Ctrl-C at a random moment: the program must end soon, quietly, and leave nothing behind."""

from __future__ import annotations

import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import fastload

from .loaders import KINDS, SOUND, checksum, close, expected
from .outcome import Outcome, Setting, more_than_torch, tell
from .programs import Launcher

TITLE = "interrupts at random moments"
COUNT, EACH, OUTSIDE = 500, 1, True
LIMIT_S = 15.0
PHASES = ("start", "epoch", "break", "close", "exit")
WEIGHTS = {"workers, spawned": 0.25}
INTERRUPTED = -signal.SIGINT
ENDS = {None: "hung", 0: "ended before", 130: "interrupted", INTERRUPTED: "interrupted"}
PRINTED = "printed that an exception was ignored"
LAST_WORD = re.compile(r"^KeyboardInterrupt\n(?:.+\n)?\s*\Z", re.MULTILINE)  # with a note, if a class was being created
SHARED = "left shared memory"  # torch's workers do if they end between creating and unlinking it
# What Python prints for an exception that it cannot propagate, with traceback and last line.
NOISE = re.compile(
    r"^(?:Exception ignored|Exception in thread|Fatal Python error|terminate called).*\n"
    r"(?:Traceback .*\n)?(?:[ \t]+.*\n|\n)*(?:\S.*)?",
    re.MULTILINE,
)
OURS = str(Path(fastload.__file__).parent)


def program(root: str, kind: str, ours: bool, catches: bool) -> None:
    """Run an epoch, then break off another one."""
    wanted = expected(Path(root), kind)
    tell(phase="start")
    loader: Any = KINDS[kind].loader(Path(root), ours=ours)
    try:
        batches = iter(loader)
        tell(phase="epoch")
        for want, batch in zip(wanted[0], batches, strict=True):
            _check(batch, want)
        batches = iter(loader)
        _check(next(batches), wanted[1][0])
        tell(phase="break")
        del batches
        tell(phase="close")
        close(loader)
        loader = None
    except KeyboardInterrupt:
        if catches:
            close(loader)
            raise SystemExit(130) from None
        raise
    tell(phase="exit")


def _check(batch: object, want: int) -> None:
    if checksum(batch) != want:
        raise SystemExit("wrong values")


def trial(number: int, setting: Setting, launcher: Launcher) -> Outcome:
    """Send the same interrupt to our loader and to torch's."""
    rng = random.Random(f"interrupts {setting.seed} {number}")
    (kind,) = rng.choices(SOUND, [WEIGHTS.get(name, 1.0) for name in SOUND])
    phase = rng.choice(PHASES)
    return interrupted(kind, phase, 10 ** rng.uniform(-5, 0.3 if "spawn" in kind else -0.7), rng, setting, launcher)


def interrupted(
    kind: str,
    phase: str,
    delay: float,
    rng: random.Random,
    setting: Setting,
    launcher: Launcher,
    function: str = "torture.interrupts:program",
) -> Outcome:
    """Interrupt our loader and torch's ``delay`` seconds into a phase of a program."""
    outcome = Outcome()
    group, catches = rng.random() < 0.5, rng.random() < 0.5
    for ours in (True, False):
        begun = launcher.start(function, str(setting.scratch), kind, ours, catches)
        while (news := begun.next(60.0)) is not None and news.get("phase") != phase and "ended" not in news:
            pass
        time.sleep(delay)
        begun.signal(signal.SIGINT, group=group)
        ended = begun.finish(LIMIT_S)
        code = ended.code
        if code == 1 and LAST_WORD.search(ended.output):  # Python 3.12 ends a ``-m`` program like this
            code = INTERRUPTED
        counts = outcome.counts if ours else outcome.torch
        printed = NOISE.findall(ended.output)
        worse = [text for text in printed if not text.rstrip().removesuffix(":").endswith("KeyboardInterrupt")]
        what = []
        if code is None:
            what.append(f"still there after {LIMIT_S:g} s")
        elif code not in ENDS and not _swallowed(ended.output):
            what.append(f"ended with code {code}")
        what += [f"left {thing}" for thing in ended.left if kind.startswith("native") or "/dev/shm" not in thing]
        what += [f"printed {text.splitlines()[0]}" for text in worse if kind.startswith("native") or OURS in text]
        counts[ENDS.get(code, "ended with another error")] += 1
        counts[SHARED] += any("/dev/shm" in thing for thing in ended.left)
        counts[PRINTED] += bool(printed)
        counts["of them another error"] += bool(worse)
        if ours and what:
            sent = "the group" if group else "the process"
            outcome.failures.append(
                f"{kind}, SIGINT to {sent} {delay:.5f} s into {phase}: {'; '.join(what)}\n{ended.output[-3000:]}"
            )
    return outcome


def _swallowed(output: str) -> bool:
    """Whether Python dropped the interrupt (e.g. in a fork handler) and only a worker ended.

    Then torch raises an error about the worker.
    """
    return "Exception ignored" in output and "RuntimeError: DataLoader worker" in output


def conclude(total: Outcome) -> list[str]:
    """Check that we print and leave no more than torch does."""
    return [said for name in (PRINTED, SHARED) for said in more_than_torch(total, name)]
