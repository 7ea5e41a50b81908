"""Samples that raise are left out or replaced as by hand around torch's loader."""

from __future__ import annotations

import copy
import io
import itertools
import json
import logging
import pathlib
import signal
import tarfile
import warnings
from typing import Any

import pytest
import torch
import torchvision.transforms as v1
from backends import simulated
from cases import check_each
from photos import jpeg
from PIL import Image
from resuming import Drawing, check, flat, resumed, saved, seed
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from torchvision.datasets import ImageFolder

from fastload import FallbackWarning, FastLoader
from fastload.bad_samples import FOLLOWING, NOTHING_WORKS, TooManyBadSamplesError
from fastload.sources import EncodedImage, ObjectStoreImageFolder, TarImageFolder
from fastload.state.checks import checksum_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:on_error='skip' may give"),
]
COUNT = 41
BAD = frozenset({0, 5, 11, 12, 13, 14, 15, 16, 30, 40})
ALL = 10**6
MODES = ("skip", "replace")
SOME_WORKERS = [0, 2, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 4))]


class Faulty(Drawing):
    """Draws, and then raises for some indices."""

    def __init__(self, bad: Any = BAD, count: int = COUNT) -> None:
        super().__init__(count)
        self.bad = bad

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        if index in self.bad:
            raise OSError(f"sample {index} is damaged")
        return sample


class InBatches(Faulty):
    """Reads batches at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Candidates:
    """Gives each index of a batch sampler with all that may replace it."""

    def __init__(self, batches: Any, mode: str) -> None:
        self.batches, self.mode = batches, mode

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        batches = [list(batch) for batch in self.batches]
        for number, batch in enumerate(batches):
            behind = [*itertools.chain(*batches[number + 1 :]), *itertools.chain(*batches)][:FOLLOWING]
            others = [[]] * len(batch)
            if self.mode == "replace":
                others = [batch[place + 1 :] + batch[:place] + behind for place in range(len(batch))]
            yield [(index, *rest) for index, rest in zip(batch, others, strict=True)]


class Tried(Dataset):
    """Returns the first sample of those that may be there that works, or ``None``."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, indices: tuple[int, ...]) -> Any:
        for index in indices:
            try:
                return self.dataset[index]
            except Exception:
                continue
        return None


class Left:
    """Collates what is left of a batch."""

    def __init__(self, collate_fn: Any) -> None:
        self.collate_fn = collate_fn

    def __call__(self, samples: list[Any]) -> Any:
        samples = [sample for sample in samples if sample is not None]
        return self.collate_fn(samples) if samples else None


def by_hand(dataset: Any, mode: str, collate_fn: Any = default_collate, **options: Any) -> Any:
    """Torch's loader, whose dataset, sampler and collate function leave out or replace samples."""
    usual = DataLoader(dataset, **options)
    rest = {
        name: value
        for name, value in options.items()
        if name not in ("batch_size", "shuffle", "sampler", "drop_last", "batch_sampler")
    }
    return DataLoader(
        Tried(dataset), batch_sampler=Candidates(usual.batch_sampler, mode), collate_fn=Left(collate_fn), **rest
    )


def epochs_of(loader: Any, epochs: int = 2) -> list[Any]:
    """All batches, and the main process's generator after each epoch."""
    seed(7)
    seen: list[Any] = []
    for _ in range(epochs):
        seen.append([flat(batch) for batch in loader if batch is not None])
        seen.append(torch.get_rng_state().tolist())
    if isinstance(loader, FastLoader):
        loader.close()
    return seen


def listed(loader: Any) -> list[Any]:
    return [error.index for error in loader.errors()]


def said(error: BaseException) -> str:
    return str(error) + "".join(getattr(error, "__notes__", []))


def ours(dataset: Any, mode: str, **options: Any) -> Any:
    return FastLoader(dataset, on_error=mode, max_errors=ALL, device="cpu", **options)


def assert_as_by_hand(dataset: Any, mode: str, make_options: Any, bad: Any = BAD, **own: Any) -> None:
    expected = epochs_of(by_hand(dataset, mode, **make_options()))
    loader = ours(dataset, mode, **make_options(), **own)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", FallbackWarning)
        assert epochs_of(loader) == expected
    assert [str(one.message) for one in warned if issubclass(one.category, FallbackWarning)] == []
    assert set(listed(loader)) == set(bad)
    assert len(listed(loader)) == len(bad)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", SOME_WORKERS)
