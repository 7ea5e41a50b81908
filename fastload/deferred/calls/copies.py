"""Record calls that copy a deferred tensor, or return it as it is."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from types import FrameType
from typing import Any, Final

import torch

from fastload.deferred.geometry import strides_of
from fastload.deferred.recorder import (
    CallRecorder,
    painted_as,
    part_of_tensor,
    record_by,
    recorded,
    small_ordinary,
)

_T: Final[Any] = torch.Tensor

_CALL: Final = compile("function(*arguments, **named)", "", "eval")


def _called_by(frame: FrameType, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function as a line of the user's code does, which torch's warnings name."""
    code = _CALL.replace(co_filename=frame.f_code.co_filename, co_firstlineno=frame.f_lineno)
    return eval(code, frame.f_globals, {"function": func, "arguments": args, "named": kwargs})


def _copy(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copy a deferred tensor by ``torch.tensor``, which warns of that."""
    named = {"dtype", "device", "requires_grad"}
    if len(args) != 1 or type(args[0]) is not torch.Tensor or kwargs.keys() - named or kwargs.get("requires_grad"):
        return NotImplemented
    tensor = args[0]
    if kwargs.get("dtype") not in (None, tensor.dtype) or kwargs.get("device") not in (None, "cpu", _CPU):
        return NotImplemented
    if (found := part_of_tensor(tensor)) is None:
        return NotImplemented
    content = found[1]
    small = _called_by(sys._getframe(3), func, (small_ordinary(tensor, content),), kwargs)
    if type(small) is not torch.Tensor or small.dtype != tensor.dtype:
        return NotImplemented
    is_mask = content.channels == 1
    made = replace(content, planar=is_mask or small.is_contiguous())

    def by_torch() -> Any:
        copied = painted_as(tensor, content).clone()
        return copied.contiguous() if made.planar and not is_mask else copied

    key = func, tensor.dim(), content.channels, content.planar, content.table.dtype
    return recorded(recorder, key, made, tensor.dim(), torch.Tensor, by_torch, small=small if is_mask else None)


_CPU: Final = torch.device("cpu")


def _to(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give a deferred tensor a memory format, or return it if it has that."""
    tensor = args[0] if args else None
    memory_format = kwargs.get("memory_format")
    others = (*args[1:], *(value for name, value in kwargs.items() if name != "memory_format"))
    if type(tensor) is not torch.Tensor or type(memory_format) is not torch.memory_format:
        return NotImplemented
    if not all(each is tensor.dtype or each is False or each is None for each in others):
        return NotImplemented
    if (found := part_of_tensor(tensor)) is None or found[1].channels == 1:
        return NotImplemented
    content = found[1]
    like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    try:
        theirs = func(like, *args[1:], **kwargs)
    except (RuntimeError, TypeError):  # torch raises it again
        return NotImplemented
    if theirs is like:
        return func(*args, **kwargs)
    planar = next((each for each in (True, False) if strides_of(theirs.shape, planar=each) == theirs.stride()), None)
    if planar is None or theirs.dtype != tensor.dtype or theirs.shape != tensor.shape:
        return NotImplemented
    made = replace(content, planar=planar)

    def by_torch() -> Any:
        real = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return func(real.copy_(painted_as(tensor, content)), *args[1:], **kwargs)

    key = func, tensor.dim(), content.planar, planar, content.table.dtype
    return recorded(recorder, key, made, tensor.dim(), torch.Tensor, by_torch)


@functools.cache
def install() -> None:
    """Let recorders record these."""
    record_by(_copy, [torch.tensor])
    record_by(_to, [_T.to, _T.contiguous])
