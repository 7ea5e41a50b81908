"""Record torchvision's changes of colour of deferred uint8 tensors as steps of their images."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final

import torch

from fastload._batch import is_plain
from fastload.deferred import memory as deferred_memory
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
    sums_alike,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastload.deferred.recorder import CallRecorder
    from fastload.pipeline.nodes import Node

_HOME: Final = "torchvision.transforms.v2.functional._color"

_METHODS: Final = ("mul", "add_", "clamp_", "to", "floor_", "unbind", "unsqueeze", "sub_", "mul_", "gather", "reshape")
"""Methods that the functions call, which the user may have replaced."""

_LARGEST_FACTOR: Final = 1e9  # float32 has no infinities or NaN below


def _factor(
    kind: str, low: float, high: float, types: tuple[type, ...] = (int, float)
) -> Callable[[Any, Content], Node | None]:
    def read(value: Any, content: Content) -> Node | None:
        return (kind, {"value": float(value)}) if type(value) in types and low <= value <= high else None

    return read


def _contrast(value: Any, content: Content) -> Node | None:
    height, width = content.image_size
    pixels = height * width
    node = _factor("torch_contrast", 0, _LARGEST_FACTOR)(value, content)
    if node is None or torch.get_num_threads() != 1 or pixels > PIXELS_MAX:
        return None
    twice = rounded_twice(3 * pixels % TAIL)
    if twice is None or (pixels > EXACT_PIXELS and not sums_alike(torch.backends.cpu.get_cpu_capability())):
        return None
    return (node[0], {**node[1], "twice": twice, "planar": content.planar}) if twice else node


def _order(value: Any, content: Content) -> Node | None:
    if type(value) is torch.Tensor and value.dtype == torch.int64 and value.dim() == 1 and is_plain(value):
        value = value.tolist() if value.device.type == "cpu" else None
    if type(value) not in (list, tuple) or len(value) != 3 or not all(type(at) is int and 0 <= at < 3 for at in value):
        return None
    return "torch_permute", {"order": tuple(value)}


_FUNCTIONS: Final[dict[str, tuple[Callable[[Any, Content], Node | None], bool]]] = {
    "adjust_brightness_image": (_factor("torch_brightness", 0, _LARGEST_FACTOR, (float,)), False),  # ints wrap
    "adjust_contrast_image": (_contrast, False),
    "adjust_saturation_image": (_factor("torch_saturation", 0, _LARGEST_FACTOR), False),
    "adjust_hue_image": (_factor("torch_hue", -0.5, 0.5), True),
    "permute_channels_image": (_order, True),
}
"""By name: reads the argument beside the image into a step; whether the result has its channels outermost anyway."""


def functions(recorder: CallRecorder, is_on: Callable[[], bool]) -> Iterator[tuple[Any, str, Any]]:
    """Make what is to replace the functions that are not patched: module, name, function.

    Args:
        recorder: Records the calls.
        is_on: Whether calls of torch's mean what they usually do, in a thread that makes a batch.
    """
    module = sys.modules.get(_HOME)
    for name in _FUNCTIONS:
        original = getattr(module, name, None)
        if is_written_in(original, _HOME) and original.__name__ == name:
            yield module, name, _recording(original, recorder, is_on)


def _recording(original: Any, recorder: CallRecorder, is_on: Callable[[], bool]) -> Any:
    read, is_planar = _FUNCTIONS[original.__name__]
    code, space = original.__code__, original.__globals__
    names = [name for name in code.co_names if name in space]
    usual = [space[name] for name in names], [getattr(torch.Tensor, name) for name in _METHODS]

    def record(tensor: Any, value: Any) -> Any:
        """Return the result, deferred; or ``UNKNOWN``."""
        found = part_of_tensor(tensor) if tensor.dim() == 3 else None
        content = None if found is None else found[1]
        if content is None or content.fills or type(content.images[0]) is not Pending:
            return UNKNOWN
        if not is_identity(content.table) or torch.get_default_dtype() != torch.float32:
            return UNKNOWN
        step = read(value, content)
        if step is None or step[0] not in colors_alike():
            return UNKNOWN
        planar = content.planar or is_planar
        made = Content((content.images[0].changed(*step),), content.table, planar)
        height, width = content.image_size
        key = original, content.planar, "twice" in step[1], height * width > EXACT_PIXELS
        return recorded(recorder, key, made, 3, torch.Tensor, lambda: original(painted_as(tensor, content), value))

    @functools.wraps(original)
    def function(*arguments: Any, **rest: Any) -> Any:
        given = arguments + tuple(rest.values())
        if (
            len(given) == 2
            and type(given[0]) is torch.Tensor
            and [*rest] in ([], [code.co_varnames[1]])
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
