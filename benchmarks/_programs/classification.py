"""Image classification: tutorials, torchvision's references, timm, transformers, OpenMMLab, Ultralytics."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from benchmarks import _recipe_steps as steps
from benchmarks._programs._program import Arguments, beside, hugging_face, program
from benchmarks._recipes import RECIPES, Source
from fastload.bench._data import MEAN, STD, training_transform

FAMILY: Final = "classification"
_KNOWN: Final = {recipe.name: recipe.arguments for recipe in RECIPES}


@program(FAMILY, "PIL")
def tut_transfer_learning(source: Source) -> Arguments:
    """Torchvision's ImageFolder: crop, flip; batches of 4."""
    return {"dataset": ImageFolder(str(source.folder), training_transform()), "batch_size": 4, "shuffle": True}


@program(FAMILY, "PIL")
def tvref_cls_ta_re_mixup(source: Source) -> Arguments:
    """Torchvision's reference: TrivialAugment, erasing, repeated augmentation, MixUp or CutMix."""
    return _KNOWN["torchvision, newer recipe"](source)


def read_rgb(path: str) -> torch.Tensor:
    """Decode a file by torchvision.io."""
    image: torch.Tensor = decode_image(path, mode=ImageReadMode.RGB)
    return image


@program(FAMILY, "torchvision.io")
def tvref_cls_tensor_decode(source: Source) -> Arguments:
    """Torchvision's reference: a DatasetFolder whose loader is decode_image, crop, flip."""
    parts = [transforms.RandomResizedCrop(176, antialias=True), transforms.RandomHorizontalFlip()]
    parts += [transforms.ConvertImageDtype(torch.float), transforms.Normalize(MEAN, STD)]
    transform = steps.Calls(transforms.Compose(parts))
    return {"dataset": DatasetFolder(str(source.folder), read_rgb, IMG_EXTENSIONS, transform), "shuffle": True}


@program(FAMILY, "PIL")
def tvref_cls_v2_tensor_ra(source: Source) -> Arguments:
    """Torchvision's reference, transforms v2 of tensors: crop, flip, RandAugment, erasing."""
    parts = [v2.PILToTensor(), v2.RandomResizedCrop(176, antialias=True), v2.RandomHorizontalFlip(), v2.RandAugment()]
    parts += [v2.ToDtype(torch.float, scale=True), v2.Normalize(MEAN, STD), v2.RandomErasing(0.1), v2.ToPureTensor()]
    dataset = ImageFolder(str(source.folder), steps.Calls(v2.Compose(parts)))
    return {"dataset": dataset, "shuffle": True}


@program(FAMILY, "PIL PNG")
def png_masks_only(source: Source) -> Arguments:
    """Torchvision's ImageFolder of PNG files: crop, flip."""
    for path in beside(source, "png", lambda image: image):
        (target := source.scratch / "classes" / Path(path).name.partition("-")[0]).mkdir(parents=True, exist_ok=True)
        if not (link := target / Path(path).name).exists():
            link.symlink_to(path)
    return {"dataset": ImageFolder(str(source.scratch / "classes"), training_transform()), "shuffle": True}


def _timm(source: Source, *, prefetcher: bool = True, splits: int = 0, **options: Any) -> Arguments:
    """Arguments of timm's ``create_loader``."""
    timm, loading = import_module("timm.data"), import_module("timm.data.loader")
    dataset = timm.ImageDataset(str(source.folder))
    if splits:
        dataset = timm.AugMixDataset(dataset, num_splits=splits)
    made = {"interpolation": "random", "color_jitter": 0.4, "hflip": 0.5, "use_prefetcher": prefetcher, **options}
    dataset.transform = timm.create_transform(224, is_training=True, separate=splits > 0, **made)
    first_call = functools.partial(loading._worker_init, worker_seeding="all")
    rest: Arguments = {"collate_fn": loading.fast_collate} if prefetcher else {}
    return {"dataset": dataset, "shuffle": True, "drop_last": True, "worker_init_fn": first_call, **rest}


def _prefetched(loader: Any, **options: Any) -> Any:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return import_module("timm.data.loader").PrefetchLoader(loader, device=device, **options)


_RAND_AUGMENT: Final = (
    "rand-m9-mmax9-mstd0.5-inc1"  # at most 9: at 10 timm posterizes to 0 bits, which Pillow 13 refuses
)


@program(FAMILY, "PIL", "timm", around=_prefetched)
def timm_train_default(source: Source) -> Arguments:
    """Timm's ImageDataset: crop with a random filter, flip, ColorJitter; PrefetchLoader."""
    return _timm(source)


