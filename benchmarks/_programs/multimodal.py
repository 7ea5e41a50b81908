"""Images and text: open_clip and webdataset, transformers' processors in collate functions."""

from __future__ import annotations

import random
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from torchvision import transforms
from torchvision.io import ImageReadMode, read_image
from torchvision.transforms import InterpolationMode

from benchmarks._programs._program import Arguments, captions, hugging_face, program, tokenizer
from benchmarks._recipe_steps import to_int, to_rgb
from benchmarks._recipes import Source, write_shards
from fastload.bench._data import training_transform

FAMILY: Final = "images and text"
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_BICUBIC: Final = InterpolationMode.BICUBIC


def tokenize(text: str, length: int = 77) -> torch.Tensor:
    """Number a text's words, and fill up with zeros."""
    tokens = torch.zeros(length, dtype=torch.long)
    numbers = [sum(word.encode()) for word in text.split()][:length]
    tokens[: len(numbers)] = torch.tensor(numbers)
    return tokens


class Pairs(Dataset[Any]):
    """Images, preprocessed for CLIP, and tokens of their captions."""

    def __init__(self, paths: list[str], texts: list[str]) -> None:
        self.paths, self.texts = paths, torch.stack([tokenize(text) for text in texts])
        parts = [transforms.Resize(224, _BICUBIC), transforms.CenterCrop(224), to_rgb, transforms.ToTensor()]
        self.preprocess = transforms.Compose([*parts, transforms.Normalize(_MEAN, _STD)])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.preprocess(Image.open(self.paths[index])), self.texts[index]


@program(FAMILY, "PIL")
def clip_finetune_own(source: Source) -> Arguments:
    """Own dataset: CLIP's resize, center crop of Image.open; tokens."""
    return {"dataset": Pairs([path for path, _ in source.samples], captions(source)), "shuffle": True}


def _open_clip_transform() -> Any:
    return import_module("open_clip").image_transform(224, is_train=True, mean=_MEAN, std=_STD)


class CsvPairs(Dataset[Any]):
    """Paths and captions of a table, which are lists in memory."""

    def __init__(self, file: Path, transform: Any) -> None:
        table = import_module("pandas").read_csv(file, sep="\t")
        self.images, self.captions = table["filepath"].tolist(), table["title"].tolist()
        self.transform, self.tokenizer = transform, import_module("open_clip").SimpleTokenizer()

    def __len__(self) -> int:
        return len(self.captions)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = self.transform(Image.open(str(self.images[index])))
        return {"image": image, "text": self.tokenizer([str(self.captions[index])])[0]}


@program(FAMILY, "PIL", "open_clip", "pandas")
def openclip_csv(source: Source) -> Arguments:
    """open_clip's table of files: image_transform, tokens, a dict."""
    source.scratch.mkdir(parents=True, exist_ok=True)
    file, paths = source.scratch / f"pairs-{source.images}.csv", [path for path, _ in source.samples]
    lines = ["\t".join(pair) for pair in zip(["filepath", *paths], ["title", *captions(source)], strict=True)]
    file.write_text("\n".join(lines))
    return {"dataset": CsvPairs(file, _open_clip_transform()), "shuffle": True, "drop_last": True}


def _shards(source: Source) -> list[str]:
    folder = source.scratch / f"shards-{source.images}"
    paths = [str(folder / f"{number:03}.tar") for number in range(source.shards)]
    if not folder.exists():
        folder.mkdir(parents=True)
        write_shards(paths, source.samples)
    return paths


def detshuffle(samples: Iterable[Any], size: int = 64, seed: int = 0) -> Iterable[Any]:
    """Shuffle a stream by a buffer, the same way each time."""
    draw, buffer = random.Random(seed), []
    for sample in samples:
        buffer.append(sample)
        if len(buffer) >= size:
            yield buffer.pop(draw.randrange(len(buffer)))
    draw.shuffle(buffer)
    yield from buffer


def _open_clip(source: Source, shuffle: Any) -> Arguments:
    wds, tokens = import_module("webdataset"), import_module("open_clip").SimpleTokenizer()
    pipeline = wds.DataPipeline(
        wds.SimpleShardList(_shards(source)),
        wds.split_by_node,
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        shuffle,
        wds.decode("pilrgb"),
        wds.rename(image="jpg;png;jpeg;webp", text="cls"),
        wds.map_dict(image=_open_clip_transform(), text=lambda label: tokens([f"a photograph of class {label}"])[0]),
        wds.to_tuple("image", "text"),
        wds.batched(source.batch_size, partial=False),
    )
    return {"dataset": pipeline, "batch_size": None}


def _web_loader(loader: Any) -> Any:
    return import_module("webdataset").DataPipeline(loader)


@program(FAMILY, "PIL via webdataset", "webdataset", "open_clip", around=_web_loader, repeatable=False)
def openclip_wds(source: Source) -> Arguments:
    """open_clip's pipeline of webdataset, whose shuffle is seeded by process and time."""
    return _open_clip(source, import_module("webdataset").shuffle(64))


