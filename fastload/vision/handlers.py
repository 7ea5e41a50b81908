"""Decode the images of webdataset's samples by the native core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import Image, JpegImagePlugin

from fastload.pipeline.installed.decodes import calibrate
from fastload.vision.codec import decode
from fastload.vision.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

_KINDS: Final = {
    **{"rgb8": ("numpy", False), "rgb": ("numpy", True), "torchrgb8": ("torch", False), "torchrgb": ("torch", True)},
    **{"torch": ("torch", True), "pil": ("pil", False), "pilrgb": ("pil", False)},
}
"""Type of the result by ``imagespec``, and whether its values are floats from 0 to 1."""
_EXTENSIONS: Final = frozenset(("jpg", "jpeg", "png", "webp"))


def image_handler(imagespec: str = "pil") -> Callable[[str, bytes], Any]:
    """Return a handler for webdataset's ``decode()``, in the place of ``"pil"`` and the like.

    Images have the same pixels. JPEG, PNG and WebP files are decoded by the core; what it does not take, and all that
    is damaged, goes through webdataset's own handler. Picklable.

    Args:
        imagespec: Any of webdataset's. Those of gray images and of images with alpha are left to its own handler.

    Raises:
        ValueError: ``imagespec`` is none of webdataset's.
        ImportError: webdataset is not installed.
    """
    return _Images(imagespec)


class _Images:
    def __init__(self, imagespec: str) -> None:
        from webdataset.autodecode import imagehandler

        self._own = imagehandler(imagespec)
        kind = _KINDS.get(imagespec)
        self._kind = kind if calibrate().subsamplings else None

    def __call__(self, key: str, data: bytes) -> Any:
        extension = key.rpartition(".")[2].lower()
        if self._kind is None or extension not in _EXTENSIONS:
            return self._own(key, data)
        kind, is_float = self._kind
        if kind == "pil" and vars(JpegImagePlugin.JpegImageFile)["_open"].__module__ != JpegImagePlugin.__name__:
            return self._own(key, data)  # images are lazy here: less of them is decoded
        try:
            pixels: Any = decode(data)
        except (DecodeError, MemoryError):
            return self._own(key, data)
        if kind == "pil":
            return Image.fromarray(pixels)
        if is_float:
            pixels = pixels.astype(np.float32) / 255.0
        if kind == "numpy":
            return pixels
        import torch

        return torch.from_numpy(pixels.transpose(2, 0, 1).copy())