@program(FAMILY, "PIL", "timm")
def timm_train_noprefetch(source: Source) -> Arguments:
    """Timm's ImageDataset: crop with a random filter, flip, ColorJitter; --no-prefetcher."""
    return _timm(source, prefetcher=False)


@program(FAMILY, "PIL", "timm", around=functools.partial(_prefetched, re_prob=0.25, re_mode="pixel"))
def timm_train_repixel_ra(source: Source) -> Arguments:
    """Timm's ImageDataset: bicubic crop, flip, RandAugment; PrefetchLoader erases."""
    return _timm(source, auto_augment=_RAND_AUGMENT, interpolation="bicubic")


@program(FAMILY, "PIL", "timm", around=functools.partial(_prefetched, re_prob=0.25, re_mode="pixel", re_num_splits=3))
def timm_train_augsplits(source: Source) -> Arguments:
    """Timm's AugMixDataset: three splits of each image, two of them AugMix; PrefetchLoader erases."""
    return _timm(source, splits=3, auto_augment="augmix-m5-w3-d2")


class Records(Dataset[Any]):
    """Samples that an author's own function makes of a path and its class."""

    def __init__(self, samples: list[tuple[str, int]], make: Callable[[str, int], Any]) -> None:
        self.samples, self.make = samples, make

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.make(*self.samples[index])


def _albumentations() -> Any:
    albu = import_module("albumentations")
    parts = [albu.RandomResizedCrop(size=(224, 224)), albu.HorizontalFlip(p=0.5)]
    parts += [albu.RandomBrightnessContrast(p=0.2), albu.Normalize(MEAN, STD)]
    return albu.Compose([*parts, import_module("albumentations.pytorch").ToTensorV2()], seed=0)


@program(FAMILY, "cv2", "albumentations")
def albu_cv2_cls(source: Source) -> Arguments:
    """Own dataset: cv2.imread, albumentations' crop, flip, brightness."""
    cv2, transform = import_module("cv2"), _albumentations()

    def make(path: str, label: int) -> Any:
        image = cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB)
        return transform(image=image)["image"], label

    return {"dataset": Records(source.samples, make), "shuffle": True}


@program(FAMILY, "PIL", "albumentations")
def albu_pil_cls(source: Source) -> Arguments:
    """Own dataset: np.array of Pillow's image, albumentations' crop, flip, brightness."""
    transform = _albumentations()

    def make(path: str, label: int) -> Any:
        return transform(image=np.array(Image.open(path).convert("RGB")))["image"], label

    return {"dataset": Records(source.samples, make), "shuffle": True}


class DataSample:
    """What is known of an image beside its pixels."""

    def __init__(self, label: int, **known: Any) -> None:
        self.gt_label = torch.tensor([label])
        self.metainfo = known

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DataSample):
            return NotImplemented
        return torch.equal(self.gt_label, other.gt_label) and self.metainfo == other.metainfo

    __hash__ = None  # type: ignore[assignment]


class PackedSample:
    """Reads a file's bytes and runs OpenMMLab's steps on a dict."""

    def __init__(self) -> None:
        self.cv2 = import_module("cv2")

    def __call__(self, path: str, label: int) -> dict[str, Any]:
        """Decode, crop at random, flip, pack."""
        image = self.cv2.imdecode(np.frombuffer(Path(path).read_bytes(), np.uint8), self.cv2.IMREAD_COLOR)
        top, left, height, width = self._box(*image.shape[:2])
        cropped = image[top : top + height, left : left + width]
        image = self.cv2.resize(cropped, (224, 224), interpolation=self.cv2.INTER_LINEAR)
        flipped = bool(np.random.rand() < 0.5)
        if flipped:
            image = self.cv2.flip(image, 1)
        pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        return {"inputs": pixels, "data_samples": DataSample(label, img_path=path, flip=flipped, img_shape=(224, 224))}

    @staticmethod
    def _box(height: int, width: int) -> tuple[int, int, int, int]:
        for _ in range(10):
            area = height * width * np.random.uniform(0.08, 1.0)
            ratio = np.exp(np.random.uniform(np.log(3 / 4), np.log(4 / 3)))
            across, down = round(float(np.sqrt(area * ratio))), round(float(np.sqrt(area / ratio)))
            if 0 < across <= width and 0 < down <= height:
                top, left = np.random.randint(0, height - down + 1), np.random.randint(0, width - across + 1)
                return int(top), int(left), down, across
        side = min(height, width)
        return (height - side) // 2, (width - side) // 2, side, side


