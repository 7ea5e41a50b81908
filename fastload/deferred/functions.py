"""Replace torchvision's functions that make tensors of images, so that these are deferred.

What a function does to the levels is learnt from an image that has all of them.
"""

from __future__ import annotations

import faulthandler
import functools
import math
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torch.utils.dlpack
from PIL import Image

from fastload import _core
from fastload.deferred import memory
from fastload.deferred.content import Content, take_painted_s
from fastload.deferred.geometry import SIDE_MIN, strides_of
from fastload.deferred.recorder import (
    CallRecorder,
    called_on_levels,
    described,
    is_plain_context,
    shared_table,
    storage_to_stack_into,
)
from fastload.lazy import functions as lazy_functions
from fastload.lazy.images import levels_of, pending_of

if TYPE_CHECKING:
    from collections.abc import Callable

_HOME: Final = "torchvision.transforms.functional"
_PLACES: Final = (
    _HOME,
    "torchvision.transforms.v2.functional",
    "torchvision.transforms.v2.functional._type_conversion",
)
_NAMES: Final = ("to_tensor", "pil_to_tensor")

_METHODS: Final = ("view", "permute", "contiguous", "to", "div")
"""Methods that the functions call, which the user may have replaced."""

_OF_VALUES: Final = ("torchvision.transforms._functional_tensor", "normalize")
"""A function of single values, which makes several calls for each image."""

_ITS_METHODS: Final = ("clone", "any", "view", "sub_", "div_")
"""Those that it calls."""

_POINTERS: Final = (
    (torch.Tensor, "numpy"),
    (torch.Tensor, "data_ptr"),
    (torch.Tensor, "untyped_storage"),
    (torch.Tensor, "__dlpack__"),
    (torch._C, "_to_dlpack"),
    (torch.utils.dlpack, "to_dlpack"),
)
"""What gives a pointer to a tensor's memory, which then may be given to the kernel. It reads no unpainted memory."""


_HANDLERS: Final = (
    (faulthandler, "enable"),
    (faulthandler, "disable"),
    (signal, "signal"),
    (torch._C, "_set_worker_signal_handlers"),
)
"""What changes this process's actions at memory faults."""

LEVELS_MIN_BYTES: Final = 1 << 16
"""Pixels that are made become a deferred tensor from this size on. Python makes smaller ones as fast as it defers."""

LEVELS: Final = np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(1, 256, 3).repeat(SIDE_MIN, 0)
"""An image that has all levels in each channel."""


