"""Transforms that only call others are read through; those that do anything else are not."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms as v1
from photos import photos_fixture
from torchvision.datasets import ImageFolder
from torchvision.models import ResNet50_Weights
from torchvision.transforms import v2

from fastload.pipeline.code.wrappers import parts_of
from fastload.pipeline.recipe import Refusal, read_recipe

STEPS = [v1.RandomResizedCrop(8), v1.RandomHorizontalFlip(), v1.ToTensor()]


class Preset:
    """As in torchvision's references."""

    def __init__(self, inner):
        self.transforms = inner

    def __call__(self, img):
        """A docstring changes nothing."""
        return self.transforms(img)


class Typed(Preset):
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return self.transforms(image)


class Module(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def to_rgb(img):
    return img.convert("RGB")


root = photos_fixture(5)
WRAPPED = {
    "preset": lambda: Preset(v1.Compose(STEPS)),
    "typed": lambda: Typed(v1.Compose(STEPS)),
    "module": lambda: Module(v1.Compose(STEPS)),
    "module in module": lambda: Module(Module(v1.Compose(STEPS))),
    "sequential": lambda: v1.Compose([torch.nn.Sequential(*STEPS[:2]), STEPS[2]]),
    "lambda to RGB": lambda: v1.Compose([v1.Lambda(lambda image: image.convert("RGB")), *STEPS]),
    "function to RGB": lambda: v1.Compose([to_rgb, *STEPS]),
    "v2.RGB": lambda: v2.Compose([v2.RGB(), *STEPS]),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_what_only_calls_others_has_their_recipe(root, name):
    recipe = read_recipe(ImageFolder(root, WRAPPED[name]()))
    plain = read_recipe(ImageFolder(root, v1.Compose(STEPS)))
    assert not isinstance(recipe, Refusal), recipe.reasons
    assert recipe.pipeline.nodes == plain.pipeline.nodes


def test_the_transforms_of_weights_have_a_recipe(root):
    recipe = read_recipe(ImageFolder(root, ResNet50_Weights.IMAGENET1K_V2.transforms()))
    assert not isinstance(recipe, Refusal), recipe.reasons
    assert recipe.pipeline.sizes == ((224, 224),)


class Twice(Preset):
    def __call__(self, img):
        return self.transforms(self.transforms(img))


class Drawing(Preset):
    def __call__(self, img):
        torch.rand(1)
        return self.transforms(img)


class Defaulting(Preset):
    def __call__(self, img, more=None):
        return self.transforms(img)


class Computed(Preset):
    @property
    def transforms(self):
        torch.rand(1)
        return v1.Compose(STEPS)

    @transforms.setter
    def transforms(self, value):
        pass


class Answering(Preset):
    def __getattribute__(self, name):
        return super().__getattribute__(name)


class Slotted:
    __slots__ = ("transforms",)

    def __call__(self, img):
        return self.transforms(img)


def hooked():
    module = Module(v1.Compose(STEPS))
    module.register_forward_hook(lambda *_: None)
    return module


def patched():
    module = Module(v1.Compose(STEPS))
    module.forward = lambda x: x
    return module


class OwnCall(Module):
    def _call_impl(self, x):
        return x


def called(name):
    module = Module(v1.Compose(STEPS))
    setattr(module, name, lambda x: x)
    return module


def hooked_backwards():
    module = Module(v1.Compose(STEPS))
    module.register_full_backward_pre_hook(lambda *_: None)
    return module


OTHERS = {
    "twice": lambda: Twice(v1.Compose(STEPS)),
    "drawing": lambda: Drawing(v1.Compose(STEPS)),
    "defaults": lambda: Defaulting(v1.Compose(STEPS)),
    "computed": lambda: Computed(None),
    "answering": lambda: Answering(v1.Compose(STEPS)),
    "slots": Slotted,
    "hook": hooked,
    "backward hook": hooked_backwards,
    "a call of its class": lambda: OwnCall(v1.Compose(STEPS)),
    "a call of its own": lambda: called("_call_impl"),
    "compiled": lambda: called("_compiled_call_impl"),
    "patched": patched,
    "other mode": lambda: v1.Lambda(lambda image: image.convert("L")),
    "other method": lambda: v1.Lambda(lambda image: image.quantize("RGB")),
    "function": lambda: lambda image: image,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_does_anything_else_is_no_wrapper(name):
    assert parts_of(OTHERS[name]()) is None
