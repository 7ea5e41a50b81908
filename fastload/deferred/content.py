"""Describe what a tensor is to hold: pending images, values of levels, boxes of constants."""

from __future__ import annotations

import contextlib
import math
import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from fastload import _core
from fastload.nvtx.stages import stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from fastload.deferred.picked import Picked
    from fastload.deferred.placed import Placed
    from fastload.lazy.pixels import Pending


STAGED_BYTES: Final = 20 << 10
"""What a staged image takes beside its file."""


@dataclass(frozen=True, slots=True)
class Fill:
    """A box of an image that holds one value in each channel.

    Attributes:
        image: The image's number.
        box: ``(top, left, height, width)``, pixels.
        values: ``(C,)``, of the tensor's dtype.
    """

    image: int
    box: tuple[int, int, int, int]
    values: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What a whole tensor holds: images of one size, one behind the other.

    Attributes:
        images: Their pixels, of ``C`` channels: 3, or 1 of masks.
        table: ``(C, 256)``, contiguous: the value of each level of each channel. Its dtype is the tensor's.
        planar: Whether channels are outermost within an image's memory, else innermost. True of masks.
        fills: What is put over the images' values, in order.
        axes: If not empty, size and stride, in values, of each dimension of what an image becomes, the outermost
            first: parts of them in another order, or several times. Only as a part of :class:`Rearranged`.
        first: The value at which those begin.
    """

    images: tuple[Pending | Placed | Picked, ...]
    table: torch.Tensor
    planar: bool
    fills: tuple[Fill, ...] = ()
    axes: tuple[tuple[int, int], ...] = ()
    first: int = 0
    _made: list[_core.TensorProgram] = field(default_factory=list, init=False, repr=False)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of an image, pixels."""
        width, height = self.images[0].size
        return height, width

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return self.images[0].channels

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        values = math.prod(size for size, _ in self.axes) if self.axes else self.channels * math.prod(self.image_size)
        return len(self.images) * values * self.table.element_size()

    @property
    def staged_bytes(self) -> int:
        """About how many bytes of a slot it takes, staged or made."""
        if self.channels == 1:
            return self.nbytes
        files = {id(image.file): 2 * len(image.file.data) for image in self.images if not image.file.is_decoded}
        levels = sum(3 * math.prod(image.size) for image in self.images if image.file.is_decoded)
        return sum(files.values()) + levels + STAGED_BYTES * len(self.images)

    def core(self) -> _core.TensorProgram:
        """The core's form of it, which is made once."""
        if not self._made:
            fills = _core_fills(self.fills)
            images = [image.core_program() for image in self.images]
            rule = self.images[0].file.pass_rule
            table = self.table.view(OF_SIZE[self.table.element_size()])
            made = _core.TensorProgram(images, self.image_size, rule, table.numpy(), self.planar, fills)
            self._made.append(made.in_order(self.axes, self.first) if self.axes else made)
        return self._made[0]

    def with_values(self, table: torch.Tensor, fills: tuple[Fill, ...] = ()) -> Content:
        """Return what holds the same images with other values of their levels, and these fills."""
        made = Content(self.images, table, self.planar, fills)
        if self._made and not fills:
            values = table.view(OF_SIZE[table.element_size()]).numpy()
            made._made.append(self._made[0].with_values(values))
        return made

    def with_images(
        self, first: int, images: tuple[Pending | Placed | Picked, ...], table: torch.Tensor, fills: Sequence[Fill]
    ) -> Content:
        """Return what holds other images from a place on, with these fills.

        It has other values of all levels, too.
        """
        changed = range(first, first + len(images))
        others = tuple(fill for fill in self.fills if fill.image not in changed)
        all_images = (*self.images[:first], *images, *self.images[changed.stop :])
        made = Content(all_images, table, self.planar, (*others, *fills))
        values = table.view(OF_SIZE[table.element_size()]).numpy()
        programs = [image.core_program() for image in images]
        made._made.append(self.core().with_images(first, programs, values, _core_fills(fills)))
        return made

    def of_images(self, first: int, last: int) -> Content:
        """Return what some of the images hold, up to ``last``, which is not of them."""
        fills = tuple(replace(each, image=each.image - first) for each in self.fills if first <= each.image < last)
        return replace(self, images=self.images[first:last], fills=fills)

    def note_gain(self) -> None:
        """Note that deferring has saved work."""
        for image in self.images:
            image.file.has_gained = True

    def paint(self, out: NDArray[np.uint8]) -> None:
        """Write all values to memory. Pillow makes images that the core does not take.

        Args:
            out: ``(nbytes,)``; must be writable, aligned to the values' size.
        """
        size = self.nbytes // len(self.images)
        with _timed():
            for number in _failed(self.core().paint(out)):
                self._by_pillow(number, out[number * size : (number + 1) * size])

    def write(self, file: int, offset: int = 0) -> None:
        """Write all values to a file, without other memory for them. Else as :meth:`paint`.

        Raises:
            OSError: They cannot be written.
        """
        size = self.nbytes // len(self.images)
        with _timed():
            for number in _failed(self.core().write(file, offset)):
                out = np.empty(size, np.uint8)
                self._by_pillow(number, out)
                rest, at = memoryview(out.data), offset + number * size
                while rest:
                    written = os.pwrite(file, rest, at)
                    rest, at = rest[written:], at + written

    def _by_pillow(self, number: int, out: NDArray[np.uint8]) -> None:
        self.core().paint_levels(number, np.ascontiguousarray(self.images[number].pixels()), out)


