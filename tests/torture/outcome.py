"""What a trial came to, and how a program tells the harness about it."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """What all trials of a run share.

    Attributes:
        scratch: Folder of the images, the expected values and the programs' output.
        seed: Of everything drawn.
        share: Of the full number of trials.
        minutes: How long the soak lasts.
    """

    scratch: Path
    seed: int
    share: float
    minutes: float


@dataclass(slots=True)
class Outcome:
    """Of one call of ``trial``.

    Attributes:
        done: How many trials it made.
        failures: What went wrong, a line or more for each.
        counts: What was seen, by name.
        torch: Likewise of torch's DataLoader in the same trial.
        figures: Measurements, by name.
    """

    done: int = 1
    failures: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    torch: Counter[str] = field(default_factory=Counter)
    figures: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, record: dict[str, Any]) -> Outcome:
        counts, torch = Counter(record.pop("counts")), Counter(record.pop("torch"))
        return cls(counts=counts, torch=torch, **record)

    def record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def more_than_torch(total: Outcome, name: str, share: float = 1.0) -> list[str]:
    """What is to be said if ``name`` was counted more often than torch's count, and chance, explain.

    Args:
        total: Of all trials.
        name: Of the count.
        share: How many trials of torch's there were for one of ours.
    """
    allowed = total.torch[name] / share
    if total.counts[name] <= allowed + 1 + 4 * math.sqrt(allowed + 1):
        return []
    return [f"{name}: {total.counts[name]}; torch in proportion: {allowed:.1f}"]


_news = -1


def open_news(path: str) -> None:
    """Let :func:`tell` write to the pipe at ``path``."""
    global _news
    _news = os.open(path, os.O_WRONLY)


def tell(**news: Any) -> None:
    """Tell the harness; one write, so that lines of several processes do not mix."""
    if _news >= 0:
        os.write(_news, (json.dumps(news) + "\n").encode())
