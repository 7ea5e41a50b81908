"""Damaged scans of JPEG files: results are libjpeg-turbo's, and pixels Pillow's."""

from __future__ import annotations

import random
import warnings

import numpy as np

from fastload import _core

from .mutations import pillow
from .outcome import Outcome, Setting
from .varied import varied

TITLE = "damaged scans against libjpeg-turbo and Pillow"
COUNT, EACH, OUTSIDE, PROGRAM = 100_000, 1, False, 2_500
LIMIT_S = 20.0


def scan_of(data: bytes) -> int:
    """Where the data of the scan begins."""
    at = data.index(b"\xff\xda")
    return at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def damaged(draw: random.Random, data: bytes) -> bytes:
    """Change one to three things in the scan, rarely before it."""
    file = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        at = draw.randrange(scan_of(data) if draw.random() < 0.93 and scan_of(data) < len(file) else 0, len(file))
        kind = draw.randrange(9)
        if kind <= 2:
            file[at] ^= 1 << draw.randrange(8)
        elif kind == 3:
            file[at] = draw.randrange(256)
        elif kind == 4:
            del file[at : at + draw.choice((1, 1, 2, 9))]
        elif kind == 5:
            file[at:at] = draw.randbytes(draw.choice((1, 1, 2, 9)))
        elif kind == 6:
            file[at:at] = bytes([0xFF, draw.choice((0, 0xFF, 0xD0 + draw.randrange(8), 0xD9, 0xC4, 1))])
        elif kind == 7:
            del file[at : len(file) - draw.choice((0, 2, 2, 2))]
        else:
            file[at : at + 6] = bytes([draw.choice((0, 0xFF, 0xAA))]) * draw.randint(1, 6)
        if len(file) < 3:
            break
    return bytes(file)


def _decoded(data: bytes, box: tuple[int, ...], *, own: bool, index: _core.JpegIndex | None) -> tuple[str, str, bytes]:
    before = _core.uses_own_decoder()
    _core.set_own_decoder(own)
    try:
        out = np.zeros((1, *box[2:], 3), np.uint8)
        status, *_, detail = _core.decode(data, out, [*box, *box[2:], 0, 0, *box[2:], 0, 0], index=index)
        return status, detail, out.tobytes() if status == "ok" else b""
    finally:
        _core.set_own_decoder(before)


def trial(number: int, setting: Setting) -> Outcome:
    """Decode a region of one damaged file, with an index of both."""
    rng = random.Random(f"damage {setting.seed} {number}")
    outcome = Outcome()
    whole = varied(rng)
    width, height = _core.jpeg_header(whole)[3:5]
    box = rng.randrange(height), rng.randrange(width)
    box += rng.randint(1, height - box[0]), rng.randint(1, width - box[1])
    index = _core.JpegIndex(1 << 20, whole=rng.random() < 0.5)
    _decoded(whole, box, own=True, index=index)
    data = damaged(rng, whole)
    expected = _decoded(data, box, own=False, index=None)
    for visit in range(3):
        if (found := _decoded(data, box, own=True, index=index if visit else None)) != expected:
            what = f"{found[:2]} instead of {expected[:2]}, {box}, visit {visit}"
            outcome.failures.append(f"not libjpeg-turbo's: {what}: {data.hex()}")
    outcome.counts[expected[0]] += 1
    if expected[0] == "ok" and _core.jpeg_header(data)[3:5] == (width, height):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = pillow(data)
        top, left, rows, columns = box
        if image is None:
            outcome.failures.append(f"Pillow refuses it: {data.hex()}")
        elif np.asarray(image.crop((left, top, left + columns, top + rows))).tobytes() != expected[2]:
            outcome.failures.append(f"other pixels than Pillow's, {box}: {data.hex()}")
    return outcome