def test_batches_and_draws_are_as_by_hand(mode, num_workers):
    def one(batch_size, engine, kind):
        options = {"batch_size": batch_size, "shuffle": True, "num_workers": num_workers}
        assert_as_by_hand(kind(), mode, lambda: options, engine=engine)

    check_each(one, [1, 4], ["auto", "torch"], [Faulty])
    one(5, "auto", InBatches)


class Own(Sampler):
    def __iter__(self) -> Any:
        yield from torch.randperm(COUNT)[: COUNT - 3].tolist()
        yield from (5, 11, 5)

    def __len__(self) -> int:
        return COUNT


def samplers() -> dict[str, Any]:
    return {
        "sequential": {"batch_size": 4},
        "random": {"batch_size": 4, "shuffle": True},
        "last is dropped": {"batch_size": 4, "shuffle": True, "drop_last": True},
        "weighted": {"batch_size": 3, "sampler": WeightedRandomSampler([1.0] * COUNT, 50)},
        "first rank": {"batch_size": 4, "sampler": DistributedSampler(range(COUNT), 3, 0)},
        "last rank": {"batch_size": 2, "sampler": DistributedSampler(range(COUNT), 3, 2, shuffle=False)},
        "own": {"batch_size": 4, "sampler": Own()},
        "batches": {"batch_sampler": BatchSampler(SequentialSampler(range(COUNT)), 5, drop_last=True)},
        "batches of tuples": {"batch_sampler": [(0, 1), (11, 12, 13), (30,), (40, 0), (2, 3)]},
    }


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_sampler_is_as_by_hand(mode, num_workers):
    def one(name):
        expected = epochs_of(by_hand(Faulty(), mode, num_workers=num_workers, **samplers()[name]))
        loader = ours(Faulty(), mode, num_workers=num_workers, **samplers()[name])
        length = len(loader)
        assert epochs_of(loader) == expected
        assert len(loader) == length

    check_each(one, samplers())


def shuffled(samples: list[Any]) -> Any:
    return default_collate([samples[at] for at in torch.randperm(len(samples))]), torch.tensor(len(samples))


@pytest.mark.parametrize("mode", MODES)
def test_a_collate_function_gets_the_samples_that_are_left(mode):
    def one(num_workers):
        options = {"batch_size": 4, "num_workers": num_workers, "collate_fn": shuffled}
        seen = [[size.item() for _, size in ours(Faulty(), mode, **options)] for _ in range(2)]
        sizes = [3, 3, 3, 3, 4, 4, 3, 4, 4] if mode == "skip" else [4] * 10 + [1]
        assert seen == [sizes] * 2

    check_each(one, [0, 2])


@pytest.mark.parametrize("mode", MODES)
def test_persistent_workers_and_several_iterators(mode):
    options = {"batch_size": 4, "shuffle": True, "num_workers": 2, "persistent_workers": True}
    assert_as_by_hand(Faulty(), mode, lambda: options)

    def both(loader):
        seed(3)
        with_none = zip(iter(loader), iter(loader), strict=True)
        return [(flat(one), flat(other)) for one, other in with_none if one is not None and other is not None]

    options = {"batch_size": 7, "num_workers": 2}
    loader = ours(Faulty(), mode, **options)
    assert both(loader) == both(by_hand(Faulty(), mode, **options))
    assert sorted(listed(loader)) == sorted(BAD)
    assert {error.times for error in loader.errors()} == {2}


