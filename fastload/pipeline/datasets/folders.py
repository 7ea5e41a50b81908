"""Locate the samples of torchvision's datasets, and of those that nest or extend them."""

from __future__ import annotations

import bisect
import copy
import os
import pathlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torchvision
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets
from torchvision.datasets import folder, vision

from fastload.pipeline.code import own_getitem
from fastload.pipeline.datasets import arrays
from fastload.pipeline.datasets.arrays import OF_ARRAYS
from fastload.pipeline.datasets.encoded import check_encoded, has_computed_attributes, images_in, taken_of
from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.installed.patches import Originals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PIL_LOADER: Final = folder.pil_loader
_LOADERS: Final = (folder.default_loader, PIL_LOADER)
_PATHS: Final = (type(pathlib.Path()), type(pathlib.PurePath()))

_PAIRS: Final = ("_image_files", "_labels")
_PETS: Final = ("_images", "_labels", "_bin_labels", "_target_types")
_NATURE: Final = ("index", "all_categories", "categories_map", "target_type")
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
    datasets.LFWPeople: ("data", "targets"),
    datasets.Places365: ("imgs",),
    datasets.OxfordIIITPet: _PETS,
    datasets.INaturalist: _NATURE,
    datasets.CIFAR10: ("data", "targets"),
    datasets.CIFAR100: ("data", "targets"),
    datasets.SVHN: ("data", "labels"),
    datasets.STL10: ("data", "labels"),
    datasets.MNIST: ("data", "targets"),
    datasets.FashionMNIST: ("data", "targets"),
    datasets.KMNIST: ("data", "targets"),
    datasets.EMNIST: ("data", "targets"),
    datasets.QMNIST: ("data", "targets", "compat"),
    datasets.USPS: ("data", "targets"),
}
# Those whose first field is a list of paths with targets.
_LISTS: Final = (("samples",), ("_samples",), ("imgs",))
_FOLDERS: Final = tuple(known for known, fields in _FIELDS.items() if fields in _LISTS)
OF_FILES: Final = tuple(known for known in _FIELDS if known not in OF_ARRAYS)
"""Torchvision's datasets whose samples can be located in files."""
# They apply `transforms` to the image and its target.
_BY_TRANSFORMS: Final = (datasets.OxfordIIITPet, datasets.Places365)
_CLASSES: Final = (*_FIELDS, Subset, ConcatDataset, vision.StandardTransform)
ORIGINALS: Final = Originals(_CLASSES, called=("__getitem__", "__len__", "__call__"))
# What a subclass may have: no sample changes by it, or it is read (__getitem__).
_HARMLESS: Final = frozenset(
    (
        *("__abstractmethods__", "__annotations__", "__dict__", "__doc__", "__firstlineno__", "__init__", "__len__"),
        *("__getitem__", "__module__", "__orig_bases__", "__parameters__", "__qualname__", "__repr__"),
        *("__static_attributes__", "__str__", "__weakref__"),
    )
)


@dataclass(frozen=True, slots=True)
class BytesPath(os.PathLike[bytes]):
    """A path given as bytes, to tell it from an encoded image."""

    path: bytes

    def __fspath__(self) -> bytes:
        return self.path


@dataclass(frozen=True, slots=True)
class OddPath:
    """A path that is none, which only the dataset's loader takes or refuses.

    Pickles without the path, which may be anything.

    Attributes:
        path: Such as the number of an open file, ``None``, or an object with an ``__fspath__`` of its own.
        loader: Opens it.
        index: The sample's, after :meth:`~fastload.pipeline.recipe.Recipe.resolve`.
    """

    path: Any
    loader: Callable[[Any], Any]
    index: Any

    def opened(self) -> Any:
        """Open the image."""
        return self.loader(self.path)

    def __reduce__(self) -> Any:
        return OddPath, (None, self.loader, self.index)


def sendable(source: Any) -> Any:
    """Convert a sample's path or bytes to plain types, to send them to another process."""
    if type(source) is tuple:
        return tuple(map(sendable, source))
    if isinstance(source, os.PathLike):
        path = os.fspath(source)
        return path if isinstance(path, str) else BytesPath(path)
    return source if isinstance(source, str | bytes | np.ndarray | OddPath) else bytes(source)


