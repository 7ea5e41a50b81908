"""Take the steps off a transform that make a tensor and change its values.

Workers run the transform without it. Pixels then leave them as uint8, and the device looks up the values.

Native samples win where both are possible, such as with a ``target_transform`` of the user's own: ``read_tail`` then
takes nothing off. Were both chosen, a worker would refuse the transform without its tail, which it does not know, and
make the samples as torch does.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision.datasets import DatasetFolder, ImageFolder, ImageNet

from fastload.pipeline.datasets.folders import ORIGINALS
from fastload.pipeline.errors import Refused
from fastload.pipeline.installed.settings import check_collating
from fastload.pipeline.installed.watched import check_libraries
from fastload.pipeline.roles import patched, role_of
from fastload.pipeline.transforms import LAYOUT_BY_STRIDE, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FOLDERS: tuple[type, ...] = (ImageFolder, DatasetFolder, ImageNet)


class Untailed:
    """Pixels of an image, ``(H, W, 3)``, and the tail that would make its tensor."""

    def __init__(self, pixels: torch.Tensor, tail: list[Callable[[Any], Any]]) -> None:
        self.pixels = pixels
        self.tail = tail

    def finished(self) -> Any:
        """Run the tail here."""
        return _through(self.tail, Image.fromarray(self.pixels.numpy()))


class WithoutTail:
    """A transform that runs its tail only for images that are not RGB."""

    def __init__(self, head: list[Callable[[Any], Any]], tail: list[Callable[[Any], Any]]) -> None:
        self.head = head
        self.tail = tail

    def __call__(self, image: Any) -> Any:  # noqa: D102
        image = _through(self.head, image)
        if isinstance(image, Image.Image) and image.mode == "RGB" and image.width and image.height:
            return Untailed(torch.from_numpy(np.array(image)), self.tail)
        return _through(self.tail, image)


@dataclass(frozen=True, slots=True)
class Split:
    """A transform in two parts.

    Attributes:
        head: Steps on images.
        tail: Steps that make a tensor and change its values.
        table: ``(3, 256)``: the value that the tail gives each level of each channel.
        image: Type of the tensor.
        layout: Its memory format; ``None`` if it is another.
    """

    head: list[Callable[[Any], Any]]
    tail: list[Callable[[Any], Any]]
    table: torch.Tensor
    image: type[torch.Tensor]
    layout: torch.memory_format | None

    def finished(self, image: Any) -> Any:
        """Run the tail on an image."""
        return _through(self.tail, image)


@dataclass(frozen=True, slots=True)
class Tail:
    """What was taken off a dataset.

    Attributes:
        dataset: A copy of the dataset, whose transform leaves its tail to the device.
        table: The values of the 256 levels of each channel, as :func:`~fastload.pipeline.transforms.table_of` makes it.
        names: The classes of the tail's steps.
    """

    dataset: Any
    table: torch.Tensor
    names: tuple[str, ...]

    @staticmethod
    def take_pixels(samples: list[Any]) -> tuple[list[Any], bool]:
        """Replace images without tail by their pixels, or by tensors unless all have one size.

        Returns the samples, and whether they hold pixels.
        """
        images = [image for image, *_ in samples]
        if all(type(image) is Untailed and image.pixels.shape == images[0].pixels.shape for image in images):
            return [(image.pixels, *rest) for image, *rest in samples], True
        return [(image.finished() if type(image) is Untailed else image, *rest) for image, *rest in samples], False


def without_tail(dataset: Any) -> Tail | None:
    """Take the tail off a dataset's transform; ``None`` if it has none that is known."""
    if type(dataset) not in (*_FOLDERS, Subset) or ORIGINALS.patched(dataset) is not None:
        return None
    part = copy.copy(dataset)
    if type(dataset) is Subset:
        inner = without_tail(dataset.dataset)
        if inner is None:
            return None
        part.dataset = inner.dataset
        return replace(inner, dataset=part)
    split = split_off(dataset.transform)
    if split is None:
        return None
    part.transform = WithoutTail(split.head, split.tail)
    return Tail(part, split.table, tuple(type(step).__name__ for step in split.tail))


def split_off(transform: Any) -> Split | None:
    """Split a transform before its tail; ``None`` if it has none that is known."""
    try:
        steps = list(_flat(transform))
        start = _start(steps)
        if start is None:
            return None
        check_libraries(v2=any("v2" in type(step).__module__ for step in steps))
        tail = steps[start:]
        table = table_of(tail)
        if table is None:
            return None
        made = _through(tail, Image.new("RGB", (7, 5)))
        check_collating(type(made))
    except Refused:
        return None
    return Split(steps[:start], tail, table, type(made), LAYOUT_BY_STRIDE.get(made.stride()))


def _start(steps: list[Any]) -> int | None:
    """Position of the step that makes a tensor, if only changes of values follow."""
    for position in reversed(range(len(steps))):
        role = role_of(steps[position])
        if role == "to_tensor":
            return position
        if role != "elementwise":
            return None
    return None


def _flat(transform: Any) -> Iterator[Any]:
    role = role_of(transform)
    if role is not None and (reason := patched(transform)) is not None:
        raise Refused(reason)
    if role == "compose":
        for part in transform.transforms:
            yield from _flat(part)
    else:
        yield transform


def _through(steps: list[Callable[[Any], Any]], image: Any) -> Any:
    for step in steps:
        image = step(image)
    return image
