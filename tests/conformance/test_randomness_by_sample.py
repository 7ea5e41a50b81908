"""``randomness="sample"`` gives the same samples for any worker count, native or not.

A reference in torch gives the expected values.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from photos import NOISY, OF_PYTHON, PIPELINES, assert_same, epochs_of, make_folder, photos_fixture, train_v1, train_v2
from plans import text_of
from references import kept
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, default_collate, get_worker_info
from torchvision.datasets import ImageFolder

from fastload import FastLoader, _core, verify
from fastload.randomness.by_sample import seed_for_index

OWN = {"device": "cpu", "randomness": "sample"}
folder = photos_fixture(17, mixed=True)


class Draws(Dataset):
    """Samples that draw from all three global streams."""

    def __len__(self):
        return 11

    def __getitem__(self, index):
        if index == 99:
            raise KeyError(index)
        return index, torch.rand(3), np.random.rand(), random.random()


def native(dataset, **arguments):
    return FastLoader(dataset, **{"batch_size": 4, **OWN, "engine": "native", **arguments})


def workers(dataset, **arguments):
    return FastLoader(dataset, **{"batch_size": 4, **OWN, "engine": "torch", **arguments})


def by_hand(dataset, order, epoch=0, batch_size=4, seed=3):
    """What the definition says, one sample after the other."""
    torch.manual_seed(seed)
    base_seed = torch.empty((), dtype=torch.int64).random_().item()
    samples = []
    for index in order:
        own = _core.seed_for_index(base_seed, epoch, index)
        torch.manual_seed(own)
        np.random.seed(own % 2**32)
        random.seed(own)
        samples.append(dataset[index])
    return [default_collate(samples[i : i + batch_size]) for i in range(0, len(samples), batch_size)]


def batches(seen):
    return [item for item in seen if not isinstance(item, torch.Tensor)]


@pytest.mark.parametrize("make", [native, workers])
@pytest.mark.matrix
def test_the_reference(folder, make):
    dataset = ImageFolder(folder, train_v1())
    order = [5, 2, 16, 0, 0, 11, 7, 3, 12]
    seen = batches(epochs_of(lambda: make(dataset, sampler=order, num_workers=3), count=1))
    assert_same(seen, by_hand(dataset, order))
    assert torch.equal(seen[0][0][3], seen[1][0][0])  # the same index twice


@pytest.mark.slow
def test_every_number_of_workers(folder):
    dataset = ImageFolder(folder, train_v2())
    arguments = {"shuffle": True, "batch_size": 3}
    wanted = epochs_of(lambda: workers(dataset, num_workers=0, **arguments))
    for count in (0, 1, 2, 3, 4, 5):
        assert_same(epochs_of(lambda n=count: native(dataset, num_workers=n, **arguments)), wanted)
    assert_same(epochs_of(lambda: workers(dataset, num_workers=2, **arguments)), wanted)


def images(folder):
    return ImageFolder(folder, train_v1())


def numbers(folder):
    return Draws()


ENGINES = [
    *[(native, images, count, persistent) for count in (1, 3) for persistent in (False, True)],
    *[(workers, images, count, persistent) for count in (1, 3) for persistent in (False, True)],
    *[(workers, numbers, count, persistent) for count in (1, 3) for persistent in (False, True)],
    (native, images, 0, False),
    (workers, images, 0, False),
    (workers, numbers, 0, False),
]


@pytest.mark.each_value
@pytest.mark.parametrize("breaks_at", [None, 1])
@pytest.mark.parametrize(("make", "dataset_of", "count", "persistent"), ENGINES)
def test_three_epochs_are_the_same_however_they_are_made(folder, make, dataset_of, count, persistent, breaks_at):
    dataset, order = dataset_of(folder), [5, 2, 9, 0, 7, 3]
    arguments = {"sampler": order, "num_workers": count, "persistent_workers": persistent, "batch_size": 2}
    seen = batches(epochs_of(lambda: make(dataset, **arguments), count=3, breaks_at=breaks_at))
    wanted = [by_hand(dataset, order, epoch, batch_size=2) for epoch in range(3)]
    assert_same(seen, [batch for epoch in wanted[:2] for batch in epoch[:breaks_at]] + wanted[2])


@pytest.mark.parametrize(("make", "count"), [(native, 2), (native, 0), (workers, 2), (workers, 0)])
def test_iterators_that_live_at_the_same_time_are_epochs_of_their_own(folder, make, count):
    dataset = images(folder)
    torch.manual_seed(3)
    with make(dataset, sampler=[4, 1, 6, 2], batch_size=2, num_workers=count) as loader:
        first = iter(loader)
        seen = [next(first)]
        second = iter(loader)
        assert len(loader) == len(second) == 2
        seen += [next(second), next(first), next(second)]
        del first, second
    a, b = (by_hand(dataset, [4, 1, 6, 2], epoch, batch_size=2) for epoch in (0, 1))
    assert_same(seen, [a[0], b[0], a[1], b[1]])


def test_one_loader_may_change_its_engine_between_epochs(folder):
    dataset = images(folder)
    torch.manual_seed(3)
    seen, engines = [], []
    with FastLoader(dataset, sampler=[4, 1], batch_size=2, num_workers=1, **OWN) as loader:
        for engine, count in (("auto", 1), ("torch", 2), ("torch", 0), ("auto", 0), ("auto", 2)):
            loader.engine, loader.num_workers = engine, count
            engines.append(loader.plan.engine)
            seen += list(loader)
    assert engines == ["native", "workers", "workers", "native", "native"]
    assert_same(seen, [by_hand(dataset, [4, 1], epoch)[0] for epoch in range(5)])


def test_what_looks_at_a_loader_begins_no_epoch_of_it(folder):
    dataset = images(folder)
    arguments = {"sampler": [4, 1], "batch_size": 2, "num_workers": 1}
    with workers(dataset, **arguments, persistent_workers=True) as loader:
        torch.manual_seed(3)
        assert verify(loader)
        list(loader.replay(1))
        assert (len(loader), str(loader.plan)) != (0, "")
        seen = list(loader)
    assert_same(seen, by_hand(dataset, [4, 1]))


@pytest.mark.parametrize("copy_of", [copy.copy, lambda loader: pickle.loads(pickle.dumps(loader)), FastLoader.wrap])
def test_a_copy_has_a_first_iterator_of_its_own(copy_of):
    loader = workers(Draws())
    list(loader)
    other = copy_of(loader)
    other.randomness = "sample"  # wrap() gives every argument of its own its default
    assert_same(batches(epochs_of(lambda: other, count=1)), by_hand(Draws(), range(11)))


@pytest.mark.each_value
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("name", [*OF_PYTHON, *NOISY])
def test_draws_from_python_and_numpy_depend_on_the_index(folder, name, count):
    dataset = ImageFolder(folder, PIPELINES[name]())
    assert_same(*(epochs_of(lambda make=make: make(dataset, num_workers=count)) for make in (native, workers)))


class MeetsAnother:
    """A sampler that delays an iterator's start until another one starts, if that may."""

    def __init__(self):
        self.both = threading.Barrier(2)

    def __iter__(self):
        with contextlib.suppress(threading.BrokenBarrierError):
            self.both.wait(timeout=0.2)
        return iter([4, 1])


