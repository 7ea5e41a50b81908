"""The rest of an epoch is dealt to another number of processes."""

from __future__ import annotations

import itertools
import json
import random
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import interpreters
import pytest
import torch
from photos import photos_fixture, train_v1
from torch.utils.data import BatchSampler, Dataset, DistributedSampler
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.state.ranks import _order_of, _share

folder = photos_fixture()


class Drawing(Dataset):
    def __init__(self, count: int = 50) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, float(torch.rand(())), random.random()], dtype=torch.float64)


def ranks(dataset: Any, world: int, batch_size: int, workers: int = 0, *, drop_last: bool = False, **more: Any) -> Any:
    """The loaders of all ranks."""
    options = {"num_workers": workers, "randomness": "sample", **more}
    return [
        FastLoader(
            dataset,
            batch_size,
            sampler=DistributedSampler(dataset, world, rank, seed=5, drop_last=drop_last),
            generator=torch.Generator().manual_seed(7),
            **options,
        )
        for rank in range(world)
    ]


def key(sample: Any) -> bytes:
    return sample.numpy().tobytes()


def take(loaders: list[Any], epoch: int, count: int | None = None) -> list[bytes]:
    """The samples of each rank's next batches."""
    taken = []
    for loader in loaders:
        loader.sampler.set_epoch(epoch)
        iterator = iter(loader)
        for batch in iterator if count is None else itertools.islice(iterator, count):
            taken += [key(sample) for sample in (batch[0] if isinstance(batch, list) else batch)]
    return taken


def whole(dataset: Any, epochs: int = 3) -> list[Counter[bytes]]:
    """The samples of each epoch in one process."""
    loaders = ranks(dataset, 1, 5)
    return [Counter(take(loaders, epoch)) for epoch in range(epochs)]


def run(dataset: Any, stages: list[dict[str, Any]]) -> tuple[Counter[bytes], Counter[bytes]]:
    """Return the samples of the second epoch, in stages, and of the third."""
    states: list[Any] = []
    seen: Counter[bytes] = Counter()
    for stage in stages:
        count = stage.pop("count", None)
        loaders = ranks(dataset, **stage)
        if states:
            for loader in loaders:
                loader.load_state_dict(states)
        else:
            take(loaders, 0)
        seen.update(take(loaders, 1, count))
        states = [loader.state_dict() for loader in loaders]
    return seen, Counter(take(loaders, 2))


CHAINS = [
    [(4, 3, 0, 2), (2, 3, 0, None)],
    [(2, 3, 0, 3), (3, 4, 0, None)],
    [(1, 3, 0, 5), (4, 3, 0, None)],
    [(4, 3, 0, 2), (2, 3, 0, 1), (3, 2, 0, 2), (1, 7, 0, None)],
    [(2, 5, 0, 5), (3, 5, 0, None)],  # nothing is left
    [(2, 5, 0, 0), (3, 5, 0, None)],
    [(2, 5, 2, 2), (1, 5, 3, None)],
    [(3, 5, 0, 4), (1, 5, 0, None)],  # with drop_last, what was left out comes now
]


@pytest.mark.each_value
@pytest.mark.parametrize("chain", CHAINS, ids=str)
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_sample_of_the_epoch_comes_once(chain, drop_last):
    dataset = Drawing()
    expected = whole(dataset)
    names = ("world", "batch_size", "workers", "count")
    stages = [dict(zip(names, entry, strict=True), drop_last=drop_last) for entry in chain]
    seen, after = run(dataset, stages)
    last = chain[-1][0]
    for samples, all_of_them in ((seen, expected[1]), (after, expected[2])):
        if drop_last:  # as DistributedSampler: the last ones that do not fill a round are left out
            assert not samples - all_of_them
            assert len(all_of_them - samples) < last
        else:  # as DistributedSampler: the round is filled with samples of the epoch's beginning
            assert not all_of_them - samples
            assert set(samples) == set(all_of_them)
            assert samples.total() - all_of_them.total() < max(entry[0] for entry in chain)


@pytest.mark.slow
def test_native_samples_are_dealt_anew(folder: Path):
    dataset = ImageFolder(folder, train_v1())
    expected = whole(dataset)
    stages = [{"world": 3, "batch_size": 2, "count": 2, "workers": 1}, {"world": 1, "batch_size": 4, "workers": 2}]
    for engine in ("native", "torch"):
        assert run(dataset, [dict(stage, engine=engine) for stage in stages]) == tuple(expected[1:3]), engine


def test_as_many_ranks_go_on_with_their_own_states_in_any_order():
    for randomness in ("worker", "sample"):
        loaders = ranks(Drawing(), 2, 4, randomness=randomness)
        iterators = [iter(loader) for loader in loaders]
        for iterator in iterators:
            next(iterator)
        states = [loader.state_dict() for loader in loaders]
        torch.manual_seed(99)
        for rank, loader in enumerate(ranks(Drawing(), 2, 4, randomness=randomness)):
            loader.load_state_dict(states[::-1])
            assert loader.state_dict() is not states[rank]
            assert str(loader.state_dict()) == str(states[rank])