@program(FAMILY, "PIL via webdataset", "webdataset", "open_clip", around=_web_loader)
def openclip_wds_det(source: Source) -> Arguments:
    """The same, shuffled from a seed."""
    return _open_clip(source, detshuffle)


@program(FAMILY, "PIL via webdataset", "webdataset", around=_web_loader)
def wds_pipeline_rrc(source: Source) -> Arguments:
    """Webdataset's own pipeline: pilrgb, crop, flip."""
    wds = import_module("webdataset")
    dataset: IterableDataset[Any] = wds.WebDataset(_shards(source), shardshuffle=False, nodesplitter=None)
    dataset = dataset.decode("pilrgb").to_tuple("jpg", "cls").map_tuple(training_transform(), to_int)  # type: ignore[attr-defined]
    return {"dataset": dataset.batched(source.batch_size), "batch_size": None}  # type: ignore[attr-defined]


class ProcessorCollate:
    """Runs transformers' image processor and tokenizer on a batch of samples."""

    def __init__(self, processor: Any) -> None:
        self.processor, self.tokenizer = processor, tokenizer()

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """Make pixel values and tokens of raw images and texts."""
        inputs = self.processor(images=[sample["image"].convert("RGB") for sample in samples], return_tensors="pt")
        text = self.tokenizer([sample["text"] for sample in samples], padding=True, return_tensors="pt")
        return {**inputs, **text}


@program(FAMILY, "PIL, then torchvision", "datasets", "transformers")
def hf_clip_processor_collate(source: Source) -> Arguments:
    """Transformers' CLIPImageProcessor and tokenizer in the collate function."""
    collate = ProcessorCollate(import_module("transformers.models.clip.image_processing_clip").CLIPImageProcessor())
    return {"dataset": hugging_face(source, text=captions(source)), "shuffle": True, "collate_fn": collate}


class ChatCollate(ProcessorCollate):
    """The same for a chat model: an image has a token a patch."""

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """Make patches, their grid, tokens and labels."""
        inputs = self.processor(images=[sample["image"] for sample in samples], return_tensors="pt")
        patches = [int(grid.prod()) // self.processor.merge_size**2 for grid in inputs["image_grid_thw"]]
        texts = ["<image> " * count + sample["text"] for count, sample in zip(patches, samples, strict=True)]
        tokens = self.tokenizer(texts, padding=True, truncation=False, return_tensors="pt")
        labels = tokens["input_ids"].clone()
        for token in (self.tokenizer.pad_token_id, self.tokenizer.convert_tokens_to_ids("<image>")):
            labels[labels == token] = -100
        return {**inputs, **tokens, "labels": labels}


@program(FAMILY, "PIL, then torchvision", "datasets", "transformers")
def hf_qwen2vl_collate(source: Source) -> Arguments:
    """Transformers' Qwen2VLImageProcessor and tokenizer in the collate function, as TRL trains."""
    module = import_module("transformers.models.qwen2_vl.image_processing_qwen2_vl")
    collate = ChatCollate(module.Qwen2VLImageProcessor())
    return {"dataset": hugging_face(source, text=captions(source)), "shuffle": True, "collate_fn": collate}


class ClipTransform(nn.Module):
    """A module of transforms of tensors, which is compiled by torch.jit.script."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transforms = nn.Sequential(
            transforms.Resize([size], interpolation=_BICUBIC, antialias=True),
            transforms.CenterCrop(size),
            transforms.ConvertImageDtype(torch.float),
            transforms.Normalize(_MEAN, _STD),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform an image, without gradients."""
        with torch.no_grad():
            x = self.transforms(x)
        return x  # noqa: RET504 - scripts do not return within a block


def _clip_batch(examples: list[dict[str, Any]]) -> dict[str, Any]:
    names = {"input_ids": torch.long, "attention_mask": torch.long}
    made = {name: torch.tensor([one[name] for one in examples], dtype=kind) for name, kind in names.items()}
    return {"pixel_values": torch.stack([one["pixel_values"] for one in examples]), **made, "return_loss": True}


@program(FAMILY, "torchvision.io", "datasets", "transformers")
def hf_run_clip(source: Source) -> Arguments:
    """Transformers' run_clip: read_image, scripted resize and center crop, in set_transform."""
    scripted, tokens = torch.jit.script(ClipTransform(224)), tokenizer()
    texts = tokens(captions(source), max_length=77, padding="max_length", truncation=True)
    columns = {name: texts[name] for name in ("input_ids", "attention_mask")}

    def transform(examples: dict[str, Any]) -> dict[str, Any]:
        images = [read_image(path, mode=ImageReadMode.RGB) for path in examples["path"]]
        examples["pixel_values"] = [scripted(image) for image in images]
        return examples

    dataset = hugging_face(source, path=[path for path, _ in source.samples], **columns).remove_columns("image")
    dataset.set_transform(transform)
    return {"dataset": dataset, "shuffle": True, "collate_fn": _clip_batch}