@pytest.mark.parametrize("make", [native, workers])
def test_iterators_that_begin_in_two_threads_have_one_seed(folder, make):
    dataset = images(folder)
    torch.manual_seed(3)
    with make(dataset, sampler=MeetsAnother(), num_workers=1) as loader, ThreadPoolExecutor(2) as pool:
        seen = list(pool.map(lambda _: next(iter(loader)), range(2)))
    wanted = [by_hand(dataset, [4, 1], epoch)[0] for epoch in (0, 1)]
    assert_same(sorted(seen, key=str), sorted(wanted, key=str))


class Seeds(Draws):
    """Samples that are their seed, which a collate function makes int64 of."""

    def __getitem__(self, index):
        return torch.initial_seed()


@pytest.mark.parametrize("count", [0, 2])
def test_seeds_fit_into_int64(count):
    with workers(Seeds(), num_workers=count, batch_size=11) as loader:
        seeds = next(iter(loader)).tolist()
        base_seed = loader._state.place.epochs_of(loader).seed
    assert seeds == [_core.seed_for_index(base_seed, 0, index) for index in range(11)]
    for word in range(2**63 - 1, 2**64, 2**57):
        assert 0 <= _core.seed_for_index(word, word, word) == seed_for_index(word, word, word) < 2**63


@pytest.mark.parametrize("count", [0, 1, 3])
def test_all_three_global_streams_are_set(count):
    seen = epochs_of(lambda: workers(Draws(), num_workers=count, shuffle=False), count=1)
    assert_same(batches(seen), by_hand(Draws(), range(11)))


def test_without_workers_this_process_keeps_its_streams():
    loader = workers(Draws())
    torch.manual_seed(0)
    iterator = iter(loader)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    next(iterator)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())


