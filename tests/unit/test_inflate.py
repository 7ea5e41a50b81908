"""The core inflates the streams that zlib inflates; for all others, Pillow raises."""

from __future__ import annotations

import io
import os
import random
import zlib
from collections import Counter

import numpy as np
import pytest
from deflate_writer import DISTANCE_EXTRA, FIXED, Stream, png_of, random_stream, zlib_of
from PIL import Image

from fastload.vision import DecodeError, calibrate, decode

TRIALS = int(os.environ.get("FASTLOAD_MUTATIONS", "150"))
END = 256


@pytest.fixture(autouse=True)
def calibrated() -> None:
    assert "PNG" in calibrate().formats


def is_decoded(stream: bytes, size: int, rows: int = 1) -> bool:
    """Whether the core decodes a PNG file of the stream, to Pillow's pixels."""
    file = png_of(stream, size, rows)
    try:
        got = decode(file)
    except DecodeError:
        return False
    with Image.open(io.BytesIO(file)) as image:
        np.testing.assert_array_equal(got, np.asarray(image.convert("RGB")), file.hex())
    return True


def refused(stream: bytes, size: int) -> None:
    with pytest.raises(zlib.error):
        zlib.decompress(stream)
    with Image.open(io.BytesIO(png_of(stream, size))) as image, pytest.raises(OSError, match=r"broken|truncated"):
        image.load()
    assert not is_decoded(stream, size)


def code(count: int, lengths: dict[int, int]) -> list[int]:
    """Lengths of a code, of which most are 0."""
    return [lengths.get(symbol, 0) for symbol in range(count)]


def fixed_match(symbol: int, distance: int) -> Stream:
    """Zeros, then a match, with fixed codes."""
    stream = Stream()
    stream.begin(1)
    stream.put_symbols(FIXED[0], [0])
    for _ in range(96):
        stream.put_symbols(FIXED[0], [285])
        stream.put_symbols(FIXED[1], [0])
    stream.put_symbols(FIXED[0], [symbol])
    stream.put_symbols(FIXED[1], [distance])
    stream.put(0, DISTANCE_EXTRA[distance])
    stream.put_symbols(FIXED[0], [END])
    return stream


def own_match(distances: list[int], bit: int, literals: int = 286) -> Stream:
    """A zero and a match of three more; the distance is one bit."""
    lengths = code(literals, {0: 1, END: 2, 257: 2})
    stream = Stream()
    stream.own_codes(lengths, distances)
    stream.put_symbols(lengths, [0, 257])
    stream.put(bit, 1)
    stream.put_symbols(lengths, [END])
    return stream


def only_an_end(bit: int) -> Stream:
    """Four zeros, then a block whose only code is its end's."""
    stream = Stream()
    stream.stored(bytes(4), last=False)
    stream.own_codes(code(257, {END: 1}), [0])
    stream.put(bit, 1)
    return stream


def coded(literals: list[int], distances: list[int], **how: object) -> Stream:
    """Four zeros with codes of the block's own."""
    stream = Stream()
    stream.own_codes(literals, distances, **how)  # type: ignore[arg-type]
    stream.put_symbols(literals, [0, 0, 0, 0, END])
    return stream


TWO = code(257, {0: 1, END: 1})
SOUND = {
    "the longest match": (fixed_match(285, 0), 1 + 97 * 258),
    "the farthest match": (fixed_match(285, 29), 1 + 97 * 258),
    "all lengths": (own_match([1], 0, 286), 4),
    "all distances": (own_match([1] + [0] * 29, 0), 4),
    "a single distance": (own_match([1], 0), 4),
    "a single end": (only_an_end(0), 4),
    "no distance": (coded(TWO, [0]), 4),
    "two distances": (coded(TWO, [1, 1]), 4),
    "a long code": (coded(code(257, {symbol: symbol + 1 for symbol in range(14)} | {14: 15, END: 15}), [0]), 4),
    "repeats": (coded(TWO, [0], items=((1, 0), (18, 127), (18, 106), (1, 0), (0, 0))), 4),
}
REFUSED = {
    "length symbol 286": (fixed_match(286, 0), 1 + 97 * 258),
    "length symbol 287": (fixed_match(287, 0), 1 + 97 * 258),
    "distance symbol 30": (fixed_match(285, 30), 1 + 97 * 258),
    "distance symbol 31": (fixed_match(285, 31), 1 + 97 * 258),
    "287 lengths": (own_match([1], 0, 287), 4),
    "288 lengths": (own_match([1], 0, 288), 4),
    "31 distances": (own_match([1] + [0] * 30, 0), 4),
    "32 distances": (own_match([1] + [0] * 31, 0), 4),
    "no distance, a match": (own_match([0], 0), 4),
    "no distance, a match by 1": (own_match([0], 1), 4),
    "the other bit of a single distance": (own_match([1], 1), 4),
    "the other bit of a single end": (only_an_end(1), 4),
    "repeats that go on behind the lengths": (
        coded(TWO, [0], items=((1, 0), (18, 127), (18, 106), (1, 0), (17, 7))),
        4,
    ),
    "a repeat of nothing": (coded(TWO, [0], items=((16, 0), (18, 127), (18, 104), (1, 0), (0, 0))), 4),
    "too many codes": (coded(code(257, {0: 1, 1: 1, END: 1}), [0]), 4),
    "too few codes": (coded(code(257, {0: 2, END: 2}), [0]), 4),
    "too many distances": (coded(TWO, [1, 1, 1]), 4),
    "too few distances": (coded(TWO, [2, 2]), 4),
    "a single distance of two bits": (coded(TWO, [2]), 4),
    "too many codes of lengths": (coded(TWO, [0], lengths=(3,) * 19), 4),
    "too few codes of lengths": (coded(TWO, [0], lengths=(5,) * 19), 4),
}


