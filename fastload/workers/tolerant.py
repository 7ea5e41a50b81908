"""Torch's fetchers and iterators without the samples that raise, for ``on_error="skip"`` and ``"replace"``.

A fetcher is where a sample's error is decided on: in a worker process, or in the main process without workers. It
makes :class:`~fastload.bad_samples.Checked` batches, which the iterator takes apart again.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from fastload.bad_samples import (
    NOTHING_WORKS,
    BatchIndices,
    Checked,
    Failed,
    LeftOut,
    candidates,
    failed_with,
    is_of_sample,
    noting,
    shown,
)
from fastload.loader_state import state_of
from fastload.state.in_worker import users_own

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.options import LoaderConfig, OnError


class _MapFetcher(_MapDatasetFetcher):
    """Makes batches of a dataset with indices."""

    on_error: OnError

    def fetch(self, possibly_batched_index: Any) -> Checked:  # type: ignore[override]
        if not self.auto_collation:
            samples, failed = self._one_by_one([possibly_batched_index], self._read)
            return Checked(self.collate_fn(samples[0]) if samples else LeftOut, 1, failed)
        indices = possibly_batched_index
        if not isinstance(indices, list | tuple):
            indices = BatchIndices(indices)
        samples, failed = self._samples(indices)
        return Checked(self.collate_fn(samples) if samples else LeftOut, len(indices), failed)

    def _samples(self, indices: Any) -> tuple[Any, list[Failed]]:
        """Make a batch's samples, each as it would be alone."""
        at_once = getattr(self.dataset, "__getitems__", None)
        if not at_once:
            return self._one_by_one(indices, self._read)
        from fastload.randomness.generators import set_state, state_now

        before = state_now(others=True)
        try:
            return at_once(indices.given if isinstance(indices, BatchIndices) else indices), []
        except Exception as error:
            if not is_of_sample(error):
                raise
        set_state(before)
        return self._one_by_one(indices, lambda index: at_once([index])[0])

    def _read(self, index: Any) -> Any:
        return self.dataset[index]

    def _one_by_one(self, indices: Any, read: Callable[[Any], Any]) -> tuple[list[Any], list[Failed]]:
        samples: list[Any] = []
        failed: list[Failed] = []
        for place, index in enumerate(indices):
            try:
                samples.append(read(index))
            except Exception as error:
                if not is_of_sample(error):
                    raise
                this = failed_with(index, self._name(index), error)
                if self.on_error == "replace":
                    other, sample = self._replacement(indices, place, read, error)
                    samples.append(sample)
                    this = replace(this, instead=shown(other))
                failed.append(this)
        return samples, failed

    def _replacement(self, indices: Any, place: int, read: Callable[[Any], Any], error: Exception) -> tuple[Any, Any]:
        """Return the next sample that works, with its index; raise the error if none does."""
        for other in candidates(indices, place):
            try:
                return other, read(other)
            except Exception as another:
                if not is_of_sample(another):
                    raise
        error.add_note(NOTHING_WORKS)
        raise error

    def _name(self, index: Any) -> str | None:
        try:
            from fastload.pipeline.datasets.folders import sample_name
        except ImportError:  # torchvision is not installed
            return None
        return sample_name(users_own(self.dataset), index)


class _IterableFetcher(_IterableDatasetFetcher):
    """Makes batches of an iterable dataset whose iterator goes on after an error."""

    on_error: OnError
    _latest: Exception | None = None  # of the sample read last

    def fetch(self, possibly_batched_index: Any) -> Checked:  # type: ignore[override]
        if self.ended:
            raise StopIteration
        asked = len(possibly_batched_index) if self.auto_collation else 1
        samples: list[Any] = []
        failed: list[Failed] = []
        while len(samples) + len(failed) < asked and not self.ended:
            try:
                samples.append(next(self.dataset_iter))
                self._latest = None
            except StopIteration:
                self.ended = True
                if self._latest is not None:
                    raise self._cannot_go_on(self._latest) from None
            except Exception as error:
                if not is_of_sample(error):
                    raise
                self._latest = error
                failed.append(failed_with(None, None, error))
        tried = len(samples) + len(failed)
        if not tried or (self.drop_last and tried < asked):
            if not failed:
                raise StopIteration
            samples = []
        if not samples:
            return Checked(LeftOut, tried, failed)
        return Checked(self.collate_fn(samples if self.auto_collation else samples[0]), tried, failed)

    def _cannot_go_on(self, error: Exception) -> Exception:
        """Return an error behind which the iterator has ended, as a generator does."""
        kind = type(self.dataset_iter).__name__
        error.add_note(
            f"on_error={self.on_error!r} needs an iterator that goes on after an error, but this {kind} has ended, and "
            "may have had more samples; catch the error where the sample is made"
        )
        return error


_TOLERANT: Final[dict[Any, Any]] = {_MapDatasetFetcher: _MapFetcher, _IterableDatasetFetcher: _IterableFetcher}


def tolerate(fetcher: Any, on_error: OnError) -> None:
    """Let one of torch's fetchers leave out or replace samples, and make ``Checked`` batches."""
    kind = _TOLERANT.get(type(fetcher))
    if kind is None:
        raise RuntimeError(f"on_error={on_error!r} needs torch's fetchers, got {type(fetcher).__name__}")
    fetcher.__class__, fetcher.on_error = kind, on_error


def take_apart(loader: LoaderConfig[Any], iterator: Any) -> None:
    """Let a new iterator of torch's take ``Checked`` batches apart."""
    iterator.__class__ = _taking_apart(cast("Any", type(iterator)))
    iterator.left_out = 0
    iterator.note_samples = noting(state_of(loader).place.errors, loader.max_errors)
    if not loader.num_workers:
        tolerate(iterator._dataset_fetcher, loader.on_error)


@functools.cache
def _taking_apart(kind: type[Any]) -> type:
    """Derive a class of torch's iterators whose ``Checked`` batches are taken apart."""

    def next_data(self: Any) -> Any:
        while True:
            data = kind._next_data(self)
            if not isinstance(data, Checked):  # such as one that is dropped
                return data
            self.note_samples(data.tried, data.failed)
            if data.data is not LeftOut:
                return data.data
            self.left_out += 1

    return type(kind.__name__, (kind,), {"_next_data": next_data, "__module__": kind.__module__})
