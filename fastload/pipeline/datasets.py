"""Locate the samples of torchvision's datasets, and of those that nest or extend them."""

from __future__ import annotations

import bisect
import copy
import os
from dataclasses import dataclass
from typing import Any, Final

import torch
import torchvision
from torch.utils.data import ConcatDataset, IterableDataset, Subset
from torchvision import datasets
from torchvision.datasets import folder

from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.monkeypatch_check import Originals

PIL_LOADER: Final = folder.pil_loader
_LOADERS: Final = (folder.default_loader, PIL_LOADER)

_PAIRS: Final = ("_image_files", "_labels")
# Their __getitem__ looks an index up in these attributes, loads the file and transforms it.
_FIELDS: Final[dict[type, tuple[str, ...]]] = {
    datasets.ImageFolder: ("samples",),
    datasets.DatasetFolder: ("samples",),
    datasets.ImageNet: ("samples",),
    datasets.Imagenette: ("_samples",),
    datasets.StanfordCars: ("_samples",),
    datasets.DTD: _PAIRS,
    datasets.FGVCAircraft: _PAIRS,
    datasets.Flowers102: _PAIRS,
    datasets.Food101: _PAIRS,
    datasets.SUN397: _PAIRS,
}
_ORIGINALS: Final = Originals((*_FIELDS, Subset, ConcatDataset), besides=("__init__", "_download", "download"))
# What a subclass may have: nothing here is used when a sample is made.
_HARMLESS: Final = frozenset(
    (
        *("__abstractmethods__", "__annotations__", "__dict__", "__doc__", "__firstlineno__", "__init__", "__len__"),
        *("__module__", "__orig_bases__", "__parameters__", "__qualname__", "__repr__", "__static_attributes__"),
        *("__weakref__", "_abc_impl", "_check_exists", "_check_integrity", "_download", "download", "extra_repr"),
        *("find_classes", "make_dataset"),
    )
)


@dataclass(frozen=True, slots=True)
class BytesPath(os.PathLike[bytes]):
    """A path given as bytes, to tell it from an encoded image."""

    path: bytes

    def __fspath__(self) -> bytes:
        return self.path


def locate(dataset: Any, index: Any) -> tuple[Any, Any]:
    """Get a sample's encoded image (bytes or path) and target. Raises what the dataset would."""
    while (kind := type(dataset)) in (Subset, ConcatDataset):
        if kind is Subset:
            dataset, index = dataset.dataset, dataset.indices[index]
            continue
        ends = dataset.cumulative_sizes
        if index < 0:
            if -index > ends[-1]:
                raise ValueError("absolute value of index should not exceed dataset length")
            index = ends[-1] + index
        part = bisect.bisect_right(ends, index)
        index = index - ends[part - 1] if part else index
        dataset = dataset.datasets[part]
    known = _known(kind)
    if known is None:
        source, target = dataset.encoded(index)
        return source, target
    fields = _FIELDS[known]
    if len(fields) == 1:
        source, target = getattr(dataset, fields[0])[index]
    else:
        source, target = (getattr(dataset, field)[index] for field in fields)
    return BytesPath(source) if isinstance(source, bytes) else source, target


def copied(dataset: Any) -> Any:
    """Copy a dataset with its indices and samples. One with ``encoded()`` is not copied."""
    kind = type(dataset)
    if kind is not Subset and kind is not ConcatDataset and _known(kind) is None:
        return dataset
    whole = copy.copy(dataset)
    if kind is Subset:
        indices = dataset.indices
        whole.indices = indices.clone() if isinstance(indices, torch.Tensor) else copy.copy(indices)
        whole.dataset = copied(dataset.dataset)
    elif kind is ConcatDataset:
        whole.datasets = [copied(part) for part in dataset.datasets]
        whole.cumulative_sizes = copy.copy(dataset.cumulative_sizes)
    else:
        for field in _FIELDS[_known(kind)]:  # type: ignore[index]
            setattr(whole, field, copy.copy(getattr(dataset, field)))
    return whole


def leaves_of(dataset: Any) -> list[Any]:
    """List the datasets under all ``Subset`` and ``ConcatDataset``.

    Raises:
        Refused: One cannot, or something is patched.
    """
    if type(dataset) is Subset:
        _check_unpatched(dataset, Subset)
        return leaves_of(dataset.dataset)
    if type(dataset) is ConcatDataset:
        _check_unpatched(dataset, ConcatDataset)
        return [leaf for part in dataset.datasets for leaf in leaves_of(part)]
    _check_leaf(dataset)
    return [dataset]


def _check_leaf(dataset: Any) -> None:
    kind = type(dataset)
    if (known := _known(kind)) is not None:
        _check_unpatched(dataset, known)
        if kind is not known and (name := _own(dataset, known)) is not None:
            raise Refused(
                f"dataset {kind.__name__} is a subclass of {known.__name__} with {name} of its own; "
                f"use {known.__name__}, or give it encoded(index) and transform"
            )
        if not any(dataset.loader is loader for loader in _LOADERS):
            raise Refused(f"the dataset's loader is {name_of(dataset.loader)}; leave it torchvision's default_loader")
        if torchvision.get_image_backend() != "PIL":
            raise Refused(f"torchvision's image backend is {torchvision.get_image_backend()}; set it to PIL")
        if _FIELDS[known] == _PAIRS and not _is_true(dataset.transform):
            raise Refused(
                f"{name_of(dataset.transform)} has a __len__ or __bool__, and may not be applied; leave it out"
            )
    elif callable(getattr(kind, "encoded", None)) and hasattr(dataset, "transform"):
        if isinstance(dataset, IterableDataset) or hasattr(kind, "__getitems__"):
            raise Refused(
                f"{kind.__name__} is iterable or fetches whole batches; only datasets by index are supported natively"
            )
    else:
        known = next((base for base in kind.__mro__[1:] if base in _ORIGINALS), None)
        what = f"a subclass of {known.__name__}, whose methods may be its own" if known is not None else "not known"
        raise Refused(f"dataset {kind.__name__} is {what}; use ImageFolder, or give it encoded(index) and transform")
    if getattr(dataset, "target_transform", None) is not None:
        raise Refused("the dataset has a target_transform; apply it to the targets beforehand")


def _check_unpatched(dataset: Any, known: type) -> None:
    if (patched := _ORIGINALS.patched(dataset, known)) is not None:
        raise Refused(patched)


def _known(kind: type) -> type | None:
    """The class of the table that a class is or extends.

    ``None`` if there is none, or the class has ``encoded()``.
    """
    if hasattr(kind, "encoded"):
        return None
    return next((base for base in kind.__mro__ if base in _FIELDS), None)


def _own(dataset: Any, known: type) -> str | None:
    """What the dataset's class has of its own that a sample could use, if anything."""
    kind = type(dataset)
    if type(kind) is not type(known):
        return "a metaclass"
    held = vars(dataset)
    for base in kind.__mro__:
        for name, value in vars(base).items() if base not in known.__mro__ else ():
            if name in _HARMLESS or (name, value) == ("__slotnames__", []):  # the latter is set by copying
                continue
            hides = name in held and (hasattr(type(value), "__set__") or hasattr(type(value), "__delete__"))
            if hides or hasattr(known, name) or (name.startswith("__") and name.endswith("__")):
                return name
    fields = (*_FIELDS[known], "loader", "transform", "target_transform")
    return next((name for name in fields if name not in held), None)


def _is_true(transform: Any) -> bool:
    kind = type(transform)
    if kind is torch.nn.Sequential:
        return len(transform) > 0
    return transform is None or not (hasattr(kind, "__bool__") or hasattr(kind, "__len__"))
