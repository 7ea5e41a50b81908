"""Lazy images: in a worker process, Pillow decodes only the part of a JPEG file that is used, and natively.

:func:`install` changes methods of Pillow's images in this process. ``Image.open(...).convert("RGB")`` then notes the
file's bytes, and ``crop``, ``resize`` and flips note what to do. The first access to the pixels does all of it in one
region decode, with Pillow's bits. The images' classes, modes, sizes and infos are Pillow's, and so are errors: a file
whose decoding could fail is decoded by Pillow, at once.
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from fastload import _core
from fastload.pipeline.calibration import FILTERS, calibrate

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NAMES: Final = {int(resampling): name for name, resampling in FILTERS.items()}
PARTS_MAX: Final = 2
"""Parts of an image that are decoded one by one. For the next part, the whole image is decoded."""
CHECKED: Final = 2
"""The first parts in a process, which Pillow decodes as well. If its bits differ, images are lazy no more."""

_originals: dict[str, Any] = {}
_checks = 0


class _File:
    """The bytes of a JPEG file that several images may share."""

    def __init__(self, data: bytes, size: tuple[int, int]) -> None:
        self.data = data
        self.size = size
        self._parts = 0
        self._whole: NDArray[np.uint8] | None = None

    def part(self, pending: Pending) -> Any:
        """Decode a part; return a core image of Pillow's."""
        global _checks
        pixels = self._native(pending)
        if pixels is None:
            return pending.by_pillow(self._by_pillow())
        width, height = pending.size
        core = Image.frombuffer("RGB", (width, height), pixels, "raw", "RGB", 0, 1).im
        if _checks > 0:
            _checks -= 1
            expected = pending.by_pillow(self._by_pillow())
            if _bytes(core) != _bytes(expected):
                uninstall()
                return expected
        return core

    def _native(self, pending: Pending) -> NDArray[np.uint8] | None:
        """Decode a part natively; ``None`` if the core does not decode this file."""
        self._parts += 1
        if self._whole is None and self._parts <= PARTS_MAX:
            return self._decoded(pending)
        if self._whole is None:
            self._whole = self._decoded(Pending(self, (0, 0, *self.size)))
        return None if self._whole is None else pending.of(self._whole)

    def _decoded(self, pending: Pending) -> NDArray[np.uint8] | None:
        width, height = pending.size
        pixels = np.empty((1, height, width, 3), np.uint8)
        outcome = _core.decode(self.data, pixels, pending.geometry(), filter=pending.filter, pass_rule=_pass_rule())
        return pixels[0] if outcome[0] == "ok" else None

    def _by_pillow(self) -> Any:
        """Decode the whole image by Pillow."""
        with JpegImageFile(io.BytesIO(self.data)) as image:
            _originals["load_file"](image)
            return image.im


