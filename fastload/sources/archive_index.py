"""Find and keep where the members of tar and zip archives lie.

Reading a tar archive's headers takes a seek for each member, so the result is kept: as ``ARCHIVE.index.npz``, or in
``$XDG_CACHE_HOME/fastload/archives`` where that cannot be written. An index is used only while the archive has the size
and time of change that it had, and all that it says is checked against the archive's size.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

    Entry = tuple[str, int, int, int, int, int]

FOLDER: Final = 0
STORED: Final = 1
DEFLATED: Final = 2
OTHER: Final = 3
"""A link, a device or a member that cannot be read from a place, which a dataset refuses."""

_VERSION: Final = 1
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")  # signature, lengths of the name and of the extra field
_ENCRYPTED: Final = 1


class ArchiveError(ValueError):
    """An archive cannot be read; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class ArchiveIndex:
    """Where an archive's members lie.

    Attributes:
        stamp: The archive's size, bytes, and time of change, ns.
        names: The members' names, without a leading ``./``; each once. The last one counts, as in an extracted archive.
        places: ``(N, 5)`` int64: kind, offset, bytes there, bytes of the member, its CRC-32 or -1.
    """

    stamp: tuple[int, int]
    names: list[str]
    places: NDArray[np.int64]


def as_list(paths: Paths) -> list[str]:
    """List paths, absolute, so that a later ``chdir`` changes nothing."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ValueError("path_or_paths must name at least one file, got none")
    return [os.path.abspath(os.path.expanduser(os.fspath(path))) for path in given]


def stamp_of(about: os.stat_result) -> tuple[int, int]:
    """Return what tells a changed archive: its size, bytes, and time of change, ns."""
    return about.st_size, about.st_mtime_ns


def read_index(path: str, *, is_zip: bool) -> ArchiveIndex:
    """Read where an archive's members lie, or load its kept index. Blocks.

    Args:
        path: The archive.
        is_zip: Whether it must be a zip archive, or a tar archive that is not compressed.

    Raises:
        ArchiveError: It is no such archive.
        OSError: It cannot be read.
    """
    stamp = stamp_of(os.stat(path))
    kept = _kept_paths(path)
    for file in kept:
        if (index := _load(file, stamp, is_zip=is_zip)) is not None:
            return index
    index = _made(path, stamp, is_zip=is_zip)
    for file in kept:
        with suppress(OSError):
            _save(file, index, is_zip=is_zip)
            break
    return index


def _kept_paths(path: str) -> tuple[Path, Path]:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastload" / "archives"
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return Path(f"{path}.index.npz"), folder / f"{name}.index.npz"


def _made(path: str, stamp: tuple[int, int], *, is_zip: bool) -> ArchiveIndex:
    found: dict[str, tuple[int, int, int, int, int]] = {}
    try:
        for name, *place in _members_of_zip(path) if is_zip else _members_of_tar(path):
            kept = _plain_name(name, path)
            found.pop(kept, None)
            found[kept] = tuple(place)  # type: ignore[assignment]
    except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, struct.error, EOFError) as error:
        wanted = "a zip archive" if is_zip else "a tar archive without compression"
        raise ArchiveError(f"{path} must be {wanted}: {error}") from error
    index = ArchiveIndex(stamp, list(found), np.array(list(found.values()), np.int64).reshape(-1, 5))
    if stamp_of(os.stat(path)) != stamp or not _is_within(index):
        raise ArchiveError(f"{path} ends before its members do, or was changed while it was read; write it again")
    return index


def _plain_name(name: str, path: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ArchiveError(f"{path} has a member {name!r} outside of its folder; write the archive without '..'")
    return "/".join(parts)


def _members_of_tar(path: str) -> Iterator[Entry]:
    with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            plain = member.isreg() and not member.issparse()
            kind = STORED if plain else FOLDER if member.isdir() else OTHER
            yield member.name, kind, member.offset_data, member.size, member.size, -1
            archive.members = []  # type: ignore[attr-defined]  # or it keeps a kilobyte for each
        file.seek(archive.offset)
        if file.read(tarfile.BLOCKSIZE) not in (b"", bytes(tarfile.BLOCKSIZE)):  # at a damaged header, too, it ends
            raise tarfile.ReadError(f"there is no header at byte {archive.offset}")


def _members_of_zip(path: str) -> Iterator[Entry]:
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            file.seek(member.header_offset)
            signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            if signature != b"PK\3\4":
                raise zipfile.BadZipFile(f"there is no header of {member.filename!r} where it should be")
            offset = member.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
            kind = FOLDER if member.is_dir() else _kind_of(member)
            yield member.filename, kind, offset, member.compress_size, member.file_size, member.CRC


def _kind_of(member: zipfile.ZipInfo) -> int:
    file_type = stat.S_IFMT(member.external_attr >> 16)
    if member.flag_bits & _ENCRYPTED or file_type not in (0, stat.S_IFREG):
        return OTHER
    if member.compress_type == zipfile.ZIP_STORED:
        return STORED if member.compress_size == member.file_size else OTHER
    return DEFLATED if member.compress_type == zipfile.ZIP_DEFLATED else OTHER


def _is_within(index: ArchiveIndex) -> bool:
    """Whether all that can be read lies within the archive."""
    kinds, offsets, stored, sizes, checksums = index.places.T
    sane = (offsets >= 0) & (stored >= 0) & (sizes >= 0) & (offsets <= index.stamp[0]) & (kinds >= FOLDER)
    sane &= (stored <= index.stamp[0] - offsets) & (kinds <= OTHER) & (checksums >= -1)
    return bool((sane | (kinds == OTHER) | (kinds == FOLDER)).all())


def _load(file: Path, stamp: tuple[int, int], *, is_zip: bool) -> ArchiveIndex | None:
    """Load a kept index; ``None`` if it is none, or another archive's."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as held:
            head, places, names = held["head"], held["places"], held["names"].tobytes()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        return None
    index = ArchiveIndex(stamp, os.fsdecode(names).split("\0") if names else [], places)
    plain = places.dtype == np.int64 and places.shape == (len(index.names), 5) and head.dtype == np.int64
    if not plain or head.tolist() != [_VERSION, is_zip, *stamp] or not _is_within(index):
        return None
    return index


