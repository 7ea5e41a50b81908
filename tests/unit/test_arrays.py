"""Datasets that hold uint8 arrays run natively, with torch's batches."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import re
import sys

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from hypothesis import given, settings
from hypothesis import strategies as st
from photos import assert_same, both, jpeg
from PIL import Image
from plans import refusal
from stored import COLORED, COUNT, stored
from torch.utils.data import ConcatDataset, DataLoader, Subset, default_collate, random_split
from torch.utils.data._utils import collate
from torchvision import datasets
from torchvision.transforms import v2

from fastload import FastLoader, _core
from fastload.loader_state import state_of
from fastload.pipeline.datasets.folders import locate
from fastload.pipeline.recipe import Refusal, read_recipe


def random_crop():
    return v1.Compose([v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(0.5, 0.25)])


PROGRAMS = {
    "bare": v1.ToTensor,
    "classic": random_crop,
    "larger": lambda: v1.Compose([v1.Resize(40), v1.RandomVerticalFlip(), v1.ToTensor()]),
    "one that resizes and erases": lambda: v2.Compose(
        [v2.RandomResizedCrop(24), v2.ColorJitter(0.4, 0.4, 0.4), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    ),
    "augmented": lambda: v1.Compose([v1.RandAugment(), v1.RandomCrop(28), v1.ToTensor(), v1.RandomErasing()]),
}


def check(dataset_of, own=None, **arguments):
    arguments = {"batch_size": 6, "num_workers": 2, "shuffle": True, **arguments}
    own = {"device": "cpu", "engine": "native", **(own or {})}
    assert_same(*both(dataset_of, FastLoader, own, **arguments))


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("name", COLORED)
def test_batches_are_torchs(name, workers):
    check(lambda: stored(name, random_crop()), num_workers=workers)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program):
    check(lambda: stored("CIFAR10", PROGRAMS[program]()))


@pytest.mark.parametrize(
    "arguments",
    [
        {"persistent_workers": True},
        {"run": {"breaks_at": 2}},
        {"persistent_workers": True, "run": {"breaks_at": 2}},
        {"drop_last": True},
        {"worker_init_fn": lambda worker: torch.manual_seed(worker)},
        {"collate_fn": lambda samples: (default_collate(samples), len(samples))},
    ],
    ids=["persistent", "break", "persistent break", "drop_last", "worker_init_fn", "collate_fn"],
)
def test_arguments(arguments):
    check(lambda: stored("CIFAR10", random_crop()), **arguments)


def test_parts_and_joined_datasets():
    def parts():
        transform = random_crop()
        first, second = stored("CIFAR10", transform), stored("SVHN", transform)
        kept, _ = random_split(first, [20, COUNT - 20], torch.Generator().manual_seed(3))
        return ConcatDataset([Subset(kept, [3, 1, 4, 15]), second])

    check(parts)


def test_two_views_of_each_image():
    class Twice:
        def __init__(self):
            self.transform = random_crop()

        def __call__(self, image):
            return [self.transform(image), self.transform(image)]

    check(lambda: stored("CIFAR10", Twice()))
    check(lambda: stored("SVHN", Twice()), num_workers=0)


def test_images_of_several_sizes_are_refused():
    transform = random_crop()
    transform.transforms.pop(0)  # the crop
    wide = stored("CIFAR10", transform, data=np.zeros((COUNT, 32, 40, 3), np.uint8))
    assert "different transforms" in refusal(ConcatDataset([stored("CIFAR10", transform), wide]))
    wide.transform = v1.Compose([v1.Resize(40), v1.ToTensor()])
    assert "nothing gives the images one size" in refusal(wide)
    wide.transform = v1.ToTensor()
    check(lambda: wide)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(20, 44), st.sampled_from(["constant", "edge", "reflect", "symmetric"]), st.integers(0, 9), st.booleans()
)
def test_any_crop_of_any_array(size, mode, padding, mirrored):
    flips = [v1.RandomHorizontalFlip()] if mirrored else []
    crop = v1.RandomCrop(size, padding=padding, padding_mode=mode)
    check(lambda: stored("CIFAR10", v1.Compose([*flips, crop, v1.PILToTensor()])), num_workers=0)


@pytest.mark.slow
def test_targets():
    check(lambda: stored("CIFAR10", random_crop(), target_transform=lambda target: target + 100))
    check(lambda: stored("CIFAR10", random_crop(), targets=np.arange(COUNT)))
    check(lambda: stored("CIFAR10", random_crop(), targets=torch.arange(COUNT)))
    check(lambda: stored("STL10", random_crop(), labels=None), own={"engine": "auto"})  # default_collate raises


def test_arrays_in_any_memory(tmp_path):
    np.save(tmp_path / "images.npy", stored("CIFAR10").data)
    check(lambda: stored("CIFAR10", random_crop(), data=np.load(tmp_path / "images.npy", mmap_mode="r")))
    check(lambda: stored("CIFAR10", random_crop(), data=stored("CIFAR10").data[::-1, :, ::-1], targets=[1] * COUNT))
    check(lambda: stored("CIFAR10", random_crop(), data=np.asfortranarray(stored("CIFAR10").data)))


class Doubled(datasets.CIFAR10):
    """What a sample is not affected by."""

    def __repr__(self):
        return "doubled"


class Indexed(datasets.CIFAR10):
    """Adds the index, and reads the array itself."""

    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image, target, index


def test_subclasses():
    check(lambda: stored("CIFAR10", random_crop(), kind=Doubled))
    assert "__getitem__ of Indexed" in refusal(stored("CIFAR10", random_crop(), kind=Indexed))


def test_data_may_change_between_epochs():
    def epochs(kind, **own):
        torch.manual_seed(1)
        dataset = stored("CIFAR10", random_crop())
        loader = kind(dataset, batch_size=5, num_workers=2, **own)
        seen = list(loader)
        dataset.data[3:9] += 1
        seen += list(loader)
        dataset.data, dataset.targets = np.tile(dataset.data, (1, 2, 2, 1)), dataset.targets[::-1]
        return seen + list(loader)

    assert_same(epochs(FastLoader, device="cpu", engine="native"), epochs(DataLoader))


@pytest.mark.parametrize("kind_of_targets", [list, np.array, torch.tensor])
def test_an_epoch_keeps_the_data_of_its_beginning(kind_of_targets):
    def epoch(kind, **own):
        dataset = stored("CIFAR10", PROGRAMS["bare"](), targets=kind_of_targets(range(COUNT)))
        batches = iter(kind(dataset, batch_size=2, num_workers=1, **own))
        seen = [next(batches)]
        dataset.data[:] = 0
        for place in range(COUNT):
            dataset.targets[place] = -1
        return seen + list(batches)

    assert_same(epoch(FastLoader, device="cpu", engine="native"), epoch(DataLoader, prefetch_factor=1))


@pytest.mark.parametrize(
    "data",
    [
        np.zeros((COUNT, 32, 32, 3), np.float32),
        np.zeros((COUNT, 32, 32), np.uint8),
        np.zeros((COUNT, 32, 32, 4), np.uint8),
        [np.zeros((32, 32, 3), np.uint8)] * COUNT,
        torch.zeros((COUNT, 32, 32, 3), dtype=torch.uint8),
    ],
    ids=["float", "gray", "RGBA", "list", "tensor"],
)
def test_other_data_is_refused(data):
    assert "is no uint8 array of shape (N, H, W, 3)" in refusal(stored("CIFAR10", random_crop(), data=data))


def test_data_replaced_by_a_list_is_not_read_at_once():
    recipe = read_recipe(stored("CIFAR10", random_crop()))
    assert not isinstance(recipe, Refusal)
    recipe.dataset.data = list(recipe.dataset.data)
    assert recipe.pixels_of([1, 2]) is None


def test_memory_that_workers_share_is_refused(tmp_path):
    data = stored("CIFAR10").data
    np.save(tmp_path / "images.npy", data)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r+")
    tensor = torch.from_numpy(data.copy()).share_memory_()
    for shared in (mapped, mapped[::-1], np.asarray(mapped), tensor.numpy(), np.frombuffer(bytearray(data), np.uint8)):
        dataset = stored("CIFAR10", random_crop(), data=shared.reshape(data.shape))
        assert "is in memory that others may write to" in refusal(dataset)
    for own in (torch.from_numpy(data).numpy(), np.frombuffer(bytes(data), np.uint8).reshape(data.shape)):
        check(lambda own=own: stored("CIFAR10", random_crop(), data=own))


def test_large_data_must_be_constant(monkeypatch):
    monkeypatch.setattr("fastload.pipeline.datasets.arrays._COPIED_MAX", 1000)
    dataset = stored("CIFAR10", random_crop())
    assert "flags.writeable = False" in refusal(dataset)
    whole = dataset.data
    dataset.data = whole[:]
    dataset.data.flags.writeable = False
    assert "flags.writeable = False" in refusal(dataset)  # `whole` can be written to
    whole.flags.writeable = False
    assert is_kept(dataset)


def is_kept(dataset) -> bool:
    """Whether an epoch reads the dataset's own array, not a copy."""
    recipe = read_recipe(dataset)
    assert not isinstance(recipe, Refusal)
    return recipe.snapshot().dataset.data is dataset.data


