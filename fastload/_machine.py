"""Resources that this process may use: cores, memory, shared memory, file descriptors.

Containers and batch systems assign a part of the machine through the scheduler's affinity mask and control groups;
``os.cpu_count()`` and the machine's free memory reflect neither.
"""

from __future__ import annotations

import os
import platform
import re
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "CpuBudget",
    "MemoryBudget",
    "cpu_budget",
    "cpu_model",
    "file_descriptor_limits",
    "memory_budget",
    "process_memory",
    "shared_memory_bytes",
    "usable_cpus",
    "usable_memory_bytes",
]

_ROOT: Final = Path("/")
# Version 1 writes "no limit" as the largest multiple of the page size that fits a signed 64-bit integer.
_V1_UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """Cores that this process may keep busy, and the limits that determine them.

    Attributes:
        online: Cores of the machine.
        affinity: Cores that the scheduler may run this process on.
        quota: Cores' worth of time that the control groups grant, or None without a limit.
    """

    online: int
    affinity: int
    quota: float | None

    @property
    def usable(self) -> int:
        """Whole cores that can be kept busy without being throttled; at least 1."""
        return self.affinity if self.quota is None else max(1, min(self.affinity, int(self.quota)))


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Memory that this process may still allocate, and the limits that determine it.

    Attributes:
        available_bytes: Memory available on the machine without swapping.
        limit_bytes: The tightest limit of the control groups, or None without one.
        left_bytes: Memory that the control groups still allow (droppable caches count as free), or None.
    """

    available_bytes: int
    limit_bytes: int | None
    left_bytes: int | None

    @property
    def usable_bytes(self) -> int:
        """The smaller of the machine's available memory and the control groups' allowance."""
        return self.available_bytes if self.left_bytes is None else max(0, min(self.available_bytes, self.left_bytes))


def cpu_model() -> str:
    """The processor's name, such as ``"AMD EPYC 9654 96-Core Processor"``."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cpus() -> int:
    """Processor cores that this process may keep busy: affinity and control-group quota, at least 1.

    A fractional quota is rounded down: threads beyond it would be throttled. Reads a few files; not cached, because a
    quota may change while a process runs.
    """
    return cpu_budget().usable


def usable_memory_bytes() -> int:
    """Bytes that this process may still allocate: the machine's available memory and the control-group limit."""
    return memory_budget().usable_bytes


def cpu_budget(root: Path = _ROOT) -> CpuBudget:
    """Read the cores that this process may use; ``root`` contains ``/proc`` and ``/sys``."""
    online = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else online
    quotas = [quota for group in _control_groups("cpu", root) if (quota := _cpu_quota(group)) is not None]
    return CpuBudget(online, affinity, min(quotas, default=None))


def memory_budget(root: Path = _ROOT) -> MemoryBudget:
    """Read the memory that this process may use; ``root`` contains ``/proc`` and ``/sys``."""
    limits: list[int] = []
    lefts: list[int] = []
    for group in _control_groups("memory", root):
        limit = _memory_limit(group)
        if limit is not None:
            limits.append(limit)
            lefts.append(max(0, limit - _memory_held(group)))
    return MemoryBudget(_available_bytes(root), min(limits, default=None), min(lefts, default=None))


def shared_memory_bytes(path: str = "/dev/shm") -> tuple[int, int] | None:
    """Size and free bytes of the shared-memory file system, or None if there is none."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail


def file_descriptor_limits() -> tuple[int | None, int | None]:
    """This process's soft and hard limit of open file descriptors; None means no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (None if soft == resource.RLIM_INFINITY else soft), (None if hard == resource.RLIM_INFINITY else hard)


