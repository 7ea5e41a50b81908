"""Stop a loader after any batch; a new one goes on with the same bits."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backends import simulated
from photos import make_folder, mix_in, photos_fixture, train_v1
from resuming import STOPS, Drawing, check, flat, generators, restart, saved, seed
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import (
    CenterCrop,
    Compose,
    RandomChoice,
    RandomHorizontalFlip,
    RandomOrder,
    RandomResizedCrop,
    RandomVerticalFlip,
    ToTensor,
)

from fastload import FastLoader
from fastload.native.batch import Batch, StreamStates
from fastload.randomness.packed import digest_of

folder = photos_fixture()


@pytest.mark.each_value
@pytest.mark.parametrize("with_generator", [False, True])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (3, True)])
def test_pythons_samples_go_on_with_the_same_bits(workers, persistent, with_generator):
    def make():
        generator = torch.Generator().manual_seed(8) if with_generator else None
        options = {"num_workers": workers, "persistent_workers": persistent, "generator": generator}
        return FastLoader(Drawing(), 4, shuffle=True, **options)

    check(make, STOPS)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (3, False), (2, True)])
def test_native_batches_go_on_with_the_same_bits(folder: Path, workers, persistent):
    def make():
        dataset = ImageFolder(folder, train_v1())
        return FastLoader(dataset, 4, shuffle=True, num_workers=workers, persistent_workers=persistent, engine="native")

    check(make, STOPS)


@pytest.mark.parametrize("randomness", ["worker", "sample"])
def test_a_batch_sampler_goes_on_in_workers(randomness):
    def make():
        batches = BatchSampler(RandomSampler(range(23)), 4, drop_last=False)
        return FastLoader(Drawing(), batch_sampler=batches, num_workers=2, randomness=randomness)

    check(make, STOPS[1:4])


def python_draws(folder: Path) -> ImageFolder:
    steps = [
        RandomOrder([RandomVerticalFlip(), RandomHorizontalFlip()]),
        RandomChoice([CenterCrop(40), CenterCrop(40)]),
    ]
    return ImageFolder(folder, Compose([RandomResizedCrop(48), *steps, ToTensor()]))


def test_native_streams_of_all_three_generators_go_on(folder: Path):
    check(lambda: FastLoader(python_draws(folder), 4, shuffle=True, num_workers=3, engine="native"), STOPS[:5])


@pytest.mark.slow
def test_samples_that_python_makes_leave_the_right_states(tmp_path: Path):
    mixed = mix_in(make_folder(tmp_path / "mixed"))
    check(
        lambda: FastLoader(ImageFolder(mixed, train_v1()), 4, shuffle=True, num_workers=2, engine="native"), STOPS[:5]
    )


def seeds_otherwise(worker: int) -> None:
    torch.manual_seed(torch.initial_seed() + 7)
    random.seed(worker)
    np.random.seed(worker)


@pytest.mark.slow
@pytest.mark.parametrize("native", [False, True])
def test_worker_init_fn_runs_before_the_states_are_set(folder: Path, native):
    def make():
        dataset = ImageFolder(folder, train_v1()) if native else Drawing()
        return FastLoader(dataset, 4, shuffle=True, num_workers=2, worker_init_fn=seeds_otherwise)

    check(make, STOPS[:5])


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_the_device_side_counts_batches_handed_over(workers, persistent):
    def make():
        options = {"num_workers": workers, "persistent_workers": persistent, "dtype": torch.float32}
        loader = FastLoader(Drawing(), 4, shuffle=True, **options)
        assert type(iter(FastLoader(Drawing(2), dtype=torch.float32))).__name__ == "TorchDeviceIterator"
        return loader

    check(make, STOPS)


class Epochs(Sampler):
    """Orders by its epoch and by a generator that no one can see."""

    def __init__(self, hidden: bool = False) -> None:
        self.epoch = 0
        self._hidden = [random.Random(3)] if hidden else []

    def __len__(self) -> int:
        return 23

    def __iter__(self):
        order = list(range(23))
        random.Random(self.epoch).shuffle(order)
        for hidden in self._hidden:
            hidden.shuffle(order)
        self.epoch += 1
        yield from order


class Asked(Epochs):
    """Saves what it hides."""

    def state_dict(self):
        return {"hidden": list(self._hidden[0].getstate()[1])}

    def load_state_dict(self, state):
        self._hidden[0].setstate((3, tuple(state["hidden"]), None))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_samplers_keep_their_epoch_and_state(workers):
    check(lambda: FastLoader(Drawing(), 4, sampler=Epochs(), num_workers=workers), STOPS)
    check(lambda: FastLoader(Drawing(), 4, sampler=Asked(True), num_workers=workers), STOPS)

    def make():
        sampler = RandomSampler(range(23), True, 23, torch.Generator().manual_seed(1))
        return FastLoader(Drawing(), 4, sampler=sampler, num_workers=workers)

    check(make, STOPS)


@pytest.mark.parametrize(("native", "workers"), [(False, 0), (False, 2), (True, 2), (True, 0)])
def test_a_sampler_that_cannot_be_repeated_is_an_error_and_nothing_is_lost(folder: Path, native, workers):
    def make():
        dataset = ImageFolder(folder, train_v1()) if native else Drawing()
        return FastLoader(dataset, 4, sampler=Epochs(hidden=True), num_workers=workers)

    loader = make()
    list(loader)
    iterator = iter(loader)
    next(iterator)
    state, other = loader.state_dict(), make()
    other.load_state_dict(state)
    seed(4)
    before = generators(other)
    with pytest.raises(
        RuntimeError, match="draws the same indices again from the same generators and epoch, but batch 0"
    ):
        iter(other)
    assert generators(other) == before
    assert str(other.state_dict()) == str(state)


def test_states_are_small_plain_and_of_batches_handed_over():
    loader = FastLoader(Drawing(), 2, num_workers=2)
    assert loader.state_dict()["_num_yielded"] == 0
    iterator = iter(loader)
    for count in range(1, 5):
        next(iterator)
        state = loader.state_dict()
        assert (state["_num_yielded"], state["_iterator_finished"]) == (count, False)
        assert all(worker is None or len(str(worker)) <= 12_000 for worker in state["workers"])
    file = io.BytesIO()
    torch.save(state, file)
    assert file.tell() < 2 * 12_000 + 30_000
    assert json.loads(json.dumps(state)) == state
    list(iterator)
    assert loader.state_dict()["_iterator_finished"]


def test_loading_before_iterating_can_be_saved_again():
    loader = FastLoader(Drawing(), 2, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    other = FastLoader(Drawing(), 2, shuffle=True)
    other.load_state_dict(state)
    again = FastLoader(Drawing(), 2, shuffle=True)
    again.load_state_dict(other.state_dict())
    assert [flat(batch) for batch in again] == [flat(batch) for batch in other]


def changed(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**state, **changes}.items() if value is not ...}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fastload": ...}, "needs what FastLoader.state_dict"),
        ({"fastload": 99}, "reads states of version 5, got 99"),
        ({"now": ...}, "damaged: now is missing"),
        ({"start": {"main": torch.zeros(3)}}, "damaged"),
        ({"now": {"main": "AAAA", "generators": {}, "dataset": {}}, "turn": 0}, "damaged|state must have"),
        ({"workers": [torch.zeros(3, dtype=torch.uint8)]}, "damaged"),
        ({"workers": [{"batches": 1, "generators": "AAAA"}]}, "state must have"),
        ({"workers": [{"batches": 1, "generators": "A"}]}, "damaged .*base64"),
        ({"workers": [{"batches": -1}]}, "'batches' must be a number"),
        ({"workers": [{"batches": 1, "other": 2}]}, "other entries"),
        ({"workers": [{"batches": 1, "ended": 2}]}, "other entries"),
        ({"workers": [{"batches": 1, "dataset": {}}]}, "has one of a Drawing, which has no load_state_dict"),
        ({"turn": -1}, "out of range"),
        ({"workers": []}, "a state for each worker"),
        ({"again": ...}, "damaged: again is missing"),
        ({"base_seed": 2**70}, "damaged .*out of range"),
        ({"fastload": torch.zeros(2)}, "reads states of version 5"),
        ({"num_workers": 3}, "num_workers must be 3, as when the state was saved, got 1"),
        ({"persistent": True}, "persistent_workers must be True"),
        ({"samples": 24}, "as long as when the state was saved, 24, got 23"),
        ({"files": 7}, "their names differ"),
        ({"batch_size": 3}, "batch_size must be 3"),
        ({"randomness": "sample"}, "randomness must be 'sample'"),
    ],
)
def test_a_foreign_or_damaged_state_is_refused(changes, message):
    loader = FastLoader(Drawing(), 4, num_workers=1)
    state = loader.state_dict()
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict(changed(state, **changes))
    loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generators": {"0.generator.cpu": torch.zeros(3)}}, "damaged"),
        ({"generators": {"0.generator.cpu": "AAAA"}}, "state must have"),
        ({"epochs": 3}, "other samplers: 'epochs' must have 2 entries"),
        ({"epochs": [None, "x"]}, "a sampler's epoch must be an integer"),
        ({"samplers": "x"}, "other samplers: 'samplers'"),
        ({"samplers": [None, {}]}, "has one of a RandomSampler, which has no load_state_dict"),
        ({"dataset": {"dataset": {}}}, "has one of a Drawing, which has no load_state_dict"),
        ({"dataset": {"else": 1}}, "other entries"),
    ],
)
@pytest.mark.parametrize("part", ["start", "now"])
def test_sources_that_cannot_be_set_are_refused(changes, message, part):
    def make():
        return FastLoader(Drawing(), 4, shuffle=True, generator=torch.Generator())

    loader = make()
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(ValueError, match=message):
        make().load_state_dict({**state, part: changed(state[part], **changes)})
    make().load_state_dict(state)


class Placed(DistributedSampler):
    """Has its place as its state, as torchdata's: the next iteration goes on there."""

    place, goes_on = 0, 0

    def __iter__(self):
        self.place, self.goes_on = self.goes_on, 0
        for index in list(super().__iter__())[self.place :]:
            self.place += 1
            yield index

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.goes_on = state["place"]


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("kind", [DistributedSampler, Placed])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, True)])
def test_distributed_samplers_keep_the_epoch_that_the_loop_sets(workers, persistent, kind, calls):
    def make():
        sampler = kind(range(23), 2, 0)
        return FastLoader(Drawing(), 2, sampler=sampler, num_workers=workers, persistent_workers=persistent)

    def set_epoch(loader, epoch):
        if calls:
            loader.sampler.set_epoch(epoch)

    check(make, STOPS, before=set_epoch)


