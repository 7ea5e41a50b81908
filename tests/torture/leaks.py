"""Hundreds of epochs and abandoned iterators must not leak resources or memory."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
from typing import Any

from .fit import slope
from .holdings import Holdings, beyond, resident_kb
from .loaders import KINDS, SEEDS, close, expected, values, warm_up
from .outcome import Outcome, Setting

TITLE = "epochs and abandoned iterators, for leaks"
COUNT, EACH, OUTSIDE, PROGRAM = 10_000, 1_000, False, 1
LIMIT_S = 1800.0
# A leaked record of one of an epoch's 24 samples would exceed this. The allocator's own memory grows for about 400
# epochs, by 3 KB each, and then not in 1,500 more; so the second half is fitted.
KB_PER_EPOCH_MAX = 1.0
MAPPINGS_PER_EPOCH_MAX = 0.02
FIT_MIN = 800  # epochs; with fewer the slope means nothing
EPOCHS = ("native", "native, Python samples", "native, persistent", "native, errors", "workers", "workers, device side")
ABANDONED = ("native", "native, Python samples", "native, prefetched", "workers")


def numbers(share: float) -> list[int]:
    """Run every kind at any share; a smaller share makes each one shorter."""
    return list(range(len(EPOCHS) + len(ABANDONED)))


def each(share: float) -> int:
    """Epochs or abandoned iterators per trial."""
    return max(10, round(EACH * share))


def trial(number: int, setting: Setting) -> Outcome:
    """Run one kind of loader :func:`each` times."""
    count = each(setting.share)
    outcome = Outcome(done=count)
    abandons = number >= len(EPOCHS)
    kind = ABANDONED[number - len(EPOCHS)] if abandons else EPOCHS[number]
    rng = random.Random(f"leaks {setting.seed} {number}")
    warm_up(setting.scratch, kind)
    before = Holdings.now()
    memory: list[tuple[int, float]] = []
    mappings: list[tuple[int, float]] = []
    loader: Any = None
    for at in range(count):
        if loader is None or at % 3 == 0:  # a few epochs each; not always closed
            if loader is not None and rng.random() < 0.7:
                close(loader)
            loader = KINDS[kind].loader(setting.scratch, ours=True, seed=at // 3 % SEEDS)
        if abandons:
            abandon(loader, rng)
        elif values(iter(loader)) != expected(setting.scratch, kind, at // 3 % SEEDS)[at % 3]:
            outcome.failures.append(f"{kind}: wrong values in epoch {at}")
        if at >= count // 2 and at % max(1, count // 100) == 0:
            memory.append((at, resident_kb()))
            mappings.append((at, float(Holdings.now().mappings)))
        if at % 25 == 24 and abandons:
            close(loader)
            loader = None
            outcome.failures += [f"{kind}, after {at + 1} abandoned iterators: {left}" for left in beyond(before)]
    close(loader)
    del loader
    outcome.failures += [f"{kind}, in the end: {left}" for left in beyond(before)]
    kb, maps = slope(memory), slope(mappings)
    of = f"{kind}, abandoned" if abandons else kind
    outcome.counts["iterators abandoned" if abandons else "epochs"] += count
    outcome.figures[of] = {"epochs": count, "kb_per_epoch": round(kb, 3), "mappings_per_epoch": round(maps, 4)}
    if count >= FIT_MIN and (kb > KB_PER_EPOCH_MAX or maps > MAPPINGS_PER_EPOCH_MAX):
        outcome.failures.append(f"{of}: {kb:.2f} KB and {maps:.3f} mappings more with each of {count} epochs")
    return outcome


def abandon(loader: Any, rng: random.Random) -> None:
    """Abandon an iterator in one of several ways, possibly before its first batch."""
    batches = iter(loader)
    way = rng.choice(("dropped", "break", "error", "never started", "cycle", "thread"))
    if way != "never started":
        values(batches, rng.randint(1, 4))
    if way == "break":
        with contextlib.suppress(OSError):  # of a damaged file
            for _ in batches:
                break
    elif way == "error":
        with contextlib.suppress(OSError, KeyError):
            for _ in batches:
                raise KeyError("the loop's own")
    elif way == "cycle":
        holder: dict[str, Any] = {"batches": batches}
        holder["self"] = holder
        del holder, batches
        gc.collect()
    elif way == "thread":
        thread = threading.Thread(target=[batches].pop)
        del batches
        thread.start()
        thread.join()
