"""Record torchvision's changes of deferred uint8 tensors as steps of their images.

Those of colour, and what :mod:`~fastload.deferred.calls.grids` reads.
"""

from __future__ import annotations

import functools
import math
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from fastload._batch import is_plain
from fastload.deferred import memory as deferred_memory
from fastload.deferred.calls import grids
from fastload.deferred.content import Content
from fastload.deferred.recorder import UNKNOWN, is_identity, painted_as, part_of_tensor, recorded
from fastload.lazy.pixels import Pending
from fastload.pipeline.installed.patches import is_written_in
from fastload.pipeline.installed.tensor_colors import (
    EXACT_PIXELS,
    PIXELS_MAX,
    TAIL,
    colors_alike,
    rounded_twice,
    rounds_sharpness_alike,
    sums_alike,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastload.deferred.recorder import CallRecorder
    from fastload.pipeline.nodes import Node

_HOME: Final = "torchvision.transforms.v2.functional._color"

_METHODS: Final = (
    *("mul", "add_", "clamp_", "to", "floor_", "unbind", "unsqueeze", "sub_", "mul_", "gather", "reshape"),
    *("bitwise_not", "__and__", "__ge__", "amin", "amax", "div_", "flatten", "scatter_add_", "cumsum", "argmax", "ne"),
    *("copy_", "fill_", "unsqueeze_", "transpose", "bmm", "view", "expand", "expand_as", "round_"),
)
"""Methods that the functions call, which the user may have replaced."""

_LARGEST_FACTOR: Final = 1e9  # float32 has no infinities or NaN below


def _factor(kind: str, low: float, high: float, types: tuple[type, ...] = (int, float)) -> Callable[..., Node | None]:
    def read(_: object, content: Content, value: Any) -> Node | None:
        return (kind, {"value": float(value)}) if type(value) in types and low <= value <= high else None

    return read


def _contrast(original: Any, content: Content, value: Any) -> Node | None:
    height, width = content.image_size
    pixels = height * width
    node = _factor("torch_contrast", 0, _LARGEST_FACTOR)(original, content, value)
    if node is None or torch.get_num_threads() != 1 or pixels > PIXELS_MAX:
        return None
    twice = rounded_twice(3 * pixels % TAIL)
    if twice is None or (pixels > EXACT_PIXELS and not sums_alike(torch.backends.cpu.get_cpu_capability())):
        return None
    return (node[0], {**node[1], "twice": twice, "planar": content.planar}) if twice else node


def _sharpness(original: Any, content: Content, value: Any) -> Node | None:
    node = _factor("torch_sharpness", 0, _LARGEST_FACTOR)(original, content, value)
    if node is None or min(content.image_size) <= 2 or torch.is_autocast_enabled("cpu"):
        return None
    conv = getattr(torch.backends.mkldnn, "conv", None)  # whose sums are rounded: 1 / 26 off is too much
    is_exact = getattr(conv, "fp32_precision", "none") in ("none", "ieee")
    return node if is_exact and rounds_sharpness_alike(float(value)) else None


def _order(_: object, content: Content, value: Any) -> Node | None:
    if type(value) is torch.Tensor and value.dtype == torch.int64 and value.dim() == 1 and is_plain(value):
        value = value.tolist() if value.device.type == "cpu" else None
    if type(value) not in (list, tuple) or len(value) != 3 or not all(type(at) is int and 0 <= at < 3 for at in value):
        return None
    return "torch_permute", {"order": tuple(value)}


def _bits(_: object, content: Content, value: Any) -> Node | None:
    return ("torch_posterize", {"value": float(value)}) if type(value) is int and 1 <= value < 8 else None


def _threshold(_: object, content: Content, value: Any) -> Node | None:
    if type(value) not in (int, float) or not 0 <= value <= 255:
        return None
    return "torch_solarize", {"value": float(math.ceil(np.float32(value)))}  # as which torch compares levels


def _nothing(kind: str) -> Callable[..., Node | None]:
    return lambda _, content: (kind, {})


FUNCTIONS: Final[dict[str, tuple[Callable[..., Node | None], bool]]] = {
    "adjust_brightness_image": (_factor("torch_brightness", 0, _LARGEST_FACTOR, (float,)), False),  # ints wrap
    "adjust_contrast_image": (_contrast, False),
    "adjust_saturation_image": (_factor("torch_saturation", 0, _LARGEST_FACTOR), False),
    "adjust_sharpness_image": (_sharpness, False),
    "adjust_hue_image": (_factor("torch_hue", -0.5, 0.5), True),
    "permute_channels_image": (_order, True),
    "invert_image": (_nothing("torch_invert"), False),  # before what calls it
    "posterize_image": (_bits, False),
    "solarize_image": (_threshold, False),
    "autocontrast_image": (_nothing("torch_autocontrast"), False),
    "equalize_image": (_nothing("torch_equalize"), True),
}
"""By name: what reads function, content and other arguments into a step; whether the result is planar anyway."""


def functions(recorder: CallRecorder, is_on: Callable[[], bool]) -> Iterator[tuple[Any, str, Any]]:
    """Make what is to replace the functions that are not patched: module, name, function.

    Args:
        recorder: Records the calls.
        is_on: Whether calls of torch's mean what they usually do, in a thread that makes a batch.
    """
    for home, known in ((_HOME, FUNCTIONS), (grids.HOME, grids.FUNCTIONS)):
        module = sys.modules.get(home)
        for name, (read, is_planar) in known.items():
            original = getattr(module, name, None)
            if is_written_in(original, home) and original.__name__ == name:
                yield module, name, _recording(original, functools.partial(read, original), is_planar, recorder, is_on)


def _globals_read(function: FunctionType, known: set[str]) -> set[str]:
    """Add names of globals that a function reads, or others of its module for it."""
    space = function.__globals__
    for name in set(function.__code__.co_names) - known:
        if name in space:
            known.add(name)
            if type(space[name]) is FunctionType and space[name].__globals__ is space:
                _globals_read(space[name], known)
    return known


def _arguments(function: FunctionType, given: tuple[Any, ...], rest: dict[str, Any]) -> list[Any] | None:
    """All arguments of a function, in order; ``None`` if it does not take these."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    values = {**dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)), **rest}
    values.update(zip(names, given, strict=False))
    fits = len(given) <= len(names) and rest.keys() <= {*names[len(given) :]} and len(values) == len(names)
    return [values[name] for name in names] if fits else None


def _recording(
    original: Any,
    read: Callable[..., Node | None],
    is_planar: bool,
    recorder: CallRecorder,
    is_on: Callable[[], bool],
) -> Any:
    space = original.__globals__
    names = sorted(_globals_read(original, set()))
    usual = [space[name] for name in names], [getattr(torch.Tensor, name) for name in _METHODS]

    def record(tensor: Any, *values: Any) -> Any:
        """Return the result, deferred; or ``UNKNOWN``."""
        found = part_of_tensor(tensor) if tensor.dim() == 3 else None
        content = None if found is None else found[1]
        if content is None or content.fills or type(content.images[0]) is not Pending:
            return UNKNOWN
        if not is_identity(content.table) or torch.get_default_dtype() != torch.float32:
            return UNKNOWN
        step = read(content, *values)
        if step is None or (step[0] != grids.STEP and step[0] not in colors_alike()):
            return UNKNOWN
        planar = content.planar or is_planar
        made = Content((content.images[0].changed(*step),), content.table, planar)
        height, width = content.image_size
        key = original, content.planar, *step[1], height * width > EXACT_PIXELS
        return recorded(recorder, key, made, 3, torch.Tensor, lambda: original(painted_as(tensor, content), *values))

    @functools.wraps(original)
    def function(*arguments: Any, **rest: Any) -> Any:
        if torch.compiler.is_compiling():  # the original, in one graph with what is around it
            return original(*arguments, **rest)
        given = _arguments(original, arguments, rest) if arguments and type(arguments[0]) is torch.Tensor else None
        if (
            given is not None
            and is_on()
            and not recorder.is_off
            and usual == ([space.get(name) for name in names], [getattr(torch.Tensor, name) for name in _METHODS])
        ):
            with torch._C.DisableTorchFunction():
                made = record(*given) if deferred_memory.is_deferred(given[0]) else UNKNOWN
            if made is not UNKNOWN:
                return made
        return original(*arguments, **rest)

    for name, value in (("__script_if_tracing_wrapper", True), ("__original_fn", original)):
        setattr(function, name, value)  # so that torch.jit compiles the original
    return function
