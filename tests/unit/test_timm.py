"""timm's transforms run natively, and what of timm doesn't is named truly."""

from __future__ import annotations

import copy
import inspect
import random

import numpy as np
import optional
import pytest
import torchvision.transforms as v1
from cases import check_each
from photos import photos_fixture
from torchvision.datasets import ImageFolder

from fastload import FastLoader, verify
from fastload.pipeline.errors import Refused
from fastload.pipeline.installed import timm as timm_functions
from fastload.pipeline.ops import timm as ops_timm
from fastload.pipeline.ops.erasing import Erasing
from fastload.pipeline.recipe import Recipe, Refusal, read_recipe

timm_data = optional.module("timm.data")


root = photos_fixture(9)


@pytest.mark.parametrize("how", [{}, {"normalize": False}, {"interpolation": "bicubic", "crop_mode": "squash"}])
def test_timms_transform_for_evaluation_is_native(root, how):
    dataset = ImageFolder(root, timm_data.create_transform(48, is_training=False, **how))
    result = verify(FastLoader(dataset, 4, num_workers=2, device="cpu", engine="native"))
    assert result, result
    assert (result.engine, result.compared) == ("native", 3)


TRAINING = {
    "plain": {"color_jitter": 0.4, "interpolation": "random"},
    "flips": {"vflip": 0.5, "color_jitter": None, "normalize": False},
    "rand": {"auto_augment": "rand-m9-mmax9-mstd0.5-inc1"},
    "rand of 0 bits": {"auto_augment": "rand-m6-mstd2-n3-p0.9", "interpolation": "bilinear"},
    "rand, uniform": {"auto_augment": "rand-m8-mstd101-n3"},
    "3a": {"auto_augment": "rand-m9-mstd101-t3a-p1", "interpolation": "bicubic"},
    "v0": {"auto_augment": "v0"},
    "original": {"auto_augment": "originalr-mstd0.5"},
    "three-augment": {"auto_augment": "3a"},
    "kept ratio, centre": {"train_crop_mode": "rkrc", "scale": (0.5, 2.0)},
    "noise": {"re_prob": 0.8, "re_mode": "pixel", "re_count": 4, "re_num_splits": 2},
    "colors": {"re_prob": 0.8, "re_mode": "rand", "re_count": 2},
    "black": {"re_prob": 1.0, "re_mode": "const", "re_count": 3, "auto_augment": "3a"},
    "kept ratio, random": {"train_crop_mode": "rkrr", "scale": (0.5, 2.0), "interpolation": "random"},
}

POSTERIZING_TO_NOTHING = ("rand of 0 bits", "rand, uniform", "v0", "original")  # Pillow 13 raises at 0 bits


@pytest.mark.parametrize("how", TRAINING)
def test_timms_transform_for_training_is_native(root, how):
    dataset = ImageFolder(root, timm_data.create_transform(48, is_training=True, **TRAINING[how]))
    for workers in (0, 2):
        result = verify(FastLoader(dataset, 3, num_workers=workers, device="cpu", engine="native"))
        assert result, result
        assert result.engine == "native"
        assert result.compared == 3 or (result.compared and how in POSTERIZING_TO_NOTHING)


@pytest.mark.slow
def test_each_operation_of_timms_is_read_to_the_bit():
    check_each(is_read_to_the_bit, sorted(timm_data.auto_augment.NAME_TO_OP), [0, 4.6, 9])


def is_read_to_the_bit(name, magnitude):
    hparams = {"translate_const": 21, "img_mean": (124, 116, 104), "magnitude_std": 0.7}
    op = timm_data.auto_augment.AugmentOp(name, 0.8, magnitude, hparams)
    nodes = ops_timm._augmentation(op)
    seen = [timm_functions._is_same(op, nodes, size, seed) for size in ((61, 47), (33, 33)) for seed in range(40)]
    assert all(seen)


