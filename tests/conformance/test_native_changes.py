"""A ``target_transform`` may change what samples are made from, draw, or raise, as in torch."""

from __future__ import annotations

import copy
import random
import warnings

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from photos import MEAN, STD, assert_same, both, drained, make_folder, mix_in
from PIL import Image, ImageFile, ImageFilter, ImageOps
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision import datasets
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload import FastLoader
from fastload.check.results import FallbackWarning
from fastload.native.sample_lists import SampleList

NATIVE = {"device": "cpu", "engine": "native"}
AT = 4  # the call that changes something; batches have five


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return mix_in(make_folder(tmp_path_factory.mktemp("photos"), 9))


class Blur:
    def __init__(self):
        self.p = 0.5

    def __call__(self, img):
        if random.random() < self.p:
            return img.filter(ImageFilter.GaussianBlur(random.uniform(0.5, 2.0)))
        return img


def transform_v1():
    colors = v1.RandomApply([v1.ColorJitter(0.4)], p=0.5)
    steps = [v1.RandomResizedCrop(40), v1.RandomHorizontalFlip(), Blur(), colors]
    return v1.Compose([*steps, v1.ToTensor(), v1.Normalize([*MEAN], [*STD])])


def transform_v2():
    steps = [v2.RandomResizedCrop(40), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return v2.Compose([*steps, v2.Normalize(MEAN, STD)])


class Target:
    """Changes something at one call, and notes what it gets."""

    def __init__(self, change, patch):
        self.change, self.patch, self.calls = change, patch, 0
        self.dataset = None

    def __call__(self, target):
        self.calls += 1
        if self.calls == AT:
            self.change(self.dataset, self.patch)
        return target + 1000 * self.calls


def steps(dataset):
    return dataset.transform.transforms


def add_hook(dataset, patch):
    handle = steps(dataset)[0].register_forward_hook(lambda module, given, made: ImageOps.invert(made))
    assert handle


def draws_and_changes(dataset, patch):
    torch.rand(1)
    steps(dataset)[1].p = 1.0


def raises(dataset, patch):
    steps(dataset)[1].p = 1.0
    raise KeyError("no such target")


def inverted(function):
    return lambda *args, **rest: ImageOps.invert(function(*args, **rest).convert("RGB"))


CHANGES = {
    "an attribute": lambda dataset, patch: setattr(steps(dataset)[1], "p", 1.0),
    "an attribute of ones own": lambda dataset, patch: setattr(steps(dataset)[2], "p", 1.0),
    "an attribute within": lambda dataset, patch: setattr(steps(dataset)[3].transforms[0], "brightness", (2.0, 2.0)),
    "an item of a list": lambda dataset, patch: steps(dataset)[-1].mean.__setitem__(0, 0.1),
    "a value of a tensor": lambda dataset, patch: steps(dataset)[0]._log_ratio.numpy().__setitem__(0, 0.1),
    "a step left out": lambda dataset, patch: steps(dataset).pop(1),
    "steps in another order": lambda dataset, patch: steps(dataset).insert(0, steps(dataset).pop(1)),
    "another list of steps": lambda dataset, patch: setattr(dataset.transform, "transforms", steps(dataset)[1:]),
    "another class": lambda dataset, patch: setattr(steps(dataset)[1], "__class__", v1.RandomVerticalFlip),
    "another dict": lambda dataset, patch: setattr(
        steps(dataset)[1], "__dict__", {**vars(steps(dataset)[1]), "p": 1.0}
    ),
    "a hook": add_hook,
    "another transform": lambda dataset, patch: setattr(dataset, "transform", transform_v2()),
    "another target_transform": lambda dataset, patch: setattr(dataset, "target_transform", float),
    "no target_transform": lambda dataset, patch: setattr(dataset, "target_transform", None),
    "another loader": lambda dataset, patch: setattr(dataset, "loader", lambda path: Image.new("RGB", (60, 60))),
    "samples in another order": lambda dataset, patch: dataset.samples.reverse(),
    "another target": lambda dataset, patch: dataset.samples.__setitem__(4, (dataset.samples[4][0], 77)),
    "fewer samples": lambda dataset, patch: dataset.samples.__delitem__(slice(4, None)),
    "a method of the class": lambda dataset, patch: patch.setattr(v1.RandomHorizontalFlip, "forward", lambda s, i: i),
    "a method of ones own": lambda dataset, patch: patch.setattr(Blur, "__call__", lambda s, i: ImageOps.invert(i)),
    "a method's code": lambda dataset, patch: patch.setattr(Blur.__call__, "__code__", (lambda s, i: i).__code__),
    "a global of ones own code": lambda dataset, patch: patch.setitem(globals(), "random", random.Random(3)),
    "a function of Pillow's": lambda dataset, patch: patch.setattr(Image, "open", inverted(Image.open)),
    "a function of Python's": lambda dataset, patch: patch.setattr(random, "random", lambda: 0.0),
    "a setting of Pillow's": lambda dataset, patch: patch.setattr(Image, "MAX_IMAGE_PIXELS", 1000),
    "another setting of Pillow's": lambda dataset, patch: patch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True),
    "a setting of torch's": lambda dataset, patch: torch.set_default_dtype(torch.float64),
    "a draw from torch": lambda dataset, patch: torch.rand(1),
    "a draw from Python": lambda dataset, patch: random.random(),
    "a draw and a change": draws_and_changes,
    "an error": raises,
    "what no sample uses": lambda dataset, patch: setattr(dataset, "seen", 5),
}
WHOLE = ("what no sample uses", "another target")
RAISING = ("an error", "fewer samples", "a setting of Pillow's")


