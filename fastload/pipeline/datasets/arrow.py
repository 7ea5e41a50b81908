"""Locate images in Hugging Face's ``Dataset``, whose function transforms a batch of them.

``with_transform(function)`` makes a batch of whole columns; :mod:`fastload.pipeline.datasets.batch_functions` reads
that. Decode threads then take the encoded images where they lie in the table's memory, or in files.
"""

from __future__ import annotations

import bisect
import copy
import itertools
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import numpy as np
from torch.utils.data import default_collate

from fastload.pipeline.datasets.batch_functions import read_collate, read_function
from fastload.pipeline.datasets.orientation import HEAD_BYTES, is_upright, upright_by_header
from fastload.pipeline.datasets.samples import IMAGE, Around
from fastload.pipeline.errors import Refused, name_of
from fastload.pipeline.installed.patches import Functions, hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

_TURNED_MAX: Final = 1
"""Turned images, of the few that are looked at, with which workers are faster: these are decoded one by one."""
_LOOKED_AT: Final = 8
_INTEGERS: Final = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_FORMATTING: Final = ("query_table", "_query_table", "_query_table_with_indices_mapping", "format_table")
_WATCHED: Final = {
    "datasets.arrow_dataset": ("Dataset.__getitem__", "Dataset.__getitems__", "Dataset._getitem", "Dataset.__len__"),
    "datasets.features.features": ("Features.decode_batch", "decode_nested_example"),
    "datasets.features.image": ("Image.decode_example",),
    "datasets.formatting": ("get_formatter",),
    "datasets.formatting.formatting": (
        *_FORMATTING,
        *("CustomFormatter.__call__", "CustomFormatter.format_batch", "CustomFormatter.format_row"),
        *("PythonArrowExtractor.extract_batch", "PythonFeaturesDecoder.decode_batch"),
    ),
}
_functions: Functions | None = None


def is_arrow(dataset: Any) -> bool:
    """Whether a dataset is Hugging Face's ``Dataset``, which need not be installed."""
    module = sys.modules.get("datasets.arrow_dataset")
    return module is not None and type(dataset) is getattr(module, "Dataset", None)


class _Parts:
    """A column of an Arrow table, by row.

    Args:
        column: A ``pyarrow.ChunkedArray``.
    """

    def __init__(self, column: Any) -> None:
        self._chunks = column.chunks
        self._ends = list(itertools.accumulate(len(chunk) for chunk in self._chunks))
        self._of_structs: dict[int, tuple[Any, Any]] = {}

    def value(self, row: int) -> Any:
        """Return a row's value, as Python's."""
        part, place = self._place(row)
        return self._chunks[part][place].as_py()

    def image(self, row: int) -> tuple[memoryview | None, str | None]:
        """Return a row's bytes, in the table's memory, and its path.

        Raises:
            ValueError: It has neither.
        """
        part, place = self._place(row)
        chunk = self._chunks[part]
        children = self._of_structs.get(part)
        if children is None:
            children = self._of_structs[part] = chunk.field("bytes"), chunk.field("path")
        data, path = (child[place] for child in children)
        if not chunk[place].is_valid or not (data.is_valid or path.is_valid):
            raise ValueError(f"row {row} has no image")
        return memoryview(data.as_buffer()).cast("B") if data.is_valid else None, path.as_py()

    def _place(self, row: int) -> tuple[int, int]:
        part = bisect.bisect_right(self._ends, row)
        return part, row - (self._ends[part - 1] if part else 0)


