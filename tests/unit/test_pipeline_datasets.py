"""Subclasses, joined datasets and torchvision's other datasets: native where known to the letter, else refused."""

from __future__ import annotations

import io
import typing
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from cases import check_each
from photos import Encoded, assert_same, both, jpeg, photos_fixture, train_v1
from plans import refusal
from torch import nn
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets
from torchvision.datasets import ImageFolder, VisionDataset
from torchvision.transforms import v2

from fastload import FastLoader
from fastload.pipeline.datasets.arrays import OF_ARRAYS
from fastload.pipeline.datasets.folders import OF_FILES, ORIGINALS, paths_of
from fastload.pipeline.datasets.folders import locate as located
from fastload.pipeline.recipe import Recipe, read_recipe

NATIVE = {"device": "cpu", "engine": "native"}
TABLE = ("DTD", "FGVCAircraft", "Flowers102", "Food101", "Imagenette", "StanfordCars", "SUN397")
root = photos_fixture(13)


def check(dataset_of):
    arguments = {"batch_size": 3, "num_workers": 2, "shuffle": True}
    assert_same(*both(dataset_of, FastLoader, NATIVE, **arguments))


class Extended(ImageFolder):
    """What people add to a folder."""

    color = "red"

    def __init__(self, root, transform=None):
        super().__init__(root, transform)
        self.names = [Path(path).stem for path, _ in self.samples]

    def find_classes(self, directory):
        classes, _ = super().find_classes(directory)
        return classes, {name: 7 + i for i, name in enumerate(classes)}

    def __len__(self):
        return 11

    def histogram(self):
        return [self.targets.count(i) for i in range(9)]


def stored(name, root, transform):
    """One of torchvision's with the photos of a folder, or with some paths."""
    dataset = object.__new__(getattr(datasets, name))
    VisionDataset.__init__(dataset, "", transform=transform)
    dataset.loader = datasets.folder.default_loader
    found = root if isinstance(root, list) else ImageFolder(root).samples
    samples = [(path, 3 * target + 1) for path, target in found]
    if name in ("Imagenette", "StanfordCars"):
        dataset._samples = samples
    else:
        dataset._image_files = [Path(path) for path, _ in samples]
        dataset._labels = [target for _, target in samples]
    return dataset


def test_a_subclass_that_changes_no_sample(root):
    check(lambda: Extended(root, train_v1()))


@pytest.mark.parametrize("name", TABLE)
def test_other_datasets_of_torchvision(root, name):
    check(lambda: stored(name, root, train_v1()))


def archived(name, root, transform, **changes):
    """One of the datasets that look samples up in ways of their own."""
    dataset = object.__new__(getattr(datasets, name))
    VisionDataset.__init__(dataset, str(root), transform=transform)
    samples = ImageFolder(root).samples
    paths, targets = [Path(path) for path, _ in samples], [target for _, target in samples]
    if name == "OxfordIIITPet":
        own = {"_images": paths, "_labels": targets, "_bin_labels": [target % 2 for target in targets], "_segs": paths}
        own["_target_types"] = ["category"]
    elif name == "INaturalist":
        names = sorted({path.parent.name for path in paths})
        own = {"index": [(target, path.name) for path, target in zip(paths, targets, strict=True)]}
        own |= {"all_categories": names, "categories_map": [{"class": i, "genus": 7 * i} for i in range(len(names))]}
        own |= {"target_type": ["full"], "loader": datasets.folder.default_loader}
    elif name == "Places365":
        own = {"imgs": samples, "targets": targets, "loader": datasets.folder.default_loader}
    else:
        own = {"data": paths, "targets": targets, "_loader": datasets.folder.default_loader}
    vars(dataset).update({**own, **changes})
    return dataset


ARCHIVED = [
    ("OxfordIIITPet", {}),
    ("OxfordIIITPet", {"_target_types": ["binary-category", "category"]}),
    ("INaturalist", {}),
    ("INaturalist", {"target_type": ["genus"]}),
    ("INaturalist", {"target_type": ["genus", "full", "class"]}),
    ("Places365", {}),
    ("LFWPeople", {}),
]


@pytest.mark.parametrize(("name", "changes"), ARCHIVED)
def test_datasets_that_look_samples_up_in_their_own_ways(root, name, changes):
    check(lambda: archived(name, root, train_v1(), **changes))