def test_shares_are_those_of_torchs_sampler():
    for count, world, drop_last in itertools.product(range(1, 18), range(1, 7), (False, True)):
        for rank in range(world):
            sampler = DistributedSampler(range(count), world, rank, seed=3, drop_last=drop_last)
            sampler.set_epoch(2)
            order = _order_of(sampler)
            share = _share(order, order, rank, world, drop_last=drop_last)
            assert share.tolist() == list(sampler), (count, world, drop_last, rank)


def states_of(world: int = 3, count: int = 2, **options: Any) -> list[dict[str, Any]]:
    loaders = ranks(Drawing(), world, 4, **options)
    take(loaders, 0)
    take(loaders, 1, count)
    return [loader.state_dict() for loader in loaders]


def foreign(states: list[dict[str, Any]], rank: int = 1, **changes: Any) -> list[dict[str, Any]]:
    return [{**state, **changes} if number == rank else state for number, state in enumerate(states)]


def sampled(states: list[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    return [{**state, "process": {**state["process"], **changes}} for state in states]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda states: [], "a list must be|each state of a list must be of a loader"),
        (lambda states: states[:2], "the states of all 3 ranks, each once, got those of ranks .0, 1."),
        (lambda states: [states[0], *states[:2]], "got those of ranks .0, 0, 1."),
        (lambda states: foreign(states, process=None), "each state of a list must be of a loader whose sampler is"),
        (lambda states: foreign(states, epoch=5), "the same step of one run, but epoch is 1 on rank 0 and 5 on rank 1"),
        (lambda states: foreign(states, samples=49), "but samples is 50 on rank 0 and 49"),
        (lambda states: foreign(states, batch_size=2), "but batch_size is 4 on rank 0 and 2"),
        (lambda states: foreign(states, seed=3), "all ranks draw with the same seed, but they have 2; give each"),
        (lambda states: sampled(states, seed=6), "the DistributedSampler's seed must be 6, as when .* got 5"),
        (lambda states: sampled(states, shuffle=False), "the DistributedSampler's shuffle must be False"),
        (lambda states: sampled(states, replicas=0), "damaged .*replicas must be positive"),
        (lambda states: sampled(states, rank=-1), "damaged .*a rank must be below"),
        (lambda states: sampled(states, rank="0"), "damaged .*described by its rank"),
        (lambda states: foreign(states, dealt=[{"replicas": 2}]), "damaged"),
        (lambda states: [{**one, "num_workers": 1, "workers": [None]} for one in states], "a state of its own in each"),
        (lambda states: [None, *states[1:]], "needs what FastLoader.state_dict"),
    ],
)
def test_states_that_cannot_be_dealt_are_refused_and_the_loader_stays_usable(change, message):
    states = states_of()
    loader = ranks(Drawing(), 2, 4)[0]
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict(change(states))
    loader.load_state_dict(states)
    next(iter(loader))


@pytest.mark.parametrize(
    "counts", [[1], [1, 2, 3], [1, -1], [1, "2"]], ids=["too few", "too many", "negative", "no number"]
)
def test_damaged_stages_are_refused(counts):
    stage = {"replicas": 2, "batch_size": 4, "drop_last": False, "yielded": counts}
    loader = ranks(Drawing(), 2, 4)[0]
    state = loader.state_dict()
    for damaged in (stage, {**stage, "yielded": [1, 1], "batch_size": 0}):
        with pytest.raises(ValueError, match="damaged"):
            loader.load_state_dict({**state, "dealt": [damaged]})
    with pytest.raises(ValueError, match=r"damaged .*only a DistributedSampler deals"):
        loader.load_state_dict({**state, "process": None, "dealt": [{**stage, "yielded": [1, 1]}]})


class Reversed(DistributedSampler):
    def __iter__(self):
        return iter(list(super().__iter__())[::-1])


def test_a_sampler_with_an_order_of_its_own_is_not_taken_for_torchs():
    dataset = Drawing()
    loader = FastLoader(dataset, 4, sampler=Reversed(dataset, 2, 0), randomness="sample", generator=torch.Generator())
    assert loader.state_dict()["process"] is None
    with pytest.raises(ValueError, match="sampler is torch's DistributedSampler, got Reversed"):
        loader.load_state_dict(states_of())


class Batches(BatchSampler):
    pass


