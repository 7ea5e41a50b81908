"""Test which functions are known to calculate with single values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from photos import assert_same, both, photos_fixture
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload import FastLoader
from fastload.pipeline.code.pointwise import is_pointwise

folder = photos_fixture(9)
scale = 2.0


def closure(by):
    return lambda x: x * by


POINTWISE = [
    lambda x: x.mul(255),
    lambda x: x * 2 - 1,
    lambda t: (t * 2) - 1,
    lambda x: -(1 - x) / 0.5 + x * x,
    lambda x: x.sub(0.5).div(0.25),
]
OTHERS = [
    lambda x: x,
    lambda x: x - x.mean(),
    lambda x: x * scale,
    closure(2),
    lambda x: x.mul_(2),
    lambda x: x.flip(1),
    lambda x: x.add(1, alpha=2),
    lambda x: x[0] * 2,
    lambda x: x @ x,
    lambda x: x**2,
    lambda x: x * True,
    lambda x: x.mul(x),
    lambda x: 2,
    lambda x: x.mul,
    lambda x: (x, 2),
    lambda x, y=2: x * y,
    lambda *x: x * 2,
    lambda x: x * 2 if x is not None else x,
    lambda x: [x for _ in range(2)],
    torch.neg,
    transforms.ToTensor(),
]


@pytest.mark.parametrize("number", range(len(POINTWISE)))
def test_known_ones_calculate_with_single_values(number):
    function = POINTWISE[number]
    assert is_pointwise(function)
    values = torch.from_numpy(np.random.default_rng(number).random((3, 5, 7), dtype=np.float32))
    mixed = torch.randperm(values.numel(), generator=torch.Generator().manual_seed(1))
    assert torch.equal(function(values).flatten()[mixed], function(values.flatten()[mixed]))


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_all_others_are_not_known(number):
    assert not is_pointwise(OTHERS[number])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("module", [transforms, v2])
def test_they_run_natively_behind_to_tensor(folder, module, workers):
    def dataset_of():
        steps = [module.Resize(20), module.CenterCrop(16), transforms.ToTensor(), module.Lambda(lambda x: x.mul(255))]
        return ImageFolder(folder, transforms.Compose([*steps, module.Lambda(lambda x: x * 2 - 1)]))

    loader = FastLoader(dataset_of(), 3, num_workers=workers, device="cpu")
    assert loader.plan.engine == "native"
    ours, theirs = both(dataset_of, FastLoader, {"device": "cpu"}, batch_size=3, num_workers=workers, shuffle=True)
    assert_same(ours, theirs)


def test_before_a_tensor_they_are_named(folder):
    steps = [transforms.Lambda(lambda x: x.mul(255)), transforms.CenterCrop(16), transforms.ToTensor()]
    loader = FastLoader(ImageFolder(folder, transforms.Compose(steps)), 3, num_workers=1, device="cpu")
    assert "Lambda comes before the image becomes a tensor" in " ".join(str(loader.plan).split())