def test_constant_arrays_are_not_copied(tmp_path):
    data = stored("CIFAR10").data
    np.save(tmp_path / "images.npy", data)
    of_bytes = np.frombuffer(data.tobytes(), np.uint8).reshape(data.shape)
    mapped, private = (np.load(tmp_path / "images.npy", mmap_mode=mode) for mode in ("r", "c"))
    for constant in (of_bytes, mapped, mapped[::-1]):
        assert is_kept(stored("CIFAR10", random_crop(), data=constant))
    for written in (data, private):
        assert not is_kept(stored("CIFAR10", random_crop(), data=written))


def test_parts_of_other_sizes_may_share_a_transform_that_erases():
    def parts():
        transform = v1.Compose([v1.CenterCrop(20), v1.ToTensor(), v1.RandomErasing(p=0.7)])
        larger = np.random.default_rng(3).integers(0, 256, (COUNT, 40, 36, 3), dtype=np.uint8)
        return ConcatDataset([stored("CIFAR10", transform), stored("CIFAR10", transform, data=larger)])

    check(parts)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", COLORED)
def test_no_sample_is_made_in_python(name, workers):
    own = {"batch_size": 6, "num_workers": workers, "device": "cpu", "engine": "native"}
    with FastLoader(stored(name, random_crop()), **own) as loader:
        assert len(list(loader)) == -(-COUNT // 6)
        stats = loader.stats()
        assert (stats.images, stats.python_images) == (COUNT, 0)


def test_a_crop_larger_than_the_images_raises_torchs_error():
    check(lambda: stored("CIFAR10", v1.Compose([v1.RandomCrop(40), v1.ToTensor()])), own={"engine": "auto"})


def test_an_array_of_the_users_own_may_be_encoded_bytes():
    class Own(torch.utils.data.Dataset):
        transform = v1.Compose([v1.CenterCrop(16), v1.ToTensor()])

        def encoded(self, index):
            return np.frombuffer(jpeg(index), np.uint8).reshape(1, -1, 1), index

    source, _ = locate(Own(), 4)
    assert source == jpeg(4)


def test_encoded_bytes_may_have_rows():
    """The core must not take them for gray pixels."""

    class Rows(torch.utils.data.Dataset):
        transform = v1.Compose([v1.CenterCrop(16), v1.ToTensor()])

        def __len__(self):
            return 4

        def encoded(self, index):
            data = jpeg(index)
            return memoryview(data + bytes(-len(data) % 64)).cast("B", (64, -(-len(data) // 64))), index

        def __getitem__(self, index):
            source, target = self.encoded(index)
            return self.transform(Image.open(io.BytesIO(source)).convert("RGB")), target

    check(Rows)


class OwnPixels(torch.utils.data.Dataset):
    """Images of the user's own, by the protocol."""

    def __init__(self):
        self.transform = random_crop()
        self.images = [np.random.default_rng(i).integers(0, 256, (40 + i, 37, 3), np.uint8) for i in range(9)]

    def __len__(self):
        return len(self.images)

    def encoded(self, index):
        return self.images[index][:, ::-1], index % 3

    def __getitem__(self, index):
        image, target = self.encoded(index)
        return self.transform(Image.fromarray(image)), target


class ManyPixels(OwnPixels):
    """The same, asked for a batch at once."""

    def encoded_many(self, indices):
        return [self.encoded(index) for index in indices]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [OwnPixels, ManyPixels])
def test_an_image_of_the_users_own_may_be_an_array(kind, workers):
    check(kind, num_workers=workers)
    with FastLoader(kind(), num_workers=workers, batch_size=3, device="cpu", engine="native") as loader:
        list(loader)
        assert loader.stats().python_images == 0


def test_the_plan_names_arrays():
    loader = FastLoader(stored("CIFAR10", random_crop()), num_workers=2, batch_size=4, device="cpu")
    list(itertools.islice(loader, 1))
    assert "arrays to 32x32 pixels" in str(loader.plan)
    assert "JPEG" not in str(loader.plan)


def test_data_replaced_within_an_epoch_raises_as_torchs():
    def epoch(kind, **own):
        torch.manual_seed(3)
        dataset = stored("CIFAR10", random_crop())
        batches = iter(kind(dataset, batch_size=4, **own))
        seen = [next(batches)]
        dataset.data = dataset.data.astype(np.int8)
        with pytest.raises(TypeError, match="Cannot handle this data type"):
            next(batches)
        return seen

    assert_same(epoch(FastLoader, device="cpu", engine="native"), epoch(DataLoader))


@pytest.mark.parametrize("order", [*itertools.permutations("NHWC")], ids="".join)
def test_images_lie_in_memory_in_any_order(order):
    """Torchvision's CIFAR10 has channels before rows; its SVHN also columns before rows."""
    dataset = stored("CIFAR10", random_crop())
    axes = ["NHWC".index(axis) for axis in order]
    dataset.data = np.ascontiguousarray(dataset.data.transpose(axes)).transpose(np.argsort(axes))
    check(lambda: dataset, name="images in any order")


SINGLE = {"batch_size": 1, "shuffle": False}  # as torch asks beside a batch sampler


@pytest.mark.filterwarnings("error:not run natively")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_batch_sampler_may_give_any_numbers(kind, workers):
    batches = [kind([3, -1, 7]), kind([2]), kind([torch.tensor(4), 1]), kind([np.int64(5), 6])]
    transform = v1.Compose([v1.RandomCrop(28), v1.ToTensor()])
    for name in ("CIFAR10", "MNIST"):
        check(lambda name=name: stored(name, transform), batch_sampler=batches, num_workers=workers, **SINGLE)


def test_a_truth_value_is_no_index():
    raising = {"batch_sampler": [[2, True]], **SINGLE}
    check(lambda: stored("CIFAR10", random_crop()), own={"engine": "auto"}, **raising)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["CIFAR10", "SVHN"])
def test_an_index_out_of_range_raises_torchs_error_after_the_batches_before(name, workers):
    def epoch(kind, **own):
        seen, loader = (
            [],
            kind(stored(name, random_crop()), batch_sampler=[[1, 2], [3, COUNT]], num_workers=workers, **own),
        )
        message = ""
        try:
            seen.extend(loader)
        except IndexError as error:
            message = str(error)
            error.__traceback__ = None  # the frames are a cycle with it; torch takes long to end workers in a cycle
        assert re.search(f"index {COUNT} is out of bounds|list index out of range", message)
        return seen

    torch.manual_seed(2)
    theirs = epoch(DataLoader)
    torch.manual_seed(2)
    assert_same(epoch(FastLoader, device="cpu", engine="native"), theirs)


def test_more_targets_than_images_give_torchs_error():
    loaders = {"batch_sampler": [[1], [COUNT + 1]], **SINGLE}
    check(lambda: stored("CIFAR10", random_crop(), targets=[1] * (COUNT + 5)), own={"engine": "auto"}, **loaders)


@pytest.mark.slow
def test_subsets_may_hold_any_integers():
    for indices in (np.arange(9), torch.arange(9), range(3, 9), [np.int32(3), -2]):
        check(lambda indices=indices: Subset(Subset(stored("CIFAR10", random_crop()), range(20)), indices))
    check(lambda: Subset(stored("CIFAR10", random_crop()), [3, -2]))


def test_the_copy_of_an_epoch_gives_its_memory_to_the_next():
    dataset = stored("CIFAR10", random_crop())
    recipe, spares = read_recipe(dataset), []
    assert not isinstance(recipe, Refusal)
    first = recipe.snapshot(spares)
    dataset.data[0] = 7
    second = recipe.snapshot(spares)  # while an iterator has the first
    assert second.dataset.data is not first.dataset.data
    assert not (first.dataset.data[0] == 7).all()
    place = second.dataset.data.ctypes.data
    del first, second
    dataset.data[1] = 9
    third = recipe.snapshot(spares)
    assert third.dataset.data.ctypes.data == place
    assert np.array_equal(third.dataset.data, dataset.data)


def test_a_constant_array_is_no_memory_for_a_copy():
    data = stored("CIFAR10").data
    data.flags.writeable = False
    recipe, spares = read_recipe(stored("CIFAR10", random_crop(), data=data)), []
    assert not isinstance(recipe, Refusal)
    assert recipe.snapshot(spares).dataset.data is data
    recipe.dataset.data = data.copy()
    del data
    assert np.array_equal(recipe.snapshot(spares).dataset.data, recipe.dataset.data)


def test_a_finished_epoch_releases_its_copy():
    with FastLoader(stored("CIFAR10", random_crop()), num_workers=1, device="cpu", engine="native") as loader:
        list(loader)
        place = state_of(loader).spares[0].ctypes.data
        list(loader)
        assert state_of(loader).spares[0].ctypes.data == place


def test_the_core_refuses_indices_beyond_the_array():
    images, out = np.zeros((3, 4, 5, 3), np.uint8), np.zeros((2, 4, 5, 3), np.uint8)
    pool = _core.Pool(1)
    for broken, indices, error in [(images, [0, 3], IndexError), (images[:, :0], [0, 1], ValueError)]:
        with pytest.raises(error):
            pool.submit(broken, out, plan=_core.DrawPlan(), indices=np.array(indices))
    pool.close()


@pytest.mark.parametrize("gap", [0, 5])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (5, 7), (33, 31), (3, 96)])
def test_channels_that_are_planes_are_joined_to_pixels(level, height, width, gap):
    planes = np.random.default_rng(0).integers(0, 256, (4, 3, height, width + gap), np.uint8)[..., :width]
    out, pool = np.zeros((2, height, width, 3), np.uint8), _core.Pool(1)
    job = pool.submit(planes.transpose(0, 2, 3, 1), out, plan=_core.DrawPlan(), indices=np.array([3, 1]))
    assert job.wait(30.0) == "done"
    pool.close()
    assert np.array_equal(out, planes[[3, 1]].transpose(0, 2, 3, 1))


