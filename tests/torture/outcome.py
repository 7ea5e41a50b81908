"""What a trial came to, and how a program tells the harness about it."""

from __future__ import annotations

import json
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


_news = -1


def open_news(path: str) -> None:
    """Let :func:`tell` write to the pipe at ``path``."""
    global _news
    _news = os.open(path, os.O_WRONLY)


def tell(**news: Any) -> None:
    """Tell the harness; one write, so that lines of several processes do not mix."""
    if _news >= 0:
        os.write(_news, (json.dumps(news) + "\n").encode())
