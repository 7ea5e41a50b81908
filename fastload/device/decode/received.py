"""Paint on a GPU what workers have staged of a batch's deferred tensors.

A worker writes into its slot: the files, prepared for the kernels; the pixels of images that are not for these; and the
files once more with what is to be done with them, by which the host paints an image that the kernels cannot decode. So
the slot is busy until that is known.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch

from fastload._batch import Leaf
from fastload._machine import usable_cpus
from fastload.device.decode.files import DecodeRun, StagedLayout
from fastload.device.erasing import Erased, Noise
from fastload.device.normalize import LAYOUTS, TABLE_DTYPES, CopiedImages, NormalizeTable, TableImages
from fastload.nvtx.stages import stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from fastload.device.decode.files import Decoder
    from fastload.device.timing import Timing
    from fastload.memory.slots import SlotPool

PIXELS_ALIGNMENT: Final = 64
"""Where a tensor's pixels begin, bytes."""

_TABLES_MAX: Final = 16  # on a device

PaintImages: TypeAlias = "Callable[[torch.Tensor, StagedBatch, list[int]], list[NDArray[np.uint8]]]"
"""Makes images' levels on the host, (H, W, 3) each, from a slot's memory, by their places."""

Box: TypeAlias = tuple[int, tuple[int, int, int, int], bytes]
"""An image's number, a box of it and its values."""


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """What a worker has written to a slot. Bytes are the slot's.

    An image's place is its number among all of the tensors' images.

    Attributes:
        sizes: Of each tensor, (images, height, width).
        layout: Of the staged files, which begin at ``begin``.
        begin: See there.
        owners: Of each staged image, the one whose bad data is its own; int32.
        order: Of each staged image, its place; int32.
        painted: For each image that is not staged, by its place, where its levels are, ``(H, W, 3)``.
        programs: Where it says how the host makes an image, from and to.
    """

    sizes: tuple[tuple[int, int, int], ...]
    layout: StagedLayout
    begin: int
    owners: bytes
    order: bytes
    painted: dict[int, int]
    programs: tuple[int, int]