@dataclass(frozen=True, slots=True, eq=False)
class Rearranged:
    """What a whole tensor holds: values of images in another order.

    Attributes:
        parts: What lies one behind the other, each with ``axes``; of one dtype.
    """

    parts: tuple[Content, ...]
    _made: list[_core.TensorProgram] = field(default_factory=list, init=False, repr=False)

    @property
    def table(self) -> torch.Tensor:
        """A table of the tensor's dtype."""
        return self.parts[0].table

    @property
    def images(self) -> tuple[Pending | Placed | Picked, ...]:
        """All parts'."""
        return tuple(image for part in self.parts for image in part.images)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return sum(part.nbytes for part in self.parts)

    @property
    def staged_bytes(self) -> int:
        """Bytes of a slot that it takes; no GPU makes it."""
        return self.nbytes

    def core(self) -> _core.TensorProgram:
        """The core's form of it, which is made once."""
        if not self._made:
            self._made.append(_core.TensorProgram.in_parts([part.core() for part in self.parts]))
        return self._made[0]

    def within(self, begin: int, nbytes: int) -> Rearranged | None:
        """Return what some of its bytes hold.

        Returns:
            ``None`` if they are not those of whole images.
        """
        chosen = []
        for part in self.parts:
            size = part.nbytes // len(part.images)
            first, skipped = divmod(min(max(begin, 0), part.nbytes), size)
            last, rest = divmod(min(max(begin + nbytes, 0), part.nbytes), size)
            if skipped or rest:
                return None
            if first < last:
                chosen.append(part if last - first == len(part.images) else part.of_images(first, last))
            begin -= part.nbytes
        return Rearranged(tuple(chosen)) if chosen else None

    def note_gain(self) -> None:
        """As of :class:`Content`."""
        for part in self.parts:
            part.note_gain()

    def paint(self, out: NDArray[np.uint8]) -> None:
        """As of :class:`Content`."""
        begin = 0
        for part in self.parts:
            part.paint(out[begin : begin + part.nbytes])
            begin += part.nbytes

    def write(self, file: int, offset: int = 0) -> None:
        """As of :class:`Content`."""
        for part in self.parts:
            part.write(file, offset)
            offset += part.nbytes


_painted_s = 0.0


@contextlib.contextmanager
def _timed() -> Iterator[None]:
    global _painted_s
    begun = time.perf_counter()
    try:
        with stage("paint"):
            yield
    finally:
        _painted_s += time.perf_counter() - begun


def take_painted_s() -> float:
    """Seconds that painting took here since the last call, but for what was touched before."""
    global _painted_s
    seconds, _painted_s = _painted_s, 0.0
    return seconds


def joined(contents: Sequence[Content], *, planar: bool) -> Content:
    """Return the content of a tensor that holds these ones' images, one behind the other.

    Args:
        contents: At least one. Their images have one size, their tables the same values.
        planar: Of the new tensor.
    """
    first = contents[0]
    if len(contents) == 1 and first.planar == planar:
        return first
    fills = []
    begin = 0
    for content in contents:
        fills += [replace(each, image=begin + each.image) for each in content.fills]
        begin += len(content.images)
    images = tuple(image for content in contents for image in content.images)
    made = Content(images, first.table, planar, tuple(fills))
    made._made.append(_core.TensorProgram.joined([content.core() for content in contents], planar))
    return made


def _failed(statuses: bytes) -> list[int]:
    return [number for number, status in enumerate(statuses) if status]


def _core_fills(fills: Iterable[Fill]) -> list[tuple[int, int, int, int, int, bytes]]:
    known: dict[int, bytes] = {}  # by the ids of values, which fills share
    for each in fills:
        if id(each.values) not in known:
            known[id(each.values)] = value_bytes(each.values)
    return [(each.image, *each.box, known[id(each.values)]) for each in fills]


OF_SIZE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers of so many bytes, as which tables are looked up."""


def value_bytes(values: torch.Tensor) -> bytes:
    """Return the bytes of values, whatever their dtype."""
    return values.contiguous().view(torch.uint8).numpy().tobytes()
