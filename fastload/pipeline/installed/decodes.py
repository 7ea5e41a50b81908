"""Check at run time which decodes and resizes match the installed Pillow bit for bit.

Three things depend on versions: how libjpeg-turbo upsamples the rarer chroma subsamplings (Pillow's wheels bundle their
own copy), how libwebp upsamples (theirs is another copy, too), and which pass of a resize Pillow runs first
(python-pillow/Pillow#9524, #9549).
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL
from PIL import Image, ImageFile, features
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from fastload.pipeline.nodes import FILTERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SUBSAMPLINGS = ("gray", "4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "4:1:0")
"""Chroma subsamplings that have a probe."""

PROBES = {
    "PNG": tuple(f"{name}.png" for name in ("rgb", "rgba", "gray", "gray-alpha", "gray-1", "gray-2", "gray-4")),
    "WebP (lossy)": ("lossy.webp", "lossy-alpha.webp"),
    "WebP (lossless)": ("lossless.webp", "lossless-alpha.webp"),
}
"""Files in the other formats that the core may decode."""

# Order of the two passes by Pillow version: 13.0; 12.2 and 12.3; older.
PASS_RULES = ("tall_vertical_first", "sliver_vertical_first", "horizontal_first")

# Source and target (height, width) that tell the rules apart: the height shrinks much more than the width, somewhat
# more, less; both grow; the height is more than 100 times the width, and exactly 100 times.
_RESIZES = (
    ((400, 40), (30, 20)),
    ((97, 64), (31, 40)),
    ((60, 150), (40, 33)),
    ((21, 17), (50, 44)),
    ((905, 9), (150, 20)),
    ((900, 9), (150, 20)),
)
# Crops as fractions (top, left, height, width) of the image. libjpeg-turbo's versions differed in where a crop begins
# and ends within a block, near the top and far from it.
_CROPS = (
    (0.3, 0.2, 0.5, 0.5),
    (0.5, 0.02, 0.05, 0.9),
    (0.9, 0.6, 0.1, 0.1),
    (0.46, 0.37, 0.3, 0.63),
    (0.03, 0, 0.4, 0.1),
)
_SAVED = {"gray": "L", "4:4:4": "RGB", "4:2:2": "RGB", "4:2:0": "RGB"}  # subsamplings that Pillow can write


def probe(subsampling: str) -> bytes:
    """Read the probe with this subsampling: 43x35 pixels of colored noise."""
    return probe_file(f"{subsampling.replace(':', '')}.jpg")


def probe_file(name: str) -> bytes:
    """Read a file of ``probes``."""
    return Path(__file__).with_name("probes").joinpath(name).read_bytes()


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the core does bit for bit as the installed Pillow does.

    Attributes:
        pillow: Version of Pillow.
        libjpeg: The JPEG library that the core was built with.
        subsamplings: Chroma subsamplings that decode to the same pixels; the core refuses all others.
        formats: Formats beside JPEG that decode to the same pixels: those of ``PROBES`` that the core was built for.
        pass_rule: The core's rule for the order of a resize's passes that matches Pillow; None if none does.
        filters: Interpolations that resize to the same pixels under that rule.
    """

    pillow: str
    libjpeg: str
    subsamplings: frozenset[str]
    formats: frozenset[str]
    pass_rule: str | None
    filters: frozenset[str]


_LOCK = threading.Lock()


def calibrate() -> Calibration:
    """Compare the core with the installed Pillow, once per process. Thread-safe.

    Also tells the core which subsamplings and formats it may decode, and whether it may use its own JPEG decoder.
    """
    with _LOCK:
        return _calibrate()


@lru_cache(maxsize=1)
def _calibrate() -> Calibration:
    from fastload import _core

    names = _core.subsampling_names()
    _core.set_trusted_subsamplings((1 << len(names)) - 1)
    has_own_decoder = _core.uses_own_decoder()
    _core.set_own_decoder(False)
    try:
        subsamplings = frozenset(name for name in SUBSAMPLINGS if _decodes_alike(name))
    finally:
        _core.set_own_decoder(has_own_decoder)
    if not all(_decodes_alike(name) for name in subsamplings):
        _core.set_own_decoder(False)
    _core.set_trusted_subsamplings(sum(1 << names.index(name) for name in subsamplings))
    formats = _formats()
    pass_rule, filters = _best_rule()
    return Calibration(PIL.__version__, _core.libjpeg_version(), subsamplings, formats, pass_rule, filters)


def _formats() -> frozenset[str]:
    from fastload import _core

    names = _core.format_names()
    _core.set_trusted_formats((1 << len(names)) - 1)
    opened_by: dict[str, tuple[str, Callable[[io.BytesIO], ImageFile.ImageFile]]] = {
        "PNG": ("zlib", PngImageFile),
        "WebP (lossy)": ("webp", _webp()),
        "WebP (lossless)": ("webp", _webp()),
    }
    formats = frozenset(
        format
        for format, (feature, opened) in opened_by.items()
        if features.check(feature) and all(_file_decodes_alike(probe_file(name), opened) for name in PROBES[format])
    )
    _core.set_trusted_formats(sum(1 << names.index(format) for format in formats))
    return formats