def pixels_of(sizes: Iterable[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Return where each tensor's pixels begin, and how many bytes they are in all."""
    first, end = [], 0
    for images, height, width in sizes:
        first.append(end)
        end += -(-3 * images * height * width // PIXELS_ALIGNMENT) * PIXELS_ALIGNMENT
    return first, end


@dataclass(frozen=True, slots=True)
class StagedTensor(Leaf):
    """Takes a deferred tensor's place in a batch that a worker has staged.

    Attributes:
        number: Which of the staged tensors it is.
        values: ``(3, 256)``, the bytes of its levels' values.
        dtype: Its dtype.
        planar: Whether channels are outermost in an image's memory.
        is_batch: Whether it has a dimension of images.
        fills: Boxes of constants.
    """

    number: int
    values: bytes
    dtype: torch.dtype
    planar: bool
    is_batch: bool
    fills: tuple[Box, ...] = ()


def is_paintable(values: torch.Tensor, size: tuple[int, int]) -> bool:
    """Whether a device makes images of a size, (height, width), with the same bits."""
    if size == (1, 1):  # strides do not tell the layout
        return False
    return values.dtype in TABLE_DTYPES or (values.dtype == torch.uint8 and bool((values == _LEVELS).all()))


_LEVELS: Final = torch.arange(256, dtype=torch.uint8)


@functools.lru_cache(_TABLES_MAX)
def _table(values: bytes, dtype: torch.dtype) -> NormalizeTable | None:
    if dtype == torch.uint8:
        return None
    return NormalizeTable(torch.frombuffer(bytearray(values), dtype=dtype).view(3, 256))


def _to_fill(fills: tuple[Box, ...], images: int, dtype: torch.dtype) -> Erased | Noise | None:
    if not fills:
        return None
    values = [torch.frombuffer(bytearray(each), dtype=dtype) for _, _, each in fills]
    alike = len({each for _, _, each in fills}) == 1 and len({image for image, _, _ in fills}) == len(fills)
    if alike and bool(values[0].isfinite().all()):  # a color's numbers do not keep all bits of others
        boxes = torch.zeros((images, 4), dtype=torch.int32)
        for image, box, _ in fills:
            boxes[image] = torch.tensor(box, dtype=torch.int32)
        return Erased(boxes, values[0])
    return Noise([(image, *box) for image, box, _ in fills], [each.view(3, 1, 1) for each in values])


class ReceivedFiles:
    """A batch's staged files, in a slot, and what the device makes of them.

    Args:
        decoder: Decodes them.
        batch: What is in the slot.
        memory: The slot.
        paint: Makes images that the kernels cannot decode.
    """

    def __init__(self, decoder: Decoder, batch: StagedBatch, memory: torch.Tensor, paint: PaintImages) -> None:
        self._decoder = decoder
        self._batch = batch
        self._memory = memory
        self._paint_images = paint
        self.first, self._nbytes = pixels_of(batch.sizes)
        self._order = np.frombuffer(batch.order, np.int32)
        self._owners = np.frombuffer(batch.owners, np.int32)
        staged = np.frombuffer(batch.layout.has, np.bool_)
        self.images = len(staged)
        self._on_device = {int(place) for place in self._order[staged]}
        self.staged = len(self._on_device)
        self._where: list[tuple[int, int]] = []  # of each image, its pixels' begin and bytes
        for (images, height, width), first in zip(batch.sizes, self.first, strict=True):
            self._where += [(first + image * 3 * height * width, 3 * height * width) for image in range(images)]
        self._levels = {place: memory[at : at + self._where[place][1]] for place, at in batch.painted.items()}
        self._run: DecodeRun | None = None
        self._pixels: torch.Tensor | None = None  # on the device, until all tensors are made

    def leaf(self, tensor: StagedTensor, memory_format: torch.memory_format | None) -> ReceivedImages:
        """Return what takes a tensor's place and is copied.

        Args:
            tensor: Which.
            memory_format: Of a loader's batches.
        """
        images = self._batch.sizes[tensor.number][0]
        layout = torch.contiguous_format if tensor.planar else torch.channels_last
        if tensor.is_batch and memory_format in LAYOUTS:
            layout = memory_format
        table, fills = _table(tensor.values, tensor.dtype), _to_fill(tensor.fills, images, tensor.dtype)
        return ReceivedImages(ReceivedView(self, tensor.number), table, layout, fills, is_batch=tensor.is_batch)

    @property
    def nbytes(self) -> int:
        """Bytes that are copied to the device."""
        painted = sum(levels.nbytes for levels in self._levels.values())
        return painted + (self._batch.layout.used if self._on_device else 0)

    def view(self, number: int, timing: Timing | None) -> torch.Tensor:
        """Return a tensor's pixels on the device, ``(N, H, W, 3)``; made at once.

        Works on the current stream, and does not block.
        """
        if self._pixels is None:
            self._pixels = self._decode(timing)
        images, height, width = self._batch.sizes[number]
        size, begin = 3 * images * height * width, self.first[number]
        return self._pixels[begin : begin + size].view(images, height, width, 3)

    def _decode(self, timing: Timing | None) -> torch.Tensor:
        decoder, layout = self._decoder, self._batch.layout
        if decoder.gave_up is not None:
            self._paint(sorted(self._on_device))
        pixels = torch.empty(self._nbytes, dtype=torch.uint8, device=decoder.device)
        if self._on_device:
            if self._run is None:
                begin = self._batch.begin
                bad = decoder.pinned(4 * self.images).view(torch.int32)
                self._run = DecodeRun(decoder, self._memory[begin : begin + layout.used], bad)
            with decoder.turn:
                self._run.start(layout, pixels, timing, learns=False, name="paint")
        self._copy_levels(pixels)  # also over what the kernels made of bad files
        return pixels

    def _copy_levels(self, pixels: torch.Tensor) -> None:
        for place, levels in self._levels.items():
            begin, size = self._where[place]
            pixels[begin : begin + size].copy_(levels, non_blocking=True)

    def is_right(self) -> bool:
        """Whether all pixels that were made last are right.

        Else those that are not have been made on the host now, and all tensors have to be made again. Blocks while the
        kernels run.
        """
        self._pixels = None
        if self._run is None or not self._run.wait() or not self._run.bad.any():
            return True
        bad = self._run.bad.numpy()[self._owners] != 0
        failed = self._on_device.intersection(map(int, self._order[bad]))
        self._paint(sorted(failed))
        return not failed

    def _paint(self, places: list[int]) -> None:
        """Make images on the host."""
        if not places:
            return
        with stage("paint"):
            made = self._paint_images(self._memory, self._batch, places)
        sizes = [self._where[place][1] for place in places]
        for place, part, levels in zip(places, torch.split(self._decoder.pinned(sum(sizes)), sizes), made, strict=True):
            part.copy_(torch.from_numpy(np.ascontiguousarray(levels)).view(-1))
            self._levels[place] = part
        self._on_device.difference_update(places)


class ReceivedView:
    """The pixels of one tensor, with those of a tensor's methods that their copy needs."""

    def __init__(self, files: ReceivedFiles, number: int) -> None:
        self._files = files
        self._number = number

    @property
    def nbytes(self) -> int:
        """Bytes that are copied to the device, all with the first view."""
        return 0 if self._number else self._files.nbytes

    def is_pinned(self) -> bool:
        """True."""
        return True

    def to(self, device: torch.device, *, non_blocking: bool = True, timing: Timing | None = None) -> torch.Tensor:
        """See :meth:`ReceivedFiles.view`."""
        return self._files.view(self._number, timing)


class ReceivedImages(TableImages):
    """A leaf that is one of the tensors of :class:`ReceivedFiles`."""

    def __init__(self, *arguments: Any, is_batch: bool) -> None:
        super().__init__(*arguments)
        self._is_batch = is_batch

    def copy_pixels(
        self, device: torch.device, *, non_blocking: bool = False, timing: Timing | None = None
    ) -> CopiedImages:
        """See :class:`TableImages`."""
        erased = None if self.erased is None else self.erased.copied(device, pin=non_blocking)
        view: Any = self.pixels
        pixels = view.to(device, timing=timing)
        return _CopiedTensor(self, pixels, erased, is_batch=self._is_batch)


class _CopiedTensor(CopiedImages):
    """One of several tensors whose pixels share memory, which it must not keep."""

    def __init__(self, *arguments: Any, is_batch: bool) -> None:
        super().__init__(*arguments)
        self._is_batch = is_batch

    def images(self) -> torch.Tensor:
        made = super().images()
        made = made if made._base is None else made.clone()
        return made if self._is_batch else made[0].data  # no view


def paint_at_once(paint: Callable[[int], NDArray[np.uint8]], places: list[int]) -> list[NDArray[np.uint8]]:
    """Call ``paint``, which releases the GIL, for each place, in threads if there are many."""
    if len(places) < _AT_ONCE_MIN:
        return [paint(place) for place in places]
    with ThreadPoolExecutor(usable_cpus(), "fastload-paint") as pool:
        return list(pool.map(paint, places))


_AT_ONCE_MIN: Final = 4


@dataclass(eq=False)
class Painter:
    """Lets the workers of a loader stage batches, once their device can paint them.

    Args:
        make_decoder: Returns the device's decoder, or ``None``.
        slots: Those of the workers.
        paint: See :class:`ReceivedFiles`.
        memory_format: Of the loader's batches.
    """

    make_decoder: Callable[[], Decoder | None]
    slots: SlotPool
    paint: PaintImages
    memory_format: torch.memory_format | None
    decoder: Decoder | None = None

    def begin(self) -> bool:
        """Note that workers have batches to stage; return whether the device will paint them.

        The first call has the kernels compiled.
        """
        if self.decoder is None:
            self.decoder = self.make_decoder()
            if self.decoder is None:
                return False
        self.slots.paints = self.is_ready
        self.decoder.prepare()
        return self.decoder.gave_up is None

    @property
    def is_ready(self) -> bool:
        """Whether the device paints."""
        return self.decoder is not None and self.decoder.is_ready(steps=True)

    @property
    def is_preparing(self) -> bool:
        """Whether the kernels are being compiled."""
        return self.decoder is not None and self.decoder.is_compiling

    def leaf_or(self, others: Callable[[Any], Any], files: ReceivedFiles, leaf: Any) -> Any:
        """Return a staged tensor's leaf, or ``others(leaf)``."""
        return files.leaf(leaf, self.memory_format) if isinstance(leaf, StagedTensor) else others(leaf)

    def files(self, batch: StagedBatch, memory: torch.Tensor) -> ReceivedFiles:
        """Return a batch's files."""
        if self.decoder is None:
            raise RuntimeError("a batch is staged before its device can paint it")
        if self.decoder.gave_up is not None:
            self.slots.paints = False
        return ReceivedFiles(self.decoder, batch, memory, self.paint)
