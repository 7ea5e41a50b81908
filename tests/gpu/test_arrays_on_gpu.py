"""Batches of arrays in memory reach the GPU with torch's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from torch.utils.data import DataLoader
from torchvision.datasets import CIFAR10, VisionDataset

from fastload import FastLoader

pytestmark = pytest.mark.gpu


def cifar() -> CIFAR10:
    transform = v1.Compose(
        [v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(0.5, 0.25)]
    )
    dataset = object.__new__(CIFAR10)
    VisionDataset.__init__(dataset, "", transform=transform)
    dataset.data = np.random.default_rng(2).integers(0, 256, (61, 32, 32, 3), dtype=np.uint8)
    dataset.targets = list(range(61))
    return dataset


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_arrays_are_torchs(workers):
    def epochs(kind, **own):
        torch.manual_seed(7)
        loader = kind(cifar(), batch_size=8, shuffle=True, num_workers=workers, **own)
        return [batch for _ in range(2) for batch in loader]

    ours = epochs(FastLoader, device="cuda", engine="native")
    for (images, targets), (their_images, their_targets) in zip(ours, epochs(DataLoader), strict=True):
        assert images.is_cuda
        assert targets.is_cuda
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(images.cpu().view(torch.int32), their_images.view(torch.int32))
        assert torch.equal(targets.cpu(), their_targets)
