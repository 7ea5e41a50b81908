"""The recipes: 20 well-known training programs' data loading, from their published parameters.

Transforms, collate functions and samplers are those of the projects, in our words. What a project does to batches on
the GPU (timm's and DeiT's MixUp) is left out.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import Dataset, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode

from benchmarks import _recipe_steps as steps
from fastload.bench._data import MEAN, STD, training_transform

BICUBIC: Final = InterpolationMode.BICUBIC
_CLIP: Final = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


@dataclass(frozen=True, slots=True)
class Source:
    """Data that recipes load."""

    folder: Path  # folder with one folder of JPEG files per class
    images: int  # number of samples in an epoch
    scratch: Path  # folder for files of a recipe's own
    batch_size: int  # samples per batch
    shards: int = 4  # number of tar files, at least as many as workers

    @property
    def samples(self) -> list[tuple[str, int]]:
        """Path and class of each sample."""
        files = ImageFolder(str(self.folder)).samples
        return [files[index] for index in self.indices]

    @property
    def indices(self) -> list[int]:
        """Indices into the folder, spread over all classes."""
        count = len(ImageFolder(str(self.folder)))
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        return order.repeat(-(-self.images // count))[: self.images].tolist()

    def with_transform(self, transform: Callable[[Any], Any]) -> Dataset[Any]:
        """An ImageFolder with a transform, cut to the samples of an epoch."""
        return Subset(ImageFolder(str(self.folder), transform), self.indices)


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """A row of the table."""

    name: str  # project, and the model that it trains
    what: str  # transforms, in short
    # function that makes the arguments of DataLoader, beside num_workers and the like
    arguments: Callable[[Source], dict[str, Any]]
    needs: str | None = None  # optional package that it needs
    exact: bool = True  # whether FastLoader has to give the same bits


def _tensor(mean: Any = MEAN, std: Any = STD) -> list[Any]:
    return [transforms.ToTensor(), transforms.Normalize(mean, std)]


def _of(*parts: Any) -> Callable[[Source], dict[str, Any]]:
    return lambda source: _shuffled(source, transforms.Compose(list(parts)))


def _shuffled(source: Source, transform: Callable[[Any], Any], **rest: Any) -> dict[str, Any]:
    return {"dataset": source.with_transform(transform), "shuffle": True, **rest}


def _classification(source: Source) -> dict[str, Any]:
    parts = [transforms.RandomResizedCrop(224, antialias=True), transforms.RandomHorizontalFlip()]
    parts += [transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float), transforms.Normalize(MEAN, STD)]
    return _shuffled(source, steps.Calls(transforms.Compose(parts)))


def _newer(source: Source) -> dict[str, Any]:
    parts = [transforms.RandomResizedCrop(176, antialias=True), transforms.RandomHorizontalFlip()]
    parts += [transforms.TrivialAugmentWide(), transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float)]
    parts += [transforms.Normalize(MEAN, STD), transforms.RandomErasing(0.1)]
    dataset = source.with_transform(steps.Calls(transforms.Compose(parts)))
    return {"dataset": dataset, "sampler": steps.RepeatedSampler(source.images, 4), "collate_fn": steps.Mixes(1000)}


def _segmentation(source: Source) -> dict[str, Any]:
    return {"dataset": steps.Segmentation([path for path, _ in source.samples], MEAN, STD), "shuffle": True}


def _detection(source: Source) -> dict[str, Any]:
    dataset = steps.Detection([path for path, _ in source.samples])
    return {"dataset": dataset, "shuffle": True, "collate_fn": steps.as_tuples}


def _timm(*, repeats: int = 0, **options: Any) -> Callable[[Source], dict[str, Any]]:
    """Read options of ``timm.data.create_transform`` into a recipe."""

    def arguments(source: Source) -> dict[str, Any]:
        transform = import_module("timm.data").create_transform(input_size=224, is_training=True, **options)
        made = _shuffled(source, transform)
        return {**made, "shuffle": None, "sampler": steps.RepeatedSampler(source.images, repeats)} if repeats else made

    return arguments


_RAND_AUGMENT: Final[dict[str, Any]] = {"auto_augment": "rand-m9-mmax9-mstd0.5-inc1", "interpolation": "bicubic"}
"""The level is at most 9 here: at 10 timm posterizes to 0 bits, which Pillow 13 refuses."""
_ERASING: Final[dict[str, Any]] = {"re_prob": 0.25, "re_mode": "pixel", "re_count": 1}


def _three_augment(source: Source) -> dict[str, Any]:
    crop = import_module("timm.data.transforms").RandomResizedCropAndInterpolation
    parts = [crop(224, scale=(0.08, 1.0), interpolation="bicubic")]
    choice = transforms.RandomChoice([steps.Gray(), steps.PillowSolarize(), steps.PillowBlur()])
    parts += [transforms.RandomHorizontalFlip(), choice, transforms.ColorJitter(0.3, 0.3, 0.3), *_tensor()]
    return {
        **_shuffled(source, transforms.Compose(parts), shuffle=None),
        "sampler": steps.RepeatedSampler(source.images, 3),
    }


def _jitter(*amounts: float) -> list[Any]:
    return [transforms.RandomApply([transforms.ColorJitter(*amounts)], p=0.8), transforms.RandomGrayscale(p=0.2)]


def _moco(source: Source) -> dict[str, Any]:
    views = []
    for p, solarize in ((1.0, 0.0), (0.1, 0.2)):
        parts = [transforms.RandomResizedCrop(224, scale=(0.08, 1.0)), *_jitter(0.4, 0.4, 0.2, 0.1)]
        parts.append(transforms.RandomApply([steps.PillowBlur()], p=p))
        if solarize:
            parts.append(transforms.RandomApply([steps.PillowSolarize()], p=solarize))
        views.append((transforms.Compose([*parts, transforms.RandomHorizontalFlip(), *_tensor()]), 1))
    return _shuffled(source, steps.Views(*views))


def _dino(source: Source) -> dict[str, Any]:
    def view(size: int, scale: tuple[float, float], *rest: Any) -> Any:
        parts = [transforms.RandomResizedCrop(size, scale=scale, interpolation=BICUBIC)]
        parts += [transforms.RandomHorizontalFlip(), *_jitter(0.4, 0.4, 0.2, 0.1), *rest, *_tensor()]
        return transforms.Compose(parts)

    first = view(224, (0.4, 1.0), steps.PillowBlur(1.0))
    second = view(224, (0.4, 1.0), steps.PillowBlur(0.1), steps.PillowSolarize(0.2))
    local = view(96, (0.05, 0.4), steps.PillowBlur(0.5))
    return _shuffled(source, steps.Views((first, 1), (second, 1), (local, 8)))


def _dinov2(source: Source) -> dict[str, Any]:
    def view(size: int, scale: tuple[float, float], blur: float, *rest: Any) -> Any:
        parts = [transforms.RandomResizedCrop(size, scale=scale, interpolation=BICUBIC)]
        blurs = transforms.RandomApply([transforms.GaussianBlur(kernel_size=9, sigma=(0.1, 2.0))], p=blur)
        parts += [transforms.RandomHorizontalFlip(), *_jitter(0.4, 0.4, 0.2, 0.1), blurs, *rest, *_tensor()]
        return transforms.Compose(parts)

    first = view(224, (0.32, 1.0), 1.0)
    second = view(224, (0.32, 1.0), 0.1, transforms.RandomSolarize(threshold=128, p=0.2))
    crops = steps.Views((first, 1), (second, 1), (view(96, (0.05, 0.32), 0.5), 8))
    return _shuffled(source, crops, collate_fn=steps.stack_crops)


def _simclr(source: Source) -> dict[str, Any]:
    parts = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *_jitter(0.8, 0.8, 0.8, 0.2)]
    parts += [transforms.RandomApply([transforms.GaussianBlur(23, (0.1, 2.0))], p=0.5), transforms.ToTensor()]
    return _shuffled(source, steps.Views((transforms.Compose(parts), 2)))


def _ijepa(source: Source) -> dict[str, Any]:
    transform = transforms.Compose([transforms.RandomResizedCrop(224, scale=(0.3, 1.0)), *_tensor()])
    return _shuffled(source, transform, collate_fn=steps.Masks())


def _hugging_face(source: Source) -> dict[str, Any]:
    dataset = steps.DictSamples(source.samples, training_transform())
    return {"dataset": dataset, "shuffle": True, "collate_fn": steps.stack_dicts}


def _open_clip(source: Source) -> dict[str, Any]:
    parts = [transforms.RandomResizedCrop(224, scale=(0.9, 1.0), interpolation=BICUBIC), steps.to_rgb]
    transform = transforms.Compose([*parts, *_tensor(*_CLIP)])
    dataset = import_module("webdataset").WebDataset(_shards(source), shardshuffle=False, nodesplitter=None)
    dataset = dataset.decode("pilrgb").to_tuple("jpg", "cls").map_tuple(transform, steps.to_int)
    return {"dataset": dataset.batched(source.batch_size), "batch_size": None}


def _shards(source: Source) -> list[str]:
    source.scratch.mkdir(parents=True, exist_ok=True)
    paths = [str(source.scratch / f"{number:03}.tar") for number in range(source.shards)]
    write_shards(paths, source.samples)
    return paths


def write_shards(paths: Sequence[str], samples: Sequence[tuple[str, int]]) -> None:
    """Write samples into tar files in turn, each as a ``jpg`` and a ``cls``."""
    for number, path in enumerate(paths):
        with tarfile.open(path, "w") as tar:
            for index in range(number, len(samples), len(paths)):
                photo, target = samples[index]
                for name, data in (("jpg", Path(photo).read_bytes()), ("cls", str(target).encode())):
                    entry = tarfile.TarInfo(f"{index:07}.{name}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))


def _ultralytics(source: Source) -> dict[str, Any]:
    parts = [transforms.RandomResizedCrop(224, scale=(0.5, 1.0)), transforms.RandomHorizontalFlip()]
    parts += [transforms.RandAugment(interpolation=InterpolationMode.BILINEAR), *_tensor((0.0,) * 3, (1.0,) * 3)]
    transform = transforms.Compose([*parts, transforms.RandomErasing(0.4, inplace=True)])
    return {"dataset": steps.OwnSamples(source.samples, transform), "shuffle": True}


def _cifar(source: Source) -> dict[str, Any]:
    parts = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    parts += _tensor((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    return {"dataset": steps.cifar(source.samples, transforms.Compose(parts)), "shuffle": True}


_MAE = transforms.RandomResizedCrop(224, scale=(0.2, 1.0), interpolation=BICUBIC)

RECIPES: Final = (
    TrainingRecipe("pytorch/examples", "crop, flip", _of(*training_transform().transforms)),
    TrainingRecipe("torchvision references", "crop, flip, in a preset's class", _classification),
    TrainingRecipe(
        "torchvision, newer recipe", "TrivialAugmentWide, erasing, MixUp or CutMix, repeated augmentation", _newer
    ),
    TrainingRecipe("torchvision segmentation", "image and mask: scale, flip, crop to 480", _segmentation),
    TrainingRecipe("torchvision detection", "image and boxes: flip", _detection),
    TrainingRecipe(
        "timm",
        "its own crop, random interpolation, ColorJitter",
        _timm(color_jitter=0.4, interpolation="random"),
        "timm",
    ),
    TrainingRecipe(
        "DeiT", "rand-m9-mstd0.5-inc1, pixel erasing, repeats", _timm(repeats=3, **_RAND_AUGMENT, **_ERASING), "timm"
    ),
    TrainingRecipe("DeiT-III", "three-augment, ColorJitter, repeats", _three_augment, "timm"),
    TrainingRecipe(
        "ConvNeXt", "rand-m9-mstd0.5-inc1, pixel erasing", _timm(color_jitter=0.4, **_RAND_AUGMENT, **_ERASING), "timm"
    ),
    TrainingRecipe(
        "MAE pre-training", "bicubic crop from 0.2, flip", _of(_MAE, transforms.RandomHorizontalFlip(), *_tensor())
    ),
    TrainingRecipe(
        "MAE fine-tuning",
        "rand-m9-mstd0.5-inc1, pixel erasing",
        _timm(color_jitter=None, **_RAND_AUGMENT, **_ERASING),
        "timm",
    ),
    TrainingRecipe("MoCo v3", "2 crops, ColorJitter, Pillow's blur", _moco),
    TrainingRecipe("DINO", "2 + 8 crops, ColorJitter, Pillow's blur", _dino),
    TrainingRecipe("DINOv2", "2 + 8 crops, ColorJitter, torchvision's blur", _dinov2),
    TrainingRecipe("SimCLR", "2 crops, ColorJitter, torchvision's blur of 23", _simclr),
    TrainingRecipe("I-JEPA", "crop from 0.3, masks in the collate function", _ijepa),
    TrainingRecipe("Hugging Face classification", "dict samples from bytes, crop, flip", _hugging_face),
    TrainingRecipe("open_clip", "webdataset, bicubic crop from 0.9", _open_clip, "webdataset"),
    TrainingRecipe("Ultralytics classification", "RandAugment, erasing, dict samples", _ultralytics),
    TrainingRecipe("CIFAR-10", "padded crop of 32, flip", _cifar),
)
"""In the order of the documentation."""


def _parts(*middle: Any, behind: tuple[Any, ...] = ()) -> list[Any]:
    return [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *middle, *_tensor(), *behind]


def _augmented(*middle: Any, **rest: Any) -> Callable[[Source], dict[str, Any]]:
    return _of(*_parts(*middle, **rest))


_JITTER: Final = transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
_KNOWN: Final = {recipe.name: recipe for recipe in RECIPES}

PIPELINES: Final = (
    TrainingRecipe("crop, flip", "torchvision's classic recipe", _augmented()),
    TrainingRecipe(
        "RandAugment",
        "crop, flip, RandAugment, erasing",
        _augmented(transforms.RandAugment(), behind=(transforms.RandomErasing(0.1),)),
    ),
    TrainingRecipe(
        "TrivialAugmentWide",
        "crop, flip, TrivialAugmentWide, erasing",
        _augmented(transforms.TrivialAugmentWide(), behind=(transforms.RandomErasing(0.1),)),
    ),
    TrainingRecipe(
        "ColorJitter, Grayscale",
        "crop, flip, ColorJitter at 0.8, RandomGrayscale",
        _augmented(_JITTER, transforms.RandomGrayscale(0.2)),
    ),
    _KNOWN["DINO"],
    _KNOWN["SimCLR"],
    replace(_KNOWN["SimCLR"], name="SimCLR, exact=False", exact=False),
    TrainingRecipe(
        "one's own class",
        "calls torchvision's functions, and is not read",
        lambda source: _shuffled(source, steps.Opaque()),
    ),
    TrainingRecipe("one step of Python", "crop, flip, a class of one's own, to tensor", _augmented(steps.Marked())),
)
"""Pipelines of ``onecore``."""


def _own(*parts: Any) -> Callable[[Source], dict[str, Any]]:
    transform = transforms.Compose(list(parts))
    return lambda source: {"dataset": steps.OwnImages(source.samples, transform), "shuffle": True}


OWN: Final = (
    TrainingRecipe("own dataset, classic", "crop, flip", _own(*_parts())),
    TrainingRecipe(
        "own dataset, RandAugment",
        "crop, flip, RandAugment, erasing",
        _own(*_parts(transforms.RandAugment(), behind=(transforms.RandomErasing(0.25),))),
    ),
    TrainingRecipe(
        "own dataset, ColorJitter",
        "crop, flip, ColorJitter at 0.8, RandomGrayscale",
        _own(*_parts(*_jitter(0.4, 0.4, 0.2, 0.1))),
    ),
    TrainingRecipe(
        "own dataset, np.asarray", "every pixel read by the program, crop, flip", _own(steps.ThroughArray(), *_parts())
    ),
)
"""Pipelines of ``own``, from a dataset that the program's author has written."""

ELSEWHERE: Final = tuple(
    _KNOWN[name]
    for name in ("SimCLR", "DINOv2", "Hugging Face classification", "open_clip", "Ultralytics classification")
)
"""Other recipes of ``own``, whose programs have more of their own code than transforms."""
