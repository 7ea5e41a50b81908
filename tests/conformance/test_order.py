"""The order of samples, and the draws from samplers and random generators, match torch's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from backends.datasets import Augmented, Numbers, SizedStream, Stream, WhoLoaded, collect, first
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

workers = pytest.mark.parametrize("num_workers", [0, 2])


@workers
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.matrix
def test_order_length_and_last_batch(backend, num_workers, drop_last):
    def case(loader_class):
        loader = loader_class(Numbers(11), batch_size=4, num_workers=num_workers, drop_last=drop_last)
        return len(loader), collect(loader), collect(loader), len(loader)

    length, batches, *_ = backend.same(case).value
    assert length == len(batches) == (2 if drop_last else 3)


@workers
@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.matrix
def test_shuffle_over_epochs(backend, num_workers, own_generator):
    def case(loader_class):
        generator = torch.Generator().manual_seed(5) if own_generator else None
        loader = loader_class(Augmented(9), batch_size=2, shuffle=True, num_workers=num_workers, generator=generator)
        seen = []
        for _ in range(3):
            seen += [collect(loader), torch.get_rng_state(), generator and generator.get_state()]
        return seen

    seen = backend.same(case).value
    assert [b[1].tolist() for b in seen[0]] != [b[1].tolist() for b in seen[3]]


@pytest.mark.each_value
@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("taken", [1, 6])
def test_generators_after_a_break_and_the_epoch_that_follows(backend, num_workers, persistent, taken):
    """With seven batches, reading ahead of torch would exhaust the sampler, which draws, sooner."""

    def case(loader_class):
        generator = torch.Generator().manual_seed(5)
        loader = loader_class(
            Augmented(14),
            batch_size=2,
            shuffle=True,
            num_workers=num_workers,
            generator=generator,
            persistent_workers=persistent,
            prefetch_factor=1 if num_workers else None,
        )
        broken_off = first(loader, taken), generator.get_state(), torch.get_rng_state()
        return broken_off, collect(loader), generator.get_state(), first(loader, taken), generator.get_state()

    backend.same(case)


class Recorded(Sampler[int]):
    """Counts how many indices have been drawn from it."""

    def __init__(self, length: int) -> None:
        self.length, self.drawn = length, 0

    def __iter__(self) -> Iterator[int]:
        for index in range(self.length):
            self.drawn += 1
            yield index
        self.drawn += 100  # asked once more than there are


@workers
@pytest.mark.parametrize("batch_size", [2, None])
def test_the_sampler_is_never_ahead_of_torchs(backend, num_workers, batch_size):
    def case(loader_class):
        sampler = Recorded(10)
        loader = loader_class(Numbers(10), batch_size, sampler=sampler, num_workers=num_workers)
        iterator = iter(loader)
        drawn = [sampler.drawn]
        for _ in iterator:
            drawn.append(sampler.drawn)
        return [*drawn, sampler.drawn]

    drawn = backend.same(case).value
    assert drawn[0] == (0 if not num_workers else 4 * (batch_size or 1))


SAMPLERS = {
    "sequential": lambda data: SequentialSampler(data),
    "subset": lambda data: SubsetRandomSampler([5, 3, 1, 0]),
    "weighted": lambda data: WeightedRandomSampler([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 9),
    "replacement": lambda data: RandomSampler(data, replacement=True, num_samples=12),
    "list": lambda data: [3, 1, 2, 2, 6],
    "without a length": lambda data: Recorded(5),
}


@pytest.mark.each_value
@workers
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers(backend, num_workers, sampler):
    def case(loader_class):
        data = Numbers(7)
        loader = loader_class(data, batch_size=2, sampler=SAMPLERS[sampler](data), num_workers=num_workers)
        return collect(loader), collect(loader)

    backend.same(case)


def test_length_of_a_sampler_without_one(backend):
    error = backend.same(lambda loader_class: len(loader_class(Numbers(7), sampler=Recorded(5)))).error
    assert error is not None
    assert error[0] is TypeError


BATCH_SAMPLERS = {
    "BatchSampler": lambda: BatchSampler(SequentialSampler(range(7)), 3, drop_last=False),
    "lists": lambda: [[0, 1], [2], [6, 5, 4]],
    "uneven, one empty": lambda: [[0], [1, 2, 3], [4]],
}


@workers
@pytest.mark.parametrize("batch_sampler", BATCH_SAMPLERS)
def test_batch_samplers(backend, num_workers, batch_sampler):
    def case(loader_class):
        loader = loader_class(Numbers(7), batch_sampler=BATCH_SAMPLERS[batch_sampler](), num_workers=num_workers)
        return len(loader), collect(loader), loader.batch_size, loader.drop_last

    backend.same(case)


@workers
def test_no_batching(backend, num_workers):
    def case(loader_class):
        loader = loader_class(Numbers(5), batch_size=None, num_workers=num_workers)
        rows = loader_class(
            TensorDataset(torch.arange(12.0).reshape(6, 2)),
            batch_size=None,
            sampler=[[0, 1], [4, 3, 2]],
            num_workers=num_workers,
        )
        return len(loader), collect(loader), len(rows), collect(rows)

    backend.same(case)


@workers
def test_datasets_made_of_datasets(backend, num_workers):
    def case(loader_class):
        data = Subset(ConcatDataset([Numbers(4), Numbers(5)]), [8, 1, 4, 0])
        return collect(loader_class(data, batch_size=3, num_workers=num_workers))

    backend.same(case)


@workers
def test_nothing_to_load(backend, num_workers):
    def case(loader_class):
        loader = loader_class(Numbers(0), batch_size=3, num_workers=num_workers)
        stream = loader_class(Stream([0, 0]), batch_size=3, num_workers=num_workers)
        return len(loader), collect(loader), collect(loader), collect(stream)

    assert backend.same(case).value == (0, [], [], [])


@pytest.mark.parametrize(("lengths", "batch_size"), [([5, 1], 2), ([1, 5], 2), ([0, 4], None), ([4, 0], 1)], ids=str)
def test_a_stream_that_workers_share_unevenly(backend, lengths, batch_size):
    def case(loader_class):
        loader = loader_class(Stream(lengths), batch_size=batch_size, num_workers=2)
        return collect(loader), first(loader, 2), collect(loader)

    backend.same(case)


@pytest.mark.parametrize("lengths", [[7, 0, 2], [1, 6, 3]], ids=str)
@pytest.mark.parametrize("prefetch_factor", [1, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")
def test_three_workers_that_end_one_after_another(backend, lengths, prefetch_factor):
    def case(loader_class):
        stream = Stream(lengths, draws=False)
        loader = loader_class(stream, 2, num_workers=3, prefetch_factor=prefetch_factor, persistent_workers=True)
        return collect(loader), first(loader, 3), collect(loader), collect(loader)

    backend.same(case)


@workers
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_stream_in_one_process_or_whole_in_each(backend, num_workers, drop_last):
    def case(loader_class):
        stream = SizedStream([5], claimed=5)
        loader = loader_class(stream, batch_size=2, num_workers=num_workers, drop_last=drop_last)
        return len(loader), collect(loader), len(loader)

    backend.same(case)


@workers
def test_a_stream_longer_than_it_says_gets_torchs_warning(backend, num_workers):
    def case(loader_class):
        loader = loader_class(SizedStream([6], claimed=2), batch_size=2, num_workers=num_workers)
        return len(loader), collect(loader)

    outcome = backend.same(case)
    assert "Length of IterableDataset" in outcome.warnings[0][1]


@pytest.mark.parametrize("prefetch_factor", [1, 2, 5])
def test_batches_are_dealt_to_workers_in_turn(backend, prefetch_factor):
    def case(loader_class):
        loader = loader_class(WhoLoaded(10), batch_size=2, num_workers=2, prefetch_factor=prefetch_factor)
        return collect(loader), collect(loader)

    batches = backend.same(case).value[0]
    assert [batch[1].unique().tolist() for batch in batches] == [[0], [1], [0], [1], [0]]


def test_without_order_the_same_batches_come(backend):
    def case(loader_class):
        loader = loader_class(WhoLoaded(20), batch_size=2, num_workers=2, in_order=False)
        batches = [batch[0].tolist() for batch in loader]
        again = [batch[0].tolist() for batch in loader]
        return sorted(batches), sorted(again)

    backend.same(case)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_without_order_one_reader_keeps_it(backend, num_workers):
    backend.same(lambda loader_class: collect(loader_class(Numbers(9), 2, num_workers=num_workers, in_order=False)))
