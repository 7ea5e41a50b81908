"""Find files, members of archives and samples of datasets, and check them with all cores."""

from __future__ import annotations

import functools
import itertools
import os
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from PIL import ImageFile
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from fastload import _core
from fastload._arguments import UsageError
from fastload._files import files_below, open_file
from fastload._machine import usable_cpus
from fastload.commands.check.images import (
    SIGNATURE_BYTES,
    Finding,
    extension_of,
    formats_by_extension,
    has_signature,
    in_one_line,
    judged,
)
from fastload.loader import FastLoader
from fastload.pipeline.datasets.encoded import ask, asks_many, images_in, taken_of
from fastload.pipeline.datasets.folders import leaves_of, locate, sample_name, size_of
from fastload.pipeline.datasets.samples import KeptFile
from fastload.pipeline.errors import Refused
from fastload.pipeline.installed.decodes import calibrate
from fastload.pipeline.recipe import opened
from fastload.sources.archive_index import FOLDER, OTHER, ArchiveError, ArchiveIndex, ArchiveReader, read_index

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from torch.utils.data import DataLoader

CHUNK: Final = 4  # files that a thread checks in one go, as handing over each takes time
CHUNKS_AHEAD: Final = 2  # of each thread; files that a dataset has read are in memory meanwhile
BATCH: Final = 16  # samples that a worker process fetches in one go
BATCHES_AHEAD: Final = 4  # that a dataset is asked for
_ARCHIVES: Final = {".tar": False, ".zip": True}  # whether it is a zip archive
_KEY: Final = os.urandom(48)  # of checksums


@dataclass(frozen=True, slots=True)
class Item:
    """Something to check.

    Attributes:
        name: Path, ``ARCHIVE/MEMBER``, or what the dataset calls the sample.
        read: Returns an encoded image; ``None`` if there is none. Called in any thread.
        index: Of the sample in its dataset.
    """

    name: str
    read: Callable[[], bytes | None]
    index: int | None = None


@dataclass(frozen=True, slots=True)
class CheckedItem:
    """What was found of one item.

    Attributes:
        name: The item's.
        findings: What is wrong or odd.
        checksum: Of the encoded image, if there is one that can be decoded.
        is_image: Whether it counts as one.
        index: The item's.
    """

    name: str
    findings: tuple[Finding, ...] = ()
    checksum: bytes | None = None
    is_image: bool = True
    index: int | None = None


@dataclass(frozen=True, slots=True)
class CheckedItems:
    """What there is to check, which happens while it is iterated.

    Attributes:
        total: Number of items; ``None`` if that is not known.
        groups: What was found, in the order of the items, some at a time. Closing it ends threads and processes.
    """

    total: int | None
    groups: Generator[list[CheckedItem]]


def check_place(place: str) -> CheckedItems:
    """Check the images below a folder, of an archive, or a file.

    Lists the folder and the archives at once; blocks.
    """
    found: list[CheckedItem] = []

    def left_out(path: str, why: Exception) -> None:
        if isinstance(why, OSError):
            found.append(_failed(path, "unreadable", in_one_line(why), is_image=False))
        elif os.path.isdir(path):
            why_twice = "leads to a folder that another path leads to, too"
            found.append(_failed(path, "linked-twice", why_twice, is_image=False))
        elif extension_of(path) in formats_by_extension():
            found.append(_failed(path, "unreadable", "a pipe, device or socket"))

    files: list[str] = []
    archives: list[tuple[str, ArchiveIndex]] = []
    for path in files_below(place, left_out) if os.path.isdir(place) else [place]:
        if (is_zip := _ARCHIVES.get(extension_of(path))) is None:
            files.append(path)
            continue
        try:
            archives.append((path, read_index(path, is_zip=is_zip, keep=False)))
        except (ArchiveError, OSError) as error:
            found.append(_failed(path, "unreadable", in_one_line(error), is_image=False))
    items = itertools.chain(map(_item_of_file, files), *(_items_of_archive(*archive) for archive in archives))
    total = len(found) + len(files) + sum(len(index.names) for _, index in archives)
    return CheckedItems(total, _checked(items, found))


