"""Mutations of JPEG headers that keep their form: sizes, tables, lengths, made-up segments."""

from __future__ import annotations

import random
import struct

from jpeg_writer import segment

SIDES = (0, 1, 2, 7, 8, 9, 300, 4096, 32767, 32768, 65499, 65500, 65501, 65535)
"""Sides of images, pixels; libjpeg takes up to 65500."""
NUMBERS = (0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 127, 128, 254, 255)
FACTORS = (0x11, 0x21, 0x12, 0x22, 0x41, 0x42, 0x00, 0x51, 0x15, 0x33)
FRAMES = (0xC0, 0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC9, 0xCA, 0xCB)
UNUSUAL = (0x01, 0xBF, 0xC8, 0xCC, 0xD0, 0xD7, 0xD8, 0xD9, 0xDC, 0xDE, 0xDF, 0xF0, 0xFD, 0xFE)


def segments(data: bytes) -> list[tuple[int, int]]:
    """Begin and end of each marker segment before the first scan's data."""
    found, at = [], 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((at, min(end, len(data))))
        if data[at + 1] == 0xDA:
            break
        at = end
    return found


def _number(rng: random.Random) -> int:
    return rng.choice((*NUMBERS, rng.randrange(256)))


def _quantization(rng: random.Random) -> bytes:
    wide = rng.choice((0, 0, 1, 2, 15))
    return bytes([wide << 4 | rng.choice((0, 0, 1, 2, 3, 4, 15))]) + bytes(
        rng.choices((0, 1, 9, 255), k=64 << (wide > 0))
    )


def _huffman(rng: random.Random) -> bytes:
    counts = [0] * 16
    for _ in range(rng.randint(0, 3)):
        length = rng.randrange(16)
        full = min(255, 2 << length)
        counts[length] = rng.choice((1, full - 2, full - 1, full, _number(rng)))
    symbols = [_number(rng) if rng.random() < 0.1 else rng.randrange(12) for _ in range(sum(counts))]
    return bytes([rng.choice((0, 0, 1, 3, 4, 0x10, 0x10, 0x11, 0x13, 0x14, 0x20, _number(rng))), *counts, *symbols])


def _conditioning(rng: random.Random) -> bytes:
    pairs = [(rng.choice((0, 1, 15, 16, 17, 31, 32, 255)), _number(rng)) for _ in range(rng.randint(0, 3))]
    return bytes(number for pair in pairs for number in pair) + bytes(rng.random() < 0.2)


def _frame(rng: random.Random) -> bytes:
    count = rng.choice((0, 1, 1, 2, 3, 3, 3, 4, 5, 11))
    components = bytes(
        n for i in range(count) for n in (i + 1, rng.choice(FACTORS), rng.choice((0, 0, 1, _number(rng))))
    )
    return struct.pack(">BHHB", rng.choice((8, 8, 8, 12, 2, 16)), *rng.choices(SIDES, k=2), count) + components


def _scan(rng: random.Random) -> bytes:
    count = rng.choice((0, 1, 2, 3, 3, 4, 5))
    selectors = bytes(n for i in range(count) for n in (i + 1, rng.choice((0, 0, 0x11, 0x22, 0x44, _number(rng)))))
    return (
        bytes([count]) + selectors + bytes([rng.choice((0, 1, 63)), rng.choice((63, 0, 64)), rng.choice((0, 1, 0x10))])
    )


def _of_a_kind(rng: random.Random) -> tuple[int, bytes]:
    """A segment that libjpeg reads, its marker and payload."""
    kind = rng.randrange(7)
    if kind == 0:
        return rng.choice(UNUSUAL), rng.randbytes(rng.choice((0, 1, 2, 8)))
    if kind == 1:
        return 0xDD, bytes(_number(rng) for _ in range(rng.choice((0, 1, 2, 2, 2, 3))))
    marker, make = (
        *((0xDB, _quantization), (0xC4, _huffman), (0xCC, _conditioning), (rng.choice(FRAMES), _frame)),
        (0xDA, _scan),
    )[kind - 2]
    payload = make(rng)
    while rng.random() < 0.2:
        payload += make(rng)
    if rng.random() < 0.1:
        payload = payload[:-1] if rng.random() < 0.5 else payload + bytes(rng.choice((1, 16, 17)))
    return marker, payload


def insert(rng: random.Random, data: bytearray) -> None:
    """Insert a segment."""
    if own := segments(data):
        at = rng.choice(own)[0]
        data[at:at] = segment(*_of_a_kind(rng))


def replace(rng: random.Random, data: bytearray) -> None:
    """Put another segment in the place of one, mostly of the same kind."""
    if own := segments(data):
        for _ in range(20):
            marker, payload = _of_a_kind(rng)
            alike = [place for place in own if data[place[0] + 1] == marker]
            if alike or rng.random() < 0.05:
                begin, end = rng.choice(alike or own)
                data[begin:end] = segment(marker, payload)
                return


def resize(rng: random.Random, data: bytearray) -> None:
    """Give the image another size, mostly a long and low one."""
    for begin, end in segments(data):
        if data[begin + 1] in FRAMES and end - begin >= 9:
            sides = [rng.choice(SIDES), rng.choice((1, 2, 8, 9, rng.choice(SIDES)))]
            rng.shuffle(sides)
            data[begin + 5 : begin + 9] = struct.pack(">HH", *sides)


def relength(rng: random.Random, data: bytearray) -> None:
    """Change a segment's length, with its payload or without."""
    if own := segments(data):
        begin, end = rng.choice(own)
        payload = bytes(data[begin + 4 : end])
        payload = payload[: rng.randrange(len(payload) + 1)] if rng.random() < 0.5 else payload + rng.randbytes(3)
        if rng.random() < 0.8:
            data[begin:end] = segment(data[begin + 1], payload)
        else:
            data[begin + 2 : begin + 4] = struct.pack(">H", rng.choice((0, 1, 2, end - begin - 1, 65535)))


def retype(rng: random.Random, data: bytearray) -> None:
    """Give a segment another marker, or fill bytes before it."""
    if own := segments(data):
        begin = rng.choice(own)[0]
        if rng.random() < 0.8:
            data[begin + 1] = rng.choice((*FRAMES, *UNUSUAL, rng.randrange(0xC0, 0xFF)))
        else:
            data[begin:begin] = rng.choice((b"\xff", b"\xff\xff\xff", b"\0", b"\xff\0"))
