"""Make Pillow decode only what is used of an image, natively, in worker processes.

:func:`install` changes methods of Pillow's images in this process, from its first JPEG, PNG or WebP file on.
``Image.open(...).convert("RGB")`` then notes a JPEG file's bytes, or decodes another file; ``crop``, ``resize``, flips,
affine transforms and torchvision's changes of colour and blurs note what to do. The first access to the pixels does all
of it natively in one go, with the same bits. Pixels that are made, also by Pillow, are resized at once. The images'
classes, modes, sizes and infos are Pillow's, and so are errors: a file whose decoding fails, or could, is decoded by
Pillow, at once.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import math
import sys
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from PIL import Image, ImageFile, ImageFilter
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from fastload.lazy.files import KINDS, MASKS, converted, drop_webp, is_bomb, note, open_webp
from fastload.lazy.masks import PendingMask, on_one, with_border
from fastload.lazy.pixels import COMPARED, Border, ByPillow, Levels, Pending, Unread
from fastload.pipeline.installed.decodes import calibrate
from fastload.pipeline.installed.patches import imported, is_written_in
from fastload.pipeline.nodes import FILTERS, SAMPLINGS
from fastload.stats.stack_sampler import register_codec

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType

    from fastload.pipeline.nodes import Node

register_codec(__file__)

_NAMES: Final = {int(resampling): name for name, resampling in FILTERS.items()}

_FLIPS: Final = {
    int(Image.Transpose.FLIP_LEFT_RIGHT): "flip_horizontal",
    int(Image.Transpose.FLIP_TOP_BOTTOM): "flip_vertical",
}
_FACTORS: Final = (0.0, 0.3, 1.0, 1.7, 3.0)
RESIZED_MIN_BYTES: Final = 1 << 12
"""Pixels that Pillow has made are resized by the core from this size on."""
_LARGE_BYTES: Final = 1 << 16
"""Of a program's first image of this size on, the methods of lazy images are worth their time."""
TARGET_MAX: Final = 1 << 26
"""The most pixels of a resize that is pending. Pillow raises at once where there is no memory for them."""
NUMBER_MAX: Final = 1e9
"""The largest side of a box or entry of a matrix that is pending."""
RADIUS_MAX: Final = 1000.0
"""The largest radius of a blur that is pending, pixels."""


_PENDING: Final = (Pending, PendingMask)
_NO_STEPS: Final = ("CACHE", "EXTENDED_ARG", "PRECALL")
"""Instructions that only belong to others."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What has been learnt of the installed Pillow.

    Forked workers inherit it, and so take no lock that a fork may leave held.

    Attributes:
        originals: Methods that are replaced, by their names in ``_METHODS``.
        filters: The core's filters with Pillow's bits.
        pass_rule: The core's rule for the order of a resize's passes.
        keeps_info: Whether the result has the image's ``info``, by each kind of step with Pillow's bits.
        functions: ``lazy/functions.py``; ``None`` without torchvision. There are no steps then.
    """

    originals: dict[str, Any]
    filters: frozenset[str]
    pass_rule: str
    keeps_info: dict[str, bool]
    functions: ModuleType | None = None


_known: _Known
_also: Callable[[], None]
_undo: Callable[[], None] | None = None
_pillow: ByPillow


def _load_file(self: ImageFile.ImageFile) -> Any:
    if self.tile and type(self) is not WebPImageFile:  # Pillow's own has decoded that
        note(self, _pillow)
    return None if _is_needless(self) else _known.originals["load_file"](self)


def _load_webp(self: WebPImageFile) -> Any:
    note(self, _pillow)
    if _is_needless(self):
        return None
    loaded = _known.originals["load_webp"](self)
    drop_webp(self)
    return loaded


def _load_as_ever(image: Any) -> Any:
    return _known.originals["load_webp" if type(image) is WebPImageFile else "load_file"](image)


def _load(self: Image.Image) -> Any:
    return None if _is_needless(self) else _known.originals["load"](self)


def _is_needless(image: Any) -> bool:
    """Whether a method of Pillow's or a statement loads pending pixels, without using the result."""
    if type(image._im) not in _PENDING:
        return False
    frame = sys._getframe(2)
    if frame.f_globals is not vars(Image) and not _drops_result(frame.f_code, frame.f_lasti):
        return False
    _settle_palette(image)
    return True