@pytest.mark.parametrize("name", SOUND)
def test_codes_that_zlib_takes(name: str) -> None:
    stream, size = SOUND[name]
    data = zlib_of(stream.deflated(), bytes(size))
    assert zlib.decompress(data) == bytes(size)
    assert is_decoded(data, size)


@pytest.mark.parametrize("name", REFUSED)
def test_codes_that_zlib_refuses(name: str) -> None:
    stream, size = REFUSED[name]
    refused(zlib_of(stream.deflated(), bytes(size)), size)


def test_blocks_that_zlib_refuses() -> None:
    low, high, other, far, endless = (Stream() for _ in range(5))
    low.stored(bytes(4), complement=0xFFFA)
    high.stored(bytes(4), complement=0xFEFB)
    other.stored(bytes(4), last=False)
    other.begin(3)
    far.begin(1)
    far.put_symbols(FIXED[0], [0, 257])
    far.put_symbols(FIXED[1], [1, 0])
    endless.own_codes(code(257, {0: 1, 1: 1}), [0])
    endless.put(0, 4)
    for each in (low, high, other, far, endless):
        refused(zlib_of(each.deflated(), bytes(4)), 4)


def test_a_repeat_of_nothing_is_none_of_zeros() -> None:
    lengths, stream = code(257, {3: 1, END: 1}), Stream()
    stream.own_codes(lengths, [0], items=((16, 0), (1, 0), (18, 127), (18, 103), (1, 0), (0, 0)))
    stream.put_symbols(lengths, [3, 3, 3, 3, END])
    refused(zlib_of(stream.deflated(), bytes([3] * 4)), 4)


@pytest.mark.parametrize("size", [3, 6])  # the loop's rounds begin there
def test_nothing_is_copied_behind_a_block_that_has_filled_the_memory(size: int) -> None:
    stream = Stream()
    stream.begin(1, last=False)
    stream.put_symbols(FIXED[0], [*[0] * (size + 2), END])
    for left in reversed(range(15)):
        stream.stored(bytes(65535), last=not left)
    data = bytes(size + 2 + 15 * 65535)
    assert zlib.decompress(made := zlib_of(stream.deflated(), data)) == data
    assert not is_decoded(made, size)


@pytest.mark.parametrize("start", [b"\x77\x09", b"\x79\x18", b"\x88\x1c", b"\x78\x20", b"\x78\x02", b"\x78"])
def test_starts_that_zlib_refuses(start: bytes) -> None:
    deflated = SOUND["repeats"][0].deflated()
    refused(zlib_of(deflated, bytes(4), start), 4)


def test_streams_made_at_random_are_taken_if_zlib_takes_them() -> None:
    seen = Counter(random_trial(random.Random(number)) for number in range(TRIALS))
    assert min(seen[True], seen[False]) > TRIALS // 20, seen


@pytest.mark.thorough
def test_ten_thousand_streams_made_at_random() -> None:
    assert Counter(random_trial(random.Random(-1 - number)) for number in range(10_000))[True] > 1000


def random_trial(rng: random.Random) -> bool | None:
    """Decode a random stream; return whether zlib takes it, ``None`` for no stream."""
    found = random_stream(rng)
    if found is None:
        return None
    stream, data = found
    rows = rng.choice([rows for rows in range(1, 20) if len(data) % rows == 0 and len(data) // rows > 1])
    try:
        is_sound = zlib.decompress(stream) == data
    except zlib.error:
        is_sound = False
    if max(data[:: len(data) // rows]) < 5:  # else there is no such filter
        assert is_decoded(stream, len(data), rows) == is_sound, stream.hex()
    return is_sound
