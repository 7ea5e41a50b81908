"""Images in tar and zip archives, as ``ImageFolder`` has extracted ones."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
from torch.utils.data import Dataset
from torchvision.datasets.folder import IMG_EXTENSIONS

from fastload.pipeline.datasets.samples import named
from fastload.pipeline.recipe import opened
from fastload.sources.archive_index import COLUMNS, FOLDER, OTHER, ArchiveError, ArchiveReader, as_list, read_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from fastload.sources.archive_index import Paths

_EXTENSIONS: Final = tuple(IMG_EXTENSIONS)
_KEY: Final = re.compile(r"((?:.*/|)[^./]+)[.]([^/]*)")  # a member's key and extension, as webdataset divides its name
_LABELS: Final[dict[str, Callable[[bytes], Any]]] = {
    "cls": int,
    "id": int,
    "index": int,
    "json": json.loads,
    "txt": lambda data: data.decode("utf-8"),
}
"""Readers of labels by extension, as in webdataset's ``decode()``."""


class _Archives(Dataset[Any]):
    """Images of archives by index.

    Attributes:
        samples: Path and target of each image; the path is ``ARCHIVE/MEMBER``.
        transform: Transform of the user, applied to Pillow's image in RGB.
        target_transform: Transform of the user, applied to the target.
    """

    encodes_raw_targets: ClassVar = True
    """``encoded`` returns targets to which ``target_transform`` has not been applied."""

    def __init__(
        self,
        path_or_paths: Paths,
        transform: Callable[[Any], Any] | None,
        target_transform: Callable[[Any], Any] | None,
        *,
        is_zip: bool,
    ) -> None:
        self.paths = as_list(path_or_paths)
        self.transform = transform
        self.target_transform = target_transform
        self._indexes = [read_index(path, is_zip=is_zip) for path in self.paths]
        self._reader = ArchiveReader(self.paths, [index.stamp for index in self._indexes])

    def _members(self) -> Iterator[tuple[int, str, NDArray[np.int64]]]:
        """Yield each member's archive, name and place."""
        for archive, index in enumerate(self._indexes):
            for name, place in zip(index.names, index.places, strict=True):
                yield archive, name, place

    def _check_readable(self, archive: int, name: str, place: NDArray[np.int64]) -> None:
        if place[0] == OTHER:
            raise ArchiveError(
                f"{self.paths[archive]} must hold files alone, and {name} is a link, a device, sparse, encrypted, or "
                "compressed otherwise than by deflate; write the archive without it"
            )

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        """Return ``(transform(image), target_transform(target))``. Blocks while it reads and decodes."""
        source, target = self.encoded(index)
        with named(self.sample_name(index)):
            image = opened(source)
            if self.transform is not None:
                image = self.transform(image)
        return image, target if self.target_transform is None else self.target_transform(target)

    def encoded(self, index: Any) -> tuple[bytes, Any]:
        """Return a sample's file and its target, before ``target_transform``. Blocks while it reads."""
        raise NotImplementedError

    def sample_name(self, index: Any) -> str:
        """Return a sample's path, ``ARCHIVE/MEMBER``, for messages."""
        raise NotImplementedError


class _ArchiveFolder(_Archives):
    _IS_ZIP: ClassVar[bool]

    def __init__(
        self,
        path_or_paths: Paths,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        root: str | os.PathLike[str] = "",
        allow_empty: bool = False,
    ) -> None:
        super().__init__(path_or_paths, transform, target_transform, is_zip=self._IS_ZIP)
        self.root = os.fspath(root)
        top = "/".join(part for part in self.root.split("/") if part not in ("", "."))
        prefix = f"{top}/" if top else ""
        classes: set[str] = set()
        found: dict[str, tuple[int, NDArray[np.int64]]] = {}
        for archive, name, place in self._members():
            if not name.startswith(prefix):
                continue
            self._check_readable(archive, name, place)
            first, *rest = name[len(prefix) :].split("/")
            if first and (rest or place[0] == FOLDER):
                classes.add(first)
            if place[0] == FOLDER or not rest or not name.lower().endswith(_EXTENSIONS):
                continue
            if name in found:
                other = self.paths[found[name][0]]
                raise ArchiveError(f"a file must be in one archive, and {name} is in {other} and {self.paths[archive]}")
            found[name] = archive, place
        if not classes:
            raise FileNotFoundError(f"Couldn't find any class folder in {', '.join(self.paths)} ({self.root or '.'}).")
        self.classes = sorted(classes)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        chosen = sorted(found, key=lambda name: (name[len(prefix) :].split("/")[0], *os.path.split(name)))
        targets = [self.class_to_idx[name[len(prefix) :].split("/")[0]] for name in chosen]
        if not allow_empty and (empty := classes - {self.classes[target] for target in targets}):
            raise FileNotFoundError(f"Found no valid file for the classes {', '.join(sorted(empty))}.")
        self._archives = np.array([found[name][0] for name in chosen], np.int64)
        self._places = np.array([found[name][1] for name in chosen], np.int64).reshape(-1, COLUMNS)
        paths = [os.path.join(self.paths[found[name][0]], name) for name in chosen]
        self.samples = self.imgs = list(zip(paths, targets, strict=True))
        self.targets = targets
        self._indexes = []  # all that is used of them has been copied

    def __len__(self) -> int:
        return len(self.samples)

    def encoded(self, index: Any) -> tuple[bytes, int]:
        """Return a sample's file and its class, before ``target_transform``. Blocks while it reads.

        Raises:
            ArchiveError: The archive has changed, or the file is damaged.
        """
        return self._reader.read(int(self._archives[index]), self._places[index]), self.samples[index][1]

    def sample_name(self, index: Any) -> str:
        """Return a sample's path, ``ARCHIVE/MEMBER``, for messages."""
        return str(self.samples[index][0])


