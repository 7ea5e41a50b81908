"""Images in Parquet and Arrow files, as Hugging Face and others keep them."""

from __future__ import annotations

import bisect
import itertools
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from fastload._files import open_file
from fastload.pipeline.datasets.samples import EncodedImage, named
from fastload.pipeline.recipe import opened
from fastload.sources.archive_index import COLUMNS, STORED, ArchiveError, ArchiveReader, as_list, stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from fastload.sources.archive_index import Paths

_ARROW: Final = b"ARROW1"
_PARQUET: Final = b"PAR1"
_CONTINUED: Final = b"\xff\xff\xff\xff"  # how a stream of Arrow's begins
_END: Final = _CONTINUED + bytes(4)  # how it ends
_HOW: Final[Any] = {"pre_buffer": False, "page_checksum_verification": True}


@dataclass(frozen=True)
class _Contents:
    """What a file holds.

    Attributes:
        groups: Rows of each row group, or record batch.
        labels: Labels of all rows; ``None`` if none are asked for.
        places: Places of images in an Arrow file, as ``ArchiveIndex.places``; an offset of -1 is no image. ``None``
            for a Parquet file.
    """

    groups: list[int]
    labels: list[Any] | None
    places: NDArray[np.int64] | None


class ParquetImages(Dataset[Any]):
    """Images in a column of Parquet or Arrow files, by row.

    Samples are ``(transform(image), target_transform(label))``, or ``transform(image)`` without a column of labels. The
    images' column holds bytes, or Hugging Face's structs of bytes and a path. Labels are read at once and kept.

    Of an Arrow file that is not compressed, each image is read where it lies. A Parquet file can be read by row groups
    only, and the last ones are kept. In random order, each image would need one of its own, so shuffle by
    :class:`RowGroupSampler`.

    Picklable; each process has a cache of its own. Thread-safe.

    Args:
        path_or_paths: Files, whose rows follow one another.
        transform: Applied to each image, Pillow's in RGB.
        target_transform: Applied to each label.
        image: The images' column.
        label: The labels' column; ``None`` if there is none.
        cache_bytes: How much of the row groups is kept, at least the last one.

    Attributes:
        paths: The files.
        targets: The label of each row, or ``None``.
        row_groups: Indices of each row group, of record batches in Arrow files.

    Raises:
        ArchiveError: A path is no such file, or lacks a column.
        ImportError: pyarrow is not installed.
    """

    encodes_raw_targets: ClassVar = True
    """``encoded`` returns targets to which ``target_transform`` has not been applied."""

    def __init__(
        self,
        path_or_paths: Paths,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        image: str = "image",
        label: str | None = "label",
        cache_bytes: int = 1 << 29,
    ) -> None:
        self.paths = as_list(path_or_paths)
        self.transform = transform
        self.target_transform = target_transform
        stamps = [stamp_of(os.stat(path)) for path in self.paths]
        contents = [_read(path, image, label) for path in self.paths]
        sizes = [size for one in contents for size in one.groups]
        ends = list(itertools.accumulate(sizes))
        self.row_groups = [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        self.targets = None if label is None else [each for one in contents for each in one.labels or ()]
        self._places = [one.places for one in contents]
        self._ends = list(itertools.accumulate(sum(one.groups) for one in contents))
        self._reader = ArchiveReader(self.paths, stamps)
        self._groups = _RowGroups(self.paths, stamps, [one.groups for one in contents], image, cache_bytes)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        """Return a sample. Blocks while it reads and decodes."""
        data = self._image(index)
        with named(self.sample_name(index)):
            image = opened(data)
            if self.transform is not None:
                image = self.transform(image)
        if self.targets is None:
            return image
        target = self.targets[index]
        return image, target if self.target_transform is None else self.target_transform(target)

    def encoded(self, index: Any) -> Any:
        """Return a sample's encoded image and its label, before ``target_transform``. Blocks while it reads.

        Raises:
            ArchiveError: The file has changed or is damaged, or the row has no image.
        """
        data = self._image(index)
        return EncodedImage(data) if self.targets is None else (data, self.targets[index])

    def sample_name(self, index: Any) -> str:
        """Return a sample's row and file, for messages."""
        file, row = self._file_and_row(index)
        return f"row {row} of {self.paths[file]}"

    def _file_and_row(self, index: Any) -> tuple[int, int]:
        row = range(len(self))[index]
        file = bisect.bisect_right(self._ends, row)
        return file, row - (self._ends[file - 1] if file else 0)

    def _image(self, index: Any) -> bytes:
        file, row = self._file_and_row(index)
        places = self._places[file]
        if places is None:
            data = self._groups.image(file, row)
        else:
            data = self._reader.read(file, places[row]) if places[row, 1] >= 0 else None
        if data is None:
            raise ArchiveError(f"{self.paths[file]} must have the bytes of each image, and row {row} has none")
        return data


class RowGroupSampler(Sampler[int]):
    """Shuffles the rows of Parquet files so that each row group is read once.

    Row groups are shuffled, then the rows of a few of them together.

    Args:
        dataset: Its row groups are those to shuffle.
        mixed: How many row groups are mixed; the dataset's ``cache_bytes`` should hold as many.
        generator: Draws the order; ``None`` is one seeded by torch's default generator, as in ``RandomSampler``.
    """

    def __init__(self, dataset: ParquetImages, *, mixed: int = 8, generator: torch.Generator | None = None) -> None:
        if type(mixed) is not int or mixed < 1:
            raise ValueError(f"mixed must be an int >= 1, got {mixed!r}")
        self.row_groups = dataset.row_groups
        self.mixed = mixed
        self.generator = generator

    def __len__(self) -> int:
        return sum(map(len, self.row_groups))

    def __iter__(self) -> Iterator[int]:
        generator = self.generator
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        groups = torch.randperm(len(self.row_groups), generator=generator).tolist()
        for begin in range(0, len(groups), self.mixed):
            rows = [row for group in groups[begin : begin + self.mixed] for row in self.row_groups[group]]
            for place in torch.randperm(len(rows), generator=generator).tolist():
                yield rows[place]


class _Kept:
    """The row groups that a process has read last. A forked child begins anew."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.groups: OrderedDict[tuple[int, int], Any] = OrderedDict()
        self.nbytes = 0


class _RowGroups:
    """Reads images of Parquet files, and keeps the row groups that were read last."""

    def __init__(
        self, paths: list[str], stamps: list[tuple[int, int]], groups: list[list[int]], image: str, cache_bytes: int
    ) -> None:
        self._paths, self._stamps, self._image, self._cache_bytes = paths, stamps, image, cache_bytes
        self._ends = [list(itertools.accumulate(sizes)) for sizes in groups]
        self._kept: _Kept | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": None}

    def image(self, file: int, row: int) -> bytes | None:
        """Return the encoded image of a file's row, or ``None``. Blocks."""
        kept = self._kept
        if kept is None or kept.pid != os.getpid():  # a fork may have left the lock held
            kept = self._kept = _Kept()  # of two threads' the first one's is dropped
        group = bisect.bisect_right(self._ends[file], row)
        row -= self._ends[file][group - 1] if group else 0
        with kept.lock:
            column = kept.groups.pop((file, group), None)
            if column is None:
                column = self._read(file, group)
                kept.nbytes += column.nbytes
            kept.groups[file, group] = column
            while kept.nbytes > self._cache_bytes and len(kept.groups) > 1:
                kept.nbytes -= kept.groups.popitem(last=False)[1].nbytes
        value: bytes | None = column[row].as_py()
        return value

    def _read(self, file: int, group: int) -> Any:
        from pyarrow import parquet

        path = self._paths[file]
        try:
            with open_file(path) as source:
                if stamp_of(os.fstat(source.fileno())) != self._stamps[file]:
                    raise ArchiveError(f"{path} has changed since it was opened; make the dataset again")
                table = parquet.ParquetFile(source, **_HOW).read_row_group(
                    group, columns=[self._image], use_threads=False
                )
        except ArchiveError:
            raise
        except Exception as error:  # of many types
            raise ArchiveError(f"{path} is damaged in row group {group}, write it again: {error}") from error
        return _bytes_of(table.column(0))


def _bytes_of(column: Any) -> Any:
    """The bytes of a column of images."""
    import pyarrow

    if pyarrow.types.is_struct(column.type):
        return pyarrow.chunked_array([chunk.field("bytes") for chunk in column.chunks], column.type.field("bytes").type)
    return column


def _check_columns(path: str, schema: Any, image: str, label: str | None) -> None:
    import pyarrow

    for name in (image, label):
        if name is not None and name not in schema.names:
            raise ArchiveError(f"{path} must have a column {name!r}, and has {', '.join(schema.names)}; name another")
    kind = schema.field(image).type
    if pyarrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    if not (pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)):
        raise ArchiveError(
            f"column {image!r} of {path} must hold bytes, or structs with bytes, and holds {schema.field(image).type}"
        )


