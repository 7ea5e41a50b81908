"""What a JPEG file says about itself, read by the native core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class JpegInfo:
    """A JPEG header.

    Attributes:
        width: Pixels per row.
        height: Rows.
        components: 1 (gray), 3 (YCbCr or RGB) or 4 (CMYK or YCCK).
        subsampling: ``"gray"``, ``"4:4:4"``, ``"4:2:2"``, ``"4:2:0"``, ``"4:4:0"``, ``"4:1:1"``, ``"4:1:0"``, or
            ``"other"``.
        progressive: Whether the file is stored as progressive scans.
    """

    width: int
    height: int
    components: int
    subsampling: str
    progressive: bool


def jpeg_info(data: Buffer) -> JpegInfo:
    """Read the header of a JPEG file, no pixels. Releases the GIL; thread-safe.

    Args:
        data: The file's bytes; any bytes-like object that is contiguous.

    Raises:
        ValueError: The bytes are no JPEG file, or its header is broken; the message is libjpeg's.
        TypeError: ``data`` is not bytes-like.
    """
    from fastload import _core  # not at the top: fastload doctor has to run, and to say so, when the core does not load

    return JpegInfo(*_core.jpeg_header(data))
