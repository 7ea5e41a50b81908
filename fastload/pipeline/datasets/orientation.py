"""Tell images that their EXIF or XMP data may turn, without decoding them."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Final

from PIL import ExifTags, Image

if TYPE_CHECKING:
    from collections.abc import Callable

    Buffer = bytes | memoryview

HEAD_BYTES: Final = 4096
"""Of a file, in which most JPEG headers end."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_TEXTS: Final = (b"tEXt", b"zTXt", b"iTXt")
_KEY_BYTES: Final = 80
"""Of a PNG text's keyword and the zero behind it, at most."""
_TURNING_WORDS: Final = (b"exif", b"xmp")
"""In each keyword whose text Pillow reads an orientation from, such as ``Raw profile type exif`` and ``xmp``."""
_PLAIN_CHUNKS: Final = frozenset(
    (
        *(b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"gAMA", b"cHRM", b"sRGB", b"iCCP", b"sBIT", b"bKGD", b"pHYs"),
        *(b"tIME", b"hIST"),
    )
)


def is_upright(data: Buffer) -> bool:
    """Whether Pillow decodes a file as it is meant to be seen.

    Args:
        data: All of an encoded image.

    Returns:
        ``False`` also for formats other than JPEG, PNG and WebP, and where Pillow cannot open the file.
    """
    known = upright_by_header(data)
    return _by_pillow(data) if known is None else known


def upright_by_header(data: Buffer) -> bool | None:
    """Same as :func:`is_upright`, of a file's first bytes; ``None`` if these do not say."""
    for prefix, read in _READERS.items():
        if data[: len(prefix)] == prefix:
            try:
                return read(data)
            except (IndexError, struct.error):
                return None
    return False if len(data) >= HEAD_BYTES else None


def _jpeg(data: Buffer) -> bool | None:
    """Walk through a JPEG file's segments, up to its first scan."""
    at, metadata = 2, 0
    while True:
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xDA:
            return True
        if not 0xC0 <= marker < 0xFF or 0xD0 <= marker <= 0xD9:  # alone, or padding
            return None
        (length,) = struct.unpack_from(">H", data, at + 2)
        if marker == 0xE1:
            payload = bytes(data[at + 4 : at + 2 + length])
            metadata += 1
            if metadata > 1 or len(payload) != length - 2 or not _segment_is_upright(payload):
                return None
        at += 2 + length


def _segment_is_upright(payload: bytes) -> bool:
    """Whether a file's only EXIF or XMP data is sound and turns no image."""
    if not payload.startswith(b"Exif\0\0"):
        return b"Orientation" not in payload
    exif = Image.Exif()
    try:
        exif.load(payload)
        return bool(exif.get(ExifTags.Base.Orientation, 1) == 1)
    except Exception:  # noqa: BLE001 - whatever damaged data raises; again when the image is opened
        return False


def _png(data: Buffer) -> bool | None:
    at = len(_PNG)
    while True:
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind in _TEXTS:
            key = bytes(data[at + 8 : at + 8 + min(length, _KEY_BYTES)]).split(b"\0")[0].lower()
            if any(word in key for word in _TURNING_WORDS):
                return None
        elif kind not in _PLAIN_CHUNKS:
            return None
        if kind == b"IEND":
            return True
        at += 12 + length


def _webp(data: Buffer) -> bool | None:
    if data[8:12] != b"WEBP":
        return False
    whole = bytes(data)
    complete = len(whole) >= 8 + int.from_bytes(whole[4:8], "little")
    return True if complete and b"EXIF" not in whole and b"XMP " not in whole else None


def _by_pillow(data: Buffer) -> bool:
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.format == "PNG":  # some of it may come after the pixels
                image.load()
            return image.format in _FORMATS and image.getexif().get(ExifTags.Base.Orientation, 1) == 1
    except Exception:  # noqa: BLE001 - whatever a damaged file raises; again when it is decoded
        return False


_FORMATS: Final = ("JPEG", "PNG", "WEBP")
_READERS: Final[dict[bytes, Callable[[Buffer], bool | None]]] = {b"\xff\xd8": _jpeg, _PNG: _png, b"RIFF": _webp}
