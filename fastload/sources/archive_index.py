"""Find and keep where the members of tar and zip archives lie.

Reading a tar archive's headers takes a seek for each member, so the result is kept: as ``ARCHIVE.index.npz``, or in
``$XDG_CACHE_HOME/fastload/archives`` where that cannot be written or is another's. An index is used only if this user's
programs have written it (:mod:`fastload._tagged_files`), and while the archive is the file that it was.
Members are read with their headers, which must be those that were indexed.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from fastload import _tagged_files
from fastload._files import open_file, open_regular, user_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

    Identity = tuple[int, int, int, int]
    Member = tuple[str, int, int, int, int, int, int]  # name, where its header begins, and the first columns

FOLDER: Final = 0
STORED: Final = 1
DEFLATED: Final = 2
OTHER: Final = 3
"""A link, a device or a member that cannot be read from a place, which a dataset refuses."""

COLUMNS: Final = 7
"""Number of columns of ``ArchiveIndex.places``."""

_VERSION: Final = 2
_LOCAL_HEADER: Final = struct.Struct("<4s22xHH")  # signature, lengths of the name and of the extra field
_ENCRYPTED: Final = 1
_HEADER_BYTES_MAX: Final = 1 << 16  # of a member that are checked, the last ones: texts before them may be of any size
_TAR_HEADER_BYTES_MAX: Final = 16 << 20  # of a member's headers, which may hold texts of any size
_INFLATED_BYTES: Final = 64 << 20  # what any member may have
_INFLATED_RATIO: Final = 100  # of larger ones, to the bytes that are there; deflate reaches 1032


class ArchiveError(ValueError):
    """An archive cannot be read; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class ArchiveIndex:
    """Where an archive's members lie.

    Attributes:
        identity: Identity of the file, see :func:`identity_of`.
        is_zip: Whether it is a zip archive.
        names: The members' names, without a leading ``./``; each once. The last one counts, as in an extracted archive.
        places: ``(N, COLUMNS)`` int64: kind, offset, bytes there, bytes of the member, its CRC-32 or -1, bytes of its
            header before the offset, and their CRC-32.
    """

    identity: Identity
    is_zip: bool
    names: list[str]
    places: NDArray[np.int64]

    @property
    def stamp(self) -> tuple[int, int]:
        """See :func:`stamp_of`."""
        return self.identity[:2]


def as_list(paths: Paths) -> list[str]:
    """List paths, absolute, so that a later ``chdir`` changes nothing."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise ValueError("path_or_paths must name at least one file, got none")
    return [os.path.abspath(os.path.expanduser(os.fspath(path))) for path in given]


def stamp_of(about: os.stat_result) -> tuple[int, int]:
    """Return what tells a changed archive: its size, bytes, and time of change, ns."""
    return about.st_size, about.st_mtime_ns


def identity_of(about: os.stat_result) -> Identity:
    """Return what tells another archive.

    To its stamp this adds the time of the last change, ns, and the inode, which a copy or a new name changes as well.
    """
    return (*stamp_of(about), about.st_ctime_ns, about.st_ino)


def read_index(path: str, *, is_zip: bool, keep: bool = True) -> ArchiveIndex:
    """Read where an archive's members lie, or load its kept index. Blocks.

    Args:
        path: The archive.
        is_zip: Whether it must be a zip archive, or a tar archive that is not compressed.
        keep: Whether to keep an index that was not there.

    Raises:
        ArchiveError: It is no such archive.
        OSError: It cannot be read.
    """
    identity = identity_of(os.stat(path))
    try:
        key = _tagged_files.key_for("archive index", _tagged_files.make_key())
        beside, cached = _kept_paths(path)
    except (OSError, _tagged_files.UserKeyError):  # without a key none is kept
        return _made(path, identity, is_zip=is_zip)
    free: list[Path] = []
    for file in (beside, cached):
        index = _load(file, key)
        if index is not None and (index.identity, index.is_zip) == (identity, is_zip):
            return index
        if index is not None or file == cached or not os.path.lexists(file):  # what is another's stays
            free.append(file)
    index = _made(path, identity, is_zip=is_zip)
    for file in free if keep else ():
        with suppress(OSError):
            _save(file, index, key)
            break
    return index


def _kept_paths(path: str) -> tuple[Path, Path]:
    folder = user_folder("XDG_CACHE_HOME", ".cache") / "archives"
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return Path(f"{path}.index.npz"), folder / f"{name}.index.npz"


def _made(path: str, identity: Identity, *, is_zip: bool) -> ArchiveIndex:
    found: dict[str, tuple[int, ...]] = {}
    try:
        with open_file(path) as file:
            for name, begin, *place in _members_of_zip(file) if is_zip else _members_of_tar(file):
                kept = _plain_name(name, path)
                found.pop(kept, None)
                found[kept] = (*place, *_header_of(file.fileno(), begin, place[1]))
    except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, struct.error, EOFError) as error:
        wanted = "a zip archive" if is_zip else "a tar archive without compression"
        raise ArchiveError(f"{path} must be {wanted}: {error}") from error
    places = np.array(list(found.values()), np.int64).reshape(-1, COLUMNS)
    index = ArchiveIndex(identity, is_zip, list(found), places)
    if identity_of(os.stat(path)) != identity or not _is_within(index):
        raise ArchiveError(f"{path} ends before its members do, or was changed while it was read; write it again")
    return index


def _header_of(descriptor: int, begin: int, end: int) -> tuple[int, int]:
    """Return the bytes of a member's header that are checked, and their CRC-32."""
    header = os.pread(descriptor, min(end - begin, _HEADER_BYTES_MAX), max(begin, end - _HEADER_BYTES_MAX))
    return len(header), zlib.crc32(header)


