"""``loader.replay(n)``: which batches it repeats, what it holds, and what it leaves as it was."""

from __future__ import annotations

import itertools

import pytest
import torch
from costs import in_calls
from torch.utils.data import Dataset, IterableDataset

from fastload import FastLoader, prefetch_to_device


class Noise(Dataset):
    """Samples that draw random numbers reveal any change of a random state."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.rand(3), index


class Endless(IterableDataset):
    def __iter__(self):
        return (torch.tensor(number) for number in itertools.count())


def values(batches):
    return [[leaf.tolist() for leaf in batch] for batch in batches]


def test_an_epoch_is_as_long_as_the_loaders_and_repeats_its_first_batches():
    loader = FastLoader(range(22), batch_size=4)
    replay = loader.replay(2)
    assert len(replay) == len(loader) == 6
    for _ in range(2):
        assert [batch.tolist() for batch in replay] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 3


def test_the_same_memory_is_handed_out_again():
    first, second = list(FastLoader(range(4), batch_size=2).replay(1))
    assert first is second


def test_more_batches_than_the_epoch_has_are_an_epoch():
    assert [batch.tolist() for batch in FastLoader(range(5), batch_size=2).replay(99)] == [[0, 1], [2, 3], [4]]


def test_no_batches_are_no_epoch():
    assert list(FastLoader([], batch_size=2).replay(3)) == []


@pytest.mark.each_value
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_next_epoch_is_the_one_that_it_would_have_been(num_workers, persistent):
    if persistent and not num_workers:
        pytest.skip("torch has no persistent workers without workers")
    arguments = {"batch_size": 3, "shuffle": True, "num_workers": num_workers, "persistent_workers": persistent}

    def epochs(replays):
        torch.manual_seed(7)
        with FastLoader(Noise(12), **arguments, generator=torch.Generator().manual_seed(3)) as loader:
            found = values(loader)
            if replays:
                list(loader.replay(2))
            begun = iter(loader)
            found += values([next(begun)])
            if replays:
                loader.replay(1).load()  # beside an epoch under way
            return found + values(begun) + values(loader), torch.rand(1).item()

    assert epochs(True) == epochs(False)


def test_it_replays_what_the_next_epoch_begins_with():
    torch.manual_seed(1)
    loader = FastLoader(Noise(8), batch_size=2, shuffle=True, num_workers=2)
    replayed = values(loader.replay(4))
    assert replayed == values(loader)


def test_batches_are_taken_once_and_late():
    taken = []

    class Watched(Dataset):
        def __len__(self):
            return 100

        def __getitem__(self, index):
            taken.append(index)
            return index

    replay = FastLoader(Watched(), batch_size=2).replay(3)
    assert "not taken yet" in repr(replay)
    assert taken == []
    for _ in range(2):
        assert len(list(replay)) == 50
    assert taken == [0, 1, 2, 3, 4, 5]
    assert "3 batches held" in repr(replay)


def test_without_a_length_the_steps_must_be_given():
    loader = FastLoader(Endless(), batch_size=2)
    with pytest.raises(TypeError, match=r"the loader has no length .*; say how long: replay\(n, steps=1000\)"):
        loader.replay(2)
    replay = loader.replay(2, steps=5)
    assert [batch.tolist() for batch in replay] == [[0, 1], [2, 3], [0, 1], [2, 3], [0, 1]]
    assert len(replay) == 5


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0,), ValueError, "n must be >= 1, got 0"),
        ((-3,), ValueError, "n must be >= 1, got -3"),
        ((1.5,), TypeError, "n must be an int, got float"),
        ((True,), TypeError, "n must be an int, got bool"),
        ((2, 0), ValueError, "steps must be >= 1, got 0"),
        ((2, "9"), TypeError, "steps must be an int, got str"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error) as caught:
        FastLoader(range(4)).replay(*arguments)
    assert str(caught.value) == message


def test_an_error_of_the_dataset_is_raised_and_the_next_attempt_starts_anew():
    class Fails(Dataset):
        broken = True

        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index == 2 and self.broken:
                raise KeyError("no such sample")
            return index

    dataset = Fails()
    state = torch.get_rng_state()
    replay = FastLoader(dataset, batch_size=2).replay(2)
    with pytest.raises(KeyError, match="no such sample"):
        list(replay)
    assert torch.equal(torch.get_rng_state(), state)
    Fails.broken = False
    assert [batch.tolist() for batch in replay] == [[0, 1], [2, 3]]


def test_a_loader_that_is_closed_cannot_be_replayed_but_its_replay_can():
    loader = FastLoader(range(4), batch_size=2)
    replay = loader.replay(1).load()
    loader.close()
    assert len(list(replay)) == 2


def test_a_next_costs_next_to_nothing():
    """A perfect loader: 2000 batches in a time in which a loader makes a few."""
    replay = FastLoader(Noise(64), batch_size=8, num_workers=1).replay(2, steps=2000).load()
    batches = iter(replay)
    assert in_calls(lambda: next(batches), number=20) < 500
    assert next(batches, None) is None


@pytest.mark.gpu
def test_batches_stay_on_the_device_and_are_safe_on_any_stream():
    loader = FastLoader(Noise(64), batch_size=16, num_workers=2, device="cuda")
    replay = loader.replay(2).load()
    expected = values(batch for batch in replay)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        batches = list(replay)
        torch.cuda._sleep(50_000_000)
        late = [leaf.clone() for leaf in batches[0]]
        del batches, replay
    churn = [list(prefetch_to_device([torch.full((16, 3), -1.0)] * 8, "cuda")) for _ in range(4)]
    side.synchronize()
    assert [leaf.tolist() for leaf in late] == expected[0]
    del churn
