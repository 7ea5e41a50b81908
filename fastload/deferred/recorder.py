"""Record what the user's code does to deferred tensors, in place of doing it.

A :class:`CallRecorder` is on while a worker makes a batch. It knows functions that only change the values of levels,
move whole pixels or put a constant into a box; their results are deferred, too. Of any other function that gets a
deferred tensor, it has the tensor painted before the call. What does not come by here, such as a thread's or another
library's access to the memory, is painted by the memory itself.

Functions of single values are not known one by one: they are called with the table of the 256 levels in place of the
image. Each kind of call is compared with torch's own result when it first comes.
"""

from __future__ import annotations

import contextlib
import linecache
import math
import sys
import traceback
import warnings
from collections import Counter
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torchvision import tv_tensors

from fastload import _core
from fastload._batch import is_plain
from fastload._compare import same_bits
from fastload.deferred import memory as deferred_memory
from fastload.deferred.content import Content, Fill
from fastload.deferred.geometry import flipped, placed, shape_of, small_like, strides_as, strides_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fastload.deferred.content import Rearranged

    Handler = Callable[["CallRecorder", Any, tuple[Any, ...], dict[str, Any]], Any]

COMPARED: Final = 2
"""The first calls of each kind in a process, whose results torch computes as well."""

_T: Final[Any] = torch.Tensor
_IMAGES: Final = (torch.Tensor, tv_tensors.Image, tv_tensors.Mask)
_PLAIN: Final = frozenset(
    [int, float, bool, str, type(None), torch.dtype, torch.device, slice, type(Ellipsis), torch.Size]
)
_CONTAINERS: Final = frozenset([list, tuple, set, frozenset, dict])
_DEPTH_MAX: Final = 4
UNKNOWN: Final = object()
"""What a handler returns where a call cannot be recorded."""