class Fixed(DistributedSampler):
    """Shows its epoch, which no one can set."""

    epoch = property(lambda self: 3, lambda self, epoch: None if epoch == 0 else self.refuse())  # 0: torch's __init__

    def refuse(self):
        raise AttributeError("epoch cannot be set")


def test_a_samplers_epoch_that_cannot_be_set_is_left_alone():
    check(lambda: FastLoader(Drawing(), 2, sampler=Fixed(range(23), 2, 0)), STOPS)


def test_other_files_and_other_loaders_states_are_refused(folder: Path, tmp_path: Path):
    state = FastLoader(ImageFolder(folder)).state_dict()
    moved = make_folder(tmp_path / "moved")
    FastLoader(ImageFolder(moved)).load_state_dict(state)
    (moved / "class0" / "000.jpg").rename(moved / "class0" / "00x.jpg")
    with pytest.raises(ValueError, match="the same files in the same order"):
        FastLoader(ImageFolder(moved)).load_state_dict(state)
    with pytest.raises(ValueError, match="got an empty dict"):
        FastLoader(ImageFolder(folder)).load_state_dict({})
    with pytest.raises(ValueError, match="got a dict with '_snapshot'"):
        FastLoader(ImageFolder(folder)).load_state_dict({"_snapshot": 1})


