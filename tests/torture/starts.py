"""Ctrl-C while the first epoch starts, alternating decode threads and worker processes."""

from __future__ import annotations

import random

from .interrupts import conclude, interrupted
from .loaders import KINDS, SOUND
from .outcome import Outcome, Setting
from .programs import Launcher

TITLE = "interrupts of the start"
COUNT, EACH, OUTSIDE = 1_000, 1, True
UNTIL_S = 0.12  # longer than the start takes
EXECUTORS = [
    [name for name in SOUND if name.startswith("native")],
    [name for name in SOUND if KINDS[name].executor == "workers" and "spawned" not in name],
]
__all__ = ["COUNT", "EACH", "OUTSIDE", "TITLE", "conclude", "trial"]


def trial(number: int, setting: Setting, launcher: Launcher) -> Outcome:
    """Send the same interrupt to our loader and to torch's."""
    rng = random.Random(f"starts {setting.seed} {number}")
    return interrupted(rng.choice(EXECUTORS[number % 2]), "start", rng.uniform(0, UNTIL_S), rng, setting, launcher)