def _read(path: str, image: str, label: str | None) -> _Contents:
    """Read a file's labels and where its rows are.

    Raises:
        ArchiveError: It is no such file.
        ImportError: pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: F401 - whether it is there
    except ImportError as error:
        raise ImportError("ParquetImages needs pyarrow; install it: pip install pyarrow") from error
    with open_file(path) as file:
        begin = file.read(6)
    try:
        if begin[:4] == _PARQUET:
            return _of_parquet(path, image, label)
        if begin == _ARROW or begin[:4] == _CONTINUED:
            return _of_arrow(path, image, label, is_stream=begin != _ARROW)
    except ArchiveError:
        raise
    except Exception as error:  # of many types
        raise ArchiveError(f"{path} is damaged, write it again: {error}") from error
    raise ArchiveError(f"{path} must be a Parquet or Arrow file, and begins with {begin!r}")


def _of_parquet(path: str, image: str, label: str | None) -> _Contents:
    from pyarrow import parquet

    with parquet.ParquetFile(path, **_HOW) as file:
        _check_columns(path, file.schema_arrow, image, label)
        about = file.metadata
        groups = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
        labels = None if label is None else file.read([label], use_threads=False).column(0).to_pylist()
    if labels is not None and len(labels) != sum(groups):
        raise ArchiveError(f"{path} must have a label for each of {sum(groups)} rows, and has {len(labels)}")
    return _Contents(groups, labels, None)


def _of_arrow(path: str, image: str, label: str | None, *, is_stream: bool) -> _Contents:
    import pyarrow

    groups: list[int] = []
    labels: list[Any] = []
    places = [np.empty((0, COLUMNS), np.int64)]
    with pyarrow.memory_map(path) as file:
        whole = file.read_buffer()
        source = pyarrow.BufferReader(whole)
        reader = pyarrow.ipc.open_stream(source) if is_stream else pyarrow.ipc.open_file(source)
        _check_columns(path, reader.schema, image, label)
        for batch in reader if is_stream else map(reader.get_batch, range(reader.num_record_batches)):
            column = batch.column(image)
            column.validate(full=True)
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            data = column.field("bytes") if pyarrow.types.is_struct(column.type) else column
            places.append(_places_of(path, data, valid, whole))
            groups.append(len(batch))
            if label is not None:
                batch.column(label).validate(full=True)
                labels += batch.column(label).to_pylist()
        if is_stream and whole.slice(source.tell() - len(_END), len(_END)) != _END:
            raise ArchiveError(f"{path} must end as Arrow's streams do, and was cut short; write it again")
    return _Contents(groups, None if label is None else labels, np.concatenate(places))


def _places_of(path: str, data: Any, valid: NDArray[np.bool_], whole: Any) -> NDArray[np.int64]:
    """Where the values of a binary array, which has been validated, lie in a file."""
    import pyarrow

    kind: Any = np.int64 if pyarrow.types.is_large_binary(data.type) else np.int32
    places = np.full((len(data), COLUMNS), [STORED, -1, 0, 0, -1, 0, 0], np.int64)
    _, ends, values = data.buffers()
    if not len(data) or values is None:
        return places
    offsets = np.frombuffer(ends, kind)[data.offset : data.offset + len(data) + 1].astype(np.int64)
    begin = values.address - whole.address
    if not 0 <= begin <= whole.size - values.size:
        raise ArchiveError(f"{path} must not be compressed; write it without compression, or as Parquet")
    here = valid & data.is_valid().to_numpy(zero_copy_only=False)
    sizes = np.diff(offsets)
    places[here, 1] = begin + offsets[:-1][here]
    places[here, 2] = places[here, 3] = sizes[here]
    return places
