"""Torchvision's datasets of arrays, with random images and without their archives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torchvision import datasets
from torchvision.datasets import VisionDataset

COLORED = ("CIFAR10", "CIFAR100", "SVHN", "STL10")
GRAY = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST", "USPS")
COUNT = 29


def stored(
    name: str, transform: Any = None, kind: Any = None, target_transform: Any = None, count: int = COUNT, **changes: Any
) -> Any:
    """Make a dataset as torchvision would from its archive."""
    dataset: Any = object.__new__(kind or getattr(datasets, name))
    VisionDataset.__init__(dataset, "", transform=transform, target_transform=target_transform)
    rng = np.random.default_rng(5)
    shape = (count, 32, 32, 3) if name.startswith("CIFAR") else (count, 3, 32, 32)
    if name in GRAY:
        shape = (count, 16, 16) if name == "USPS" else (count, 28, 28)
    dataset.data = rng.integers(0, 256, shape, dtype=np.uint8)
    targets = rng.integers(0, 10, count)
    if name in ("SVHN", "STL10"):
        dataset.labels = targets
    else:
        dataset.targets = targets.tolist()
    if name in GRAY and name != "USPS":
        dataset.data, dataset.targets = torch.from_numpy(dataset.data), torch.from_numpy(targets)
    if name == "QMNIST":
        dataset.targets, dataset.compat = torch.from_numpy(rng.integers(0, 10, (count, 8))), True
    vars(dataset).update(changes)
    return dataset
