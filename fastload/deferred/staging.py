"""Write deferred tensors' contents into a slot, for a GPU; and paint what it cannot."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from PIL import ImageFile

from fastload import _core
from fastload.deferred.calls import grids
from fastload.deferred.content import Content, value_bytes
from fastload.deferred.decoding import ByTorchvision
from fastload.deferred.placed import Placed
from fastload.device.decode.files import SCRATCH_MAX_BYTES, StagedLayout
from fastload.device.decode.received import StagedBatch, StagedTensor, is_paintable, paint_at_once, pixels_of
from fastload.lazy.pixels import ByPillow, File, Pending
from fastload.memory.packing import ALIGNMENT, DoesNotFitError, aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fastload.deferred.content import Rearranged


class Stager:
    """Collects the deferred tensors of one batch, and stages them."""

    def __init__(self) -> None:
        self._contents: list[Content] = []
        self._values: dict[int, bytes] = {}  # of tables, by their ids

    def take(self, content: Content | Rearranged, size: Sequence[int], stride: Sequence[int]) -> StagedTensor | None:
        """Return what takes a tensor's place; ``None`` if the device cannot make it."""
        if not isinstance(content, Content) or content.channels == 1:
            return None
        height, width = content.image_size
        images = len(content.images)
        one = (height * width, width, 1) if content.planar else (1, 3 * width, 3)
        is_batch = len(size) == 4
        expected = ((images,) if is_batch else ()) + (3, height, width)
        strides = ((3 * height * width,) if is_batch else ()) + one
        if tuple(size) != expected or tuple(stride) != strides or not is_paintable(content.table, (height, width)):
            return None
        key = id(content.table)  # kept by the content
        if (values := self._values.get(key)) is None:
            values = self._values[key] = value_bytes(content.table)
        fills = tuple((each.image, each.box, value_bytes(each.values)) for each in content.fills)
        self._contents.append(content)
        return StagedTensor(len(self._contents) - 1, values, content.table.dtype, content.planar, is_batch, fills)

    def write(self, memory: torch.Tensor) -> tuple[StagedBatch, int] | None:
        """Stage what was taken; ``None`` if that is nothing.

        Args:
            memory: The free rest of a slot, which begins at a multiple of the alignment.

        Returns:
            What there is, by places from the memory's beginning, and the bytes used.

        Raises:
            DoesNotFitError: The memory is too small.
        """
        contents = self._contents
        if not contents:
            return None
        sizes = tuple((len(content.images), *content.image_size) for content in contents)
        images = [_settled(cast("Pending | Placed", image)) for content in contents for image in content.images]
        files, places, programs = _programs(images)
        slot = memory.numpy()
        end = 0
        for data in (*files, programs):
            begin, end = end, end + len(data)
            if end > slot.size:
                raise DoesNotFitError(sum(content.staged_bytes for content in contents))
            slot[begin:end] = np.frombuffer(data, np.uint8)
        first, _ = pixels_of(sizes)
        begin = aligned(end)
        tensors = [content.core() for content in contents]
        room = slot[begin:]
        if room.size < len(images) * _core.Staging.bytes_per_image + ALIGNMENT:
            raise DoesNotFitError(sum(content.staged_bytes for content in contents))
        has, owners, order, used, wanted, search, codes, chunks = _core.stage_programs(
            tensors, first, room, SCRATCH_MAX_BYTES
        )
        if wanted > room.size:  # some were left out that the device can paint
            raise DoesNotFitError(begin + wanted)
        at = begin + aligned(used)
        painted = {}
        for number in np.flatnonzero(np.frombuffer(has, np.uint8) == 0):
            place = int(np.frombuffer(order, np.int32)[number])
            image = images[place]
            if image.file.is_decoded:
                painted[place] = places[id(image.file.data)][0]
                continue
            levels = image.pixels().reshape(-1)
            if at + levels.size > slot.size:
                raise DoesNotFitError(at + aligned(levels.size) * has.count(0))
            slot[at : at + levels.size] = levels
            painted[place] = at
            at += aligned(levels.size)
        layout = StagedLayout(has, used, search, codes, chunks)
        return StagedBatch(sizes, layout, begin, owners, order, painted, (end - len(programs), end)), at


def _settled(image: Pending | Placed) -> Pending:
    """Return an image to stage; make one that no kernel makes.

    That is one that is placed, or gathered: where a pixel comes from takes more bytes than the pixel. A part of pixels
    that are made is made, too: what is staged of these is the whole.
    """
    if isinstance(image, Placed) or any(kind == grids.STEP for kind, _ in image.steps):
        return image.made()
    return image.made() if image.file.is_decoded and not image.is_whole else image


def _programs(images: Sequence[Pending]) -> tuple[list[bytes], dict[int, tuple[int, int]], bytes]:
    """Return files, each once, their places by ids, and the images' pickled programs."""
    places: dict[int, tuple[int, int]] = {}
    files = []
    end = 0
    for image in images:
        data = image.file.data
        if id(data) not in places:
            places[id(data)] = end, end + len(data)
            end += len(data)
            files.append(data)
    fields = [
        (places[id(image.file.data)], image.file.size, image.file.library.name, image.fields()) for image in images
    ]
    return files, places, pickle.dumps((images[0].file.pass_rule, fields), pickle.HIGHEST_PROTOCOL)


def paint_images(memory: torch.Tensor, batch: StagedBatch, places: list[int]) -> list[NDArray[np.uint8]]:
    """Make images' levels, (H, W, 3) each, of what :meth:`Stager.write` has written.

    Args:
        memory: What it was written to.
        batch: What it returned.
        places: Which of the images.
    """
    slot = memory.numpy()
    begin, end = batch.programs
    pass_rule, fields = pickle.loads(slot[begin:end].tobytes())
    pillow = ByPillow(pass_rule, 0, _ignore, ImageFile.ImageFile.load)
    libraries = {each.name: each for each in (pillow, ByTorchvision(pass_rule, 0, _ignore))}

    def paint(place: int) -> NDArray[np.uint8]:
        (from_byte, to_byte), size, library, described = fields[place]
        return Pending(File(slot[from_byte:to_byte].tobytes(), size, libraries[library]), *described).pixels()

    return paint_at_once(paint, places)


def _ignore() -> None:
    pass
