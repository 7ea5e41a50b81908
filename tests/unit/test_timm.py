"""timm's transforms for evaluation run natively, and what of timm doesn't is named truly."""

from __future__ import annotations

import pytest
import torchvision.transforms as v1
from photos import photos_fixture
from torchvision.datasets import ImageFolder

from fastload import FastLoader, verify
from fastload.pipeline.reader import Recipe, Refusal, read_recipe

timm_data = pytest.importorskip("timm.data")


root = photos_fixture(9)


@pytest.mark.parametrize("how", [{}, {"normalize": False}, {"interpolation": "bicubic", "crop_mode": "squash"}])
def test_timms_transform_for_evaluation_is_native(root, how):
    dataset = ImageFolder(root, timm_data.create_transform(48, is_training=False, **how))
    result = verify(FastLoader(dataset, 4, num_workers=2, device="cpu", engine="native"))
    assert result, result
    assert (result.engine, result.compared) == ("native", 3)


def test_timms_transform_for_training_is_refused_by_name(root):
    read = read_recipe(ImageFolder(root, timm_data.create_transform(48, is_training=True)))
    assert isinstance(read, Refusal)
    assert "RandomResizedCropAndInterpolation is not supported natively yet" in read.reasons[0]


def test_a_patch_of_timms_is_seen(root, monkeypatch):
    dataset = ImageFolder(root, v1.Compose([v1.RandomResizedCrop(9), timm_data.transforms.MaybeToTensor()]))
    assert isinstance(read_recipe(dataset), Recipe)
    monkeypatch.setattr(timm_data.transforms.MaybeToTensor, "__call__", v1.PILToTensor.__call__)
    read = read_recipe(dataset)
    assert isinstance(read, Refusal)
    assert "MaybeToTensor.__call__ was patched; leave timm's" in read.reasons[0]