def _settle_palette(image: Any) -> None:
    """Do what ``load`` does to the palette of an image with pending pixels."""
    if image.palette and image.palette.dirty:
        on_one(image, image._im, _known.originals["load"])


@functools.lru_cache(64)
def _drops_result(code: CodeType, at: int) -> bool:
    """Whether the instruction at an offset is the call of a statement ``image.load()``."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _NO_STEPS]
    number = sum(step.offset <= at for step in steps)  # of the next one
    if not 2 <= number < len(steps):
        return False
    method, call, after = steps[number - 2 : number + 1]
    called = method.argval == "load" and method.opname in ("LOAD_METHOD", "LOAD_ATTR")
    return called and call.opname in ("CALL", "CALL_METHOD") and not call.arg and after.opname == "POP_TOP"


def _core_image(image: Any) -> Any:
    im = image._im
    if type(im) in (*_PENDING, Unread):
        image._im = im = im.core()
        return im
    return _known.originals["im"].fget(image)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= NUMBER_MAX


def _pending(image: Image.Image) -> Pending | None:
    """An image's pending pixels, after noting those of a file that is not yet decoded.

    Call it once the arguments are known to be right: wrong ones leave the file as it is.
    """
    if type(image) in KINDS:
        note(image, _pillow)
    im: Any = image._im
    if type(im) not in _PENDING:
        return None
    _settle_palette(image)
    return cast("Pending", image._im)


def _pending_colors(image: Image.Image) -> Pending | None:
    """The same, but of no mask."""
    pending = _pending(image)
    return pending if type(pending) is Pending else None


def pending_of(image: Any, side_min: int) -> Pending | None:
    """An image's pending pixels; ``None`` without, or with a side below ``side_min``."""
    if type(image) not in (Image.Image, *KINDS) or min(image.size) < side_min:
        return None
    return _pending_colors(image)


def mask_of(image: Any, side_min: int) -> PendingMask | None:
    """As :func:`pending_of`, of an image of one channel."""
    if type(image) not in (Image.Image, *KINDS) or image.mode not in MASKS or min(image.size) < side_min:
        return None
    pending = _pending(image)
    return pending if isinstance(pending, PendingMask) else None


def levels_of(image: Any, bytes_min: int, side_min: int) -> Pending | None:
    """Copy an image's pixels; ``None`` if it is small, not RGB, or pending.

    Args:
        image: The image.
        bytes_min: The fewest of its pixels.
        side_min: The shortest side, pixels.
    """
    if type(image) is not Image.Image:
        return None
    im: Any = image._im
    if im is None or type(im) is Pending or image.mode != "RGB":
        return None
    if 3 * math.prod(image.size) < bytes_min or min(image.size) < side_min:
        return None
    try:
        pixels = np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, 3)
        return Pending(Levels(pixels, _pillow), (0, 0, *image.size))
    except (MemoryError, ValueError):
        return None


def _copy(self: Image.Image) -> Image.Image:
    pending = _pending(self)
    return _known.originals["copy"](self) if pending is None else self._new(cast("Any", pending))


def _convert(self: Image.Image, mode: str | None = None, *arguments: Any, **rest: Any) -> Image.Image:
    pending = None
    if type(mode) is str and mode == "RGB" and not arguments and not rest:
        pending = converted(self, _pillow) or _pending_colors(self)
    return (
        _known.originals["convert"](self, mode, *arguments, **rest)
        if pending is None
        else self._new(cast("Any", pending))
    )


def _crop(self: Image.Image, box: Any = None) -> Image.Image:
    cropped = None
    if type(box) in (tuple, list) and len(box) == 4 and all(map(_is_number, box)):
        left, top, right, bottom = map(round, box)
        inside = 0 <= left < right <= self.width and 0 <= top < bottom <= self.height
        pending = _pending(self) if inside and not is_bomb(right - left, bottom - top) else None
        cropped = pending and pending.cropped((left, top, right, bottom))
    if cropped is None:
        return cast("Image.Image", _known.originals["crop"](self, box))
    return self._new(cast("Any", cropped))


