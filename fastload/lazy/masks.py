"""Describe masks whose pixels are not moved yet.

Masks are images of one channel in PNG files, gray or with a palette.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from PIL import Image, ImageOps

from fastload.lazy.pixels import Levels, Pending
from fastload.stats.stack_sampler import register_codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fastload.lazy.pixels import Library

register_codec(__file__)


class Indices(Levels):
    """A mask's pixels that are made, ``(H, W, 1)``."""

    def __init__(self, pixels: NDArray[np.uint8], library: Library) -> None:
        super().__init__(pixels, library)
        self._gains: list[bool] = []

    @property
    def has_gained(self) -> bool:
        """As of any file; parts that are made by themselves tell the file."""
        return bool(self._gains)

    @has_gained.setter
    def has_gained(self, _: bool) -> None:
        self._gains.append(True)

    def made(self, pixels: NDArray[np.uint8]) -> Indices:
        """Return a part of these pixels by itself."""
        part = Indices(pixels, self.library)
        part._gains = self._gains
        return part

    def part(self, pending: Pending, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:  # noqa: D102
        border = pending.border
        if border is None:
            return self.pixels if pending.is_whole else pending.of(self.pixels, out)
        width, height = pending.size
        made = np.empty((height, width, 1), np.uint8) if out is None else out
        made[:] = border.fill
        top, left, bottom, right = border.margins
        pending.of(self.pixels, made[top : height - bottom, left : width - right])
        return made


@dataclass(slots=True)
class PendingMask(Pending):
    """Stands for the pixels of an image of one channel.

    Steps of geometry have moved but not mixed them.

    Attributes:
        one: A core image of Pillow's with one pixel, and with the mode and the palette.
    """

    one: Any = None

    channels: ClassVar = 1

    @property
    def mode(self) -> str:  # type: ignore[override]
        """Pillow's mode, ``"L"`` or ``"P"``."""
        mode: str = self.one.mode
        return mode

    def made(self) -> PendingMask:
        """Return the same pixels by themselves, made."""
        levels = cast("Indices", self.file).made(self.pixels())
        return PendingMask(levels, (0, 0, *self.size), one=self.one)

    def resized(self, size: tuple[int, int], name: str) -> Pending | None:
        """Resize, if no pixels are mixed; ``None`` if they are."""
        if name != "nearest":
            return None
        first = replace(self if self.is_only_cropped else self.made(), target=size, filter=name)
        return first.made() if first.is_small else first

    def core(self) -> Any:
        """Make a core image of Pillow's."""
        image = Image.Image()._new(self.one.resize(self.size, Image.Resampling.NEAREST, (0, 0, 1, 1)))
        image.frombytes(self.tobytes())
        return image.im


def with_border(image: Any, mask: PendingMask, fill: int) -> Image.Image:
    """Make what ``ImageOps.expand`` does of an image, whose pending mask has its border already."""
    padded: Any = ImageOps.expand(image._new(mask.one), (1, 0, 0, 0), fill)  # palette and info
    padded._im = replace(mask, one=padded.im.crop((1, 0, 2, 1)))
    padded._size = mask.size
    return padded  # type: ignore[no-any-return]


def on_one(image: Any, mask: PendingMask, method: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of an image that changes or reads its palette.

    Meanwhile the image has the one pixel in place of all.
    """
    image._im = mask.one.copy()
    try:
        return method(image, *arguments)
    finally:
        image._im = replace(mask, one=image._im)