def folder_of(root: Any, transform: Any) -> ImageFolder:
    """A folder with files that are cut, empty, none, or refused by transforms."""
    (root / "class").mkdir(parents=True)
    for number in range(COUNT):
        data = jpeg(number, 60 + 3 * (number % 7), 110 - 4 * (number % 5), progressive=number % 4 == 0)
        if number in BAD:
            data = [data[: len(data) // 2], b"no image", b"", jpeg(number, 20, 20)][number % 4]
        (root / "class" / f"{number:02}.jpg").write_bytes(data)
    return ImageFolder(root, transform)


def drawing() -> Any:
    """Transforms of which one raises behind one that has drawn."""
    return v1.Compose([v1.RandomHorizontalFlip(), v1.RandomCrop(40), v1.ToTensor()])


def resizing() -> Any:
    return v1.Compose([v1.Resize(48), v1.CenterCrop(40), v1.ToTensor()])


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", SOME_WORKERS)
def test_native_batches_and_draws_are_as_by_hand(tmp_path, mode, num_workers):
    def one(batch_size):
        dataset = folder_of(tmp_path / str(batch_size), drawing())
        options = {"batch_size": batch_size, "shuffle": True, "num_workers": num_workers}
        assert_as_by_hand(dataset, mode, lambda: options, engine="native")

    check_each(one, [1, 4, 7])


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", [2, pytest.param(0, marks=pytest.mark.slow)])
def test_native_samples_in_other_places_are_as_by_hand(tmp_path, mode, num_workers):
    dataset = folder_of(tmp_path / "files", drawing())
    still = ImageFolder(tmp_path / "files", resizing())
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "files" / "class", "class")
    beside = TarImageFolder(tmp_path / "a.tar", drawing())
    small = frozenset(index for index in BAD if index % 4 == 3)  # which only a crop refuses

    def one(dataset, bad):
        options = {"batch_size": 4, "num_workers": num_workers, "shuffle": True}
        assert_as_by_hand(dataset, mode, lambda: options, bad, engine="native")

    one(beside, BAD)
    one(still, BAD - small)
    nested = Subset(Subset(dataset, range(10, 40)), range(2, 30))
    one(nested, [i - 12 for i in BAD if 12 <= i < 40])
    options = {"batch_size": 4, "num_workers": num_workers, "sampler": [7, 99, 8, -99, 9, 10]}
    assert_as_by_hand(nested, mode, lambda: options, {99, -99}, engine="native")
    pytest.importorskip("obstore")
    one(ObjectStoreImageFolder(f"file://{tmp_path / 'files'}", drawing()), BAD)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_native_samples_beside_functions_of_the_users_are_as_by_hand(tmp_path, mode, num_workers):
    dataset = folder_of(tmp_path / "files", drawing())
    options = {"batch_size": 4, "num_workers": num_workers, "shuffle": True}
    expected = epochs_of(by_hand(dataset, mode, shuffled, **options))
    loader = ours(dataset, mode, collate_fn=shuffled, engine="native", **options)
    assert epochs_of(loader) == expected
    assert sorted(listed(loader)) == sorted(BAD)
    assert loader.plan.engine == "native"


class Drawn(Dataset):
    """Files as an own dataset opens them, which are lazy images in workers."""

    def __init__(self, folder: ImageFolder) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, index: int) -> Any:
        image, target = self.folder[index]
        return {"image": image, "target": target}


@pytest.mark.parametrize("mode", MODES)
def test_lazy_images_are_blamed_on_their_samples(tmp_path, mode):
    dataset = Drawn(folder_of(tmp_path / "files", drawing()))
    options = {"batch_size": 4, "num_workers": 2, "shuffle": True}
    flat_of = lambda loader: [[flat(list(batch.values())) for batch in loader if batch is not None]]  # noqa: E731
    seed(4)
    expected = flat_of(by_hand(dataset, mode, **options))
    seed(4)
    loader = ours(dataset, mode, **options)
    assert flat_of(loader) == expected
    assert sorted(listed(loader)) == sorted(BAD)
    assert loader.stats().deferred_images > 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_randomness_by_sample_is_the_same_for_any_number_of_workers(tmp_path, mode):
    dataset = folder_of(tmp_path / "files", drawing())
    seen = []
    for num_workers, engine in itertools.product([0, 1, 3], ["torch", "native"]):
        options = {"batch_size": 4, "num_workers": num_workers, "shuffle": True, "engine": engine}
        loader = ours(dataset, mode, randomness="sample", **options)
        seen.append([epochs_of(loader), [(e.index, e.file, e.error, e.times) for e in loader.errors()]])
    assert all(one == seen[0] for one in seen)
    assert seen[0][1][0][3] == 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("native", [True, False])
def test_batches_on_a_simulated_device_are_as_by_hand(tmp_path, monkeypatch, mode, native):
    dataset = folder_of(tmp_path / "files", drawing())
    options = {"batch_size": 2, "shuffle": True, "num_workers": 2}
    expected = epochs_of(by_hand(dataset, mode, **options))
    own = simulated.install_native(monkeypatch) if native else {"device": "cuda"}
    if not native:
        simulated.install(monkeypatch)
    own |= {"engine": "native" if native else "auto"}
    chosen = dataset if native else Subset(Faultless(dataset), range(COUNT))
    loader = FastLoader(chosen, on_error=mode, max_errors=ALL, memory_format=None, **options, **own)
    assert epochs_of(loader) == expected
    assert sorted(listed(loader)) == sorted(BAD)
    assert loader.stats().copied == loader.stats().batches