def _by_pillow(path: Any) -> Any:
    return Image.open(path).convert("RGB")


def _as_path(path: Any, known: type, index: Any) -> Any:
    """Return a sample's path as the core takes it, or an :class:`OddPath`."""
    kind = type(path)
    if kind is str or kind in _PATHS:
        return path
    if isinstance(path, str):  # of a class of its own, such as NumPy's: the characters count
        return str.__str__(path)
    if isinstance(path, bytes):
        return BytesPath(b"".join((path,)))
    return OddPath(path, _by_pillow if known is datasets.OxfordIIITPet else PIL_LOADER, index)


def locate(dataset: Any, index: Any) -> tuple[Any, Any]:
    """Get a sample's encoded image (bytes or path) and target. Raises what the dataset would."""
    resolved = index
    dataset, index = _at_leaf(dataset, index)
    known = _known(kind := type(dataset))
    if known is None:
        return taken_of(dataset.encoded(index), images_in(dataset))
    if _has_own_getitem(kind, known):
        source, target = own_getitem.trace(dataset, index)
    else:
        source, target = _entry(dataset, known, index)
    return source if known in OF_ARRAYS else _as_path(source, known, resolved), target


def sample_name(dataset: Any, index: Any) -> str | None:
    """Name a sample in a message: its file, or what a dataset's ``sample_name(index)`` returns.

    Returns ``None`` if the dataset does not say it. Raises nothing.
    """
    try:
        dataset, index = _at_leaf(dataset, index)
        known = _known(kind := type(dataset))
        if known is None:
            name = dataset.sample_name(index) if hasattr(kind, "sample_name") else None
        else:
            name = os.fsdecode(_as_path(_entry(dataset, known, index)[0], known, index))  # of odd ones, a TypeError
    except Exception:  # noqa: BLE001 - any error of the user's dataset
        return None
    return name if isinstance(name, str) else None


def _at_leaf(dataset: Any, index: Any) -> tuple[Any, Any]:
    """Find a sample's dataset under all ``Subset`` and ``ConcatDataset``, and its index there."""
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
    return dataset, index


def pixels_of(dataset: Any, indices: Sequence[Any]) -> tuple[arrays.Pixels, list[Any]] | None:
    """Locate a batch's images and targets at once; ``None`` if only one by one."""
    subsets = []
    while type(dataset) is Subset:
        subsets.append(dataset)
        dataset = dataset.dataset
    known = _known(type(dataset))
    return arrays.entries(dataset, known, subsets, indices) if known is not None and known in OF_ARRAYS else None


def paths_of(dataset: Any, indices: Sequence[Any]) -> tuple[list[str], list[Any]] | None:
    """Locate a batch's files and targets at once.

    Returns ``None`` for what :func:`locate` has to look at one by one: other datasets than folders, paths that are no
    usual strings, and errors, which it raises in the sample's turn.
    """
    try:
        while type(dataset) is Subset:
            subset = dataset.indices
            dataset, indices = dataset.dataset, [subset[index] for index in indices]
        known = _known(kind := type(dataset))
        if known not in _FOLDERS or _has_own_getitem(kind, known):
            return None
        samples = getattr(dataset, _FIELDS[known][0])
        paths, targets = map(list, zip(*[samples[index] for index in indices], strict=True))
        usual = set(map(type, paths)) == {str} and b"\0" not in os.fsencode("".join(paths))
    except Exception:  # noqa: BLE001 - any error of a user's sequence
        return None
    return (paths, targets) if usual else None


def _entry(dataset: Any, known: type, index: Any) -> Any:
    """Look a sample's path or pixels and its target up."""
    fields = _FIELDS[known]
    if known in OF_ARRAYS:
        return arrays.entry(dataset, known, index)
    if fields is _PETS:
        numbers = {"category": dataset._labels, "binary-category": dataset._bin_labels}
        targets = [numbers[name][index] for name in dataset._target_types]
        return getattr(dataset, fields[0])[index], _one_or_more(targets) if targets else None
    if fields is _NATURE:
        number, name = dataset.index[index]
        path = os.path.join(dataset.root, dataset.all_categories[number], name)
        map_of = dataset.categories_map
        return path, _one_or_more([number if t == "full" else map_of[number][t] for t in dataset.target_type])
    if len(fields) == 1:
        return getattr(dataset, fields[0])[index]
    return tuple(getattr(dataset, field)[index] for field in fields)