def process_memory(pid: int, root: Path = _ROOT) -> tuple[int, int] | None:
    """Resident bytes of a process: all, and with shared pages in part.

    None if it is gone, or another user's. The kernel walks the process's pages, which takes it milliseconds.
    """
    folder = root / "proc" / str(pid)
    text = _read(folder / "smaps_rollup") or _read(folder / "smaps")  # gVisor has no rollup
    if not text:
        return None
    rss, pss = (
        sum(int(kilobytes) for kilobytes in re.findall(rf"^{name}: +(\d+) kB$", text, re.MULTILINE))
        for name in ("Rss", "Pss")
    )
    return 1024 * rss, 1024 * pss


def mapped_files() -> list[str]:
    """List the files that this process has mapped, such as shared libraries; each once."""
    lines = (_read(Path("/proc/self/maps")) or "").splitlines()
    return list(dict.fromkeys(path for line in lines if (path := line.partition("/")[2] and line[line.index("/") :])))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None


def _read_int(path: Path) -> int | None:
    try:
        return int(_read(path) or "")
    except ValueError:  # absent, or the word "max"
        return None


def _control_groups(controller: str, root: Path) -> Iterator[Path]:
    """This process's control groups for a controller, innermost first; all their limits apply.

    Both versions may be mounted at once, each with some of the controllers, so both are read.
    """
    memberships = _read(root / "proc/self/cgroup") or ""
    mounts = _read(root / "proc/self/mountinfo") or ""
    for membership in memberships.splitlines():
        hierarchy, _, rest = membership.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            file_system = "cgroup2"
        elif controller in controllers.split(","):
            file_system = "cgroup"
        else:
            continue
        for mount_root, mount_point in _mounts(mounts, file_system, controller):
            yield from _ancestry(root / mount_point.lstrip("/"), mount_root, path)
            break


def _mounts(mountinfo: str, file_system: str, controller: str) -> Iterator[tuple[str, str]]:
    """Yield root and mount point of each mount with the controller (see proc(5))."""
    for line in mountinfo.splitlines():
        fixed, separator, tail = line.partition(" - ")
        fields, kind = fixed.split(), tail.split()
        if not separator or len(fields) < 5 or not kind or kind[0] != file_system:
            continue
        if file_system == "cgroup2" or controller in kind[-1].split(","):
            yield fields[3], fields[4]


def _ancestry(mount_point: Path, mount_root: str, path: str) -> Iterator[Path]:
    """Yield the folders of a control group and its mounted ancestors."""
    parts = [part for part in path.split("/") if part]
    rooted = [part for part in mount_root.split("/") if part]
    if parts[: len(rooted)] == rooted:
        parts = parts[len(rooted) :]
    elif ".." in parts or rooted:
        # In a container that sees only its own subtree, under another name, the mount point is its group.
        parts = []
    for depth in range(len(parts), -1, -1):
        group = mount_point.joinpath(*parts[:depth])
        if group.is_dir():
            yield group


def _cpu_quota(group: Path) -> float | None:
    """Cores' worth of processor time per period, for either version; None without a limit."""
    if (cpu_max := _read(group / "cpu.max")) is not None:
        quota, _, period = cpu_max.strip().partition(" ")
        try:
            return int(quota) / int(period or 100_000)
        except (ValueError, ZeroDivisionError):  # "max 100000"
            return None
    quota_us, period_us = _read_int(group / "cpu.cfs_quota_us"), _read_int(group / "cpu.cfs_period_us")
    return quota_us / period_us if quota_us is not None and quota_us > 0 and period_us else None


def _memory_limit(group: Path) -> int | None:
    limit = _read_int(group / "memory.max")
    if limit is None:
        limit = _read_int(group / "memory.limit_in_bytes")
    return None if limit is None or limit >= _V1_UNLIMITED else limit


def _memory_held(group: Path) -> int:
    """Bytes of a control group that the kernel cannot reclaim by dropping file caches."""
    used = _read_int(group / "memory.current")
    key = "inactive_file"
    if used is None:
        used, key = _read_int(group / "memory.usage_in_bytes") or 0, "total_inactive_file"
    for line in (_read(group / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return max(0, used - int(value))
    return used


def _available_bytes(root: Path) -> int:
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
