"""The doctor's check of a folder's disk: how fast its files are read."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastload.commands.doctor.checks import Check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MEASURED_S: Final = 0.5  # time for each number of threads
LISTED_S: Final = 0.5
FILES_MAX: Final = 20_000  # files listed at most; which of them are read is drawn
FILE_BYTES_MAX: Final = 64 << 20  # bytes read of a file at most
THREADS: Final = 8
_CHUNK: Final = 1 << 20


def check_disk(folder: Path) -> Check:
    """Read a folder's files for a second, with one thread and with several."""
    files = list(_listed(folder))
    if not files:
        return Check("disk", f"no file that can be read in {folder}", "warning", "name the folder that the data is in")
    random.Random(0).shuffle(files)
    # Each number of threads has files of its own, as far as there are some: the storage may have a cache, too.
    parts = (files, files) if len(files) < 2 * THREADS else (files[::4], files[1::4] + files[2::4] + files[3::4])
    speeds = [measure(part, threads) for part, threads in zip(parts, (1, THREADS), strict=True)]
    data: dict[str, Any] = {"folder": str(folder), "files_listed": len(files)}
    findings = []
    for threads, (bytes_per_s, files_per_s) in zip((1, THREADS), speeds, strict=True):
        data[f"{threads}_threads"] = {"bytes_per_s": bytes_per_s, "files_per_s": files_per_s}
        threads_say = "1 thread" if threads == 1 else f"{threads} threads"
        findings.append(f"{threads_say} {bytes_per_s / 1e6:,.0f} MB/s, {files_per_s:,.0f} files/s")
    finding = f"{'; '.join(findings)} in {folder}"
    if (kind := _file_system(folder)) in ("tmpfs", "ramfs"):
        return Check("disk", f"{finding}, which is memory ({kind})", data=data)
    return Check("disk", finding, data=data)


def measure(files: Sequence[Path], threads: int, seconds: float = MEASURED_S) -> tuple[float, float]:
    """Bytes and files per second that threads read, each file at most once. Blocks."""
    pending = iter(files)
    lock = threading.Lock()
    done: list[tuple[int, float]] = []  # bytes and end of each file, or of its last chunk in time
    start = time.perf_counter()

    def read() -> None:
        while time.perf_counter() - start < seconds:
            with lock:
                path = next(pending, None)
            if path is None:
                return
            size = _read_uncached(path, start + seconds)
            done.append((size, time.perf_counter() - start))

    readers = [threading.Thread(target=read, name=f"fastload-disk-{n}", daemon=True) for n in range(threads)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(max(0.0, start + 2 * seconds - time.perf_counter()))  # a dead network's read may never return
    finished = list(done)
    took = max((end for _, end in finished), default=seconds)
    return sum(size for size, _ in finished) / took, len(finished) / took


def _read_uncached(path: Path, until: float) -> int:
    """Read a file past the page cache; returns the bytes."""
    total = 0
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        while total < FILE_BYTES_MAX and (chunk := os.read(descriptor, _CHUNK)):
            total += len(chunk)
            if time.perf_counter() > until:
                break
    except OSError:
        pass
    finally:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return total


def _listed(folder: Path) -> Iterator[Path]:
    """Files in a folder and below, as many as are listed in time."""
    until, count, folders = time.perf_counter() + LISTED_S, 0, [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:  # one by one: a folder may have millions
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    elif entry.is_file():  # no pipe or device, which would block
                        yield Path(entry.path)
                        count += 1
                    if count >= FILES_MAX or (count and time.perf_counter() > until):
                        return
        except OSError:
            continue


def _file_system(folder: Path) -> str:
    """The kind of file system that a folder is in; empty if unknown."""
    found, kind = "", ""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    real = str(folder.resolve())
    for line in lines:
        _, place, this, *_ = line.split(" ")
        if (real + "/").startswith(place.rstrip("/") + "/") and len(place) >= len(found):
            found, kind = place, this
    return kind