def pseudo_collate(samples: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Make a dict of lists, and stack nothing."""
    return {key: [sample[key] for sample in samples] for key in samples[0]}


def seed_worker(worker: int) -> None:
    """Seed NumPy and ``random`` in a worker, as OpenMMLab and BasicSR do."""
    import random

    np.random.seed(worker + 7)
    random.seed(worker + 7)


@program(FAMILY, "cv2", "cv2")
def mmpretrain_like(source: Source) -> Arguments:
    """OpenMMLab's way: cv2.imdecode, its own crop and flip, PackInputs, lists as batches."""
    rest: Arguments = {"collate_fn": pseudo_collate, "worker_init_fn": seed_worker}
    return {"dataset": Records(source.samples, PackedSample()), "shuffle": True, **rest}


def infinite_loader() -> type[Any]:
    """Return Ultralytics' class of DataLoader, whose epochs follow each other without an end."""
    kind: type[Any] = import_module("ultralytics.data.build").InfiniteDataLoader
    return kind


def ultralytics_settings(**options: Any) -> Any:
    """Make Ultralytics' settings of training, nothing logged."""
    import_module("ultralytics.utils").LOGGER.setLevel("ERROR")
    return import_module("ultralytics.cfg").get_cfg(overrides={"workers": 0, **options})


@program(FAMILY, "cv2 patched", "ultralytics", loader=infinite_loader)
def ultra_classify(source: Source) -> Arguments:
    """Ultralytics' ClassificationDataset: crop, flip, RandAugment, erasing."""
    settings = ultralytics_settings(task="classify", imgsz=224, cache=False)
    dataset = import_module("ultralytics.data").ClassificationDataset(str(source.folder), settings, augment=True)
    seed_worker_of = import_module("ultralytics.data.build").seed_worker
    generator = torch.Generator().manual_seed(6148914691236517205)
    return {"dataset": dataset, "shuffle": True, "worker_init_fn": seed_worker_of, "generator": generator}


def _stacked(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    pixels = torch.stack([sample["pixel_values"] for sample in samples])
    return {"pixel_values": pixels, "labels": torch.tensor([sample["label"] for sample in samples])}


@program(FAMILY, "PIL via datasets", "datasets")
def hf_trainer_cls_script(source: Source) -> Arguments:
    """Transformers' script for image classification: set_transform of torchvision's crop, flip."""
    transform = training_transform()

    def train(batch: dict[str, Any]) -> dict[str, Any]:
        batch["pixel_values"] = [transform(image.convert("RGB")) for image in batch["image"]]
        return batch

    dataset = hugging_face(source)
    dataset.set_transform(train)
    return {"dataset": dataset, "shuffle": True, "collate_fn": _stacked}


def _processed(source: Source, processor: str) -> Arguments:
    module, _, name = processor.rpartition(".")
    processes = getattr(import_module(f"transformers.models.vit.{module}"), name)()

    def transform(batch: dict[str, Any]) -> Any:
        inputs = processes([image.convert("RGB") for image in batch["image"]], return_tensors="pt")
        inputs["label"] = batch["label"]
        return inputs

    return {"dataset": hugging_face(source).with_transform(transform), "shuffle": True, "collate_fn": _stacked}


@program(FAMILY, "PIL, then torchvision", "datasets", "transformers")
def hf_vit_processor_fast(source: Source) -> Arguments:
    """Transformers' ViTImageProcessor on torchvision in with_transform."""
    return _processed(source, "image_processing_vit.ViTImageProcessor")


@program(FAMILY, "PIL", "datasets", "transformers")
def hf_vit_processor_pil(source: Source) -> Arguments:
    """Transformers' ViTImageProcessor on Pillow in with_transform."""
    return _processed(source, "image_processing_pil_vit.ViTImageProcessorPil")


@program(FAMILY, "PIL via datasets", "datasets")
def hf_streaming(source: Source) -> Arguments:
    """Datasets' IterableDataset: shuffle, then map of torchvision's crop, flip."""
    transform = training_transform()

    def train(sample: dict[str, Any]) -> dict[str, Any]:
        return {"pixel_values": transform(sample["image"].convert("RGB")), "label": sample["label"]}

    stream = hugging_face(source).to_iterable_dataset(num_shards=source.shards).shuffle(seed=0, buffer_size=64)
    return {"dataset": stream.map(train, remove_columns=["image"]).with_format("torch"), "collate_fn": _stacked}