class _Rows:
    """The rows of a Hugging Face dataset.

    Holds the objects whose ids are its key in :data:`_ROWS`.
    """

    def __init__(self, dataset: Any, image: str) -> None:
        indices = vars(dataset)["_indices"]
        self.held = dataset.data, indices
        self.feature = dataset.features[image]
        self.table = dataset.data.table
        self.images = _Parts(self.table.column(image))
        self.numbers = None if indices is None else indices.table.column(0).to_numpy()
        self.size = len(dataset)
        self.directory = os.getcwd()
        self._columns: dict[str, _Parts] = {}
        self.needs_pillow = sum(map(self._needs_pillow, {at * (self.size - 1) // 7 for at in range(_LOOKED_AT)}))

    def numbered(self, indices: Sequence[Any]) -> list[int]:
        """Map indices to rows of the table.

        Raises:
            IndexError: One is out of range.
        """
        keys = np.fromiter(indices, np.int64)
        least = -self.size if self.numbers is None else 0
        if len(keys) and (keys.min() < least or keys.max() >= self.size):
            raise IndexError(f"indices must be from {least} to {self.size - 1}, got {keys.min()} to {keys.max()}")
        rows: list[int] = (keys % self.size if self.numbers is None else self.numbers[keys]).tolist()
        return rows

    def column(self, name: str) -> _Parts:
        """Return a column of the table."""
        if name not in self._columns:
            self._columns[name] = _Parts(self.table.column(name))
        return self._columns[name]

    def source(self, row: int) -> Any:
        """Return a row's encoded image, or its pixels where Pillow has to turn it.

        Raises:
            Exception: What Hugging Face's decoding raises.
        """
        data, path = self.images.image(row)
        if data is not None:
            return data if is_upright(data) else self._by_pillow(bytes(data), path)
        if path is None or "://" in path:
            return self._by_pillow(None, path)
        whole = os.path.join(self.directory, path)
        with open(whole, "rb") as file:
            head = file.read(HEAD_BYTES)
            if upright_by_header(head):
                return whole
            head += file.read()
        return head if is_upright(head) else self._by_pillow(None, whole)

    def _by_pillow(self, data: bytes | None, path: str | None) -> NDArray[np.uint8]:
        return np.array(self.feature.decode_example({"bytes": data, "path": path}).convert("RGB"))

    def _needs_pillow(self, at: int) -> bool:
        try:
            return isinstance(self.source(self.numbered([at])[0]), np.ndarray)
        except Exception:  # noqa: BLE001 - of the user's file; raised in its batch's turn
            return False


_ROWS: Final[WeakValueDictionary[tuple[int, int, str], _Rows]] = WeakValueDictionary()
"""Rows that a recipe uses, which is read anew for each batch without workers."""


def _rows_of(dataset: Any, image: str) -> _Rows:
    key = id(dataset.data), id(vars(dataset)["_indices"]), image
    if (rows := _ROWS.get(key)) is None:
        rows = _ROWS[key] = _Rows(dataset, image)
    return rows


@dataclass
class ArrowImages:
    """A Hugging Face dataset's encoded images, and what is beside them.

    Attributes:
        dataset: A shallow copy of the user's.
        image: The images' column.
        keys: Key in a sample of the user's for each key of a sample, in order.
        columns: Source of each key of a sample: a column; ``None`` is the image.
        transform: Applied to each image.
    """

    dataset: Any
    image: str
    keys: dict[str, str]
    columns: dict[str, str | None]
    transform: Any
    rows: _Rows | None

    fetches_batches = True
    """Torch's workers get a batch at once, and make none of its samples where one cannot be decoded."""

    def __len__(self) -> int:
        return len(self.dataset)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "rows": None}

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return self._picked(self.dataset[index])

    def __getitems__(self, indices: Sequence[Any]) -> list[dict[str, Any]]:
        return [self._picked(sample) for sample in self.dataset.__getitems__(list(indices))]

    def _picked(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {key: sample[source] for key, source in self.keys.items()}

    def encoded(self, index: Any) -> tuple[Any, Around]:
        """Return a sample's encoded image, and what is around it. Raises what the dataset would."""
        rows = self._rows()
        return self._entry(rows, *rows.numbered([index]))

    def encoded_many(self, indices: Sequence[Any]) -> list[Any]:
        """Return that of several samples, or an error in the place of one."""
        rows = self._rows()
        return [self._entry(rows, row) for row in rows.numbered(indices)]

    def _rows(self) -> _Rows:
        if self.rows is None:
            self.rows = _rows_of(self.dataset, self.image)
        return self.rows

    def _entry(self, rows: _Rows, row: int) -> tuple[Any, Around]:
        sample = {
            key: IMAGE if column is None else rows.column(column).value(row) for key, column in self.columns.items()
        }
        return rows.source(row), Around(sample)


def arrow_images(dataset: Any, collate_fn: Callable[[Any], Any] | None) -> tuple[ArrowImages, bool]:
    """Read a Hugging Face dataset whose images go through a function of ``with_transform`` or ``set_transform``.

    Args:
        dataset: One of :func:`is_arrow`.
        collate_fn: The loader's; ``None`` if it runs on the dataset's own samples.

    Returns:
        The dataset's images, and whether ``default_collate`` of their samples is what the collate function makes.

    Raises:
        Refused: It is not known what happens to the images.
    """
    if (patched := _watched().patched()) is not None:
        raise Refused(patched)
    if (name := hidden(dataset, type(dataset), dir(type(dataset)))) is not None:
        raise Refused(f"the Hugging Face dataset has {name} of its own; leave it out")
    if dataset._format_type != "custom":
        raise Refused("the Hugging Face dataset has no transform; give it one by with_transform(function)")
    if dataset._output_all_columns or "token_per_repo_id" in (dataset._format_kwargs or {}):
        raise Refused("the Hugging Face dataset's format has options that are not supported natively; leave them out")
    function, features = dataset._format_kwargs["transform"], dataset.features
    columns = [name for name in dataset.column_names if name in (dataset._format_columns or dataset.column_names)]
    decoded = [name for name in columns if features._column_requires_decoding[name]]
    if len(decoded) != 1:
        raise Refused(f"the dataset has {len(decoded)} columns to decode ({', '.join(decoded)}); leave one of images")
    image = decoded[0]
    check_feature(features[image], dataset.data.table.schema.field(image).type, image)
    try:
        reading = read_function(function, columns, image, is_rgb=features[image].mode == "RGB")
    except Refused as refused:
        raise Refused(
            f"the dataset's transform {name_of(function)} is not understood: {refused}; let it pass columns on and "
            "apply one transform to each image.convert('RGB')"
        ) from refused
    is_known = collate_fn is default_collate
    keys = {key: key for key in reading.columns}
    if collate_fn is not None and not is_known:
        with suppress(Refused):
            keys = read_collate(collate_fn, reading, _integers(dataset))
            is_known = True
    if reading.decoded and (collate_fn is default_collate or not is_known):
        raise Refused(
            f"samples have images in {', '.join(reading.decoded)}, which would have to be decoded too; remove that "
            "column in the transform, or use a collate function that only stacks images and makes a tensor of labels"
        )
    rows = _rows_of(dataset, image)
    if rows.needs_pillow > _TURNED_MAX:
        raise Refused(
            f"{rows.needs_pillow} of {_LOOKED_AT} images looked at are turned by their EXIF data, or are no JPEG, PNG "
            "or WebP files"
        )
    sources = {key: reading.columns[source] for key, source in keys.items()}
    return ArrowImages(copy.copy(dataset), image, keys, sources, reading.transform, rows), is_known


def _integers(dataset: Any) -> frozenset[str]:
    """Columns of integers without nulls."""
    table = dataset.data.table
    return frozenset(
        name
        for name in table.column_names
        if str(table.schema.field(name).type) in _INTEGERS and table.column(name).null_count == 0
    )


def check_feature(feature: Any, kind: Any, name: str) -> None:
    """Refuse a column that is not stored as images are."""
    module = sys.modules["datasets.features.image"]
    if type(feature) is not module.Image or feature.mode not in (None, "RGB"):
        raise Refused(f"column {name!r} is {feature}; only Image() and Image(mode='RGB') are read natively")
    if str(kind) != "struct<bytes: binary, path: string>":
        raise Refused(f"column {name!r} is stored as {kind}; cast it to Image()")


def _watched() -> Functions:
    """What Hugging Face's library does with a batch, and the native core bypasses."""
    global _functions
    if _functions is None:
        found = Functions()
        for module, names in _WATCHED.items():
            holder: Any = sys.modules[module]
            for name in names:
                outer, _, method = name.rpartition(".")
                found.add(getattr(holder, outer) if outer else holder, (method,))
        _functions = found
    return _functions
