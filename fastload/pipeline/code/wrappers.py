"""Transforms that only call others, or convert to RGB: torchvision's presets, ``Sequential``, the user's own.

A function is recognised by its code. Code that equals that of ``return self.transforms(image)`` does the same.
"""

from __future__ import annotations

from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_ITERABLE_COROUTINE, CO_VARARGS, CO_VARKEYWORDS
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import torch
from torchvision.transforms import CenterCrop, ConvertImageDtype, Lambda, Normalize, PILToTensor, Resize, _presets

from fastload.pipeline.errors import Refused
from fastload.pipeline.installed.patches import HOOKS, MODULE_CALL, Originals

if TYPE_CHECKING:
    from types import CodeType

_ORIGINALS: Final = Originals((torch.nn.Sequential, Lambda, _presets.ImageClassification))
_CALL: Final = ("__call__", "forward")
_KINDS: Final = CO_ASYNC_GENERATOR | CO_COROUTINE | CO_GENERATOR | CO_ITERABLE_COROUTINE | CO_VARARGS | CO_VARKEYWORDS


class ToRGB:
    """Stands for a function that converts an image to RGB, which most are."""

    def __call__(self, image: Any) -> Any:  # noqa: D102
        return image.convert("RGB")


def parts_of(transform: Any) -> list[Any] | None:
    """List the transforms that a transform applies one after the other.

    Returns:
        The parts; ``None`` if it is no wrapper.

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
        return [ToRGB()] if _converts_to_rgb(transform.lambd) else None
    if kind is FunctionType:
        return [ToRGB()] if _converts_to_rgb(transform) else None
    inner = _wrapped(transform)
    return None if inner is None else [inner]


def _converts_to_rgb(function: Any) -> bool:
    if not _is_plain(function, 1) or not _alike(function.__code__, _TO_RGB.__code__):
        return False
    return function.__code__.co_names == ("convert",) and _own_constants(function) == ["RGB"]


def _wrapped(transform: Any) -> Any:
    """The object that a user's object calls with its argument, and whose result it returns."""
    method = method_of(transform)
    if method is None or not _is_plain(method, 2) or not _alike(method.__code__, _CALLS_ATTRIBUTE.__code__):
        return None
    (name,) = method.__code__.co_names
    try:
        return held_by(transform, name)
    except LookupError:
        return None


def method_of(transform: Any) -> FunctionType | None:
    """Return the only function that runs when a user's object is called, if any."""
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
        if any(name in held or getattr(kind, name) is not getattr(torch.nn.Module, name) for name in MODULE_CALL):
            return None
        if any(held.get(name) for name in HOOKS):
            return None
        method = kind.forward
    if type(method) is not FunctionType or hasattr(method, "__wrapped__") or any(call in held for call in _CALL):
        return None
    return None if method.__defaults__ or method.__kwdefaults__ else method


def held_by(transform: Any, name: str) -> Any:
    """Return an object's own attribute.

    Raises:
        LookupError: It has none of that name, or its class has one.
    """
    held = getattr(transform, "__dict__", {})
    if any(name in vars(base) for base in type(transform).__mro__):
        raise LookupError(name)
    if name not in held and isinstance(transform, torch.nn.Module):
        held = held["_modules"]
    return held[name]


def _is_plain(function: Any, arguments: int) -> bool:
    """Whether it is a Python function with this many arguments, and neither defaults nor wrappers."""
    if type(function) is not FunctionType or hasattr(function, "__wrapped__"):
        return False
    code = function.__code__
    counts = code.co_argcount, code.co_kwonlyargcount, len(code.co_varnames), len(code.co_freevars)
    return counts == (arguments, 0, arguments, 0) and not function.__defaults__


def _alike(code: CodeType, other: CodeType) -> bool:
    """Whether two functions do the same, but for constants and the names of attributes."""
    same = code.co_code == other.co_code and flags_of(code) == flags_of(other)
    return same and len(code.co_names) == len(other.co_names)


def flags_of(code: CodeType) -> int:
    """The flags of a function's code that say what a call of it does."""
    return code.co_flags & _KINDS


def _own_constants(function: FunctionType) -> list[Any]:
    return [constant for constant in function.__code__.co_consts if constant not in (None, function.__doc__)]


def _TO_RGB(image):  # type: ignore[no-untyped-def] # noqa: N802
    return image.convert("RGB")


def _CALLS_ATTRIBUTE(self, image):  # type: ignore[no-untyped-def] # noqa: N802
    return self.attribute(image)
