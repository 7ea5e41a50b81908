"""Damaged JPEG files: the core returns Pillow's pixels or an error."""

from __future__ import annotations

import io
import random
import struct
import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
from jpeg_writer import FACTORS, segment, write_jpeg
from photos import jpeg, pixels
from PIL import Image, ImageCms

from fastload import _core
from fastload.pipeline.nodes import FILTERS
from fastload.vision import DecodeError, decode

from . import headers
from .headers import segments
from .outcome import Outcome, Setting

TITLE = "mutated files against Pillow"
COUNT, EACH, OUTSIDE, PROGRAM = 100_000, 1, False, 2_500
LIMIT_S = 20.0
PIXELS_MAX = 1_000_000  # Pillow and the core refuse twice as many, so no header makes a trial take minutes
Mutation = Callable[[random.Random, bytearray], None]


@cache
def corpus() -> list[bytes]:
    """Small files of every kind that Pillow or the tests' JPEG writer can write."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010F], exif[0x011A] = 6, "maker", (72, 1)
    icc = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    plain = [{"quality": q, "subsampling": s} for q in (20, 75, 95) for s in (0, 1, 2)]
    special = [
        {"progressive": True},
        {"progressive": True, "subsampling": 0, "optimize": True},
        {"restart_marker_rows": 1},
        {"restart_marker_blocks": 3, "progressive": True},
        {"exif": exif},
        {"exif": exif, "icc_profile": icc, "dpi": (300, 300), "comment": b"comment"},
        {"exif": b"Exif\0\0" + b"MM\0*\0\0\0\x08" + bytes(6)},
        {"keep_rgb": True},
        {"mode": "CMYK"},
        {"mode": "L"},
        {"mode": "L", "progressive": True},
        {"icc_profile": icc * 30},  # several segments
    ]
    files = [jpeg(i, 40 + 5 * i % 60, 50 + 7 * i % 70, **options) for i, options in enumerate(plain + special)]
    for i, factors in enumerate(FACTORS.values()):
        files += [
            write_jpeg(45 + i, 38, factors, seed=i, restart=r, progressive=p) for r in (0, 2) for p in (False, True)
        ]
    adobe = [segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([transform])) for transform in range(3)]
    files += [
        write_jpeg(40, 40, FACTORS["4:4:4"], ids=ids, extra=a) for ids in ((1, 2, 3), (82, 71, 66)) for a in adobe
    ]
    out = io.BytesIO()
    pages = [Image.fromarray(pixels(i, 40, 50)) for i in range(2)]
    pages[0].save(out, "MPO", save_all=True, append_images=pages[1:])
    body = exif.tobytes().removeprefix(b"Exif\0\0")
    halves = segment(0xE1, b"Exif\0\0" + body[:20]) + segment(0xE1, b"Exif\0\0" + body[20:])
    return [*files, out.getvalue(), files[0][:2] + halves + files[0][2:]]


def _flip(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])


def _truncate(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]
    if rng.random() < 0.5:
        data += b"\xff\xd9"


def _insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.randint(1, 20))


def _delete(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randint(1, 40)]


def _marker(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at : at + 2] = bytes([0xFF, rng.randrange(0xC0, 0x100)])


def _header(rng: random.Random, data: bytearray) -> None:
    """Change a byte of a marker segment, not of the pixels."""
    if found := segments(data):
        begin, end = rng.choice(found)
        if begin + 1 < end:
            data[rng.randrange(begin + 1, end)] = rng.choice([0, 1, 2, 3, 0x11, 0x22, 0xFF, rng.randrange(256)])


def _swap(rng: random.Random, data: bytearray) -> None:
    found = segments(data)[:-1]
    if len(found) > 1:
        (a, b), (c, d) = sorted(rng.sample(found, 2))
        data[a:d] = data[c:d] + data[b:c] + data[a:b]


def _repeat(rng: random.Random, data: bytearray) -> None:
    if found := segments(data)[:-1]:
        begin, end = rng.choice(found)
        at = rng.choice(found)[0]
        data[at:at] = data[begin:end]


def _drop(rng: random.Random, data: bytearray) -> None:
    if found := segments(data)[:-1]:
        begin, end = rng.choice(found)
        del data[begin:end]


def _foreign(rng: random.Random, data: bytearray) -> None:
    """Insert a segment of another file."""
    other = rng.choice(corpus())
    if (theirs := segments(other)[:-1]) and (own := segments(data)):
        begin, end = rng.choice(theirs)
        at = rng.choice(own)[0]
        data[at:at] = other[begin:end]


STARTS = (
    *((0xE0, b"JFIF\0\1\1\1\0"), (0xE1, b"Exif\0\0"), (0xE1, b"Exif\0\0MM\0*\0\0\0\x08"), (0xE2, b"MPF\0")),
    *((0xE2, b"MPF\0II*\0\x08\0\0\0"), (0xE2, b"ICC_PROFILE\0\1\1"), (0xEE, b"Adobe\0\x64"), (0xFE, b"")),
    *((0xED, b"Photoshop 3.0\0" + b"8BIM\3\xed"), (0xE1, b"http://ns.adobe.com/xap/1.0/\0")),
)


def _made_up(rng: random.Random, data: bytearray) -> None:
    """Insert random application data behind a prefix that Pillow reads."""
    if own := segments(data):
        marker, start = rng.choice(STARTS)
        at = rng.choice(own)[0]
        data[at:at] = segment(marker, start + rng.randbytes(rng.choice([0, 1, 2, 4, 8, 20, 60])))


def _directory(rng: random.Random, data: bytearray) -> None:
    """Insert a TIFF directory with tags that Pillow reads, in one segment or two."""
    if not (own := segments(data)):
        return
    marker, start = rng.choice([(0xE1, b"Exif\0\0"), (0xE1, b"Exif\0\0"), (0xE2, b"MPF\0")])
    tags = (0x011A, 0x0128, 0x0112, 0x8769) if marker == 0xE1 else (0xB000, 0xB001, 0xB002)
    order = rng.choice("<>")
    entries = [
        struct.pack(f"{order}HHI", rng.choice(tags), rng.choice([1, 2, 3, 4, 5, 7, 10, 12, rng.randrange(20)]), count)
        + rng.choice([bytes(4), struct.pack(f"{order}I", 26), b"0100", rng.randbytes(4)])
        for count in rng.choices([0, 1, 2, 4, 16, 32, 65536], k=rng.randint(1, 4))
    ]
    body = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, len(entries)) + b"".join(entries)
    body += struct.pack(f"{order}I", 0) + rng.choice([b"", rng.randbytes(40), struct.pack(f"{order}II", 72, 1) * 5])
    cut = rng.randrange(len(body)) if rng.random() < 0.3 else len(body)
    at = rng.choice(own)[0]
    data[at:at] = b"".join(segment(marker, start + part) for part in (body[:cut], body[cut:]) if part)


HEADERS: tuple[Mutation, ...] = (
    *(headers.insert, headers.insert, headers.replace, headers.replace),
    *(headers.resize, headers.relength, headers.retype, _header, _swap, _repeat, _drop, _foreign),
)
MUTATIONS: tuple[Mutation, ...] = (
    *(_flip, _set, _truncate, _insert, _delete, _marker),
    *(_header, *HEADERS, _made_up),
    *[_directory] * 4,  # more often, because there are very many variants
)


def mutated(rng: random.Random, mutations: tuple[Mutation, ...] | None = None) -> bytes:
    """Change one to three things in a file of the corpus."""
    data = bytearray(rng.choice(corpus()))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if data:
            rng.choice(mutations or MUTATIONS)(rng, data)
    return bytes(data)


def trial(number: int, setting: Setting) -> Outcome:
    """Decode one file: a resized crop, the crop, the whole image.

    What decodes without an error, by its header and the form of its scan, does so in Pillow, too.
    """
    rng = random.Random(f"mutations {setting.seed} {number}")
    Image.MAX_IMAGE_PIXELS = PIXELS_MAX
    outcome = Outcome()
    data = mutated(rng)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        image = pillow(data)
    if image is None and _core.scan_end(data, 2 * PIXELS_MAX):
        outcome.failures.append(f"Pillow refuses what is said to decode: {data.hex()}")
    width, height = (50, 40) if image is None else image.size
    top, left = rng.randrange(height), rng.randrange(width)
    crop = top, left, rng.randint(1, height - top), rng.randint(1, width - left)
    size = rng.randint(1, 60), rng.randint(1, 60)
    interpolation = rng.choice(list(FILTERS))
    taken = []
    for arguments in ((crop, size), (crop, None), (None, None)):
        try:
            pixels_of = decode(data, *arguments, interpolation=interpolation)
        except DecodeError:
            continue
        taken.append(arguments)
        if image is None:
            outcome.failures.append(f"Pillow refuses what the core accepts ({arguments}): {data.hex()}")
        elif warned:
            outcome.failures.append(f"Pillow warns of what the core accepts ({warned[0].message}): {data.hex()}")
        elif not np.array_equal(pixels_of, _expected(image, *arguments, interpolation)):
            outcome.failures.append(f"other pixels than Pillow's ({arguments}, {interpolation}): {data.hex()}")
    outcome.counts["accepted" if len(taken) == 3 else "accepted in part" if taken else "refused"] += 1
    outcome.torch["refused" if image is None else "accepted"] += 1
    return outcome


def pillow(data: bytes) -> Image.Image | None:
    """Decode a file with Pillow, as torchvision does; ``None`` if Pillow raises."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.convert("RGB")
    except Exception:
        return None


def _expected(
    image: Image.Image, crop: tuple[int, ...] | None, size: tuple[int, int] | None, interpolation: str
) -> np.ndarray:
    if crop is not None:
        top, left, height, width = crop
        image = image.crop((left, top, left + width, top + height))
    return np.asarray(image if size is None else image.resize(size[::-1], FILTERS[interpolation]))
