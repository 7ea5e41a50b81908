"""Describe pixels that are not made yet: part of a file, size, steps."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from fastload import _core
from fastload.pipeline.installed.steps import REFERENCES
from fastload.pipeline.nodes import FILTERS
from fastload.stats.stack_sampler import register_codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fastload.pipeline.nodes import Node

register_codec(__file__)

PARTS_MAX: Final = 2
"""Parts of an image that are decoded one by one. For the next part, the whole image is decoded."""


@dataclass
class Library(ABC):
    """Another library that decodes, for what the core does not, and to compare with.

    Attributes:
        name: The library's.
        pass_rule: The core's rule for the order of a resize's passes.
        comparisons: How many of the next parts to compare with the library's.
        failed: Called at a difference.
        differs: Whether there was one. Everything is left to the library then.
    """

    name: ClassVar[str]
    pass_rule: str
    comparisons: int
    failed: Callable[[], None]
    differs: bool = field(default=False, init=False)

    @abstractmethod
    def make(self, pending: Pending) -> NDArray[np.uint8]:
        """Make pixels, ``(H, W, 3)``, of the whole file's."""


@dataclass
class ByPillow(Library):
    """Pillow.

    Attributes:
        load: ``ImageFile.load`` as it is without lazy images.
    """

    name: ClassVar = "Pillow"
    load: Callable[[Any], Any]

    def make(self, pending: Pending) -> NDArray[np.uint8]:  # noqa: D102
        with JpegImageFile(io.BytesIO(pending.file.data)) as image:
            self.load(image)
            return pending.by_pillow(image.im)


class File:
    """The bytes of a JPEG file that several images may share."""

    is_decoded: ClassVar = False

    def __init__(self, data: bytes, size: tuple[int, int], library: Library) -> None:
        self.data = data
        self.size = size
        self.library = library
        self._parts = 0
        self._whole: NDArray[np.uint8] | None = None

    @property
    def pass_rule(self) -> str:
        """The core's rule for the order of a resize's passes."""
        return self.library.pass_rule

    @property
    def is_trusted(self) -> bool:
        """Whether the core's bits were the library's so far, often enough."""
        return not self.library.differs and not self.library.comparisons

    def part(self, pending: Pending) -> NDArray[np.uint8]:
        """Decode a part, ``(H, W, 3)``."""
        library = self.library
        pixels = None if library.differs else self._native(pending)
        if pixels is None:
            return library.make(pending)
        if library.comparisons > 0:
            library.comparisons -= 1
            expected = library.make(pending)
            if not np.array_equal(pixels, expected):
                library.differs = True
                library.failed()
                return expected
        return pixels

    def _native(self, pending: Pending) -> NDArray[np.uint8] | None:
        """Make a part natively; ``None`` if the core does not decode this file."""
        self._parts += 1
        if self._whole is None and self._parts <= PARTS_MAX:
            pixels = self._decoded(pending)
        else:
            if self._whole is None:
                self._whole = self._decoded(Pending(self, (0, 0, *self.size)))
            pixels = None if self._whole is None else pending.of(self._whole)
        if pixels is not None and pending.steps and not _core.apply_steps(pending.steps, pixels, pixels):
            return None
        return pixels

    def _decoded(self, pending: Pending) -> NDArray[np.uint8] | None:
        width, height = pending.size
        pixels = np.empty((1, height, width, 3), np.uint8)
        outcome = _core.decode(self.data, pixels, pending.geometry(), filter=pending.filter, pass_rule=self.pass_rule)
        return pixels[0] if outcome[0] == "ok" else None


class Levels(File):
    """An image's pixels that are made, in place of a file's. Takes no steps."""

    is_decoded = True
    is_trusted = True

    def part(self, pending: Pending) -> NDArray[np.uint8]:  # noqa: D102
        width, height = self.size
        return pending.of(np.frombuffer(self.data, np.uint8).reshape(height, width, 3))


