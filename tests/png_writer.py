"""Write PNG files of every kind, with any chunk, and WebP files from chunks."""

from __future__ import annotations

import struct
import zlib

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by color type
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def chunk(name: bytes, data: bytes = b"", crc: int | None = None) -> bytes:
    """A chunk, with its checksum or a wrong one."""
    return (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data) if crc is None else crc)
    )


def header(width: int, height: int, bits: int = 8, color: int = 2, interlace: int = 0) -> bytes:
    """The IHDR chunk."""
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, interlace))


def write_png(
    levels: np.ndarray,
    bits: int = 8,
    color: int = 2,
    *,
    interlace: bool = False,
    filters: tuple[int, ...] = (0, 1, 2, 3, 4),
    before: bytes = b"",
    after: bytes = b"",
    pieces: int = 1,
    level: int = 6,
) -> bytes:
    """A file with these samples, (height, width, channels). Rows have the filters in turn."""
    height, width = levels.shape[:2]
    passes = PASSES if interlace else ((0, 0, 1, 1),)
    raw = b"".join(
        _filtered(_packed(part, bits), max(1, bits * CHANNELS[color] // 8), filters)
        for left, top, right, down in passes
        if (part := levels[top::down, left::right]).size
    )
    data = zlib.compress(raw, level)
    step = -(-len(data) // pieces)
    images = b"".join(chunk(b"IDAT", data[at : at + step]) for at in range(0, len(data), step))
    return SIGNATURE + header(width, height, bits, color, int(interlace)) + before + images + after + chunk(b"IEND")


def _packed(levels: np.ndarray, bits: int) -> np.ndarray:
    rows = levels.reshape(levels.shape[0], -1)
    if bits == 8:
        return rows.astype(np.uint8)
    if bits == 16:
        return rows.astype(">u2").view(np.uint8)
    all_bits = (rows[..., None] >> np.arange(bits - 1, -1, -1)) & 1
    return np.packbits(all_bits.reshape(len(rows), -1).astype(np.uint8), axis=1)


def _filtered(rows: np.ndarray, pixel: int, filters: tuple[int, ...]) -> bytes:
    padded = np.pad(rows.astype(np.int64), ((1, 0), (pixel, 0)))
    x, a, b, c = padded[1:, pixel:], padded[1:, :-pixel], padded[:-1, pixel:], padded[:-1, :-pixel]
    pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
    paeth = np.where((pa <= pb) & (pa <= pc), a, np.where(pb <= pc, b, c))
    by_filter = [x, x - a, x - b, x - (a + b) // 2, x - paeth]
    kinds = [filters[y % len(filters)] for y in range(len(rows))]
    return b"".join(bytes([kind]) + by_filter[kind][y].astype(np.uint8).tobytes() for y, kind in enumerate(kinds))


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    """A WebP file of these chunks."""
    body = b"WEBP" + b"".join(
        name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for name, data in chunks
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


def riff_chunks(file: bytes) -> list[tuple[bytes, bytes]]:
    """The chunks of a WebP file."""
    chunks, at = [], 12
    while at < len(file):
        (size,) = struct.unpack_from("<I", file, at + 4)
        chunks.append((file[at : at + 4], file[at + 8 : at + 8 + size]))
        at += 8 + size + size % 2
    return chunks