def _save(file: Path, index: ArchiveIndex, *, is_zip: bool) -> None:
    """Write an index, whole or not at all.

    Raises:
        OSError: It cannot be written there.
    """
    if file.parent.name == "archives":
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    try:
        with open(number, "wb") as out:
            names = np.frombuffer(os.fsencode("\0".join(index.names)), np.uint8)
            np.savez(out, head=np.array([_VERSION, is_zip, *index.stamp]), places=index.places, names=names)
        os.chmod(name, 0o644)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


class _Descriptor:
    """A file descriptor that is closed when it is let go."""

    def __init__(self, path: str) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class ArchiveReader:
    """Reads members of archives, from any thread and any process.

    Picklable. Each archive is opened when it is first read, and up to ``OPEN_MAX`` stay open.

    Args:
        paths: The archives.
        stamps: What :func:`stamp_of` was when their indexes were read.
    """

    OPEN_MAX = 128

    def __init__(self, paths: list[str], stamps: list[tuple[int, int]]) -> None:
        self._paths = paths
        self._stamps = stamps
        self._files: dict[int, _Descriptor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_files": {}}

    def read(self, archive: int, place: NDArray[np.int64]) -> bytes:
        """Read a member, given the archive's number and a row of ``ArchiveIndex.places``. Blocks.

        Raises:
            ArchiveError: The archive has changed, or the member is damaged.
            OSError: It cannot be read.
        """
        kind, offset, stored, size, checksum = place.tolist()
        file = self._files.get(archive)
        if file is None:
            file = _Descriptor(self._paths[archive])
            if len(self._files) < self.OPEN_MAX:
                file = self._files.setdefault(archive, file)
        number = file.number
        if stamp_of(os.fstat(number)) != self._stamps[archive]:
            raise ArchiveError(f"{self._paths[archive]} has changed since it was opened; make the dataset again")
        data = os.pread(number, stored, offset)
        while len(data) < stored and (more := os.pread(number, stored - len(data), offset + len(data))):
            data += more
        if kind == DEFLATED:
            try:
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
            except zlib.error as error:
                raise self._damaged(archive, offset) from error
        if len(data) != size or (checksum >= 0 and zlib.crc32(data) != checksum):
            raise self._damaged(archive, offset)
        return data

    def _damaged(self, archive: int, offset: int) -> ArchiveError:
        return ArchiveError(f"{self._paths[archive]} is damaged at byte {offset}, or its member is; write it again")
