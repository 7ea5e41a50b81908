"""Datasets, transforms and collate functions that the recipes' projects write themselves, in our words."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from torch.utils.data import Dataset, Sampler, default_collate
from torchvision import transforms
from torchvision.datasets import CIFAR10, VisionDataset
from torchvision.transforms import functional, v2

from fastload.bench._data import MEAN, STD


class Calls:
    """A preset's class: holds a Compose and calls it."""

    def __init__(self, inner: Callable[[Any], Any]) -> None:
        self.transforms = inner

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


class Views:
    """Several transforms of one image, each as often as is said."""

    def __init__(self, *views: tuple[Callable[[Any], Any], int]) -> None:
        self.views = views

    def __call__(self, image: Any) -> list[Any]:
        return [view(image) for view, times in self.views for _ in range(times)]


class PillowBlur:
    """Pillow's Gaussian blur with probability ``p`` and a radius from Python's ``random``."""

    def __init__(self, p: float = 1.0, radius: tuple[float, float] = (0.1, 2.0)) -> None:
        self.p = p
        self.radius = radius

    def __call__(self, image: Any) -> Any:
        if random.random() > self.p:
            return image
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(*self.radius)))


class PillowSolarize:
    """Pillow's solarization with probability ``p`` of Python's ``random``."""

    def __init__(self, p: float = 1.0) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        return ImageOps.solarize(image) if random.random() < self.p else image


class Gray:
    """Torchvision's Grayscale with probability ``p`` of Python's ``random``."""

    def __init__(self, p: float = 1.0) -> None:
        self.p = p
        self.transform = transforms.Grayscale(3)

    def __call__(self, image: Any) -> Any:
        return self.transform(image) if random.random() < self.p else image


def to_rgb(image: Any) -> Any:
    """Convert an image to RGB."""
    return image.convert("RGB")


class RepeatedSampler(Sampler[int]):
    """Draws each index several times in a row, in a seeded order, for one epoch."""

    def __init__(self, count: int, times: int) -> None:
        self.count = count
        self.times = times

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(0))
        yield from order.repeat_interleave(self.times)[: self.count].tolist()


class Mixes:
    """``default_collate``, then MixUp or CutMix of the batch."""

    def __init__(self, classes: int) -> None:
        choices = [v2.MixUp(alpha=0.2, num_classes=classes), v2.CutMix(alpha=1.0, num_classes=classes)]
        self.mix = v2.RandomChoice(choices)

    def __call__(self, samples: Any) -> Any:
        return self.mix(*default_collate(samples))


