"""Images whose pixels are pending until their batch is made.

An image is decoded, its values are looked up in the table of its transform's tail, and they are written to the batch,
before the next one is decoded. It is never a tensor of its own.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Final

import torch

from fastload import _core
from fastload._compare import same_bits
from fastload.lazy.images import pending_of
from fastload.memory.packing import contiguous_stride
from fastload.memory.sending import sends_files, stack_one_by_one

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastload.lazy.pixels import Pending
    from fastload.pipeline.crops import CropPlan
    from fastload.pipeline.tail import Split

COMPARED: Final = 2
"""The first images of a transform, whose tensors it makes itself as well."""
SIDE_MIN: Final = 2
"""The smallest side of an image whose strides say which layout it has, pixels."""


class PendingTransform:
    """A transform of pending pixels.

    Args:
        split: The user's transform.
        crops: Its head, if it is nothing else.
    """

    def __init__(self, split: Split, crops: CropPlan | None) -> None:
        self.split = split
        self._crops = crops
        self._generator = _core.Generator(0)
        self._to_compare = COMPARED
        self._is_off = False

    def __call__(self, image: Any) -> Any:
        """Transform an image to a :class:`PendingImage`.

        If its pixels are not pending, the user's transform makes what it always does.
        """
        whole = pending_of(image, SIDE_MIN)
        if self._to_compare and whole is not None:
            return self._compared(image, whole)
        crops = self._crops
        if crops is not None and whole is not None and whole.is_whole:
            drawn = self._drawn(whole, crops)
            if drawn is not None:
                return PendingImage(drawn, self)
        image = self._beginning(image)
        pending = pending_of(image, SIDE_MIN)
        return self.split.finished(image) if pending is None or self._is_off else PendingImage(pending, self)

    def _beginning(self, image: Any) -> Any:
        for step in self.split.head:
            image = step(image)
        return image

    def _compared(self, image: Any, whole: Pending) -> Any:
        """Transform one of the first images by the user's transform as well."""
        before = torch.get_rng_state()
        image = self._beginning(image)
        after = torch.get_rng_state()
        expected = self.split.finished(image)
        pending = pending_of(image, SIDE_MIN)
        made: Any = None if pending is None else PendingImage(pending, self)
        if made is not None and not _are_same(made.finished(), expected):
            self._give_up()
            made = None
        if self._crops is not None and whole.is_whole:
            torch.set_rng_state(before)
            drawn = self._drawn(whole, self._crops)
            is_same = drawn is None or _are_same(PendingImage(drawn, self).finished(), expected)
            if not is_same or (drawn is not None and not torch.equal(torch.get_rng_state(), after)):
                self._give_up()
            torch.set_rng_state(after)
        if self._to_compare:
            self._to_compare -= 1
        return expected if made is None or self._is_off else made

    def _give_up(self) -> None:
        """Run the user's transform alone from now on, and warn.

        Goes on even if warnings are errors.
        """
        self._is_off, self._crops, self._to_compare = True, None, 0
        with contextlib.suppress(RuntimeWarning):
            warnings.warn("images are batched by Python: natively, one was not the same to the bit", RuntimeWarning, 2)

    def _drawn(self, whole: Pending, crops: CropPlan) -> Pending | None:
        """Draw from torch's generator as the head does.

        Returns:
            The changed pixels; ``None``, and nothing is drawn, if only torch can.
        """
        generator = self._generator
        if crops.draws:
            generator.set_state(torch.get_rng_state().numpy().tobytes())
        _, geometry, _ = crops.plan.draw(generator, *whole.size)
        if geometry is None:
            return None
        drawn = whole.as_drawn(geometry, crops.filter)
        if min(drawn.size) < SIDE_MIN:
            return None
        if crops.draws:
            torch.set_rng_state(torch.frombuffer(bytearray(generator.get_state()), dtype=torch.uint8))
        return drawn

    def look_up(self, pending: Pending, out: torch.Tensor, *, planar: bool) -> None:
        """Make an image's tensor.

        Args:
            pending: The image's pixels.
            out: ``(3, H, W)``, dense, to write to.
            planar: Whether channels are outermost in ``out``'s memory, else innermost.
        """
        _core.look_up(pending.pixels()[None], self.split.table, out[None], planar)


class PendingImage:
    """Stands for the tensor of an image in a sample.

    Args:
        pending: Its pixels.
        transform: What makes a tensor of them.
    """

    __slots__ = ("pending", "size", "transform")

    def __init__(self, pending: Pending, transform: PendingTransform) -> None:
        self.pending = pending
        self.transform = transform
        width, height = pending.size
        self.size = (3, height, width)

    def finished(self) -> torch.Tensor:
        """Make the tensor."""
        split = self.transform.split
        planar = split.layout == torch.contiguous_format
        stride = contiguous_stride(self.size) if planar else (1, 3 * self.size[2], 3)
        out = torch.empty_strided(self.size, stride, dtype=split.table.dtype)
        self.transform.look_up(self.pending, out, planar=planar)
        return out.as_subclass(split.image)


def are_alike(images: list[Any]) -> bool:
    """Whether all are pending images that can be stacked."""
    if any(type(image) is not PendingImage for image in images):
        return False
    return all((image.transform, image.size) == (images[0].transform, images[0].size) for image in images)


def stack(images: list[PendingImage], *, sends: bool) -> torch.Tensor:
    """Stack images that are alike, whatever their layout, as ``torch.stack`` does.

    Args:
        images: At least one.
        sends: Whether to write to a memory file, as the batch is sent as it is.

    Returns:
        ``(N, 3, H, W)``, contiguous.
    """
    transform, one = images[0].transform, images[0].size
    dtype = transform.split.table.dtype
    size = (len(images), *one)
    if sends and sends_files():
        with contextlib.suppress(RuntimeError):  # there are no more files
            return stack_one_by_one(_one_by_one(images, torch.empty(one, dtype=dtype)), size, dtype)
    out = torch.empty(size, dtype=dtype)
    for image, place in zip(images, out, strict=True):
        transform.look_up(image.pending, place, planar=True)
    return out


def _one_by_one(images: list[PendingImage], place: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield ``place`` with each image's values in turn."""
    for image in images:
        image.transform.look_up(image.pending, place, planar=True)
        yield place


def _are_same(ours: Any, theirs: Any) -> bool:
    return type(ours) is type(theirs) and ours.stride() == theirs.stride() and same_bits(ours, theirs)
