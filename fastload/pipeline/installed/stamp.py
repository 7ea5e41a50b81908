"""Notice within microseconds that what a recipe was read from has been changed.

The user's own functions may change it between two samples, and anyone between two batches. Torch's next sample sees
that.
"""

from __future__ import annotations

import builtins
import enum
import functools
from collections import OrderedDict, deque
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torchvision
from PIL import Image, ImageFile
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data._utils import collate
from torchvision.datasets.vision import StandardTransform

from fastload import _core
from fastload.pipeline.datasets.folders import looked_up_in, looks_up_plainly
from fastload.pipeline.errors import Refused
from fastload.pipeline.installed.patches import HOOKS, imported, is_at_home, is_own, names_in
from fastload.pipeline.installed.python_stream import check_others
from fastload.pipeline.installed.settings import check_modes
from fastload.pipeline.installed.timm import MODULES as TIMMS_MODULES
from fastload.pipeline.installed.timm import check_modules
from fastload.pipeline.installed.watched import check_libraries
from fastload.pipeline.nodes import is_v2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastload.pipeline.recipe import Recipe

_PLAIN: Final = (
    *(int, float, complex, str, bytes, type(None), type, enum.Enum, ModuleType, BuiltinFunctionType),
    *(torch.dtype, torch.device, torch.memory_format, torch.Generator),
    *(range, slice, np.generic, PurePath),
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


class _Bare:
    """An object without slots or state in C."""


class RecipeStamp:
    """What a recipe was read from, by identity.

    An equal value that was set anew counts as a change.

    Args:
        recipe: The recipe.
        whole: Whether to look at all that it was read from: besides what transforms and attributes of samples hold, at
            the datasets' other attributes, at what functions of the user's own name, and at settings of torch.
        besides: More entries of dicts that count.
        types: More types that count.

    Attributes:
        is_whole: Whether all of it is looked at, so that a recipe read again would be the same while the stamp holds.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        whole: bool = False,
        besides: Iterable[tuple[dict[str, Any], str]] = (),
        types: Iterable[type] = (),
    ) -> None:
        self._whole = self.is_whole = whole
        self._entries: list[tuple[dict[Any, Any], Any]] = [(vars(module), name) for module, name in _SETTINGS]
        self._containers: list[Any] = [getattr(torch.nn.modules.module, f"_global{name}", {}) for name in HOOKS]
        self._objects: list[Any] = []
        self._types: set[type] = {*types}
        self._cells: list[tuple[CellType, Any]] = []
        self._sets: list[tuple[Any, frozenset[Any]]] = []
        self._shapes: list[tuple[Any, Any]] = []
        self._functions: list[FunctionType] = []
        self._arrays: list[tuple[Any, Any]] = []
        self._left: deque[Any] = deque()
        self._entries += besides
        self._add_dataset(recipe.dataset)
        if whole and recipe.target_transform is not None:
            self._types.add(type(recipe.target_transform))
        if whole:
            self._add_collating()
        self._threads = torch.get_num_threads() if recipe.pipeline.has_tensor_contrast else None
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
        if any(values != before for values, before in self._sets):
            return False
        if self._threads is not None and torch.get_num_threads() != self._threads:
            return False
        if not self._same_cells() or any(_shape(array) != shape for array, shape in self._shapes):
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

    def _same_cells(self) -> bool:
        try:
            return all(cell.cell_contents is value for cell, value in self._cells)
        except ValueError:  # one was emptied
            return False

    def _add_collating(self) -> None:
        """Add what :func:`~fastload.pipeline.installed.settings.check_collating` looks at."""
        self._entries.append((vars(collate), "default_collate_fn_map"))
        self._containers.append(collate.default_collate_fn_map)
        if (helpers := imported("torchvision.tv_tensors._torch_function_helpers")) is not None:
            names = names_in(helpers._must_return_subclass.__code__)
            self._entries += [(vars(helpers), name) for name in ("_must_return_subclass", *names)]

    def _add_dataset(self, dataset: Any) -> None:
        held = getattr(dataset, "__dict__", {})
        if self._whole:
            self._containers.append(held)
        if hasattr(dataset, "__dict__"):
            self._objects.append(dataset)
        else:
            self.is_whole = False
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
            arrays = [value for value in held.values() if isinstance(value, torch.Tensor | np.ndarray)]
            self._shapes += [(array, _shape(array)) for array in arrays if self._whole]
            names = *(looked_up_in(dataset) or ()), "transform", "target_transform", "transforms"
            both = getattr(dataset, "transforms", None)
            self.is_whole = self.is_whole and looks_up_plainly(dataset)
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
                if hasattr(thing, "__dict__"):
                    self._add_type(type(thing))
                    self._add_container(vars(thing))
            elif isinstance(thing, torch.Tensor | np.ndarray):
                content = _content(thing)
                self._arrays.append((thing, content))
                self.is_whole = self.is_whole and isinstance(content, bytes)
            elif isinstance(thing, FunctionType):
                self._add_function(thing)
            elif isinstance(thing, MethodType):
                self._left += [thing.__self__, thing.__func__]
            elif isinstance(thing, functools.partial):
                self._left += [thing.func, thing.args, thing.keywords]
            elif type(thing) in (set, frozenset) and all(type(each) in (str, int) for each in thing):
                self._sets.append((thing, frozenset(thing)))
            elif isinstance(getattr(thing, "__dict__", None), dict):
                self._objects.append(thing)
                self._add_type(type(thing))
                self._add_container(vars(thing))
                self.is_whole = self.is_whole and type(thing).__basicsize__ <= _Bare.__basicsize__
            else:
                self.is_whole = False
        self.is_whole = self.is_whole and not self._left

    def _add_function(self, function: FunctionType) -> None:
        self._functions.append(function)
        if not self._whole or is_at_home(function.__globals__.get("__name__")):
            return
        self._containers.append(vars(function))
        self._left += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for cell in function.__closure__ or ():
            try:
                self._cells.append((cell, cell.cell_contents))
                self._left.append(cell.cell_contents)
            except ValueError:  # it is empty yet
                self.is_whole = False
        names = {*names_in(function.__code__)}
        spaces, seen = [function.__globals__], set[int]()
        self._entries += [(vars(builtins), name) for name in names]
        while spaces:
            space = spaces.pop()
            if id(space) in seen:
                continue
            seen.add(id(space))
            self._entries += [(space, name) for name in names]
            found = [space[name] for name in names & space.keys()]
            spaces += [vars(value) for value in found if isinstance(value, ModuleType)]
            self._types |= {value for value in found if isinstance(value, type)}
            if not is_at_home(space.get("__name__")):
                self._left += found

    def _add_container(self, thing: Any) -> None:
        if not isinstance(thing, tuple):
            self._containers.append(thing)
        if len(thing) < _LONG:
            self._left += thing.values() if isinstance(thing, dict) else thing
        if len(thing) >= _LONG or (isinstance(thing, OrderedDict) and len(thing) > 1):  # whose order is kept apart
            self.is_whole = False

    def _add_type(self, cls: type) -> None:
        if cls in self._types:
            return
        self._types.add(cls)
        functions = [value for base in cls.__mro__ for value in vars(base).values() if isinstance(value, FunctionType)]
        if self._whole:
            for function in functions:
                self._add_function(function)
            self._types |= set(cls.__mro__)
        else:
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


def _shape(array: Any) -> Any:
    """Shape and type of an array, which it may be given others of in place."""
    if isinstance(array, np.ndarray):
        return array.shape, array.dtype, array.strides
    return array.shape, array.dtype, array.layout, array.device
