"""Give images of opened files pending pixels in place of Pillow's.

Only if decoding cannot fail, or has not. Of a JPEG file the bytes are noted. Whether a PNG or WebP file is sound, only
its end tells: the core decodes it whole, at the moment when Pillow would. What the core does not take is left as it is,
for Pillow.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from fastload import _core
from fastload.lazy.masks import Indices, PendingMask
from fastload.lazy.pixels import File, Levels, Pending, Unread
from fastload.stats.stack_sampler import register_codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fastload.lazy.pixels import ByPillow

register_codec(__file__)

KINDS: Final = (JpegImageFile, PngImageFile, WebPImageFile)
"""Classes of the files' images."""
ROOM: Final = 1 << 20
"""By how much a file may be larger than its pixels, bytes; larger ones are not read whole."""

_FILES: Final = (io.BufferedReader, io.BytesIO)
_CONVERTED: Final = ("1", "L", "LA", "RGBA")
"""Modes whose conversion to RGB the core decodes."""
MASKS: Final = ("L", "P")
"""Modes that the core decodes of PNG files, too."""
_WEBP: Final = "_webp_bytes"
"""The attribute of an unread WebP image that has its file's bytes, of which Pillow keeps a copy."""


def is_bomb(width: int, height: int) -> bool:
    """Whether Pillow warns of so many pixels, or raises."""
    limit = Image.MAX_IMAGE_PIXELS
    return limit is not None and width * height > limit


def note(image: Any, pillow: ByPillow) -> None:
    """Give a file's image pending pixels, as if Pillow had loaded it; else leave it."""
    if image._im is not None or image.mode not in ("RGB", *MASKS):
        return
    if image.mode in MASKS:
        if type(image) is PngImageFile:
            _note_mask(image, pillow)
    elif type(image) is JpegImageFile:
        _note_jpeg(image, pillow)
    elif (made := _decoded(image, pillow)) is not None:
        _, pixels = made
        _load(image, Pending(Levels(pixels, pillow), (0, 0, *image.size)))


def converted(image: Any, pillow: ByPillow) -> Pending | None:
    """Decode an unread PNG or WebP image of another mode as RGB.

    Returns:
        The converted pixels, with the image loaded; ``None`` with the image left as it was.
    """
    if type(image) not in KINDS or image.mode not in _CONVERTED or "transparency" in image.info:
        return None
    if image._im is not None or (made := _decoded(image, pillow)) is None:
        return None
    data, pixels = made
    _load(image, Unread(type(image), image.mode, data, pillow))
    return Pending(Levels(pixels, pillow), (0, 0, *image.size))


def open_webp(image: Any, by_pillow: Callable[[Any], None]) -> None:
    """Open a WebP file and keep its bytes, all of which Pillow reads then."""
    file = image.fp
    if type(file) not in _FILES or file.closed or not file.seekable():
        by_pillow(image)
        return
    at = file.tell()
    data = file.read()
    image.fp = io.BytesIO(data)
    try:
        by_pillow(image)
    finally:
        file.seek(at + image.fp.tell())
        image.fp = file
    vars(image)[_WEBP] = data


def drop_webp(image: Any) -> None:
    """Drop the bytes of a WebP image that has been loaded."""
    vars(image).pop(_WEBP, None)


def _note_jpeg(image: Any, pillow: ByPillow) -> None:
    plain = len(image.tile) == 1 and image.decoderconfig == () and image.tile[0][1:3] == ((0, 0, *image.size), 0)
    if not plain or image.tile[0][3] != ("RGB", "") or (data := _read(image)) is None:
        return
    if (end := _core.scan_end(data)) == 0:
        return
    block = image.decodermaxblock
    image.fp.seek(min(len(data), -(-end // block) * block))  # where Pillow would stop
    _load(image, Pending(File(data, image.size, pillow), (0, 0, *image.size)))


def _note_mask(image: Any, pillow: ByPillow) -> None:
    if pillow.differs or (image.mode == "P") != bool(image.palette) or (data := _png(image)) is None:
        return
    try:
        levels = np.empty((image.height, image.width, 1), np.uint8)
    except MemoryError:
        return
    if not _core.decode_levels(data, levels):
        return
    levels = pillow.compared(PngImageFile, data, levels)
    _load(image, Image.new(image.mode, (1, 1)).im)  # which gets the palette
    one = image._im.crop((0, 0, 1, 1))  # of memory as large as the file's image, which some versions of Pillow make
    image._im = PendingMask(Indices(levels, pillow), (0, 0, *image.size), one=one)


def _read(image: Any) -> bytes | None:
    """Read an image's whole file, which stays at its position.

    Returns:
        ``None`` if it is no plain file, or much larger than its pixels.
    """
    file = image.fp
    if type(file) not in _FILES or file.closed or "load_read" in vars(image) or is_bomb(*image.size):
        return None
    at, data = file.tell(), None
    if file.seek(0, io.SEEK_END) <= len(image.getbands()) * image.width * image.height + ROOM:
        file.seek(0)
        data = file.read()
    file.seek(at)
    return data


def _decoded(image: Any, pillow: ByPillow) -> tuple[bytes, NDArray[np.uint8]] | None:
    """Decode an unread PNG or WebP file: its bytes, and ``(H, W, 3)``."""
    kind = type(image)
    data = _png(image) if kind is PngImageFile else vars(image).get(_WEBP) if kind is WebPImageFile else None
    if data is None or pillow.differs:
        return None
    try:
        pixels = np.empty((1, image.height, image.width, 3), np.uint8)
    except MemoryError:
        return None
    status, *_ = _core.decode(data, pixels, (0,) * 12)
    return (data, pillow.compared(kind, data, pixels[0])) if status == "ok" else None


def _png(image: Any) -> bytes | None:
    """Read a PNG file that Pillow is about to decode."""
    if len(image.tile) != 1 or image.decoderconfig != () or image.is_animated:
        return None
    codec, extents, begin, rawmode = image.tile[0]
    if (codec, extents, str(rawmode).partition(";")[0]) != ("zip", (0, 0, *image.size), image.mode):
        return None
    data = _read(image)
    return data if data is not None and _chunk(data, 8, begin - 8) == begin - 8 else None


def _chunk(data: bytes, at: int, end: int) -> int:
    """Where a PNG file's first chunk from ``end`` on begins."""
    while at < end:
        at += 12 + int.from_bytes(data[at : at + 4])
    return at


def _load(image: Any, pixels: Any) -> None:
    """Do what ``load`` does, with pixels that need not be decoded."""
    image._im = pixels
    if type(image) is WebPImageFile:
        drop_webp(image)
        image.info["timestamp"] = image.info["duration"] = 0
        vars(image).update(_WebPImageFile__loaded=0, _WebPImageFile__physical_frame=1)
    elif type(image) is PngImageFile:
        image.load_prepare()
    image.map = None
    image.tile = []
    image.readonly = 0
    image.load_end()
    if image.fp and image._exclusive_fp and image._close_exclusive_fp_after_loading:
        image.fp.close()
    image.fp = None
