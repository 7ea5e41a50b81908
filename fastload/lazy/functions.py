"""Replace functions that change colours or blur, so that they add a step.

What is not pending, and arguments that are not plain numbers, go to the original function.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from PIL import Image, ImageEnhance, ImageOps
from torchvision.transforms import _functional_pil

from fastload.lazy import blur
from fastload.pipeline.installed.patches import is_written_in
from fastload.pipeline.nodes import solarize_threshold
from fastload.stats.stack_sampler import register_codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastload.pipeline.nodes import Node

    Change: TypeAlias = Callable[[Any, str, dict[str, Any]], Image.Image | None]
    Copy: TypeAlias = Callable[[Any, str], Image.Image | None]
    IsUnchanged: TypeAlias = Callable[[Any, Image.Image], bool]

register_codec(__file__)

_ENHANCERS: Final[dict[type, str]] = {
    ImageEnhance.Brightness: "brightness",
    ImageEnhance.Contrast: "contrast",
    ImageEnhance.Color: "saturation",
    ImageEnhance.Sharpness: "sharpness",
}

MARGIN_MAX: Final = 1 << 20
"""The widest border that is pending, pixels."""


def _hue(hue_factor: Any) -> Node | None:
    if type(hue_factor) not in (int, float) or not -0.5 <= hue_factor <= 0.5:
        return None
    return "hue", {"value": float(np.int32(hue_factor * 255).astype(np.uint8))}


def _posterize(bits: Any) -> Node | None:
    return ("posterize", {"value": float(bits)}) if type(bits) is int and 1 <= bits <= 8 else None


def _solarize(threshold: Any = 128) -> Node | None:
    if type(threshold) not in (int, float) or not abs(threshold) < math.inf:
        return None
    return "solarize", {"value": solarize_threshold(threshold)}


def _grayscale(num_output_channels: Any) -> Node | None:
    return ("grayscale", {}) if type(num_output_channels) is int and num_output_channels == 3 else None


def _pad(border: Any = 0, fill: Any = 0) -> Node | None:
    sides = border if type(border) is tuple else (border,)
    if len(sides) not in (1, 2, 4) or not all(type(side) is int and 0 <= side <= MARGIN_MAX for side in sides):
        return None
    left, top, right, bottom = sides * (4 // len(sides))
    return "pad", {"margins": (top, left, bottom, right), "fill": fill}


_FUNCTIONS: Final[tuple[tuple[Any, str, Callable[..., Node | None]], ...]] = (
    (ImageOps, "autocontrast", lambda: ("autocontrast", {})),
    (ImageOps, "equalize", lambda: ("equalize", {})),
    (ImageOps, "expand", _pad),
    (ImageOps, "invert", lambda: ("invert", {})),
    (ImageOps, "posterize", _posterize),
    (ImageOps, "solarize", _solarize),
    (_functional_pil, "adjust_hue", _hue),
    (_functional_pil, "to_grayscale", _grayscale),
)
"""Functions whose first argument is the image; their other arguments are read into a step."""

_COMPUTED: Final = ("degenerate", "intermediate_mode")
"""Attributes of enhancers that are computed from the image."""


class Replacements:
    """Functions of modules and methods of classes that are replaced."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, Any, Any]] = []  # holder, name or key, original; None if there was none

    def __bool__(self) -> bool:
        return bool(self._originals)

    def replace(self, holder: Any, name: str, new: Any) -> None:
        """Replace one until :meth:`undo`."""
        original = vars(holder).get(name)
        self._originals.append((holder, name, original))
        setattr(holder, name, new)
        for kernels, kind, kernel in _kernels_in_place_of(original, new):
            self._originals.append((kernels, kind, kernels[kind]))
            kernels[kind] = kernel

    def undo(self) -> None:
        """Put the originals back."""
        while self._originals:
            holder, name, original = self._originals.pop()
            if isinstance(holder, dict):
                holder[name] = original
            elif original is None:
                delattr(holder, name)
            else:
                setattr(holder, name, original)


_replaced: Final = Replacements()
replace: Final = _replaced.replace
"""Replaces a module's function or a class's method until :func:`uninstall`."""