def test_a_difference_shows_in_pixels_and_in_draws():
    op = timm_data.auto_augment.AugmentOp("ShearX", 1.0, 9, {"img_mean": (1, 2, 3)})
    ((kind, fields),) = ops_timm._augmentation(op)
    assert timm_functions._is_same(op, [(kind, fields)], (61, 47), 1)
    for change in ({"slope": 0.31}, {"negates": False}, {"samplings": ["bicubic"]}, {"use": "shear_y"}):
        changed = {**fields, "level": {**fields["level"], **change}}
        assert not all(timm_functions._is_same(op, [(kind, changed)], (61, 47), seed) for seed in range(3)), change
    assert not timm_functions._is_same(op, [(kind, {**fields, "fill": (1, 2, 4)})], (61, 47), 1)
    invert = timm_data.auto_augment.AugmentOp("Invert", 1.0, 9, {})
    ((kind, fields),) = ops_timm._augmentation(invert)
    changed = {**fields, "level": {**fields["level"], "deviation": 0.5}}  # which only draws
    assert not timm_functions._is_same(invert, [(kind, changed)], (61, 47), 1)


def _read(root, step):
    return read_recipe(ImageFolder(root, v1.Compose([v1.RandomResizedCrop(9), step, v1.ToTensor()])))


def _refusal(root, step):
    read = _read(root, step)
    assert isinstance(read, Refusal)
    return read.reasons[0]


def test_what_is_not_timms_own_is_refused(root, monkeypatch):
    augment = timm_data.auto_augment
    made = augment.rand_augment_transform("rand-m9-mstd0.5-inc1")
    own = augment.rand_augment_transform("rand-m9-mstd0.5-inc1")
    own.ops[3].aug_fn = lambda image, *_, **__: image
    assert "'Rotate' is not timm's own" in _refusal(root, own)
    assert "chooses by weights" in _refusal(root, augment.rand_augment_transform("rand-m9-tweights"))
    assert "RandAugment.__call__ was patched" in _refusal(root, _with(made, "__call__", lambda image: image))
    assert "where timm has an AugmentOp" in _refusal(root, augment.RandAugment([v1.RandomInvert()]))
    assert isinstance(_read(root, augment.rand_augment_transform("rand-m9-n1")), Recipe)
    with monkeypatch.context() as patch:
        patch.setattr(augment, "_LEVEL_DENOM", 11.0)
        assert "something else in the installed timm" in _refusal(root, augment.rand_augment_transform("rand-m9-n1"))
    with monkeypatch.context() as patch:
        patch.setattr(augment, "_randomly_negate", lambda value: value)
        assert "timm.data.auto_augment._randomly_negate was patched" in _refusal(root, made)
    with monkeypatch.context() as patch:
        patch.setattr(random, "gauss", lambda mean, _: mean)
        assert "random.gauss was patched; leave Python's" in _refusal(root, made)
    with monkeypatch.context() as patch:
        patch.setattr(np.random, "choice", np.random.RandomState(1).choice)
        assert "numpy.random's choice, seed or bit generator was replaced" in _refusal(root, made)
    assert isinstance(read_recipe(ImageFolder(root, timm_data.create_transform(9, is_training=True))), Recipe)


def _with(thing, name, value):
    changed = copy.copy(thing)
    setattr(changed, name, value)
    return changed


ERASING = {"device": "cpu", "probability": 0.6}


def _erasing_of(*behind, **how):
    step = timm_data.random_erasing.RandomErasing(**{**ERASING, **how})
    return v1.Compose([v1.RandomResizedCrop(9), v1.ToTensor(), step, *behind])


