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

from fastload import _core
from fastload.pipeline.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_ARRAYS: Final = (datasets.CIFAR10, datasets.CIFAR100)
"""They hold images as an array of shape ``(N, H, W, 3)``."""
_PLANES: Final = (datasets.SVHN, datasets.STL10)
"""They hold images as an array of shape ``(N, 3, H, W)``."""
_MNISTS: Final = (datasets.MNIST, datasets.FashionMNIST, datasets.KMNIST, datasets.EMNIST, datasets.QMNIST)
_GRAY: Final = (*_MNISTS, datasets.USPS)
"""They hold gray images as a tensor, or USPS as an array, of shape ``(N, H, W)``."""
OF_ARRAYS: Final = (*_ARRAYS, *_PLANES, *_GRAY)
"""Torchvision's datasets whose samples are arrays."""
_COPIED_MAX: Final = 2**30  # bytes of an array that is copied for each epoch


@dataclass(frozen=True, slots=True)
class Pixels:
    """Decoded images of a batch.

    Attributes:
        images: ``(N, H, W, 3)`` uint8, with any strides: all images of the dataset; ``(N, H, W, 1)`` if they are gray.
        indices: Which of them.
    """

    images: NDArray[np.uint8]
    indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, sample: int) -> NDArray[np.uint8]:
        """Return an image, ``(H, W, 3)`` or ``(H, W)``."""
        image: NDArray[np.uint8] = self.images[self.indices[sample]]
        return image if image.shape[2] == 3 else image[..., 0]


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
        for subset in subsets:
            indices = [subset.indices[index] for index in indices]
        data, numbers = dataset.data, _numbers(indices)
        if numbers is None or not _fits(data, known):
            return None
        first = numbers.min()
        if first < -len(data) or numbers.max() >= len(data):
            return None
        targets = _targets(dataset, known, numbers, indices)
        return Pixels(_arranged(data, known), numbers % len(data) if first < 0 else numbers), targets
    except Exception:  # noqa: BLE001 - raised again by the sample that it comes from
        return None


def _numbers(indices: Sequence[Any]) -> NDArray[np.int64] | None:
    """Make an array of indices, unless some are no numbers or there are none."""
    numbers = np.empty(len(indices), np.int64)
    if not _core.put_ints(indices, numbers):
        if not {*map(type, indices)} <= {int, np.int64}:
            return None
        numbers[:] = indices
    return numbers if len(numbers) else None


def _as_array(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _arranged(data: Any, known: type) -> Any:
    """View all images as ``(N, H, W, C)``."""
    if known in _GRAY:
        return _as_array(data)[..., None]
    return data if known in _ARRAYS else np.moveaxis(data, 1, 3)


def _targets(dataset: Any, known: type, numbers: NDArray[np.int64], indices: Sequence[Any]) -> list[Any]:
    """Look the targets of several samples up: usual kinds without Python code for each.

    Others get the indices themselves, not those of the array ``numbers``: their code may depend on the type.
    """
    targets = dataset.labels if known in _PLANES else dataset.targets
    if known in _ARRAYS and type(targets) is list:
        return _core.items_of(targets, numbers)
    found: list[Any]
    if known in _MNISTS and known is not datasets.QMNIST:
        if type(targets) is torch.Tensor and targets.dtype == torch.int64:
            found = targets[torch.from_numpy(numbers)].tolist()
            return found
    elif known in _PLANES and type(targets) is np.ndarray and targets.dtype.kind in "iu" and targets.ndim == 1:
        found = targets[numbers].tolist()
        return found
    return [_target(dataset, known, index) for index in indices]


def _target(dataset: Any, known: type, index: Any) -> Any:
    """Look the target of a sample of an array up."""
    if known in _ARRAYS:
        return dataset.targets[index]
    if known is datasets.QMNIST:
        target = dataset.targets[index]
        return int(target[0]) if dataset.compat else target
    if known in _GRAY:
        return int(dataset.targets[index])
    labels = dataset.labels
    return None if labels is None and known is datasets.STL10 else int(labels[index])


def size_of_images(dataset: Any, known: type) -> tuple[int, int]:
    """Return the height and width, pixels, of a dataset's images."""
    height, width = dataset.data.shape[2:] if known in _PLANES else dataset.data.shape[1:3]
    return int(height), int(width)


def is_gray(known: type) -> bool:
    """Whether a dataset's images are gray."""
    return known in _GRAY


def entry(dataset: Any, known: type, index: Any) -> tuple[Any, Any]:
    """Copy a sample's pixels, ``(H, W, 3)`` or ``(H, W)``, and look its target up."""
    pixels = _as_array(dataset.data[index])
    target = _target(dataset, known, index)
    if known in _PLANES:
        pixels = np.transpose(pixels, (1, 2, 0))
    if pixels.ndim != 3 - (known in _GRAY):
        Image.fromarray(pixels)  # raises the same error as in a worker
    return np.array(pixels, order="C"), target


def copied_value(value: Any, spares: list[Any]) -> Any:
    """Copy a value, so that later writes don't affect it."""
    if _is_constant(value):
        return value
    for at in range(len(spares)):
        # New memory costs more than the copy. The list and the call make two references; a name's would differ from
        # Python to Python, as 3.14 borrows it for a call.
        if _is_like(spares[at], value) and sys.getrefcount(spares[at]) == 2:
            np.copyto(_as_array(spares[at]), _as_array(value))
            return spares[at]
    return value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)  # copy.copy shares a tensor's memory


def _is_like(spare: Any, value: Any) -> bool:
    """Whether a copy of ``value`` can take the memory of ``spare``."""
    if type(spare) is not type(value) or spare.shape != value.shape or spare.dtype != value.dtype:
        return False
    return type(value) is torch.Tensor or (type(value) is np.ndarray and spare.flags.writeable)


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
    """Whether images are an array, or a tensor, of the usual dtype and shape."""
    if known in _MNISTS:
        usual = type(data) is torch.Tensor and data.device.type == "cpu" and data.layout is torch.strided
        return usual and data.dtype == torch.uint8 and data.ndim == 3
    if type(data) not in (np.ndarray, np.memmap) or data.dtype != np.uint8:
        return False
    return bool(data.ndim == 3 if known in _GRAY else data.ndim == 4 and data.shape[-1 if known in _ARRAYS else 1] == 3)


def check_array(dataset: Any, known: type) -> None:
    """Refuse images that are not as torchvision makes them, or not this process's own."""
    data = dataset.data
    if not _fits(data, known):
        shape = "(N, H, W, 3)" if known in _ARRAYS else "(N, 3, H, W)" if known in _PLANES else "(N, H, W)"
        kind = "tensor" if known in _MNISTS else "array"
        raise Refused(f"data of {known.__name__} is no uint8 {kind} of shape {shape}, as torchvision makes it")
    if _is_shared(data):
        raise Refused(f"data of {known.__name__} is in memory that others may write to; give the dataset a copy of it")
    if data.nbytes > _COPIED_MAX and not _is_constant(data):
        raise Refused(
            f"data of {known.__name__} has {data.nbytes >> 20} MiB, and is copied for each epoch as long as it may be "
            "written to; set flags.writeable = False of it, and of the arrays that it is a view of (data.base ...)"
        )
