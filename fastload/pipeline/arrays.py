"""Locate and copy the images of torchvision's datasets that hold uint8 arrays."""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from mmap import mmap
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision import datasets

from fastload.pipeline.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_ARRAYS: Final = (datasets.CIFAR10, datasets.CIFAR100)
"""They hold images as an array of shape ``(N, H, W, 3)``."""
_PLANES: Final = (datasets.SVHN, datasets.STL10)
"""They hold images as an array of shape ``(N, 3, H, W)``."""
OF_ARRAYS: Final = (*_ARRAYS, *_PLANES)
"""Torchvision's datasets whose samples are arrays."""
_COPIED_MAX: Final = 2**30  # bytes of an array that is copied for each epoch


@dataclass(frozen=True, slots=True)
class Pixels:
    """Decoded images of a batch.

    Attributes:
        images: ``(N, H, W, 3)`` uint8, with any strides: all images of the dataset.
        indices: Which of them.
    """

    images: NDArray[np.uint8]
    indices: list[int]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, sample: int) -> NDArray[np.uint8]:
        image: NDArray[np.uint8] = self.images[self.indices[sample]]
        return image


def entries(
    dataset: Any, known: type, subsets: list[Subset[Any]], indices: Sequence[Any]
) -> tuple[Pixels, list[Any]] | None:
    """Locate a batch's images and its targets.

    Args:
        dataset: One of arrays.
        known: Torchvision's class that it is.
        subsets: Around it, outermost first.
        indices: The samples' in those.

    Returns:
        ``None`` where samples have to be located one by one, for the errors that this raises, too.
    """
    try:
        for subset in subsets if _are_numbers(indices) else ():
            indices = [subset.indices[index] for index in indices]
        data = dataset.data
        if not (_are_numbers(indices) and _fits(data, known)):
            return None
        if min(indices) < -len(data) or max(indices) >= len(data):
            return None
        targets = [_target(dataset, known, index) for index in indices]
        return Pixels(_as_rgb(data, known), [index % len(data) for index in indices]), targets
    except Exception:  # noqa: BLE001 - raised again by the sample that it comes from
        return None


def _are_numbers(indices: Sequence[Any]) -> bool:
    return {int, np.int64} >= {*map(type, indices)} != set()


def _as_rgb(pixels: Any, known: type) -> Any:
    """View images as ``(..., H, W, 3)``."""
    return pixels if known in _ARRAYS else np.moveaxis(pixels, -3, -1)


def _target(dataset: Any, known: type, index: Any) -> Any:
    """Look the target of a sample of an array up."""
    if known in _ARRAYS:
        return dataset.targets[index]
    labels = dataset.labels
    return None if labels is None and known is datasets.STL10 else int(labels[index])


def size_of_images(dataset: Any, known: type) -> tuple[int, int]:
    """Return the height and width, pixels, of a dataset's images."""
    height, width = dataset.data.shape[1:3] if known in _ARRAYS else dataset.data.shape[2:]
    return int(height), int(width)


def entry(dataset: Any, known: type, index: Any) -> tuple[Any, Any]:
    """Copy a sample's pixels, of shape ``(H, W, 3)``, and look its target up."""
    pixels = _as_rgb(dataset.data[index], known)
    target = _target(dataset, known, index)
    if pixels.ndim != 3:
        Image.fromarray(pixels)  # raises the same error as in a worker
    return np.array(pixels, order="C"), target


def copied_value(value: Any, spares: list[Any]) -> Any:
    """Copy a value, so that later writes don't affect it."""
    if _is_constant(value):
        return value
    for spare in spares if type(value) is np.ndarray else ():
        # New memory costs more than the copy. The list, this name and the call make three references.
        fits = spare.shape == value.shape and spare.dtype == value.dtype
        if fits and spare.flags.writeable and sys.getrefcount(spare) == 3:
            np.copyto(spare, value)
            return spare
    return value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)  # copy.copy shares a tensor's memory


def _is_constant(value: Any) -> bool:
    """Whether a value cannot be written to, as far as NumPy knows."""
    while isinstance(value, np.ndarray):
        if value.flags.writeable:
            return False
        value = value.base
        if value is None:
            return True
    return isinstance(value, bytes) or (isinstance(value, mmap) and memoryview(value).readonly)


def _is_shared(array: Any) -> bool:
    """Whether worker processes could see later writes to an array.

    A file mapped for reading only counts as constant.
    """
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap) and array.mode in ("r", "c"):
            return False
        array = array.base
    if isinstance(array, torch.Tensor):
        return bool(array.is_shared())  # type: ignore[no-untyped-call]
    return not isinstance(array, bytes | None)


def _fits(data: Any, known: type) -> bool:
    """Whether images are an array of the usual dtype and shape."""
    if type(data) not in (np.ndarray, np.memmap) or data.dtype != np.uint8 or data.ndim != 4:
        return False
    return bool(data.shape[-1 if known in _ARRAYS else 1] == 3)


def check_array(dataset: Any, known: type) -> None:
    """Refuse images that are not as torchvision makes them, or not this process's own."""
    data = dataset.data
    if not _fits(data, known):
        shape = "(N, H, W, 3)" if known in _ARRAYS else "(N, 3, H, W)"
        raise Refused(f"data of {known.__name__} is no uint8 array of shape {shape}, as torchvision makes it")
    if _is_shared(data):
        raise Refused(f"data of {known.__name__} is in memory that others may write to; give the dataset a copy of it")
    if data.nbytes > _COPIED_MAX and not _is_constant(data):
        raise Refused(
            f"data of {known.__name__} has {data.nbytes >> 20} MiB, and is copied for each epoch as long as it may be "
            "written to; set flags.writeable = False of it, and of the arrays that it is a view of (data.base ...)"
        )
