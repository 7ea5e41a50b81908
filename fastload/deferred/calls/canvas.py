"""Record tensors of constants that deferred images are put into.

Nothing is filled or copied then. A *canvas* is a tensor of one value, or of none yet, that the user's code makes while
there are deferred tensors, such as ``torch.zeros(n, 3, height, width)``. It is deferred, too; ``copy_``, ``+=`` and
assignments of deferred images to parts of it change its content. Rows that images take completely are a stack of them;
others have constants around an image.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.functional import pad

from fastload import _core
from fastload._batch import is_plain
from fastload._compare import same_bits
from fastload.deferred import memory as deferred_memory
from fastload.deferred.content import Content, Fill
from fastload.deferred.geometry import SIDE_MIN, part_of, placed, shape_of, small_like, strides_of
from fastload.deferred.placed import Placed, blank, common, outside, placed_at
from fastload.deferred.recorder import (
    DTYPES,
    IDENTITY,
    CallRecorder,
    line_of_user,
    may_change,
    painted,
    painted_as,
    part_of_tensor,
    pointwise,
    record_by,
    record_makers_by,
    recorded,
    shared_table,
)
from fastload.lazy.images import TARGET_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastload.deferred.picked import Picked
    from fastload.deferred.placed import Box
    from fastload.lazy.pixels import Pending

MIN_BYTES: Final = 1 << 16
"""The smallest canvas. Smaller tensors are filled as fast as they are deferred."""

TRIED_MIN: Final = 16
"""Canvases of a line of the user's code, after which it is known whether images are put into them."""

_T: Final[Any] = torch.Tensor
_SIZES: Final = frozenset([list, tuple, torch.Size])
_NAMED: Final = frozenset(["size", "fill_value", "dtype", "device", "layout", "requires_grad"])
_UNFILLED: Final = frozenset([torch.empty, _T.new, _T.new_empty, torch.empty_like])
_OF_A_TENSOR: Final = frozenset([torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like])
_NEW: Final = frozenset([_T.new, _T.new_empty, _T.new_zeros, _T.new_ones, _T.new_full])
_METHODS: Final = _NEW | _OF_A_TENSOR
_MAKERS: Final = frozenset(
    [
        *(torch.empty, torch.zeros, torch.ones, torch.full),
        *_METHODS,
    ]
)


class _Trial:
    """Learns whether images are put into the canvases of a line."""

    def __init__(self) -> None:
        self.tried = self.gained = 0

    @property
    def is_lost(self) -> bool:
        return self.tried >= TRIED_MIN and 2 * self.gained < self.tried


_trials: defaultdict[Any, _Trial] = defaultdict(_Trial)