def test_a_loader_whose_place_cannot_be_told_warns_once_and_refuses():
    loader = FastLoader(Drawing(), num_workers=2, in_order=False)
    with pytest.warns(UserWarning, match="in_order=False"):
        state = loader.state_dict()
    assert loader.state_dict() == state
    with pytest.raises(ValueError, match="use in_order=True"):
        loader.load_state_dict(state)


@pytest.mark.each_value
@pytest.mark.parametrize(("native", "workers"), [(True, 3), (True, 0), (False, 2), (False, 0)])
@pytest.mark.parametrize("persistent", [False, True])
def test_on_a_simulated_device(folder: Path, monkeypatch, native, workers, persistent):
    own = simulated.install_native(monkeypatch)
    persistent = persistent and workers > 0

    def make():
        dataset = ImageFolder(folder, train_v1()) if native else Drawing()
        options = {"num_workers": workers, "persistent_workers": persistent, "device_prefetch": 2, **own}
        return FastLoader(dataset, 4, shuffle=True, **options)

    check(make, STOPS[1::2])


class Failing(Drawing):
    """Raises in some samples, after it has drawn."""

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        if index % 9 == 4:
            raise ValueError(f"sample {index}")
        return sample


@pytest.mark.slow
@pytest.mark.parametrize(("native", "workers", "persistent"), [(False, 0, False), (False, 2, True), (True, 2, True)])
def test_batches_that_raised_count_as_handed_over(tmp_path: Path, native, workers, persistent):
    bad = make_folder(tmp_path / "bad", 20)
    for name in ("class0/0", "class1/010", "class2/z"):
        (bad / f"{name}.jpg").write_bytes(b"no image")

    def make():
        dataset = ImageFolder(bad, train_v1()) if native else Failing()
        return FastLoader(dataset, 4, shuffle=True, num_workers=workers, persistent_workers=persistent)

    def take(iterator):
        try:
            return flat(next(iterator))
        except StopIteration:
            return None
        except Exception as error:
            return [type(error).__name__]

    def epoch(iterator):
        return list(iter(lambda: take(iterator), None))

    seed(5)
    loader = make()
    expected = [epoch(iter(loader)) for _ in range(3)]
    raised = [number for number, batch in enumerate(expected[1], 1) if len(batch) == 1]
    assert raised
    for stop in raised:
        seed(5)
        loader = make()
        epoch(iter(loader))
        iterator = iter(loader)
        batches = [take(iterator) for _ in range(stop)]
        loader = restart(loader, make)
        assert batches + epoch(iter(loader)) == expected[1], stop
        assert epoch(iter(loader)) == expected[2], stop