@pytest.mark.parametrize("name", ["OxfordIIITPet", "Places365"])
def test_the_transform_counts_that_is_applied(root, name):
    dataset = archived(name, root, train_v1())
    dataset.transform = lambda image: 1 / 0  # not used
    assert isinstance(read_recipe(dataset), Recipe)
    dataset.transforms.target_transform = float
    assert read_recipe(dataset).in_python == ("target_transform float",)
    dataset.transforms = lambda image, target: (image, target)
    assert "applied to image and target together" in refusal(dataset)
    dataset.transforms = None
    assert "no transform" in refusal(dataset)


def test_images_that_are_not_converted_to_rgb_are_refused(root):
    assert "give it loader=" in refusal(archived("INaturalist", root, train_v1(), loader=None))
    assert "segmentation" in refusal(archived("OxfordIIITPet", root, train_v1(), _target_types=["segmentation"]))


def test_an_empty_list_of_targets(root):
    recipe = read_recipe(archived("OxfordIIITPet", root, train_v1(), _target_types=[]))
    assert recipe.locate(0)[1] is None


def test_country211_and_eurosat_are_folders(root):
    for kind in (datasets.Country211, datasets.EuroSAT):
        dataset = ImageFolder(root, train_v1())
        dataset.__class__ = kind
        assert isinstance(read_recipe(dataset), Recipe)


def joined(root):
    parts = Subset(ImageFolder(root, train_v1()), [5, 2, 12, 2]), stored("Food101", root, train_v1())
    return ConcatDataset([Subset(ConcatDataset(parts), [0, 9, 3, 4, -1]), Extended(root, train_v1())])


@pytest.mark.slow
def test_joined_datasets(root):
    check(lambda: joined(root))
    check(lambda: Subset(Subset(joined(root), [15, -2, 0, 1, 7]), [4, 0, -3, 1]))


def test_an_error_of_a_joined_dataset(root):
    check(lambda: Subset(joined(root), [1, 2, 0, 3, -99, 5]))


def test_a_snapshot_of_joined_datasets_does_not_follow_changes(root):
    dataset = joined(root)
    recipe = read_recipe(dataset)
    snapshot = recipe.snapshot()
    before = [recipe.locate(index) for index in range(len(dataset))]
    first, second = dataset.datasets
    part, food = first.dataset.datasets
    first.indices[:] = part.indices[:] = [1, 1, 1, 1]
    part.dataset.samples.reverse()
    second.samples.reverse()
    food._labels.reverse()
    dataset.datasets.reverse()
    dataset.cumulative_sizes.reverse()
    assert [snapshot.locate(index) for index in range(16)] == before


def test_parts_with_equal_transforms_only(root):
    def of(*transforms):
        return ConcatDataset([ImageFolder(root, transform) for transform in transforms])

    shared = v1.Compose([*train_v1().transforms, v1.RandomErasing()])
    assert isinstance(read_recipe(of(train_v1(), train_v1())), Recipe)
    assert isinstance(read_recipe(of(shared, shared)), Recipe)
    resized = [v1.Resize(9), v1.CenterCrop(8)]
    plain = v1.Compose([*resized, v1.ToTensor()])
    scaled = v1.Compose([*resized, v1.ToTensor(), v1.Normalize([0.5], [0.25])])
    pixels = v1.Compose([*resized, v1.PILToTensor()])
    smaller = v1.Compose([v1.Resize(9), v1.CenterCrop(7), v1.ToTensor()])
    for other in (scaled, pixels, smaller, train_v1()):
        assert "different transforms" in refusal(of(plain, other))


def with_member(name, value):
    return type("Own", (ImageFolder,), {name: value})


def in_place(self, value):
    vars(self)["targets"] = value


