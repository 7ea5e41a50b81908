"""Transforms that only call others, or change nothing: torchvision's presets, ``Sequential``, the user's own.

A function is recognised by its code. Code that equals that of ``return self.transforms(image)`` does the same.
"""

from __future__ import annotations

from inspect import CO_NESTED
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import torch
from torchvision.transforms import CenterCrop, ConvertImageDtype, Lambda, Normalize, PILToTensor, Resize, _presets

from fastload.pipeline.errors import Refused
from fastload.pipeline.monkeypatch_check import Originals

if TYPE_CHECKING:
    from types import CodeType

_ORIGINALS: Final = Originals((torch.nn.Sequential, Lambda, _presets.ImageClassification))
_CALL: Final = ("__call__", "forward")


def parts_of(transform: Any) -> list[Any] | None:
    """List the transforms that a transform applies one after the other.

    Returns:
        The parts; ``[]`` if it leaves RGB images as they are, ``None`` if it is no wrapper.

    Raises:
        Refused: It is a library's wrapper, but patched.
    """
    kind = type(transform)
    if kind in _ORIGINALS and (patched := _ORIGINALS.patched(transform)) is not None:
        raise Refused(patched)
    if kind is torch.nn.Sequential:
        return list(transform)
    if kind is _presets.ImageClassification:
        how = {"interpolation": transform.interpolation, "antialias": transform.antialias}
        steps = [Resize(transform.resize_size, **how), CenterCrop(transform.crop_size), PILToTensor()]
        return [*steps, ConvertImageDtype(torch.float), Normalize(transform.mean, transform.std)]
    if kind is Lambda:
        return [] if _converts_to_rgb(transform.lambd) else None
    if kind is FunctionType:
        return [] if _converts_to_rgb(transform) else None
    inner = _wrapped(transform)
    return None if inner is None else [inner]


def _converts_to_rgb(function: Any) -> bool:
    if not _is_plain(function, 1) or not _alike(function.__code__, _TO_RGB.__code__):
        return False
    return function.__code__.co_names == ("convert",) and _own_constants(function) == ["RGB"]


def _wrapped(transform: Any) -> Any:
    """The object that a user's object calls with its argument, and whose result it returns."""
    kind, held = type(transform), getattr(transform, "__dict__", {})
    if any(
        "__getattr__" in vars(base) or "__getattribute__" in vars(base)
        for base in kind.__mro__[:-1]
        if base is not torch.nn.Module
    ):
        return None
    method = getattr(kind, "__call__", None)  # noqa: B004 - the function is needed, not whether there is one
    if isinstance(transform, torch.nn.Module):
        if method is not torch.nn.Module.__call__ or _ORIGINALS.patched(torch.nn.Sequential()) is not None:
            return None
        if any(held.get(name) for name in ("_forward_hooks", "_forward_pre_hooks")):
            return None
        method = kind.forward
    if method is None or not _is_plain(method, 2) or not _alike(method.__code__, _CALLS_ATTRIBUTE.__code__):
        return None
    (name,) = method.__code__.co_names
    if any(name in vars(base) for base in kind.__mro__) or any(call in held for call in _CALL):
        return None
    return held.get(name, held.get("_modules", {}).get(name))


def _is_plain(function: Any, arguments: int) -> bool:
    """Whether it is a Python function with this many arguments, and neither defaults nor wrappers."""
    if type(function) is not FunctionType or hasattr(function, "__wrapped__"):
        return False
    code = function.__code__
    counts = code.co_argcount, code.co_kwonlyargcount, len(code.co_varnames), len(code.co_freevars)
    return counts == (arguments, 0, arguments, 0) and not function.__defaults__


def _alike(code: CodeType, other: CodeType) -> bool:
    """Whether two functions do the same, but for constants and the names of attributes."""
    same = code.co_code == other.co_code and code.co_flags | CO_NESTED == other.co_flags | CO_NESTED
    return same and len(code.co_names) == len(other.co_names)


def _own_constants(function: FunctionType) -> list[Any]:
    return [constant for constant in function.__code__.co_consts if constant not in (None, function.__doc__)]


def _TO_RGB(image):  # type: ignore[no-untyped-def] # noqa: N802
    return image.convert("RGB")


def _CALLS_ATTRIBUTE(self, image):  # type: ignore[no-untyped-def] # noqa: N802
    return self.attribute(image)