def _resize(
    self: Image.Image, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None
) -> Image.Image:
    pending = resized = None
    plain = box is None and reducing_gap is None and type(size) in (tuple, list) and len(size) == 2
    name = _NAMES.get(3 if resample is None else resample) if resample is None or isinstance(resample, int) else None
    if self.mode == "P" and name is not None:
        name = "nearest"
    if plain and name in _known.filters and all(type(side) is int and side > 0 for side in size):
        width, height = size
        if (width, height) != self.size and width * height <= TARGET_MAX:
            pending = _pending(self) or levels_of(self, RESIZED_MIN_BYTES, 1)
        resized = pending and pending.resized((width, height), name)
    if resized is None:
        return cast("Image.Image", _known.originals["resize"](self, size, resample, box, reducing_gap))
    return self._new(cast("Any", resized))


def _transpose(self: Image.Image, method: Any) -> Image.Image:
    pending = _pending(self) if isinstance(method, int) else None
    turned = None if pending is None else pending.turned(method)
    kind = _FLIPS.get(method) if pending is not None else None
    if pending is not None and turned is None and kind in _known.keeps_info:
        turned = pending.changed(kind, {})
    return _known.originals["transpose"](self, method) if turned is None else self._new(cast("Any", turned))


def _transform(
    self: Image.Image,
    size: Any,
    method: Any,
    data: Any = None,
    resample: Any = 0,
    fill: Any = 1,
    fillcolor: Any = None,
) -> Image.Image:
    changed = None
    whole = type(size) is tuple and size == self.size and all(type(side) is int for side in size)
    if whole and isinstance(method, int) and method == Image.Transform.AFFINE and isinstance(resample, int):
        sampling = SAMPLINGS.get(resample)
        color = (0, 0, 0) if fillcolor is None else fillcolor
        plain = type(data) in (tuple, list) and len(data) == 6 and all(map(_is_number, data))
        colored = type(color) is tuple and len(color) == 3 and all(type(c) is int and 0 <= c <= 255 for c in color)
        if plain and colored and sampling is not None:
            fields = {"matrix": tuple(map(float, data)), "sampling": sampling, "fill": color}
            changed = _changed(self, "affine", fields)
    if changed is None:
        return cast("Image.Image", _known.originals["transform"](self, size, method, data, resample, fill, fillcolor))
    return changed


def _filter(self: Image.Image, filter: Any) -> Image.Image:
    changed = None
    if type(filter) is ImageFilter.GaussianBlur:
        radius = filter.radius
        radii = tuple(radius) if isinstance(radius, list | tuple) else (radius, radius)
        if len(radii) == 2 and all(type(each) in (int, float) and 0 < each <= RADIUS_MAX for each in radii):
            changed = _changed(self, "gaussian_blur", {"radii": tuple(map(float, radii))})
    return cast("Image.Image", _known.originals["filter"](self, filter)) if changed is None else changed


def _changed(image: Any, kind: str, fields: dict[str, Any]) -> Image.Image | None:
    """Add a step to an image's pending pixels.

    Returns:
        The changed image; ``None`` if its pixels are not pending, or the step is not exact.
    """
    pending = _pending_for(kind, image)
    if pending is None:
        return None
    changed = _bordered(pending, **fields) if kind == "pad" else pending.changed(kind, fields)
    if changed is None or math.prod(changed.size) > TARGET_MAX:
        return None
    if isinstance(changed, PendingMask):
        return with_border(image, changed, fields["fill"])
    result: Image.Image = image._new(cast("Any", changed))
    if not _known.keeps_info[kind]:
        result.info = {}
    return result


def _pending_for(kind: str, image: Any) -> Pending | None:
    """An image's pending pixels, if a kind of step on them is exact."""
    if kind not in _known.keeps_info or not isinstance(image, Image.Image):
        return None
    if "transparency" in image.info:  # which Pillow converts, too
        return None
    return _pending(image) if kind == "pad" else _pending_colors(image)


def _bordered(pending: Pending, margins: tuple[int, int, int, int], fill: Any) -> Pending | None:
    """Put a border around pending pixels; ``None`` if that is Pillow's."""
    if type(pending) is Pending and type(fill) is int and fill == 0:
        fill = (0,) * pending.channels
    values = fill if type(fill) is tuple and pending.channels > 1 else (fill,)
    plain = len(values) == pending.channels and all(type(each) is int and 0 <= each <= 255 for each in values)
    return pending.bordered(Border(margins, fill)) if plain else None


def _as_it_is(image: Any, kind: str) -> Image.Image | None:
    """Copy an image with pending pixels, if a kind of step on them is exact."""
    pending = _pending_for(kind, image)
    return None if pending is None else cast("Image.Image", image._new(pending))