@pytest.mark.parametrize("numbers", [[], [3, -1, 0], (2**63 - 1, -(2**63))])
def test_ints_are_written_to_an_array(numbers):
    out = np.empty(len(numbers), np.int64)
    assert _core.put_ints(numbers, out)
    assert out.tolist() == [*numbers]


@pytest.mark.parametrize("numbers", [[1, True], [1, np.int64(2)], [1.0], ["1"], [1, 2**63], [-(2**63) - 1], range(2)])
def test_anything_but_ints_is_not_written(numbers):
    assert not _core.put_ints(numbers, np.empty(len(numbers), np.int64))


@pytest.mark.parametrize("room", [1, 3])
def test_ints_need_an_array_of_their_number(room):
    with pytest.raises(ValueError, match="exactly"):
        _core.put_ints([1, 2], np.empty(room, np.int64))


def test_items_of_a_list():
    values = ["a", None, "c"]
    assert _core.items_of(values, np.array([2, 0, 0, -1, -3])) == ["c", "a", "a", "c", "a"]
    assert _core.items_of(values, np.array([], np.int64)) == []
    for index in (3, -4):
        with pytest.raises(IndexError):
            _core.items_of(values, np.array([0, index]))


def test_a_list_that_becomes_shorter_while_its_items_are_looked_up():
    """The new list may start a garbage collection, and that calls anybody's code."""
    indices, thresholds = np.arange(1000), gc.get_threshold()
    for threshold in range(1, 9):  # the first object or a later one of the call starts it
        values = [object() for _ in indices]
        shorter, refused = (lambda *_, values=values: values.clear()), contextlib.suppress(IndexError)
        gc.disable()
        gc.collect()
        gc.set_threshold(threshold)
        gc.callbacks.append(shorter)
        try:
            with refused:
                gc.enable()
                _core.items_of(values, indices)
        finally:
            gc.callbacks.remove(shorter)
            gc.set_threshold(*thresholds)
            gc.enable()


