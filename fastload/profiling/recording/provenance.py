"""What was recorded: command, date, machine and versions; kept beside the recording."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from fastload._machine import cpu_model, usable_cpus
from fastload._version import DISTRIBUTION, version_of

if TYPE_CHECKING:
    from pathlib import Path

FILE: Final = "provenance.json"
_PACKAGES: Final = (DISTRIBUTION, "torch", "torchvision")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a recording comes from."""

    command: str  # command line, as typed in a shell
    date: str  # date and time in UTC
    machine: str  # processor and usable cores
    versions: str  # versions of Python and of the packages that matter
    loader: str  # loader that ran in the place of torch's DataLoader

    @classmethod
    def now(cls, command: str, loader: str) -> Provenance:
        """Describe a recording that is made on this machine now."""
        found = [f"{name} {version}" for name in _PACKAGES if (version := version_of(name))]
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
