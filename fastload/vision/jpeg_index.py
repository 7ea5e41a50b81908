"""Where decoding can begin within JPEG files, noted when they are first decoded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastload import _core


@dataclass(frozen=True, slots=True)
class JpegIndexTotals:
    """What an index holds and did.

    Attributes:
        bytes: Bytes of memory in use.
        files: Files that it knows.
        found: Images that were decoded with it.
        missed: Images whose file it did not know yet.
        evicted: Files that made room for others.
    """

    bytes: int
    files: int
    found: int
    missed: int
    evicted: int


class JpegIndex:
    """Remembers where decoding can begin within JPEG files, to decode crops of them again faster.

    Pass it to :func:`~fastload.vision.decode` or :func:`~fastload.vision.decode_batch`. The first decode of a baseline
    file notes positions every fourth MCU; later ones skip what a crop does not need. Pixels and errors are the same
    with and without. Files are known by a checksum of all their bytes with secret keys, never by name: a file that has
    changed is decoded anew. Thread-safe; a forked child begins with one of its own.

    Args:
        max_bytes: Most bytes of memory; positions take about 1.4% of a file's bytes. At least 1.

    Raises:
        ValueError: ``max_bytes`` is less than 1.

    Example:
        >>> from fastload.vision import JpegIndex
        >>> JpegIndex(64 << 20).totals().files
        0
    """

    def __init__(self, max_bytes: int = 256 << 20) -> None:
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be >= 1, got {max_bytes}")
        self._max_bytes = max_bytes
        self._made: tuple[int, _core.JpegIndex] | None = None  # with its process: a fork may copy held locks
        self.native()  # so that threads share it

    @property
    def max_bytes(self) -> int:
        """Most bytes of memory."""
        return self._max_bytes

    def native(self) -> _core.JpegIndex:
        """The core's index of this process."""
        from fastload import _core

        made = self._made
        if made is None or made[0] != os.getpid():
            made = self._made = os.getpid(), _core.JpegIndex(self._max_bytes)
        return made[1]

    def totals(self) -> JpegIndexTotals:
        """Return what it holds and did. Takes no lock."""
        return JpegIndexTotals(*self.native().totals())
