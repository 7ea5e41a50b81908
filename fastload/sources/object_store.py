"""An ``ImageFolder`` of objects in S3, Google Cloud Storage, Azure or behind HTTP."""

from __future__ import annotations

import itertools
import os
import weakref
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from torch.utils.data import Dataset, get_worker_info
from torchvision.datasets.folder import IMG_EXTENSIONS

from fastload._tagged_files import make_key
from fastload.pipeline.datasets.samples import KeptFile, named
from fastload.pipeline.recipe import opened
from fastload.sources.fetcher import Kept, Setup
from fastload.sources.requests import Requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_NOT_LISTED: Final = ("http", "https")
_PROCESSES_MAX: Final = 4  # of requests
_CORES_OF_A_PROCESS: Final = 4


class ObjectStoreImageFolder(Dataset[tuple[Any, Any]]):
    """Images in an object store, one folder of keys per class.

    Classes, order and samples are those of torchvision's ``ImageFolder`` over the same files.

    Natively, objects are requested for several batches ahead, in a process of its own, and arrive in the batches'
    order. Torch's workers request a batch at once.

    Args:
        url: ``"s3://bucket/folder"``, ``gs://``, ``az://``, ``https://`` or ``file:///absolute/folder``: what
            classes lie in.
        transform: Of images, which are RGB.
        target_transform: Of class indices.
        keys: ``"class/name.jpg"``, below the URL; needed for ``https://``, which cannot be listed.
        requests: Requests in flight; ``None`` tries more while that makes the rate grow, up to 512 for each process of
            requests. There is one of those for every four cores, at most four.
        retries: Of a request that fails with anything but a missing object or permission, with back-off: about 0.1 s,
            then twice as long each time, up to 8 s. A body that is shorter than announced is such a failure, and so is
            another size or entity tag than was listed.
        cache_dir: Where objects are kept on a disk; other processes may use the same, but not another user's files.
            Objects of ``keys`` are not requested again when they have changed.
        max_cache_bytes: Most bytes there, and a twentieth more for each further process of requests that adds some;
            what was not read for longest is removed.
        options: Further arguments of ``obstore.store.from_url``, such as ``config`` and ``client_options``.

    Attributes:
        classes: Names of the classes, sorted.
        class_to_idx: Index of each class by its name.
        samples: Keys, below the URL, and class indices.
        targets: Class indices.

    Raises:
        FileNotFoundError: There are no images.
        OSError: ``cache_dir`` is no folder and cannot be made one.
        ImportError: ``obstore`` is missing; the extra ``stores`` has it.
        ValueError: The URL has no absolute path or bucket, ``obstore`` takes no such URL or options, or ``cache_dir``
            has no use as this user's key cannot be read.
    """

    def __init__(
        self,
        url: str,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        *,
        keys: Iterable[str] | None = None,
        requests: int | None = None,
        retries: int = 8,
        cache_dir: str | os.PathLike[str] | None = None,
        max_cache_bytes: int = 64 << 30,
        **options: Any,
    ) -> None:
        least_of = {"requests": (requests, 1), "retries": (retries, 0), "max_cache_bytes": (max_cache_bytes, 0)}
        for name, (number, least) in least_of.items():
            if number is not None and number < least:
                raise ValueError(f"{name} must be >= {least}, got {number}")
        self.root = _checked(url)
        if isinstance(keys, str):
            raise TypeError(f"keys must be several, such as ['class/name.jpg'], got the str {keys!r}")
        self.transform = transform
        self._target_transform = target_transform
        if (cache := None if cache_dir is None else os.path.abspath(cache_dir)) is not None:
            os.makedirs(cache, exist_ok=True)
            make_key()
        # Retried by the fetcher, which also knows of bodies that are cut short.
        without = {**options, "retry_config": {"max_retries": 0}}
        self._setup = Setup(self.root, without, requests, retries, cache, max_cache_bytes)
        self._requests: tuple[int, list[Requests], Iterator[Requests]] | None = None
        found: Iterable[tuple[str, int | None, str | None]]
        found = self._listed() if keys is None else [(key, None, None) for key in keys]
        found = sorted((one for one in found if _is_image(one[0])), key=lambda one: _place(one[0]))
        self.classes = sorted({key.partition("/")[0] for key, _, _ in found})
        if not self.classes:
            raise FileNotFoundError(f"{self.root} has no images in folders, one for each class")
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self.samples = [(key, self.class_to_idx[key.partition("/")[0]]) for key, _, _ in found]
        self.imgs, self.targets = self.samples, [target for _, target in self.samples]
        # By key, as samples may be taken out or put in another order.
        self._about = {key: (size, etag) for key, size, etag in found if size is not None}

    def _listed(self) -> list[tuple[str, int, str | None]]:
        if urlsplit(self.root).scheme in _NOT_LISTED:
            raise ValueError(f"{self.root} cannot be listed; give keys=['class/name.jpg', ...]")
        return self._asked().list()

    def __len__(self) -> int:
        return len(self.samples)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_requests": None}

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self._sample(index, *self.encoded(index))

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """Make a batch's samples, whose objects are requested at once; torch's workers call this."""
        samples = []
        for index, entry in zip(indices, self.encoded_many(indices).result(), strict=True):
            if isinstance(entry, Exception):
                raise entry
            samples.append(self._sample(index, *entry))
        return samples

    def _sample(self, index: int, data: Any, target: Any) -> tuple[Any, Any]:
        with named(self.sample_name(index)):
            image = opened(data)
            return image if self.transform is None else self.transform(image), target

    def sample_name(self, index: int) -> str:
        """Return a sample's URL, for messages."""
        return f"{self.root}/{self.samples[index][0]}"

    def encoded(self, index: int) -> tuple[Any, Any]:
        """Return a sample's encoded image, or its file in the cache, and target. Blocks."""
        (entry,) = self.encoded_many([index]).result()
        if isinstance(entry, Exception):
            raise entry
        source, target = entry
        return source, target

    def encoded_many(self, indices: Sequence[int]) -> Future[list[Any]]:
        """Ask for samples' encoded images and targets. Does not block."""
        indices, made = list(indices), Future[list[Any]]()
        wanted = [self.samples[index] for index in indices]
        asked = self._asked().ask([(key, *self._about.get(key, (None, None))) for key, _ in wanted])

        def finish(answer: Future[Any]) -> None:
            if answer.cancelled() or not made.set_running_or_notify_cancel():
                return
            try:
                made.set_result([self._entry(*one) for one in zip(answer.result(), wanted, strict=True)])
            except BaseException as error:  # noqa: BLE001 - raised where the answer is taken
                made.set_exception(error)

        def cancel(answer: Future[Any]) -> None:
            if answer.cancelled() and (its := pending()) is not None:
                its.cancel()

        pending = weakref.ref(asked)  # else both, and the objects, would be garbage that only a collection frees
        asked.add_done_callback(finish)
        made.add_done_callback(cancel)
        return made

    def _fetched(self, key: str) -> Any:
        """Return an object of the store, whatever the cache has. Blocks."""
        (data,) = self._asked().ask([(key, *self._about.get(key, (None, None)))], cached=False).result()
        if isinstance(data, Exception):
            raise data
        return data

    def _entry(self, data: Any, sample: tuple[str, int]) -> Any:
        key, target = sample
        if isinstance(data, Kept):
            data = KeptFile(data.path, data.tagged_with, lambda: self._fetched(key))
        if isinstance(data, Exception) or self._target_transform is None:
            return data if isinstance(data, Exception) else (data, target)
        try:
            return data, self._target_transform(target)
        except Exception as error:  # noqa: BLE001 - raised in the sample's turn
            return error

    def _asked(self) -> Requests:
        """One of the process's own, in turn; a forked child makes others."""
        if self._requests is None or self._requests[0] != os.getpid():
            made = [Requests(setup) for setup in shares_of(self._setup, processes_wanted())]
            self._requests = os.getpid(), made, itertools.cycle(made)
        return next(self._requests[2])


