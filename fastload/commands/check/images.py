"""Judge encoded images: whether torchvision's loader would raise, and what is odd.

Pillow is the judge. Where the native core decodes a file without a complaint, Pillow would too, and need not be asked.
"""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from PIL import ExifTags, Image, UnidentifiedImageError

from fastload import _core
from fastload._result import Result
from fastload.lazy.files import is_bomb
from fastload.pipeline.datasets.orientation import upright_by_header
from fastload.pipeline.recipe import pixel_limit
from fastload.vision import DecodeError, decode

if TYPE_CHECKING:
    from collections.abc import Iterator

BROKEN: Final = ("unreadable", "empty", "not-an-image", "truncated", "corrupt", "too-large", "raises")
"""Kinds of findings on which a loader fails."""
ODD: Final = (
    *("damaged", "cmyk", "16-bit", "animated", "turned", "huge", "trailing", "misnamed", "duplicate", "linked-twice"),
)
"""Kinds of findings that a loader reads, if maybe otherwise than expected."""

SIGNATURE_BYTES: Final = 16
_SIGNATURES: Final = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|II\*\0|MM\0\*|RIFF....WEBP|....ftypavi[fs]", re.DOTALL
)
_FORMATS: Final = frozenset({"AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"})
_SAME_FORMAT: Final = {"MPO": "JPEG"}  # of cameras: a JPEG file with other pictures behind it
_MARKER: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)  # that ends a scan
_DEEP: Final = re.compile(r"(RGB|CMYK|LA?[;B]).*;1[26]|[IF](;|$)")
"""Pillow's names for pixels of more than 8 bits a channel; ``BGR;16`` has fewer."""


@dataclass(frozen=True, slots=True)
class Finding(Result):
    """What is wrong or odd about one file or sample."""

    kind: str  # one of BROKEN or ODD
    file: str  # path, ARCHIVE/MEMBER, or what the dataset calls the sample
    detail: str  # one line
    index: int | None = None  # of the sample in its dataset

    @property
    def broken(self) -> bool:
        """Whether a loader would raise."""
        return self.kind in BROKEN


@lru_cache(maxsize=1)
def formats_by_extension() -> dict[str, str]:
    """Return the formats that are checked, by the extensions that the installed Pillow knows."""
    return {name: format for name, format in Image.registered_extensions().items() if format in _FORMATS}


def extension_of(name: str) -> str:
    """Return a file's extension in lower case, with its dot."""
    return os.path.splitext(name)[1].lower()


def has_signature(head: bytes) -> bool:
    """Whether a file begins like JPEG, PNG, GIF, TIFF, WebP or AVIF."""
    return _SIGNATURES.match(head) is not None


def judged(data: bytes, name: str) -> list[tuple[str, str]]:
    """Judge an encoded image. Thread-safe; holds the GIL for little of the time.

    Args:
        data: The whole file.
        name: With the extension that the format is compared with; any format is right where it has none that is known.

    Returns:
        Kind and detail of each finding.
    """
    if not data:
        return [("empty", "0 bytes")]
    sound = _core.scan_end(data, pixel_limit(Image.MAX_IMAGE_PIXELS), codes=True)
    if sound == len(data) and upright_by_header(data):
        return [*_misnamed("JPEG", name)]
    try:
        image = Image.open(io.BytesIO(data))
    except Exception as error:  # noqa: BLE001 - whatever a damaged file raises
        return [_refused(error, data)]
    deep = any(_DEEP.match(part) for part in (image.mode, _rawmode(image)))
    end = sound or _end_of(data, image.format)
    status = "ok" if sound else _status(data[:end] if end else data)
    found: list[tuple[str, str]] = []
    if status != "ok":
        try:
            image.convert("RGB")
        except Exception as error:  # noqa: BLE001 - whatever a damaged file raises
            return [_raised(error, data, status)]
        if status in ("truncated", "corrupt"):
            found.append(("damaged", "Pillow fills in or guesses what is missing, without an error"))
    return [*found, *_traits(image, data, end, deep=deep), *_misnamed(str(image.format), name)]


