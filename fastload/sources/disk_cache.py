"""Files kept on a disk, of at most so many bytes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import time
from typing import Final

_KEPT_SHARE: Final = 0.9  # of the bound, after files were removed
_TEMPORARY: Final = ".part"


class DiskCache:
    """A folder of files by name; those not read for longest are removed.

    Several processes may share it, so that a file may be removed at any time. Thread-safe.

    Args:
        folder: Made if there is none.
        max_bytes: Of all files; other processes may exceed it for a moment.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        self._folder = os.fspath(folder)
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        os.makedirs(folder, exist_ok=True)
        self._bytes = sum(size for _, size, _ in self._files())

    def path_of(self, name: str, size: int | None = None) -> str | None:
        """Return a file's path, and note that it is read.

        ``None`` if there is no such file, or it has another size.
        """
        path = self._path(name)
        try:
            about = os.stat(path)
            os.utime(path, ns=(time.time_ns(), about.st_mtime_ns))  # it is the same file still for those who index it
        except OSError:
            return None
        return path if size is None or about.st_size == size else None

    def put(self, name: str, data: bytes) -> None:
        """Keep a file, unless the disk refuses. Others see all or nothing."""
        if len(data) > self._max_bytes:
            return
        path = self._path(name)
        with contextlib.suppress(OSError):
            os.makedirs(folder := os.path.dirname(path), exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(_TEMPORARY, dir=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
            with self._lock:
                self._bytes += len(data)
                if self._bytes > self._max_bytes:
                    self._remove_oldest()

    def _path(self, name: str) -> str:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()
        return f"{self._folder}/{digest[:2]}/{digest[2:]}"

    def _files(self) -> list[tuple[float, int, str]]:
        """When each file was last read, its bytes and path."""
        found = []
        for folder, _, names in os.walk(self._folder):
            for name in names:
                with contextlib.suppress(OSError):  # another process has removed it
                    about = os.stat(path := os.path.join(folder, name))
                    found.append((about.st_atime, about.st_size, path))
        return found

    def _remove_oldest(self) -> None:
        files = sorted(self._files(), reverse=True)
        self._bytes = sum(size for _, size, _ in files)
        while files and self._bytes > _KEPT_SHARE * self._max_bytes:
            _, size, path = files.pop()
            with contextlib.suppress(OSError):
                os.unlink(path)
            self._bytes -= size