@dataclass(slots=True)
class Pending:
    """Stands for the pixels of an image until they are used.

    Attributes:
        file: Where they come from.
        box: The part of the file's image, ``(left, top, right, bottom)``.
        target: The size to resize it to, ``(width, height)``; ``None`` if it is not resized.
        filter: The core's name of the filter.
        window: The part of the resized image; the whole of it if ``None``.
        mirrored: Whether to flip the result horizontally.
        flipped: Whether to flip it vertically.
        steps: What to do then, for ``_core.apply_steps``. Keeps the size.
    """

    file: File
    box: tuple[int, int, int, int]
    target: tuple[int, int] | None = None
    filter: str = "bilinear"
    window: tuple[int, int, int, int] | None = None
    mirrored: bool = False
    flipped: bool = False
    steps: tuple[Node, ...] = ()
    _pixels: NDArray[np.uint8] | None = field(default=None, init=False)

    mode: ClassVar = "RGB"
    readonly: ClassVar = 0

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, pixels."""
        left, top, right, bottom = self._area()
        return right - left, bottom - top

    def _area(self) -> tuple[int, int, int, int]:
        if self.window is not None:
            return self.window
        return self.box if self.target is None else (0, 0, *self.target)

    @property
    def is_whole(self) -> bool:
        """Whether it is the file's image, unchanged."""
        turned = self.mirrored or self.flipped or bool(self.steps)
        return self.box == (0, 0, *self.file.size) and self.target is None and self.window is None and not turned

    def cropped(self, box: tuple[int, int, int, int]) -> Pending | None:
        """Crop to a box within the image; ``None`` if it is too late for that."""
        if self.steps:
            return None
        width, height = self.size
        left, top, right, bottom = box
        if self.mirrored:
            left, right = width - right, width - left
        if self.flipped:
            top, bottom = height - bottom, height - top
        x, y, *_ = self._area()
        area = x + left, y + top, x + right, y + bottom
        return replace(self, box=area) if self.target is None else replace(self, window=area)

    def resized(self, size: tuple[int, int], name: str) -> Pending | None:
        """Resize; ``None`` if the core cannot do it in the same pass."""
        if self.target is not None or self.mirrored or self.flipped or self.steps:
            return None
        return replace(self, target=size, filter=name)

    def turned(self, method: int) -> Pending | None:
        """Flip; ``None`` if the method is no flip, or it is too late for that."""
        if self.steps:
            return None
        if method == Image.Transpose.FLIP_LEFT_RIGHT:
            return replace(self, mirrored=not self.mirrored)
        return replace(self, flipped=not self.flipped) if method == Image.Transpose.FLIP_TOP_BOTTOM else None

    def changed(self, kind: str, fields: dict[str, Any]) -> Pending:
        """Add a step."""
        return replace(self, steps=(*self.steps, (kind, fields)))

    def pixels(self) -> NDArray[np.uint8]:
        """Make the pixels, ``(H, W, 3)``. They are kept and must not be changed."""
        if self._pixels is None:
            self._pixels = self.file.part(self)
        return self._pixels

    def core(self) -> Any:
        """Make a core image of Pillow's."""
        pixels = self.pixels()
        return Image.frombuffer("RGB", self.size, pixels, "raw", "RGB", 0, 1).im

    def core_program(self) -> _core.ImageProgram:
        """The core's form of it."""
        width, height = self.file.size
        levels = (height, width) if self.file.is_decoded else None
        library = self.file.library.name
        return _core.ImageProgram(self.file.data, self.geometry(), self.filter, self.steps, levels, library)

    def fields(self) -> tuple[Any, ...]:
        """What :class:`Pending` was made of, the file aside."""
        return (
            *(self.box, self.target, self.filter, self.window),
            *(self.mirrored, self.flipped, self.steps),
        )

    def geometry(self) -> tuple[int, ...]:
        """What to do, for ``_core.decode``."""
        left, top, right, bottom = self.box
        width, height = self.target or (right - left, bottom - top)
        x, y, *_ = self.window or (0, 0)
        columns, rows = self.size
        crop = top, left, bottom - top, right - left
        return (*crop, height, width, y, x, rows, columns, self.mirrored, self.flipped)

    def of(self, whole: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Do the same to the whole image's pixels, ``(H, W, 3)``, but for the steps."""
        left, top, right, bottom = self.box
        pixels = whole[top:bottom, left:right]
        if self.target is not None:
            width, height = self.target
            out = np.empty((height, width, 3), np.uint8)
            _core.resize(pixels, out, self.filter, self.file.pass_rule)
            left, top, right, bottom = self._area()
            pixels = out[top:bottom, left:right]
        return pixels[:: -1 if self.flipped else 1, :: -1 if self.mirrored else 1].copy()

    def by_pillow(self, whole: Any) -> NDArray[np.uint8]:
        """Do the same to the whole core image by Pillow, if it has the filter."""
        if self.target is not None and self.filter not in FILTERS:
            return self.stepped(self.of(np.array(Image.Image()._new(whole))))
        core = whole.crop(self.box)
        if self.target is not None:  # by the image's method: Pillow 12.2 and 12.3 choose the order of passes there
            core = Image.Image()._new(core).resize(self.target, FILTERS[self.filter]).im
        if self.window is not None:
            core = core.crop(self.window)
        if self.mirrored:
            core = core.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.flipped:
            core = core.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        return self.stepped(np.array(Image.Image()._new(core)))

    def stepped(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Do the steps by Pillow to pixels that are made so far."""
        if not self.steps:
            return pixels
        image = Image.fromarray(pixels)
        for kind, fields in self.steps:
            image = REFERENCES[kind](image, **fields)
        return np.array(image)
