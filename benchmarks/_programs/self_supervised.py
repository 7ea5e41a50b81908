"""Self-supervised learning: MoCo v3, DINOv2, I-JEPA, lightly."""

from __future__ import annotations

import io
import random
from importlib import import_module
from multiprocessing import Value
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import default_collate
from torchvision import transforms
from torchvision.datasets import ImageFolder, VisionDataset
from torchvision.transforms import InterpolationMode

from benchmarks import _recipe_steps as steps
from benchmarks._programs._program import Arguments, program
from benchmarks._recipes import Source
from fastload.bench._data import MEAN, STD

FAMILY: Final = "self-supervised"


class TwoCrops:
    """Two views of an image, by a transform each."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second

    def __call__(self, image: Any) -> list[Any]:
        """Make both views."""
        return [self.first(image), self.second(image)]


@program(FAMILY, "PIL")
def moco_v3(source: Source) -> Arguments:
    """ImageFolder: two crops, ColorJitter, Pillow's blur, solarization."""
    views = []
    for p, more in ((1.0, []), (0.1, [transforms.RandomApply([steps.PillowSolarize()], p=0.2)])):
        parts = [transforms.RandomResizedCrop(224, scale=(0.08, 1.0))]
        parts.append(transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8))
        parts += [transforms.RandomGrayscale(p=0.2), transforms.RandomApply([steps.PillowBlur()], p=p), *more]
        parts += [transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        views.append(transforms.Compose(parts))
    return {"dataset": ImageFolder(str(source.folder), TwoCrops(*views)), "shuffle": True, "drop_last": True}


class DinoCrops:
    """Two global crops and eight local ones, by name."""

    def __init__(self) -> None:
        jitter = [transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8)]
        jitter.append(transforms.RandomGrayscale(p=0.2))
        tensor = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]

        def blur(p: float) -> Any:
            return transforms.RandomApply([transforms.GaussianBlur(kernel_size=9, sigma=(0.1, 2.0))], p=p)

        solarize = transforms.RandomSolarize(threshold=128, p=0.2)
        self.place = {"global": self._crop(224, (0.32, 1.0)), "local": self._crop(96, (0.05, 0.32))}
        self.first = transforms.Compose([*jitter, blur(1.0), *tensor])
        self.second = transforms.Compose([*jitter, blur(0.1), solarize, *tensor])
        self.local = transforms.Compose([*jitter, blur(0.5), *tensor])

    @staticmethod
    def _crop(size: int, scale: tuple[float, float]) -> Any:
        crop = transforms.RandomResizedCrop(size, scale=scale, interpolation=InterpolationMode.BICUBIC)
        return transforms.Compose([crop, transforms.RandomHorizontalFlip(p=0.5)])

    def __call__(self, image: Any) -> dict[str, Any]:
        """Make all crops of an image."""
        crops = [each(self.place["global"](image)) for each in (self.first, self.second)]
        local = [self.local(self.place["local"](image)) for _ in range(8)]
        return {"global_crops": crops, "global_crops_teacher": crops, "local_crops": local, "offsets": ()}


class BytesDataset(VisionDataset):  # type: ignore[misc]
    """Reads a file's bytes, decodes them by Pillow, and transforms image and target together."""

    def __init__(self, samples: list[tuple[str, int]], transform: Any) -> None:
        super().__init__("", transform=transform)
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, target = self.samples[index]
        try:
            image = Image.open(io.BytesIO(Path(path).read_bytes())).convert("RGB")
        except OSError as error:
            raise RuntimeError(f"can not read image for sample {index}") from error
        return self.transforms(image, target) if self.transforms is not None else (image, target)


def collate_crops(samples: list[Any], patches: int = 14) -> dict[str, Any]:
    """Stack crops view by view, and draw masks for half of the global ones."""
    views = {
        name: torch.stack([one[0][name][view] for view in range(len(samples[0][0][name])) for one in samples])
        for name in ("global_crops", "local_crops")
    }
    drawn = []
    for share in np.linspace(0.1, 0.5, len(samples) + 1)[1:]:
        mask = np.zeros((patches, patches), bool)
        side = int(patches * share**0.5)
        top, left = random.randint(0, patches - side), random.randint(0, patches - side)
        mask[top : top + side, left : left + side] = True
        drawn.append(torch.from_numpy(mask))
    drawn += [torch.zeros(patches, patches, dtype=torch.bool)] * len(samples)
    random.shuffle(drawn)
    masks = torch.stack(drawn).flatten(1)
    return {
        "collated_global_crops": views["global_crops"].to(torch.half),
        "collated_local_crops": views["local_crops"].to(torch.half),
        "collated_masks": masks,
        "mask_indices_list": masks.flatten().nonzero().flatten(),
        "masks_weight": (1 / masks.sum(-1).clamp(min=1.0)).unsqueeze(-1).expand_as(masks)[masks],
    }