def _item_of_file(path: str) -> Item:
    return Item(path, functools.partial(_read, path))


def _read(path: str) -> bytes | None:
    with open_file(path) as file:
        if extension_of(path) not in formats_by_extension():
            head = file.read(SIGNATURE_BYTES)
            if not has_signature(head):
                return None
            file.seek(0)
        return file.read()


def _items_of_archive(path: str, index: ArchiveIndex) -> Iterator[Item]:
    reader = ArchiveReader([path], [index.stamp])
    for name, place in zip(index.names, index.places, strict=True):
        is_image = place[0] != FOLDER and extension_of(name) in formats_by_extension()
        read = functools.partial(_read_member, reader, place) if is_image else _nothing
        yield Item(os.path.join(path, name), read)


def _read_member(reader: ArchiveReader, place: Any) -> bytes:
    if place[0] == OTHER:
        raise ArchiveError("a link, a device, sparse, encrypted, or compressed otherwise than by deflate")
    return reader.read(0, place)


def _nothing() -> None:
    return None


def check_samples(loader: DataLoader[Any]) -> CheckedItems:
    """Check all samples of a loader's dataset, whatever its sampler draws.

    Where they are encoded images that can be located, these are checked, without transforms. Others are fetched in
    worker processes; a sample is broken if that raises.

    Raises:
        UsageError: The dataset has neither a length nor an end to iterate to.
    """
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        return CheckedItems(None, _fetched(loader))
    if not hasattr(dataset, "__len__"):
        raise UsageError(f"the dataset must have a length, or be an IterableDataset, got {type(dataset).__name__}")
    try:
        has_files = not any(size_of(leaf) for leaf in leaves_of(dataset))
    except Refused:
        has_files = False
    return CheckedItems(len(dataset), _checked(_items_of_dataset(dataset)) if has_files else _fetched(loader))


def _items_of_dataset(dataset: Any) -> Iterator[Item | CheckedItem]:
    """Yield the encoded images of a dataset, which is asked in this thread alone."""
    seen: set[str] = set()
    for index, source in _sources(dataset):
        name = sample_name(dataset, index) or f"sample {index}"
        if isinstance(source, Exception):
            yield _failed(name, "unreadable", in_one_line(source), index)
            continue
        for one in source if type(source) is tuple else (source,):
            if type(one) is str:
                if one in seen:  # a sample that is drawn more often than others
                    yield CheckedItem(one, index=index)
                    continue
                seen.add(one)
            yield Item(name, functools.partial(_bytes, one), index)


def _sources(dataset: Any) -> Iterator[tuple[int, Any]]:
    """Yield each sample's index, and its encoded image or error."""
    if asks_many(dataset):
        batches = _batched(iter(range(len(dataset))), BATCH)
        images = images_in(leaves_of(dataset)[0])
        for indices, answer in _ahead(((batch, ask(dataset, batch)) for batch in batches), BATCHES_AHEAD):
            try:
                entries = answer.result()
            except Exception as error:  # noqa: BLE001 - any error of the user's dataset
                entries = [error] * len(indices)
            for index, entry in zip(indices, entries, strict=True):
                yield index, entry if isinstance(entry, Exception) else taken_of(entry, images)[0]
        return
    for index in range(len(dataset)):
        try:
            source = locate(dataset, index)[0]
        except Exception as error:  # noqa: BLE001 - any error of the user's dataset
            source = error
        yield index, source


def _bytes(source: Any) -> bytes | None:
    """Read an encoded image as a dataset gives it."""
    if isinstance(source, KeptFile):
        return source.read()
    if isinstance(source, str | os.PathLike):
        with open_file(source) as file:
            return file.read()
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    opened(source)
    return None


