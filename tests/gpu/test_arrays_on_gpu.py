"""Batches of arrays in memory reach the GPU with torch's bits."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms as v1
from stored import stored
from torch.utils.data import DataLoader

from fastload import FastLoader

pytestmark = pytest.mark.gpu


def classic(size: int) -> v1.Compose:
    steps = [v1.RandomCrop(size, padding=4), v1.RandomHorizontalFlip(), v1.ToTensor()]
    return v1.Compose([*steps, v1.Normalize(0.5, 0.25)])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["CIFAR10", "SVHN", "MNIST"])
def test_batches_of_arrays_are_torchs(name, workers):
    transform = classic(28 if name == "MNIST" else 32)

    def epochs(kind, **own):
        torch.manual_seed(7)
        dataset = stored(name, transform, count=61)
        loader = kind(dataset, batch_size=8, shuffle=True, num_workers=workers, **own)
        return [batch for _ in range(2) for batch in loader]

    ours = epochs(FastLoader, device="cuda", engine="native")
    for (images, targets), (their_images, their_targets) in zip(ours, epochs(DataLoader), strict=True):
        assert images.is_cuda
        assert targets.is_cuda
        assert images.shape == their_images.shape
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(images.cpu().view(torch.int32), their_images.view(torch.int32))
        assert torch.equal(targets.cpu(), their_targets)