class TarImageFolder(_ArchiveFolder):
    """Images in tar archives, as ``ImageFolder`` has them after extraction. Nothing is extracted.

    Samples are ``(transform(image), target_transform(class))``, in the order of torchvision's ``ImageFolder`` over a
    folder into which all archives were extracted. The first time, each archive's headers are read and an index is kept
    beside it (``ARCHIVE.index.npz``, or in ``~/.cache/fastload/archives``); it is made again when the archive changes,
    and used only by the user who has made it.

    Args:
        path_or_paths: Archives that are not compressed.
        transform: Applied to each image, Pillow's in RGB.
        target_transform: Applied to each class.
        root: Folder within the archives that has the folders of classes.
        allow_empty: Whether a class may have no images.

    Attributes:
        classes: Names of the classes, sorted.
        class_to_idx: The number of each.
        samples: Path, which is ``ARCHIVE/MEMBER``, and class of each image; also ``imgs``.
        targets: The class of each image.

    Raises:
        ArchiveError: A path is no such archive, or holds links, or two archives hold the same file.
        FileNotFoundError: There are no classes, or one without images.
    """

    _IS_ZIP = False


class ZipImageFolder(_ArchiveFolder):
    """Images in zip archives, stored or deflated, as ``ImageFolder`` has them after extraction.

    Everything else is as in :class:`TarImageFolder`. Checksums are checked.
    """

    _IS_ZIP = True


class TarSamples(_Archives):
    """Pairs in tar archives as webdataset writes them (``key.jpg``, ``key.cls``), by index.

    Samples are ``(transform(image), target_transform(label))``, in the order of the archives and of their members.
    Indexes are kept as :class:`TarImageFolder`'s are.

    Args:
        path_or_paths: Archives that are not compressed.
        image: Extensions of images, separated by ``;``; the first that a key has is used.
        label: The label's extension, which says how it is read: ``cls``, ``id``, ``index`` (int), ``txt``, ``json``.
        transform: Applied to each image, Pillow's in RGB.
        target_transform: Applied to each label.

    Attributes:
        samples: Path of each image, which is ``ARCHIVE/MEMBER``.

    Raises:
        ArchiveError: A path is no such archive, or a key lacks its image or label.
    """

    def __init__(
        self,
        path_or_paths: Paths,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        image: str = "jpg;jpeg;png",
        label: Literal["cls", "id", "index", "json", "txt"] = "cls",
    ) -> None:
        super().__init__(path_or_paths, transform, target_transform, is_zip=False)
        if label not in _LABELS:
            raise ValueError(f"label must be one of {', '.join(_LABELS)}, got {label!r}")
        self._label = label
        keys: dict[tuple[int, str], dict[str, tuple[str, NDArray[np.int64]]]] = {}
        for archive, name, place in self._members():
            if place[0] == FOLDER or (match := _KEY.fullmatch(name)) is None:
                continue
            self._check_readable(archive, name, place)
            keys.setdefault((archive, match[1]), {})[match[2].lower()] = name, place
        wanted = image.split(";")
        self.samples, pairs = [], []
        for (archive, key), parts in keys.items():
            found = next((parts[extension] for extension in wanted if extension in parts), None)
            if found is None or label not in parts:
                raise ArchiveError(
                    f"a key must have an image ({image}) and a label ({label}), and {key} of {self.paths[archive]} has "
                    f"{', '.join(sorted(parts))}"
                )
            self.samples.append(os.path.join(self.paths[archive], found[0]))
            pairs.append((found[1], parts[label][1]))
        self._archives = np.array([archive for archive, _ in keys], np.int64)
        self._places = np.array(pairs, np.int64).reshape(-1, 2, COLUMNS)
        self._indexes = []

    def __len__(self) -> int:
        return len(self.samples)

    def encoded(self, index: Any) -> tuple[bytes, Any]:
        """Return a sample's file and its label, before ``target_transform``. Blocks while it reads.

        Raises:
            ArchiveError: The archive has changed.
        """
        archive, (image, label) = int(self._archives[index]), self._places[index]
        return self._reader.read(archive, image), _LABELS[self._label](self._reader.read(archive, label))

    def sample_name(self, index: Any) -> str:
        """Return a sample's path, ``ARCHIVE/MEMBER``, for messages."""
        return str(self.samples[index])