def _is_unchanged(image: Any, copy: Image.Image) -> bool:
    """Whether an image's pixels are still pending, and those of its copy."""
    return getattr(image, "_im", None) is copy._im


def _tobytes(self: Image.Image, encoder_name: str = "raw", *arguments: Any) -> bytes:
    pending = _pending(self) if type(encoder_name) is str and encoder_name == "raw" and not arguments else None
    if pending is None:
        return cast("bytes", _known.originals["tobytes"](self, encoder_name, *arguments))
    return pending.tobytes()


def _getpalette(self: Image.Image, rawmode: str | None = "RGB") -> Any:
    _pending(self)
    return _with_palette("getpalette", self, rawmode)


def _putpalette(self: Image.Image, data: Any, rawmode: str = "RGB") -> None:
    _with_palette("putpalette", self, data, rawmode)


def _with_palette(name: str, image: Image.Image, *arguments: Any) -> Any:
    method, im = _known.originals[name], cast("Any", image._im)
    return on_one(image, im, method, *arguments) if type(im) is PendingMask else method(image, *arguments)


def _make_lazy() -> bool:
    """Make images lazy, unless a method has been patched meanwhile; return whether they are.

    Programs without large images keep Pillow's methods, the faster ones.
    """
    former = {**_known.originals, **_FIRST}
    found = {name: vars(cls).get(attribute) for name, (cls, attribute, _) in _METHODS.items()}
    if not all(found[name] in (former[name], method) for name, (_, _, method) in _METHODS.items()):
        return False
    for name, (cls, attribute, method) in _METHODS.items():
        setattr(cls, attribute, _known.originals[name] if method is None else method)
    if _known.functions is not None:
        _known.functions.install(_changed, _as_it_is, _is_unchanged)
    _also()
    return True


def _opening(name: str) -> Any:
    def _open_first(self: Any) -> None:
        """Open the first file, and make images lazy."""
        _make_lazy()
        (_METHODS[name][2] or _known.originals[name])(self)

    return _open_first


def _resize_first(
    self: Image.Image, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None
) -> Image.Image:
    """Resize an image of another library's pixels; the first large one makes images lazy."""
    resize: Any = _known.originals["resize"]
    if self.mode == "RGB" and 3 * math.prod(self.size) >= _LARGE_BYTES and _make_lazy():
        resize = _resize
    return cast("Image.Image", resize(self, size, resample, box, reducing_gap))


_FIRST: Final = {name: _opening(name) for name in ("open_jpeg", "open_png", "open_webp")} | {"resize": _resize_first}


def _open_webp(self: WebPImageFile) -> None:
    open_webp(self, _known.originals["open_webp"])


_METHODS: Final[dict[str, tuple[type, str, Any]]] = {
    "open_jpeg": (JpegImageFile, "_open", None),  # only the first
    "open_png": (PngImageFile, "_open", None),
    "open_webp": (WebPImageFile, "_open", _open_webp),
    "load_webp": (WebPImageFile, "load", _load_webp),
    "load_file": (ImageFile.ImageFile, "load", _load_file),
    "load": (Image.Image, "load", _load),
    "im": (Image.Image, "im", property(_core_image, lambda self, im: setattr(self, "_im", im))),
    "tobytes": (Image.Image, "tobytes", _tobytes),
    "__copy__": (Image.Image, "__copy__", _copy),
    "copy": (Image.Image, "copy", _copy),
    "convert": (Image.Image, "convert", _convert),
    "crop": (Image.Image, "crop", _crop),
    "resize": (Image.Image, "resize", _resize),
    "transpose": (Image.Image, "transpose", _transpose),
    "transform": (Image.Image, "transform", _transform),
    "filter": (Image.Image, "filter", _filter),
    "getpalette": (Image.Image, "getpalette", _getpalette),
    "putpalette": (Image.Image, "putpalette", _putpalette),
}
for _cls, _attribute, _method in _METHODS.values():
    if callable(_method):
        _method.__qualname__ = f"{_cls.__name__}.{_attribute}"  # which errors of wrong arguments name
_resize_first.__qualname__ = _resize.__qualname__

_MODULES: Final = frozenset(cls.__module__ for cls, _, _ in _METHODS.values())