def _misnamed(format: str, name: str) -> Iterator[tuple[str, str]]:
    format = _SAME_FORMAT.get(format, format)
    extension = extension_of(name)
    if formats_by_extension().get(extension, format) != format:
        yield "misnamed", f"the content is {format}, the name ends in {extension}"


def _traits(image: Any, data: bytes, end: int, *, deep: bool) -> Iterator[tuple[str, str]]:
    """Yield what is odd about an image that can be decoded."""
    if image.mode == "CMYK":
        yield "cmyk", "becomes RGB without its colour profile"
    if deep:
        yield "16-bit", f"Pillow's mode {image.mode}; becomes 8 bits, values may be clipped"
    if is_bomb(*image.size):
        yield "huge", f"{image.width}x{image.height} pixels; Pillow warns of a decompression bomb"
    if (orientation := _orientation(image, data)) != 1:
        yield "turned", f"EXIF orientation {orientation}, which Pillow does not apply"
    if (frames := _frames(image)) != 1:
        yield "animated", f"{frames or 'unknown number of'} frames; the first is used"
    elif 0 < end < len(data):
        yield "trailing", f"{len(data) - end:,} bytes behind the image's end"


def _orientation(image: Any, data: bytes) -> int:
    if upright_by_header(data):
        return 1
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # noqa: BLE001 - damaged EXIF, which no loader reads
        return 1
    return value if value in range(2, 9) else 1


def _frames(image: Any) -> int:
    """Count an image's frames; 0 if those behind the first are damaged."""
    try:
        return int(getattr(image, "n_frames", 1))
    except Exception:  # noqa: BLE001 - whatever a damaged file raises
        return 0


def _rawmode(image: Any) -> str:
    arguments = image.tile[0][3] if image.tile else ""
    first = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
    return first if isinstance(first, str) else ""


def _status(data: bytes) -> str:
    """Decode all of an image by the core; ``"ok"`` only if Pillow decodes it."""
    try:
        decode(data)
    except DecodeError as error:
        return error.status
    except MemoryError:
        return "unsupported"
    return "ok"


def _refused(error: Exception, data: bytes) -> tuple[str, str]:
    """Say what a file is that Pillow does not open."""
    if isinstance(error, UnidentifiedImageError) and not has_signature(data[:SIGNATURE_BYTES]):
        return "not-an-image", f"Pillow knows no such format; it begins with {data[:SIGNATURE_BYTES]!r}"
    kind, why = _raised(error, data, _status(data))
    return kind, "Pillow does not identify it" if isinstance(error, UnidentifiedImageError) else why


def _raised(error: Exception, data: bytes, status: str) -> tuple[str, str]:
    if isinstance(error, Image.DecompressionBombError):
        return "too-large", str(error)
    ends_early = data[8:12] == b"WEBP" and _end_of(data, "WEBP") > len(data)
    is_short = ends_early or status == "truncated" or "truncated" in str(error).lower()
    return "truncated" if is_short else "corrupt", in_one_line(error)


def in_one_line(error: BaseException) -> str:
    """Describe an error by its type and the first line of its message."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _end_of(data: bytes, format: str | None) -> int:
    """Where an image ends within its file, bytes; 0 if that is not known."""
    try:
        match format:
            case "JPEG" | "MPO":
                return _end_of_jpeg(data)
            case "PNG":
                return _end_of_png(data)
            case "WEBP":
                return 8 + int.from_bytes(data[4:8], "little")
    except IndexError:
        pass
    return 0


def _end_of_jpeg(data: bytes) -> int:
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xD9:
            return at + 2
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
        if marker == 0xDA:
            if (found := _MARKER.search(data, at)) is None:
                return 0
            at = found.start()
    return 0


def _end_of_png(data: bytes) -> int:
    at = 8
    while (kind := data[at + 4 : at + 8]) and kind != b"IEND":
        at += 12 + int.from_bytes(data[at : at + 4])
    return at + 12 if kind else 0
