"""Damaged PNG and WebP files: the core returns Pillow's pixels or an error."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zlib

import numpy as np
from deflate_writer import png_of, random_stream
from PIL import Image
from png_writer import CHANNELS, SIGNATURE, chunk, riff_chunks, write_png

from fastload.vision import DecodeError, calibrate, decode

from .outcome import Outcome, Setting

TITLE = "PNG and WebP files, and deflate streams made by hand, against Pillow"
COUNT, EACH, OUTSIDE, PROGRAM = 300_000, 1, False, 2_500
LIMIT_S = 20.0
KINDS = ((0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (2, 8), (2, 16), (3, 2), (3, 8), (4, 8), (6, 8), (6, 16))
SIZES = (0, 1, 5, 12, 13, 14, 26, 13000, 20000, 65536, 1 << 31, 0xFFFFFFFF)
TEXT = zlib.compress(b"text")
CHUNKS = (
    *((b"tRNS", b"\0\1" * count) for count in (0, 1, 3, 4, 128)),
    *((b"gAMA", data) for data in (b"", bytes(4), b"\xff" * 4, bytes(5))),
    *((b"sBIT", bytes([bits]) * count) for bits in (0, 5, 9) for count in (1, 3, 4)),
    *((b"PLTE", bytes(size)) for size in (0, 3, 4, 48, 768, 771)),
    *((b"iCCP", b"n" + data) for data in (b"", b"\0", b"\0\1x", b"\0\0" + TEXT, b"\0\0" + TEXT[:-3], b"\0\0junk")),
    *((b"zTXt", b"k" + data) for data in (b"", b"\0", b"\0\0" + TEXT, b"\0\0" + TEXT[:-2])),
    *(
        (b"iTXt", b"k\0" + data)
        for data in (b"", b"\0\0\0\0v", b"\1\0\0\0" + TEXT, b"\1\1\0\0v", b"\0\0\xff\0\xff\0\xff")
    ),
    *((b"IDAT", data) for data in (b"", b"x")),
    *((b"IEND", data) for data in (b"", b"x")),
    (b"acTL", struct.pack(">II", 2, 0)),
    (b"fcTL", struct.pack(">IIIIIHHBB", 0, 13, 11, 0, 0, 1, 10, 0, 0)),
    (b"fdAT", bytes(9)),
    (b"eXIf", b"II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0"),
    (b"bKGD", b"\0\1"),
    (b"hIST", b"\0\1"),
    (b"CgBI", bytes(4)),
    (b"ABCD", b""),
)


def streams(rng: random.Random, data: bytes) -> bytes:
    """Compress the image data otherwise, or change it."""
    raw = bytearray(zlib.decompress(data))
    other = rng.randrange(8)
    if other == 0:
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    elif other == 1:
        raw = raw[: rng.randrange(len(raw))]
    elif other == 2:
        raw += bytes(rng.choice((1, 13, 100)))
    made = zlib.compressobj(rng.choice((0, 1, 9)), zlib.DEFLATED, rng.choice((-15, 9, 12, 15)) if other == 3 else 15)
    half = len(raw) // 2
    packed = made.compress(bytes(raw[:half])) + (made.flush(zlib.Z_FULL_FLUSH) if other == 4 else b"")
    packed += made.compress(bytes(raw[half:])) + made.flush()
    return packed[:-2] if other == 5 else packed + b"\0\0" if other == 6 else packed


def operated(rng: random.Random, parts: list[tuple[bytes, bytes]]) -> None:
    """Take a chunk out, put one twice, or change two about."""
    if not parts:
        return
    one, other = rng.randrange(len(parts)), rng.randrange(len(parts))
    kind = rng.randrange(3)
    if kind == 0:
        del parts[one]
    elif kind == 1:
        parts.insert(other, parts[one])
    else:
        parts[one], parts[other] = parts[other], parts[one]


def png_file(rng: random.Random) -> bytes:
    color, bits = rng.choice(KINDS)
    channels = 1 if color == 3 else CHANNELS[color]
    levels = np.random.default_rng(rng.randrange(1 << 30)).integers(0, 2**bits, (11, 13, channels))
    palette = chunk(b"PLTE", rng.randbytes(3 << bits)) if color == 3 else b""
    file = write_png(levels, bits, color, interlace=rng.random() < 0.4, filters=(4, 3, 2, 1, 0), before=palette)
    parts, at = [], 8
    while at < len(file):
        size = int.from_bytes(file[at : at + 4], "big")
        parts.append((file[at + 4 : at + 8], file[at + 8 : at + 8 + size]))
        at += 12 + size
    kind = rng.random()
    if kind < 0.4:
        parts.insert(rng.choice((1, len(parts) - 1, len(parts))), rng.choice(CHUNKS))
    elif kind < 0.6:
        place = next(number for number, (name, _) in enumerate(parts) if name == b"IDAT")
        packed = streams(rng, b"".join(data for name, data in parts if name == b"IDAT"))
        parts = [part for part in parts if part[0] != b"IDAT"]
        cut = rng.randrange(len(packed) + 1)
        parts[place:place] = [(b"IDAT", packed[:cut]), *[(b"IDAT", b"")] * rng.randrange(2), (b"IDAT", packed[cut:])]
    elif kind < 0.8:
        fields = list(struct.unpack(">IIBBBBB", parts[0][1]))
        field = rng.randrange(7)
        fields[field] = rng.choice(SIZES) if field < 2 else rng.choice((0, 1, 2, 3, 4, 6, 8, 16))
        parts[0] = b"IHDR", struct.pack(">IIBBBBB", *fields)
    else:
        operated(rng, parts)
    made = SIGNATURE + b"".join(chunk(name, data) for name, data in parts)
    return made[: rng.randrange(len(made))] if rng.random() < 0.05 else made


def webp_file(rng: random.Random) -> bytes:
    coarse = np.random.default_rng(rng.randrange(1 << 30)).integers(0, 256, (7, 9, 4), dtype=np.uint8)
    image = (
        Image.fromarray(coarse).resize(rng.choice(((1, 1), (16, 16), (37, 29)))).convert(rng.choice(("RGB", "RGBA")))
    )
    more = rng.choice(({}, {"exif": b"Exif\0\0II*\0"}, {"icc_profile": b"profile"}))
    if rng.random() < 0.15:
        more = {"save_all": True, "append_images": [image.rotate(9)] * rng.randrange(2)}
    file = io.BytesIO()
    image.save(file, "WEBP", lossless=rng.random() < 0.5, method=0, **more)
    parts = list(riff_chunks(file.getvalue()))
    kind, at = rng.random(), rng.randrange(len(parts))
    name, data = parts[at]
    if kind < 0.25:
        canvas = struct.pack("<I", rng.choice((0, 15, 28, 36, 16383)))[:3]
        header = bytes([rng.choice((0, 2, 8, 16, 0x3E, 0xFF)), 0, 0, 0]) + canvas + struct.pack("<I", 28)[:3]
        if parts[0][0] == b"VP8X":
            parts[0] = b"VP8X", header
        else:
            parts.insert(0, (b"VP8X", header))
    elif kind < 0.5:
        operated(rng, parts)
    elif kind < 0.6:
        parts.insert(
            rng.randrange(len(parts) + 1), rng.choice(((b"ALPH", b"\0" * 50), (b"VP8L", b""), (b"ANIM", bytes(6))))
        )
    elif kind < 0.7:
        parts[at] = rng.choice((b"VP8 ", b"VP8L", b"ALPH", b"XXXX")), data
    else:
        changed = bytearray(data)
        changed[rng.randrange(min(12, len(changed)))] ^= 1 << rng.randrange(8)
        parts[at] = name, rng.choice((bytes(changed), data[:-1], data + b"\0\0\0"))
    body = b"WEBP" + b"".join(
        name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for name, data in parts
    )
    size = len(body) + (rng.choice((-2, -1, 1, 2, 100)) if rng.random() < 0.1 else 0)
    return b"RIFF" + struct.pack("<I", size) + body


def damaged(file: bytes, rng: random.Random) -> bytes:
    """The file with bits changed, bytes lost or inserted; checksums of chunks are often mended."""
    at, count, kind = rng.randrange(len(file)), rng.randrange(1, 9), rng.random()
    if kind < 0.15:
        return file[:at]
    if kind < 0.35:
        return file[:at] + (b"" if kind < 0.25 else rng.randbytes(count)) + file[at + (count if kind < 0.25 else 0) :]
    data = bytearray(file)
    for _ in range(rng.choice((1, 1, 2, 5))):
        data[rng.randrange(len(data) if rng.random() < 0.7 else min(60, len(data)))] ^= 1 << rng.randrange(8)
    return _with_checksums(bytes(data)) if file.startswith(SIGNATURE) and rng.random() < 0.7 else bytes(data)


def _with_checksums(file: bytes) -> bytes:
    data, at = bytearray(file), 8
    while at + 12 <= len(data) and (end := at + 8 + int.from_bytes(data[at : at + 4], "big")) + 4 <= len(data):
        data[end : end + 4] = zlib.crc32(data[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(data)


def deflate_file(rng: random.Random) -> bytes:
    """Make a PNG file of a random stream."""
    while (found := random_stream(rng)) is None:
        pass
    stream, data = found
    return png_of(
        stream, len(data), rng.choice([rows for rows in range(1, 20) if len(data) % rows == 0 and len(data) > rows])
    )


def compared(data: bytes, crop: tuple[float, ...] = (0.0, 0.0, 1.0, 1.0)) -> tuple[str, str | None]:
    """Decode by the core and by Pillow.

    Args:
        data: The file.
        crop: A part of the image to compare, too: where it begins, and how much of the rest it has.

    Returns:
        The core's status, and what is wrong with it.
    """
    expected = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.simplefilter("ignore", UserWarning)
            with Image.open(io.BytesIO(data)) as image:
                expected = np.asarray(image.convert("RGB"))
    except Exception:
        pass
    try:
        got = decode(data)
    except DecodeError as error:
        return error.status, None
    if expected is None:
        return "ok", f"Pillow refuses what the core accepts: {data.hex()}"
    if not np.array_equal(got, expected):
        return "ok", f"other pixels than Pillow's: {data.hex()}"
    height, width = expected.shape[:2]
    top, left = int(crop[0] * height), int(crop[1] * width)
    rows, columns = 1 + int(crop[2] * (height - top - 1)), 1 + int(crop[3] * (width - left - 1))
    if not np.array_equal(decode(data, (top, left, rows, columns)), expected[top:, left:][:rows, :columns]):
        return "ok", f"another crop than Pillow's, {(top, left, rows, columns)}: {data.hex()}"
    return "ok", None


def trial(number: int, setting: Setting) -> Outcome:
    """Decode one file, whole and in part."""
    rng = random.Random(f"codecs {setting.seed} {number}")
    calibrate()
    data = (deflate_file, png_file, webp_file)[number % 3](rng)
    if data and rng.random() < 0.4:
        data = damaged(data, rng)
    status, failure = compared(data, tuple(rng.random() for _ in range(4)))
    outcome = Outcome(failures=[] if failure is None else [failure])
    outcome.counts["accepted" if status == "ok" else "refused"] += 1
    return outcome
