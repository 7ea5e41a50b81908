"""Make ``cv2.imread`` and ``cv2.imdecode`` decode natively, with the same bits.

:func:`install` replaces both functions in this process, a worker. OpenCV itself reads what the core does not: other
formats and flags, images that are turned, and files of which it could complain. Arrays are as OpenCV makes them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
import sys
import warnings
from dataclasses import dataclass, field
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fastload import _core
from fastload.pipeline.installed.patches import imported
from fastload.stats.stack_sampler import register_codec

if TYPE_CHECKING:
    from collections.abc import Callable

register_codec(__file__)

COMPARED: Final = 2
"""The first images in a process, which OpenCV decodes as well. If its bits differ, it decodes all others."""

_UNCHANGED: Final = -1
_GRAYSCALE: Final = 0
_COLOR: Final = 1
_COLOR_RGB: Final = 256
_IGNORE_ORIENTATION: Final = 128
_HOW: Final = {
    _UNCHANGED: ("as stored", False),
    _GRAYSCALE: ("gray", True),
    _COLOR: ("bgr", True),
    _COLOR_RGB: ("rgb", True),
    _GRAYSCALE | _IGNORE_ORIENTATION: ("gray", False),
    _COLOR | _IGNORE_ORIENTATION: ("bgr", False),
    _COLOR_RGB | _IGNORE_ORIENTATION: ("rgb", False),
}
"""What the core makes by the flags that it takes: pixels, and whether turned images are to be upright."""

_PROBES: Final = ("gray.jpg", "444.jpg", "422.jpg", "420.jpg", "gray.png", "rgb.png", "rgba.png")
_DEFAULTS: Final = {"imread": _COLOR, "imdecode": None}
"""The functions, and the flags of a call that gives none."""
_LIMITS: Final = {
    "OPENCV_IO_MAX_IMAGE_WIDTH": 1 << 20,
    "OPENCV_IO_MAX_IMAGE_HEIGHT": 1 << 20,
    "OPENCV_IO_MAX_IMAGE_PIXELS": 1 << 30,
}
"""Environment variables by which OpenCV refuses images that are larger, and what each is by default.

The core takes none that are larger than that.
"""

_empty: Final = functools.partial(np.empty, dtype=np.uint8)


@dataclass
class _OpenCV:
    """What has been learnt of the installed OpenCV.

    Attributes:
        imdecode: ``cv2.imdecode``.
        exact: Whether the core makes the same of the probes, by the flags that were asked for.
        comparisons: How many of the next images to compare.
    """

    imdecode: Any
    exact: dict[int, bool] = field(default_factory=dict)
    comparisons: int = COMPARED

    def read(self, source: Any, flags: Any, by_opencv: Callable[[], Any]) -> Any:
        """Decode a path's or an array's file."""
        how = _HOW.get(flags) if type(flags) is int else None
        made = None
        if how is not None and self._is_exact(flags):
            with contextlib.suppress(MemoryError):  # OpenCV raises its own error
                made = _core.decode_for_opencv(source, *how, _empty)
        if made is None:
            return by_opencv()
        if self.comparisons <= 0:
            return made
        self.comparisons -= 1
        expected = by_opencv()
        if not np.array_equal(made, expected):
            self._give_up()
        return expected

    def _is_exact(self, flags: int) -> bool:
        if flags not in self.exact:
            from fastload.pipeline.installed.decodes import probe_file

            self.exact[flags] = all(self._decodes_alike(probe_file(name), flags) for name in _PROBES)
        return self.exact[flags]

    def _decodes_alike(self, file: bytes, flags: int) -> bool:
        pixels, upright = _HOW[flags]
        data: Any = np.frombuffer(file if upright else _turned(file), np.uint8)
        made = _core.decode_for_opencv(data, pixels, upright, _empty)
        return made is None or np.array_equal(made, self.imdecode(data, flags))

    def _give_up(self) -> None:
        """Leave everything to OpenCV from now on, and warn.

        Goes on even if warnings are errors.
        """
        self.exact = dict.fromkeys(_HOW, False)
        with contextlib.suppress(RuntimeWarning):
            warnings.warn("OpenCV decodes its files: its bits differ from the native core's", RuntimeWarning, 2)


def _turned(file: bytes) -> bytes:
    """Say in a JPEG file that its image is turned; leave others as they are."""
    if not file.startswith(b"\xff\xd8"):
        return file
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">HHHIHHI", 1, 0x0112, 3, 1, 6, 0, 0)
    return file[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(exif)) + exif + file[2:]


def _is_path(source: Any) -> bool:
    """Whether OpenCV opens the file that Python would."""
    if type(source) is not str or "\0" in source:
        return False
    try:
        source.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_file(source: Any) -> bool:
    return type(source) is np.ndarray and source.dtype == np.uint8 and source.ndim == 1 and source.flags.c_contiguous


def _in_place_of(original: Any, name: str, opencv: _OpenCV) -> Any:
    is_source = _is_path if name == "imread" else _is_file
    default = _DEFAULTS[name]

    @functools.wraps(original)
    def read(*arguments: Any, **rest: Any) -> Any:
        flags = None
        if len(arguments) == 2 and not rest:
            flags = arguments[1]
        elif len(arguments) == 1 and not rest.keys() - {"flags"}:
            flags = rest.get("flags", default)
        by_opencv = functools.partial(original, *arguments, **rest)
        suits = flags is not None and is_source(arguments[0])
        return opencv.read(arguments[0], flags, by_opencv) if suits else by_opencv()

    return read


def is_used() -> bool:
    """Whether the program has imported cv2, and :func:`install` would replace functions of it."""
    return bool(_replaceable())


def install() -> bool:
    """Decode natively in this process; not by functions that are patched.

    Returns:
        Whether a function was replaced.
    """
    originals = _replaceable()
    if originals:
        opencv = _OpenCV(originals["imdecode"])
        for name, original in originals.items():
            setattr(imported("cv2"), name, _in_place_of(original, name, opencv))
    return bool(originals)


def _replaceable() -> dict[str, Any]:
    """Find functions that the core can stand in for: OpenCV's own, with its own limits."""
    module = imported("cv2")
    if module is None or not _core.uses_own_decoder() or sys.getfilesystemencoding() != "utf-8" or _is_limited():
        return {}
    found = {name: vars(module).get(name) for name in _DEFAULTS}
    plain = {name: each for name, each in found.items() if type(each) is BuiltinFunctionType and each.__name__ == name}
    return plain if "imdecode" in plain else {}  # which reads the probes


def _is_limited() -> bool:
    """Whether the user makes OpenCV refuse images that it takes by default."""
    limits = ((os.environ[name], default) for name, default in _LIMITS.items() if name in os.environ)
    return any(not (value.isascii() and value.isdecimal()) or int(value) < default for value, default in limits)


def uninstall() -> None:
    """Put OpenCV's functions back."""
    module: Any = imported("cv2")
    for name in _DEFAULTS:
        function: Any = getattr(module, name, None)
        if getattr(function, "__globals__", None) is globals():
            setattr(module, name, function.__wrapped__)
