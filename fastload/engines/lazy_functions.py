"""Replace functions that change colours in worker processes, so that they add a step.

What is not pending, and arguments that are not plain numbers, go to the original function.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from PIL import Image, ImageEnhance, ImageOps
from torchvision.transforms import _functional_pil

from fastload.engines import lazy_blur
from fastload.pipeline.ops_common import solarize_threshold

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.pipeline.ops_common import Node

    Change: TypeAlias = Callable[[Any, str, dict[str, Any]], Image.Image | None]

_ENHANCERS: Final[dict[type, str]] = {
    ImageEnhance.Brightness: "brightness",
    ImageEnhance.Contrast: "contrast",
    ImageEnhance.Color: "saturation",
    ImageEnhance.Sharpness: "sharpness",
}


def _hue(hue_factor: Any) -> Node | None:
    if type(hue_factor) not in (int, float) or not -0.5 <= hue_factor <= 0.5:
        return None
    return "hue", {"value": float(np.int32(hue_factor * 255).astype(np.uint8))}


def _posterize(bits: Any) -> Node | None:
    return ("posterize", {"value": float(bits)}) if type(bits) is int and 1 <= bits <= 8 else None


def _solarize(threshold: Any = 128) -> Node | None:
    if type(threshold) not in (int, float) or not math.isfinite(threshold):
        return None
    return "solarize", {"value": solarize_threshold(threshold)}


def _grayscale(num_output_channels: Any) -> Node | None:
    return ("grayscale", {}) if num_output_channels == 3 else None


_FUNCTIONS: Final[tuple[tuple[Any, str, Callable[..., Node | None]], ...]] = (
    (ImageOps, "autocontrast", lambda: ("autocontrast", {})),
    (ImageOps, "equalize", lambda: ("equalize", {})),
    (ImageOps, "invert", lambda: ("invert", {})),
    (ImageOps, "posterize", _posterize),
    (ImageOps, "solarize", _solarize),
    (_functional_pil, "adjust_hue", _hue),
    (_functional_pil, "to_grayscale", _grayscale),
)
"""Functions whose first argument is the image; their other arguments are read into a step."""

_replaced: list[tuple[Any, str, Any]] = []  # holder, name, original; None if there was none


def install(change: Change) -> None:
    """Replace the functions that are not patched, once.

    Args:
        change: Adds a step to an image's pending pixels; returns ``None`` if it cannot.
    """
    if _replaced:
        return
    for module, name, read in _FUNCTIONS:
        original = getattr(module, name, None)
        if getattr(original, "__module__", None) == module.__name__:
            _replace(module, name, _function(original, read, change))
    for module, name, replacement in lazy_blur.functions():
        _replace(module, name, replacement)
    originals = [kind.__init__ for kind in _ENHANCERS]  # type: ignore[misc]
    if all(getattr(each, "__module__", None) == ImageEnhance.__name__ for each in originals):
        _replace_enhancers(dict(zip(_ENHANCERS, originals, strict=True)), change)


def uninstall() -> None:
    """Put the original functions back."""
    while _replaced:
        holder, name, original = _replaced.pop()
        if original is None:
            delattr(holder, name)
        else:
            _register(getattr(holder, name), original)
            setattr(holder, name, original)


def _replace(holder: Any, name: str, new: Any) -> None:
    original = vars(holder).get(name)
    _replaced.append((holder, name, original))
    _register(original, new)
    setattr(holder, name, new)


def _register(old: Any, new: Any) -> None:
    """Replace a function in v2's table of kernels as well."""
    v2: Any = sys.modules.get("torchvision.transforms.v2.functional._utils")
    for kernels in getattr(v2, "_KERNEL_REGISTRY", {}).values():
        if old is not None and kernels.get(Image.Image) is old:
            kernels[Image.Image] = new


def _function(original: Any, read: Callable[..., Node | None], change: Change) -> Any:
    @functools.wraps(original)
    def function(image: Any, *arguments: Any, **rest: Any) -> Any:
        node = changed = None
        with contextlib.suppress(TypeError):  # the original raises its own
            node = read(*arguments, **rest)
        if node is not None:
            changed = change(image, *node)
        return original(image, *arguments, **rest) if changed is None else changed

    return function


def _replace_enhancers(originals: dict[type, Any], change: Change) -> None:
    """Make an enhancer compute what it blends the image with only when it is needed."""
    enhance = ImageEnhance._Enhance.enhance

    def new_init(cls: type, original: Any) -> Any:
        @functools.wraps(original)
        def __init__(self: Any, image: Any) -> None:  # noqa: N807
            if type(self) is cls and change(image, _ENHANCERS[cls], {"value": 1.0}) is not None:
                vars(self)["image"] = image
            else:
                original(self, image)

        return __init__

    @functools.wraps(enhance)
    def new_enhance(self: Any, factor: Any) -> Any:
        changed = None
        if "degenerate" not in vars(self) and type(self) in _ENHANCERS and type(factor) in (int, float):
            changed = change(self.image, _ENHANCERS[type(self)], {"value": float(factor)})
        return enhance(self, factor) if changed is None else changed

    def late(self: Any, name: str) -> Any:
        if name in ("degenerate", "intermediate_mode") and type(self) in originals and "image" in vars(self):
            originals[type(self)](self, vars(self)["image"])
            if name in vars(self):
                return vars(self)[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    for cls, original in originals.items():
        _replace(cls, "__init__", new_init(cls, original))
    _replace(ImageEnhance._Enhance, "enhance", new_enhance)
    _replace(ImageEnhance._Enhance, "__getattr__", late)