class Faultless(Dataset):
    """Is read by workers, as it is."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


STOPS = [(0, 1), (0, 4), (1, 0), (1, 5)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_goes_on_in_the_middle(mode, num_workers):
    def make(**options):
        return ours(Faulty(), mode, batch_size=2, shuffle=True, num_workers=num_workers, **options)

    check(make, STOPS)
    if num_workers:
        check(lambda: make(persistent_workers=True), [(0, 4), (1, 2)])


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_native_loader_goes_on_in_the_middle(tmp_path, mode, num_workers):
    dataset = folder_of(tmp_path / "files", drawing())
    check(
        lambda: ours(dataset, mode, batch_size=2, shuffle=True, num_workers=num_workers, engine="native"),
        STOPS,
    )


@pytest.mark.parametrize("mode", MODES)
def test_errors_go_on_with_the_state(mode):
    def make(num_workers):
        return ours(Faulty(), mode, batch_size=2, num_workers=num_workers)

    def one(num_workers):
        whole = make(num_workers)
        list(whole)
        stopped = make(num_workers)
        batches = iter(stopped)
        for _ in range(4):
            next(batches)
        state = saved(stopped.state_dict())
        assert json.loads(json.dumps(state)) == state
        stopped.close()
        fresh = resumed(lambda: make(num_workers), state)
        assert fresh.errors() == stopped.errors() != []
        assert fresh.stats().errors == stopped.stats().errors
        list(fresh)
        assert fresh.errors() == whole.errors()
        assert fresh.state_dict()["errors"] == whole.state_dict()["errors"]

    check_each(one, [0, 2])


def test_errors_of_a_loaded_state_are_those_of_copies_and_of_no_iterator_in_use():
    loader = ours(Faulty(), "skip", batch_size=2)
    batches = iter(loader)
    next(batches)
    state = saved(loader.state_dict())
    loader.load_state_dict(state)
    list(batches)
    list(loader)
    whole = ours(Faulty(), "skip", batch_size=2)
    list(whole)
    assert loader.errors() == whole.errors()
    fresh = ours(Faulty(), "skip", batch_size=2)
    fresh.load_state_dict(state)
    copied = copy.copy(fresh)
    list(copied)
    assert copied.errors() == whole.errors()
    assert listed(fresh) == [0]


def test_states_of_before_are_loaded_and_damaged_ones_are_not():
    before = FastLoader(Faulty(()), batch_size=2)
    next(iter(before))
    state = saved(before.state_dict())
    assert "errors" not in state, "nothing changes by default"
    loader = ours(Faulty(), "skip", batch_size=2)
    list(loader)
    loader.load_state_dict(state)
    assert loader.errors() == []
    assert len([*loader]) > 0
    good = saved(loader.state_dict())
    for damaged in ({}, {"tried": 1, "failed": 0, "samples": "?"}, {**good["errors"], "failed": "3"}):
        state = {**good, "errors": damaged}
        with pytest.raises(ValueError, match="damaged"):
            loader.load_state_dict({**state, "checksum": checksum_of(state)})
    with pytest.raises(ValueError, match="checksum"):
        loader.load_state_dict({**good, "errors": {**good["errors"], "failed": good["errors"]["failed"] + 1}})
    FastLoader(Faulty(()), batch_size=2).load_state_dict(good)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_without_samples_is_left_out(tmp_path, num_workers):
    loader = ours(Faulty({0, 1, 4, 5, 6, 7, 8, 9}, 10), "skip", batch_size=2, num_workers=num_workers)
    assert [batch[:, 0].tolist() for batch in loader] == [[2, 3]]
    assert (len(loader), loader.stats().batches, loader.stats().errors) == (5, 1, 8)
    loader = ours(Faulty(range(10), 10), "skip", batch_size=2, num_workers=num_workers)
    assert [*loader] == [*loader] == []
    with pytest.raises(OSError, match="sample 0 is damaged") as caught:
        list(ours(Faulty(range(10), 10), "replace", batch_size=2, num_workers=num_workers))
    assert NOTHING_WORKS in said(caught.value)


def test_a_native_batch_without_samples_is_left_out(tmp_path):
    dataset = folder_of(tmp_path / "files", drawing())
    six = Subset(dataset, [12, 11, 13, 14, 15, 16])

    def one(num_workers, transform):
        dataset.transform = transform
        loader = ours(six, "skip", batch_size=2, num_workers=num_workers, engine="native")
        assert [*loader] == [*loader] == []
        assert (len(loader), loader.stats().errors) == (3, 12)
        loader = ours(six, "replace", batch_size=2, num_workers=num_workers, engine="native")
        with pytest.raises(OSError, match=r"cut|truncated") as caught:
            list(loader)
        assert NOTHING_WORKS in said(caught.value)

    check_each(one, [0, 1, 2], [drawing()])


@pytest.mark.slow
def test_max_errors_is_a_count_of_samples_or_a_share():
    def ended(max_errors, bad, count, num_workers, epochs=1):
        loader = FastLoader(Faulty(bad, count), 10, num_workers=num_workers, on_error="skip", max_errors=max_errors)
        batches = itertools.chain.from_iterable(itertools.repeat(loader, epochs))
        number, found = 0, None
        while found is None:
            try:
                if next(batches, None) is None:
                    return None
                number += 1
            except TooManyBadSamplesError as error:
                found = error
        assert found.errors == loader.errors()
        assert str(found.errors[0]) in str(found)
        return number

    def one(num_workers):
        assert ended(1, {3, 25}, 200, num_workers) == 2
        assert ended(2, {3, 25}, 200, num_workers) is None
        assert ended(1, {3}, 30, num_workers, epochs=3) is None, "one sample counts once"
        assert ended(0, {3}, 30, num_workers) == 0
        assert ended(0.01, {3, 25}, 200, num_workers) == 9, "judged from 100 samples on"
        assert ended(0.01, {3}, 200, num_workers) is None
        assert ended(0.01, {3, 103, 153}, 200, num_workers) == 10
        assert ended(0.01, {*range(30)}, 90, num_workers) is None
        assert ended(1.0, {*range(200)}, 200, num_workers) is None

    check_each(one, [0, 2])


def test_native_errors_beyond_max_errors_end_the_run(tmp_path):
    dataset = folder_of(tmp_path / "files", drawing())

    def one(num_workers):
        loader = FastLoader(
            dataset, 4, num_workers=num_workers, on_error="skip", max_errors=2, device="cpu", engine="native"
        )
        with pytest.raises(TooManyBadSamplesError, match=r"max_errors=2(.*\n)+.*00\.jpg"):
            list(loader)
        assert listed(loader) == [0, 5, 11]

    check_each(one, [0, 2])


@pytest.mark.slow
def test_errors_are_logged_once_with_index_and_file(tmp_path, caplog):
    dataset = folder_of(tmp_path / "files", resizing())

    def one(num_workers, engine, mode):
        caplog.clear()
        loader = ours(dataset, mode, batch_size=4, num_workers=num_workers, engine=engine)
        with caplog.at_level(logging.WARNING, "fastload"):
            list(loader), list(loader)
        lines = [record.getMessage() for record in caplog.records if "raised" in record.getMessage()]
        errors = loader.errors()
        assert len(lines) == len(errors) == len({line.split()[1] for line in lines})
        for line, error in zip(lines, errors, strict=True):
            assert error.file == dataset.samples[error.index][0]
            assert error.error.startswith(("OSError: ", "UnidentifiedImageError: "))
            assert line.startswith(f"sample {error.index} ({error.file}) raised {error.error}; ")
            assert line.endswith("left out") == (mode == "skip")
            assert error.times == 2
        if mode == "replace":
            assert lines[0].endswith("replaced by sample 1")
            assert lines[-1].endswith("replaced by sample 1"), "behind the epoch's last comes its first that works"

    check_each(one, [0, 2], ["torch", "native"], MODES)


class Stream(IterableDataset):
    """Its iterator goes on after an error."""

    def __init__(self, bad: Any, count: int = 12) -> None:
        self.bad, self.count = bad, count

    def __iter__(self) -> Any:
        self.at = -1
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at >= self.count:
            raise StopIteration
        if self.at in self.bad:
            raise OSError(f"record {self.at} is damaged")
        return self.at


class Generated(Stream):
    def __iter__(self) -> Any:
        for number in range(self.count):
            if number in self.bad:
                raise OSError(f"record {number} is damaged")
            yield number


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_iterable_that_goes_on_gives_the_rest(num_workers):
    def batches(bad, **options):
        loader = ours(Stream(bad), "skip", num_workers=num_workers, **options)
        seen = [batch if isinstance(batch, int) else batch.tolist() for batch in loader]
        assert loader.stats().errors == len(bad)
        assert {error.index for error in loader.errors()} <= {None}
        return seen

    assert batches({1, 4, 5, 6, 7}, batch_size=4) == [[0, 2, 3], [8, 9, 10, 11]]
    assert batches({1}, batch_size=5, drop_last=True) == [[0, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert batches({10}, batch_size=5, drop_last=True) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert batches({0, 3}, batch_size=None) == [1, 2, *range(4, 12)]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterable_goes_on_in_the_middle(num_workers):
    def make():
        return ours(Stream({1, 4, 5, 8}), "skip", batch_size=2, num_workers=num_workers)

    whole = [batch.tolist() for batch in make()]
    for stop in range(1, len(whole)):
        loader = make()
        batches = iter(loader)
        for _ in range(stop):
            next(batches)
        state = saved(loader.state_dict())
        loader.close()
        assert [batch.tolist() for batch in resumed(make, state)] == whole[stop:]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_iterable_that_ends_with_an_error_raises_it(num_workers):
    for dataset in (Generated({5}), Stream({11})):
        loader = ours(dataset, "skip", batch_size=4, num_workers=num_workers)
        with pytest.raises(OSError, match="is damaged") as caught:
            list(loader)
        assert "goes on after an error" in said(caught.value)


class Exhausted(Dataset):
    def __init__(self, error: Any) -> None:
        self.error = error

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 2:
            raise self.error
        return index


def refusing(samples: list[Any]) -> Any:
    raise ValueError("these samples do not fit")


class Raising(Sampler):
    def __iter__(self) -> Any:
        yield 0
        raise KeyError("no more indices")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_is_no_samples_fault_is_raised(mode, num_workers):
    def one(error):
        with pytest.raises(type(error)):
            list(ours(Exhausted(error), mode, batch_size=2, num_workers=num_workers))

    check_each(one, [MemoryError(), OSError(24, "Too many open files"), torch.OutOfMemoryError()])
    with pytest.raises(ValueError, match="do not fit"):
        list(ours(Faulty(), mode, batch_size=2, num_workers=num_workers, collate_fn=refusing))
    with pytest.raises(KeyError, match="no more indices"):
        list(ours(Faulty(), mode, batch_size=1, sampler=Raising(), num_workers=num_workers))
    if mode == "skip":
        ragged = [torch.zeros(1), torch.zeros(2)]
        with pytest.raises(RuntimeError, match="equal size"):
            list(ours(ragged, mode, batch_size=2, num_workers=num_workers))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_without_batches_are_left_out(num_workers):
    seen = [sample[0].item() for sample in ours(Faulty(), "skip", batch_size=None, num_workers=num_workers)]
    assert seen == [index for index in range(COUNT) if index not in BAD]


def test_arguments_are_checked():
    def refused(error, text, **options):
        with pytest.raises(error, match=text):
            FastLoader(options.pop("dataset", range(4)), **options)

    refused(ValueError, "on_error must be 'raise', 'skip' or 'replace'", on_error="ignore")
    refused(TypeError, "max_errors must be a count", max_errors="1%")
    refused(TypeError, "max_errors must be a count", max_errors=True)
    refused(ValueError, "max_errors must be a share", max_errors=1.5)
    refused(ValueError, "max_errors must be >= 0", max_errors=-1)
    refused(ValueError, "needs batches, got batch_size=None", on_error="replace", batch_size=None)
    refused(ValueError, "needs a dataset with indices", on_error="replace", dataset=Stream(()))
    wrapped = FastLoader.wrap(DataLoader(range(4), batch_size=2), on_error="skip", max_errors=3)
    assert (wrapped.on_error, wrapped.max_errors) == ("skip", 3)


def test_ranks_are_warned_of_unequal_batches():
    sampler = DistributedSampler(range(8), 2, 0)

    def warned(**options):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            loader = FastLoader(range(8), sampler=sampler, device="cpu", **options)
            list(loader), list(loader)
        return [str(one.message) for one in seen if "on_error" in str(one.message)]

    (text,) = warned(on_error="skip")
    assert "2 ranks" in text
    assert "on_error='replace'" in text
    assert warned(on_error="replace") == warned() == []


def test_the_plan_and_the_statistics_say_what_becomes_of_bad_samples():
    loader = ours(Faulty(), "skip", batch_size=4)
    list(loader)
    assert f"on_error='skip': samples that raise are left out of their batches, at most {ALL:,}; 10 so far" in str(
        " ".join(loader.plan.notes)
    )
    assert "10 errors" in repr(loader.stats())
    before = loader.stats()
    list(loader)
    assert loader.stats().since(before).errors == 10


@pytest.mark.parametrize("num_workers", [0, 2])
def test_by_default_torchs_iterator_and_errors_are_torchs(num_workers):
    loader = FastLoader(Faulty(), batch_size=4, num_workers=num_workers, device="cpu")
    batches = iter(loader)
    assert type(batches) is type(iter(DataLoader(Faulty(), batch_size=4, num_workers=num_workers)))
    with pytest.raises(OSError, match="sample 0 is damaged"):
        next(batches)
    assert loader.errors() == []
    rows = ours(TensorDataset(torch.arange(6)), "skip", batch_size=4, num_workers=num_workers)
    assert [batch.tolist() for (batch,) in rows] == [[0, 1, 2, 3], [4, 5]]


def test_a_file_is_named_without_a_dataset_that_knows_it(tmp_path):
    class Opened(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            with open(tmp_path / f"{index}.bin", "rb") as file:
                return io.BytesIO(file.read()).getbuffer().nbytes

    (tmp_path / "0.bin").write_bytes(b"12")
    loader = ours(Opened(), "skip", batch_size=2)
    assert [batch.tolist() for batch in loader] == [[2]]
    assert loader.errors()[0].file == f"{tmp_path}/1.bin"


class Views:
    """Makes two images of one, as contrastive methods do."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> list[Any]:
        return [self.transform(image), self.transform(image)]