def _one_or_more(targets: list[Any]) -> Any:
    return tuple(targets) if len(targets) > 1 else targets[0]


def transforms_of(dataset: Any) -> tuple[Any, Any]:
    """Return what one of :func:`leaves_of` applies to images and to targets."""
    if _known(type(dataset)) not in _BY_TRANSFORMS:
        return dataset.transform, getattr(dataset, "target_transform", None)
    both = dataset.transforms
    return (None, None) if both is None else (both.transform, both.target_transform)


def size_of(dataset: Any) -> tuple[int, int] | None:
    """Return the height and width, pixels, of a leaf's images; ``None`` if they may differ."""
    if (known := _known(type(dataset))) is None or known not in OF_ARRAYS:
        return None
    return arrays.size_of_images(dataset, known)


def is_gray(dataset: Any) -> bool:
    """Whether a leaf's images are gray, Pillow's mode ``"L"``."""
    known = _known(type(dataset))
    return known is not None and arrays.is_gray(known)


def looked_up_in(dataset: Any) -> tuple[str, ...] | None:
    """Attributes in which a leaf looks its samples up; ``None`` if ``encoded()`` gives them."""
    known = _known(type(dataset))
    if known is None:
        return None
    return *_FIELDS[known], _loader_name(known), *own_getitem.attributes_of(dataset, known)


def looks_up_plainly(dataset: Any) -> bool:
    """Whether a leaf is read from attributes, without running the user's code."""
    kind, known = type(dataset), _known(type(dataset))
    return not (has_computed_attributes(kind) if known is None else _has_own_getitem(kind, known))


def copied(dataset: Any, spares: list[Any]) -> Any:
    """Copy a dataset with its indices and samples. One with ``encoded()`` is not copied.

    Args:
        dataset: The user's.
        spares: Arrays of earlier copies, whose memory is written to again if nothing else refers to it.
    """
    kind = type(dataset)
    if kind is not Subset and kind is not ConcatDataset and _known(kind) is None:
        return dataset
    whole = copy.copy(dataset)
    if kind is Subset:
        whole.indices = arrays.copied_value(dataset.indices, spares)
        whole.dataset = copied(dataset.dataset, spares)
    elif kind is ConcatDataset:
        whole.datasets = [copied(part, spares) for part in dataset.datasets]
        whole.cumulative_sizes = copy.copy(dataset.cumulative_sizes)
    else:
        known: Any = _known(kind)
        for field in {*_FIELDS[known], *own_getitem.attributes_of(dataset, known)}:
            setattr(whole, field, arrays.copied_value(getattr(dataset, field), spares))
    return whole


