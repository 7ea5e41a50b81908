"""Datasets that give their samples' encoded images themselves, by a method ``encoded(index)``."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from torch.utils.data import IterableDataset, Subset

from fastload.pipeline.code.views import VIEWS_MAX
from fastload.pipeline.datasets.samples import taken_apart
from fastload.pipeline.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_READ: Final = ("transform", "transforms", "target_transform", "images_per_sample", "encodes_raw_targets")


def check_encoded(dataset: Any) -> None:
    """Refuse a dataset whose samples are not those of its ``encoded()``.

    Raises:
        Refused: Says why.
    """
    kind = type(dataset)
    if isinstance(dataset, IterableDataset):
        raise Refused(f"{kind.__name__} is iterable; only datasets by index are supported natively")
    if _has_getitems(dataset):
        raise Refused(f"{kind.__name__} fetches whole batches by __getitems__; give it encoded_many(indices) too")
    raw_targets = getattr(kind, "encodes_raw_targets", False) is True
    if getattr(dataset, "target_transform", None) is not None and not raw_targets:
        raise Refused(f"{kind.__name__} has a target_transform; apply it in encoded()")


def _has_getitems(dataset: Any) -> bool:
    """Whether torch's fetcher finds a ``__getitems__`` that is not that beside ``encoded_many()``."""
    try:
        found = getattr(dataset, "__getitems__", None) is not None
    except Exception:  # noqa: BLE001 - torch's fetcher raises it too
        return True
    return found and not (asks_many(dataset) and "__getitems__" not in getattr(dataset, "__dict__", ()))


def has_computed_attributes(kind: type) -> bool:
    """Whether code of a dataset's class computes what is read of it."""
    bases = [base for base in kind.__mro__ if base is not object]
    found = [vars(base)[name] for base in bases for name in _READ if name in vars(base)]
    dynamic = any("__getattr__" in vars(base) or "__getattribute__" in vars(base) for base in bases)
    return dynamic or any(hasattr(type(value), "__get__") for value in found)


def asks_many(dataset: Any) -> bool:
    """Whether a dataset, maybe within a ``Subset``, has :meth:`encoded_many`."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return callable(getattr(type(dataset), "encoded_many", None))


def ask(dataset: Any, indices: Sequence[Any]) -> Future[Sequence[Any]]:
    """Ask a dataset of :func:`asks_many` for the samples of a batch.

    Returns:
        For each index an encoded image (bytes or path) and a target, or an exception.
    """
    done: Future[Sequence[Any]] = Future()
    try:
        while type(dataset) is Subset:
            indices, dataset = [dataset.indices[index] for index in indices], dataset.dataset
        answer = dataset.encoded_many(list(indices))
    except Exception as error:  # noqa: BLE001 - any error of the user's dataset; raised in the batch's turn
        done.set_exception(error)
        return done
    if isinstance(answer, Future):
        return answer
    done.set_result(answer)
    return done


def images_in(dataset: Any) -> int:
    """How many encoded images each sample of a dataset has.

    Raises:
        ValueError: Its ``images_per_sample`` is no such number.
    """
    images = getattr(dataset, "images_per_sample", 1) if hasattr(type(dataset), "encoded") else 1
    if type(images) is not int or not 1 <= images <= VIEWS_MAX:
        raise ValueError(f"images_per_sample must be an int from 1 to {VIEWS_MAX}, got {images!r}")
    return images


def taken(answer: Future[Sequence[Any]], count: int, images: int = 1) -> Iterator[tuple[Any, Any]]:
    """Iterate over the samples of an :func:`ask`, with so many images.

    Blocks; raises what the answer says of a sample, behind which the next one follows.
    """
    return itertools.chain.from_iterable(map(_taken, [answer], [count], [images]))


def _taken(answer: Future[Sequence[Any]], count: int, images: int) -> Iterator[tuple[Any, Any]]:
    entries = answer.result()
    if len(entries) != count:
        raise ValueError(f"encoded_many() must return an entry for each of {count} indices, got {len(entries)}")
    return map(_entry_of, entries, itertools.repeat(images))


def _entry_of(entry: Any, images: int) -> tuple[Any, Any]:
    if isinstance(entry, BaseException):
        raise entry
    return taken_of(entry, images)


def taken_of(entry: Any, images: int) -> tuple[Any, Any]:
    """Return what ``encoded()`` has returned as an encoded image or pixels, and a target."""
    source, target = taken_apart(entry, images)
    return _of_own(source), target


def _of_own(source: Any) -> Any:
    """Copy an array of the user's: pixels ``(H, W, 3)``, or else encoded bytes."""
    if type(source) is tuple:
        return tuple(map(_of_own, source))
    if not isinstance(source, np.ndarray):
        return source
    is_image = source.dtype == np.uint8 and source.ndim == 3 and source.shape[2] == 3
    return np.array(source, order="C") if is_image else bytes(source)