def _webp() -> type[ImageFile.ImageFile]:
    """Make a class of WebP files that does not ask for the user's ``MAX_IMAGE_PIXELS``.

    Pillow 13's does while it opens a file.
    """
    name = "_open"
    method = getattr(WebPImageFile, name)
    if method.__module__ != WebPImageFile.__module__ or method.__closure__:  # a patch, which may need names of its own
        return WebPImageFile
    unlimited = SimpleNamespace(**{**vars(Image), "_decompression_bomb_check": lambda *_, **__: None})
    method = FunctionType(method.__code__, {**method.__globals__, "Image": unlimited})
    return type("WebPProbe", (WebPImageFile,), {name: method})


def subsamplings_as(decode: Callable[[bytes], NDArray[np.uint8]]) -> frozenset[str]:
    """Find the chroma subsamplings that another library decodes as the core does.

    Args:
        decode: Decodes a whole file by that library, ``(H, W, 3)``.
    """
    from fastload import _core

    def is_alike(file: bytes) -> bool:
        expected = decode(file)
        out = np.empty(expected.shape, np.uint8)
        status, *_ = _core.decode(file, out[None], (0, 0, *out.shape[:2], 0, 0, 0, 0, 0, 0, 0, 0))
        return status == "ok" and np.array_equal(out, expected)

    return frozenset(name for name in SUBSAMPLINGS if all(map(is_alike, _files_of(name))))


def _decodes_alike(subsampling: str) -> bool:
    return all(_file_decodes_alike(file, JpegImageFile) for file in _files_of(subsampling))


def _files_of(subsampling: str) -> tuple[bytes, ...]:
    return probe(subsampling), *_larger_probes(subsampling)


def _larger_probes(subsampling: str) -> list[bytes]:
    """Baseline and progressive files, taller than the probes, if Pillow can write them."""
    if subsampling not in _SAVED:
        return []
    noise = np.random.default_rng(1).integers(0, 256, (40, 25, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((101, 163), Image.Resampling.BICUBIC).convert(_SAVED[subsampling])
    how: dict[str, Any] = {"subsampling": subsampling} if subsampling != "gray" else {}
    files = []
    for progressive in (False, True):
        file = io.BytesIO()
        # Optimized, because Pillow then makes room for the whole file, however small the user's ImageFile.MAXBLOCK.
        picture.save(file, "JPEG", quality=80, optimize=True, progressive=progressive, **how)
        files.append(file.getvalue())
    return files


def _file_decodes_alike(data: bytes, opened: Callable[[io.BytesIO], ImageFile.ImageFile]) -> bool:
    with opened(io.BytesIO(data)) as image:  # not Image.open, which checks the user's MAX_IMAGE_PIXELS
        image.decodermaxblock = len(data)  # not the user's ImageFile.MAXBLOCK
        expected = np.asarray(image.convert("RGB"))
    rows, columns = expected.shape[:2]
    boxes = [(0, 0, rows, columns)]
    for top, left, height, width in _CROPS:
        boxes.append((int(top * rows), int(left * columns), max(1, int(height * rows)), max(1, int(width * columns))))
    return all(_decodes_to(data, box, expected[box[0] :, box[1] :][: box[2], : box[3]]) for box in boxes)


def _decodes_to(data: bytes, box: tuple[int, ...], expected: NDArray[np.uint8]) -> bool:
    from fastload import _core

    out = np.empty(expected.shape, np.uint8)
    status, *_ = _core.decode(data, out[None], (*box, 0, 0, 0, 0, 0, 0, 0, 0))
    return status == "ok" and np.array_equal(out, expected)


def _best_rule() -> tuple[str | None, frozenset[str]]:
    alike = {rule: frozenset(name for name in FILTERS if _resizes_alike(name, rule)) for rule in PASS_RULES}
    best = max(PASS_RULES, key=lambda rule: len(alike[rule]))
    # "nearest" has no passes, so it is no evidence for a rule.
    return (best, alike[best]) if alike[best] - {"nearest"} else (None, frozenset())


def _resizes_alike(name: str, rule: str) -> bool:
    from fastload import _core

    rng = np.random.default_rng(0)
    for source_size, (height, width) in _RESIZES:
        source = rng.integers(0, 256, (*source_size, 3), dtype=np.uint8)
        out = np.empty((height, width, 3), np.uint8)
        _core.resize(source, out, name, rule)
        if not np.array_equal(out, np.asarray(Image.fromarray(source).resize((width, height), FILTERS[name]))):
            return False
    return True
