"""Read the states of Python's and NumPy's global generators from their objects' memory.

``random.getstate()`` and ``np.random.get_state()`` make 625 Python objects each, which takes 22 and 70 µs with the
conversion to bytes; a copy of the words takes 1. Workers need both after every batch. Where the words lie is looked for
once, in generators of known states, and compared with what the methods return. A generator of another kind, or one
whose words are not found, is asked by its method; so are all without a GIL, where a copy does not wait for draws.
"""

from __future__ import annotations

import ctypes
import functools
import random
import struct
import sys
from typing import Any, Final

import numpy as np

from fastload.pipeline.python_stream import numpy_bytes, python_bytes

_WORDS_BYTES: Final = 624 * 4
_PLACE_BYTES: Final = 4  # number of the next word
_GETSTATE: Final = random.Random.getstate
_SEEDS: Final = (1, 2**40 + 7)
_GAUSS: Final = (0.8090169943749475, -1.2345678901234567)  # are found nowhere else in an object


def python_now() -> bytes:
    """Return the state of Python's global generator in the core's layout."""
    method = random.getstate
    owner = getattr(method, "__self__", None)
    if type(owner) is random.Random and getattr(method, "__func__", None) is _GETSTATE:
        state = _python_state(owner)
        if state is not None:
            return state
    return python_bytes(method())


def numpy_now() -> bytes:
    """Return the state of NumPy's global generator in the core's layout."""
    method = np.random.get_state
    owner = getattr(method, "__self__", None)
    if type(owner) is np.random.RandomState:
        state = _numpy_state(owner)
        if state is not None:
            return state
    return numpy_bytes(method())


def _python_state(generator: random.Random) -> bytes | None:
    begin = _place_in_random()
    if begin is None:
        return None
    memory = ctypes.string_at(id(generator) + begin, _PLACE_BYTES + _WORDS_BYTES)
    return _joined_python(memory, generator.gauss_next)  # type: ignore[attr-defined]


def _joined_python(memory: bytes, normal: float | None) -> bytes:
    rest = struct.pack("<Id", normal is not None, normal or 0.0)
    return b"".join((memory[_PLACE_BYTES:], memory[:_PLACE_BYTES], rest))


def _numpy_state(generator: Any) -> bytes | None:
    begin = _gauss_in_random_state()
    bits = getattr(generator, "_bit_generator", None)
    if bits is not None and not isinstance(bits, np.random.MT19937):
        kind = type(bits).__name__
        raise TypeError(f"NumPy's global bit generator must be MT19937, which is its own, got {kind}")
    if begin is None or type(bits) is not np.random.MT19937:
        return None
    with bits.lock:  # NumPy draws without the GIL
        words = ctypes.string_at(bits.ctypes.state_address, _WORDS_BYTES + _PLACE_BYTES)
        gauss = ctypes.string_at(id(generator) + begin, 16)  # whether there is one, 4 bytes; 4 of padding; the number
    return b"".join((words, gauss[:4], gauss[8:]))


def _has_objects_at_addresses() -> bool:
    """Whether ``id()`` is an object's address, and the GIL holds other threads off."""
    return sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


@functools.cache
def _place_in_random() -> int | None:
    """Find the words in a ``random.Random``; ``None`` if they are nowhere.

    The number of its next word is before them.
    """
    if not _has_objects_at_addresses():
        return None
    size = random.Random.__basicsize__
    found = set()
    for seed in _SEEDS:
        generator = random.Random(seed)
        for _ in range(seed % 100):
            generator.gauss(0, 1)
        state = python_bytes(generator.getstate())
        begin = ctypes.string_at(id(generator), size).find(state[:_WORDS_BYTES]) - _PLACE_BYTES
        if begin < 0:
            return None
        memory = ctypes.string_at(id(generator) + begin, _PLACE_BYTES + _WORDS_BYTES)
        if _joined_python(memory, generator.gauss_next) != state:  # type: ignore[attr-defined]
            return None
        found.add(begin)
    return found.pop() if len(found) == 1 else None


@functools.cache
def _gauss_in_random_state() -> int | None:
    """Find the kept normal number in a ``RandomState``; ``None`` if it is nowhere."""
    if not _has_objects_at_addresses():
        return None
    size = np.random.RandomState.__basicsize__
    found = set()
    for seed, gauss in zip(_SEEDS, _GAUSS, strict=True):
        generator = np.random.RandomState(seed & 0xFFFF_FFFF)
        generator.random_sample(seed % 100)
        state: Any = generator.get_state()
        for kept in (0, 1):
            generator.set_state((*state[:3], kept, gauss))
            known = numpy_bytes(generator.get_state())
            begin = ctypes.string_at(id(generator), size).find(struct.pack("<d", gauss)) - 8
            bits: Any = getattr(generator, "_bit_generator", None)
            if begin < 0 or type(bits) is not np.random.MT19937:
                return None
            memory = ctypes.string_at(bits.ctypes.state_address, _WORDS_BYTES + _PLACE_BYTES)
            rest = ctypes.string_at(id(generator) + begin, 16)
            if memory + rest[:4] + rest[8:] != known:
                return None
            found.add(begin)
    return found.pop() if len(found) == 1 else None
