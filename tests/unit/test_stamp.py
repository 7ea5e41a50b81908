"""A whole stamp breaks with each change, and says where it cannot look."""

from __future__ import annotations

import builtins
import gc
import random
import weakref
from collections import OrderedDict
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from photos import Encoded, orders_v1, train_v1, train_v2
from PIL import Image, ImageFile
from stored import stored
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data._utils import collate
from torchvision.transforms.v2.functional import _geometry
from torchvision.tv_tensors import _torch_function_helpers

from fastload import _core
from fastload.pipeline.installed.stamp import RecipeStamp
from fastload.pipeline.recipe import read_recipe

OTHERS = ModuleType("others")
OTHERS.settings, OTHERS.deeper = [1], ModuleType("deeper")
OTHERS.deeper.number = 1


def helper(image):
    return image


class Named:
    number = 1


class Target:
    def __call__(self, target):
        return target


class Own:
    """Calls a function, and names much that it does not use."""

    names = ("plain",)

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, image):
        return self.inner(image)

    def named(self):
        return [self.of(lambda: (helper, OTHERS.deeper.number, Own.names)), OTHERS.settings, Named, copyright]

    def of(self, function):
        return function


def stamped(change=lambda dataset: None, transform=None):
    """Stamp an array dataset's recipe; return the dataset and the stamp."""
    dataset = stored("CIFAR10", count=6)
    dataset.transform = transform or v1.Compose([Own(v1.RandomHorizontalFlip()), *train_v1().transforms])
    dataset.target_transform = None if transform else Target()  # which may not run beside all transforms
    change(dataset)
    recipe = read_recipe(dataset)
    return dataset, RecipeStamp(recipe, whole=True)


def own(dataset):
    return dataset.transform.transforms[0]


CHANGES = {
    "attribute": lambda dataset, patch: setattr(own(dataset).inner, "p", 0.25),
    "new attribute": lambda dataset, patch: setattr(own(dataset), "new", 1),
    "of the dataset": lambda dataset, patch: setattr(dataset, "new", 1),
    "data": lambda dataset, patch: setattr(dataset, "data", dataset.data.copy()),
    "shape": lambda dataset, patch: setattr(dataset.data, "shape", (6, 16, 64, 3)),
    "set": lambda dataset, patch: own(dataset).inner._non_persistent_buffers_set.add("p"),
    "class": lambda dataset, patch: patch.setattr(Own, "names", ()),
    "method": lambda dataset, patch: patch.setattr(Own, "named", lambda self: None),
    "code": lambda dataset, patch: patch.setattr(Own.named, "__code__", (lambda self: None).__code__),
    "helper": lambda dataset, patch: patch.setitem(globals(), "helper", None),
    "code of the helper": lambda dataset, patch: patch.setattr(helper, "__code__", (lambda image: None).__code__),
    "attribute of a helper": lambda dataset, patch: patch.setattr(helper, "__wrapped__", helper, raising=False),
    "of a module": lambda dataset, patch: patch.setattr(OTHERS, "settings", []),
    "in a module": lambda dataset, patch: OTHERS.settings.append(2),
    "deeper": lambda dataset, patch: patch.setattr(OTHERS.deeper, "number", 2),
    "class that is named": lambda dataset, patch: patch.setattr(Named, "number", 2),
    "builtin": lambda dataset, patch: patch.setattr(builtins, "copyright", None),
    "class of target_transform": lambda dataset, patch: patch.setattr(Target, "__len__", len, raising=False),
    "Pillow's function": lambda dataset, patch: patch.setattr(Image, "fromarray", lambda array: None),
    "Pillow's limit": lambda dataset, patch: patch.setattr(Image, "MAX_IMAGE_PIXELS", 1),
    "files cut off": lambda dataset, patch: patch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True),
    "image backend": lambda dataset, patch: patch.setattr(torchvision, "_image_backend", "accimage"),
    "collated otherwise": lambda dataset, patch: patch.setitem(collate.default_collate_fn_map, int, list),
    "another map": lambda dataset, patch: patch.setattr(collate, "default_collate_fn_map", {}),
    "type returned": lambda dataset, patch: patch.setattr(_torch_function_helpers, "_TORCHFUNCTION_SUBCLASS", True),
    "hook of all modules": lambda dataset, patch: patch.setitem(
        torch.nn.modules.module._global_forward_hooks, 0, lambda *given: None
    ),
    "dtype": lambda dataset, patch: patch.setattr(torch, "get_default_dtype", lambda: torch.float64),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_breaks_a_stamp(name, monkeypatch):
    dataset, stamp = stamped()
    assert stamp.is_whole
    assert stamp.holds()
    CHANGES[name](dataset, monkeypatch)
    assert not stamp.holds()


