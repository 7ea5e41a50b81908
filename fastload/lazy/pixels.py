"""Describe pixels that are not made yet: part of a file, size, steps."""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from fastload import _core
from fastload.pipeline.nodes import FILTERS
from fastload.stats.stack_sampler import register_codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fastload.pipeline.nodes import Node

register_codec(__file__)

PARTS_MAX: Final = 2
"""Parts of an image that are decoded one by one. For the next part, the whole image is decoded."""
_OF_PIXELS: Final = frozenset(
    [
        *("brightness", "saturation", "hue", "grayscale", "invert", "posterize", "solarize"),
        *("torch_brightness", "torch_saturation", "torch_hue", "torch_permute"),
        *("torch_invert", "torch_posterize", "torch_solarize"),
    ]
)
"""Steps that change each pixel by itself."""
COMPARED: Final = 2
"""The first results in a process that Pillow makes as well. If its bits differ, images are lazy no more."""


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

    def agreed(self, pixels: NDArray[np.uint8], expected: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return pixels, or those that were expected; the first that differ are the last."""
        if np.array_equal(pixels, expected):
            return pixels
        self.differs = True
        self.failed()
        return expected


@dataclass
class ByPillow(Library):
    """Pillow.

    Attributes:
        load: An image's ``load`` as it is without lazy images.
        decodes: How many whole files of each class were compared, by channels.
        resize: ``Image.resize`` as it is without lazy images.
    """

    name: ClassVar = "Pillow"
    load: Callable[[Any], Any]
    decodes: Counter[tuple[type, int]] = field(default_factory=Counter)
    resize: Callable[..., Any] = Image.Image.resize

    def make(self, pending: Pending) -> NDArray[np.uint8]:  # noqa: D102
        return pending.by_pillow(pending.file.core(self), self.resize)

    def decoded(self, kind: type, data: bytes) -> Any:
        """Decode a whole file by Pillow."""
        with kind(io.BytesIO(data)) as image:
            self.load(image)
            return image.im

    def compared(self, kind: type, data: bytes, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Compare the first files' pixels with Pillow's; return these if they differ.

        They are compared as RGB, unless they have one channel.
        """
        channels = pixels.shape[2]
        if self.decodes[kind, channels] == COMPARED:
            return pixels
        self.decodes[kind, channels] += 1
        image = Image.Image()._new(self.decoded(kind, data))
        return self.agreed(pixels, np.array(image if channels == 1 else image.convert("RGB")).reshape(pixels.shape))


class File:
    """The bytes of a JPEG file that several images may share.

    Attributes:
        has_gained: Whether a tensor of its pixels was sent before they were made, or floats were computed of them.
    """

    is_decoded: ClassVar = False
    has_gained = False

    def __init__(self, data: bytes | NDArray[np.uint8], size: tuple[int, int], library: Library) -> None:
        self.data: Any = data
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

    def part(self, pending: Pending, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """Decode a part, ``(H, W, 3)``: into ``out``, which is returned then, or elsewhere."""
        library = self.library
        pixels = None if library.differs else self._native(pending, out)
        if pixels is None:
            return library.make(pending)
        if library.comparisons > 0:
            library.comparisons -= 1
            return library.agreed(pixels, library.make(pending))
        return pixels

    def _native(self, pending: Pending, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8] | None:
        """Make a part natively; ``None`` if the core does not decode this file."""
        self._parts += 1
        if self._whole is None and self._parts <= PARTS_MAX:
            pixels = self._decoded(pending, out if pending.size == pending.inner_size else None)
        else:
            if self._whole is None:
                self._whole = self._decoded(Pending(self, (0, 0, *self.size)))
            pixels = None if self._whole is None else pending.of(self._whole)
        steps = pending.all_steps
        if pixels is None or not steps:
            return pixels
        width, height = pending.size
        keeps_size = pending.size == pending.inner_size
        made = pixels if keeps_size else np.empty((height, width, 3), np.uint8) if out is None else out
        return made if _core.apply_steps(steps, pixels, made) else None

    def _decoded(self, pending: Pending, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8] | None:
        width, height = pending.inner_size
        pixels = np.empty((height, width, 3), np.uint8) if out is None else out
        geometry, rule = pending.geometry(), self.pass_rule
        status, *_ = _core.decode(self.data, pixels[None], geometry, filter=pending.filter, pass_rule=rule)
        return pixels if status == "ok" else None

    def core(self, pillow: ByPillow) -> Any:
        """Make the whole core image by Pillow."""
        return pillow.decoded(JpegImageFile, self.data)


class Levels(File):
    """An image's pixels that are made, in place of a file's.

    Args:
        pixels: ``(H, W, 3)``, contiguous. They must not be changed.
        library: As of a file.
    """

    is_decoded = True

    def __init__(self, pixels: NDArray[np.uint8], library: Library) -> None:
        height, width, _ = pixels.shape
        super().__init__(pixels.reshape(-1), (width, height), library)
        self.pixels = self._whole = pixels

    def part(self, pending: Pending, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:  # noqa: D102
        if pending.target is not None or pending.all_steps:
            return super().part(pending, out)
        return self.pixels if pending.is_whole else pending.of(self.pixels)

    def core(self, pillow: ByPillow) -> Any:  # noqa: D102
        return core_of(self.pixels)


@dataclass(slots=True)
class Unread:
    """Stands for a file's pixels in its own mode, once it is decoded as RGB.

    Pillow decodes the file again when they are used.
    """

    kind: type
    mode: str
    data: bytes
    pillow: ByPillow

    readonly: ClassVar = 0

    def core(self) -> Any:
        """Make a core image of Pillow's."""
        return self.pillow.decoded(self.kind, self.data)


@dataclass(frozen=True, slots=True)
class Border:
    """One color around an image.

    Attributes:
        margins: How many pixels at the top, left, bottom and right.
        fill: The color, or a mask's level.
    """

    margins: tuple[int, int, int, int]
    fill: tuple[int, int, int] | int

    @property
    def step(self) -> Node:
        """What does it, for ``_core.apply_steps``."""
        return "pad", {"margins": self.margins, "mode": "constant", "fill": self.fill}

    def turned(self, method: int) -> Border:
        """Flip it."""
        top, left, bottom, right = self.margins
        is_mirrored = method == Image.Transpose.FLIP_LEFT_RIGHT
        return replace(self, margins=(top, right, bottom, left) if is_mirrored else (bottom, left, top, right))


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
        border: What to put around that; ``None`` if nothing.
        steps: What to do then, for ``_core.apply_steps``. Only crops change the size.
    """

    file: File
    box: tuple[int, int, int, int]
    target: tuple[int, int] | None = None
    filter: str = "bilinear"
    window: tuple[int, int, int, int] | None = None
    mirrored: bool = False
    flipped: bool = False
    border: Border | None = None
    steps: tuple[Node, ...] = ()
    _pixels: NDArray[np.uint8] | None = field(default=None, init=False)
    _gave_bytes: bool = field(default=False, init=False)

    mode: ClassVar = "RGB"
    channels: ClassVar = 3
    readonly: ClassVar = 0

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, pixels."""
        width, height = self.inner_size
        if self.border is not None:
            top, left, bottom, right = self.border.margins
            width, height = left + width + right, top + height + bottom
        for kind, fields in self.steps:
            if kind == "crop":
                top, left, bottom, right = fields["margins"]
                width, height = width - left - right, height - top - bottom
        return width, height

    @property
    def inner_size(self) -> tuple[int, int]:
        """Width and height within the border, pixels."""
        left, top, right, bottom = self._area()
        return right - left, bottom - top

    @property
    def all_steps(self) -> tuple[Node, ...]:
        """The border as a step, and the steps."""
        return self.steps if self.border is None else (self.border.step, *self.steps)

    def _area(self) -> tuple[int, int, int, int]:
        if self.window is not None:
            return self.window
        return self.box if self.target is None else (0, 0, *self.target)

    @property
    def is_whole(self) -> bool:
        """Whether it is the file's image, unchanged."""
        turned = self.mirrored or self.flipped or bool(self.all_steps)
        return self.box == (0, 0, *self.file.size) and self.target is None and self.window is None and not turned

    @property
    def is_trusted(self) -> bool:
        """Whether its pixels need no more comparing."""
        return self.file.is_trusted or (self.file.is_decoded and not self.all_steps)

    @property
    def is_small(self) -> bool:
        """Whether it takes much less than the file's pixels.

        All of these are kept with it.
        """
        return self.file.is_decoded and 2 * math.prod(self.size) < math.prod(self.file.size)

    @property
    def is_only_cropped(self) -> bool:
        """Whether nothing else was done to the file's image."""
        return self.target is None and not (self.mirrored or self.flipped or self.all_steps)

    def made(self) -> Pending:
        """Return the same pixels by themselves, made."""
        return Pending(Levels(self.pixels(), self.file.library), (0, 0, *self.size))

    def cropped(self, box: tuple[int, int, int, int]) -> Pending | None:
        """Crop to a box within the image; ``None`` if it is too late for that."""
        if self.steps:
            return self._cropped_behind_steps(box)
        if self.border is not None:
            return self._cropped_with_border(self.border, box)
        width, height = self.size
        left, top, right, bottom = box
        if self.mirrored:
            left, right = width - right, width - left
        if self.flipped:
            top, bottom = height - bottom, height - top
        x, y, *_ = self._area()
        area = x + left, y + top, x + right, y + bottom
        made = replace(self, box=area) if self.target is None else replace(self, window=area)
        return made.made() if made.is_small else made

    def _cropped_behind_steps(self, box: tuple[int, int, int, int]) -> Pending | None:
        if not any(kind.startswith("torch_") for kind, _ in self.steps):
            return None  # images of Pillow's are often cropped several times
        if all(kind in _OF_PIXELS for kind, _ in self.steps):
            first = replace(self, steps=()).cropped(box)
            if first is not None:
                return replace(first, steps=self.steps)
        width, height = self.size
        left, top, right, bottom = box
        return self.changed("crop", {"margins": (top, left, height - bottom, width - right)})

    def _cropped_with_border(self, border: Border, box: tuple[int, int, int, int]) -> Pending | None:
        above, before, _, _ = border.margins
        width, height = self.inner_size
        left, top, right, bottom = (at - by for at, by in zip(box, (before, above) * 2, strict=True))
        inside = max(left, 0), max(top, 0), min(right, width), min(bottom, height)
        if inside[0] >= inside[2] or inside[1] >= inside[3]:
            return None
        margins = inside[1] - top, inside[0] - left, bottom - inside[3], right - inside[2]
        made = replace(self, border=None).cropped(inside)
        return made and made.bordered(replace(border, margins=margins))

    def bordered(self, border: Border) -> Pending | None:
        """Put a border around; ``None`` if it is too late for that."""
        if not any(border.margins):
            return self
        if self.border is not None:
            if self.border.fill != border.fill:
                return None
            margins: Any = tuple(map(sum, zip(self.border.margins, border.margins, strict=True)))
            border = replace(border, margins=margins)
        return None if self.steps else replace(self, border=border)

    def resized(self, size: tuple[int, int], name: str) -> Pending | None:
        """Resize; ``None`` if the core cannot do it in the same pass.

        Pixels that are made are resized at once, so that an image that is kept takes no more than Pillow's.
        """
        is_first = self.is_only_cropped
        if self.file.is_decoded:
            return replace(self if is_first else self.made(), target=size, filter=name).made()
        return replace(self, target=size, filter=name) if is_first else None

    def turned(self, method: int) -> Pending | None:
        """Flip; ``None`` if the method is no flip, or it is too late for that."""
        if self.steps:
            return None
        border = self.border and self.border.turned(method)
        if method == Image.Transpose.FLIP_LEFT_RIGHT:
            return replace(self, mirrored=not self.mirrored, border=border)
        is_flip = method == Image.Transpose.FLIP_TOP_BOTTOM
        return replace(self, flipped=not self.flipped, border=border) if is_flip else None

    def changed(self, kind: str, fields: dict[str, Any]) -> Pending:
        """Add a step."""
        return replace(self, steps=(*self.steps, (kind, fields)))

    def pixels(self) -> NDArray[np.uint8]:
        """Make the pixels, ``(H, W, 3)``. They are kept and must not be changed."""
        if self._pixels is None:
            self._pixels = self.file.part(self)
        return self._pixels

    def tobytes(self) -> bytes:
        """Make the pixels as new bytes, which an array may take for its memory.

        They are not kept, because users can write to them (``torch.from_numpy``).
        """
        if self._pixels is not None or self._gave_bytes:
            return self.pixels().tobytes()
        self._gave_bytes = True
        width, height = self.size
        made, room = _core.unfilled_bytes(self.channels * width * height)
        out = room.reshape(height, width, self.channels)
        pixels = self.file.part(self, out)
        return made if pixels is out else pixels.tobytes()

    def core(self) -> Any:
        """Make a core image of Pillow's."""
        return core_of(self.pixels())

    def core_program(self, place: tuple[int, int, int, int] | None = None) -> _core.ImageProgram:
        """The core's form of it.

        Args:
            place: ``(top, left, height, width)`` in a tensor's image, if it does not take all of that.
        """
        width, height = self.file.size
        levels = (height, width) if self.file.is_decoded else None
        library = self.file.library.name
        return _core.ImageProgram(self.file.data, self.geometry(), self.filter, self.all_steps, levels, library, place)

    def fields(self) -> tuple[Any, ...]:
        """What :class:`Pending` was made of, the file aside."""
        return (
            *(self.box, self.target, self.filter, self.window),
            *(self.mirrored, self.flipped, self.border, self.steps),
        )

    def geometry(self) -> tuple[int, ...]:
        """What to do, for ``_core.decode``."""
        left, top, right, bottom = self.box
        width, height = self.target or (right - left, bottom - top)
        x, y, *_ = self.window or (0, 0)
        columns, rows = self.inner_size
        crop = top, left, bottom - top, right - left
        return (*crop, height, width, y, x, rows, columns, self.mirrored, self.flipped)

    def of(self, whole: NDArray[np.uint8], out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """Do the same to the whole image's pixels, but for border and steps.

        Args:
            whole: The pixels, ``(H, W, C)``.
            out: Where to; it is returned then.
        """
        left, top, right, bottom = self.box
        pixels = whole[top:bottom, left:right]
        columns, rows = self.inner_size
        made = np.empty((rows, columns, self.channels), np.uint8) if out is None else out
        if self.target is None:
            made[:] = pixels[:: -1 if self.flipped else 1, :: -1 if self.mirrored else 1]
            return made
        width, height = self.target
        x, y, *_ = self.window or (0, 0)
        rule = self.file.pass_rule
        _core.resize(pixels, made, self.filter, rule, (height, width), (y, x), self.mirrored, self.flipped)
        return made

    def by_pillow(self, whole: Any, resize: Callable[..., Any]) -> NDArray[np.uint8]:
        """Do the same to the whole core image by Pillow, if it has the filter."""
        if self.target is not None and self.filter not in FILTERS:
            return self.stepped(self.of(np.array(Image.Image()._new(whole))))
        core = whole.crop(self.box)
        if self.target is not None:  # by the image's method: Pillow 12.2 and 12.3 choose the order of passes there
            core = resize(Image.Image()._new(core), self.target, FILTERS[self.filter]).im
        if self.window is not None:
            core = core.crop(self.window)
        if self.mirrored:
            core = core.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.flipped:
            core = core.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        return self.stepped(np.array(Image.Image()._new(core)))

    def stepped(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Do border and steps by Pillow to pixels that are made so far."""
        if not self.all_steps:
            return pixels
        from fastload.pipeline.installed.steps import REFERENCES  # imports torchvision, which made the steps

        image = Image.fromarray(pixels)
        for kind, fields in self.all_steps:
            made = REFERENCES[kind](image, **fields)
            image = Image.fromarray(made) if isinstance(made, np.ndarray) else made
        return np.array(image)


def core_of(pixels: NDArray[np.uint8]) -> Any:
    """Make a core image of Pillow's of contiguous pixels, ``(H, W, 3)``."""
    height, width, _ = pixels.shape
    return Image.frombuffer("RGB", (width, height), pixels, "raw", "RGB", 0, 1).im
