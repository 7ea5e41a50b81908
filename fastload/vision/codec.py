"""Decode JPEG, PNG and WebP files to RGB arrays with Pillow's bits.

The pixels are those of ``Image.open(file).convert("RGB")`` and ``Image.resize``. Of a JPEG file only the crop is
decoded, and it is resized while its rows are still in the cache. EXIF orientation is ignored, as Pillow ignores it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

import numpy as np
from PIL import Image

from fastload.pipeline.installed.decodes import calibrate
from fastload.pipeline.nodes import FILTERS
from fastload.vision._pools import pool_of
from fastload.vision.errors import DecodeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Buffer

    from fastload.vision.jpeg_index import JpegIndex

    Source: TypeAlias = Buffer | str | os.PathLike[str] | os.PathLike[bytes]
    _Geometry: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, bool, bool]

_Out = TypeVar("_Out")


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
        status: ``"ok"``, or why the native core does not decode images with this header: ``"cmyk"``,
            ``"twelve_bit"``, ``"lossless"`` or ``"unsupported"``.
    """

    width: int
    height: int
    components: int
    subsampling: str
    progressive: bool
    status: str = "ok"


_SIDE_MAX = 2**31 - 1
_SURELY_ALLOCATED = 1 << 28
"""Pixels for which an array is made before it is known whether the image has them, or can be decoded."""
_SOUND = frozenset({"ok", "cmyk", "twelve_bit", "lossless", "unsupported"})


def jpeg_info(data: Source) -> JpegInfo:
    """Read only the header of a JPEG file. Releases the GIL; thread-safe.

    Args:
        data: The file's bytes (any contiguous bytes-like object), or its path.

    Raises:
        DecodeError: The file cannot be read, is not a JPEG file, or its header is damaged.
        TypeError: ``data`` is neither bytes-like nor a path.
    """
    status, width, height, components, subsampling, progressive, format = _header(data)
    if format != "JPEG":
        raise DecodeError.of(("not_jpeg", 0, 0, 0, 0, ""), data)
    return JpegInfo(width, height, components, subsampling, progressive, status)


def _header(data: Source) -> tuple[str, int, int, int, str, bool, str]:
    """Status, width, height, components, subsampling, whether it is progressive, and format of a sound header."""
    from fastload import _core  # not at the top: fastload doctor must run even if the core does not load

    status, error_number, size_bytes, width, height, components, subsampling, progressive, format = _core.jpeg_header(
        data
    )
    if status not in _SOUND or width == 0:
        outcome = ("corrupt" if status in _SOUND else status, error_number, width, height, size_bytes, "")
        raise DecodeError.of(outcome, data)
    return status, width, height, components, subsampling, progressive, format


@overload
def decode(
    data: Source,
    crop: Sequence[int] | None = None,
    size: Sequence[int] | None = None,
    *,
    interpolation: str = "bilinear",
    antialias: bool = True,
    hflip: bool = False,
    vflip: bool = False,
    fast: bool = False,
    index: JpegIndex | None = None,
    out: None = None,
) -> NDArray[np.uint8]: ...
@overload
def decode(
    data: Source,
    crop: Sequence[int] | None = None,
    size: Sequence[int] | None = None,
    *,
    interpolation: str = "bilinear",
    antialias: bool = True,
    hflip: bool = False,
    vflip: bool = False,
    fast: bool = False,
    index: JpegIndex | None = None,
    out: _Out,
) -> _Out: ...
def decode(
    data: Source,
    crop: Sequence[int] | None = None,
    size: Sequence[int] | None = None,
    *,
    interpolation: str = "bilinear",
    antialias: bool = True,
    hflip: bool = False,
    vflip: bool = False,
    fast: bool = False,
    index: JpegIndex | None = None,
    out: Any = None,
) -> Any:
    """Decode, crop, resize and flip one JPEG, PNG or WebP image.

    Runs on the calling thread without the GIL; thread-safe.

    Args:
        data: The file's bytes (any contiguous bytes-like object), or its path.
        crop: ``(top, left, height, width)`` in pixels of the image, within it. By default the whole image.
        size: ``(height, width)`` to resize the crop to. By default it keeps its size.
        interpolation: ``"nearest"``, ``"box"``, ``"bilinear"``, ``"hamming"``, ``"bicubic"`` or ``"lanczos"``.
        antialias: Must be True, because Pillow's resize always antialiases.
        hflip: Mirror left and right, after the resize.
        vflip: Mirror top and bottom, after the resize.
        fast: Let libjpeg-turbo shrink the image by 2, 4 or 8 if the crop is at least that much larger than ``size`` and
            this takes less time: of files that are progressive, or strongly compressed, and on CPUs without AVX2 and
            NEON of all. Those are not Pillow's exact pixels.
        index: Where decoding can begin within files that were decoded with it before. Changes the time only.
        out: ``(height, width, 3)`` uint8 array or CPU tensor with contiguous rows, to write to and return.

    Returns:
        ``out``, or a new ``(height, width, 3)`` uint8 array, RGB.

    Raises:
        DecodeError: The image cannot be decoded to exactly Pillow's pixels; ``.status`` says why. ``out`` is black.
        ValueError: An argument is out of range.
    """
    from fastload import _core

    boxes = None if crop is None else _boxes([crop], 1)
    shape = _shape_of(data, boxes, size)
    options = _options(interpolation, antialias, fast, index, resizes=size is not None)
    result = np.empty((*shape, 3), np.uint8) if out is None else out
    if tuple(result.shape) != (*shape, 3):
        raise ValueError(f"out must have shape {(*shape, 3)} for this crop and size, got {tuple(result.shape)}")
    geometry = _geometries(1, boxes, size, hflip, vflip)[0].tolist()
    outcome = _core.decode(data, result[None], geometry, **options)
    if outcome[0] != "ok" and out is not None:
        out[...] = 0
    _check(outcome, data)
    return result