def test_items_of_a_list_hold_references():
    value = object()
    before = sys.getrefcount(value)
    items = _core.items_of([value], np.zeros(5, np.int64))
    assert sys.getrefcount(value) == before + 5
    del items
    assert sys.getrefcount(value) == before


def test_numbers_are_collated_as_torch_is_told_to(monkeypatch):
    def doubled(numbers, **_):
        return torch.tensor(numbers) * 2

    monkeypatch.setitem(collate.default_collate_fn_map, int, doubled)
    check(lambda: stored("CIFAR10", random_crop()))


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", COLORED)
def test_targets_of_other_kinds_are_asked_with_the_samplers_indices(name, workers):
    class Kinds:
        def __getitem__(self, index):
            return 10 * (type(index) is int) + index % 5

    def dataset_of():
        return stored(name, random_crop(), **{"targets" if name.startswith("CIFAR") else "labels": Kinds()})

    check(dataset_of, num_workers=workers)
    check(lambda: Subset(dataset_of(), np.arange(8)), num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_strings_are_collated_as_torch_does(workers):
    check(lambda: stored("CIFAR10", random_crop(), targets=[f"class {i}" for i in range(COUNT)]), num_workers=workers)


def test_a_target_that_no_tensor_holds_raises_torchs_error():
    targets = [2**70 if number == 13 else number for number in range(COUNT)]  # not one of those that are compared first
    loaders = {"batch_sampler": [[1], [13]], **SINGLE}
    check(lambda: stored("CIFAR10", random_crop(), targets=targets), **loaders)


@pytest.mark.parametrize("name", ["SVHN", "STL10"])
def test_labels_become_integers_as_in_torchvision(name):
    check(lambda: stored(name, random_crop(), labels=np.arange(COUNT) / 2))
