"""Resize deferred images as torch resizes bytes or floats."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.nn.functional import interpolate

from fastload import _core
from fastload.deferred import memory as deferred_memory
from fastload.deferred.content import Content
from fastload.deferred.geometry import SIDE_MIN, small_like, strides_of
from fastload.deferred.recorder import is_identity, painted_as, part_of_tensor, record_by, recorded
from fastload.lazy.images import TARGET_MAX
from fastload.pipeline.installed.resizes import TENSOR_FILTERS, float_filters, tensor_filters

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.deferred.recorder import CallRecorder

_INTERPOLATE: Final = tuple(inspect.signature(interpolate).parameters)


def _interpolate(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Resize levels and masks as torch does; make what it makes of floats."""
    given = {**dict(zip(_INTERPOLATE, args, strict=False)), **kwargs}
    tensor, mode = given.pop("input", None), given.get("mode")
    options = given.get("align_corners"), given.get("recompute_scale_factor")
    plain = given.get("scale_factor") is None and all(each is None or each is False for each in options)
    if type(tensor) is not torch.Tensor or tensor.dim() != 4 or type(mode) is not str or not plain:
        return NotImplemented
    sides, resize = given.get("size"), lambda x: func(x, **given)
    if mode == "nearest" and not given.get("antialias"):
        return _picked(recorder, (func, mode), tensor, sides, lambda x, size: func(x, **{**given, "size": size}))
    if given.get("antialias") is not True:
        return NotImplemented
    if tensor.dtype is torch.float32:
        return _resized_values(recorder, (func, mode), tensor, sides, float_filters().get(mode), resize)
    name = TENSOR_FILTERS.get(mode)
    return _resized(recorder, (func, mode), tensor, sides, name, resize) if name in tensor_filters() else NotImplemented


_RESIZE: Final = ("img", "size", "interpolation", "antialias")


def resized_in_float(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Resize levels by torchvision's first ``resize``, which makes floats of them and levels of these.

    Returns:
        Its result, deferred; ``None`` if the call cannot be recorded.
    """
    given = {"interpolation": "bilinear", "antialias": True, **dict(zip(_RESIZE, args, strict=False)), **kwargs}
    tensor, mode = given.pop("img", None), given["interpolation"]
    if type(tensor) is not torch.Tensor or tensor.dim() not in (3, 4) or given["antialias"] is not True:
        return None
    with torch._C.DisableTorchFunction():
        if not deferred_memory.is_deferred(tensor) or type(mode) is not str:
            return None
        if (name := float_filters().get(mode)) is None:
            return None
        result = _resized(recorder, (func, mode), tensor, given.get("size"), name, lambda x: func(x, **given))
    return result if isinstance(result, torch.Tensor) else None


def _resized(recorder: CallRecorder, key: Any, tensor: Any, sides: Any, name: Any, resize: Callable[[Any], Any]) -> Any:
    """Resize levels by one of the core's filters; ``resize`` does it by torch."""
    found, size = _to_resize(tensor), _size_of(sides)
    if size is None or found is None or not is_identity(found[0].table):
        return NotImplemented
    content, planar = found
    made = [image.resized(size, name) for image in content.images]
    resized = tuple(image for image in made if image is not None)
    if len(resized) < len(made):
        return NotImplemented
    key = *key, tensor.dim(), content.planar, planar
    by_torch = functools.partial(_resized_by_torch, tensor, content, resize)
    return recorded(recorder, key, Content(resized, content.table, planar), tensor.dim(), torch.Tensor, by_torch)


def _resized_values(
    recorder: CallRecorder, key: Any, tensor: Any, sides: Any, name: str | None, resize: Callable[[Any], Any]
) -> Any:
    """As :func:`_resized`, of floats, which are made at once.

    They have no levels that a program could go on with.
    """
    found, size = _to_resize(tensor), _size_of(sides)
    if name is None or size is None or found is None:
        return NotImplemented
    content, planar = found
    width, height = size
    if (height, width) == content.image_size:  # which torch copies
        return NotImplemented
    shape = len(content.images), 3, height, width
    made = torch.empty_strided(shape, strides_of(shape, planar=planar), dtype=torch.float32)
    values = np.frombuffer(deferred_memory.view_of(made, deferred_memory.WRITE), np.float32)
    table = content.table.numpy()
    for image, out in zip(content.images, values.reshape(len(content.images), -1), strict=True):
        levels = np.ascontiguousarray(image.pixels())
        if not _core.resize_values(levels, table, out, (height, width), planar, name):
            return NotImplemented
    by_torch = functools.partial(_resized_by_torch, tensor, content, resize)
    if not recorder.agrees((*key, content.planar, planar), made, lambda: made, by_torch):
        return NotImplemented
    content.note_gain()
    return made


def _picked(recorder: CallRecorder, key: Any, tensor: Any, sides: Any, resize: Callable[[Any, Any], Any]) -> Any:
    """Resize masks, of which torch picks rows and columns."""
    found, size = part_of_tensor(tensor), _size_of(sides)
    if size is None or found is None or found[1].fills or found[1].channels != 1:
        return NotImplemented
    content = found[1]
    like = small_like(tensor, content)
    made: list[Any] = [image.resized(size, tensor.dtype) for image in content.images]
    if like is None or None in made:
        return NotImplemented
    of = Content(tuple(made), content.table, planar=True)
    by_torch = functools.partial(_resized_by_torch, tensor, content, lambda x: resize(x, sides))
    small = resize(like, (4, 5))
    return recorded(recorder, (*key, tensor.dtype), of, 4, torch.Tensor, by_torch, small=small)


def _to_resize(tensor: Any) -> tuple[Content, bool] | None:
    """What is to be resized, and whether the result is planar.

    Returns:
        ``None`` of masks, and if it has boxes of constants.
    """
    images = tensor if tensor.dim() == 4 else tensor[None]
    found = part_of_tensor(images[0] if len(images) == 1 else images)  # whatever the stride of one image
    if found is None or found[1].fills or found[1].channels != 3:
        return None
    content, stride = found[1], images.stride()
    return content, content.planar or stride[0] < images.shape[2] * stride[2]  # else torch takes it for channels_last


def _resized_by_torch(tensor: Any, content: Content, resize: Callable[[Any], Any]) -> Any:
    real = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return resize(real.copy_(painted_as(tensor, content)))


def _size_of(sides: Any) -> tuple[int, int] | None:
    """Width and height that an argument of torch's names; ``None`` for odd ones."""
    height, width = sides if type(sides) in (list, tuple, torch.Size) and len(sides) == 2 else (sides, sides)
    if not all(type(side) is int and side >= SIDE_MIN for side in (height, width)) or height * width > TARGET_MAX:
        return None
    return width, height


@functools.cache
def install() -> None:
    """Let recorders that are made from now on record all this."""
    record_by(_interpolate, [interpolate])
