"""Write deflate streams by hand, sound or not, and PNG files of them."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

from png_writer import SIGNATURE, chunk, header

ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)
FIXED = [8] * 144 + [9] * 112 + [7] * 24 + [8] * 8, [5] * 32
LENGTH_EXTRA = [0] * 8 + [i // 4 for i in range(4, 24)] + [0] * 3
"""Bits that follow the symbols 257 to 287; zlib refuses the last two."""
DISTANCE_EXTRA = [0, 0] + [i // 2 for i in range(28)] + [13, 13]
"""Bits that follow each distance symbol; zlib refuses the last two."""
LENGTHS = [3 + sum(1 << extra for extra in LENGTH_EXTRA[:i]) for i in range(28)] + [258] * 3
DISTANCES = [1 + sum(1 << extra for extra in DISTANCE_EXTRA[:i]) for i in range(30)] + [24577] * 2


class Stream:
    """The bits of a stream; methods add blocks to it."""

    def __init__(self) -> None:
        self._bits, self._count = 0, 0

    def put(self, value: int, count: int) -> None:
        """Add bits, the lowest first."""
        self._bits |= (value & ((1 << count) - 1)) << self._count
        self._count += count

    def put_symbols(self, lengths: Sequence[int], symbols: Iterable[int]) -> None:
        """Add codes, each with no bits behind it."""
        codes = codes_of(tuple(lengths))
        for symbol in symbols:
            for place in reversed(range(lengths[symbol])):
                self.put(codes[symbol] >> place, 1)

    def begin(self, kind: int, *, last: bool = True) -> None:
        """Begin a block: 0 stored, 1 with fixed codes, 2 with its own."""
        self.put(last, 1)
        self.put(kind, 2)

    def stored(self, data: bytes, *, last: bool = True, complement: int | None = None) -> None:
        """Add a block that is not compressed."""
        self.begin(0, last=last)
        self.put(0, -self._count % 8)
        self.put(len(data), 16)
        self.put(len(data) ^ 0xFFFF if complement is None else complement, 16)
        self.put(int.from_bytes(data, "little"), 8 * len(data))

    def own_codes(
        self,
        literals: Sequence[int],
        distances: Sequence[int],
        *,
        last: bool = True,
        items: Sequence[tuple[int, int]] | None = None,
        lengths: Sequence[int] = (4,) * 13 + (5,) * 6,
    ) -> None:
        """Begin a block with its own codes, given by the lengths of each symbol's.

        Args:
            literals: Lengths of literals, end and matches' lengths, at least 257.
            distances: Lengths of distances, at least one.
            last: Whether it is the last block.
            items: What is written for both: symbols, and the bits that follow them. By default a symbol for each.
            lengths: The lengths of the 19 symbols' codes.
        """
        self.begin(2, last=last)
        self.put(len(literals) - 257, 5)
        self.put(len(distances) - 1, 5)
        self.put(15, 4)
        for place in ORDER:
            self.put(lengths[place], 3)
        for symbol, more in [(length, 0) for length in (*literals, *distances)] if items is None else items:
            self.put_symbols(lengths, [symbol])
            self.put(more, {16: 2, 17: 3, 18: 7}.get(symbol, 0))

    def deflated(self) -> bytes:
        """All bits, and zeros up to a whole byte."""
        return self._bits.to_bytes(-(-self._count // 8), "little")


@lru_cache(8)
def codes_of(lengths: tuple[int, ...]) -> list[int]:
    """Each symbol's code, in the order of lengths, then symbols."""
    codes, code, former = [0] * len(lengths), 0, 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths) if length):
        code <<= length - former
        codes[symbol], code, former = code, code + 1, length
    return codes


def zlib_of(deflated: bytes, data: bytes, start: bytes = b"\x78\x01") -> bytes:
    """Make a zlib stream with the data's checksum."""
    return start + deflated + struct.pack(">I", zlib.adler32(data))