class Many(Dataset):
    """Is asked for a batch at once, and says what it cannot give."""

    def __init__(self, folder: ImageFolder, together: bool) -> None:
        self.folder, self.transform, self.together = folder, folder.transform, together

    def __len__(self) -> int:
        return len(self.folder)

    def encoded(self, index: int) -> Any:
        if index in (2, 11, 23):
            raise OSError(f"object {index} is gone")
        path, target = self.folder.samples[index]
        with open(path, "rb") as file:
            return file.read(), target

    def encoded_many(self, indices: list[int]) -> Any:
        entries: list[Any] = []
        for index in indices:
            try:
                entries.append(self.encoded(index))
            except OSError as error:
                if self.together:
                    raise
                entries.append(error)
        return entries

    def __getitem__(self, index: int) -> Any:
        data, target = self.encoded(index)
        with Image.open(io.BytesIO(data)) as image:
            return self.transform(image.convert("RGB")), target


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_views_and_batches_of_requests_are_as_by_hand(tmp_path, mode, num_workers):
    dataset = folder_of(tmp_path / "files", drawing())
    options = {"batch_size": 4, "num_workers": num_workers, "shuffle": True}
    for together in (False, True):
        assert_as_by_hand(Many(dataset, together), mode, lambda: options, {*BAD, 2, 11, 23}, engine="native")
    dataset.transform = Views(drawing())
    assert_as_by_hand(dataset, mode, lambda: options, engine="native")


