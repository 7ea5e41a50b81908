"""Images that Pillow turns, or whose metadata it cannot read, are told from all others."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zlib

import pytest
from photos import pixels
from PIL import Image, ImageOps
from png_writer import chunk, riff, riff_chunks

from fastload.pipeline.datasets.orientation import HEAD_BYTES, is_upright, upright_by_header

KEYS = (b"exif", b"Exif", b"xmp", b"XML:com.adobe.xmp", b"Raw profile type exif", b"Raw profile type xmp", b"Software")
HEADS = (b"MM\0*", b"II*\0", b"II+\0", b"\0\0\0\0")


def encoded(format, **options):
    out = io.BytesIO()
    Image.fromarray(pixels(1, 12, 20)).save(out, format, **options)
    return out.getvalue()


def exif_data(rng):
    exif = Image.Exif()
    exif.endian = rng.choice("<>")
    if (orientation := rng.choice((None, None, None, 0, 1, 3, 6, 9))) is not None:
        exif[0x112] = orientation
    data = bytearray(exif.tobytes()[6:])
    if rng.random() < 0.2:
        data[:4] = rng.choice(HEADS)
    if rng.random() < 0.2:
        data[rng.randrange(len(data))] = rng.randrange(256)
    return rng.choice((b"", b"", b"Exif\0\0")) + bytes(data[: rng.choice((None, None, None, 9))])


def xmp_data(rng):
    return rng.choice((b'<x tiff:Orientation="6"/>', b"<tiff:Orientation>1</tiff:Orientation>", b"<x/>", b"\xe9"))


def text_data(rng):
    exif = exif_data(rng)
    profile = f"\nexif\n{len(exif):8}\n{exif.hex()}\n".encode()
    return rng.choice((exif, profile, xmp_data(rng), b"\nexif\n2\nno", b""))


def png(rng):
    """A PNG file with some texts, before or after its pixels."""
    data = encoded("PNG")
    for _ in range(rng.randint(1, 2)):
        key, text = rng.choice(KEYS), text_data(rng)
        made = rng.choice(
            (
                (b"tEXt", key + b"\0" + text),
                (b"tEXt", key),
                (b"zTXt", key + b"\0\0" + zlib.compress(text)[: rng.choice((None, None, 5))]),
                (b"iTXt", key + b"\0\0\0\0\0" + text),
                (b"iTXt", key + b"\0\1\0en\0\0" + zlib.compress(text)),
                (b"eXIf", exif_data(rng)),
            )
        )
        at = rng.choice((33, data.rindex(b"IEND") - 4))
        data = data[:at] + chunk(*made) + data[at:]
    return data


def jpeg(rng):
    """A JPEG file with application segments.

    If it says its resolution, opening it reads no EXIF data.
    """
    data = encoded("JPEG", **rng.choice(({}, {"dpi": (72, 72)})))
    for _ in range(rng.choice((1, 1, 2))):
        exif, xmp = b"Exif\0\0" + exif_data(rng), b"http://ns.adobe.com/xap/1.0/\0" + xmp_data(rng)
        marker, payload = rng.choice(((0xE1, exif), (0xE1, exif), (0xE1, xmp), (0xE1, b""), (0xE2, b"MPF\0" + exif)))
        at = rng.choice((20, data.index(b"\xff\xc0")))
        data = data[:at] + struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload + data[at:]
    return data


def webp(rng):
    data = encoded("WEBP", exif=exif_data(rng), xmp=xmp_data(rng), lossless=rng.random() < 0.5)
    return riff(*(each for each in riff_chunks(data) if rng.random() < 0.8 or not each[0].isalpha()))


def is_as_stored(data):
    """Whether Pillow opens, reads and keeps the image as ``datasets`` does."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            if image.getexif().get(0x112) is None:
                return True
            return ImageOps.exif_transpose(image).tobytes() == image.tobytes()
    except Exception:
        return False


@pytest.mark.parametrize("make", [png, jpeg, webp])
def test_only_images_that_pillow_keeps_are_upright(make):
    answers = []
    for number in range(150):
        data = make(random.Random(number))
        with warnings.catch_warnings(action="ignore"):
            found, expected = is_upright(data), is_as_stored(data)
            by_head = upright_by_header(data[:HEAD_BYTES])
        assert expected or not found, (number, data)
        assert found or by_head is not True, (number, data)
        answers.append((found, expected))
    assert {(True, True), (False, False)} <= {*answers}
    assert answers.count((False, True)) < 50