def _made(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Defer a tensor of one value."""
    parsed = _size_of(func, args, kwargs)
    if parsed is None or recorder.is_off or not _core.has_deferred_memory():
        return NotImplemented
    shape, channels, small_args, small_kwargs = parsed
    trial = _trials[func, line_of_user()]
    if trial.is_lost:
        return NotImplemented
    try:
        small = func(*small_args, **small_kwargs)
    except (RuntimeError, TypeError, ValueError):  # torch raises it again
        return NotImplemented
    if not _is_usual(small) or math.prod(shape) * small.itemsize < MIN_BYTES:
        return NotImplemented
    height, width = shape[-2:]
    values = torch.zeros(channels, dtype=small.dtype) if func in _UNFILLED else small.expand(channels).clone()
    table = IDENTITY[:channels] if small.dtype == torch.uint8 else torch.zeros((channels, 256), dtype=small.dtype)
    count = shape[0] if len(shape) > (3 if channels == 3 else 2) else 1
    fills = tuple(Fill(image, (0, 0, height, width), values) for image in range(count))
    content = Content((blank((width, height), channels),) * count, shared_table(table), True, fills)

    def by_torch() -> Any:
        theirs = func(*args, **kwargs)
        return theirs.zero_() if func in _UNFILLED else theirs

    key = func, small.dtype, channels, len(shape)
    made = recorded(recorder, key, content, len(shape), torch.Tensor, by_torch)
    memory = deferred_memory.memory_of(made) if isinstance(made, torch.Tensor) else None
    if memory is None:
        return NotImplemented
    trial.tried += 1
    memory.trial = trial
    return made


def _size_of(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[int, ...], int, tuple[Any, ...], dict[str, Any]] | None:
    """Find the size of the canvas that a function is to make.

    Returns:
        That, the channels of its images, and the function's arguments for a tensor of one value. ``None`` if it makes
        no canvas.
    """
    if kwargs and not kwargs.keys() <= _NAMED:
        return None
    skipped = int(func in _METHODS)
    if skipped and (not args or type(args[0]) is not torch.Tensor):
        return None
    rest = args[skipped:]
    if func in _OF_A_TENSOR:
        like = args[0]
        if not is_plain(like) or like.device.type != "cpu" or not like.is_contiguous():
            return None
        shape, args = like.shape, (torch.empty(1, dtype=like.dtype), *rest)
    elif "size" in kwargs:
        shape, kwargs = kwargs["size"], {**kwargs, "size": (1,)}
    elif rest and type(rest[0]) in _SIZES and func is not _T.new:
        shape, args = rest[0], (*args[:skipped], (1,), *rest[1:])
    else:
        shape, args = rest, (*args[:skipped], 1)
    if type(shape) not in _SIZES or len(shape) not in (3, 4) or not all(type(each) is int for each in shape):
        return None
    *count, height, width = shape
    channels = 1 if func in _NEW and _is_mask(args[0]) else 3
    if (
        (count[-1] != channels and not (channels == 1 and len(count) == 1))
        or min(height, width) < SIDE_MIN
        or height * width > TARGET_MAX
        or not all(each > 0 for each in count)
    ):
        return None
    return tuple(shape), channels, args, kwargs


def _is_mask(tensor: Any) -> bool:
    memory = deferred_memory.memory_of(tensor)
    return memory is not None and isinstance(memory.content, Content) and memory.content.channels == 1


def _is_usual(small: Any) -> bool:
    return (
        type(small) is torch.Tensor
        and small.device.type == "cpu"
        and small.layout is torch.strided
        and small.dtype in DTYPES
        and small.shape == (1,)
        and not small.requires_grad
        and is_plain(small)
    )


def _new_of_sizes(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tensor of another's type and no values, which reads none of its pixels."""
    is_of_sizes = not kwargs and all(type(each) is int for each in args[1:])
    return func(*args) if is_of_sizes else NotImplemented


class _Region:
    """A part of unpainted memory that can be changed: the same box of some images.

    Attributes:
        memory: The memory.
        content: What that holds.
        images: Which.
        box: See there.
    """

    def __init__(self, memory: Any, content: Content, images: range, box: Box) -> None:
        self.memory = memory
        self.content = content
        self.images = images
        self.box = box

    @property
    def is_whole(self) -> bool:
        """Whether the box is all of each image."""
        return self.box == (0, 0, *self.content.image_size)

    def value(self) -> torch.Tensor | None:
        """The value of each channel, ``(3,)``, if it is one in all of it."""
        found = None
        for image in self.images:
            values = None
            for fill in reversed(self.content.fills):
                if fill.image == image and (shared := common(fill.box, self.box)) is not None:
                    values = fill.values if shared == self.box else None
                    break
            if values is None or not (found is None or found is values or same_bits(found, values)):
                return None
            found = values
        return found

    def with_images(
        self, given: Sequence[Pending | Placed | Picked | None], table: torch.Tensor, fills: Sequence[Fill]
    ) -> Content | None:
        """Return what the memory holds with images in the region.

        Args:
            given: As many images, of the box's size; ``None`` is one that fills hide.
            table: Of their levels, and the content's if none is given.
            fills: Of these images, by their places in ``given``.

        Returns:
            ``None`` if it cannot be said.
        """
        content, box = self.content, self.box
        height, width = content.image_size
        images: list[Pending | Placed | Picked] = []
        for number, image in zip(self.images, given, strict=True):
            before = content.images[number]
            area = before.box if isinstance(before, Placed) else (0, 0, height, width)
            is_hidden = _is_blank(before) or common(area, box) == area
            if image is not None and not is_hidden:
                return None
            if image is None:
                images.append(blank((width, height), content.channels) if is_hidden else before)
            else:
                images.append(placed_at(image, (width, height), *box[:2]))
        if table is not content.table:
            seen = (image for number, image in enumerate(content.images) if number not in self.images)
            if not all(map(_is_blank, seen)):
                return None
        kept = [
            Fill(fill.image, part, fill.values)
            for fill in content.fills
            if fill.image in self.images
            for part in outside(fill.box, box)
        ]
        top, left, *_ = box
        added = [
            Fill(self.images[fill.image], (top + fill.box[0], left + fill.box[1], *fill.box[2:]), fill.values)
            for fill in fills
        ]
        return content.with_images(self.images.start, tuple(images), table, (*kept, *added))

    def change(self, recorder: CallRecorder, key: Any, made: Content | None, do: Callable[[torch.Tensor], Any]) -> bool:
        """Let the memory hold something else; return whether it does.

        Args:
            recorder: Compares it with torch's.
            key: The kind of change.
            made: What it is to hold; of other images the same. Else nothing changes.
            do: Makes the change in that region of an ordinary tensor.
        """
        if made is None:
            return False
        height, width = self.content.image_size
        whole = 0, 0, height, width
        before, after = part_of(self.content, self.images, whole), part_of(made, self.images, whole)
        if before is None or after is None:
            return False
        shape = shape_of(after, 4)
        like = torch.empty_strided(shape, strides_of(shape, planar=made.planar), dtype=made.table.dtype, device="meta")

        def by_torch() -> Any:
            real = painted(before, like)
            top, left, rows, columns = self.box
            do(real[..., top : top + rows, left : left + columns])
            return real

        key = key, made.channels, made.planar, made.table.dtype, self.is_whole
        if not recorder.checked(key, after, like, by_torch) or not deferred_memory.change(self.memory, made):
            return False
        trial = getattr(self.memory, "trial", None)
        if trial is not None:
            trial.gained += 1
            self.memory.trial = None
        return True


def _is_blank(image: Pending | Placed | Picked) -> bool:
    return isinstance(image, Placed) and image.is_blank


def _region_of(tensor: Any) -> _Region | None:
    """The part of unpainted memory that a tensor is, if it may be changed."""
    if type(tensor) is not torch.Tensor or tensor.requires_grad or not may_change(tensor):
        return None
    memory = deferred_memory.memory_of(tensor)
    is_of_images = memory is not None and isinstance(memory.content, Content)
    where = placed(tensor, memory.content, side_min=1) if memory is not None and is_of_images else None
    return None if memory is None or where is None else _Region(memory, memory.content, *where)


def _note_change(*tensors: torch.Tensor) -> None:
    """Count a change in tensors' versions."""
    for each in tensors:
        if not each.is_inference():
            torch._C._increment_version((each,))


def _put(recorder: CallRecorder, func: Any, target: Any, source: Any) -> bool:
    """Copy or add deferred images into a part of unpainted memory.

    Returns:
        Whether that is recorded.
    """
    if type(source) is not torch.Tensor or type(target) is not torch.Tensor or source.shape != target.shape:
        return False
    region, found = _region_of(target), part_of_tensor(source)
    if region is None or found is None or found[0] is region.memory:
        return False
    original = given = found[1]
    if given.channels != region.content.channels:
        return False
    if given.images[0].file.pass_rule != region.content.images[0].file.pass_rule:
        return False
    if given.table.dtype != region.content.table.dtype:
        converted = part_of_tensor(pointwise(recorder, _T.to, (source, target.dtype), {})) if func is _T.copy_ else None
        if converted is None:
            return False
        given = converted[1]
    fills, table = given.fills, given.table
    if func is not _T.copy_:
        if (value := region.value()) is None:
            return False
        table = value[:, None].expand(-1, 256).clone().add_(table)
        fills = tuple(Fill(each.image, each.box, value.clone().add_(each.values)) for each in fills)
        if not all(torch.equal(each, each) for each in (table, *(fill.values for fill in fills))):
            return False  # the bits of NaN are uncertain
        table = shared_table(table)

    def do(real: torch.Tensor) -> None:
        func(real.view(target.shape), painted_as(source, original))

    return region.change(recorder, (func, original.table.dtype), region.with_images(given.images, table, fills), do)


def _copy(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copy deferred images to a part of unpainted memory, or add them to constants there."""
    is_known = len(args) in ((2, 3) if func is _T.copy_ else (2,)) and not kwargs.keys() - (
        {"non_blocking"} if func is _T.copy_ else set()
    )
    if not is_known or not _put(recorder, func, *args[:2]):
        return NotImplemented
    _note_change(args[0])
    return args[0]


def _fill_region(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Fill a part of unpainted memory with a constant."""
    numbers = args[1:]
    if kwargs or not all(type(each) in (int, float, bool) for each in numbers):
        return NotImplemented
    region = _region_of(args[0])
    if region is None:
        return NotImplemented
    try:
        one = func(torch.empty(1, dtype=args[0].dtype), *numbers)
    except (RuntimeError, TypeError, ValueError):  # torch raises it again
        return NotImplemented
    values = one.expand(region.content.channels).clone()
    fills = [Fill(number, (0, 0, *region.box[2:]), values) for number in range(len(region.images))]
    made = region.with_images([None] * len(region.images), region.content.table, fills)
    if not region.change(recorder, func, made, lambda real: func(real, *numbers)):
        return NotImplemented
    _note_change(args[0])
    return args[0]


_BASIC: Final = frozenset([int, slice, type(Ellipsis), type(None)])


def _set(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Assign deferred images to a part of unpainted memory."""
    tensor, index, value = args
    places = index if isinstance(index, tuple) else (index,)
    if (
        type(value) is not torch.Tensor
        or type(tensor) is not torch.Tensor
        or not all(type(p) in _BASIC for p in places)
    ):
        return NotImplemented
    try:
        target = tensor[index]
    except (IndexError, TypeError, ValueError):  # torch raises it again
        return NotImplemented
    if _is_same(target, value):  # as after ``tensor[index] += other``
        if _region_of(tensor) is None or value.requires_grad:
            return NotImplemented
    elif not _put(recorder, _T.copy_, target, value):
        return NotImplemented
    _note_change(tensor)
    return None


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether tensors are the same elements in the same order."""
    memory = deferred_memory.memory_of(one)
    return (
        memory is not None
        and memory is deferred_memory.memory_of(other)
        and (one.storage_offset(), one.shape, one.stride()) == (other.storage_offset(), other.shape, other.stride())
        and one.dtype == other.dtype
    )


def _padded(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Put constants around deferred images."""
    given = {**dict(zip(("input", "pad", "mode", "value"), args, strict=False)), **kwargs}
    tensor, edges, mode, value = (given.pop(name, None) for name in ("input", "pad", "mode", "value"))
    if given or mode not in (None, "constant") or type(tensor) is not torch.Tensor or type(value) not in _NUMBERS:
        return NotImplemented
    if type(edges) not in _SIZES or len(edges) not in (2, 4) or not all(type(e) is int and e >= 0 for e in edges):
        return NotImplemented
    found = part_of_tensor(tensor[0] if tensor.dim() == 4 and len(tensor) == 1 else tensor)  # whatever its stride
    if found is None:
        return NotImplemented
    content, rest = found[1], {} if mode is None else {"mode": mode}
    is_mask, small = content.channels == 1, None
    left, _, top, _ = (*edges, 0, 0)[:4]
    try:
        one = func(torch.zeros((1, 1), dtype=tensor.dtype), (1, 0), value=value, **rest)[0, :1]
        like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        like = func(like, edges, value=value, **rest)
        if is_mask:
            small = func(small_like(tensor, content), tuple(min(edge, 1) for edge in edges), value=value, **rest)
    except (RuntimeError, TypeError, ValueError):  # torch raises it again
        return NotImplemented
    height, width = like.shape[-2:]
    layouts = (each for each in (True, False) if strides_of(like.shape, planar=each) == like.stride())
    planar = True if is_mask else next(layouts, None)
    if planar is None or height * width > TARGET_MAX or one.dtype != like.dtype or like.dtype != tensor.dtype:
        return NotImplemented
    rows, columns = content.image_size
    values = one.expand(content.channels).clone()
    borders = [*outside((0, 0, height, width), (top, left, rows, columns))]
    fills = [Fill(number, border, values) for number in range(len(content.images)) for border in borders]
    fills += [Fill(f.image, (top + f.box[0], left + f.box[1], *f.box[2:]), f.values) for f in content.fills]
    images = tuple(placed_at(image, (width, height), top, left) for image in content.images)
    made = Content(images, content.table, planar, tuple(fills))

    def by_torch() -> Any:
        real = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return func(real.copy_(painted_as(tensor, content)), edges, value=value, **rest)

    key = func, tensor.dim(), content.channels, content.planar, planar, content.table.dtype
    return recorded(recorder, key, made, tensor.dim(), torch.Tensor, by_torch, small=small)


_NUMBERS: Final = (int, float, type(None))


@functools.cache
def install() -> None:
    """Let recorders that are made from now on record all this."""
    record_makers_by(_made, _MAKERS)
    record_by(_new_of_sizes, [_T.new])
    record_by(_copy, [_T.copy_, _T.add_])
    record_by(_fill_region, [_T.fill_, _T.zero_, torch.fill_, torch.zero_])
    record_by(_set, [_T.__setitem__])
    record_by(_padded, [pad])
