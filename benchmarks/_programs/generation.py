"""Generation of images: diffusers' scripts, DiT, DDPM, BasicSR."""

from __future__ import annotations

import functools
import multiprocessing
import random
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks._programs._program import Arguments, beside, captions, hugging_face, program, tokenizer
from benchmarks._programs.classification import seed_worker
from benchmarks._recipes import Source

FAMILY: Final = "generation"
_HALVES: Final = transforms.Normalize([0.5], [0.5])


def _tokenized(tokens: Any, texts: list[str]) -> torch.Tensor:
    made: torch.Tensor = tokens(
        texts, max_length=tokens.model_max_length, padding="max_length", truncation=True, return_tensors="pt"
    ).input_ids
    return made


def _collated(examples: list[dict[str, Any]], *, names: tuple[str, ...] = ("pixel_values",)) -> dict[str, torch.Tensor]:
    batch = {}
    for name in names:
        pixels = torch.stack([example[name] for example in examples])
        batch[name] = pixels.to(memory_format=torch.contiguous_format).float()
    return {**batch, "input_ids": torch.stack([example["input_ids"] for example in examples])}


@program(FAMILY, "PIL via datasets", "datasets", "transformers")
def diffusers_text_to_image(source: Source) -> Arguments:
    """Diffusers' text-to-image script: resize to 512, center crop, flip; captions."""
    parts = [transforms.Resize(512), transforms.CenterCrop(512), transforms.RandomHorizontalFlip()]
    transform, tokens = transforms.Compose([*parts, transforms.ToTensor(), _HALVES]), tokenizer()

    def train(examples: dict[str, Any]) -> dict[str, Any]:
        images = [image.convert("RGB") for image in examples["image"]]
        examples["pixel_values"] = [transform(image) for image in images]
        examples["input_ids"] = _tokenized(tokens, list(examples["text"]))
        return examples

    dataset = hugging_face(source, text=captions(source)).with_transform(train)
    return {"dataset": dataset, "shuffle": True, "collate_fn": _collated}


def edges(image: Image.Image) -> Image.Image:
    """Draw an image's outlines, as a condition of ControlNet."""
    return image.convert("L").point(lambda value: 255 * (value > 127)).convert("RGB")


@program(FAMILY, "PIL via datasets", "datasets", "transformers")
def diffusers_controlnet(source: Source) -> Arguments:
    """Diffusers' ControlNet script: a JPEG and a PNG column, resize to 512, center crop; captions."""
    parts = [transforms.Resize(512), transforms.CenterCrop(512), transforms.ToTensor()]
    transform, condition, tokens = transforms.Compose([*parts, _HALVES]), transforms.Compose(parts), tokenizer()

    def train(examples: dict[str, Any]) -> dict[str, Any]:
        images = [image.convert("RGB") for image in examples["image"]]
        conditions = [image.convert("RGB") for image in examples["conditioning_image"]]
        examples["pixel_values"] = [transform(image) for image in images]
        examples["conditioning_pixel_values"] = [condition(image) for image in conditions]
        examples["input_ids"] = _tokenized(tokens, list(examples["text"]))
        return examples

    columns = {"conditioning_image": beside(source, "edges", edges), "text": captions(source)}
    collate = functools.partial(_collated, names=("pixel_values", "conditioning_pixel_values"))
    return {"dataset": hugging_face(source, **columns).with_transform(train), "shuffle": True, "collate_fn": collate}


class DreamBooth(Dataset[Any]):
    """Images of an instance beside those of its class, and their prompts."""

    def __init__(self, instances: list[str], classes: list[str], size: int = 512) -> None:
        self.instances, self.classes, self.tokens = instances, classes, tokenizer()
        parts = [transforms.Resize(size), transforms.CenterCrop(size), transforms.ToTensor(), _HALVES]
        self.transform = transforms.Compose(parts)

    def __len__(self) -> int:
        return len(self.instances)

    def __getitem__(self, index: int) -> dict[str, Any]:
        example: dict[str, Any] = {}
        for kind, paths in (("instance", self.instances), ("class", self.classes)):
            image = ImageOps.exif_transpose(Image.open(paths[index % len(paths)]))
            if image.mode != "RGB":
                image = image.convert("RGB")
            example[f"{kind}_images"] = self.transform(image)
            example[f"{kind}_prompt_ids"] = _tokenized(self.tokens, [f"a photograph of one {kind}"])
        return example


