"""Run several kinds of loaders in one process for hours, while it draws and forks."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from typing import Any

import torch

from .fit import slope
from .holdings import Holdings, beyond, resident_kb
from .leaks import abandon
from .loaders import EPOCHS, KINDS, SEEDS, close, expected, values, warm_up
from .outcome import Outcome, Setting

TITLE = "soak"
COUNT, EACH, OUTSIDE, LASTS = 1, 1, False, True
LIMIT_S = 120.0
OF = ("native", "native, Python samples", "native, errors", "native, persistent", "workers", "workers, device side")
GROWTH_KB_MAX = 8192  # over the fitted four fifths of the run: the allocator's arenas of some 30 threads
FIT_MIN_MINUTES = 5.0


class Soak:
    """State shared by the threads."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.ends = time.monotonic() + 60 * setting.minutes
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        # A worker forked while another thread draws inherits torch's generator locked and hangs, also with torch.
        self.draws_or_forks = threading.Lock()

    def is_on(self) -> bool:
        return time.monotonic() < self.ends and len(self.failures) < 20

    def load(self, kind: str) -> None:
        """Run loaders one after another; check, break off or abandon each epoch."""
        rng = random.Random(f"soak {self.setting.seed} {kind}")
        try:
            while self.is_on():
                self._one_loader(kind, rng)
        except Exception as error:
            self.failures.append(f"{kind}: {type(error).__name__}: {error}")

    def _one_loader(self, kind: str, rng: random.Random) -> None:
        seed = rng.randrange(SEEDS)
        loader: Any = KINDS[kind].loader(self.setting.scratch, ours=True, seed=seed)
        for epoch in range(EPOCHS):
            if KINDS[kind].executor == "workers":
                with self.draws_or_forks:
                    batches = iter(loader)
            else:
                batches = iter(loader)
            wanted = expected(self.setting.scratch, kind, seed)[epoch]
            most = rng.randint(1, len(wanted)) if rng.random() < 0.3 else len(wanted) + 1
            got = values(batches, most)
            del batches
            self.counts[f"epochs of {kind}"] += 1
            if got != wanted[:most]:
                self.failures.append(f"{kind}: epoch {epoch} of seed {seed} gave {got} instead of {wanted[:most]}")
            if most < len(wanted):
                break  # later epochs are unknown: they depend on how far ahead the sampler has drawn
        if rng.random() < 0.2:
            with self.draws_or_forks, contextlib.suppress(OSError):  # raised for damaged files
                abandon(loader, rng)
        if rng.random() < 0.7:
            close(loader)


def trial(number: int, setting: Setting) -> Outcome:
    """Draw, fork and sample resources in the main thread while loaders run in others."""
    for kind in OF:
        warm_up(setting.scratch, kind)
    before, soak = Holdings.now(), Soak(setting)
    threads = [threading.Thread(target=soak.load, args=(kind,), name=kind, daemon=True) for kind in OF]
    for thread in threads:
        thread.start()
    with soak.draws_or_forks:  # seeding takes the generator's lock, too
        torch.manual_seed(number)
    alone = torch.Generator().manual_seed(number)
    begun = next_sample = time.monotonic()
    memory, descriptors, mappings = [], [], []
    rng = random.Random(f"soak {setting.seed}")
    while soak.is_on():
        with soak.draws_or_forks:
            drawn = torch.rand(64)
            if rng.random() < 0.002:
                _fork(soak)
        if not torch.equal(drawn, torch.rand(64, generator=alone)):
            soak.failures.append("the main thread's own numbers were wrong")
        soak.counts["blocks drawn by the main thread"] += 1
        now = time.monotonic()
        if now >= next_sample:
            next_sample = now + max(0.2, 60 * setting.minutes / 300)
            if now - begun > 60 * setting.minutes / 5:
                held = Holdings.now()
                memory.append((now - begun, resident_kb()))
                descriptors.append((now - begun, float(held.descriptors)))
                mappings.append((now - begun, float(held.mappings)))
        time.sleep(0.001)
    for thread in threads:
        thread.join(60.0)
        if thread.is_alive():
            soak.failures.append(f"{thread.name}: its thread does not end")
    outcome = Outcome(failures=soak.failures, counts=soak.counts)
    outcome.failures += beyond(before)
    seconds = 60 * setting.minutes * 4 / 5
    grown = {"kb": slope(memory), "descriptors": slope(descriptors), "mappings": slope(mappings)}
    outcome.figures = {f"{name}_per_hour": round(3600 * value, 2) for name, value in grown.items()}
    outcome.figures |= {"minutes": round((time.monotonic() - begun) / 60, 2)}
    if setting.minutes >= FIT_MIN_MINUTES and grown["kb"] * seconds > GROWTH_KB_MAX:
        outcome.failures.append(f"memory grew by {grown['kb'] * seconds:.0f} KB in {seconds / 60:.0f} minutes")
    if grown["descriptors"] * seconds > 8:
        outcome.failures.append(f"{grown['descriptors'] * seconds:.0f} descriptors more in {seconds / 60:.0f} minutes")
    return outcome


def _fork(soak: Soak) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    soak.counts["forks"] += 1
