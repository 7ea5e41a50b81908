"""Ctrl-C in a program that abandons one loader after the other: it must end."""

from __future__ import annotations

import random
from pathlib import Path

from .interrupts import WEIGHTS, conclude, interrupted
from .loaders import KINDS, SOUND, expected
from .outcome import Outcome, Setting, tell
from .programs import Launcher

TITLE = "interrupts while iterators are abandoned"
COUNT, EACH, OUTSIDE = 500, 1, True
ROUNDS_S = 0.3  # several rounds
SPAWNED_S = 5.0
__all__ = ["COUNT", "EACH", "OUTSIDE", "TITLE", "conclude", "program", "trial"]


def program(root: str, kind: str, ours: bool, catches: bool) -> None:
    """Abandon an iterator after a batch, again and again."""
    expected(Path(root), kind)
    tell(phase="rounds")
    try:
        while True:
            for _ in KINDS[kind].loader(Path(root), ours=ours):
                break
    except KeyboardInterrupt:
        if catches:
            raise SystemExit(130) from None
        raise


def trial(number: int, setting: Setting, launcher: Launcher) -> Outcome:
    """Interrupt our loader and torch's; a program that lost it goes on."""
    rng = random.Random(f"abandons {setting.seed} {number}")
    (kind,) = rng.choices(SOUND, [WEIGHTS.get(name, 1.0) for name in SOUND])
    delay = rng.uniform(0, SPAWNED_S if "spawned" in kind else ROUNDS_S)
    return interrupted(kind, "rounds", delay, rng, setting, launcher, "torture.abandons:program")
