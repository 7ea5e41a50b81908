"""Draw an epoch's indices again, up to a batch, without Python for each of them.

Torch's ``BatchSampler`` takes its sampler's indices one after the other, so those that were handed over are not made
into batches again. Torch's ``RandomSampler`` without replacement draws a permutation at a time: the same calls draw it
here, and it begins at its place. Whether they are the same is checked once, against the installed class.
"""

from __future__ import annotations

import collections
import functools
import itertools
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK: Final = 8192  # indices that become Python's at a time
_METHODS: Final = {kind: kind.__iter__ for kind in (BatchSampler, RandomSampler, SequentialSampler)}


def after_batches(index_sampler: Any, drawn: Iterator[Any], batches: int) -> tuple[Iterator[Any], Any]:
    """Skip batches of indices.

    Args:
        index_sampler: A loader's batch sampler, or its sampler if it makes no batches.
        drawn: Its iterator, of which nothing was taken; not used if another way is faster.
        batches: How many to skip, at least 1.

    Returns:
        An iterator over the rest, and the last batch that was skipped; ``None`` if there are not as many.
    """
    if not _is_torchs(index_sampler, BatchSampler):
        return drawn, next(itertools.islice(drawn, batches - 1, None), None)
    size = index_sampler.batch_size
    indices = _after(index_sampler.sampler, (batches - 1) * size)
    rest = iter(BatchSampler(_Rest(indices), size, index_sampler.drop_last))
    return rest, next(rest, None)


class _Rest:
    """Stands for a sampler that has given some indices."""

    def __init__(self, indices: Iterator[int]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[int]:
        return self._indices


def _is_torchs(sampler: Any, kind: type) -> bool:
    return type(sampler) is kind and kind.__iter__ is _METHODS[kind] and "__iter__" not in vars(sampler)


def _after(sampler: Any, count: int) -> Iterator[int]:
    """Iterate over a sampler's indices after the first ``count``."""
    if _is_torchs(sampler, SequentialSampler):
        return iter(range(count, len(sampler.data_source)))
    if _is_torchs(sampler, RandomSampler) and not sampler.replacement and _draws_alike():
        return _permuted(sampler, count)
    indices: Iterator[int] = iter(sampler)
    collections.deque(itertools.islice(indices, count), maxlen=0)
    return indices


def _permuted(sampler: RandomSampler, count: int) -> Iterator[int]:
    """Iterate as ``RandomSampler`` without replacement, but for the first ``count`` indices."""
    length = len(sampler.data_source)
    generator = sampler.generator
    if generator is None:
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    whole, rest = divmod(sampler.num_samples, length)
    for number in range(whole + 1):
        order = torch.randperm(length, generator=generator)
        stop = length if number < whole else rest
        for begin in range(min(count, stop), stop, _CHUNK):
            yield from order[begin : min(begin + _CHUNK, stop)].tolist()
        count = max(0, count - stop)


@functools.cache
def _draws_alike() -> bool:
    """Whether the installed ``RandomSampler`` draws as :func:`_permuted`, and leaves its generator alike."""
    for samples in (5, 10, 12):
        alike = []
        for draw in (iter, functools.partial(_permuted, count=0)):
            sampler = RandomSampler(range(5), num_samples=samples, generator=torch.Generator().manual_seed(samples))
            drawn = [(index, sampler.generator.get_state().tolist()) for index in draw(sampler)]
            alike.append((drawn, sampler.generator.get_state().tolist()))
        if alike[0] != alike[1]:
            return False
    before = torch.get_rng_state()
    try:
        seeded = []
        for draw in (iter, functools.partial(_permuted, count=0)):
            torch.default_generator.manual_seed(7)
            seeded.append((list(draw(RandomSampler(range(5)))), torch.get_rng_state().tolist()))
    finally:
        torch.set_rng_state(before)
    return seeded[0] == seeded[1]