def leaves_in(dataset: Any) -> list[Any]:
    """List the datasets under all ``Subset`` and ``ConcatDataset``."""
    if type(dataset) is Subset:
        return leaves_in(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return [leaf for part in dataset.datasets for leaf in leaves_in(part)]
    return [dataset]


def leaves_of(dataset: Any) -> list[Any]:
    """List those of :func:`leaves_in`.

    Raises:
        Refused: One cannot run natively, or something is patched.
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
        if kind is not known and (name := _own(dataset, known)) is not None:
            raise Refused(
                f"dataset {kind.__name__} is a subclass of {known.__name__} with {name} of its own; "
                f"use {known.__name__}, or give it encoded(index) and transform"
            )
        _check_unpatched(dataset, known)
        if known is datasets.OxfordIIITPet:
            if "segmentation" in dataset._target_types:
                raise Refused("OxfordIIITPet's target_types have 'segmentation', which is an image; leave it out")
        elif known in OF_ARRAYS:
            arrays.check_array(dataset, known)
        else:
            _check_loader(dataset, known)
        if known in _BY_TRANSFORMS:
            both = dataset.transforms
            if both is not None and type(both) is not vision.StandardTransform:
                raise Refused(
                    f"{name_of(both)} is applied to image and target together; give transform and target_transform"
                )
            if both is not None:
                _check_unpatched(both, vision.StandardTransform)
        if _has_own_getitem(kind, known):
            _check_getitem(dataset, known)
        elif _FIELDS[known] == _PAIRS and not is_true(dataset.transform):
            raise Refused(
                f"{name_of(dataset.transform)} has a __len__ or __bool__, and may not be applied; leave it out"
            )
    elif callable(getattr(kind, "encoded", None)) and hasattr(dataset, "transform"):
        check_encoded(dataset)
    else:
        known = next((base for base in kind.__mro__[1:] if base in ORIGINALS), None)
        what = f"a subclass of {known.__name__}, whose methods may be its own" if known is not None else "not known"
        raise Refused(f"dataset {kind.__name__} is {what}; use ImageFolder, or give it encoded(index) and transform")


def _check_loader(dataset: Any, known: type) -> None:
    loader = getattr(dataset, _loader_name(known), None)
    if loader is None:
        raise Refused(
            f"{known.__name__} without a loader opens images in the mode of their files; give it "
            "loader=torchvision.datasets.folder.default_loader"
        )
    if not any(loader is other for other in _LOADERS):
        raise Refused(f"the dataset's loader is {name_of(loader)}; leave it torchvision's default_loader")
    if torchvision.get_image_backend() != "PIL":
        raise Refused(f"torchvision's image backend is {torchvision.get_image_backend()}; set it to PIL")


def _loader_name(known: type) -> str:
    return "_loader" if known is datasets.LFWPeople else "loader"


def _check_getitem(dataset: Any, known: type) -> None:
    """Refuse a ``__getitem__`` that does more than arrange samples."""
    kind = type(dataset)
    fits = known not in (*_BY_TRANSFORMS, *OF_ARRAYS, datasets.LFWPeople)
    why = own_getitem.why_unknown(dataset, known) if fits else "replaces that of a class with no loader and transform"
    if why is not None:
        raise Refused(
            f"__getitem__ of {kind.__name__}, a subclass of {known.__name__}, {why}; let it only add plain attributes "
            f"to the sample, use {known.__name__}, or give it encoded(index) and transform"
        )
    if not is_true(dataset.transform):
        raise Refused(f"{name_of(dataset.transform)} has a __len__ or __bool__, and may not be applied; leave it out")
    if dataset.target_transform is not None:
        raise Refused(f"{kind.__name__} has a __getitem__ of its own and a target_transform; apply it in __getitem__")
    try:
        if len(dataset):
            own_getitem.trace(dataset, 0)
    except Refused:
        raise
    except Exception as error:  # it would raise in a worker too
        raise Refused(f"__getitem__ of {kind.__name__} raises {type(error).__name__}: {error}") from error


def _check_unpatched(dataset: Any, known: type) -> None:
    if (patched := ORIGINALS.patched(dataset, known)) is not None:
        raise Refused(patched)


def _known(kind: type) -> type | None:
    """The class of the table that a class is or extends.

    ``None`` if there is none, or the class has ``encoded()``.
    """
    if hasattr(kind, "encoded"):
        return None
    return next((base for base in kind.__mro__ if base in _FIELDS), None)


def _has_own_getitem(kind: Any, known: Any) -> bool:
    return kind.__getitem__ is not known.__getitem__


def _own(dataset: Any, known: type) -> str | None:
    """What the dataset's class has of its own that a sample could use, if anything."""
    kind = type(dataset)
    if type(kind) is not type(known):
        return "a metaclass"
    held = vars(dataset)
    for base in kind.__mro__:
        for name, value in vars(base).items() if base not in known.__mro__ else ():
            if name in _HARMLESS or (name, value) == ("__slotnames__", []):  # set by copying
                continue
            hides = name in held and (hasattr(type(value), "__set__") or hasattr(type(value), "__delete__"))
            if hides or ORIGINALS.counts(known, name) or (name.startswith("__") and name.endswith("__")):
                return name
    bare = known in (datasets.OxfordIIITPet, *OF_ARRAYS)
    loader = () if bare else (_loader_name(known),)
    fields = (*_FIELDS[known], *loader, "transform", "target_transform")
    return next((name for name in fields if name not in held), None)


def is_true(transform: Any) -> bool:
    """Whether a transform counts as true, and so is applied where a dataset asks that."""
    kind = type(transform)
    if kind is torch.nn.Sequential:
        return len(transform) > 0
    return transform is None or not (hasattr(kind, "__bool__") or hasattr(kind, "__len__"))
