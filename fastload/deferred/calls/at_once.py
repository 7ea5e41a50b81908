"""Tensors of small images, and normalized tensors, made at once with few calls."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
from PIL import Image, _imaging

from fastload import _core
from fastload._batch import is_plain
from fastload.deferred import memory
from fastload.deferred.content import OF_SIZE
from fastload.deferred.geometry import SIDE_MIN, strides_of
from fastload.deferred.recorder import called_on_levels

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.deferred.recorder import CallRecorder

_CHANNELS: Final = {"RGB": 3, "L": 1}
_CONSTANTS_MAX: Final = 64
_MADE: Final = type(_imaging.new("L", (1, 1)))
_NUMBERS: Final = frozenset([float, int, type(None)])
_LISTS: Final = (list, tuple)

_constants: Final[dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor] | None]] = {}


def is_small(image: Any, bytes_max: int) -> bool:
    """Whether it is a small image whose pixels Pillow has.

    Args:
        image: Any object.
        bytes_max: The most of its pixels.
    """
    if type(image) is not Image.Image or type(image._im) is not _MADE:
        return False
    channels, sides = _CHANNELS.get(image.mode), image.size
    return channels is not None and min(sides) >= SIDE_MIN and channels * math.prod(sides) < bytes_max


class Values:
    """Makes tensors of images by a table.

    Args:
        table: As of :class:`~fastload.deferred.content.Content`.
        planar: As of it.
    """

    def __init__(self, table: torch.Tensor, *, planar: bool) -> None:
        self._dtype, self._planar, self._channels = table.dtype, planar, len(table)
        self._table = table.view(OF_SIZE[table.element_size()]).numpy()

    def of(self, image: Image.Image) -> torch.Tensor:
        """Look up the pixels of an image that :func:`is_small`.

        Returns:
            ``(C, H, W)``, of the table's dtype.
        """
        width, height = image.size
        size = self._channels, height, width
        with torch._C.DisableTorchFunction():
            made = torch.empty_strided(size, strides_of(size, planar=self._planar), dtype=self._dtype)
        _core.look_up_bytes(image.tobytes(), self._table, memory.view_of(made, memory.WRITE), self._planar)
        return made


def normalized(versions: int) -> Callable[[CallRecorder, Any, tuple[Any, ...], dict[str, Any]], Any]:
    """Return what normalizes tensors, deferred or not, as one of torchvision's functions.

    Args:
        versions: How often that one changes its result in place.
    """

    def record(recorder: CallRecorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not args or type(args[0]) is not torch.Tensor:
            return None
        with torch._C.DisableTorchFunction():
            if memory.is_deferred(args[0]):
                return called_on_levels(recorder, func, args, kwargs)
            return _normalized(versions, *args, **kwargs)

    return record


def _normalized(
    versions: int, tensor: torch.Tensor, mean: Any = None, std: Any = None, inplace: Any = False
) -> torch.Tensor | None:
    if inplace is not False or tensor.dtype is not torch.float32 or tensor.requires_grad or not tensor.is_cpu:
        return None
    if not is_plain(tensor):
        return None
    shape = tensor.shape
    if len(shape) != 3 or shape[1] < SIDE_MIN or shape[2] < SIDE_MIN or not tensor.is_contiguous():
        return None  # or the result's strides may depend on how it is computed
    if type(mean) not in _LISTS or type(std) not in _LISTS:
        return None
    key = shape[0], *mean, None, *std
    try:
        constants = _constants[key]
    except KeyError:
        constants = _constants_of(key, mean, std)
    except TypeError:  # of what cannot be hashed
        return None
    if constants is None:
        return None
    made = tensor.sub(constants[0]).div_(constants[1])
    torch._C._increment_version([made] * (versions - 1))
    return made


def _constants_of(key: tuple[Any, ...], mean: Any, std: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The tensors that torchvision makes of lists of numbers.

    Returns:
        ``None`` if it would do anything else.
    """
    if not {*map(type, key)} <= _NUMBERS or not {len(mean), len(std)} <= {1, key[0]}:
        return None
    if len(_constants) >= _CONSTANTS_MAX:
        _constants.clear()
    two = [torch.as_tensor(each, dtype=torch.float32).view(-1, 1, 1) for each in (mean, std)]
    usual = 0 not in mean and not bool((two[1] == 0).any())  # 0 may be -0.0, which is the same key
    _constants[key] = (two[0], two[1]) if usual else None
    return _constants[key]