def test_the_generator_advances_as_torchs(folder):
    dataset = ImageFolder(folder, train_v1())
    arguments = {"batch_size": 4, "shuffle": True, "num_workers": 2}
    generator = lambda: torch.Generator().manual_seed(7)  # noqa: E731
    ours = epochs_of(lambda: FastLoader(dataset, **arguments, **OWN, generator=generator()))
    theirs = kept(lambda: epochs_of(lambda: DataLoader(dataset, **arguments, generator=generator())))
    states = lambda seen: [item for item in seen if isinstance(item, torch.Tensor)]  # noqa: E731
    assert_same(states(ours), states(theirs))
    labels = lambda seen: [item[1] for item in batches(seen)]  # noqa: E731
    assert_same(labels(ours), labels(theirs))


def test_ranks_together_see_what_one_process_sees(folder):
    dataset = ImageFolder(folder, train_v1())

    def samples(seen):
        return [image for images, _ in batches(seen) for image in images]

    alone = samples(epochs_of(lambda: native(dataset, num_workers=1), count=1))
    for rank in (0, 1):
        sampler = DistributedSampler(dataset, 2, rank, shuffle=False)
        part = samples(epochs_of(lambda s=sampler: native(dataset, num_workers=2, sampler=s), count=1))
        for index, image in zip(sampler, part, strict=True):
            assert torch.equal(image, alone[index])


@pytest.mark.parametrize("make", [native, workers])
def test_a_damaged_file_changes_nothing_for_the_others(tmp_path, make):
    root = make_folder(tmp_path, 12)
    whole = batches(epochs_of(lambda: make(ImageFolder(root, train_v1()), num_workers=1), count=1))
    victim = root / "class1" / "004.jpg"
    victim.write_bytes(victim.read_bytes()[:700])
    seen = batches(epochs_of(lambda: make(ImageFolder(root, train_v1()), num_workers=1), count=1))
    assert [type(item) for item in seen] == [list, OSError, list]
    assert_same([seen[0], seen[2]], [whole[0], whole[2]])


@pytest.mark.parametrize("make", [native, workers])
def test_indices_that_are_no_integers_raise(folder, make):
    loader = make(ImageFolder(folder, train_v1()), num_workers=1, sampler=["a", "b"])
    with loader, pytest.raises(TypeError, match="sampler of integers, got str"):
        next(iter(loader))


def test_integers_of_all_kinds_are_the_same_index():
    assert seed_for_index(5, 6, 7) == _core.seed_for_index(5, 6, 7)
    assert seed_for_index(5, 6, np.int32(7)) == seed_for_index(5, 6, torch.tensor(7)) == seed_for_index(5, 6, 7)
    assert seed_for_index(2**63, 1, -1) == _core.seed_for_index(2**63, 1, 2**64 - 1)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class OwnIterator(FastLoader):
    def _get_iterator(self):
        return iter(())


def test_what_has_no_index_is_refused():
    with pytest.raises(ValueError, match="needs a dataset with indices, got the iterable Stream"):
        FastLoader(Stream(), randomness="sample")
    with pytest.raises(ValueError, match="has a _get_iterator"):
        OwnIterator(Draws(), randomness="sample")
    with pytest.raises(ValueError, match="randomness must be 'worker' or 'sample', got 'numpy'"):
        FastLoader(Draws(), randomness="numpy")


def shows_its_dataset(worker_id):
    assert type(get_worker_info().dataset) is Draws


def test_the_users_first_call_sees_the_users_dataset():
    seen = epochs_of(lambda: workers(Draws(), num_workers=1, worker_init_fn=shows_its_dataset), count=1)
    assert_same(batches(seen), by_hand(Draws(), range(11)))


@pytest.mark.slow
def test_spawned_workers_know_the_epoch():
    arguments = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"}
    seen = batches(epochs_of(lambda: workers(Draws(), **arguments)))
    assert_same(seen[3:], by_hand(Draws(), range(11), epoch=1))


def test_workers_that_were_started_in_inference_mode_know_later_epochs():
    torch.manual_seed(3)
    with workers(Draws(), num_workers=1, persistent_workers=True) as loader:
        with torch.inference_mode():
            list(loader)
        assert_same(list(loader), by_hand(Draws(), range(11), epoch=1))


def test_verify_compares_like_with_like(folder):
    result = verify(lambda: native(ImageFolder(folder, train_v1()), num_workers=2, shuffle=True))
    assert (bool(result), result.batches, result.engine) == (True, 6, "native"), result
    result = verify(lambda: workers(Draws(), num_workers=2, shuffle=True))
    assert (bool(result), result.batches, result.engine) == (True, 3, "workers"), result


def test_the_plan_says_so(folder):
    assert "by (seed, epoch, index)" in text_of(native(ImageFolder(folder, train_v1()), num_workers=1))
    plan = workers(Draws()).plan
    assert (plan.engine, "by (seed, epoch, index)" in " ".join(str(plan).split())) == ("workers", True)