def png_of(stream: bytes, size: int, rows: int = 1) -> bytes:
    """Make a gray PNG file whose rows have ``size`` bytes in all, with their filters."""
    return SIGNATURE + header(size // rows - 1, rows, 8, 0) + chunk(b"IDAT", stream) + chunk(b"IEND")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._bits, self.at = "".join(f"{byte:08b}"[::-1] for byte in data), 0

    def take(self, count: int) -> int:
        bits = self._bits[self.at : self.at + count]
        if len(bits) < count:
            raise EOFError
        self.at += count
        return int(bits[::-1] or "0", 2)

    def symbol(self, codes: dict[str, int]) -> int:
        for length in range(1, 16):
            found = codes.get(self._bits[self.at : self.at + length])
            if found is not None:
                self.at += length
                return found
        raise ValueError


def _leniently(lengths: Sequence[int]) -> dict[str, int]:
    """Map codes to symbols; a single code, or none, is any bit."""
    used = [symbol for symbol, length in enumerate(lengths) if length]
    if sum(1 << (15 - lengths[symbol]) for symbol in used) > 1 << 15:
        raise ValueError
    if len(used) <= 1:
        return dict.fromkeys("01", used[0] if used else 0)
    codes = codes_of(tuple(lengths))
    return {f"{codes[symbol]:0{lengths[symbol]}b}": symbol for symbol in used}


def inflate_leniently(deflated: bytes, most: int = 1 << 15) -> bytes | None:
    """Inflate a stream as a decoder might that does not check its codes.

    Returns:
        ``None`` if there is no sense in it, or it has more than ``most`` bytes.
    """
    reader, made = _Reader(deflated), bytearray()
    try:
        last = 0
        while not last:
            last, kind = reader.take(1), reader.take(2)
            if kind == 0:
                reader.take(-reader.at % 8)
                size = reader.take(16)
                if reader.take(16) != size ^ 0xFFFF:
                    return None
                made += bytes(reader.take(8) for _ in range(size))
                continue
            if kind == 3:
                return None
            literals, distances = map(_leniently, FIXED if kind == 1 else _own(reader))
            while (symbol := reader.symbol(literals)) != 256:
                if symbol < 256:
                    made.append(symbol)
                else:
                    length = LENGTHS[symbol - 257] + reader.take(LENGTH_EXTRA[symbol - 257])
                    symbol = reader.symbol(distances)
                    distance = DISTANCES[symbol] + reader.take(DISTANCE_EXTRA[symbol])
                    if distance > len(made):
                        return None
                    for _ in range(length):
                        made.append(made[-distance])
                if len(made) > most:
                    return None
    except (EOFError, ValueError, IndexError):
        return None
    return bytes(made)


def _own(reader: _Reader) -> tuple[list[int], list[int]]:
    literals, distances, count = 257 + reader.take(5), 1 + reader.take(5), 4 + reader.take(4)
    lengths = [0] * 19
    for place in ORDER[:count]:
        lengths[place] = reader.take(3)
    codes, found = _leniently(lengths), list[int]()
    while len(found) < literals + distances:
        symbol = reader.symbol(codes)
        if symbol < 16:
            found.append(symbol)
        else:
            repeats = (
                3 + reader.take(2) if symbol == 16 else 3 + reader.take(3) if symbol == 17 else 11 + reader.take(7)
            )
            found += [found[-1] if symbol == 16 else 0] * repeats
    return found[:literals], found[literals : literals + distances]


def random_stream(rng: random.Random) -> tuple[bytes, bytes] | None:
    """Make a zlib stream of random codes, often changed, and its data for :func:`inflate_leniently`.

    Returns:
        ``None`` if it has none, or a single byte.
    """
    deflated = _random_deflated(rng)
    if rng.random() < 0.6:
        deflated = _mutated(rng, deflated)
    data = inflate_leniently(deflated)
    return None if data is None or len(data) < 2 else (zlib_of(deflated, data), data)


def _random_deflated(rng: random.Random) -> bytes:
    """Make a stream of a few blocks of all kinds, with random codes, mostly sound."""
    stream = Stream()
    for left in reversed(range(rng.choice((1, 1, 2, 3)))):
        kind = rng.randrange(4)
        if kind == 0:
            stream.stored(bytes(rng.choices(range(5), k=rng.randrange(40))), last=not left)
        elif kind == 1:
            stream.begin(1, last=not left)
            _put_symbols(rng, stream, *FIXED)
        else:
            literals = _random_code(rng, rng.choice((257, 258, 270, 285, 286, 286, 287, 288)), (0, 1, 2, 3, 4, 256))
            distances = _random_code(rng, rng.choice((1, 2, 10, 30, 30, 31, 32)), ())
            stream.own_codes(literals, distances, last=not left)
            _put_symbols(rng, stream, literals, distances)
    return stream.deflated()


def _random_code(rng: random.Random, symbols: int, wanted: tuple[int, ...]) -> list[int]:
    """Draw the lengths of a code, mostly of a complete one."""
    others = [symbol for symbol in range(symbols) if symbol not in wanted]
    used = [*wanted, *rng.sample(others, min(len(others), rng.choice((0, 1, 2, 2, 5, 20))))]
    rng.shuffle(used)
    lengths = [0] * symbols
    leaves = [0] if used else []
    while len(leaves) < len(used):  # divide one of them
        shallow = [i for i, depth in enumerate(leaves) if depth < 15]
        i = rng.choice(shallow)
        leaves[i] += 1
        leaves.append(leaves[i])
    for symbol, depth in zip(used, leaves, strict=True):
        lengths[symbol] = max(1, depth)
    if rng.random() < 0.1:
        at = rng.randrange(symbols)
        lengths[at] = rng.choice((0, lengths[at] + 1, 1, 15)) & 15
    return lengths


def _put_symbols(rng: random.Random, stream: Stream, literals: Sequence[int], distances: Sequence[int]) -> None:
    """Add symbols that have a code, and the end of the block."""
    small = [symbol for symbol in range(5) if literals[symbol]]
    lengths = [symbol for symbol in range(257, len(literals)) if literals[symbol]]
    far = [symbol for symbol in range(len(distances)) if distances[symbol]]
    for _ in range(rng.randrange(60)):
        if small and (not lengths or rng.random() < 0.6):
            stream.put_symbols(literals, [rng.choice(small)])
        elif lengths:
            symbol = rng.choice((rng.choice(lengths), lengths[-1]))
            stream.put_symbols(literals, [symbol])
            stream.put(rng.getrandbits(5), LENGTH_EXTRA[symbol - 257])
            if far:
                symbol = rng.choice((rng.choice(far), min(far), min(far)))
                stream.put_symbols(distances, [symbol])
                stream.put(rng.choice((0, 0, rng.getrandbits(13))), DISTANCE_EXTRA[symbol])
            else:
                stream.put(rng.getrandbits(1), 1)
    if literals[256]:
        stream.put_symbols(literals, [256])


def _mutated(rng: random.Random, deflated: bytes) -> bytes:
    """Change a few bits, mostly near the beginning, where the codes are."""
    data = bytearray(deflated)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        data[rng.randrange(min(len(data), rng.choice((3, 12, 80, 1000))))] ^= 1 << rng.randrange(8)
    return bytes(data)