@pytest.mark.slow
def test_an_engine_of_another_kind_goes_on(folder: Path):
    for before, after in (("native", "torch"), ("torch", "native")):
        seed(5)
        loader = FastLoader(ImageFolder(folder, train_v1()), 4, shuffle=True, num_workers=2, engine=before)
        expected = [[flat(batch) for batch in loader] for _ in range(2)]
        seed(5)
        iterator = iter(loader)
        batches = [flat(next(iterator)) for _ in range(3)]
        other = FastLoader(ImageFolder(folder, train_v1()), 4, shuffle=True, num_workers=2, engine=after)
        other.load_state_dict(saved(loader.state_dict()))
        assert [batches + [flat(batch) for batch in other], [flat(batch) for batch in other]] == expected


def test_a_batch_without_draws_has_the_state_of_its_workers_last_one_with_some():
    states = StreamStates([None, b"first"])
    for number, after in enumerate([b"0", b"1", b"2", None, None, None]):
        states.add(Batch(number % 2, number, ([],), indices=[number], after=after), True, max(0, number - 1))
    assert states.at(6) == (digest_of([5]), [b"2", b"1"])
    states.begin_epoch(6)
    assert states.at(0) == (0, [b"2", b"1"])


@pytest.mark.parametrize("native", [False, True])
def test_a_state_saved_after_loading_is_the_same(folder: Path, native):
    def make():
        dataset = ImageFolder(folder, train_v1()) if native else Drawing()
        return FastLoader(dataset, 4, shuffle=True, num_workers=2, persistent_workers=True)

    loader = make()
    list(loader)
    iterator = iter(loader)
    next(iterator)
    state, other = loader.state_dict(), make()
    other.load_state_dict(state)
    iter(other)
    assert str(other.state_dict()) == str(state)


@pytest.mark.parametrize("native", [False, True])
def test_an_automatic_number_of_workers_stays_what_it_was(folder: Path, native):
    def make():
        dataset = ImageFolder(folder, train_v1()) if native else Drawing()
        return FastLoader(dataset, 4, shuffle=True, num_workers="auto")

    seed(5)
    loader = make()
    iterator = iter(loader)
    next(iterator)
    state = saved(loader.state_dict())
    other = make()
    other.load_state_dict(state)
    assert [flat(batch) for batch in other] == [flat(batch) for batch in iterator]
    assert other.num_workers == loader.num_workers == state["num_workers"]
