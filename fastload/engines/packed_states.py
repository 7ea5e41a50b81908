"""Write generators' states as short text, which any file format takes; and checksums of indices."""

from __future__ import annotations

import base64
import zlib
from array import array
from typing import Any, Final

import numpy as np

_WORDS: Final = slice(24, 24 + 624 * 8)  # of torch's state: 32-bit words, stored as 64
_LENGTHS: Final = (5056, 10080)  # of torch's state, and with Python's and NumPy's


def digest_of(indices: Any) -> int:
    """Return a checksum of a batch's indices; 0 if they are not integers."""
    try:
        numbers = array("q", indices if isinstance(indices, list | tuple) else [indices])
    except (TypeError, OverflowError):
        return 0
    return zlib.crc32(numbers.tobytes()) + 1


def pack(state: bytes) -> str:
    """Convert a generator's state to text, without the halves of torch's words that are zero."""
    if len(state) in _LENGTHS:
        words = np.frombuffer(state[_WORDS], np.uint64)
        if not words.max() >> 32:
            state = state[: _WORDS.start] + words.astype(np.uint32).tobytes() + state[_WORDS.stop :]
    return base64.b64encode(state).decode()


def unpack(packed: str, *, kind: str = "cpu") -> bytes:
    """Convert what :func:`pack` returned to the state.

    Args:
        packed: The text.
        kind: Type of the generator's device; the states of others than the CPU's have any length.

    Raises:
        TypeError, ValueError: It is no text of :func:`pack`, or has another length.
    """
    data = base64.b64decode(packed, validate=True)
    if kind != "cpu" or len(data) in _LENGTHS:
        return data
    stop = _WORDS.start + 624 * 4
    if len(data) + 624 * 4 not in _LENGTHS:
        raise ValueError(f"a generator's state must have {_LENGTHS} bytes, or 2496 fewer, got {len(data)}")
    words = np.frombuffer(data[_WORDS.start : stop], np.uint32).astype(np.uint64)
    return data[: _WORDS.start] + words.tobytes() + data[stop:]
