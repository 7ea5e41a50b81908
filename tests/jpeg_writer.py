"""Write JPEG files that common encoders cannot: any sampling factors, ids, restart intervals, markers.

They hold no picture: the coefficients are random, few and small, which makes no difference to a decoder. So no DCT is
needed, and a page of code replaces a folder of fixtures.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

FACTORS = {
    "gray": ((1, 1),),
    "4:4:4": ((1, 1), (1, 1), (1, 1)),
    "4:2:2": ((2, 1), (1, 1), (1, 1)),
    "4:2:0": ((2, 2), (1, 1), (1, 1)),
    "4:4:0": ((1, 2), (1, 1), (1, 1)),
    "4:1:1": ((4, 1), (1, 1), (1, 1)),
    "4:1:0": ((4, 2), (1, 1), (1, 1)),
}
"""Sampling factors (horizontal, vertical) of each component."""

# Every symbol has a code of 8 bits. DC: the size of a difference. AC: the zeros before a coefficient, and its size.
_DC = {size: code for code, size in enumerate(range(9))}
_AC = {run << 4 | size: code for code, (run, size) in enumerate((run, size) for run in range(16) for size in range(7))}


def segment(marker: int, payload: bytes) -> bytes:
    """A marker segment with its length."""
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


class _Bits:
    def __init__(self) -> None:
        self.done = bytearray()
        self.value = 0
        self.count = 0

    def put(self, value: int, count: int) -> None:
        self.value = self.value << count | value
        self.count += count
        while self.count >= 8:
            self.count -= 8
            byte = self.value >> self.count & 0xFF
            self.done += b"\xff\x00" if byte == 0xFF else bytes([byte])
            self.value &= (1 << self.count) - 1

    def number(self, code: int, value: int) -> None:
        size = abs(value).bit_length()
        self.put(code, 8)
        self.put(value if value > 0 else value + (1 << size) - 1, size)

    def flush(self) -> bytes:
        if self.count:
            self.put((1 << (8 - self.count)) - 1, 8 - self.count)
        done, self.done = bytes(self.done), bytearray()
        return done


def write_jpeg(
    width: int,
    height: int,
    factors: Sequence[tuple[int, int]] = FACTORS["4:2:0"],
    *,
    seed: int = 0,
    restart: int = 0,
    progressive: bool = False,
    ids: Sequence[int] = (1, 2, 3, 4),
    extra: bytes = b"",
    tables: bool = True,
    bits: int = 8,
    frame_marker: int | None = None,
) -> bytes:
    """Make a JPEG file.

    Args:
        width: Pixels.
        height: Pixels.
        factors: Sampling factors of each component.
        seed: Seed of the coefficients.
        restart: Restart interval in MCUs; 0 for none.
        progressive: Put DC into one scan, and each component's AC coefficients into another.
        ids: Component ids.
        extra: Segments to insert right after the start marker.
        tables: Whether to include the Huffman tables.
        bits: Bits per sample in the frame header.
        frame_marker: The frame's marker, if not baseline's or progressive's.
    """
    rng = random.Random(seed)
    across, down = max(h for h, _ in factors), max(v for _, v in factors)
    mcus = _ceil(width, 8 * across), _ceil(height, 8 * down)
    marker = frame_marker or (0xC2 if progressive else 0xC0)
    frame = struct.pack(">BHHB", bits, height, width, len(factors))
    for component, (h, v) in zip(ids, factors, strict=False):
        frame += bytes([component, h << 4 | v, 0])
    file = b"\xff\xd8" + extra + segment(0xDB, b"\0" + bytes([7] * 64)) + segment(marker, frame)
    if tables:
        for slot, codes in ((0x00, _DC), (0x10, _AC)):
            file += segment(0xC4, bytes([slot, *[0] * 7, len(codes), *[0] * 8, *codes]))
    if restart:
        file += segment(0xDD, struct.pack(">H", restart))
    chosen = list(ids[: len(factors)])
    if len(factors) == 1:  # a scan of one component is not interleaved: its MCU is a block
        mcus, factors = (_ceil(width, 8), _ceil(height, 8)), ((1, 1),)
    scan = _Scan(rng, mcus, restart)
    if not progressive:
        return file + _start(chosen, 0, 63) + scan.write(factors, dc=True, ac=True) + b"\xff\xd9"
    file += _start(chosen, 0, 0) + scan.write(factors, dc=True, ac=False)
    for component, (h, v) in zip(chosen, factors, strict=True):
        blocks = _ceil(_ceil(width * h, across), 8), _ceil(_ceil(height * v, down), 8)
        alone = _Scan(rng, blocks, restart)
        file += _start([component], 1, 63) + alone.write(((1, 1),), dc=False, ac=True)
    return file + b"\xff\xd9"


def write_scans(width: int, height: int, count: int) -> bytes:
    """Make a legal progressive gray file of up to 883 minimal scans.

    The first scan has all DC coefficients, which are 0. Every other scan has one bit of one AC coefficient for all
    blocks: 0, coded for up to 32767 blocks at a time. With all 883 scans, nothing remains to be refined.
    """
    blocks = _ceil(width, 8) * _ceil(height, 8)
    frame = struct.pack(">BHHB", 8, height, width, 1) + b"\1\x11\0"
    dc = _Bits()
    for _ in range(blocks):
        dc.put(0, 1)
    ac = _Bits()
    while blocks:
        size = min(14, blocks.bit_length() - 1)
        run = min(blocks, 2 ** (size + 1) - 1)
        ac.put(_AC[size << 4], 8)
        ac.put(run - 2**size, size)
        blocks -= run
    dc_codes = segment(0xC4, bytes([0x00, 1, *[0] * 15, 0]))
    ac_codes = segment(0xC4, bytes([0x10, *[0] * 7, len(_AC), *[0] * 8, *_AC]))
    file = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([7] * 64)) + segment(0xC2, frame) + dc_codes + ac_codes
    scans = [_start([1], 0, 0) + dc.flush()]
    bits = ac.flush()
    for coefficient in range(1, 64):
        for low in range(13, -1, -1):
            high = 0 if low == 13 else low + 1
            scans.append(_start([1], coefficient, coefficient, high << 4 | low) + bits)
    return file + b"".join(scans[:count]) + b"\xff\xd9"


def write_symbols(symbols: Sequence[tuple[int, int, int, int]]) -> bytes:
    """The data of a scan of AC coefficients with this module's codes.

    Args:
        symbols: Of each the zeros and the size that it stands for, and the number and the value of the bits behind it.
    """
    bits = _Bits()
    for zeros, size, count, value in symbols:
        bits.put(_AC[zeros << 4 | size], 8)
        bits.put(value, count)
    return bits.flush()


def write_block(*scans: tuple[int, int, int, Sequence[tuple[int, int, int, int]]]) -> bytes:
    """Make a progressive gray file of 8 x 8 pixels.

    Args:
        scans: Of AC coefficients: the first and the last one, the bits, and :func:`write_symbols`'s argument.
    """
    file = write_scans(8, 8, 1).removesuffix(b"\xff\xd9")
    for first, last, bits, symbols in scans:
        file += _start([1], first, last, bits) + write_symbols(symbols)
    return file + b"\xff\xd9"


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _start(components: Sequence[int], first: int, last: int, bits: int = 0) -> bytes:
    selectors = b"".join(bytes([component, 0]) for component in components)
    return segment(0xDA, bytes([len(components)]) + selectors + bytes([first, last, bits]))


class _Scan:
    def __init__(self, rng: random.Random, mcus: tuple[int, int], restart: int) -> None:
        self.randomness = rng
        self.mcus = mcus[0] * mcus[1]
        self.restart = restart

    def write(self, factors: Sequence[tuple[int, int]], *, dc: bool, ac: bool) -> bytes:
        bits = _Bits()
        done = b""
        level = [0] * len(factors)
        for mcu in range(self.mcus):
            if self.restart and mcu and mcu % self.restart == 0:
                done += bits.flush() + bytes([0xFF, 0xD0 + (mcu // self.restart - 1) % 8])
                level = [0] * len(factors)
            for component, (h, v) in enumerate(factors):
                for _ in range(h * v):
                    level[component] = self._block(bits, level[component], dc=dc, ac=ac)
        return done + bits.flush()

    def _block(self, bits: _Bits, level: int, *, dc: bool, ac: bool) -> int:
        if dc:
            wanted = max(-120, min(120, level + self.randomness.randint(-60, 60)))
            bits.number(_DC[abs(wanted - level).bit_length()], wanted - level)
            level = wanted
        if ac:
            at = 1
            for _ in range(self.randomness.randint(0, 6)):
                run = self.randomness.randint(0, 9)
                at += run
                if at > 63:
                    break
                value = self.randomness.choice([-1, 1]) * self.randomness.randint(1, 40)
                bits.number(_AC[run << 4 | abs(value).bit_length()], value)
                at += 1
            if at <= 63:
                bits.put(_AC[0], 8)
        return level