def test_a_mode_breaks_a_stamp():
    _, stamp = stamped()
    with torch.device("meta"):
        assert not stamp.holds()
    assert stamp.holds()


def contrast():
    steps = [v2.ToImage(), v2.RandomResizedCrop(8), v2.ColorJitter(contrast=0.5), v2.ToDtype(torch.float32, scale=True)]
    return v2.Compose(steps)


@pytest.mark.parametrize(
    ("transform", "holder", "name"),
    [
        (contrast, torch, "get_num_threads"),
        (orders_v1, random, "random"),
        (train_v2, _geometry, "horizontal_flip_image"),
    ],
)
def test_what_only_some_transforms_use_counts_for_them(transform, holder, name, monkeypatch):
    (_, without), (_, stamp) = stamped(), stamped(transform=transform())
    assert stamp.holds()
    monkeypatch.setattr(holder, name, lambda *given: 99)
    assert without.holds()
    assert not stamp.holds()


def test_values_of_a_small_array_count():
    held = np.zeros(3), torch.zeros(3, dtype=torch.bfloat16)
    for array in held:
        _, stamp = stamped(lambda dataset: setattr(own(dataset), "held", held))
        assert stamp.holds()
        array[1] = 1
        assert not stamp.holds()


def test_what_is_given_besides_counts():
    entries, kind = {"engine": "auto"}, type("Loader", (), {})
    recipe = read_recipe(stamped()[0])
    for change in (lambda: entries.update(engine="torch"), lambda: setattr(kind, "_get_iterator", None)):
        stamp = RecipeStamp(recipe, besides=[(entries, "engine")], types=[kind])
        assert stamp.holds()
        change()
        assert not stamp.holds()


class Listed(list):
    tag = 0


def test_attributes_of_a_list_count():
    held = Listed([1])
    held.tag = 1
    _, stamp = stamped(lambda dataset: setattr(own(dataset), "held", held))
    assert stamp.is_whole
    assert stamp.holds()
    held.tag = 2
    assert not stamp.holds()


def test_what_a_function_holds_counts():
    number = [1]

    def function(image, *, least=[1]):  # noqa: B006
        nonlocal number
        return image if number else least

    for change in (
        lambda: number.append(2),
        lambda: function.__kwdefaults__["least"].append(2),
        lambda: function.__closure__[0].__setattr__("cell_contents", [1, 2]),
    ):
        _, stamp = stamped(lambda dataset: setattr(own(dataset), "held", function))
        assert stamp.is_whole
        assert stamp.holds()
        change()
        assert not stamp.holds()


class Slots(Own):
    __slots__ = ("hidden",)


class WithoutDict:
    """A dataset whose attributes are in slots."""

    __slots__ = ("files", "transform")

    def __init__(self):
        self.transform, self.files = train_v1(), Encoded(None).files

    def encoded(self, index):
        return self.files[index], 0

    def __len__(self):
        return len(self.files)


class Asked(Encoded):
    @property
    def images_per_sample(self):
        return 1


@pytest.mark.parametrize(
    "held",
    [
        np.zeros(2000),
        torch.zeros(2000),
        [*range(2000)],
        [[[] for _ in range(900)] for _ in range(3)],
        {object()},
        OrderedDict(a=1, b=2),
        Slots(None),
        bytearray(2),
        iter([]),
    ],
    ids=lambda held: type(held).__name__,
)
def test_what_cannot_be_looked_at_is_said(held):
    _, stamp = stamped(lambda dataset: setattr(own(dataset), "held", held))
    assert not stamp.is_whole


def test_datasets_around_and_beside():
    def is_whole(dataset):
        return RecipeStamp(read_recipe(dataset), whole=True).is_whole

    dataset, _ = stamped()
    assert is_whole(Subset(ConcatDataset([dataset, dataset]), [1, 2]))
    assert is_whole(Encoded(train_v1()))
    assert not is_whole(Asked(train_v1()))
    assert not is_whole(WithoutDict())


@pytest.mark.parametrize("kind", ["entry", "container", "object", "type", "function"])
def test_the_collector_frees_what_holds_its_own_stamp(kind):
    class Holder:
        pass

    def function():
        pass

    holder: Any = Holder()
    space = {"holder": holder}
    given, keeper = {
        "entry": (([(space, "holder")], [], [], [], []), holder),
        "container": (([], [[holder]], [], [], []), holder),
        "object": (([], [], [holder], [], []), holder),
        "type": (([], [], [], [Holder], []), Holder),
        "function": (([], [], [], [], [function]), function),
    }[kind]
    stamp = _core.Stamp(*given)
    keeper.stamp = stamp
    gone = weakref.ref(keeper)
    del holder, Holder, function, keeper, space, given, stamp
    gc.collect()
    assert gone() is None
