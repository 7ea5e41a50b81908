"""Detection and segmentation: torchvision's references and tutorial, Detectron2, Ultralytics, transformers, U-Net."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.io import read_image
from torchvision.transforms import functional, v2

from benchmarks import _recipe_steps as steps
from benchmarks._programs._program import Arguments, boxes, hugging_face, masks, program
from benchmarks._programs.classification import infinite_loader, ultralytics_settings
from benchmarks._recipes import RECIPES, Source
from fastload.bench._data import MEAN, STD

FAMILY: Final = "detection, segmentation"


@program(FAMILY, "PIL")
def tvref_detection_hflip_pil(source: Source) -> Arguments:
    """Torchvision's reference, CocoDetection and boxes: flip of Pillow's image, to float."""
    recipe = next(recipe for recipe in RECIPES if recipe.name == "torchvision detection")
    return recipe.arguments(source)


class Boxes(Dataset[Any]):
    """Images and targets as tv_tensors, which transforms v2 change together."""

    def __init__(self, paths: list[str], transform: Callable[..., Any]) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        found = boxes(image.size)
        target = {"boxes": boxes_of(found, image.size[::-1]), "labels": torch.tensor([1, index % 91])}
        return self.transform(image, target)


def boxes_of(found: list[list[float]], size: tuple[int, ...]) -> Any:
    """Make BoundingBoxes of left, top, right and bottom, in an image of height and width."""
    return tv_tensors.BoundingBoxes(torch.tensor(found), format="XYXY", canvas_size=size)


@program(FAMILY, "PIL")
def tvref_detection_ssd_v2(source: Source) -> Arguments:
    """Torchvision's reference, CocoDetection and boxes, transforms v2: photometric distortion, zoom, IoU crop, flip."""
    fill: dict[Any, Any] = {tv_tensors.Image: (123.0, 117.0, 104.0), "others": 0}
    parts = [v2.ToImage(), v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill=fill), v2.RandomIoUCrop()]
    parts += [v2.RandomHorizontalFlip(), v2.ToDtype(torch.float, scale=True), v2.ConvertBoundingBoxFormat("XYXY")]
    transform = v2.Compose([*parts, v2.SanitizeBoundingBoxes(), v2.ToPureTensor()])
    dataset = Boxes([path for path, _ in source.samples], transform)
    return {"dataset": dataset, "shuffle": True, "collate_fn": steps.as_tuples}


class ImageAndMask(Dataset[Any]):
    """JPEG images and PNG masks, opened by Pillow, which a function makes a sample of."""

    def __init__(self, source: Source, make: Callable[[Image.Image, Image.Image], Any]) -> None:
        self.pairs = list(zip([path for path, _ in source.samples], masks(source), strict=True))
        self.make = make

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pairs[index]
        return self.make(Image.open(image).convert("RGB"), Image.open(mask))