class Pairs(Dataset):
    """Has two files for each sample, of which the second may be damaged."""

    images_per_sample = 2

    def __init__(self, folder: ImageFolder) -> None:
        self.folder, self.transform = folder, folder.transform

    def __len__(self) -> int:
        return len(self.folder) - 1

    def encoded(self, index: int) -> Any:
        return tuple(EncodedImage(self.folder.samples[at][0]) for at in (index, index + 1))

    def __getitem__(self, index: int) -> Any:
        return tuple(self.transform(self.folder.loader(part.source)) for part in self.encoded(index))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", [2, pytest.param(0, marks=pytest.mark.slow)])
def test_samples_of_several_files_are_as_by_hand(tmp_path, mode, num_workers):
    dataset = Pairs(folder_of(tmp_path / "files", drawing()))
    bad = {at for at in range(len(dataset)) if {at, at + 1} & BAD}

    def one(batch_size):
        options = {"batch_size": batch_size, "num_workers": num_workers}
        assert_as_by_hand(dataset, mode, lambda: options, bad, engine="native")

    check_each(one, [2, 5])


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", [2, pytest.param(0, marks=pytest.mark.slow)])
def test_errors_behind_draws_are_as_by_hand_at_either_end_of_a_batch(tmp_path, mode, num_workers):
    (tmp_path / "class").mkdir()
    small = {0, 3, 4, 5, 9, 10, 11, 14}
    for number in range(16):
        size = (20, 20) if number in small else (60, 70)
        (tmp_path / "class" / f"{number:02}.jpg").write_bytes(jpeg(number, *size))
    dataset = ImageFolder(tmp_path, drawing())

    def one(batch_size):
        options = {"batch_size": batch_size, "num_workers": num_workers}
        assert_as_by_hand(dataset, mode, lambda: options, small, engine="native")

    check_each(one, [1, 2, 4, 6])