class CallRecorder(TorchFunctionMode):
    """Records calls of this thread while it is entered.

    Attributes:
        painted_by: How often a line of the user's code had a deferred tensor painted: file, line, function.
        is_off: Whether nothing is deferred any more, as a recorded result differed from torch's.
        is_early: Whether the sample that is being made has no deferred tensor yet.
        was_needed_early: Whether it has recorded a call of such a sample.
    """

    keeps_results = True  # see check_modes()

    def __init__(self) -> None:
        super().__init__()
        self.painted_by: Counter[tuple[str, int, str]] = Counter()
        self.is_off = self.is_early = self.was_needed_early = False
        self._compared: Counter[Any] = Counter()
        known = _PASSED, _RESIZES.union(_MAKERS), _PLAIN, torch.Tensor, torch._C.TensorBase.data_ptr
        self.__torch_function__ = _core.torch_function(self, *known)  # type: ignore[method-assign]

    def __enter__(self) -> CallRecorder:
        """Begin below the user's modes, whose ends take off the uppermost one."""
        if not torch._C._len_torch_function_stack():  # most often
            torch._C._push_on_torch_function_stack(self)
            return self
        modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        at = int(bool(modes) and isinstance(modes[0], DeviceContext))  # which stays the lowest
        _set_modes([*modes[:at], self, *modes[at:]])
        return self

    def __exit__(self, *error: object) -> None:
        """End, wherever it is by now."""
        modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        _set_modes([mode for mode in modes if mode is not self])

    def record(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Record or prepare a call that may have deferred tensors. Takes what ``__torch_function__`` does.

        Returns:
            Its result; ``NotImplemented`` if it is to be made, which is left to the caller: traces name its line.
        """
        kwargs = kwargs or {}
        called, func = func, _as_called(func)
        if func in _RESIZES or "out" in kwargs:
            values = _resized_to(func, args, kwargs)
            for tensor in _tensors((args[:1] if func in _RESIZES else (), kwargs.get("out")), 0):
                deferred_memory.leave_by(tensor, values)
        if func in _MAKERS and is_plain_context():
            made = _MAKERS[func](self, func, args, kwargs)
            if made is not UNKNOWN:
                self.was_needed_early |= self.is_early
                return made
        if func not in _PASSED and (_are_deferred(args) or (kwargs and _are_deferred(kwargs.values()))):
            self.was_needed_early |= self.is_early
            handler = _HANDLERS.get(func)
            if handler is not None and is_plain_context():
                result = handler(self, func, args, kwargs)
                if result is not UNKNOWN:
                    return result
            self.paint(func, args, kwargs)
        return NotImplemented if func is called else func(*args, **kwargs)

    def paint(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Paint a call's deferred tensors, and note the line of the user's code."""
        found = [
            memory for each in _tensors((args, kwargs), 0) if (memory := deferred_memory.memory_of(each)) is not None
        ]
        self.note(func)
        for memory in found:
            deferred_memory.paint(memory)

    def note(self, func: Any) -> None:
        """Note the line of the user's code that looks at pixels by a function."""
        self.painted_by[(*line_of_user(), getattr(func, "__name__", str(func)))] += 1

    def checked(self, key: Any, made: Content | Rearranged, like: Any, expected: Callable[[], Any]) -> bool:
        """Compare the first results of a kind with torch's.

        Args:
            key: The kind.
            made: What the result is to hold.
            like: The recorded result, of which nothing is read but its type, shape and strides.
            expected: Computes the result by torch.

        Returns:
            Whether it may be used.
        """
        return self.agrees(key, like, lambda: painted(made, like), expected)

    def agrees(self, key: Any, like: Any, made: Callable[[], torch.Tensor], expected: Callable[[], Any]) -> bool:
        """As :meth:`checked`, of what ``made`` returns."""
        if self._compared[key] >= COMPARED:
            return not self.is_off
        self._compared[key] += 1
        theirs, ours = expected(), made()
        if (
            type(theirs) is type(like)
            and theirs.stride() == like.stride()
            and same_bits(ours, theirs.as_subclass(torch.Tensor))
        ):
            return not self.is_off
        self.is_off = True
        with contextlib.suppress(RuntimeWarning):
            warnings.warn("pixels are made at once from now on: a deferred result was not torch's", RuntimeWarning, 2)
        return False


def record_by(handler: Handler, functions: Iterable[Any]) -> None:
    """Let a handler record functions that get deferred tensors.

    One that is known for them is asked next.

    Args:
        handler: Returns the result, or ``NotImplemented``.
        functions: Those.
    """
    for each in functions:
        _HANDLERS[each] = _either(handler, _HANDLERS.get(each))


def record_makers_by(handler: Handler, functions: Iterable[Any]) -> None:
    """As :func:`record_by`, for functions that make tensors, whatever they get."""
    for each in functions:
        _MAKERS[each] = _either(handler, None)


def _either(first: Handler, second: Handler | None) -> Handler:
    def handle(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = first(recorder, func, args, kwargs)
        if made is not NotImplemented:
            return made
        return UNKNOWN if second is None else second(recorder, func, args, kwargs)

    return handle


def _set_modes(modes: list[TorchFunctionMode]) -> None:
    """Replace this thread's modes, the lowest first."""
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def _as_called(func: Any) -> Any:
    """The function that was called, not the user's that torch names in its place."""
    if type(func) is not FunctionType:
        return func
    name = func.__name__
    own = vars(torch._C.TensorBase).get(name)
    is_users = own is not None and vars(_T).get(name) is func
    return own if is_users and func.__globals__["__name__"].partition(".")[0] != "torch" else func


def is_plain_context(function_modes: int = 0) -> bool:
    """Whether a call of torch's means what it usually does, and is not watched.

    Args:
        function_modes: How many function modes are to be on.
    """
    return (
        torch._C._len_torch_function_stack() == function_modes
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._get_tracing_state() is None
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def painted(content: Content | Rearranged, like: torch.Tensor) -> torch.Tensor:
    """Make an ordinary tensor with the shape and strides of another."""
    out = np.empty(content.nbytes, np.uint8)
    content.paint(out)
    return torch.from_numpy(out).view(content.table.dtype).as_strided(like.shape, like.stride())


def line_of_user() -> tuple[str, int]:
    """Return the line of the user's code that called, by its file."""
    frame: Any = sys._getframe(3)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in ("torch", "torchvision", "fastload", "PIL", "numpy"):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0


def described(place: tuple[str, int, str]) -> str:
    """Say which line had pixels painted, such as ``transforms.py:41 reads pixels (item): ...``."""
    file, line, function = place
    text = linecache.getline(file, line).strip()
    return f"{file}:{line} reads pixels ({function}): {text}"


def _are_deferred(values: Iterable[Any], depth: int = 0) -> bool:
    """Whether a deferred tensor is among arguments, or in their containers."""
    for each in values:
        kind = type(each)
        if kind in _PLAIN:
            continue
        if kind is torch.Tensor:
            if deferred_memory.is_deferred(each):
                return True
        elif kind in _CONTAINERS:
            if depth < _DEPTH_MAX and _are_deferred(each.values() if kind is dict else each, depth + 1):
                return True
        elif isinstance(each, torch.Tensor) and _is_deferred_subclass(each):
            return True
    return False


def _is_deferred_subclass(tensor: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        return is_plain(tensor) and deferred_memory.is_deferred(tensor)


def _resized_to(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """How many values a call gives its first argument; ``None`` if unknown."""
    if func is _T.resize_as_ and len(args) == 2 and isinstance(args[1], torch.Tensor):
        return args[1].numel()
    size = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    if func is _T.resize_ and size and not set(kwargs) - {"memory_format"} and all(type(each) is int for each in size):
        return math.prod(size)
    return None


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif (type(value) in _CONTAINERS or isinstance(value, tuple)) and depth <= _DEPTH_MAX:  # torch.return_types, too
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each, depth + 1)


def part_of_tensor(tensor: Any) -> tuple[Any, Content, bool] | None:
    """See :func:`~fastload.deferred.memory.part_of_memory`; only of tensors whose functions are known."""
    if type(tensor) not in _IMAGES or tensor.requires_grad or _is_one_with_channels_last(tensor):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        found = deferred_memory.part_of_memory(tensor)
        is_usual = found is None or found[1].channels > 1 or small_like(tensor, found[1]) is not None
    return found if is_usual else None


def _deferred(content: Content, dims: int, kind: type, stride: tuple[int, ...] | None) -> Any:
    """Make a tensor that is deferred, or ``UNKNOWN`` without memory for it."""
    shape = shape_of(content, dims)
    try:
        tensor = deferred_memory.tensor_of(content, shape, stride or strides_of(shape, planar=content.planar))
    except MemoryError:
        return UNKNOWN
    return tensor if kind is torch.Tensor else tensor.as_subclass(kind)


def recorded(
    recorder: CallRecorder,
    key: Any,
    content: Content,
    dims: int,
    kind: type,
    by_torch: Callable[[], Any],
    stride: tuple[int, ...] | None = None,
    small: Any = None,
) -> Any:
    """Return a deferred result of a call, compared with torch's as by :meth:`CallRecorder.checked`.

    Args:
        recorder: Records the call.
        key: The kind of call.
        content: What the result holds.
        dims: Its dimensions.
        kind: Its type.
        by_torch: Computes it by torch.
        stride: Its strides, if they are not the usual ones of its images.
        small: What torch makes of small masks with the layouts of the arguments, if they are masks: the result has its
            type and strides.
    """
    if small is not None:
        kind, stride = type(small), strides_as(small, shape_of(content, dims))
        if stride is None:
            return UNKNOWN
    made = _deferred(content, dims, kind, stride)
    if made is UNKNOWN or not recorder.checked(key, content, made, by_torch):
        return UNKNOWN
    return made


_tables: dict[tuple[torch.dtype, bool, bytes], torch.Tensor] = {}
_results: dict[Any, tuple[torch.Tensor, torch.Tensor, int]] = {}
"""By a call and the id of a table: that table, which so keeps its id, what the call made of it, and its version."""

TABLES_MAX: Final = 1000


def shared_table(table: torch.Tensor) -> torch.Tensor:
    """Return a table with these values that is the same object for all images."""
    table = table.reshape(-1, 256).contiguous()
    key = table.dtype, table.is_inference(), table.view(torch.uint8).numpy().tobytes()
    if len(_tables) > TABLES_MAX or len(_results) > TABLES_MAX:
        _tables.clear()
        _results.clear()  # which know tables by their ids
    return _tables.setdefault(key, table)


IDENTITY: Final = torch.arange(256, dtype=torch.uint8).repeat(3, 1)
"""The table of values that are the levels."""


def is_identity(table: torch.Tensor) -> bool:
    """Whether a table's values are the levels."""
    return table.dtype == torch.uint8 and torch.equal(table, IDENTITY[: len(table)])


_SIMPLE: Final = frozenset([int, bool, type(None), torch.dtype, str, torch.device])
_FEW: Final = 3


def _constant(value: Any) -> Any:
    """What tells a constant argument, of one value a channel, from others; else ``None``."""
    kind = type(value)
    if kind in _SIMPLE:
        return kind, value
    if kind is float:
        return value.hex()  # -0.0 is not 0.0
    if kind in (list, tuple) and len(value) <= _FEW:
        inner = tuple(map(_constant, value))
        return None if None in inner else (kind, inner)
    if kind is not torch.Tensor or value.numel() not in (1, 3) or value.requires_grad or not is_plain(value):
        return None
    if value.device.type != "cpu" or (value.numel() == 3 and (value.dim() < 3 or value.shape[-3] != 3)):
        return None
    return value.dtype, repr(value.tolist())


def _call_of(func: Any, tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What tells a call with constants from others; ``None`` if it has others."""
    key = [_IMAGE if each is tensor else _constant(each) for each in args]
    key += [_IMAGE if each is tensor else _constant(each) for each in kwargs.values()]
    if None in key:
        return None
    modes = torch.is_inference_mode_enabled(), torch.get_default_dtype(), _SMALLEST / 2
    return func, *key, *kwargs, tensor.dim(), type(tensor), *modes


_IMAGE: Final = object()
_NOTHING: Final = (None, None, 0)
_SMALLEST: Final = sys.float_info.min
"""Half of it is zero in a thread without denormals, see ``torch.set_flush_denormal``."""


def _on_values(tensor: Any, levels: torch.Tensor) -> Any:
    """View ``levels``, ``(C, L)``, as an image in a tensor's place."""
    channels, count = levels.shape
    shaped = levels.view(*[1] * (tensor.dim() - 2 - (channels > 1)), *([channels] if channels > 1 else []), count, 1)
    return shaped if type(tensor) is torch.Tensor else shaped.as_subclass(type(tensor))


def pointwise(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of single values: call it with the table in place of the image."""
    arguments = (*args, *kwargs.values())
    images = [each for each in arguments if type(each) in _IMAGES and deferred_memory.memory_of(each) is not None]
    if len(images) != 1 or "out" in kwargs:
        return UNKNOWN
    tensor = images[0]
    if (found := _part_of_values(tensor)) is None:
        return UNKNOWN
    if (call := _call_of(func, tensor, args, kwargs)) is None:
        return UNKNOWN
    content = found[1]

    def run(levels: torch.Tensor) -> Any:
        given = _on_values(tensor, levels)
        return func(
            *(given if each is tensor else each for each in args),
            **{name: given if each is tensor else each for name, each in kwargs.items()},
        )

    known = call, id(content.table)
    kind, (_, table, version) = torch.Tensor, _results.get(known, _NOTHING)
    try:
        if table is None or type(tensor) is not torch.Tensor:
            values = run(content.table)
            if not _is_table(values, tensor, content.channels):
                return UNKNOWN
            if values.data_ptr() == content.table.data_ptr():  # as of ``float()``, if it is
                return as_view(recorder, func, args, kwargs)
            _require_certain(func, args, kwargs, content.table, values)
            version = 0 if values.is_inference() else values._version
            kind, table = type(values), shared_table(values)
            _results[known] = content.table, table, version
        fills = _changed_fills(content, run, func, args, kwargs)
    except Exception as error:  # torch raises it again, for the image
        if not _is_torchs(error):
            raise
        return UNKNOWN
    made = content.with_values(table, fills)
    stride = (3, 1, 3 * tensor.shape[-1], 3) if _is_one_with_channels_last(tensor) else None
    key = func, tensor.dim(), content.planar, content.table.dtype, stride is None

    def by_torch() -> Any:
        return _by_torch(func, args, kwargs, tensor, content)

    small = None if content.channels > 1 else _called_with(small_like(tensor, content), func, args, kwargs, tensor)
    result = recorded(recorder, key, made, tensor.dim(), kind, by_torch, stride, small)
    if version and result is not UNKNOWN and not result.is_inference():
        torch._C._increment_version([result] * version)
    return result


def called_on_levels(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call another function of single values with the table in a deferred tensor's place.

    Returns:
        Its result, deferred; ``None`` if the call cannot be recorded.
    """
    if not args or type(args[0]) is not torch.Tensor or any(args[3:]) or kwargs.get("inplace"):
        return None
    with torch._C.DisableTorchFunction():
        if not deferred_memory.is_deferred(args[0]):
            return None
        result = pointwise(recorder, func, args, kwargs)
    return None if result is UNKNOWN else result


def _is_one_with_channels_last(tensor: Any) -> bool:
    """Whether it is ``image[None]``, whose first stride results keep, or a crop of it."""
    if tensor.dim() != 4 or tensor.shape[0] != 1:
        return False
    image, channel, row, column = tensor.stride()
    return (image, channel, column) == (3, 1, 3) and row >= 3 * tensor.shape[-1]


def _part_of_values(tensor: Any) -> tuple[Any, Content, bool] | None:
    """See :func:`part_of_tensor`; for functions whose results keep the order of strides."""
    return part_of_tensor(tensor[0] if _is_one_with_channels_last(tensor) else tensor)


def _is_table(values: Any, tensor: Any, channels: int) -> bool:
    """Whether a function's result for a table is one again."""
    return (
        type(values) in _IMAGES
        and values.dim() == tensor.dim()
        and values.shape[-2 - (channels > 1) :] == (channels, 256, 1)[-2 - (channels > 1) :]
        and values.numel() == channels * 256
        and values.device.type == "cpu"
        and values.dtype in DTYPES
    )


def _require_certain(func: Any, args: Any, kwargs: dict[str, Any], levels: torch.Tensor, values: torch.Tensor) -> None:
    """Raise ``_UncertainError`` unless torch gives each value the same bits wherever it is in memory.

    Some values of a tensor are computed by vectors, the others one by one, which may differ in what is rounded several
    times, in the bits of NaN, and in integers that a conversion does not define.
    """
    certain = True
    if values.is_floating_point():
        factor = "alpha" in kwargs or (func in _SUMS and len(args) > 2)
        several = factor or func in _SEVERAL_ROUNDINGS or "rounding_mode" in kwargs
        certain = not several and torch.equal(values, values)
    elif levels.is_floating_point() and values.dtype is not torch.bool:
        certain = torch.equal(values.reshape(levels.shape).to(levels.dtype), levels.trunc())
    if not certain:
        raise _UncertainError


class _UncertainError(Exception):
    """Not all values are certain."""


_TORCHS: Final = frozenset([RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, OverflowError])


def _is_torchs(error: Exception) -> bool:
    """Whether torch refuses a call, and no handler of a signal has raised."""
    frames = traceback.walk_tb(error.__traceback__)
    names = {str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame, _ in frames}
    return type(error) in {*_TORCHS, _UncertainError} and names <= {"torch", "torchvision", "fastload"}


def _changed_fills(
    content: Content, run: Callable[[torch.Tensor], Any], func: Any, args: Any, kwargs: dict[str, Any]
) -> tuple[Fill, ...]:
    """Return a content's fills after a function, which ``run`` does to levels."""
    fills = []
    known: dict[int, torch.Tensor] = {}  # by the ids of values, which fills share
    for each in content.fills:
        if (values := known.get(id(each.values))) is None:
            made = run(each.values[:, None])
            _require_certain(func, args, kwargs, each.values, made)
            values = known[id(each.values)] = made.reshape(-1)
        fills.append(Fill(each.image, each.box, values))
    return tuple(fills)


def _by_torch(func: Any, args: Any, kwargs: Any, tensor: Any, content: Content) -> Any:
    """Call a function with an ordinary tensor in place of a deferred one."""
    return _called_with(painted_as(tensor, content), func, args, kwargs, tensor)


def _called_with(real: Any, func: Any, args: Any, kwargs: Any, tensor: Any) -> Any:
    return func(
        *(real if each is tensor else each for each in args),
        **{name: real if each is tensor else each for name, each in kwargs.items()},
    )


def _in_place(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function that changes single values of its first argument."""
    tensor = args[0]
    found = _part_of_values(tensor)
    if found is None or not found[2] or not may_change(tensor):
        return UNKNOWN
    if (call := _call_of(func, tensor, args, kwargs)) is None:
        return UNKNOWN
    memory, content, _ = found

    def run(levels: torch.Tensor) -> torch.Tensor:
        changed = _on_values(tensor, levels.clone())
        func(changed, *args[1:], **kwargs)
        whole: torch.Tensor = changed.as_subclass(torch.Tensor).reshape(levels.shape)
        return whole

    known = call, id(content.table)
    _, table, _ = _results.get(known, _NOTHING)
    try:
        if table is None:
            values = run(content.table)
            _require_certain(func, args, kwargs, content.table, values)
            table = shared_table(values)
            _results[known] = content.table, table, 0
        fills = _changed_fills(content, run, func, args, kwargs)
    except Exception as error:  # torch raises it again, for the image
        if not _is_torchs(error):
            raise
        return UNKNOWN
    made = content.with_values(table, fills)
    kind, _ = _result_like(func, args, kwargs, tensor, content)
    result = tensor if kind is type(tensor) else as_view(recorder, _T.as_subclass, (tensor, kind), {})
    key = func, tensor.dim(), content.planar, content.table.dtype
    by_torch = lambda: _by_torch(func, args, kwargs, tensor, content)  # noqa: E731
    if not recorder.checked(key, made, result, by_torch) or not deferred_memory.change(memory, made):
        return UNKNOWN
    if not tensor.is_inference():
        torch._C._increment_version((tensor,))
    return result


def may_change(tensor: torch.Tensor) -> bool:
    """Whether torch lets a tensor be changed here."""
    return not tensor.is_inference() or torch.is_inference_mode_enabled()


def _clone(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs or (found := part_of_tensor(args[0])) is None:
        return UNKNOWN
    tensor, content = args[0], found[1]
    key = func, tensor.dim(), content.planar, content.table.dtype
    kind, small = _result_like(func, args, kwargs, tensor, content)
    by_torch = lambda: _by_torch(func, args, kwargs, tensor, content)  # noqa: E731
    return recorded(recorder, key, content, tensor.dim(), kind, by_torch, small=small)


def _contiguous(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs or (found := part_of_tensor(args[0])) is None:
        return UNKNOWN
    tensor, content = args[0], found[1]
    if tensor.is_contiguous():
        return as_view(recorder, func, args, kwargs)
    made = replace(content, planar=True)
    key = func, tensor.dim(), content.planar, content.table.dtype
    kind, small = _result_like(func, args, kwargs, tensor, content)
    by_torch = lambda: _by_torch(func, args, kwargs, tensor, content)  # noqa: E731
    return recorded(recorder, key, made, tensor.dim(), kind, by_torch, small=small)


def _flip(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not args or (found := part_of_tensor(args[0])) is None:
        return UNKNOWN
    tensor, content = args[0], found[1]
    dims: Any = args[1:] or tuple(kwargs.values())
    dims = dims[0] if len(dims) == 1 and isinstance(dims[0], list | tuple) else dims
    if set(kwargs) - {"dims"} or not all(type(each) is int for each in dims):
        return UNKNOWN
    axes = [each - tensor.dim() if each >= 0 else each for each in dims]
    if not axes or len(set(axes)) < len(axes) or not set(axes) <= {-1, -2}:
        return UNKNOWN
    made = flipped(content, horizontally=-1 in axes, vertically=-2 in axes)
    key = func, tuple(sorted(axes)), tensor.dim(), content.planar, content.table.dtype
    kind, small = _result_like(func, args, kwargs, tensor, content)
    by_torch = lambda: _by_torch(func, args, kwargs, tensor, content)  # noqa: E731
    return recorded(recorder, key, made, tensor.dim(), kind, by_torch, small=small)


def ordinary(tensor: Any, shape: tuple[int, ...], content: Content) -> Any:
    """An ordinary tensor with another's type and the layout of a content of 3 channels."""
    made = torch.empty_strided(shape, strides_of(shape, planar=content.planar), dtype=content.table.dtype)
    return made.as_subclass(type(tensor))


def _result_like(func: Any, args: Any, kwargs: Any, tensor: Any, content: Content) -> tuple[type, Any]:
    """The type of a function's result, and its result for a small mask.

    The latter is ``None`` if the tensor is no mask.
    """
    if content.channels > 1 and type(tensor) is torch.Tensor:
        return torch.Tensor, None
    small = _called_with(small_ordinary(tensor, content), func, args, kwargs, tensor)
    return type(small), small if content.channels == 1 else None


def small_ordinary(tensor: Any, content: Content) -> Any:
    """An ordinary tensor of few values with another's type and layout."""
    if content.channels == 1:
        return small_like(tensor, content)
    return ordinary(tensor, (1, 3, 2, 4)[-tensor.dim() :], content)


def painted_as(tensor: Any, content: Content) -> Any:
    """An ordinary tensor with another's type and shape that holds a content.

    If it is neither a mask nor one of a batch, it has no gaps.
    """
    if content.channels == 1:
        real = torch.empty_strided(tensor.shape, tensor.stride(), dtype=content.table.dtype, device="cpu")
        gapless = painted(content, torch.empty(tensor.shape, device="meta"))
        return real.copy_(gapless).as_subclass(type(tensor))
    if _is_one_with_channels_last(tensor):
        real = torch.empty_strided(tensor.shape, tensor.stride(), dtype=content.table.dtype, device="cpu")
        return real.copy_(painted_as(tensor[0], content)[None]).as_subclass(type(tensor))
    return painted(content, ordinary(tensor, tuple(tensor.shape), content)).as_subclass(type(tensor))


_BASIC: Final = (int, slice, type(Ellipsis), type(None))


def _set(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Put a constant into a box."""
    tensor, index, value = args
    found = part_of_tensor(tensor)
    places = index if isinstance(index, tuple) else (index,)
    if found is None or not found[2] or not all(type(each) in _BASIC for each in places):
        return UNKNOWN
    if type(value) not in (int, float, bool, torch.Tensor) or _constant(value) is None:
        return UNKNOWN
    memory, content, _ = found
    if not may_change(tensor):
        return UNKNOWN
    box = tensor[index]
    if not box.numel():
        return UNKNOWN
    where = placed(box, content, side_min=1)
    if where is None:
        return UNKNOWN
    try:
        one = (1,) * (box.dim() - 3) + (3, 1, 1) if content.channels == 3 else (1,) * box.dim()
        values = torch.empty(one, dtype=tensor.dtype)
        values[:] = value
    except Exception as error:  # torch raises it again, for the image
        if not _is_torchs(error):
            raise
        return UNKNOWN
    images, area = where
    fills = tuple(Fill(image, area, values.reshape(-1)) for image in images)
    made = replace(content, fills=content.fills + fills)

    def by_torch() -> Any:
        real = painted(content, tensor)
        func(real, index, value)
        return real

    key = func, tensor.dim(), content.planar, content.table.dtype
    alike = tensor.as_subclass(torch.Tensor)
    if not recorder.checked(key, made, alike, by_torch) or not deferred_memory.change(memory, made):
        return UNKNOWN
    if not tensor.is_inference():
        torch._C._increment_version((tensor,))
    return None


def as_view(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function whose results are in its argument's memory."""
    made = func(*args, **kwargs)
    for tensor in made if isinstance(made, tuple) else (made,):
        if isinstance(tensor, torch.Tensor):
            deferred_memory.note_view(tensor)
    return made


def _as_it_is(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A view, or a look that reads no pixels, if the arguments say so."""
    if func is _T.__getitem__:
        places = args[1] if isinstance(args[1], tuple) else (args[1],)
        known = all(type(each) in _BASIC for each in places)
        return as_view(recorder, func, args, kwargs) if known else UNKNOWN
    wanted = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
    return func(*args, **kwargs) if wanted is False else UNKNOWN


def named(*names: str) -> list[Any]:
    """Functions of tensors and of the module torch with these names."""
    found = [getattr(place, name, None) for name in names for place in (torch.Tensor, torch)]
    return [each for each in found if each is not None]


_PASSED: Final = frozenset(
    [
        *(
            getattr(_T, name).__get__
            for name in (
                *("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_nested", "is_sparse", "is_cuda"),
                *("is_quantized", "is_meta", "is_mps", "is_leaf", "_version", "itemsize", "nbytes", "grad"),
            )
        ),
        *named("size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "is_contiguous"),
        *named(
            "element_size", "is_floating_point", "is_complex", "is_signed", "get_device", "is_inference", "is_pinned"
        ),
        *named("is_conj", "is_neg", "is_shared"),
        *named("new_empty", "new_zeros", "new_ones", "new_full"),
        *named("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
        _T.__len__,
        *(
            getattr(torch, name)
            for name in ("rand", "randint", "empty", "zeros", "ones", "randn", "arange", "randperm")
        ),
    ]
)
"""Functions that read no pixels, and return no tensor of theirs."""

_RESIZES: Final = frozenset(named("resize_", "resize_as_", "set_"))
"""Functions that may need memory that can be resized, as those with an ``out``."""

_VIEWS: Final = (
    *("view", "permute", "transpose", "unsqueeze", "squeeze", "narrow", "unbind", "select", "detach", "as_subclass"),
    *("movedim", "moveaxis", "swapaxes", "expand", "unflatten", "view_as", "alias", "as_strided"),
)
"""Functions that return tensors in their argument's memory, whose content is known."""

DTYPES: Final = frozenset(
    [
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64),
        *(torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    ]
)
"""Of tensors that can be deferred."""

_SUMS: Final = frozenset(named("add", "sub", "subtract", "rsub", "add_", "sub_", "subtract_"))
"""Functions whose third argument is a factor."""

_SEVERAL_ROUNDINGS: Final = frozenset(named("floor_divide", "remainder"))

_MAKERS: Final[dict[Any, Handler]] = {}

_HANDLERS: Final[dict[Any, Handler]] = {
    **dict.fromkeys(
        [
            *named(
                "add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "neg", "negative", "rsub"
            ),
            *named("clamp", "clip", "abs", "floor_divide", "remainder", "round", "floor", "ceil", "bitwise_not"),
            *named(
                "to",
                "float",
                "half",
                "bfloat16",
                "double",
                "byte",
                "int",
                "long",
                "type",
                "eq",
                "ne",
                "lt",
                "le",
                "gt",
                "ge",
            ),
            *(getattr(_T, name) for name in ("__rsub__", "__rdiv__", "__rtruediv__") if hasattr(_T, name)),
            torch.as_tensor,
        ],
        pointwise,
    ),
    **dict.fromkeys(
        named("add_", "sub_", "subtract_", "mul_", "multiply_", "div_", "divide_", "true_divide_", "neg_", "clamp_"),
        _in_place,
    ),
    **dict.fromkeys(named("clone"), _clone),
    **dict.fromkeys([_T.contiguous], _contiguous),
    **dict.fromkeys(named("flip"), _flip),
    **dict.fromkeys([_T.__setitem__], _set),
    **dict.fromkeys([*named(*_VIEWS), _T.data.__get__], as_view),
    **dict.fromkeys([_T.__getitem__, _T.requires_grad_], _as_it_is),
}