def decode_batch(
    images: Sequence[Source],
    crops: ArrayLike | None = None,
    size: Sequence[int] | None = None,
    *,
    interpolation: str = "bilinear",
    antialias: bool = True,
    hflip: bool | Sequence[bool] = False,
    vflip: bool | Sequence[bool] = False,
    fast: bool = False,
    index: JpegIndex | None = None,
    out: Any = None,
    num_threads: int | None = None,
    statuses: list[str] | None = None,
) -> Any:
    """Decode, crop, resize and flip images in parallel. Blocks without the GIL; thread-safe.

    Args:
        images: For each JPEG, PNG or WebP image the file's bytes (any contiguous bytes-like object), or its path.
        crops: ``(N, 4)`` boxes ``(top, left, height, width)`` in pixels of the images. By default whole images.
        size: ``(height, width)`` to resize every crop to. By default crops keep their size and must all have the same.
        interpolation: As in :func:`decode`.
        antialias: As in :func:`decode`.
        hflip: Mirror left and right after the resize: one flag for all images, or one each.
        vflip: Mirror top and bottom after the resize: one flag for all images, or one each.
        fast: As in :func:`decode`.
        index: As in :func:`decode`; threads and calls share it.
        out: ``(N, height, width, 3)`` uint8 array or CPU tensor with contiguous rows, to write to and return.
        num_threads: Threads that work on the batch. By default one per usable CPU. They are kept for later calls.
        statuses: A list to clear and fill with one status per image (``"ok"``, or a reason as in
            :class:`DecodeError`). If given, no image raises. Images that are not ``"ok"`` are black.

    Returns:
        ``out``, or a new ``(N, height, width, 3)`` uint8 array, RGB.

    Raises:
        DecodeError: An image cannot be decoded to exactly Pillow's pixels; ``.index`` gives the first such image,
            ``.status`` why.
        ValueError: An argument is out of range.
    """
    from fastload import _core

    boxes = None if crops is None else _boxes(crops, len(images))
    options = _options(interpolation, antialias, fast, index, resizes=size is not None)
    if statuses is not None:
        statuses.clear()
    if out is not None and len(out) != len(images):
        raise ValueError(f"out must have room for {len(images)} images, got {len(out)}")
    if not len(images):
        return np.empty((0, *(_pair(size) if size is not None else (0, 0)), 3), np.uint8) if out is None else out
    shape = _shape_of(images[0], boxes, size) if out is None else (out.shape[1], out.shape[2])
    result = np.empty((len(images), *shape, 3), np.uint8) if out is None else out
    geometry = _geometries(len(images), boxes, size, hflip, vflip)
    job = pool_of(num_threads).submit(images, result, geometry=geometry, **options)
    try:
        job.wait()
    finally:
        job.cancel(5.0)  # if the wait was interrupted; gives up on a thread stuck in a read
    if statuses is not None:
        names = _core.status_names()
        statuses.extend(names[code] for code in job.statuses())
    for number, image in enumerate(images):
        _check(job.outcome(number), image, number, raises=statuses is None)
    return result


