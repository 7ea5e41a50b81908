"""Write generators' states as short text with a checksum; checksums of indices."""

from __future__ import annotations

import base64
import zlib
from array import array
from typing import Any, Final

import numpy as np

_WORDS: Final = slice(24, 24 + 624 * 8)  # of torch's state: 32-bit words, stored as 64
_LENGTHS: Final = (5056, 10080)  # of torch's state, and with Python's and NumPy's
_CHECKSUM_BYTES: Final = 4


def digest_of(indices: Any) -> int:
    """Return a checksum of a batch's indices; 0 if they are of unknown types."""
    if hasattr(indices, "tolist"):  # a tensor or array
        indices = indices.tolist()
    try:
        numbers = array("q", indices if isinstance(indices, list | tuple) else [indices])
    except (TypeError, OverflowError):
        return zlib.crc32(repr(indices).encode()) + 1 if _is_plain(indices) else 0
    return zlib.crc32(numbers.tobytes()) + 1


def _is_plain(value: Any) -> bool:
    """Whether equal values have the same ``repr`` in any process."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, int | float | str | bytes | np.generic)


def pack(state: bytes) -> str:
    """Convert a generator's state to text, without the halves of torch's words that are zero."""
    if len(state) in _LENGTHS:
        halves = np.frombuffer(state, np.uint32, 2 * 624, _WORDS.start)
        if not halves[1::2].any():
            state = b"".join((state[: _WORDS.start], halves[::2].tobytes(), state[_WORDS.stop :]))
    return base64.b64encode(state + zlib.crc32(state).to_bytes(_CHECKSUM_BYTES, "little")).decode()


class Texts:
    """Remembers the text of each generator's last state.

    Most have not changed from one call to the next.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[bytes, str]] = {}

    def pack(self, whose: Any, state: bytes) -> str:
        """Return what :func:`pack` returns."""
        known = self._known.get(whose)
        if known is None or known[0] != state:
            known = self._known[whose] = state, pack(state)
        return known[1]


def unpack(packed: str, *, kind: str = "cpu") -> bytes:
    """Convert what :func:`pack` returned to the state.

    Args:
        packed: The text.
        kind: Type of the generator's device; the states of others than the CPU's have any length.

    Raises:
        TypeError, ValueError: It is no text of :func:`pack`, is damaged, or has another length.
    """
    data = base64.b64decode(packed, validate=True)
    data, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    stop = _WORDS.start + 624 * 4
    if kind == "cpu" and len(data) not in _LENGTHS and len(data) + 624 * 4 not in _LENGTHS:
        raise ValueError(f"a generator's state must have {_LENGTHS} bytes, or 2496 fewer, got {len(data)}")
    if zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "little") != checksum:
        raise ValueError("a generator's state is damaged: its checksum differs; use an earlier one")
    if kind != "cpu" or len(data) in _LENGTHS:
        return data
    words = np.frombuffer(data[_WORDS.start : stop], np.uint32).astype(np.uint64)
    return data[: _WORDS.start] + words.tobytes() + data[stop:]
