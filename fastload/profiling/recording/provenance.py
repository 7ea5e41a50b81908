"""What was recorded: command, date, machine and versions; kept beside the recording."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from fastload._machine import cpu_model, usable_cpus

if TYPE_CHECKING:
    from pathlib import Path

FILE: Final = "provenance.json"
_PACKAGES: Final = ("fastload", "torch", "torchvision")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a recording comes from.

    Attributes:
        command: What was run, as typed in a shell.
        date: When, in UTC.
        machine: Processor and usable cores.
        versions: Of the packages that matter, and of Python.
        loader: What ran in the place of torch's DataLoader.
    """

    command: str
    date: str
    machine: str
    versions: str
    loader: str

    @classmethod
    def now(cls, command: str, loader: str) -> Provenance:
        """Describe a recording that is made on this machine now."""
        found = [f"{name} {version}" for name in _PACKAGES if (version := _version(name))]
        cores = usable_cpus()
        return cls(
            command=command,
            date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            machine=f"{cpu_model()}, {cores} core{'s' if cores > 1 else ''}",
            versions=", ".join([*found, f"Python {platform.python_version()}"]),
            loader=loader,
        )

    @classmethod
    def read(cls, folder: Path) -> Provenance | None:
        """Read what :meth:`write` wrote into the folder; ``None`` if it did not."""
        try:
            return cls(**json.loads((folder / FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        """Keep it beside the recording."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