def test_what_cannot_be_dealt_says_what_can():
    by_worker = states_of(randomness="worker")
    with pytest.raises(ValueError, match="dealt anew only with randomness='sample' from the start"):
        ranks(Drawing(), 2, 4, randomness="worker")[0].load_state_dict(by_worker)
    states = states_of()
    own: dict[str, Any] = {"randomness": "sample", "generator": torch.Generator()}
    with pytest.raises(ValueError, match=r"RandomSampler; with one process use DistributedSampler\(dataset, 1, 0\)"):
        FastLoader(Drawing(), 4, shuffle=True, **own).load_state_dict(states)
    loader = ranks(Drawing(), 2, 4)[0]
    vars(loader)["batch_sampler"] = Batches(loader.sampler, 4, False)  # as timm does
    with pytest.raises(ValueError, match="only to a loader with a batch_size, and without a batch_sampler"):
        loader.load_state_dict(states)


def test_another_ranks_state_is_refused_within_an_epoch():
    state = states_of()[1]
    three = ranks(Drawing(), 3, 4)
    with pytest.raises(ValueError, match=r"of rank 1 of 3, but .* of rank 0 of 3; give .* a list of the states of all"):
        three[0].load_state_dict(state)
    with pytest.raises(ValueError, match=r"of rank 1 of 3, but .* of rank 1 of 2"):
        ranks(Drawing(), 2, 4)[1].load_state_dict(state)
    with pytest.raises(ValueError, match="the sampler must be as when the state was saved, which had one"):
        FastLoader(Drawing(), 4, randomness="sample", generator=torch.Generator()).load_state_dict(state)
    with pytest.raises(ValueError, match="drop_last must be False, as when the state was saved, got True"):
        ranks(Drawing(), 3, 4, drop_last=True)[1].load_state_dict(state)
    three[1].load_state_dict(state)
    ended = states_of(count=None)[1]
    three[0].load_state_dict(ended)


def test_a_last_batch_by_sample_is_not_compared_with_an_earlier_one():
    loader = ranks(Drawing(), 1, 4)[0]
    next(iter(loader))
    again = ranks(Drawing(), 1, 4, 2)[0]
    again.load_state_dict(loader.state_dict())
    assert again.state_dict()["indices"] == loader.state_dict()["indices"] != 0
    next(iter(again))
    state = again.state_dict()
    last = ranks(Drawing(), 1, 4)[0]
    last.load_state_dict(state)
    expected = list(ranks(Drawing(), 1, 4)[0])[2:]
    assert [key(batch) for batch in last] == [key(batch) for batch in expected]


PROGRAM = """
    import json, multiprocessing, sys
    import torch
    import torch.distributed as dist
    from torch.utils.data import DistributedSampler
    from fastload import DataLoader
    sys.path.insert(0, {tests!r})
    from conformance.test_state_ranks import Drawing, key

    world, batch_size, workers, count, before, after, store = json.loads(sys.argv[1])

    def train(rank):
        dist.init_process_group("gloo", init_method=f"file://{{store}}", rank=rank, world_size=world)
        torch.manual_seed(0)
        dataset = Drawing()
        loader = DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset), num_workers=workers,
                            randomness="sample")
        first = 0
        if before:
            saved = torch.load(before, weights_only=True)
            loader.load_state_dict(saved["loader"])
            first = saved["epoch"]
        seen = []
        for epoch in range(first, 3):
            loader.sampler.set_epoch(epoch)
            seen.append([])
            for step, batch in enumerate(loader):
                seen[-1] += [key(sample).hex() for sample in batch]
                dist.all_reduce(torch.ones(1))
                if epoch == 1 and step + 1 == count:
                    break
            if epoch == 1 and count:
                break
        states = [None] * world
        dist.all_gather_object(states, loader.state_dict())
        if rank == 0:
            torch.save({{"loader": states, "epoch": epoch}}, after)
        everyone = [None] * world
        dist.all_gather_object(everyone, seen)
        if rank == 0:
            print(json.dumps([sum(parts, []) for parts in zip(*everyone)]))
        dist.destroy_process_group()

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=train, args=(rank,)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 3), (1, 4)])
def test_processes_go_on_in_another_number(tmp_path: Path, before, after):
    program = textwrap.dedent(PROGRAM).format(tests=str(Path(__file__).parents[1]))

    def start(world, workers, count, source, target):
        arguments = [world, 3, workers, count, source and str(tmp_path / source), str(tmp_path / target)]
        done = interpreters.run(["-c", program, json.dumps([*arguments, str(tmp_path / f"store-{target}")])])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    expected = start(1, 0, None, None, "whole.pt")
    first, part = start(before, 1, 3, None, "part.pt")
    rest, third = start(after, 2, None, "part.pt", "rest.pt")
    for samples, all_of_them, worlds in (
        (first, expected[0], before),
        (part + rest, expected[1], after),
        (third, expected[2], after),
    ):
        assert set(samples) == set(all_of_them)
        assert len(samples) - len(all_of_them) < worlds
