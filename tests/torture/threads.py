"""Several threads on one iterator, or with a loader each while the main thread draws."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections import Counter
from typing import Any

import torch

from .holdings import Holdings, beyond
from .loaders import KINDS, checksum, close, expected, values, warm_up
from .outcome import Outcome, Setting, more_than_torch

TITLE = "several threads"
COUNT, EACH, OUTSIDE, PROGRAM = 200, 1, False, 20
LIMIT_S = 60.0
HUNG, HUNG_S = "hung", 15.0
SHARED = ("native", "native, Python samples", "native, persistent", "workers", "workers, persistent")
SCENES = [(kind, count) for kind in SHARED for count in (2, 4)]
APART = ("native", "native, Python samples", "native, errors", "native, Python samples")


def trial(number: int, setting: Setting) -> Outcome:
    """Share one iterator if ``number`` is even; else run four loaders in threads."""
    outcome = Outcome()
    if number % 2:
        warm_up(setting.scratch, "native")
        before = Holdings.now()
        _apart(number, setting, outcome)
        outcome.failures += beyond(before)
    else:
        kind, count = SCENES[number // 2 % len(SCENES)]
        for ours in (True, False)[: 1 + kind.startswith("workers")]:
            warm_up(setting.scratch, kind, ours=ours)
            before = Holdings.now()
            what = _shared(kind, count, setting, ours=ours)
            counts = outcome.counts if ours else outcome.torch
            counts[f"one iterator: {'hung' if HUNG in what else 'wrong' if what else 'right'}"] += 1
            if ours and what and (HUNG not in what or kind.startswith("native")):
                outcome.failures += [f"{kind}, {count} threads on one iterator: {text}" for text in what]
            if ours and HUNG not in what:  # torch's that hangs keeps its threads
                outcome.failures += beyond(before)
    return outcome


def _shared(kind: str, count: int, setting: Setting, *, ours: bool) -> list[str]:
    """Consume one iterator in several threads, and describe failures to give every batch once."""
    wanted = expected(setting.scratch, kind)[0]
    loader: Any = KINDS[kind].loader(setting.scratch, ours=ours)
    batches: Any = iter(loader)
    got: list[int] = []
    what: list[str] = []
    # torch's worker iterator hangs if two threads wait for its last batch.
    to_the_end = kind.startswith("native")

    def consume(most: int) -> None:
        try:
            while most:
                got.append(checksum(next(batches)))
                most -= 1
        except StopIteration:
            pass
        except Exception as error:
            what.append(f"{type(error).__name__}: {error}")

    shares = [len(wanted) // count + (place < len(wanted) % count) for place in range(count)]
    threads = [threading.Thread(target=consume, args=(-1 if to_the_end else n,), daemon=True) for n in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HUNG_S)
    if any(thread.is_alive() for thread in threads):
        while children := multiprocessing.active_children():  # of which the iterator hears
            with contextlib.suppress(RuntimeError):  # torch's, of a worker that was killed, wherever this thread is
                for process in children:
                    process.kill()
                    process.join()
        return [HUNG]
    batches = None
    close(loader)
    if Counter(got) != Counter(wanted):
        missing, more = Counter(wanted) - Counter(got), Counter(got) - Counter(wanted)
        what.append(f"{missing.total()} batches missing, {more.total()} that are none or were given before")
    return what


def _apart(number: int, setting: Setting, outcome: Outcome) -> None:
    """Run loaders with their own generators; no draws may affect each other."""
    seeds = [(number // 2 + place) % 2 for place in range(len(APART))]
    got: list[list[int]] = [[] for _ in APART]

    def consume(place: int) -> None:
        loader: Any = KINDS[APART[place]].loader(setting.scratch, ours=True, seed=seeds[place])
        got[place] = values(iter(loader))
        close(loader)

    threads = [threading.Thread(target=consume, args=(place,), daemon=True) for place in range(len(APART))]
    torch.manual_seed(number)
    alone = torch.Generator().manual_seed(number)
    wrong = blocks = 0
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        wrong += not torch.equal(torch.rand(32), torch.rand(32, generator=alone))
        blocks += 1
    outcome.counts["blocks drawn by the main thread"] += blocks
    outcome.counts["loaders in threads"] += len(APART)
    if wrong:
        outcome.failures.append(f"{wrong} of {blocks} blocks of the main thread's own numbers were wrong")
    for place, kind in enumerate(APART):
        if got[place] != expected(setting.scratch, kind, seeds[place])[0]:
            outcome.failures.append(f"{kind}, beside other threads: wrong batches {got[place]}")


def conclude(total: Outcome) -> list[str]:
    """Check that a shared worker iterator hangs no more often than torch's."""
    ran, theirs = (sum(n for name, n in c.items() if name.startswith("one")) for c in (total.counts, total.torch))
    return more_than_torch(total, "one iterator: hung", theirs / ran if theirs else 1.0)
