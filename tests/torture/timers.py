"""Timer signals whose handler raises at random points of the consumer's thread."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from .holdings import Holdings, beyond
from .loaders import KINDS, SOUND, checksum, close, expected, warm_up
from .outcome import Outcome, Setting, more_than_torch
from .programs import left_in

TITLE = "timer interrupts"
COUNT, EACH, OUTSIDE, PROGRAM = 10_000, 50, False, 5
LIMIT_S = 120.0
SHARED_MEMORY = Path("/dev/shm")
STUCK_S = 15.0  # for one call; torch joins each of its workers, and a thread, for 5 s
# An interrupt during a read breaks torch's queue; with worker processes, a next() that takes this long counts as stuck.
GO_ON_S = 3.0
NATIVE = [name for name in SOUND if name.startswith("native")]
WORKERS = [name for name in SOUND if name.startswith("workers") and "spawned" not in name]


class Timeout(Exception):
    """Raised by the handler, as an ``Exception``."""


class Interrupt(KeyboardInterrupt):
    """Raised by the handler, as a ``KeyboardInterrupt``."""


class Stuck(BaseException):
    """Raised by the handler if a call takes too long."""


_error: type[BaseException] = Stuck


def _fire(number: int, frame: FrameType | None) -> None:
    raise _error


def within(seconds: float, error: type[BaseException], call: Callable[[], Any]) -> Any:
    """Run ``call()``; the handler raises ``error`` in it after ``seconds``."""
    global _error
    _error = error
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Epoch:
    """One epoch of a new loader under interrupts, then its close."""

    def __init__(self, name: str, setting: Setting, rng: random.Random, *, ours: bool) -> None:
        self.randomness = rng
        self.interrupts = self.stuck = 0
        self.hangs: list[str] = []
        self.got: list[int] = []
        self.loader = KINDS[name].loader(setting.scratch, ours=ours)
        self.batches: Any = None
        self.broken = ""
        self.go_on_s = STUCK_S if name.startswith("native") else GO_ON_S
        # prefetch_to_device begins the epoch in its first next(), where a Timeout looks like a sample's error.
        self.errors = (Interrupt,) if KINDS[name].prefetch else (Interrupt, Timeout)

    def run(self) -> None:
        try:
            self.batches = self._interrupted(lambda: iter(self.loader), Interrupt)
            while not self.stuck:
                try:
                    self.got.append(checksum(self._interrupted(lambda: next(self.batches), *self.errors)))
                except (Interrupt, Timeout):
                    if self.randomness.random() < 0.3:
                        break
                    self._go_on()
        except (Interrupt, StopIteration):
            pass
        except Exception as error:
            self.broken = f"{type(error).__name__}: {error}"[-300:]
        begun = time.monotonic()
        with contextlib.suppress(Interrupt, Timeout):
            self._interrupted(lambda: close(self.loader), Interrupt, Timeout)
        self._bounded("close()", lambda: close(self.loader))
        self._bounded("dropping the iterator", self._drop)
        if time.monotonic() - begun > STUCK_S:  # Stuck was raised where Python ignores exceptions
            self.hangs.append(f"closing took {time.monotonic() - begun:.0f} s")

    def _interrupted(self, call: Callable[[], Any], *errors: type[BaseException]) -> Any:
        error = self.randomness.choice(errors)
        try:
            return within(10 ** self.randomness.uniform(-4.5, -1.5), error, call)
        except error:
            self.interrupts += 1
            raise

    def _go_on(self) -> None:
        try:
            self.got.append(checksum(within(self.go_on_s, Stuck, lambda: next(self.batches))))
        except Stuck:
            self.stuck += 1

    def _bounded(self, what: str, call: Callable[[], Any]) -> None:
        try:
            within(STUCK_S, Stuck, call)
        except Stuck:
            self.hangs.append(f"{what} took {STUCK_S:g} s")

    def _drop(self) -> None:
        self.batches = self.loader = None


def trial(number: int, setting: Setting) -> Outcome:
    """Interrupt our loader :data:`EACH` times; in every ninth trial also torch's.

    Every third trial uses worker processes.
    """
    signal.signal(signal.SIGALRM, _fire)
    outcome = Outcome(done=EACH)
    kinds = WORKERS if number % 3 == 2 else NATIVE
    name = kinds[number // 3 % len(kinds)]
    for ours in (True, False)[: 1 + (number % 9 == 2)]:
        rng = random.Random(f"timers {setting.seed} {number}")
        counts = outcome.counts if ours else outcome.torch
        wanted = expected(setting.scratch, name)[0]
        warm_up(setting.scratch, name, ours=ours)
        before = Holdings.now()
        shared = set(os.listdir(SHARED_MEMORY))
        while counts["interrupts"] < EACH:
            epoch = Epoch(name, setting, rng, ours=ours)
            epoch.run()
            lost = missing(epoch.got, wanted)
            counts["epochs"] += 1
            counts["interrupts"] += epoch.interrupts
            counts["stuck in next()"] += epoch.stuck
            counts["raised another error"] += bool(epoch.broken)
            counts["batches lost"] += max(lost, 0)
            wrong = [*epoch.hangs]
            if lost < 0 or lost > epoch.interrupts:
                wrong.append(f"after {epoch.interrupts} interrupts, of {wanted}: {epoch.got}")
            left = beyond(before)
            counts["left something"] += bool(left)
            if left:
                before = Holdings.now()
            if name.startswith("native"):
                wrong += [*left, *["next() after an interrupt hung"] * epoch.stuck]
                wrong += [f"raised {epoch.broken}"] * bool(epoch.broken)
            counts["wrong in another way"] += bool(wrong)
            outcome.failures += [f"{name}: {what}" for what in wrong if ours]
            if epoch.hangs:
                break
        left_names = left_in(SHARED_MEMORY, shared)
        counts["left shared memory"] += len(left_names)
        if ours:
            outcome.failures += [f"{name}: left /dev/shm/{left_name}" for left_name in left_names]
        for left_name in left_names:
            (SHARED_MEMORY / left_name).unlink(missing_ok=True)
    return outcome


def missing(got: list[int], wanted: list[int]) -> int:
    """Number of ``wanted`` values skipped in ``got``; -1 if ``got`` is not a subsequence."""
    place = 0
    for value in got:
        if value not in wanted[place:]:
            return -1
        place = wanted.index(value, place) + 1
    return place - len(got)


def conclude(total: Outcome) -> list[str]:
    """Check that we lose, leave, raise and get stuck no more than torch per interrupt."""
    share = total.torch["interrupts"] / total.counts["interrupts"] if total.torch["interrupts"] else 1.0
    names = ("batches lost", "left something", "raised another error", "stuck in next()")
    return [said for name in names for said in more_than_torch(total, name, share)]
