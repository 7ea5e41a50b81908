"""The images that a contender loads, and the loader that it opens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.data import Sampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastload.bench._data import ENDLESS, MEAN, STD, EndlessDraws, pool_indices

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]

SIDE = 224

_TRANSFORMS: dict[str, Callable[[], tuple[list[Any], list[Any]]]] = {
    "crops": lambda: ([], []),
    "randaugment": lambda: ([transforms.RandAugment()], [transforms.RandomErasing(0.1)]),
    "trivialaugment": lambda: ([transforms.TrivialAugmentWide()], [transforms.RandomErasing(0.1)]),
}
"""Transforms of the image before it becomes a tensor, and of the tensor, by recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Images to load, the same for every contender."""

    data: str  # folder of an ImageFolder
    threads: int  # number of threads, or worker processes, that load
    batch_size: int  # images per batch
    # whether to load random crops and flips of shuffled images without end; otherwise one pass of the first
    # `images` images of the pool in order, whole, resized
    train: bool = True
    images: int = 0  # number of images of the pool; with `train` 0 stands for all
    device: str = "cpu"  # device of the batches: float32, normalized, in channels_last order on a GPU
    seed: int = 0  # seed of the draws, where a contender takes one
    recipe: str = "crops"  # one of RECIPES, for training

    def __post_init__(self) -> None:
        for name, low in (("threads", 1), ("batch_size", 1), ("images", 0 if self.train else 1)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be >= {low}, got {getattr(self, name)}")

    @property
    def on_gpu(self) -> bool:
        """Whether batches go to a CUDA device."""
        return torch.device(self.device).type == "cuda"

    def transform(self) -> Callable[[Any], Any]:
        """Torchvision's transforms, as its reference scripts compose them."""
        if self.train:
            before, after = _TRANSFORMS[self.recipe]()
            crop = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), *before]
        else:
            crop, after = [transforms.Resize((SIDE, SIDE))], []
        steps = [*crop, transforms.ToTensor(), transforms.Normalize(MEAN, STD), *after]
        composed: Callable[[Any], Any] = transforms.Compose(steps)
        return composed

    def dataset(self, transform: Callable[[Any], Any] | None = None) -> ImageFolder:
        """The images, with ``transform`` or the usual one."""
        return ImageFolder(self.data, transform or self.transform())

    def indices(self, dataset: ImageFolder) -> list[int]:
        """Indices to draw from; without ``train``, those that are loaded."""
        pool = pool_indices(dataset)
        return pool[: self.images] if self.images else pool

    def sampler(self, dataset: ImageFolder) -> Sampler[int] | list[int]:
        """A sampler, for loaders that take torch's."""
        indices = self.indices(dataset)
        return EndlessDraws(indices, ENDLESS, self.seed) if self.train else indices

    def options(self, dataset: ImageFolder) -> dict[str, Any]:
        """Arguments of loaders that take torch's."""
        return {"batch_size": self.batch_size, "sampler": self.sampler(dataset), "num_workers": self.threads}

    def files(self) -> tuple[list[str], list[int]]:
        """Paths and labels, for loaders that read files by themselves."""
        dataset = self.dataset()
        chosen = [dataset.samples[index] for index in self.indices(dataset)]
        return [path for path, _ in chosen], [label for _, label in chosen]

    def record(self) -> dict[str, Any]:
        """Arguments that make the same job in the contender's process."""
        return asdict(self)


@dataclass(slots=True)
class Feed:
    """A loader that runs."""

    batches: Batches  # iterator of images and labels, on the job's device
    close: Callable[[], object]  # function that ends workers and threads; blocks until they have gone
    # function that returns the pinned memory that the loader itself has registered with CUDA
    arena_bytes: Callable[[], int] = int
    # function that returns whether the slots are made, which come with the first batches
    is_settled: Callable[[], bool] = lambda: True


def in_model_layout(images: torch.Tensor) -> torch.Tensor:
    """Return a batch in the model's layout: channels_last on the GPU, unchanged on the CPU."""
    return images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images