def _scaled(image: Any, mask: Any, crop: int = 480) -> Any:
    """Scale at random, flip and crop image and mask."""
    short = random.randint(crop * 13 // 24, crop * 13 // 6)
    image = functional.resize(image, [short], antialias=True)
    mask = functional.resize(mask, [short], functional.InterpolationMode.NEAREST)
    if random.random() < 0.5:
        image, mask = functional.hflip(image), functional.hflip(mask)
    width, height = image.size
    padding = [0, 0, max(0, crop - width), max(0, crop - height)]
    image, mask = functional.pad(image, padding, fill=0), functional.pad(mask, padding, fill=255)
    box = _corner(image.size, crop)
    pixels = functional.pil_to_tensor(functional.crop(image, *box, crop, crop))
    pixels = functional.normalize(functional.convert_image_dtype(pixels, torch.float), list(MEAN), list(STD))
    return pixels, torch.as_tensor(np.array(functional.crop(mask, *box, crop, crop)), dtype=torch.int64)


def _corner(size: tuple[int, int], crop: int) -> tuple[int, int]:
    top, left = (int(torch.randint(0, edge - crop + 1, (1,))) for edge in size[::-1])
    return top, left


def batch_of_masks(samples: list[Any]) -> Any:
    """Pad images and masks to the largest, as torchvision's reference does."""
    images, targets = zip(*samples, strict=True)
    return _padded(images, 0), _padded(targets, 255)


def _padded(tensors: tuple[torch.Tensor, ...], fill: int) -> torch.Tensor:
    size = [max(edges) for edges in zip(*(tensor.shape for tensor in tensors), strict=True)]
    batch = tensors[0].new(len(tensors), *size).fill_(fill)
    for place, tensor in zip(batch, tensors, strict=True):
        place[..., : tensor.shape[-2], : tensor.shape[-1]].copy_(tensor)
    return batch


@program(FAMILY, "PIL")
def tvref_segmentation(source: Source) -> Arguments:
    """Torchvision's reference, VOCSegmentation: scale, flip and crop of JPEG and PNG mask to 480."""
    dataset = ImageAndMask(source, _scaled)
    return {"dataset": dataset, "shuffle": True, "drop_last": True, "collate_fn": batch_of_masks}


@program(FAMILY, "PIL")
def tvref_segmentation_v2(source: Source) -> Arguments:
    """The same by transforms v2 and tv_tensors.Mask."""
    parts = [v2.ToImage(), v2.RandomResize(min_size=260, max_size=1041), v2.RandomHorizontalFlip(0.5)]
    fill: dict[Any, Any] = {tv_tensors.Mask: 255, "others": 0}
    parts.append(v2.RandomCrop(480, pad_if_needed=True, fill=fill))
    kinds: dict[Any, Any] = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    transform = v2.Compose([*parts, v2.ToDtype(dtype=kinds, scale=True), v2.Normalize(MEAN, STD), v2.ToPureTensor()])

    def make(image: Image.Image, mask: Image.Image) -> Any:
        pixels, target = transform(image, tv_tensors.Mask(functional.pil_to_tensor(mask)))
        return pixels, target.squeeze(0)

    return {"dataset": ImageAndMask(source, make), "shuffle": True, "drop_last": True, "collate_fn": batch_of_masks}


@program(FAMILY, "PIL")
def unet_milesial(source: Source) -> Arguments:
    """Milesial's U-Net: JPEG and PNG mask at half size, arrays, a dict."""

    def make(image: Image.Image, mask: Image.Image) -> dict[str, Any]:
        size = (image.width // 2, image.height // 2)
        small = np.asarray(image.resize(size, resample=Image.Resampling.BICUBIC))
        classes = np.asarray(mask.resize(size, resample=Image.Resampling.NEAREST)).astype(np.int64)
        pixels = small.transpose((2, 0, 1)) / 255.0
        return {
            "image": torch.as_tensor(pixels.copy()).float().contiguous(),
            "mask": torch.as_tensor(classes.copy()).long().contiguous(),
        }

    return {"dataset": ImageAndMask(source, make), "batch_size": 1, "shuffle": True, "drop_last": True}


class PennFudan(Dataset[Any]):
    """Images and masks of persons by torchvision.io, as tv_tensors."""

    def __init__(self, source: Source) -> None:
        self.pairs = list(zip([path for path, _ in source.samples], masks(source, 4), strict=True))
        parts = [v2.RandomHorizontalFlip(0.5), v2.ToDtype(torch.float, scale=True), v2.ToPureTensor()]
        self.transform = v2.Compose(parts)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        image, mask = (read_image(path) for path in self.pairs[index])
        numbers = torch.unique(mask)[1:]
        persons = (mask == numbers[:, None, None]).to(dtype=torch.uint8)
        places = [person.nonzero() for person in persons]
        found = [[*place.amin(0).flip(0).tolist(), *place.amax(0).flip(0).tolist()] for place in places]
        target = {
            "boxes": boxes_of(found, image.shape[-2:]),
            "masks": tv_tensors.Mask(persons),
            "labels": torch.ones(len(numbers), dtype=torch.int64),
            "image_id": index,
        }
        return self.transform(tv_tensors.Image(image), target)


@program(FAMILY, "torchvision.io")
def tut_pennfudan_det(source: Source) -> Arguments:
    """Torchvision's tutorial of detection: read_image of image and mask, boxes, flip; batches of 2."""
    return {"dataset": PennFudan(source), "batch_size": 2, "shuffle": True, "collate_fn": steps.as_tuples}


class Instances:
    """Boxes and classes of an image of a size."""

    def __init__(self, size: tuple[int, int], found: torch.Tensor, classes: torch.Tensor) -> None:
        self.image_size, self.gt_boxes, self.gt_classes = size, found, classes


class Mapper(Dataset[Any]):
    """Reads an image as a BGR array, resizes its shorter edge, and flips it."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        with open(self.paths[index], "rb") as file:
            image = np.asarray(Image.open(file).convert("RGB"))[:, :, ::-1]
        height, width = image.shape[:2]
        short = int(np.random.choice((480, 512, 544, 576, 608, 640)))
        scale = min(short / min(height, width), 1333 / max(height, width))
        size = (int(width * scale + 0.5), int(height * scale + 0.5))
        image = np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize(size, Image.Resampling.BILINEAR))
        found = torch.tensor(boxes(size))
        if np.random.uniform() < 0.5:
            image = np.flip(image, axis=1)
            found[:, [0, 2]] = size[0] - found[:, [2, 0]]
        pixels = torch.as_tensor(np.ascontiguousarray(image.transpose(2, 0, 1)))
        instances = Instances(size[::-1], found, torch.tensor([1, index % 80]))
        return {"file_name": self.paths[index], "image_id": index, "image": pixels, "instances": instances}


def as_list(samples: list[Any]) -> list[Any]:
    """Make no batch: a list of samples."""
    return samples


@program(FAMILY, "PIL")
def detectron2_like(source: Source) -> Arguments:
    """Detectron2's way: BGR array of Pillow's image, resize, flip, a list of dicts."""
    dataset = Mapper([path for path, _ in source.samples])
    return {"dataset": dataset, "shuffle": True, "drop_last": True, "collate_fn": as_list}


class Camvid(Dataset[Any]):
    """Images and masks by OpenCV, augmented by albumentations."""

    def __init__(self, source: Source, transform: Any) -> None:
        self.pairs = list(zip([path for path, _ in source.samples], masks(source), strict=True))
        self.transform, self.cv2 = transform, import_module("cv2")

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        image, mask = self.pairs[index]
        pixels = self.cv2.cvtColor(self.cv2.imread(image), self.cv2.COLOR_BGR2RGB)
        classes = self.cv2.imread(mask, self.cv2.IMREAD_GRAYSCALE)
        made = self.transform(image=pixels, mask=np.where(classes < 12, classes, 255))
        return made["image"].transpose(2, 0, 1), made["mask"]


@program(FAMILY, "cv2", "cv2", "albumentations")
def smp_camvid(source: Source) -> Arguments:
    """segmentation_models.pytorch's example: cv2.imread of image and mask, albumentations' flip, shift, crop."""
    albu = import_module("albumentations")
    parts = [albu.HorizontalFlip(p=0.5), albu.Affine(scale=(0.5, 1.5), translate_percent=0.1, rotate=0, p=1)]
    parts += [albu.PadIfNeeded(min_height=320, min_width=320, p=1), albu.RandomCrop(height=320, width=320, p=1)]
    parts += [albu.GaussNoise(p=0.2), albu.OneOf([albu.CLAHE(p=1), albu.RandomBrightnessContrast(p=1)], p=0.9)]
    return {"dataset": Camvid(source, albu.Compose(parts, seed=0)), "shuffle": True}


def _albumented(source: Source, transform: Callable[[dict[str, Any]], dict[str, Any]], **columns: Any) -> Any:
    return hugging_face(source, **columns).with_transform(transform)


@program(FAMILY, "PIL via datasets", "datasets", "transformers", "albumentations")
def hf_object_detection(source: Source) -> Arguments:
    """Transformers' script for detection: albumentations of image and boxes, DetrImageProcessor in with_transform."""
    albu = import_module("albumentations")
    parts = [albu.Perspective(p=0.1), albu.HorizontalFlip(p=0.5), albu.RandomBrightnessContrast(p=0.5)]
    parts.append(albu.HueSaturationValue(p=0.1))
    params = albu.BboxParams(format="coco", label_fields=["category"], clip=True, min_area=25)
    augment = albu.Compose(parts, bbox_params=params, seed=0)
    module, edges = import_module("transformers.models.detr.image_processing_detr"), {"height": 480, "width": 480}
    size = {f"max_{name}": edge for name, edge in edges.items()}
    processor = module.DetrImageProcessor(do_resize=True, size=size, do_pad=True, pad_size=edges)

    def train(examples: dict[str, Any]) -> Any:
        images, annotations = [], []
        for number, image in zip(examples["image_id"], examples["image"], strict=True):
            found = [[a, b, c - a, d - b] for a, b, c, d in boxes(image.size)]
            made = augment(image=np.array(image.convert("RGB")), bboxes=found, category=[1, number % 91])
            rows = [
                {"image_id": number, "category_id": kind, "iscrowd": 0, "area": box[2] * box[3], "bbox": list(box)}
                for kind, box in zip(made["category"], made["bboxes"], strict=True)
            ]
            images.append(made["image"])
            annotations.append({"image_id": number, "annotations": rows})
        return processor(images=images, annotations=annotations, return_tensors="pt")

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = {name: torch.stack([one[name] for one in samples]) for name in ("pixel_values", "pixel_mask")}
        return {**batch, "labels": [one["labels"] for one in samples]}

    numbers = list(range(len(source.samples)))
    return {"dataset": _albumented(source, train, image_id=numbers), "shuffle": True, "collate_fn": collate}


@program(FAMILY, "PIL via datasets", "datasets", "transformers", "albumentations")
def hf_semseg_albu(source: Source) -> Arguments:
    """Transformers' script for segmentation: albumentations of np.array(image) and its PNG mask in with_transform."""
    albu = import_module("albumentations")
    parts = [albu.PadIfNeeded(min_height=512, min_width=512, border_mode=0, fill_mask=255), albu.RandomCrop(512, 512)]
    parts += [albu.HorizontalFlip(p=0.5), albu.Normalize(MEAN, STD, max_pixel_value=255.0, p=1.0)]
    augment = albu.Compose([*parts, import_module("albumentations.pytorch").ToTensorV2()], seed=0)

    def train(examples: dict[str, Any]) -> dict[str, Any]:
        pairs = zip(examples["image"], examples["mask_image"], strict=True)
        made = [augment(image=np.array(image.convert("RGB")), mask=np.array(mask)) for image, mask in pairs]
        pixels = torch.stack([one["image"] for one in made])
        return {"pixel_values": pixels, "labels": torch.stack([one["mask"] for one in made]).long()}

    collate = import_module("transformers").default_data_collator
    return {"dataset": _albumented(source, train, mask_image=masks(source)), "shuffle": True, "collate_fn": collate}


@program(FAMILY, "cv2 patched", "ultralytics", loader=infinite_loader)
def ultra_detect(source: Source) -> Arguments:
    """Ultralytics' YOLODataset: cv2.imread, mosaic, perspective, hue, flip."""
    folder = source.scratch / "yolo"
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number, (path, label) in enumerate(source.samples):
        if not (image := folder / "images" / f"{number}.jpg").exists():
            image.symlink_to(Path(path).resolve())
            shares = ((0.35, 0.55, 0.5, 0.7), (0.6, 0.3, 0.4, 0.4))
            lines = [" ".join(map(str, (label % 80, *share))) for share in shares]
            (folder / "labels" / f"{number}.txt").write_text("\n".join(lines))
    settings = ultralytics_settings(task="detect", imgsz=320, cache=False, close_mosaic=0)
    data = {"names": {number: str(number) for number in range(80)}, "nc": 80, "channels": 3}
    build = import_module("ultralytics.data.build")
    dataset = build.build_yolo_dataset(settings, str(folder / "images"), source.batch_size, data, mode="train")
    generator = torch.Generator().manual_seed(6148914691236517205)
    rest: Arguments = {"worker_init_fn": build.seed_worker, "generator": generator, "drop_last": True}
    return {"dataset": dataset, "shuffle": True, "collate_fn": dataset.collate_fn, **rest}