def _plain_name(name: str, path: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise ArchiveError(
            f"{path} has a member {name!r} outside of its folder; write the archive without '..' and null bytes"
        )
    return "/".join(parts)


class _Headers:
    """A tar archive's file, of which ``tarfile`` may read no huge header, even in pieces."""

    def __init__(self, file: BinaryIO) -> None:
        self.name, self.seek, self.tell, self._read = file.name, file.seek, file.tell, file.read
        self.begin_member()

    def begin_member(self) -> None:
        self._left = _TAR_HEADER_BYTES_MAX

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise tarfile.ReadError(f"a header must have at most {_TAR_HEADER_BYTES_MAX:,} bytes, and one has more")
        return self._read(size)


def _members_of_tar(file: BinaryIO) -> Iterator[Member]:
    headers: Any = _Headers(file)
    with tarfile.open(fileobj=headers, mode="r:") as archive:
        for member in archive:
            plain = member.isreg() and not member.issparse()
            kind = STORED if plain else FOLDER if member.isdir() else OTHER
            yield member.name, member.offset, kind, member.offset_data, member.size, member.size, -1
            archive.members = []  # type: ignore[attr-defined]  # or it keeps a kilobyte for each
            headers.begin_member()
        file.seek(archive.offset)
        if file.read(tarfile.BLOCKSIZE) not in (b"", bytes(tarfile.BLOCKSIZE)):  # at a damaged header, too, it ends
            raise tarfile.ReadError(f"there is no header at byte {archive.offset}")


def _members_of_zip(file: BinaryIO) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            begin = member.header_offset
            file.seek(begin)
            signature, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            if signature != b"PK\3\4":
                raise zipfile.BadZipFile(f"there is no header of {member.filename!r} where it should be")
            offset = begin + _LOCAL_HEADER.size + name_bytes + extra_bytes
            kind = FOLDER if member.is_dir() else _kind_of(member)
            yield member.filename, begin, kind, offset, member.compress_size, member.file_size, member.CRC


def _kind_of(member: zipfile.ZipInfo) -> int:
    file_type = stat.S_IFMT(member.external_attr >> 16)
    if member.flag_bits & _ENCRYPTED or file_type not in (0, stat.S_IFREG):
        return OTHER
    if member.compress_type == zipfile.ZIP_STORED:
        return STORED if member.compress_size == member.file_size else OTHER
    return DEFLATED if member.compress_type == zipfile.ZIP_DEFLATED else OTHER


def _is_within(index: ArchiveIndex) -> bool:
    """Whether all that can be read lies within the archive."""
    kinds, offsets, stored, sizes, checksums, headers, _ = index.places.T
    sane = (offsets >= headers) & (stored >= 0) & (sizes >= 0) & (offsets <= index.stamp[0]) & (kinds >= FOLDER)
    sane &= (stored <= index.stamp[0] - offsets) & (kinds <= OTHER) & (checksums >= -1)
    return bool((sane | (kinds == OTHER) | (kinds == FOLDER)).all())


def _load(file: Path, key: bytes) -> ArchiveIndex | None:
    """Load the kept index of any archive.

    ``None`` if it was not saved with this key, or by another version.
    """
    data = _tagged_files.read(file, key)
    if data is None:
        return None
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        version, is_zip, *identity = held["head"].tolist()
        if version != _VERSION:
            return None
        names = os.fsdecode(held["names"].tobytes())
        return ArchiveIndex(tuple(identity), bool(is_zip), names.split("\0") if names else [], held["places"])


def _save(file: Path, index: ArchiveIndex, key: bytes) -> None:
    """Write an index, whole or not at all.

    Raises:
        OSError: It cannot be written there.
    """
    if file.parent.name == "archives":
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    out = io.BytesIO()
    names = np.frombuffer(os.fsencode("\0".join(index.names)), np.uint8)
    np.savez(out, head=np.array([_VERSION, index.is_zip, *index.identity]), places=index.places, names=names)
    _tagged_files.write(file, out.getvalue(), key)


class _Descriptor:
    """A file descriptor that is closed when it is let go."""

    def __init__(self, path: str) -> None:
        self.number = -1
        self.number = open_regular(path)

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
        kind, offset, stored, size, checksum, header_bytes, header_checksum = place.tolist()
        file = self._files.get(archive)
        if file is None:
            file = _Descriptor(self._paths[archive])
            if len(self._files) < self.OPEN_MAX:
                file = self._files.setdefault(archive, file)
        number = file.number
        header = os.pread(number, header_bytes, offset - header_bytes)
        if stamp_of(os.fstat(number)) != self._stamps[archive] or zlib.crc32(header) != header_checksum:
            raise ArchiveError(f"{self._paths[archive]} has changed since it was opened; make the dataset again")
        if size > max(_INFLATED_BYTES, _INFLATED_RATIO * stored):
            raise ArchiveError(
                f"a member must not have more than {_INFLATED_RATIO} times its bytes in the archive, and that at byte "
                f"{offset} of {self._paths[archive]} has {size:,} of {stored:,}; store it without compression"
            )
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