def processes_wanted() -> int:
    """How many processes of requests a process needs: one reads about 4,000 objects a second."""
    if get_worker_info() is not None:
        return 1
    return max(1, min(_PROCESSES_MAX, len(os.sched_getaffinity(0)) // _CORES_OF_A_PROCESS))


def shares_of(setup: Setup, processes: int) -> list[Setup]:
    """Divide the requests in flight, if their number is given, among processes."""
    if setup.requests is None:
        return [setup] * processes
    processes = min(processes, setup.requests)
    number, rest = divmod(setup.requests, processes)
    return [replace(setup, requests=number + (place < rest)) for place in range(processes)]


def _checked(url: str) -> str:
    """Return a URL without slashes at its end; raises ``ValueError`` for what obstore misreads."""
    parts = urlsplit(url := os.fspath(url))
    if not parts.scheme:
        raise ValueError(f"url must begin with s3://, gs://, az://, https:// or file://, got {url!r}")
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or not parts.path.startswith("/")):
        path = os.path.abspath(os.path.expanduser(parts.netloc + parts.path))
        raise ValueError(f"a file:// URL must have an absolute path, got {url!r}; write {Path(path).as_uri()!r}")
    if parts.scheme not in ("file", "memory") and not parts.netloc:
        raise ValueError(f"url must name a bucket or host behind {parts.scheme}://, got {url!r}")
    if parts.fragment or (parts.query and parts.scheme not in _NOT_LISTED):  # obstore ignores these
        raise ValueError(f"url must have no '?' and no '#', got {url!r}; write %3F and %23")
    return url.rstrip("/")


def _is_image(key: str) -> bool:
    return "/" in key and key.lower().endswith(IMG_EXTENSIONS)


def _place(key: str) -> tuple[str, str, str]:
    """Sort as ``ImageFolder`` does: by class, then by folder, then by name."""
    folder, _, name = key.rpartition("/")
    return key.partition("/")[0], folder, name
