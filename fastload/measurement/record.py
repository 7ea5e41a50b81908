"""Shared by all benchmarks: the environment, interleaved repeats, the JSON file."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastload._machine import cpu_budget, cpu_model, usable_cpus
from fastload._version import __version__, version_of
from fastload.measurement.console import console

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeats of one measurement."""

    values: tuple[float, ...]  # every repeat, in the order measured

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a measurement must have at least 1 value, got 0")

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Collect ``values``."""
        return cls(tuple(float(value) for value in values))

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def plus_minus(self) -> str:
        """Half of max minus min, of the median; a dash for one value."""
        if len(self.values) == 1 or not self.median:
            return "–"
        return f"{(max(self.values) - min(self.values)) / self.median / 2:.1%}"

    def record(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        return {"median": self.median, "min": min(self.values), "max": max(self.values), "values": list(self.values)}


def interleave(contenders: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Spread]:
    """Measure all contenders in turn, ``repeats`` times, so that drift affects all equally.

    Every second round runs backwards, so no contender always comes first.

    Args:
        contenders: Name to a function that measures once and returns the figure. Warm them up before.
        repeats: Rounds, at least 1.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be >= 1, got {repeats}")
    values: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(repeats):
        for name in order:
            values[name].append(contenders[name]())
        order.reverse()
    return {name: Spread.of(collected) for name, collected in values.items()}


def ratio(numerator: Spread, denominator: Spread) -> Spread:
    """Divide two contenders of one :func:`interleave` round by round, which cancels drift."""
    return Spread.of([a / b for a, b in zip(numerator.values, denominator.values, strict=True)])


def extent(record: Mapping[str, Any], form: str) -> str:
    """Format the range of :meth:`Spread.record`, such as ``"3 to 5"``; a single repeat has none."""
    if has_one_repeat(record):
        return "one repeat"
    return f"{record['min']:{form}} to {record['max']:{form}}"


def has_one_repeat(record: Mapping[str, Any]) -> bool:
    """Whether :meth:`Spread.record` has a single value, and so no spread."""
    return len(record["values"]) == 1


def environment() -> dict[str, Any]:
    """Describe the machine and software, so that a reader can judge or repeat the measurement."""
    on_gpu = torch.cuda.is_available()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": cpu_model(),
        "usable_cpus": usable_cpus(),
        "cpus": cpu_budget().online,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": version_of("torchvision"),
        "pillow": _pillow_version(),
        "fastload": __version__,
        "gpu": torch.cuda.get_device_name() if on_gpu else None,
        "driver": _driver_version() if on_gpu else None,
        "cuda": torch.version.cuda if on_gpu else None,
    }


def write_json(path: str | Path, record: Mapping[str, Any]) -> Path:
    """Write ``record`` to ``path`` atomically."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, staging = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(record, file, indent=2, allow_nan=False)
            file.write("\n")
        Path(staging).chmod(0o644)
        Path(staging).replace(path)
    except BaseException:
        Path(staging).unlink(missing_ok=True)
        raise
    return path


def save(path: str | Path | None, record: Mapping[str, Any]) -> None:
    """Write a benchmark's record to its ``--json``; once complete, print where."""
    if path is not None:
        write_json(path, record)
        if record.get("complete", True):
            console().print(f"figures: {path}")


def _commit() -> str | None:
    """The running checkout's commit; ``FASTLOAD_COMMIT`` if there is no git history."""
    folder = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        # An installed package may lie inside another project's repository, which does not track it.
        git("ls-files", "--error-unmatch", "__init__.py")
        sources = (".", "../csrc", "../benchmarks", ":(exclude)../benchmarks/results")
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", *sources) else "")
    return os.environ.get("FASTLOAD_COMMIT")


def _driver_version() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
        return done.stdout.splitlines()[0].strip()
    return None


def _pillow_version() -> str:
    import PIL
    from PIL import features

    return f"{PIL.__version__} (libjpeg-turbo {features.version('libjpeg_turbo')})"