def with_prior(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Stack the instances, then the classes."""
    pixels, tokens = (
        [example[f"{kind}_{name}"] for kind in ("instance", "class") for example in examples]
        for name in ("images", "prompt_ids")
    )
    values = torch.stack(pixels).to(memory_format=torch.contiguous_format).float()
    return {"input_ids": torch.cat(tokens), "pixel_values": values}


@program(FAMILY, "PIL", "transformers")
def diffusers_dreambooth(source: Source) -> Arguments:
    """Diffusers' DreamBoothDataset: exif_transpose, resize to 512, center crop; images of the class."""
    paths = [path for path, _ in source.samples]
    return {"dataset": DreamBooth(paths, paths[::-1]), "shuffle": True, "collate_fn": with_prior}


class UnlabelledFolder(Dataset[Any]):
    """All images below a folder."""

    def __init__(self, folder: Path, size: int) -> None:
        self.paths = sorted(path for ending in ("jpg", "png") for path in folder.glob(f"**/*.{ending}"))
        parts = [transforms.Lambda(nn.Identity()), transforms.Resize(size), transforms.RandomHorizontalFlip()]
        self.transform = transforms.Compose([*parts, transforms.CenterCrop(size), transforms.ToTensor()])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.paths[index]))


@program(FAMILY, "PIL")
def ddpm_lucidrains(source: Source) -> Arguments:
    """Own dataset: Image.open without convert, resize to 128, flip, crop; a worker a core."""
    workers = multiprocessing.cpu_count()
    return {"dataset": UnlabelledFolder(source.folder, 128), "shuffle": True, "num_workers": workers}


def center_crop_arr(image: Image.Image, size: int) -> Image.Image:
    """Halve an image by boxes while it is twice too large, scale, and crop."""
    while min(image.size) >= 2 * size:
        image = image.resize((image.size[0] // 2, image.size[1] // 2), resample=Image.Resampling.BOX)
    scale = size / min(image.size)
    image = image.resize(
        (round(image.size[0] * scale), round(image.size[1] * scale)), resample=Image.Resampling.BICUBIC
    )
    pixels = np.array(image)
    top, left = ((edge - size) // 2 for edge in pixels.shape[:2])
    return Image.fromarray(pixels[top : top + size, left : left + size])


@program(FAMILY, "PIL")
def dit(source: Source) -> Arguments:
    """ImageFolder: a Lambda that scales by boxes and crops an array of 256 pixels, flip."""
    crop = transforms.Lambda(functools.partial(center_crop_arr, size=256))
    parts = [crop, transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    transform = transforms.Compose([*parts, transforms.Normalize([0.5] * 3, [0.5] * 3, inplace=True)])
    return {"dataset": ImageFolder(str(source.folder), transform), "shuffle": True, "drop_last": True}


class PairedImages(Dataset[Any]):
    """Images of high resolution and of a quarter of it, as floats of OpenCV's."""

    def __init__(self, truths: list[str], small: list[str], size: int = 128) -> None:
        self.truths, self.small, self.size = truths, small, size
        self.cv2 = import_module("cv2")

    def __len__(self) -> int:
        return len(self.truths)

    def _read(self, path: str) -> Any:
        data = np.frombuffer(Path(path).read_bytes(), np.uint8)
        return self.cv2.imdecode(data, self.cv2.IMREAD_COLOR).astype(np.float32) / 255.0

    def __getitem__(self, index: int) -> dict[str, Any]:
        truth, small = self._read(self.truths[index]), self._read(self.small[index])
        edge = self.size // 4
        top, left = (random.randint(0, side - edge) for side in small.shape[:2])
        small = small[top : top + edge, left : left + edge]
        truth = truth[4 * top : 4 * top + self.size, 4 * left : 4 * left + self.size]
        across, down, turned = (random.random() < 0.5 for _ in range(3))
        made: dict[str, Any] = {"lq_path": self.small[index], "gt_path": self.truths[index]}
        for name, image in (("lq", small), ("gt", truth)):
            if across:
                self.cv2.flip(image, 1, image)
            if down:
                self.cv2.flip(image, 0, image)
            if turned:
                image = image.transpose(1, 0, 2)
            rgb = self.cv2.cvtColor(image, self.cv2.COLOR_BGR2RGB)
            made[name] = torch.from_numpy(rgb.transpose(2, 0, 1)).float()
        return made


@program(FAMILY, "cv2", "cv2")
def basicsr_sr(source: Source) -> Arguments:
    """BasicSR's pairs of PNG files: cv2.imdecode to floats, crop, flips, quarter turn."""

    def whole(times: int) -> Callable[[Image.Image], Image.Image]:
        def scaled(image: Image.Image) -> Image.Image:
            width, height = (max(132, edge) // 4 * times for edge in image.size)
            return image.resize((width, height), Image.Resampling.BICUBIC)

        return scaled

    dataset = PairedImages(beside(source, "truths", whole(4)), beside(source, "small", whole(1)))
    return {"dataset": dataset, "shuffle": True, "drop_last": True, "worker_init_fn": seed_worker}