@program(FAMILY, "PIL")
def dinov2(source: Source) -> Arguments:
    """Own VisionDataset of bytes: 2 + 8 crops, ColorJitter, torchvision's blur; masks when collated."""
    dataset = BytesDataset(source.samples, DinoCrops())
    return {"dataset": dataset, "shuffle": True, "drop_last": True, "collate_fn": collate_crops}


class ImageNet(ImageFolder):  # type: ignore[misc]
    """ImageFolder under the name of the data set that the program reads."""

    def __init__(self, root: str, transform: Any) -> None:
        super().__init__(root, transform=transform)


class MultiblockMasks:
    """``default_collate``, with blocks of patches that are drawn from a counter which all workers share."""

    def __init__(self, patches: int = 14) -> None:
        self.patches = patches
        self.counter: Any = Value("i", -1)

    def __call__(self, samples: Any) -> Any:
        """Draw encoder's and predictor's masks of each sample."""
        with self.counter.get_lock():
            self.counter.value += 1
            seed = self.counter.value
        generator = torch.Generator().manual_seed(seed)
        size = self._size(generator, (0.15, 0.2), (0.75, 1.5))
        whole = self._size(generator, (0.85, 1.0), (1.0, 1.0))
        predicted, kept = [], []
        for _ in samples:
            blocks = [self._block(size) for _ in range(4)]
            left_over = self._block(whole)
            for block in blocks:
                left_over = left_over * (1 - block)
            predicted.append([block.flatten().nonzero().squeeze(1) for block in blocks])
            kept.append(left_over.flatten().nonzero().squeeze(1))
        least = min(map(len, kept))
        return default_collate(samples), default_collate([one[:least] for one in kept]), default_collate(predicted)

    def _size(self, generator: Any, scale: tuple[float, float], aspect: tuple[float, float]) -> tuple[int, int]:
        drawn = torch.rand(1, generator=generator).item()
        area = int(self.patches**2 * (scale[0] + drawn * (scale[1] - scale[0])))
        ratio = aspect[0] + drawn * (aspect[1] - aspect[0])
        height, width = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        return min(height, self.patches - 1), min(width, self.patches - 1)

    def _block(self, size: tuple[int, int]) -> torch.Tensor:
        top, left = (int(torch.randint(0, self.patches - side, (1,))) for side in size)
        mask = torch.zeros(self.patches, self.patches, dtype=torch.int32)
        mask[top : top + size[0], left : left + size[1]] = 1
        return mask


@program(FAMILY, "PIL", repeatable=False)
def ijepa(source: Source) -> Arguments:
    """Subclass of ImageFolder: crop, masks from a counter that workers share."""
    parts = [transforms.RandomResizedCrop(224, scale=(0.3, 1.0)), transforms.ToTensor()]
    dataset = ImageNet(str(source.folder), transforms.Compose([*parts, transforms.Normalize(MEAN, STD)]))
    return {"dataset": dataset, "shuffle": True, "drop_last": True, "collate_fn": MultiblockMasks()}


@program(FAMILY, "PIL")
def ijepa_nw1(source: Source) -> Arguments:
    """The same with one worker, whose counter is its own."""
    return {**ijepa(source), "num_workers": 1}


@program(FAMILY, "PIL", "lightly")
def lightly_simclr(source: Source) -> Arguments:
    """LightlyDataset and SimCLRTransform: two crops, ColorJitter, Pillow's blur."""
    transform = import_module("lightly.transforms").SimCLRTransform(input_size=224)
    dataset = import_module("lightly.data").LightlyDataset(str(source.folder), transform=transform)
    return {"dataset": dataset, "shuffle": True, "drop_last": True}
