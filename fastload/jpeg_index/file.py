"""The file that ``fastload index`` writes: where decoding can begin within a folder's JPEG files.

The C++ core finds an image's entry by a checksum of all its bytes, whatever its name. csrc/index/index_file.h has the
layout. Checksums and tags are made with a secret key of this user, so that no index, and no JPEG file,
that others have made leads to a wrong pixel.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fastload._files import open_file
from fastload.jpeg_index.tagged_files import read_key

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from fastload import _core

NAME: Final = "fastload.index"
"""The file's name within a dataset's root, where loaders look for it."""

_MAGIC: Final = b"FLINDEX\x02"
_NAME_IN_MAGIC: Final = _MAGIC[:7]  # the version follows
_HEADER_BYTES: Final = 48
_LENGTH_BITS: Final = 24


class IndexFileError(ValueError):
    """An index cannot be used; the message says which and why."""


def is_index(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as an index of any version does."""
    with open_file(path) as file:
        return file.read(len(_NAME_IN_MAGIC)) == _NAME_IN_MAGIC


def open_index(path: str | os.PathLike[str], max_bytes: int) -> _core.IndexFile:
    """Open an index for lookups.

    Args:
        path: What ``fastload index`` has written.
        max_bytes: Most bytes of memory of its table, which has 16 for each image.

    Raises:
        IndexFileError: It cannot be used; the message says why.
    """
    from fastload import _core

    if not os.path.exists(path):
        raise IndexFileError(f"the index {os.fspath(path)} does not exist; fastload index DIR writes one")
    try:
        if not is_index(path):
            raise IndexFileError(f"{os.fspath(path)} is not an index of fastload's; fastload index DIR writes one")
    except OSError as error:
        raise IndexFileError(f"the index {os.fspath(path)} cannot be read ({error.strerror})") from error
    try:
        opened = _core.IndexFile(os.fsencode(path), read_key())
    except ValueError as error:
        raise IndexFileError(f"the index {os.fspath(path)} cannot be used: {error}") from error
    if opened.bytes > max_bytes:
        raise IndexFileError(
            f"the index {os.fspath(path)} needs {opened.bytes} bytes of memory; max_index_bytes allows {max_bytes}"
        )
    return opened


def index_beside(dataset: Any) -> str | None:
    """Find the index in a dataset's root folder; a ``Subset`` has its dataset's."""
    for _ in range(10):
        root = getattr(dataset, "root", None)
        if isinstance(root, str | os.PathLike):
            path = os.path.join(os.fspath(root), NAME)
            return path if isinstance(path, str) and os.path.isfile(path) else None
        dataset = getattr(dataset, "dataset", None)
    return None


def index_file_of(loader: Any) -> tuple[_core.IndexFile | None, str]:
    """Open the index that a loader uses, or return ``None`` and why not.

    Raises:
        IndexFileError: ``jpeg_index`` names one that cannot be used.
    """
    if loader.jpeg_index is not None:
        return open_index(loader.jpeg_index, loader.max_index_bytes), ""
    path = index_beside(loader.dataset)
    if path is None:
        return None, ""
    try:
        return open_index(path, loader.max_index_bytes), ""
    except IndexFileError as error:
        return None, str(error)


class OldIndex:
    """The index of an earlier run, whose entries a new one takes over.

    Args:
        path: The index.
        key: See :func:`~fastload.jpeg_index.tagged_files.make_key`.

    Attributes:
        images: By path within the folder: bytes, time of change in ns, and the id of its list, or ``None`` without
            one. Empty if the file is missing or of no use.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        self.images: dict[str, tuple[int, int, int | None]] = {}
        self._path = path
        self._lists: dict[int, int] = {}
        with suppress(OSError, ValueError, struct.error):
            self._read(key)

    def _read(self, key: bytes) -> None:
        from fastload import _core

        _core.IndexFile(os.fsencode(self._path), key)  # checks it
        with self._path.open("rb") as file:
            _, _, begin, end, size, _ = struct.unpack("<8s4Q8s", file.read(_HEADER_BYTES))
            file.seek(begin)
            table = np.frombuffer(file.read(end - begin), "<u8").reshape(-1, 2)
            tag, names = file.read(8), file.read(size - end - 8)
        if _core.index_tag(names, key) == tag:
            self._lists = dict(table.tolist())
            sums = [*table[:, 0].tolist(), None]
            images = json.loads(zlib.decompress(names))
            self.images = {name: (size, time_ns, sums[at]) for name, (size, time_ns, at) in images.items()}

    def points(self, image_id: int) -> bytes | None:
        """The list of that id, with its tag."""
        place = self._lists.get(image_id)
        if place is None:
            return None
        with self._path.open("rb") as file:
            file.seek(place >> _LENGTH_BITS)
            length = place & (1 << _LENGTH_BITS) - 1
            found = file.read(length)
        return found if len(found) == length else None


class IndexWriter:
    """Writes an index under another name, and renames it at the end.

    Without an end nothing stays.

    Args:
        path: Where it goes.
        key: See :func:`~fastload.jpeg_index.tagged_files.make_key`.
    """

    def __init__(self, path: Path, key: bytes) -> None:
        self._path, self._key = path, key
        self._images: dict[str, tuple[int, int, int | None]] = {}
        self._places: dict[int, int] = {}
        self._at = _HEADER_BYTES

    def __enter__(self) -> Self:
        descriptor, self._temporary = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        self._file = os.fdopen(descriptor, "wb")
        self._file.write(bytes(_HEADER_BYTES))
        return self

    def add(self, name: str, size: int, mtime_ns: int, image_id: int, points: bytes) -> None:
        """Add an image; ``points`` is its list with the tag, or empty."""
        fits = 0 < len(points) < 1 << _LENGTH_BITS
        self._images[name] = size, mtime_ns, image_id if fits else None
        if fits and image_id not in self._places:
            self._places[image_id] = self._at << _LENGTH_BITS | len(points)
            self._file.write(points)
            self._at += len(points)

    def finish(self) -> int:
        """Write the rest and put the file in its place; returns its bytes."""
        from fastload import _core

        entries = sorted(self._places.items())
        table = np.array(entries, "<u8").tobytes()
        places: dict[int | None, int] = {image_id: at for at, (image_id, _) in enumerate(entries)}
        images = {name: (*about, places.get(image_id, -1)) for name, (*about, image_id) in self._images.items()}
        names = zlib.compress(json.dumps(images, separators=(",", ":")).encode(), 9)
        end = self._at + len(table)
        size = end + 8 + len(names)
        header = struct.pack("<8s4Q", _MAGIC, len(self._places), self._at, end, size)
        self._file.write(table + _core.index_tag(names, self._key) + names)
        self._file.seek(0)
        self._file.write(header + _core.index_tag(header, self._key))
        self._file.flush()
        os.fsync(self._file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.fchmod(self._file.fileno(), 0o666 & ~mask)
        os.replace(self._temporary, self._path)
        return size

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        finally:  # what is left in its buffer may find no room
            with suppress(FileNotFoundError):  # it is in its place
                os.unlink(self._temporary)