def check(monkeypatch, make, change, transform=transform_v1, **arguments):
    """Compare with torch's loader; return how many lists of samples could be used whole."""
    whole = []
    completed = SampleList.completed

    def noted(samples):
        made, is_whole = completed(samples)
        whole.append(is_whole)
        return made, is_whole

    monkeypatch.setattr(SampleList, "completed", noted)
    with monkeypatch.context() as patch:

        def dataset_of():
            patch.undo()
            torch.set_default_dtype(torch.float32)
            random.seed(5)
            np.random.seed(5)
            target = Target(change, patch)
            dataset = make(transform(), target)
            target.dataset = dataset
            return dataset

        try:
            arguments = {"batch_size": 5, "run": {"count": 1}, **arguments}
            ours, theirs = both(dataset_of, FastLoader, {"device": "cpu"}, **arguments)
        finally:
            torch.set_default_dtype(torch.float32)
    assert_same(ours, theirs)
    return whole


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_samples_behind_a_change_are_torchs(root, monkeypatch, name):
    transform = transform_v2 if name == "a value of a tensor" else transform_v1
    whole = check(monkeypatch, lambda transform, target: ImageFolder(root, transform, target), CHANGES[name], transform)
    if name not in RAISING:
        assert whole[0] == (name in WHOLE)


@pytest.mark.slow
def test_samples_behind_a_change_are_torchs_in_workers(root, monkeypatch):
    arguments = {"num_workers": 1, "build": lambda: {"collate_fn": list}}
    for name in ("an attribute", "samples in another order", "a draw from torch"):
        check(monkeypatch, lambda transform, target: ImageFolder(root, transform, target), CHANGES[name], **arguments)


IN_SUBSETS = {
    "the outer indices": lambda dataset, patch: dataset.indices.reverse(),
    "the inner indices": lambda dataset, patch: dataset.dataset.indices.reverse(),
    "other inner indices": lambda dataset, patch: setattr(dataset.dataset, "indices", [0] * 12),
    "another dataset": lambda dataset, patch: setattr(dataset.dataset, "dataset", datasets.FakeData(12)),
}


@pytest.mark.parametrize("name", IN_SUBSETS)
def test_indices_are_looked_up_when_torch_does(root, monkeypatch, name):
    def make(transform, target):
        return Subset(Subset(ImageFolder(root, transform, target), [*range(12)]), [*range(1, 12)])

    assert check(monkeypatch, make, IN_SUBSETS[name])[0] == (name == "the outer indices")


IN_JOINED = {
    "the sizes": lambda dataset, patch: dataset.cumulative_sizes.__setitem__(0, 3),
    "a part": lambda dataset, patch: dataset.datasets.__setitem__(0, replaced(dataset.datasets[0])),
}


def replaced(dataset):
    changed = copy.copy(dataset)
    changed.transform = transform_v2()
    return changed


@pytest.mark.parametrize("name", IN_JOINED)
def test_parts_of_joined_datasets_are_looked_up_when_torch_does(root, monkeypatch, name):
    def make(transform, target):
        return ConcatDataset([ImageFolder(root, transform, target) for _ in range(2)])

    assert check(monkeypatch, make, IN_JOINED[name]) == [False]


