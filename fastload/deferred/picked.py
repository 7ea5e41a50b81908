"""Describe masks whose tensors are not made yet.

Crops, flips and resizes by NEAREST only pick rows and columns of their levels.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, cast

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from fastload import _core

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from fastload.lazy.masks import Indices, PendingMask

_LEVELS: Final = np.arange(256, dtype=np.uint8)[None]

_COMPUTED_AS: Final[Mapping[torch.dtype, torch.dtype]] = {torch.uint8: torch.float32, torch.float32: torch.float32}
"""The dtype in which torch computes which pixels a resize takes, by the tensor's.

In float64 that differs from one of its kernels to another.
"""

SIDE_MAX: Final = 1 << 24
"""The largest side whose places are all known in float32, pixels."""


@dataclass(frozen=True, slots=True, eq=False)
class Picked:
    """Stands for the pixels of a tensor of one channel.

    Attributes:
        file: The levels of the whole mask.
        rows: ``(H,)``, int32: which of its rows each row is.
        columns: ``(W,)``, int32: the same of columns.
    """

    file: Indices
    rows: NDArray[np.int32]
    columns: NDArray[np.int32]

    channels: ClassVar = 1

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, pixels."""
        return len(self.columns), len(self.rows)

    def cropped(self, box: tuple[int, int, int, int]) -> Picked:
        """Crop to a box within the image."""
        left, top, right, bottom = box
        made = replace(self, rows=self.rows[top:bottom], columns=self.columns[left:right])
        is_small = 2 * math.prod(made.size) < math.prod(self.file.size)  # which is kept with it
        return picked(self.file.made(made.pixels())) if is_small else made

    def turned(self, method: int) -> Picked:
        """Flip."""
        if method == Image.Transpose.FLIP_LEFT_RIGHT:
            return replace(self, columns=self.columns[::-1])
        return replace(self, rows=self.rows[::-1])

    def resized(self, size: tuple[int, int], dtype: torch.dtype) -> Picked | None:
        """Resize as torch does by ``"nearest"``; ``None`` if it is uncertain what that is.

        Args:
            size: Width and height, pixels.
            dtype: The tensor's.
        """
        if dtype not in _COMPUTED_AS or max(self.size) > SIDE_MAX:
            return None
        width, height = size
        rows, columns = (
            places[_taken(len(places), side, _COMPUTED_AS[dtype])]
            for places, side in ((self.rows, height), (self.columns, width))
        )
        return replace(self, rows=rows, columns=columns)

    def pixels(self) -> NDArray[np.uint8]:
        """Make the pixels, ``(H, W, 1)``."""
        width, height = self.size
        made = np.empty((height, width, 1), np.uint8)
        program = [self.core_program()]
        _core.TensorProgram(program, (height, width), self.file.pass_rule, _LEVELS, True).paint(made.reshape(-1))
        return made

    def core_program(self, place: tuple[int, int, int, int] | None = None) -> _core.ImageProgram:
        """The core's form of it. The argument is :meth:`fastload.lazy.pixels.Pending.core_program`'s."""
        width, height = self.file.size
        places = np.ascontiguousarray(self.rows), np.ascontiguousarray(self.columns)
        return _core.ImageProgram.picked(self.file.data, (height, width), *places, place)


def picked(levels: Indices) -> Picked:
    """Return a whole mask."""
    width, height = levels.size
    return Picked(levels, np.arange(height, dtype=np.int32), np.arange(width, dtype=np.int32))


def picked_of(mask: PendingMask) -> Picked:
    """Return a mask of Pillow's, made if it is resized or has a border."""
    if mask.target is not None or mask.border is not None:
        mask = mask.made()
    left, top, right, bottom = mask.box
    rows, columns = np.arange(top, bottom, dtype=np.int32), np.arange(left, right, dtype=np.int32)
    return Picked(
        cast("Indices", mask.file), rows[:: -1 if mask.flipped else 1], columns[:: -1 if mask.mirrored else 1]
    )


@functools.lru_cache(1024)
def _taken(side: int, target: int, dtype: torch.dtype) -> NDArray[np.int64]:
    """Return which places of a side torch's resize takes, ``(target,)``, by letting it resize these."""
    with torch._C.DisableTorchFunction():
        places = torch.arange(side, dtype=dtype, device="cpu")[None, None, :, None]
        taken: NDArray[np.int64] = (
            interpolate(places, size=(target, 1), mode="nearest").reshape(-1).numpy().astype(np.int64)
        )
    return taken
