"""Open files and walk folders that may hold anything: pipes, devices, links that lead back."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def user_folder(variable: str, default: str) -> Path:
    """Return this user's folder of fastload's files: ``$variable/fastload`` or ``~/default/fastload``.

    Raises:
        OSError: The user has no home.
    """
    try:
        return Path(os.environ.get(variable) or Path.home() / default) / "fastload"
    except RuntimeError as error:
        raise OSError(f"{error}; set {variable} to a folder") from error


def open_regular(path: str | os.PathLike[str]) -> int:
    """Open a regular file for reading and return its descriptor.

    Does not wait for the other end of a named pipe, and asks what was opened, not what lay there before.

    Raises:
        OSError: It cannot be opened, or is a folder, a pipe, a device or a socket.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file as :func:`open_regular` does, as a file object."""
    return os.fdopen(open_regular(path), "rb")


def open_of_process(pid: int, descriptor: int, inode: int, flags: int = os.O_RDWR) -> int:
    """Open the file behind another process's descriptor; returns an own descriptor.

    Raises:
        OSError: It cannot be opened, or that process has closed it and the number now refers to another file.
    """
    own = os.open(f"/proc/{pid}/fd/{descriptor}", flags | os.O_CLOEXEC)
    if os.fstat(own).st_ino != inode:
        os.close(own)
        raise OSError(errno.ESTALE, "closed meanwhile")
    return own


def files_below(
    folder: str | os.PathLike[str], left_out: Callable[[str, Exception], object] = lambda path, why: None
) -> Iterator[str]:
    """Yield the paths of the files in a folder and below, sorted within each folder.

    Links are followed. Each folder is visited once, and none that holds ``folder`` itself, so that no links lead round;
    folders that cannot be read are left out, as by ``os.walk``. So are pipes, devices and sockets, but not links to
    nothing.

    Args:
        folder: Where to begin.
        left_out: Called with a path that is left out and the reason: the ``OSError`` of a folder, or a ``ValueError``
            that says what must not be there. What it raises ends the walk.
    """
    visited = {_identity(parent) for parent in Path(os.path.realpath(folder)).parents}
    pending = [os.fspath(folder)]
    while pending:
        place = pending.pop()
        try:
            identity = _identity(place)
            if identity in visited:
                left_out(place, ValueError(f"links must not lead to a folder twice, but {place} does; remove it"))
                continue
            visited.add(identity)
            with os.scandir(place) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            left_out(place, error)
            continue
        folders = []
        for entry in entries:
            kind = _kind(entry)
            if kind == stat.S_IFDIR:
                folders.append(entry.path)
            elif kind in (stat.S_IFREG, None):
                yield entry.path
            else:
                why = f"there must be files and folders alone, but {entry.path} is neither; remove it"
                left_out(entry.path, ValueError(why))
        pending += reversed(folders)


def _identity(path: str | os.PathLike[str]) -> tuple[int, int]:
    about = os.stat(path)
    return about.st_dev, about.st_ino


def _kind(entry: os.DirEntry[str]) -> int | None:
    """Return the type of what an entry leads to; ``None`` if that is nothing."""
    try:
        if entry.is_dir():
            return stat.S_IFDIR
        return stat.S_IFREG if entry.is_file() else stat.S_IFMT(entry.stat().st_mode)
    except OSError:
        return None