def test_an_image_that_can_be_opened_after_all_is_no_error(root, monkeypatch):
    """It could not when the batch was begun."""

    def make(transform, target):
        dataset = ImageFolder(root, transform, target)
        dataset.samples[AT] = "no such file", 3
        return dataset

    def change(dataset, patch):
        dataset.samples[AT] = dataset.samples[0]

    assert check(monkeypatch, make, change)[0] is False


@pytest.mark.parametrize("draws", [True, False])
def test_a_sample_that_fails_is_an_error_behind_the_targets_before_it(root, monkeypatch, draws):
    def make(transform, target):
        dataset = ImageFolder(root, transform, target)
        dataset.samples[2] = "no such file", 3
        return dataset

    crops = [v1.RandomResizedCrop(40)] if draws else [v1.Resize(48), v1.CenterCrop(40)]
    whole = check(monkeypatch, make, CHANGES["what no sample uses"], lambda: v1.Compose([*crops, v1.ToTensor()]))
    assert whole == [True, True]


def warned_of(recwarn):
    found = [str(warning.message) for warning in recwarn if warning.category is Image.DecompressionBombWarning]
    recwarn.clear()
    return found


class Twice:
    def __init__(self):
        self.crop = v1.Compose([v1.RandomResizedCrop(40), v1.ToTensor()])

    def __call__(self, x):
        return [self.crop(x), self.crop(x)]


@pytest.mark.parametrize("transform", [transform_v1, Twice])
@pytest.mark.parametrize("failing", ["one that fails", "none"])
def test_pillow_warns_once_of_each_image(root, monkeypatch, recwarn, transform, failing):
    """Also if a batch raises, or has several views of each image."""
    warnings.simplefilter("always")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9000)
    found = []
    for make, own in ((DataLoader, {}), (FastLoader, NATIVE)):
        dataset = ImageFolder(root, transform())
        dataset.samples[2] = dataset.samples[1]
        if failing != "none":
            dataset.samples[AT] = "no such file", 3
        torch.manual_seed(3)
        random.seed(3)
        seen = [*drained(iter(make(dataset, 5, **own)))]
        errors = [str(item) for item in seen if isinstance(item, Exception)]
        found.append((seen, torch.get_rng_state(), random.getstate(), errors, warned_of(recwarn)))
    assert_same(*found)
    assert len(found[0][-1]) > 4


def of_arrays(transform, target):
    dataset = object.__new__(datasets.CIFAR10)
    datasets.VisionDataset.__init__(dataset, "", transform=transform, target_transform=target)
    dataset.data = np.random.default_rng(0).integers(0, 256, (12, 50, 50, 3), dtype=np.uint8)
    dataset.targets = [*range(12)]
    return dataset


IN_ARRAYS = {
    "pixels": lambda dataset, patch: dataset.data.__setitem__(4, 9),
    "other pixels": lambda dataset, patch: setattr(dataset, "data", dataset.data[::-1]),
    "a limit of pixels": lambda dataset, patch: patch.setattr(Image, "MAX_IMAGE_PIXELS", 1000),
    "pixels of another sample": lambda dataset, patch: dataset.data.__setitem__(11, 9),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", IN_ARRAYS)
def test_pixels_are_looked_up_when_torch_does(monkeypatch, name):
    assert check(monkeypatch, of_arrays, IN_ARRAYS[name])[0] == (name == "pixels of another sample")


def test_a_target_that_is_changed_alone_is_looked_up(monkeypatch):
    change = lambda dataset, patch: dataset.targets.__setitem__(4, 99)  # noqa: E731
    assert check(monkeypatch, of_arrays, change) == [True, True, True]


def test_an_error_that_only_other_draws_would_have_met_is_none(root, monkeypatch, recwarn):
    """As one of timm's RandAugment, which may ask Pillow for no bits."""
    timm_data = pytest.importorskip("timm.data")

    def transform():
        return timm_data.create_transform(40, is_training=True, auto_augment="rand-m9-n5-mstd101")

    for seed in range(8):
        run = {"count": 1, "seed": seed}
        make = lambda transform, target: ImageFolder(root, transform, target)  # noqa: E731
        check(monkeypatch, make, CHANGES["a draw from Python"], transform, run=run)
    assert not [warning for warning in recwarn if warning.category is FallbackWarning]