MEMBERS = {
    "targets": property(lambda self: [], in_place),
    "__getitems__": lambda self, indices: [self[index] for index in indices],
    "__getattr__": lambda self, name: 1,
    "__getattribute__": object.__getattribute__,
    "__getstate__": lambda self: {},
    "__copy__": lambda self: self,
    "__slots__": ("names",),
    "__slotnames__": ["root"],
    "samples": property(lambda self: [], lambda self, value: None),
    "transform": property(lambda self: None, lambda self, value: None),
    "loader": staticmethod(datasets.folder.default_loader),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_a_subclass_that_could_change_samples_is_refused(root, name):
    dataset = with_member(name, MEMBERS[name])(root, train_v1())
    if name == "loader":
        del dataset.loader
    assert f"with {name} of its own" in refusal(dataset)
    assert f"with {name} of its own" in refusal(ConcatDataset([ImageFolder(root, train_v1()), dataset]))


def reversed_samples(dataset):
    return lambda indices: [dataset[index] for index in reversed(indices)]


class Answering:
    """Asked for an attribute that it has not, it has one."""

    def __getattr__(self, name):
        if name == "__getitems__":
            return reversed_samples(self)
        raise AttributeError(name)


class Empty:
    """A descriptor that is no function."""

    def __get__(self, thing, kind=None):
        return reversed_samples(thing)


def test_getitems_of_an_object_is_what_torchs_fetcher_asks_for(root, monkeypatch):
    makers = {
        "folder": lambda: ImageFolder(root, train_v1()),
        "joined": lambda: ConcatDataset([ImageFolder(root, train_v1())]),
        "subset": lambda: Subset(ImageFolder(root, train_v1()), range(5)),
    }
    for make in makers.values():
        dataset = make()
        assert isinstance(read_recipe(dataset), Recipe)
        dataset.__getitems__ = reversed_samples(dataset)
        for outer in (dataset, Subset(dataset, [1, 0]), Subset(Subset(dataset, [1, 0]), [0]), ConcatDataset([dataset])):
            assert "__getitems__ was patched" in refusal(outer)
    for holder, value in (
        (ImageFolder, Empty()),
        (VisionDataset, reversed_samples(None)),
        (typing.Generic, Empty()),
        (ConcatDataset, Empty()),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(holder, "__getitems__", value, raising=False)
            assert "__getitems__ was patched" in refusal(ConcatDataset([ImageFolder(root, train_v1())]))
    with monkeypatch.context() as patched:
        patched.setattr(ImageFolder, "__getattr__", Answering.__getattr__, raising=False)
        assert "__getattr__ was patched" in refusal(makers["folder"]())
    assert isinstance(read_recipe(joined(root)), Recipe)


def test_getitems_of_an_object_with_encoded_counts_too():
    class Many(Encoded):
        def encoded_many(self, indices):
            return [self.encoded(index) for index in indices]

        def __getitems__(self, indices):
            return [self[index] for index in indices]

    class Asked(Encoded, Answering):
        pass

    class Raising(Encoded):
        @property
        def __getitems__(self):
            raise OSError("gone")

    assert isinstance(read_recipe(Many(train_v1())), Recipe)
    for make in (Many, Encoded):
        dataset = make(train_v1())
        dataset.__getitems__ = reversed_samples(dataset)
        assert "fetches whole batches by __getitems__" in refusal(dataset)
    for make in (Asked, Raising):
        assert "fetches whole batches by __getitems__" in refusal(make(train_v1()))


def test_what_no_epoch_calls_may_change(root, monkeypatch):
    """Programs and tests replace what reads archives and checks them."""

    class Own(datasets.CIFAR10):
        def _load_meta(self):
            self.classes = list("abc")

        def _format_transform_repr(self, transform, head):
            return []

    dataset = of_arrays(Own)
    methods = ("__init__", "__repr__", "_load_meta", "_check_integrity", "download", "extra_repr")
    for name in methods:
        monkeypatch.setattr(datasets.CIFAR10, name, lambda *_: None)
    monkeypatch.setattr(datasets.cifar, "check_integrity", lambda *_, **__: True)
    for name in ("find_classes", "make_dataset", "is_valid_file"):
        monkeypatch.setattr(datasets.DatasetFolder, name, lambda *_, **__: None, raising=False)
    monkeypatch.setattr(datasets.folder, "make_dataset", lambda *_: [])
    dataset._check_integrity = lambda: True
    folder = ImageFolder.__new__(ImageFolder)
    vars(folder).update(vars(stored("StanfordCars", [("a.jpg", 0)], train_v1())), samples=[("a.jpg", 0)])
    for made in (dataset, of_arrays(datasets.CIFAR100), folder):
        assert isinstance(read_recipe(made), Recipe)


def of_arrays(kind):
    dataset = object.__new__(kind)
    VisionDataset.__init__(dataset, "", transform=v1.Compose([v1.RandomCrop(8), v1.ToTensor()]))
    dataset.data, dataset.targets = np.zeros((5, 9, 9, 3), np.uint8), [*range(5)]
    return dataset


def test_what_an_epoch_calls_is_looked_at_in_each_dataset(monkeypatch):
    def check(kind, name):
        dataset = object.__new__(kind)
        assert ORIGINALS.patched(dataset) is None
        with monkeypatch.context() as patched:
            patched.setattr(kind, name, lambda *_: 0, raising=False)
            assert f"{name} was patched" in ORIGINALS.patched(dataset)

    check_each(check, [*OF_ARRAYS, *OF_FILES], ["__getitem__", "__len__", "__getstate__", "__getitems__"])


def test_a_base_beside_the_folder_counts(root):
    class Mixin:
        def __getitems__(self, indices):
            return [self[index] for index in reversed(indices)]

    class Own(ImageFolder, Mixin):
        pass

    assert "with __getitems__ of its own" in refusal(Own(root, train_v1()))


def test_a_metaclass_and_a_subclass_of_joined_datasets_are_refused(root):
    folder = ImageFolder(root, train_v1())
    assert "metaclass" in refusal(type("Meta", (type,), {})("Own", (ImageFolder,), {})(root, train_v1()))
    assert "subclass of ConcatDataset" in refusal(type("Own", (ConcatDataset,), {})([folder]))


@pytest.mark.parametrize("owner", [datasets.Food101, ConcatDataset, ImageFolder])
def test_patches_are_noticed(root, monkeypatch, owner):
    monkeypatch.setattr(owner, "__getitem__", lambda self, index: None)
    assert "patched" in refusal(joined(root))


def test_an_own_encoded_of_a_subclass_is_used(root):
    class Own(ImageFolder):
        def encoded(self, index):
            return jpeg(1), 5

    recipe = read_recipe(Own(root, train_v1()))
    assert recipe.locate(0) == (jpeg(1), 5)


def test_a_transform_that_counts_as_false_is_refused(root):
    class Empty:
        def __init__(self):
            self.inner = train_v1()

        def __call__(self, image):
            return self.inner(image)

        def __len__(self):
            return 0

    assert "__len__" in refusal(stored("DTD", root, Empty()))
    assert isinstance(read_recipe(stored("StanfordCars", root, Empty())), Recipe)
    steps = v2.Resize(9), v2.CenterCrop(8), v2.PILToTensor()
    assert isinstance(read_recipe(stored("DTD", root, nn.Sequential(*steps))), Recipe)


def one_by_one(dataset, indices):
    paths, targets = zip(*(located(dataset, index) for index in indices), strict=True)
    return [*paths], [*targets]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_folders_batch_is_located_at_once_as_one_by_one(root, depth):
    dataset = Extended(root, train_v1())
    for _ in range(depth):
        dataset = Subset(dataset, [4, 2, 6, 1, 0, 5, 3])
    indices = [3, 0, -1, 3, torch.tensor(2)]
    assert paths_of(dataset, indices) == one_by_one(dataset, indices)
    assert paths_of(dataset, [0, 99]) is None
    assert paths_of(dataset, [0, "a"]) is None


def test_what_is_unusual_is_located_one_by_one(root):
    class Own(ImageFolder):
        def __getitem__(self, index):
            return *super().__getitem__(index), index

    dataset = ImageFolder(root)
    assert paths_of(dataset, [0, 1]) == one_by_one(dataset, [0, 1])
    for path in (Path(dataset.samples[1][0]), "a\0b", dataset.samples[1][0].encode()):
        dataset.samples[1] = path, 5
        assert paths_of(dataset, [0, 1]) is None
    dataset.samples[1] = ("a", 1, 2)
    assert paths_of(dataset, [0, 1]) is None
    assert paths_of(ConcatDataset([dataset]), [0]) is None
    assert paths_of(stored("DTD", root, train_v1()), [0]) is None
    assert paths_of(Own(root), [0]) is None
    assert paths_of([("a", 1)], [0]) is None


@pytest.mark.parametrize("name", ["OxfordIIITPet", "Places365", "DTD"])
def test_what_stands_for_a_path_is_opened_as_the_dataset_does(root, name):
    whole = v1.Compose([v1.Resize(9), v1.CenterCrop(8), v1.ToTensor()])
    dataset = archived(name, root, whole) if name != "DTD" else stored(name, root, whole)
    recipe = read_recipe(dataset)
    field = {"OxfordIIITPet": "_images", "Places365": "imgs", "DTD": "_image_files"}[name]
    for path in (io.BytesIO(jpeg(3)), None, 1.5, ("a",), bytearray(b"a"), Mask("a"), {}):
        getattr(dataset, field)[0] = (path, 0) if name == "Places365" else path
        found = []
        for make in (lambda: dataset[0][0], lambda: recipe.image(recipe.locate(0)[0])):
            try:
                found.append(make().tolist())
            except Exception as error:
                found.append((type(error), str(error)))
        assert found[0] == found[1]


class Mask(str):
    """A text that tells another of itself."""

    def __fspath__(self):
        return "b"

    def __str__(self):
        return "c"
