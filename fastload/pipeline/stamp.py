"""Notice within microseconds that what a recipe was read from has been changed.

The user's own functions may change it between two samples, and torch's next sample sees that.
"""

from __future__ import annotations

import enum
import functools
from collections import deque
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torchvision
from PIL import Image, ImageFile
from torch.utils.data import ConcatDataset, Subset
from torchvision.datasets.vision import StandardTransform

from fastload import _core
from fastload.pipeline.datasets import looked_up_in
from fastload.pipeline.errors import Refused
from fastload.pipeline.library_settings import check_modes
from fastload.pipeline.monkeypatch_check import HOOKS, is_own
from fastload.pipeline.nodes import is_v2
from fastload.pipeline.python_stream import check_others
from fastload.pipeline.timm_functions import MODULES as TIMMS_MODULES
from fastload.pipeline.timm_functions import check_modules
from fastload.pipeline.watched_functions import check_libraries

if TYPE_CHECKING:
    from fastload.pipeline.reader import Recipe

_PLAIN: Final = (
    *(int, float, complex, str, bytes, type(None), type, enum.Enum, ModuleType, BuiltinFunctionType),
    *(torch.dtype, torch.device, torch.memory_format, torch.Generator),
)
_MOST: Final = 2_000
"""Objects that are looked at: transforms have few, and what else they hold is not read."""
_LONG: Final = 1_000
"""Entries of a list or dict from which on it is not looked into, and of an array whose values are not compared."""
_SETTINGS: Final[tuple[tuple[ModuleType, str], ...]] = (
    (Image, "MAX_IMAGE_PIXELS"),
    (ImageFile, "LOAD_TRUNCATED_IMAGES"),
    (torchvision, "_image_backend"),
)


class RecipeStamp:
    """What a recipe was read from, by identity.

    An equal value that was set anew counts as a change.

    Args:
        recipe: The recipe.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._entries: list[tuple[dict[Any, Any], Any]] = [(vars(module), name) for module, name in _SETTINGS]
        self._containers: list[Any] = [getattr(torch.nn.modules.module, f"_global{name}", {}) for name in HOOKS]
        self._objects: list[Any] = []
        self._types: set[type] = set()
        self._functions: list[FunctionType] = []
        self._arrays: list[tuple[Any, Any]] = []
        self._left: deque[Any] = deque()
        self._add_dataset(recipe.dataset)
        self._walk()
        self._dtype = torch.get_default_dtype()
        self._draws_others = recipe.pipeline.draws_others
        self._v2 = any(map(is_v2, self._objects))
        self._timm = any(type(thing).__module__ in TIMMS_MODULES for thing in self._objects)
        self._stamp = _core.Stamp(self._entries, self._containers, self._objects, [*self._types], self._functions)

    def holds(self) -> bool:
        """Whether nothing was changed since."""
        if not self._stamp.holds() or torch.get_default_dtype() != self._dtype:
            return False
        if any(_content(array) != content for array, content in self._arrays):
            return False
        try:
            check_modes()
            check_libraries(v2=self._v2)
            if self._timm:
                check_modules()
            if self._draws_others:
                check_others()
        except Refused:
            return False
        return True

    def _add_dataset(self, dataset: Any) -> None:
        held = vars(dataset)
        self._objects.append(dataset)
        self._types.add(type(dataset))
        if type(dataset) is Subset:
            self._entries += [(held, "dataset"), (held, "indices")]
            self._add_dataset(dataset.dataset)
        elif type(dataset) is ConcatDataset:
            self._entries += [(held, "datasets"), (held, "cumulative_sizes")]
            self._containers.append(dataset.datasets)
            for part in dataset.datasets:
                self._add_dataset(part)
        else:
            names = *(looked_up_in(dataset) or ()), "transform", "target_transform", "transforms"
            both = getattr(dataset, "transforms", None)
            self._entries += [(held, name) for name in names]
            if isinstance(both, StandardTransform):
                self._entries += [(vars(both), name) for name in ("transform", "target_transform")]
            self._left += [getattr(dataset, "transform", None), getattr(both, "transform", None)]

    def _walk(self) -> None:
        """Go through what transforms hold, the nearest first."""
        seen: set[int] = set()
        while self._left and len(seen) < _MOST:
            thing = self._left.popleft()
            if isinstance(thing, _PLAIN) or id(thing) in seen:
                continue
            seen.add(id(thing))
            if isinstance(thing, list | dict | tuple):
                self._add_container(thing)
            elif isinstance(thing, torch.Tensor | np.ndarray):
                self._arrays.append((thing, _content(thing)))
            elif isinstance(thing, FunctionType):
                self._functions.append(thing)
            elif isinstance(thing, MethodType):
                self._left += [thing.__self__, thing.__func__]
            elif isinstance(thing, functools.partial):
                self._left += [thing.func, thing.args, thing.keywords]
            elif isinstance(getattr(thing, "__dict__", None), dict):
                self._objects.append(thing)
                self._add_type(type(thing))
                self._add_container(vars(thing))

    def _add_container(self, thing: Any) -> None:
        if not isinstance(thing, tuple):
            self._containers.append(thing)
        if len(thing) < _LONG:
            self._left += thing.values() if isinstance(thing, dict) else thing

    def _add_type(self, cls: type) -> None:
        if cls in self._types:
            return
        self._types.add(cls)
        functions = [value for base in cls.__mro__ for value in vars(base).values() if isinstance(value, FunctionType)]
        self._functions += functions
        if not is_own(cls):  # then it is read from its code, and what that names
            self._entries += [
                (function.__globals__, name) for function in functions for name in function.__code__.co_names
            ]


def _content(array: Any) -> Any:
    """What tells a change of an array's values, if it is small."""
    if isinstance(array, np.ndarray):
        return array.tobytes() if array.size < _LONG else array.size
    if array.device.type != "cpu" or array.layout is not torch.strided or array.numel() >= _LONG:
        return array.shape
    values = array.detach()
    return (values.view(torch.int16) if values.dtype == torch.bfloat16 else values).numpy().tobytes()
