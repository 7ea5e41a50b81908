"""The outcome of a trial, and how a program reports it to the harness."""

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
    """Settings shared by all trials of a run.

    Attributes:
        scratch: Folder for the images, the expected values and the programs' output.
        seed: Seed of all random choices.
        share: Share of the full number of trials to run.
        minutes: Duration of the soak.
    """

    scratch: Path
    seed: int
    share: float
    minutes: float


@dataclass(slots=True)
class Outcome:
    """Outcome of one call of ``trial``.

    Attributes:
        done: Number of trials run.
        failures: Descriptions of failures, a line or more each.
        counts: Event counts for our loader, by name.
        torch: Event counts for torch's DataLoader in the same trial, by name.
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
    """Describe a count that exceeds torch's by more than chance explains.

    Args:
        total: Sum over all trials.
        name: Name of the count.
        share: Trials of torch per trial of ours.
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
    """Report to the harness in one write, so that processes' lines do not mix."""
    if _news >= 0:
        os.write(_news, (json.dumps(news) + "\n").encode())