class Segmentation(Dataset[Any]):
    """Images and masks that are scaled, flipped and cropped together, as in torchvision's reference."""

    def __init__(self, paths: Sequence[str], mean: Sequence[float], std: Sequence[float], crop: int = 480) -> None:
        self.paths = paths
        self.mean = mean
        self.std = std
        self.crop = crop

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        mask: Any = Image.fromarray((np.indices(image.size[::-1]).sum(0) // 64 % 21).astype(np.uint8))
        short = random.randint(self.crop * 13 // 24, self.crop * 13 // 6)
        image = functional.resize(image, [short], antialias=True)
        mask = functional.resize(mask, [short], functional.InterpolationMode.NEAREST)
        if random.random() < 0.5:
            image, mask = functional.hflip(image), functional.hflip(mask)
        padding = [0, 0, max(0, self.crop - image.size[0]), max(0, self.crop - image.size[1])]
        image, mask = functional.pad(image, padding, fill=0), functional.pad(mask, padding, fill=255)
        box = transforms.RandomCrop.get_params(image, (self.crop, self.crop))
        pixels = functional.pil_to_tensor(functional.crop(image, *box)).to(torch.float32) / 255
        target = torch.as_tensor(np.array(functional.crop(mask, *box)), dtype=torch.int64)
        return functional.normalize(pixels, list(self.mean), list(self.std)), target


class Detection(Dataset[Any]):
    """Images of their own sizes, with boxes that are flipped with them."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        width, height = image.size
        boxes = torch.tensor([[0.1, 0.2, 0.6, 0.9], [0.4, 0.1, 0.8, 0.5]]) * torch.tensor([width, height] * 2)
        if torch.rand(1) < 0.5:
            image = functional.hflip(image)
            boxes[:, [0, 2]] = width - boxes[:, [2, 0]]
        pixels = functional.convert_image_dtype(functional.pil_to_tensor(image), torch.float)
        return pixels, {"boxes": boxes, "labels": torch.tensor([1, index % 91])}


def as_tuples(samples: Any) -> Any:
    """Turn samples into a tuple of images and one of targets."""
    return tuple(zip(*samples, strict=True))


class DictSamples(Dataset[Any]):
    """Dict samples from encoded bytes, as ``datasets`` gives them; the transform takes lists."""

    def __init__(self, samples: Sequence[tuple[str, int]], transform: Callable[[Any], Any]) -> None:
        self.rows = [(Path(path).read_bytes(), target) for path, target in samples]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        data, target = self.rows[index]
        image = Image.open(io.BytesIO(data))
        image.load()
        batch: dict[str, list[Any]] = {"image": [image], "label": [target]}
        batch["pixel_values"] = [self.transform(item.convert("RGB")) for item in batch["image"]]
        return {name: values[0] for name, values in batch.items()}


def stack_dicts(samples: Any) -> dict[str, torch.Tensor]:
    """Stack dict samples as the script for image classification does."""
    pixels = torch.stack([sample["pixel_values"] for sample in samples])
    return {"pixel_values": pixels, "labels": torch.tensor([sample["label"] for sample in samples])}


class OwnSamples(Dataset[Any]):
    """Opens a file per sample and gives a dict."""

    def __init__(self, samples: Sequence[tuple[str, int]], transform: Callable[[Any], Any]) -> None:
        self.samples = samples
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path, target = self.samples[index]
        return {"img": self.transform(Image.open(path).convert("RGB")), "cls": target}


class OwnImages(Dataset[Any]):
    """Opens a file per sample, or takes a black image, and gives a dict."""

    def __init__(self, samples: Sequence[tuple[str, int]], transform: Callable[[Any], Any]) -> None:
        self.samples = samples
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path, label = self.samples[index]
        try:
            image = Image.open(path).convert("RGB")
        except OSError:
            image = Image.new("RGB", (224, 224))
        return {"pixel_values": self.transform(image), "label": label}


class ThroughArray:
    """Reads every pixel of an image as an array, and makes an image again."""

    def __call__(self, image: Any) -> Any:
        return Image.fromarray(np.asarray(image))


def stack_crops(samples: Any) -> dict[str, torch.Tensor]:
    """Stack two global crops and the local ones, crop by crop."""
    crops = [torch.stack(views) for views in zip(*(views for views, _ in samples), strict=True)]
    return {"global": torch.cat(crops[:2]), "local": torch.cat(crops[2:])}


class Masks:
    """``default_collate``, with random blocks of patches to predict (I-JEPA)."""

    def __init__(self, patches: int = 14) -> None:
        self.patches = patches

    def __call__(self, samples: Any) -> Any:
        masks = []
        for _ in range(4):
            height, width = (int(side) for side in torch.randint(4, 7, (2,)))
            top, left = (int(torch.randint(0, self.patches - side + 1, ())) for side in (height, width))
            mask = torch.zeros(self.patches, self.patches, dtype=torch.int32)
            mask[top : top + height, left : left + width] = 1
            masks.append(mask.flatten().nonzero().squeeze(1))
        return default_collate(samples), masks


def cifar(samples: Sequence[tuple[str, int]], transform: Callable[[Any], Any]) -> CIFAR10:
    """Make torchvision's CIFAR10 of photographs scaled to 32 px instead of the downloaded ones."""
    images = [Image.open(path).convert("RGB").resize((32, 32)) for path, _ in samples]
    return cifar_of(
        np.stack([np.asarray(image) for image in images]), [target % 10 for _, target in samples], transform
    )


def cifar_of(data: Any, targets: list[int], transform: Callable[[Any], Any]) -> CIFAR10:
    """Make torchvision's CIFAR10 of given images instead of the downloaded ones."""
    made = CIFAR10.__new__(CIFAR10)
    VisionDataset.__init__(made, "", transform=transform)
    made.train, made.data, made.targets = True, data, targets
    return made


def to_int(target: Any) -> int:
    """Convert a class to a number."""
    return int(target)


class Opaque:
    """A class of the user's own that calls torchvision's functions, which nothing reads."""

    def __init__(self) -> None:
        self.size = (224, 224)

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Crop, flip, change colours."""
        box = transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
        image = functional.resized_crop(image, *box, self.size)
        draws = torch.rand(3).tolist()
        if draws[0] < 0.5:
            image = functional.hflip(image)
        image = functional.adjust_saturation(functional.adjust_brightness(image, 0.6 + draws[1]), 0.6 + draws[2])
        tensor: torch.Tensor = functional.normalize(functional.to_tensor(image), list(MEAN), list(STD))
        return tensor


class Marked:
    """A step of the user's own in the middle of a Compose: it changes pixels."""

    def __call__(self, image: Image.Image) -> Image.Image:
        """Paint a square in one corner."""
        image.paste((124, 116, 104), (0, 0, 32, 32))
        return image