def _checked(items: Iterator[Item | CheckedItem], found: Sequence[CheckedItem] = ()) -> Generator[list[CheckedItem]]:
    """Check items with a thread for each core, which decodes without the GIL.

    What was ``found`` before comes first.
    """
    yield list(found)
    calibrate()  # which files the core decodes
    formats_by_extension()
    threads = usable_cpus()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="fastload-check")
    tolerant = ImageFile.LOAD_TRUNCATED_IMAGES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, each of which is a finding
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        try:
            begun = (pool.submit(_check_all, chunk) for chunk in _batched(items, CHUNK))
            for checked in _ahead(begun, CHUNKS_AHEAD * threads):
                yield checked.result()
        finally:
            pool.shutdown(cancel_futures=True)
            ImageFile.LOAD_TRUNCATED_IMAGES = tolerant


def _check_all(items: list[Item | CheckedItem]) -> list[CheckedItem]:
    return [_check_item(item) if isinstance(item, Item) else item for item in items]


def _check_item(item: Item) -> CheckedItem:
    try:
        data = item.read()
    except Exception as error:  # noqa: BLE001 - of the system, an archive, or the user's dataset
        return _failed(item.name, "unreadable", in_one_line(error), item.index)
    if data is None:
        return CheckedItem(item.name, is_image=item.index is not None, index=item.index)
    found = [Finding(kind, item.name, detail, item.index) for kind, detail in judged(data, item.name)]
    if item.index is None and extension_of(item.name) not in formats_by_extension():
        found.append(
            Finding("misnamed", item.name, "an image, but the name does not say so: ImageFolder leaves it out")
        )
    checksum = None if any(finding.broken for finding in found) else _core.tags_of(data, _KEY)
    return CheckedItem(item.name, tuple(found), checksum, index=item.index)


def _failed(name: str, kind: str, detail: str, index: int | None = None, *, is_image: bool = True) -> CheckedItem:
    return CheckedItem(name, (Finding(kind, name, detail, index),), is_image=is_image, index=index)


def _fetched(loader: DataLoader[Any]) -> Generator[list[CheckedItem]]:
    """Fetch all samples in worker processes.

    There is one for each core, or for an iterable dataset as many as the loader has.
    """
    dataset: Any = loader.dataset
    is_stream = isinstance(dataset, IterableDataset)
    tried: Any = _TriedStream(dataset) if is_stream else _TriedSamples(dataset)
    workers = loader.num_workers if is_stream else usable_cpus()
    fetching: Any = FastLoader(
        tried,
        BATCH,
        num_workers=workers,
        collate_fn=_as_list,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context if workers else None,
        device="cpu",
    )
    done = 0
    try:
        with fetching:
            for checked in fetching:
                done += len(checked)
                yield checked
    except RuntimeError as error:  # torch's, of a worker that has ended
        yield [_failed(f"samples behind the first {done}", "raises", in_one_line(error), is_image=False)]


def _as_list(checked: list[CheckedItem]) -> list[CheckedItem]:
    return checked


class _TriedSamples(Dataset[CheckedItem]):
    """What comes of fetching each sample of a dataset."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> CheckedItem:
        try:
            self.dataset[index]
        except Exception as error:  # noqa: BLE001 - any error of the user's dataset
            name = sample_name(self.dataset, index) or f"sample {index}"
            return _failed(name, "raises", in_one_line(error), index)
        return CheckedItem("", index=index)


class _TriedStream(IterableDataset[CheckedItem]):
    """What comes of iterating a dataset, until it ends or raises."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[CheckedItem]:
        worker = get_worker_info()
        of_worker = "" if worker is None else f" of worker {worker.id}"
        done = 0
        try:
            for _ in self.dataset:
                yield CheckedItem("")
                done += 1
        except Exception as error:  # noqa: BLE001 - any error of the user's dataset
            detail = f"{in_one_line(error)}; what follows was not read"
            yield _failed(f"sample {done}{of_worker}", "raises", detail)


def _batched(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Divide items into lists of at most so many."""
    return iter(lambda: list(itertools.islice(items, size)), [])


def _ahead(begun: Iterator[Any], count: int) -> Iterator[Any]:
    """Yield what an iterator begins, which is so many ahead."""
    pending = deque(itertools.islice(begun, count))
    while pending:
        yield pending.popleft()
        pending.extend(itertools.islice(begun, 1))
