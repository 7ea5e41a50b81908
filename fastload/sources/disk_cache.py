"""Files kept on a disk, of at most so many bytes, which others cannot forge."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import time
from typing import Final

from fastload import _tagged_files

_KEPT_SHARE: Final = 0.9  # of the bound, after files were removed
_COUNTED_SHARE: Final = 0.05  # of the bound: files are counted when a process has added so many bytes
_OWN: Final = re.compile(r"[0-9a-f]{38}(\..*\.part)?")  # what the cache calls its files, whole and being written


class DiskCache:
    """A folder of files by name; those not read for longest are removed.

    Several processes may share it, so that a file may be removed at any time. Thread-safe. Other files in the folder
    are neither counted nor removed. Each user's files have names and tags of that user's key
    (:mod:`fastload._tagged_files`); who reads a file checks its tags with :meth:`key_of`.

    Args:
        folder: Made if there is none.
        max_bytes: Of all files; each further process that adds some may exceed it by a twentieth.
        key: The user's.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int, key: bytes) -> None:
        self._folder = os.fspath(folder)
        self._key = key
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        os.makedirs(folder, exist_ok=True)
        self._counted = 0  # bytes of all files, when they were counted
        self._is_counted = False
        self._added = 0  # since then, by this process; with what it is writing
        self._writing = 0

    def key_of(self, name: str) -> bytes:
        """Return the key that a file is tagged with."""
        return _tagged_files.key_for(f"cached {name}", self._key)

    def path_of(self, name: str, size: int | None = None) -> str | None:
        """Return a file's path, unless its size is wrong, and note that it is read."""
        path = self._path(name)
        try:
            about = os.stat(path)
            data_bytes = about.st_size - _tagged_files.TAGS_BYTES
            if data_bytes < 0 or (size is not None and data_bytes != size):
                return None
            os.utime(path, ns=(time.time_ns(), about.st_mtime_ns))  # it is the same file still for those who index it
        except FileNotFoundError:
            return None
        except OSError:  # another user's, or on a disk that is only read
            return path if os.access(path, os.R_OK) else None
        return path

    def put(self, name: str, data: bytes) -> None:
        """Keep a file, whole or not at all, unless there is no room."""
        size = len(data) + _tagged_files.TAGS_BYTES
        if size > self._max_bytes or not self._reserve(size):
            return
        path = self._path(name)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _tagged_files.write(path, data, self.key_of(name))
        except OSError:
            pass
        finally:
            with self._lock:
                self._writing -= size

    def _reserve(self, size: int) -> bool:
        """Make room for a file if need be; return whether there is."""
        with self._lock:
            self._added += size
            self._writing += size
            if (
                not self._is_counted
                or self._counted + self._added > self._max_bytes
                or self._added > _COUNTED_SHARE * self._max_bytes
            ):
                self._count()
            has_room = self._counted + self._added <= self._max_bytes
            if not has_room:
                self._added -= size
                self._writing -= size
            return has_room

    def _path(self, name: str) -> str:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), key=self._key, digest_size=20).hexdigest()
        return f"{self._folder}/{digest[:2]}/{digest[2:]}"

    def _files(self) -> list[tuple[float, int, str]]:
        """When each file was last read, its bytes and path."""
        found = []
        for number in range(256):
            with contextlib.suppress(OSError), os.scandir(f"{self._folder}/{number:02x}") as entries:
                for entry in entries:
                    if _OWN.fullmatch(entry.name):
                        with contextlib.suppress(OSError):  # another process has removed it
                            about = entry.stat(follow_symlinks=False)
                            found.append((about.st_atime, about.st_size, entry.path))
        return found

    def _count(self) -> None:
        """Count the bytes of all files, written and being written; remove the oldest."""
        files = self._files()
        self._counted, self._added, self._is_counted = sum(size for _, size, _ in files), self._writing, True
        if self._counted + self._added <= self._max_bytes:
            return
        files.sort(reverse=True)
        while files and self._counted + self._added > _KEPT_SHARE * self._max_bytes:
            _, size, path = files.pop()
            try:
                os.unlink(path)
            except FileNotFoundError:  # another process has removed it
                pass
            except OSError:  # another user's: it stays, and counts
                continue
            self._counted -= size