def _check(outcome: tuple[str, int, int, int, int, str], data: Source, index: int = 0, *, raises: bool = True) -> None:
    status, _, width, height, *_ = outcome
    if status != "ok":
        if raises:
            raise DecodeError.of(outcome, data, index)
        return
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        warnings.warn(
            f"Image size ({width * height} pixels) exceeds limit of {limit} pixels, "
            "could be decompression bomb DOS attack.",
            Image.DecompressionBombWarning,
            stacklevel=3,
        )


def _options(
    interpolation: str, antialias: bool, fast: bool, index: JpegIndex | None, *, resizes: bool
) -> dict[str, Any]:
    if interpolation not in FILTERS:
        raise ValueError(f"interpolation must be one of {', '.join(FILTERS)}, got {interpolation!r}")
    if not antialias:
        raise ValueError("antialias must be True, because Pillow's resize always antialiases, got False")
    calibration = calibrate()
    if resizes and interpolation not in calibration.filters:
        raise ValueError(
            f"interpolation must be one that gives the pixels of the installed Pillow {calibration.pillow}, but "
            f"{interpolation!r} differs there; install a Pillow from 11 to 13"
        )
    return {
        "filter": interpolation,
        "pass_rule": calibration.pass_rule or "horizontal_first",
        "max_pixels": _max_pixels(),
        "fast": fast,
        "index": None if index is None else index.native(),
    }


def _max_pixels() -> int:
    """Pixels above which Pillow raises: twice the limit above which it warns. 0: no limit."""
    return 0 if Image.MAX_IMAGE_PIXELS is None else int(2 * Image.MAX_IMAGE_PIXELS)


def _pair(size: Sequence[int]) -> tuple[int, int]:
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"size must be (height, width), each at least 1, got {size!r}")
    return int(size[0]), int(size[1])


def _boxes(crops: ArrayLike, count: int) -> NDArray[np.int64]:
    boxes = np.asarray(crops)
    if boxes.shape != (count, 4) or boxes.dtype.kind not in "iu":
        raise ValueError(
            f"crops must be one (top, left, height, width) of integers for each of {count} images, "
            f"got shape {boxes.shape} of {boxes.dtype}"
        )
    # The core takes a height of 0 for the whole image, and numbers of 32 bits, as no image is larger.
    wrong = (boxes[:, :2] < 0).any(1) | (boxes[:, 2:] < 1).any(1) | (boxes > _SIDE_MAX).any(1)
    if wrong.any():
        raise ValueError(f"crops must lie within the image and not be empty, got {boxes[wrong][0].tolist()}")
    return boxes.astype(np.int64)


def _shape_of(first: Source, boxes: NDArray[np.int64] | None, size: Sequence[int] | None) -> tuple[int, int]:
    """Height and width of each output image."""
    if size is not None:
        return _pair(size)
    if boxes is not None and (boxes[:, 2:] != boxes[0, 2:]).any():
        raise ValueError("crops must all have the same height and width when they are not resized; give a size")
    crop = None if boxes is None else (int(boxes[0, 2]), int(boxes[0, 3]))
    if crop is not None and crop[0] * crop[1] <= _SURELY_ALLOCATED:
        return crop
    calibrate()  # which formats are decoded
    status, width, height, *_ = _header(first)
    if 0 < _max_pixels() < width * height:
        status = "bomb"
    elif crop is not None and (crop[0] > height or crop[1] > width):
        status = "bad_geometry"
    elif width * height <= _SURELY_ALLOCATED:
        status = "ok"  # or the core says so
    if status != "ok":
        raise DecodeError.of((status, 0, width, height, 0, ""), first)
    return crop or (height, width)


def _geometries(
    count: int,
    boxes: NDArray[np.int64] | None,
    size: Sequence[int] | None,
    hflip: bool | Sequence[bool],
    vflip: bool | Sequence[bool],
) -> NDArray[np.int32]:
    """The core's geometries: crop, output size, window, flips. Zeros mean the whole or unchanged."""
    geometry = np.zeros((count, 12), np.int32)
    if boxes is not None:
        geometry[:, 0:4] = boxes
    if size is not None:
        geometry[:, 4:6] = _pair(size)
    for column, name, flags in ((10, "hflip", hflip), (11, "vflip", vflip)):
        if np.ndim(flags) not in (0, 1) or (np.ndim(flags) == 1 and len(np.asarray(flags)) != count):
            raise ValueError(f"{name} must be one bool, or one for each of {count} images, got shape {np.shape(flags)}")
        geometry[:, column] = np.asarray(flags, dtype=bool)
    return geometry
