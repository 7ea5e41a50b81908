"""Loaders with an ``__iter__`` of their own over a base class, as libraries have them."""

from __future__ import annotations

import itertools

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter


class Forever:
    """Goes through a sampler again and again."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        return itertools.chain.from_iterable(itertools.repeat(self.sampler))


def endless(base):
    """As Ultralytics': one endless iterator, made in ``__init__``, whose workers ``__del__`` terminates."""

    class Endless(base):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))
            self.kept = super().__iter__()

        def __len__(self):
            return len(self.batch_sampler.sampler)

        def __iter__(self):
            for _ in range(len(self)):
                yield next(self.kept)

        def __del__(self):
            kept = getattr(self, "kept", None)
            for worker in getattr(kept, "_workers", ()):
                if worker.is_alive():
                    worker.terminate()
            getattr(kept, "_shutdown_workers", int)()

        def reset(self):
            self.kept = self._get_iterator()

    return Endless


def multi_epochs(base):
    """As timm's: sets the sampler between two looks at whether it may; single samples, too."""

    class MultiEpochs(base):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._DataLoader__initialized = False
            name = "sampler" if self.batch_sampler is None else "batch_sampler"
            setattr(self, name, Forever(getattr(self, name)))
            self._DataLoader__initialized = True
            self.source = super().__iter__()

        def __len__(self):
            return len(self._index_sampler.sampler)

        def __iter__(self):
            return (next(self.source) for _ in range(len(self)))

        def reset(self):
            self.source = super().__iter__()

    return MultiEpochs


def reusing(base):
    """As YOLOv5's, but makes its endless iterator at the first epoch, by torch's own method."""

    class Reusing(base):
        source = None

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))

        def __len__(self):
            return len(self.batch_sampler.sampler)

        def __iter__(self):
            if self.source is None:
                self.reset()
            yield from itertools.islice(self.source, len(self))

        def reset(self):
            self.source = self._get_iterator()

    return Reusing


def resetting(base):
    """What torch's ``__iter__`` does, written again, with workers that persist or not."""

    class Resetting(base):
        held = None

        def __iter__(self):
            if self.held is None:
                self.reset()
            else:
                self.held._reset(self)
            return self.held

        def reset(self):
            self.held = self._get_iterator()

    return Resetting


def restarting(base):
    """Is its own iterator, and asks for another one whenever that ends."""

    class Restarting(base):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.reset()

        def reset(self):
            self.batches = DataLoader._get_iterator(self) if base is DataLoader else self._get_iterator()

        def __iter__(self):
            return self

        def __next__(self):
            try:
                return next(self.batches)
            except StopIteration:
                self.reset()
                raise

    return Restarting


LOADERS = {make.__name__: make for make in (endless, multi_epochs, reusing, resetting, restarting)}
KEPT = ("kept", "source", "held", "batches")
"""Attributes in which they keep iterators."""


def past_us(base):
    """Makes torch's iterators itself."""

    class PastUs(base):
        def __iter__(self):
            return (_MultiProcessingDataLoaderIter if self.num_workers else _SingleProcessDataLoaderIter)(self)

    return PastUs


def repeating(base):
    """Takes each of its sampler's batches twice, in the reverse order."""

    class Repeating(base):
        @property
        def _index_sampler(self):
            return [batch[::-1] for batch in super()._index_sampler for _ in range(2)]

    return Repeating


def changing(base):
    """Changes what torch's iterator yields, as torch_geometric's loaders do."""

    class Changing(base):
        def _get_iterator(self):
            return map(torch.neg, super()._get_iterator())

    return Changing
