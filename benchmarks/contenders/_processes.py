"""Read processor time and memory of processes from /proc; shared memory is counted once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def members(group: int, root: Path = Path("/proc")) -> list[int]:
    """Processes of a process group."""
    return _with_field(2, group, root)


def children(process: int, root: Path = Path("/proc")) -> list[int]:
    """Processes that a process has started and that run."""
    return _with_field(1, process, root)


def _with_field(field: int, value: int, root: Path) -> list[int]:
    numbers = sorted(int(entry.name) for entry in root.iterdir() if entry.name.isdigit())
    return [number for number in numbers if (stat := _stat(root / str(number))) and int(stat[field]) == value]


def processor_s(processes: Iterable[int], root: Path = Path("/proc")) -> float:
    """Return processor seconds of processes, with those of children they waited for."""
    stats = (_stat(root / str(process)) for process in processes)
    return sum(sum(map(int, stat[11:15])) for stat in stats if stat) / TICKS_PER_S  # utime, stime, cutime, cstime


@dataclass(frozen=True, slots=True)
class Memory:
    """Host memory of a process group."""

    pss_bytes: int  # proportional set size: a page shared by n processes counts 1/n in each
    uss_bytes: int  # pages of one process alone
    unshared_pss_bytes: int  # part of pss_bytes that is no shared memory (pinned memory of CUDA, arenas, /dev/shm)
    # all shared memory of this machine, mapped or not: a tensor in transit from a worker may not be mapped by any
    # process
    shared_memory_bytes: int
    available_bytes: int  # memory of this machine that is still available

    @property
    def host_bytes(self) -> int:
        """Return the group's memory, each page once, if no other shared memory changes."""
        return self.unshared_pss_bytes + self.shared_memory_bytes


def memory(group: int, root: Path = Path("/proc")) -> Memory:
    """Memory that a process group holds now."""
    pss = uss = shared = 0
    for process in members(group, root):
        with contextlib.suppress(OSError):
            folder = root / str(process)
            rollup = folder / "smaps_rollup"  # gVisor has none
            fields = _kilobytes((rollup if rollup.exists() else folder / "smaps").read_text())
            pss += fields.get("Pss", 0)
            uss += fields.get("Private_Clean", 0) + fields.get("Private_Dirty", 0)
            shared += fields.get("Pss_Shmem", 0)
    machine = _kilobytes((root / "meminfo").read_text())
    return Memory(
        pss_bytes=1024 * pss,
        uss_bytes=1024 * uss,
        unshared_pss_bytes=1024 * (pss - shared),
        shared_memory_bytes=1024 * machine.get("Shmem", 0),
        available_bytes=1024 * machine.get("MemAvailable", 0),
    )


def _stat(process: Path) -> list[str] | None:
    """Return the fields of ``/proc/<pid>/stat`` after the name; ``None`` when the process has gone."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _kilobytes(text: str) -> dict[str, int]:
    """Fields by name; what comes several times is added up."""
    fields: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        value = rest.split()
        if len(value) == 2 and value[1] == "kB":
            fields[name] = fields.get(name, 0) + int(value[0])
    return fields
