"""Describe an image that takes a part of a tensor's image, whose rest is constants."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import numpy as np
from PIL import Image, ImageFile

from fastload import _core
from fastload.deferred.picked import Picked, picked
from fastload.lazy.images import pass_rule
from fastload.lazy.masks import Indices
from fastload.lazy.pixels import ByPillow, File, Levels, Pending

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Box = tuple[int, int, int, int]
    """``(top, left, height, width)``, pixels."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Stands for pixels, of which some are an image's.

    The others are unspecified: fills cover them.

    Attributes:
        image: The image.
        size: Width and height of all, pixels.
        top: Where the image begins.
        left: See there.
    """

    image: Pending | Picked
    size: tuple[int, int]
    top: int
    left: int
    _made: list[_core.ImageProgram] = field(default_factory=list, init=False, repr=False, compare=False)

    is_whole: ClassVar = False

    @property
    def file(self) -> File:
        """The image's."""
        return self.image.file

    @property
    def channels(self) -> int:
        """The image's."""
        return self.image.channels

    @property
    def box(self) -> Box:
        """Where the image is."""
        width, height = self.image.size
        return self.top, self.left, height, width

    @property
    def is_blank(self) -> bool:
        """Whether nothing of it is specified."""
        return self.image is _pixel(self.image.channels)

    def cropped(self, box: tuple[int, int, int, int]) -> Pending | Placed | Picked | None:
        """As of :class:`Pending`."""
        left, top, right, bottom = box
        size = right - left, bottom - top
        inside = common(self.box, (top, left, bottom - top, right - left))
        if inside is None or self.is_blank:
            return blank(size, self.channels)
        y, x, height, width = inside
        image = self.image.cropped((x - self.left, y - self.top, x - self.left + width, y - self.top + height))
        return None if image is None else placed_at(image, size, y - top, x - left)

    def resized(self, size: tuple[int, int], how: Any) -> None:
        """No core resizes it."""

    def turned(self, method: int) -> Placed | None:
        """As of :class:`Pending`."""
        image = self.image.turned(method)
        return None if image is None else self._of(image, method == Image.Transpose.FLIP_LEFT_RIGHT)

    def changed(self, kind: str, fields: dict[str, Any]) -> Placed:
        """As of :class:`Pending`; the steps are flips."""
        return self._of(cast("Pending", self.image).changed(kind, fields), kind == "flip_horizontal")

    def _of(self, image: Pending | Picked, is_mirrored: bool) -> Placed:
        if self.is_blank:
            return self
        top, left, height, width = self.box
        if is_mirrored:
            return Placed(image, self.size, top, self.size[0] - left - width)
        return Placed(image, self.size, self.size[1] - top - height, left)

    def pixels(self) -> NDArray[np.uint8]:
        """Make all pixels, ``(H, W, 3)``."""
        top, left, height, width = self.box
        made = np.zeros((self.size[1], self.size[0], 3), np.uint8)
        made[top : top + height, left : left + width] = self.image.pixels()
        return made

    def made(self) -> Pending:
        """Return the same pixels by themselves, made."""
        return Pending(Levels(self.pixels(), self.file.library), (0, 0, *self.size))

    def core_program(self) -> _core.ImageProgram:
        """The core's form of it."""
        if not self._made:
            self._made.append(self.image.core_program(self.box))
        return self._made[0]


def placed_at(
    image: Pending | Placed | Picked, size: tuple[int, int], top: int, left: int
) -> Pending | Placed | Picked:
    """Return an image within a larger one, or itself if it takes all of that."""
    if image.size == size:
        return image
    if isinstance(image, Placed):
        if image.is_blank:
            return blank(size, image.channels)
        return replace(image, size=size, top=top + image.top, left=left + image.left)
    return Placed(image, size, top, left)


@functools.cache
def _pixel(channels: int) -> Pending | Picked:
    """An image of one pixel, which a fill hides."""
    pillow = ByPillow(pass_rule(), 0, lambda: None, ImageFile.ImageFile.load)
    if channels == 1:
        return picked(Indices(np.zeros((1, 1, 1), np.uint8), pillow))
    return Pending(Levels(np.zeros((1, 1, 3), np.uint8), pillow), (0, 0, 1, 1))


_SIZES_MAX: Final = 64


@functools.lru_cache(_SIZES_MAX)
def blank(size: tuple[int, int], channels: int) -> Placed:
    """Return an image of which nothing is specified."""
    return Placed(_pixel(channels), size, 0, 0)


def common(one: Box, other: Box) -> Box | None:
    """Return what two boxes share."""
    top, left = max(one[0], other[0]), max(one[1], other[1])
    bottom, right = min(one[0] + one[2], other[0] + other[2]), min(one[1] + one[3], other[1] + other[3])
    return (top, left, bottom - top, right - left) if top < bottom and left < right else None


def outside(box: Box, hole: Box) -> Iterator[Box]:
    """Return boxes that are all of a box but for another."""
    inside = common(box, hole)
    if inside is None:
        yield box
        return
    top, left, height, width = box
    y, x, rows, columns = inside
    parts = (
        (top, left, y - top, width),
        (y + rows, left, top + height - y - rows, width),
        (y, left, rows, x - left),
        (y, x + columns, rows, left + width - x - columns),
    )
    yield from (part for part in parts if math.prod(part[2:]))
