"""Subclasses with a ``__getitem__`` of their own that only arranges samples.

Such a method, which may add the index or path, runs as it is, with stand-ins for the loader and the transform, to learn
where the sample has its image. It is known by its code to do nothing else: it reads plain attributes, calls pure
functions, and changes nothing.
"""

from __future__ import annotations

import os
import os.path
import pathlib
import weakref
from types import FunctionType
from typing import Any, Final

import numpy as np
import torch

from fastload.pipeline.code.bytecode import global_of, uses_of
from fastload.pipeline.datasets.samples import IMAGE, Around
from fastload.pipeline.errors import Refused
from fastload.pipeline.installed.patches import Functions

_PURE: Final = (super, len, int, float, str, bool, dict, tuple, list, abs, round)
_MODULES: Final = (os, os.path, pathlib, pathlib.Path, torch)
_STAND_INS: Final = frozenset(("__getitem__", "loader", "transform", "target_transform"))
_METHODS: Final = frozenset(
    (
        *("split", "rsplit", "lower", "upper", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix"),
        *("startswith", "endswith", "join", "zfill", "item", "tolist"),
        *("path", "sep", "basename", "dirname", "splitext", "Path", "name", "stem", "suffix", "parent", "as_posix"),
        *("tensor", "as_tensor", "from_numpy", "long", "int64", "int32", "float32"),
    )
)
_PLAIN: Final = frozenset((int, float, str, bytes, bool, type(None), torch.Tensor, type(pathlib.Path())))
_HOLDERS: Final = (list, tuple, dict)
_DEPTH: Final = 8
_LONG: Final = 1_000
"""Entries from which on a list is judged again only if it has another length: 1,000,000 take 0.2 s."""

_functions: Final = Functions()
_functions.add(os, ("fspath",))
_functions.add(os.path, ("basename", "dirname", "join", "split", "splitext"))
_functions.add(torch.Tensor, ("long",))
for _path in (type(pathlib.Path()), pathlib.Path, pathlib.PurePath):
    _functions.add(
        _path, ("__new__", "__init__", "__str__", "__fspath__", "as_posix", "name", "parent", "stem", "suffix")
    )
_judged: Final[weakref.WeakKeyDictionary[Any, dict[str, tuple[Any, int]]]] = weakref.WeakKeyDictionary()
"""Long lists that hold nothing but data, by dataset and attribute, and their lengths."""


class _Opened:
    """Stands for an image between loader and transform."""


_OPENED: Final = _Opened()


def why_unknown(dataset: Any, known: type) -> str | None:
    """Say what a dataset's own ``__getitem__`` may do besides arranging samples; ``None`` if nothing.

    Args:
        dataset: Of a subclass of ``known``.
        known: A class of torchvision's with attributes ``loader`` and ``transform``.
    """
    for base in type(dataset).__mro__:
        if base is known:
            return None
        if "__getitem__" in vars(base) and (why := _why_impure(vars(base)["__getitem__"], dataset)) is not None:
            return why
    return None


def _why_impure(method: Any, dataset: Any) -> str | None:
    if type(method) is not FunctionType or hasattr(method, "__wrapped__"):
        return "is decorated or no function"
    constants = (*(method.__defaults__ or ()), *(method.__kwdefaults__ or {}).values())
    if set(method.__code__.co_freevars) - {"__class__"} or not all(map(_is_plain, constants)):
        return "uses variables of an outer function"
    uses = uses_of(method.__code__)
    if uses.changes or uses.imports:
        return "changes or imports something"
    if uses.handles:
        return "handles exceptions"
    if uses.conditions - {"transform", "target_transform"}:
        return "depends on a condition"
    if uses.selects:  # of some samples, it may return the image several times, or not at all
        return "may repeat or choose something by what depends on the sample"
    if (why := _functions.patched()) is not None:
        return f"calls a function of which {why}"
    known = (*_PURE, *_MODULES, *type(dataset).__mro__[:-1])
    for name in sorted(uses.names):
        value = global_of(method, name)
        if not any(value is other for other in known):
            return f"uses {name}"
    for name in sorted(uses.attributes):
        if not _is_plain_attribute(dataset, name):
            return f"uses the attribute {name}"
    return None


def _is_plain_attribute(dataset: Any, name: str) -> bool:
    if name in _STAND_INS:
        return True
    held, of_class = vars(dataset), getattr(type(dataset), name, None)
    if of_class is not None and not _is_plain(of_class):
        return False
    if name not in held:
        return of_class is not None or name in _METHODS
    value = held[name]
    if type(value) is not list or len(value) < _LONG:
        return _is_plain(value)
    judged = _judged.setdefault(dataset, {})
    if name not in judged or judged[name][0] is not value or judged[name][1] != len(value):
        if not _is_plain(value):
            return False
        judged[name] = value, len(value)
    return True


def _is_plain(value: Any) -> bool:
    """Whether it is data of plain types, all through."""
    level = [value]
    for _ in range(_DEPTH):
        others = {*map(type, level)} - _PLAIN
        if not others:
            return True
        if not others <= {*_HOLDERS, np.ndarray} or any(
            type(each) is np.ndarray and each.dtype.hasobject for each in level
        ):
            return False
        holders = [each for each in level if type(each) in _HOLDERS]
        level = [part for each in holders for part in each]
        level += [part for each in holders if type(each) is dict for part in each.values()]
    return False


def attributes_of(dataset: Any, known: type) -> list[str]:
    """List the dataset's attributes that its own ``__getitem__`` reads."""
    methods = [vars(base).get("__getitem__") for base in type(dataset).__mro__ if issubclass(base, known)]
    names = {name for method in methods if type(method) is FunctionType for name in uses_of(method.__code__).attributes}
    return [name for name in names - _STAND_INS if name in vars(dataset)]


def trace(dataset: Any, index: Any) -> tuple[Any, Any]:
    """Return a sample's path, and what is around its image.

    The latter is an :class:`Around`, or the target of a pair.

    Raises:
        Refused: The image is used otherwise than once, as the transform returns it.
        Exception: What the dataset would raise.
    """
    paths: list[Any] = []
    transformed: list[Any] = []

    def load(path: Any) -> Any:
        paths.append(path)
        return _OPENED

    def transform(image: Any) -> Any:
        transformed.append(image)
        return IMAGE

    twin = object.__new__(type(dataset))
    vars(twin).update(vars(dataset), loader=load, transform=transform)
    sample = twin[index]
    around = Around(sample)
    if len(paths) != 1 or transformed != [_OPENED] or len(around.places()) != 1 or _is_in(_OPENED, sample):
        raise Refused(
            f"__getitem__ of {type(dataset).__name__} must load and transform one image, and return it once in tuples, "
            "lists and dicts"
        )
    if type(sample) is tuple and len(sample) == 2 and sample[0] is IMAGE:
        return paths[0], sample[1]
    return paths[0], around


def _is_in(thing: Any, sample: Any) -> bool:
    if type(sample) in _HOLDERS:
        return any(_is_in(thing, part) for part in (sample.values() if type(sample) is dict else sample))
    return sample is thing