@dataclass(frozen=True, slots=True)
class Pending:
    """Stands for the pixels of an image until they are used.

    Attributes:
        file: Where they come from.
        box: The part of the file's image, ``(left, top, right, bottom)``.
        target: The size to resize it to, ``(width, height)``; ``None`` if it is not resized.
        filter: The core's name of the filter.
        window: The part of the resized image; the whole of it if ``None``.
        mirrored: Whether to flip the result horizontally.
        flipped: Whether to flip it vertically.
    """

    file: _File
    box: tuple[int, int, int, int]
    target: tuple[int, int] | None = None
    filter: str = "bilinear"
    window: tuple[int, int, int, int] | None = None
    mirrored: bool = False
    flipped: bool = False

    mode = "RGB"
    readonly = 0

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, pixels."""
        left, top, right, bottom = self._area()
        return right - left, bottom - top

    def _area(self) -> tuple[int, int, int, int]:
        if self.window is not None:
            return self.window
        return self.box if self.target is None else (0, 0, *self.target)

    def cropped(self, box: tuple[int, int, int, int]) -> Pending:
        """Crop to a box within the image."""
        width, height = self.size
        left, top, right, bottom = box
        if self.mirrored:
            left, right = width - right, width - left
        if self.flipped:
            top, bottom = height - bottom, height - top
        x, y, *_ = self._area()
        area = x + left, y + top, x + right, y + bottom
        return replace(self, box=area) if self.target is None else replace(self, window=area)

    def resized(self, size: tuple[int, int], name: str) -> Pending | None:
        """Resize; ``None`` if the core cannot do it in the same pass."""
        if self.target is not None or self.mirrored or self.flipped:
            return None
        return replace(self, target=size, filter=name)

    def turned(self, method: int) -> Pending | None:
        """Transpose; ``None`` if it is no flip."""
        if method == Image.Transpose.FLIP_LEFT_RIGHT:
            return replace(self, mirrored=not self.mirrored)
        if method == Image.Transpose.FLIP_TOP_BOTTOM:
            return replace(self, flipped=not self.flipped)
        return None

    def pixels(self) -> Any:
        """Decode; return a core image of Pillow's."""
        return self.file.part(self)

    def geometry(self) -> tuple[int, ...]:
        """What to do, for ``_core.decode``."""
        left, top, right, bottom = self.box
        width, height = self.target or (right - left, bottom - top)
        x, y, *_ = self.window or (0, 0)
        columns, rows = self.size
        crop = top, left, bottom - top, right - left
        return (*crop, height, width, y, x, rows, columns, self.mirrored, self.flipped)

    def of(self, whole: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Do the same to the whole image's pixels, ``(H, W, 3)``."""
        left, top, right, bottom = self.box
        pixels = whole[top:bottom, left:right]
        if self.target is not None:
            width, height = self.target
            out = np.empty((height, width, 3), np.uint8)
            _core.resize(pixels, out, self.filter, _pass_rule())
            left, top, right, bottom = self._area()
            pixels = out[top:bottom, left:right]
        return np.ascontiguousarray(pixels[:: -1 if self.flipped else 1, :: -1 if self.mirrored else 1])

    def by_pillow(self, whole: Any) -> Any:
        """Do the same to the whole core image."""
        core = whole.crop(self.box)
        if self.target is not None:
            core = core.resize(self.target, FILTERS[self.filter], (0, 0, *core.size))
        if self.window is not None:
            core = core.crop(self.window)
        if self.mirrored:
            core = core.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.flipped:
            core = core.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        return core


def _note(image: JpegImageFile) -> None:
    """Note an opened file's bytes instead of decoding them, if decoding cannot fail."""
    file: Any = image.fp
    if type(image) is not JpegImageFile or image._im is not None or image.mode != "RGB" or len(image.tile) != 1:
        return
    plain = image.decoderconfig == () and image.tile[0][1] == (0, 0, *image.size) and image.tile[0][2] == 0
    if not plain or image.tile[0][3] != ("RGB", "") or ImageFile.LOAD_TRUNCATED_IMAGES:
        return
    if type(file) not in (io.BufferedReader, io.BytesIO) or "load_read" in vars(image):
        return
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:  # Pillow warns again for every crop
        return
    at = file.tell()
    file.seek(0)
    data = file.read()
    end = _core.scan_end(data)
    block = image.decodermaxblock
    file.seek(at if end == 0 else min(len(data), -(-end // block) * block))  # where Pillow would stop
    if end == 0:
        return
    image._im = cast("Any", Pending(_File(data, image.size), (0, 0, *image.size)))
    image.tile = []
    image.readonly = 0
    image.load_end()
    if image._exclusive_fp and image._close_exclusive_fp_after_loading:
        file.close()
    image.fp = None


def _load_file(self: JpegImageFile) -> Any:
    if self.tile:
        _note(self)
    return None if _is_needless(self) else _originals["load_file"](self)


def _load(self: Image.Image) -> Any:
    return None if _is_needless(self) else _originals["load"](self)


def _is_needless(image: Any) -> bool:
    """Whether pending pixels are loaded by a method of Pillow's images, which does not use the result."""
    return type(image._im) is Pending and sys._getframe(2).f_globals is vars(Image)


def _im(self: Image.Image) -> Any:
    im: Any = self._im
    if type(im) is Pending:
        im = im.pixels()
        self._im = im
        return im
    return _originals["im"].fget(self)


def _set_im(self: Image.Image, im: Any) -> None:
    self._im = im


def _pending(image: Image.Image) -> Pending | None:
    """An image's pending pixels, after noting those of a file that is not yet decoded."""
    kind = type(image)
    if isinstance(image, JpegImageFile) and image.tile:
        _note(image)
    im: Any = image._im
    return im if type(im) is Pending and kind in (Image.Image, JpegImageFile) else None


def _copy(self: Image.Image) -> Image.Image:
    pending = _pending(self)
    return _originals["copy"](self) if pending is None else self._new(cast("Any", pending))


def _convert(self: Image.Image, mode: str | None = None, *arguments: Any, **rest: Any) -> Image.Image:
    pending = _pending(self) if mode == "RGB" and not arguments and not rest else None
    return _originals["convert"](self, mode, *arguments, **rest) if pending is None else self._new(cast("Any", pending))


def _crop(self: Image.Image, box: Any = None) -> Image.Image:
    pending = None if box is None else _pending(self)
    if pending is not None and box != (0, 0, *self.size):
        left, top, right, bottom = map(int, map(round, box))
        if 0 <= left < right <= self.width and 0 <= top < bottom <= self.height:
            return self._new(cast("Any", pending.cropped((left, top, right, bottom))))
    return cast("Image.Image", _originals["crop"](self, box))


def _resize(
    self: Image.Image, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None
) -> Image.Image:
    pending = _pending(self) if box is None and reducing_gap is None else None
    name = _NAMES.get(3 if resample is None else resample)
    if pending is not None and name is not None and name in calibrate().filters:
        width, height = tuple(size)
        if type(width) is type(height) is int and width > 0 and height > 0 and (width, height) != self.size:
            resized = pending.resized((width, height), name)
            if resized is not None:
                return self._new(cast("Any", resized))
    return cast("Image.Image", _originals["resize"](self, size, resample, box, reducing_gap))


def _transpose(self: Image.Image, method: Any) -> Image.Image:
    pending = _pending(self)
    turned = None if pending is None else pending.turned(method)
    return _originals["transpose"](self, method) if turned is None else self._new(cast("Any", turned))


_METHODS: Final[dict[str, tuple[type, str, Any]]] = {
    "load_file": (ImageFile.ImageFile, "load", _load_file),
    "load": (Image.Image, "load", _load),
    "im": (Image.Image, "im", property(_im, _set_im)),
    "copy": (Image.Image, "copy", _copy),
    "__copy__": (Image.Image, "__copy__", _copy),
    "convert": (Image.Image, "convert", _convert),
    "crop": (Image.Image, "crop", _crop),
    "resize": (Image.Image, "resize", _resize),
    "transpose": (Image.Image, "transpose", _transpose),
}


def _bytes(core: Any) -> bytes:
    return Image.Image()._new(core).tobytes()


def _pass_rule() -> str:
    return calibrate().pass_rule or "horizontal_first"


def install() -> bool:
    """Make images of this process lazy. Returns whether they are; not with an unknown or patched Pillow."""
    global _checks
    if not _originals:
        found = {name: vars(cls).get(attribute) for name, (cls, attribute, _) in _METHODS.items()}
        plain = isinstance(found["im"], property) and not any(map(_is_patched, found.values()))
        if not plain or not calibrate().subsamplings:
            return False
        _originals.update(found)
    _checks = CHECKED
    for cls, attribute, method in _METHODS.values():
        setattr(cls, attribute, method)
    return True


def uninstall() -> None:
    """Make images as Pillow does. Those that are lazy stay so until their pixels are used."""
    for name, (cls, attribute, _) in _METHODS.items():
        if name in _originals and name != "im":
            setattr(cls, attribute, _originals[name])


def _is_patched(method: Any) -> bool:
    function = getattr(method, "fget", method)
    return getattr(function, "__module__", None) not in ("PIL.Image", "PIL.ImageFile")
