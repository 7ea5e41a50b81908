"""A ``__getitem__`` that only arranges samples runs natively; one that may do more is refused."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from photos import assert_same, both, make_folder, train_v1
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.pipeline.recipe import Recipe, Refusal, read_recipe

NATIVE = {"device": "cpu", "engine": "native"}
OFFSET = 3


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("photos"), 13)


class WithIndex(ImageFolder):
    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image, target, index


class WithPath(ImageFolder):
    """As many write it."""

    def __getitem__(self, index):
        original = super(WithPath, self).__getitem__(index)  # noqa: UP008
        path = self.imgs[index][0]
        return (*original, path)


class Dicts(ImageFolder):
    def __init__(self, root, transform=None):
        super().__init__(root, transform)
        self.weights = np.arange(len(self.samples)) * 0.5
        self.texts = [f"a photo of {Path(path).stem}" for path, _ in self.samples]

    def __getitem__(self, index):
        path, target = self.samples[index]
        image = self.loader(path)
        if self.transform is not None:
            image = self.transform(image)
        name = os.path.basename(path).split(".")[0]
        meta = {"name": name, "weight": float(self.weights[index]), "texts": [self.texts[index].upper(), str(index)]}
        return {"pixel_values": image, "labels": torch.tensor(target), "meta": meta}


class ImageAlone(ImageFolder):
    def __getitem__(self, index):
        return super().__getitem__(index)[0]


class Swapped(ImageFolder):
    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return [self.classes[target], (target + 1, {"image": image})]


class OfAClass(WithIndex):
    scale = 2

    def __getitem__(self, index):
        image, target, number = super().__getitem__(index)
        return image, target * self.scale, number


class Truth(ImageFolder):
    def __getitem__(self, index):
        path, target = self.samples[index]
        sample = self.loader(path)
        if self.transform:
            sample = self.transform(sample)
        return sample, target


ARRANGED = [WithIndex, WithPath, Dicts, ImageAlone, Swapped, OfAClass, Truth]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ARRANGED)
def test_arranged_samples(root, kind, workers):
    arguments = {"batch_size": 3, "num_workers": workers, "shuffle": True}
    assert isinstance(read_recipe(kind(root, train_v1())), Recipe)
    assert_same(*both(lambda: kind(root, train_v1()), FastLoader, NATIVE, **arguments))


@pytest.mark.parametrize("kind", [WithPath, Dicts])
def test_arranged_samples_go_to_a_collate_function(root, kind):
    arguments = {"batch_size": 3, "num_workers": 1, "collate_fn": list}
    assert_same(*both(lambda: kind(root, train_v1()), FastLoader, NATIVE, **arguments))


def test_parts_of_a_dataset_with_the_index(root):
    def dataset_of():
        parts = ConcatDataset([WithIndex(root, train_v1()), OfAClass(root, train_v1())])
        return Subset(parts, [3, 14, 20, 0, 25, 7])

    assert_same(*both(dataset_of, FastLoader, NATIVE, batch_size=3, num_workers=2))


def test_an_error_of_an_index(root):
    arguments = {"batch_size": 2, "num_workers": 1, "sampler": [0, 1, 99, 2, 3]}
    assert_same(*both(lambda: Dicts(root, train_v1()), FastLoader, NATIVE, **arguments))


def test_a_snapshot_does_not_follow_changes(root):
    dataset = Dicts(root, train_v1())
    snapshot = read_recipe(dataset).snapshot()
    before = [snapshot.locate(index) for index in range(4)]
    dataset.texts.reverse()
    dataset.weights += 1
    dataset.samples.reverse()
    assert [snapshot.locate(index) for index in range(4)] == before


def draws(self, index):
    return (*ImageFolder.__getitem__(self, index), random.random())


def draws_by_torch(self, index):
    return (*ImageFolder.__getitem__(self, index), torch.rand(1))


def keeps(self, index):
    self.last = index
    return ImageFolder.__getitem__(self, index)


def keeps_in_a_list(self, index):
    self.targets[index] = 0
    return ImageFolder.__getitem__(self, index)


def adds_in_place(self, index):
    targets = self.targets
    targets += [1]
    return ImageFolder.__getitem__(self, index)


def twice(self, index):
    image = self.loader(self.samples[index][0])
    return self.transform(image), self.transform(image)


def opens_two(self, index):
    other = self.loader(self.samples[0][0])
    path, target = self.samples[index]
    return self.transform(self.loader(path)), (target, other)[0]


def transformed_twice(self, index):
    path, target = self.samples[index]
    return self.transform(self.transform(self.loader(path)).convert("RGB")), target


def transformed_again(self, index):
    path, target = self.samples[index]
    return self.transform(self.transform(self.loader(path))), target


def untransformed(self, index):
    return self.loader(self.samples[index][0]), self.samples[index][1]


def opened_beside(self, index):
    path, target = self.samples[index]
    image = self.loader(path)
    return self.transform(image), (image, target)


def returned_twice(self, index):
    image, target = ImageFolder.__getitem__(self, index)
    return image, image, target


def changed(self, index):
    image, target = ImageFolder.__getitem__(self, index)
    return image * 2, target


def sized(self, index):
    image, target = ImageFolder.__getitem__(self, index)
    return image, target, image.shape


def by_condition(self, index):
    image, target = ImageFolder.__getitem__(self, index)
    return (image, target) if index else (target, image)


def repeated(self, index):
    """By a number that is 1 for the samples that are looked at."""
    image, _ = ImageFolder.__getitem__(self, index)
    return (image,) * self.samples[index][1]


def repeated_by_a_number_before(self, index):
    image, _ = ImageFolder.__getitem__(self, index)
    return self.samples[index][1] * (image,)


def by_global(self, index):
    image, target = ImageFolder.__getitem__(self, index)
    return image, target + OFFSET


def imports(self, index):
    import random as other

    return (*ImageFolder.__getitem__(self, index), other.random())


def calls(self, index):
    return (*ImageFolder.__getitem__(self, index), self.helper(index))


def generates(self, index):
    yield from ImageFolder.__getitem__(self, index)


def in_a_set(self, index):
    image, target = ImageFolder.__getitem__(self, index)
    return {image, target}


def catches(self, index):
    try:
        return ImageFolder.__getitem__(self, index)
    except:  # noqa: E722
        return ImageFolder.__getitem__(self, 0)


def at_last(self, index):
    try:
        path, target = self.samples[index]
    finally:
        image = self.transform(self.loader(path))
    return image, target


def repeats_in_a_loop(self, index):
    image, target = ImageFolder.__getitem__(self, index)
    for name in self.classes:
        image = [image, name]
    return image, target


def is_in_a_slice(self, index):
    image, target = ImageFolder.__getitem__(self, index)
    return (image, target, image)[target:]


def is_chosen(self, index):
    return ImageFolder.__getitem__(self, index)[self.targets[index] // 2]


def is_chosen_of_a_variable(self, index):
    sample = ImageFolder.__getitem__(self, index)
    return sample[self.targets[index] // 2]


def is_chosen_by_its_key(self, index):
    image, target = ImageFolder.__getitem__(self, index)
    return {0: image, 1: target}.get(target // 2)


def is_the_least(self, index):
    image, target = ImageFolder.__getitem__(self, index)
    return min((target, image), (1, target))


def renames_a_file(self, index):
    image, _ = ImageFolder.__getitem__(self, index)
    return image, Path(self.samples[index][0]).replace(self.root)


OTHERS = {
    draws: "uses random",
    draws_by_torch: "uses the attribute rand",
    keeps: "changes or imports",
    keeps_in_a_list: "changes or imports",
    adds_in_place: "changes or imports",
    twice: "load and transform one image",
    opens_two: "load and transform one image",
    transformed_twice: "uses the attribute convert",
    transformed_again: "load and transform one image",
    untransformed: "load and transform one image",
    opened_beside: "return it once",
    returned_twice: "return it once",
    changed: "raises TypeError",
    sized: "uses the attribute shape",
    by_condition: "depends on a condition",
    repeated: "may repeat",
    repeated_by_a_number_before: "may repeat",
    by_global: "uses OFFSET",
    imports: "changes or imports",
    calls: "uses the attribute helper",
    generates: "changes or imports",
    in_a_set: "return it once",
    catches: "handles exceptions",
    at_last: "handles exceptions",
    repeats_in_a_loop: "may repeat or choose",
    is_in_a_slice: "may repeat or choose",
    is_chosen: "may repeat or choose",
    is_chosen_of_a_variable: "may repeat or choose",
    is_chosen_by_its_key: "uses the attribute get",
    is_the_least: "uses min",
    renames_a_file: "uses the attribute replace",
}


@pytest.mark.parametrize("method", OTHERS, ids=lambda method: method.__name__)
def test_a_method_that_may_do_more_is_refused(root, method):
    kind = type("Own", (ImageFolder,), {"__getitem__": method, "helper": lambda self, index: index})
    read = read_recipe(kind(root, train_v1()))
    assert isinstance(read, Refusal)
    assert OTHERS[method] in read.reasons[0]
    if method in (transformed_again, opened_beside, renames_a_file):  # raises in torch's workers, too
        return
    one = {"batch_size": 13, "num_workers": 1, "run": {"count": 1}}
    assert_same(*both(lambda: kind(root, train_v1()), FastLoader, {"device": "cpu"}, **one))


def test_a_property_or_an_object_of_ones_own_is_refused(root):
    class Own(WithIndex):
        @property
        def imgs(self):
            return self.samples

        @imgs.setter
        def imgs(self, value):
            pass

        def __getitem__(self, index):
            return (*super().__getitem__(index), self.imgs[index][0])

    class Held(ImageFolder):
        def __getitem__(self, index):
            return (*super().__getitem__(index), self.table[index])

    held = Held(root, train_v1())
    held.table = [torch.nn.Identity()] * 13
    for dataset in (Own(root, train_v1()), held):
        assert "uses the attribute" in read_recipe(dataset).reasons[0]


class Drawing:
    def get(self):
        return torch.rand(1)


def deep(entry):
    for _ in range(9):
        entry = [entry]
    return entry


HELD = {
    "a list": lambda odd: [7] * 75 + [odd],
    "a long list": lambda odd: [7] * 3000 + [odd],
    "pairs": lambda odd: [("a", 1)] * 5 + [("a", odd)],
    "a dict": lambda odd: {"a": 1, "b": odd},
    "keys": lambda odd: {1: 1, odd: 2},
    "an array": lambda odd: np.array([1, odd], dtype=object),
    "fields": lambda odd: np.array([(1, odd)], dtype=[("a", int), ("b", object)]),
    "a list in itself": lambda odd: deep(odd),
    "no end": lambda odd: endless(),
}


def endless():
    found = []
    found.append(found)
    return found


@pytest.mark.parametrize("name", HELD)
def test_all_that_is_held_must_be_data(root, name):
    class Held(ImageFolder):
        def __getitem__(self, index):
            return (*super().__getitem__(index), self.table)

    dataset = Held(root, train_v1())
    if name != "no end":
        dataset.table = HELD[name](8)
        assert isinstance(read_recipe(dataset), Recipe) == (name not in ("an array", "fields", "a list in itself"))
    dataset.table = HELD[name](Drawing())
    assert "uses the attribute table" in read_recipe(dataset).reasons[0]
    assert "uses the attribute table" in read_recipe(dataset).reasons[0]


def test_a_long_list_that_has_grown_is_judged_again(root):
    class Held(ImageFolder):
        def __getitem__(self, index):
            return (*super().__getitem__(index), self.table[index])

    dataset = Held(root, train_v1())
    dataset.table = [1] * 2000
    assert isinstance(read_recipe(dataset), Recipe)
    dataset.table.append(Drawing())
    assert "uses the attribute table" in read_recipe(dataset).reasons[0]
    dataset.table = [1] * 1999 + [Drawing()]
    assert "uses the attribute table" in read_recipe(dataset).reasons[0]


@pytest.mark.parametrize(
    ("holder", "name", "value"),
    [
        (os.path, "basename", lambda path: torch.rand(1)),
        (os.path, "join", lambda *parts: ""),
        (os, "fspath", lambda path: path),
        (Path, "stem", property(lambda path: torch.rand(1))),
        (torch, "tensor", lambda data: torch.rand(1)),
        (torch.Tensor, "long", lambda tensor: tensor),
    ],
)
def test_functions_that_a_method_names_must_be_the_librarys(root, monkeypatch, holder, name, value):
    dataset = Dicts(root, train_v1())
    assert isinstance(read_recipe(dataset), Recipe)
    monkeypatch.setattr(holder, name, value)
    assert "was patched" in read_recipe(dataset).reasons[0]


def test_a_target_transform_beside_it_is_refused(root):
    dataset = WithIndex(root, train_v1(), target_transform=int)
    assert "apply it in __getitem__" in read_recipe(dataset).reasons[0]


def test_a_closure_and_a_decorated_method_are_refused(root):
    def make(number):
        def method(self, index):
            return (*ImageFolder.__getitem__(self, index), number)

        return method

    for method, said in ((make(5), "outer function"), (property(make(5)), "decorated or no function")):
        kind = type("Own", (ImageFolder,), {"__getitem__": method})
        assert said in read_recipe(kind(root, train_v1())).reasons[0]


def test_a_subclass_of_a_class_without_loader_is_refused(root):
    kind = type("Own", (datasets.Places365,), {"__getitem__": lambda self, index: None})
    dataset = object.__new__(kind)
    datasets.VisionDataset.__init__(dataset, root, transform=train_v1())
    dataset.imgs, dataset.loader = ImageFolder(root).samples, datasets.folder.default_loader
    assert "replaces that of a class with no loader" in read_recipe(dataset).reasons[0]
