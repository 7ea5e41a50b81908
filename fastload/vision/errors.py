"""Decode errors."""

from __future__ import annotations

import os
from typing import Any

# The rule that an image broke, and the remedy.
_REMEDY = "Image.open may still make something of it"
_RULES = {
    "not_jpeg": f"only JPEG files, and PNG and WebP files as this build can, are decoded natively; {_REMEDY}",
    "cmyk": f"only gray, YCbCr and RGB images are decoded natively, this one is CMYK or YCCK; {_REMEDY}",
    "twelve_bit": "only samples of 8 bits are decoded, these have 12; convert the file",
    "arithmetic": f"arithmetic coding is not supported by the libjpeg-turbo that fastload was built with; {_REMEDY}",
    "lossless": "lossless JPEG is not decoded; convert the file",
    "bomb": "an image must have at most twice PIL.Image.MAX_IMAGE_PIXELS; raise that limit if the file is trusted",
    "truncated": "premature end of JPEG; replace the file",
    "corrupt": f"the file is damaged; {_REMEDY}",
    "unreadable": "the file cannot be read",
    "unsupported": f"Pillow's exact pixels are not promised for this kind of file; {_REMEDY}",
    "bad_geometry": "the crop must lie within the image, and the result must have the output's size",
    "cancelled": "the decode was cancelled",
}


class DecodeError(ValueError):
    """An image that could not be decoded.

    Attributes:
        index: The image's position in the batch; 0 for a single image.
        path: The image's file; None for bytes.
        status: A stable name for the reason: ``"not_jpeg"``, ``"cmyk"``, ``"twelve_bit"``, ``"arithmetic"``,
            ``"lossless"``, ``"bomb"``, ``"truncated"``, ``"corrupt"``, ``"unreadable"`` (``__cause__`` is the OSError),
            ``"unsupported"``, ``"bad_geometry"`` or ``"cancelled"``.
    """

    def __init__(self, message: str, index: int = 0, path: str | None = None, status: str = "corrupt") -> None:
        super().__init__(message)
        self.index = index
        self.path = path
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self), self.index, self.path, self.status), {"__cause__": self.__cause__})

    @classmethod
    def of(cls, outcome: tuple[str, int, int, int, int, str], data: object, index: int = 0) -> DecodeError:
        """Build the error from the core's outcome: (status, errno, width, height, file bytes, detail)."""
        status, error_number, width, height, size_bytes, detail = outcome
        path = os.fsdecode(data) if isinstance(data, (str, os.PathLike)) else None
        facts = [f"{size_bytes} bytes"] if size_bytes else []
        if width:
            facts.append(f"{width}x{height} pixels")
        if detail:
            facts.append(detail)
        if status == "unreadable":
            facts.append(os.strerror(error_number))
        name = f"sample {index}" + (f" ({path})" if path is not None else "")
        error = cls(f"{name}: {_RULES[status]} ({', '.join(facts)})", index, path, status)
        if status == "unreadable":
            error.__cause__ = OSError(error_number, os.strerror(error_number), path)
        return error