def test_what_erases_otherwise_is_refused(root, monkeypatch):
    def refusal(transform):
        read = read_recipe(ImageFolder(root, transform))
        assert isinstance(read, Refusal)
        return read.reasons[0]

    def is_read(transform):
        return isinstance(read_recipe(ImageFolder(root, transform)), Recipe)

    module = timm_data.random_erasing
    assert is_read(_erasing_of(mode="pixel"))
    assert "makes its values on cuda; give it device='cpu'" in refusal(_erasing_of(device="cuda"))
    assert "Normalize would change what" in refusal(_erasing_of(v1.Normalize(0.5, 0.5)))
    assert "comes after RandomErasing; put it before" in refusal(_erasing_of(v1.RandomHorizontalFlip()))
    assert "counts must be from 0 to 1000" in refusal(_erasing_of(min_count=3, max_count=2))
    assert "areas must be from 0 to 20" in refusal(_erasing_of(min_area=-0.1))
    assert "not supported natively" in refusal(_erasing_of(min_count=1.5))
    with monkeypatch.context() as patch:
        patch.setattr(module, "_get_pixels", lambda *_, **__: 0.5)
        assert "timm.data.random_erasing._get_pixels was patched" in refusal(_erasing_of())
    with monkeypatch.context() as patch:
        patch.setattr(module.RandomErasing, "_erase", lambda *_: None)
        assert "RandomErasing._erase was patched" in refusal(_erasing_of())
    with monkeypatch.context() as patch:
        patch.setattr(timm_functions, "_erases_alike", lambda *_: False)
        assert "something else in the installed timm" in refusal(_erasing_of(probability=0.123))
    own = _erasing_of()
    own.transforms[2]._erase = lambda *_: None
    assert "RandomErasing._erase" in refusal(own)
    assert is_read(_erasing_of())


ODDLY = {
    "draws once more": (
        "random.random() > self.probability",
        "random.random() + 0 * random.random() > self.probability",
    ),
    "smaller": ("* area / count", "* area / (count + 1)"),
    "more attempts": ("range(10)", "range(11)"),
    "taller": ("target_area * aspect_ratio))", "target_area * aspect_ratio * 1.2))"),
    "to the edge": ("w < img_w and h < img_h", "w <= img_w and h <= img_h"),
    "another noise": ("(chan, h, w),", "(chan, h, w + 1) if False else (chan, w, h),"),
    "uniform noise": (".normal_()", ".uniform_()"),
    "negated": ("] = _get_pixels(", "] = -_get_pixels("),
}


@pytest.mark.parametrize("change", ODDLY)
def test_another_timm_that_erases_otherwise_is_refused(root, monkeypatch, change):
    module = timm_data.random_erasing
    monkeypatch.setattr(timm_functions, "_same", {})
    step = module.RandomErasing(mode="pixel", min_aspect=0.1, max_area=0.9, max_count=3, **ERASING)
    node = ops_timm.erasing(step)
    patches_of = Erasing(step, None, "pixels").patches
    timm_functions.check_same_erasing(step, node, patches_of)
    was, becomes = ODDLY[change]
    source = inspect.getsource(module)
    assert source.count(was) >= 1
    changed = dict(vars(module))
    exec(compile(source.replace(was, becomes), module.__file__, "exec"), changed)
    for name in ("_erase", "__call__"):
        monkeypatch.setattr(module.RandomErasing, name, vars(changed["RandomErasing"])[name])
    monkeypatch.setattr(module, "_get_pixels", changed["_get_pixels"])
    monkeypatch.setattr(timm_functions, "_same", {})
    with pytest.raises(Refused, match="something else in the installed timm"):
        timm_functions.check_same_erasing(step, node, patches_of)


def test_a_patch_of_timms_is_seen(root, monkeypatch):
    dataset = ImageFolder(root, v1.Compose([v1.RandomResizedCrop(9), timm_data.transforms.MaybeToTensor()]))
    assert isinstance(read_recipe(dataset), Recipe)
    monkeypatch.setattr(timm_data.transforms.MaybeToTensor, "__call__", v1.PILToTensor.__call__)
    read = read_recipe(dataset)
    assert isinstance(read, Refusal)
    assert "MaybeToTensor.__call__ was patched; leave timm's" in read.reasons[0]