_EXAMPLES: Final[tuple[Node, ...]] = (
    *((kind, {"value": value}) for kind in ("brightness", "contrast", "saturation", "sharpness") for value in _FACTORS),
    *(("hue", {"value": value}) for value in (0.0, 5.0, 94.0, 129.0, 223.0)),
    *(("posterize", {"value": float(value)}) for value in range(1, 9)),
    *(("solarize", {"value": float(value)}) for value in (0, 1, 100, 255, 256)),
    *(("gaussian_blur", {"radii": radii}) for radii in ((0.1, 0.1), (0.7, 2.0), (1.3, 1.3), (11.0, 3.5))),
    *(
        ("pad", {"margins": margins, "mode": "constant", "fill": (3, 200, 90)})
        for margins in ((0, 0, 0, 0), (1, 2, 3, 4))
    ),
    *((kind, {}) for kind in ("grayscale", "invert", "autocontrast", "equalize", "flip_horizontal", "flip_vertical")),
    *(
        ("affine", {"matrix": matrix, "sampling": sampling, "fill": (3, 200, 90)})
        for sampling in ("nearest", "bilinear", "bicubic")
        for matrix in (
            (1.0, 0.3, 0.0, 0.0, 1.0, 0.0),
            (1.0, 0.0, -7.0, 0.0, 1.0, 4.0),
            (0.9, -0.4, 11.5, 0.4, 0.9, -8.25),
        )
    ),
)


def prepare() -> bool:
    """Learn what :func:`install` needs, once per process; nothing is lazy yet.

    Returns:
        Whether images can be lazy; not with an unknown or patched Pillow.
    """
    global _known
    if "_known" not in globals():
        found = {name: vars(cls).get(attribute) for name, (cls, attribute, _) in _METHODS.items()}
        plain = isinstance(found["im"], property)
        calibration = calibrate()
        if not plain or any(map(_is_patched, found.values())) or not calibration.subsamplings:
            return False
        _known = _Known(found, calibration.filters, calibration.pass_rule or "horizontal_first", {})
    if _known.functions is None and imported("torchvision") is not None:
        from fastload.lazy import functions

        _known = replace(_known, keeps_info=_exact_steps(), functions=functions)
    return True


def pass_rule() -> str:
    """The core's rule for the order of a resize's passes, once :func:`prepare` was true."""
    return _known.pass_rule


def install(also: Callable[[], None] = lambda: None, undo: Callable[[], None] = lambda: None) -> bool:
    """Make images of this process lazy, from its first file or large image on.

    The file is JPEG, PNG or WebP; the image, of another library's pixels, is RGB and resized.

    Args:
        also: Called when they become so.
        undo: Called when they are so no more.

    Returns:
        What :func:`prepare` does.
    """
    global _pillow, _also, _undo
    if not prepare():
        return False
    _also, _undo = also, undo
    _pillow = ByPillow(_known.pass_rule, COMPARED, _give_up, _load_as_ever)
    for name, method in _FIRST.items():
        cls, attribute, _ = _METHODS[name]
        setattr(cls, attribute, method)
    return True


def uninstall() -> None:
    """Make images as Pillow does.

    Those that are lazy stay so until their pixels are used.
    """
    for name, (cls, attribute, _) in _METHODS.items():
        if name != "im":
            setattr(cls, attribute, _known.originals[name])
    if _known.functions is not None:
        _known.functions.uninstall()
    if _undo is not None:
        _undo()


def _give_up() -> None:
    """Make images as Pillow does from now on, and warn.

    Goes on even if warnings are errors.
    """
    uninstall()
    with contextlib.suppress(RuntimeWarning):
        warnings.warn("images are lazy no more: Pillow's bits differ from the native core's", RuntimeWarning, 2)


def _exact_steps() -> dict[str, bool]:
    """Find the steps with Pillow's bits, and whether they keep an image's ``info``."""
    from fastload.pipeline.installed.steps import REFERENCES, differing_step  # imports torchvision

    differing = {kind for kind, fields in _EXAMPLES if differing_step([(kind, fields)]) is not None}
    probe = Image.new("RGB", (3, 2))
    probe.info["kept"] = True
    exact = [(kind, fields) for kind, fields in _EXAMPLES if kind not in differing]
    kept = {kind: "kept" in REFERENCES[kind](probe, **fields).info for kind, fields in exact}
    return {**kept, "convolve": False}  # which lazy/blur.py compares for each size


def _is_patched(method: Any) -> bool:
    function = getattr(method, "fget", method)
    return not any(is_written_in(function, module) for module in _MODULES)