def install(change: Change, copy: Copy, is_unchanged: IsUnchanged) -> None:
    """Replace the functions that are not patched, once.

    Args:
        change: Adds a step to an image's pending pixels; returns ``None`` if it cannot.
        copy: Copies an image to which ``change`` could add a step; else returns ``None``.
        is_unchanged: Whether an image's pixels are still pending, and those of its copy.
    """
    if _replaced:
        return
    for module, name, read in _FUNCTIONS:
        original = getattr(module, name, None)
        if is_written_in(original, module.__name__):
            replace(module, name, _function(original, read, change))
    for module, name, replacement in blur.functions(change):
        replace(module, name, replacement)
    originals = [kind.__init__ for kind in _ENHANCERS]  # type: ignore[misc]
    if all(is_written_in(each, ImageEnhance.__name__) for each in originals):
        _replace_enhancers(dict(zip(_ENHANCERS, originals, strict=True)), change, copy, is_unchanged)


def uninstall() -> None:
    """Put the original functions back."""
    for enhancer in list(_waiting):
        _complete(enhancer)
    _replaced.undo()


def _kernels_in_place_of(old: Any, new: Any) -> Iterator[tuple[dict[Any, Any], Any, Any]]:
    """Yield where v2's tables of kernels have a function, and what belongs there.

    Kernels of tv_tensors call it in a function of their own.
    """
    v2: Any = sys.modules.get("torchvision.transforms.v2.functional._utils")
    wrapped: Any = getattr(v2, "_kernel_tv_tensor_wrapper", _kernels_in_place_of)
    for kernels in getattr(v2, "_KERNEL_REGISTRY", {}).values():
        for kind, kernel in kernels.items():
            if kernel is old:
                yield kernels, kind, new
            elif getattr(kernel, "__wrapped__", None) is old and kernel.__code__ in wrapped.__code__.co_consts:
                yield kernels, kind, wrapped(new)


def _function(original: Any, read: Callable[..., Node | None], change: Change) -> Any:
    @functools.wraps(original)
    def function(*arguments: Any, **rest: Any) -> Any:
        node = changed = None
        if arguments:
            with contextlib.suppress(TypeError):  # the original raises its own
                node = read(*arguments[1:], **rest)
        if node is not None:
            changed = change(arguments[0], *node)
        return original(*arguments, **rest) if changed is None else changed

    return function


_waiting: Final[WeakKeyDictionary[Any, tuple[Image.Image, Any]]] = WeakKeyDictionary()
"""Enhancers that have not computed what they blend with; their image as it was then, and the original ``__init__``."""


def _complete(enhancer: Any) -> None:
    """Compute what an enhancer blends its image with, if it has not."""
    if type(enhancer) in _ENHANCERS and (waiting := _waiting.pop(enhancer, None)) is not None:
        image, original = waiting
        made = object.__new__(type(enhancer))
        original(made, image)
        for name, value in vars(made).items():
            vars(enhancer).setdefault(name, value)


def _replace_enhancers(originals: dict[type, Any], change: Change, copy: Copy, is_unchanged: IsUnchanged) -> None:
    """Make an enhancer compute what it blends the image with only when it is needed.

    Its image may be changed or replaced meanwhile.
    """
    enhance = ImageEnhance._Enhance.enhance

    def new_init(cls: type, original: Any) -> Any:
        @functools.wraps(original)
        def __init__(self: Any, image: Any) -> None:  # noqa: N807
            is_unread = cls is ImageEnhance.Brightness and getattr(image, "tile", None)  # and would stay so
            copied = copy(image, _ENHANCERS[cls]) if type(self) is cls and not is_unread else None
            if copied is None:
                original(self, image)
                return
            for name in _COMPUTED:
                vars(self).pop(name, None)
            vars(self)["image"] = image
            _waiting[self] = copied, original

        return __init__

    @functools.wraps(enhance)
    def new_enhance(self: Any, factor: Any) -> Any:
        changed = None
        waiting = _waiting.get(self) if type(self) in _ENHANCERS and "degenerate" not in vars(self) else None
        if waiting is not None and type(factor) in (int, float):
            image, _ = waiting
            if is_unchanged(self.image, image):
                changed = change(image, _ENHANCERS[type(self)], {"value": float(factor)})
        return enhance(self, factor) if changed is None else changed

    def late(self: Any, name: str) -> Any:
        if name in _COMPUTED:
            _complete(self)
            if name in vars(self):
                return vars(self)[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def state(self: Any) -> Any:
        _complete(self)
        return vars(self)

    for cls, original in originals.items():
        replace(cls, "__init__", new_init(cls, original))
    replace(ImageEnhance._Enhance, "enhance", new_enhance)
    replace(ImageEnhance._Enhance, "__getattr__", late)
    replace(ImageEnhance._Enhance, "__getstate__", state)