@pytest.mark.parametrize("mode", MODES)
def test_the_rest_of_an_epoch_is_dealt_to_other_ranks(mode):
    def make(rank, replicas):
        options = {"batch_size": 2, "num_workers": 1, "generator": torch.Generator().manual_seed(3)}
        sampler = DistributedSampler(range(24), replicas, rank, shuffle=False)
        return ours(Faulty({7, 20, 21}, 24), mode, sampler=sampler, randomness="sample", **options)

    states = []
    for rank in range(2):
        loader = make(rank, 2)
        batches = iter(loader)
        next(batches), next(batches)
        states.append(saved(loader.state_dict()))
        loader.close()
    loader = make(0, 1)
    loader.load_state_dict(states)
    rest = [index for batch in loader for index in batch[:, 0].int().tolist()]
    bad = {20: [], 21: []} if mode == "skip" else {20: [22], 21: [22]}
    assert rest == [index for each in range(8, 24) for index in bad.get(each, [each])]
    assert listed(loader) == [20, 21], "rank 1 had sample 7"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", [2, pytest.param(0, marks=pytest.mark.slow)])
def test_images_of_hugging_face_are_as_by_hand(tmp_path, mode, num_workers):
    datasets = pytest.importorskip("datasets")
    files = [path for path, _ in folder_of(tmp_path, None).samples]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = [{"image": {"bytes": pathlib.Path(file).read_bytes(), "path": None}, "label": 1} for file in files]
    apply = drawing()

    def transform(examples):
        examples["pixels"] = [apply(image.convert("RGB")) for image in examples["image"]]
        del examples["image"]
        return examples

    dataset = datasets.Dataset.from_list(rows, features=features).with_transform(transform)
    options = {"batch_size": 4, "num_workers": num_workers, "shuffle": True}

    def images(loader):
        seed(2)
        return [flat(batch["pixels"]) for batch in loader if batch is not None]

    loader = ours(dataset, mode, engine="native", **options)
    assert images(loader) == images(by_hand(dataset, mode, **options))
    assert sorted(listed(loader)) == sorted(BAD)