class Deferral:
    """Defers the tensors of one worker process, in the thread that makes its batches.

    Attributes:
        recorder: Records what is done to them.
        deferred: How many images became deferred tensors since they were counted.
    """

    def __init__(self) -> None:
        self.recorder = CallRecorder()
        self.deferred = 0
        self._thread = self._told = 0
        self._tables: dict[Any, tuple[torch.Tensor, bool, bool] | None] = {}

    def install(self) -> None:
        """Replace the functions of modules that are imported, unless they are patched."""
        for name in _PLACES:
            module = sys.modules.get(name)
            for function in _NAMES:
                original = getattr(module, function, None)
                if getattr(original, "__module__", None) == _HOME and getattr(original, "__name__", "") == function:
                    lazy_functions.replace(module, function, self._in_place_of(original))
        home, function = _OF_VALUES
        original = getattr(sys.modules.get(home), function, None)
        if getattr(original, "__module__", None) == home and getattr(original, "__name__", "") == function:
            lazy_functions.replace(sys.modules[home], function, self.on_levels(original))
        for holder, function in _POINTERS:
            lazy_functions.replace(holder, function, _before(getattr(holder, function), _paint))
        lazy_functions.replace(torch.utils, "swap_tensors", _before(torch.utils.swap_tensors, memory.forget))
        lazy_functions.replace(torch.Tensor, "_typed_storage", _storage_of(torch.Tensor._typed_storage, self._is_on))
        lazy_functions.replace(torch.UntypedStorage, "resize_", _resize_storage(torch.UntypedStorage.resize_))
        lazy_functions.replace(torch.UntypedStorage, "resizable", _is_resizable(torch.UntypedStorage.resizable))
        lazy_functions.replace(torch.UntypedStorage, "is_shared", _is_shared(torch.UntypedStorage.is_shared))
        for holder, function in _HANDLERS:
            lazy_functions.replace(holder, function, _guarding(getattr(holder, function)))

    def __enter__(self) -> None:
        """Defer tensors until the batch is made."""
        self._thread = threading.get_ident()
        memory.begin_batch()
        take_painted_s()  # what was painted before, maybe in the process that this one was forked from
        self.recorder.__enter__()

    take_painted_s = staticmethod(take_painted_s)

    def take_counts(self) -> tuple[int, int, str]:
        """Return images deferred and looks since the last call, and the usual line."""
        painted_by = self.recorder.painted_by
        looks = painted_by.total() - self._told
        place = described(painted_by.most_common(1)[0][0]) if looks else ""
        images, self.deferred, self._told = self.deferred, 0, painted_by.total()
        return images, looks, place

    def __exit__(self, *error: object) -> None:
        self._thread = 0
        self.recorder.__exit__(*error)

    def _is_on(self) -> bool:
        return self._thread == threading.get_ident() and is_plain_context(1)

    def _in_place_of(self, original: Any) -> Any:
        @functools.wraps(original)
        def function(*arguments: Any, **rest: Any) -> Any:
            made = self._made(original, arguments[0]) if len(arguments) == 1 and not rest else None
            return original(*arguments, **rest) if made is None else made

        return function

    def on_levels(self, original: Any) -> Any:
        """Wrap :data:`_OF_VALUES`, so that deferred tensors' levels are given to it."""
        methods = [getattr(torch.Tensor, name) for name in _ITS_METHODS]

        @functools.wraps(original)
        def function(tensor: Any, mean: Any, std: Any, inplace: bool = False) -> Any:
            if torch.compiler.is_compiling():  # the original, in one graph with what is around it
                return original(tensor, mean, std, inplace)
            as_usual = methods == [getattr(torch.Tensor, name) for name in _ITS_METHODS]
            made = None
            if inplace is False and as_usual and self._is_on() and not self.recorder.is_off:
                made = called_on_levels(self.recorder, original, (tensor, mean, std), {})
            return original(tensor, mean, std, inplace) if made is None else made

        for name, value in (("__script_if_tracing_wrapper", True), ("__original_fn", original)):
            setattr(function, name, value)  # so that torch.jit compiles the original
        return function

    def _made(self, original: Any, image: Any) -> torch.Tensor | None:
        if self.recorder.is_off or not self._is_on():
            return None
        if not _core.guard_is_ours() and not memory.guard_pages():
            return None
        pending = pending_of(image, SIDE_MIN) or levels_of(image, LEVELS_MIN_BYTES, SIDE_MIN)
        if pending is None or not pending.is_trusted:
            return None
        if pending.file.is_decoded and 3 * math.prod(pending.size) < LEVELS_MIN_BYTES:
            return None
        key = original, torch.get_default_dtype(), *(getattr(torch.Tensor, name) for name in _METHODS)
        if key not in self._tables:
            self._tables[key] = _table_of(original)
        if (known := self._tables[key]) is None:
            return None
        table, planar, resizable = known
        width, height = pending.size
        size = (3, height, width)
        stride = strides_of(size, planar=planar)
        try:
            with torch._C.DisableTorchFunction():
                tensor = memory.tensor_of(Content((pending,), table, planar), size, stride, resizable=resizable)
        except MemoryError:
            return None
        self.deferred += 1
        return tensor


def _before(original: Any, do: Callable[[torch.Tensor], None]) -> Any:
    """A function of tensors that first does something with each."""

    @functools.wraps(original)
    def function(*arguments: Any, **rest: Any) -> Any:
        for each in arguments:
            if isinstance(each, torch.Tensor):
                do(each)
        return original(*arguments, **rest)

    return function


def _paint(tensor: torch.Tensor) -> None:
    if (found := memory.memory_of(tensor)) is not None:
        memory.paint(found)


def _storage_of(original: Any, here: Callable[[], bool]) -> Any:
    @functools.wraps(original)
    def typed_storage(tensor: torch.Tensor) -> Any:
        storage = storage_to_stack_into() if here() else None
        return original(tensor) if storage is None else storage

    return typed_storage


def _resize_storage(original: Any) -> Any:
    @functools.wraps(original)
    def resize_(storage: torch.UntypedStorage, *arguments: Any, **rest: Any) -> Any:
        found = _core.deferred_memory_at(storage.data_ptr())
        moved = None if found is None else memory.leave(found)
        return original(storage if moved is None else moved, *arguments, **rest)

    return resize_


def _is_resizable(original: Any) -> Any:
    @functools.wraps(original)
    def resizable(storage: torch.UntypedStorage) -> Any:
        found = _core.deferred_memory_at(storage.data_ptr())
        return original(storage) if found is None else found.resizable

    return resizable


def _is_shared(original: Any) -> Any:
    @functools.wraps(original)
    def is_shared(storage: torch.UntypedStorage) -> Any:
        found = _core.deferred_memory_at(storage.data_ptr())
        return original(storage) if found is None else found.is_shared

    return is_shared


def _guarding(original: Any) -> Any:
    @functools.wraps(original)
    def function(*arguments: Any, **rest: Any) -> Any:
        try:
            return original(*arguments, **rest)
        finally:
            memory.guard_pages()

    return function


def _table_of(function: Any) -> tuple[torch.Tensor, bool, bool] | None:
    """Learn each level's value by a function, its layout, and whether it is resizable."""
    with torch._C.DisableTorchFunction():
        made = function(Image.fromarray(LEVELS))
        size = (3, SIDE_MIN, 256)
        if type(made) is not torch.Tensor or made.shape != size:
            return None
        for planar in (True, False):
            if made.stride() == strides_of(size, planar=planar):
                return shared_table(made[:, 0]), planar, made.untyped_storage().resizable()
    return None