def _rest_of(saved_with: str, loaded_with: str, sampler: Any, num_workers: int) -> Any:
    """What is left of an epoch behind its first batch, and what would have been."""

    def make(on_error: str) -> FastLoader[Any]:
        return FastLoader(range(100), 4, sampler=sampler(), num_workers=num_workers, on_error=on_error)

    whole = [batch.tolist() for batch in make("raise")]
    first = make(saved_with)
    iterator = iter(first)
    next(iterator)
    state = first.state_dict()
    first.close()
    other = make(loaded_with)
    other.load_state_dict(state)
    return lambda: [batch.tolist() for batch in other], whole[1:]


@pytest.mark.each_value
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("saved", "loaded"), [("raise", "replace"), ("replace", "skip"), ("skip", "raise")])
def test_a_state_goes_on_with_another_on_error_or_is_refused(saved, loaded, num_workers):
    """As when a bad file has ended a run."""

    def shuffled():
        torch.manual_seed(7)
        return RandomSampler(range(100))

    def drawn_as_it_goes():
        return RandomSampler(range(100), True, 400, torch.Generator().manual_seed(7))

    rest, expected = _rest_of(saved, loaded, shuffled, num_workers)
    assert rest() == expected
    rest, expected = _rest_of(saved, loaded, drawn_as_it_goes, num_workers)
    if "replace" in (saved, loaded):
        with pytest.raises(RuntimeError, match="needs the on_error that the loader had"):
            rest()
    else:
        assert rest() == expected


class Tagged(list):
    """A batch of indices that says more."""

    tag = 5


class AtOnce(Dataset):
    """Looks at the type of its indices."""

    def __len__(self):
        return 40

    def __getitems__(self, indices):
        if isinstance(indices, torch.Tensor):
            return [int(index) for index in indices.tolist()]
        return [100 * indices.tag + index for index in indices]


@pytest.mark.parametrize("mode", ["skip", "replace"])
@pytest.mark.parametrize("kind", [Tagged, torch.tensor])
def test_getitems_gets_the_indices_that_the_sampler_gave(mode, kind):
    batches = [kind(list(range(k, k + 4))) for k in range(0, 40, 4)]
    loader = FastLoader(AtOnce(), batch_sampler=batches, on_error=mode)
    expected = [batch.tolist() for batch in DataLoader(AtOnce(), batch_sampler=batches)]
    assert [batch.tolist() for batch in loader] == expected
    assert loader.errors() == []


class Interrupted(Dataset):
    """Gets a signal while a sample is made."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 2:
            signal.raise_signal(signal.SIGUSR1)
        return index


def test_what_a_signal_handler_raises_is_no_samples_fault():
    class PreemptedError(Exception):
        pass

    def preempted(*_):
        raise PreemptedError

    former = signal.signal(signal.SIGUSR1, preempted)
    try:
        with pytest.raises(PreemptedError):
            list(FastLoader(Interrupted(), 2, on_error="skip"))
    finally:
        signal.signal(signal.SIGUSR1, former)
