"""transformers' image processors make torch's tensors of images that are deferred."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import optional
import pytest
import torch
from photos import jpeg
from PIL import Image
from references import kept
from torch.utils.data import DataLoader, Dataset

from fastload import FastLoader

if TYPE_CHECKING:
    from collections.abc import Callable

transformers = optional.module("transformers")

PROCESSORS: dict[str, tuple[dict[str, Any], int]] = {
    "ViTImageProcessor": ({}, 0),
    "CLIPImageProcessor": ({"do_convert_rgb": False}, 0),
    "SiglipImageProcessor": ({"size": {"height": 64, "width": 48}}, 0),
    "DetrImageProcessor": ({"size": {"shortest_edge": 80, "longest_edge": 120}, "do_pad": False}, 0),
    "ConvNextImageProcessor": ({"size": {"shortest_edge": 384}}, 0),
    "Qwen2VLImageProcessor": ({}, 0),
    "PixtralImageProcessor": ({}, 0),
}
"""Arguments, and how often each image is looked at."""

FILES = [
    *(jpeg(number, 90 + 7 * number, 130 - 5 * number) for number in range(8)),
    jpeg(8, mode="L"),
    jpeg(9)[:-300],
]


class Images(Dataset[Any]):
    """Processed samples, or images for a collate function."""

    def __init__(self, process: Callable[[Any], Any] | None, count: int) -> None:
        self.process = process
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        image = Image.open(io.BytesIO(FILES[index]))
        return image if self.process is None else self.process(image)


def processor(name: str) -> Any:
    return getattr(transformers, name)(**PROCESSORS[name][0])


def flat(batches: list[Any]) -> list[tuple[str, torch.Tensor]]:
    """Names and tensors of all batches, in turn."""
    return [
        (name, tensor)
        for batch in batches
        for name, value in batch.items()
        for tensor in (value if isinstance(value, list) else [value])
    ]


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    for (name, mine), (other, expected) in zip(flat(ours), flat(theirs), strict=True):
        assert (name, mine.dtype, mine.shape, mine.stride()) == (
            other,
            expected.dtype,
            expected.shape,
            expected.stride(),
        )
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("name", PROCESSORS)
def test_processed_samples_are_torchs(name: str) -> None:
    def process(image: Any) -> dict[str, Any]:
        return {**processor_(image.convert("RGB"), return_tensors="pt")}

    processor_ = processor(name)
    images = Images(process, 8)
    given: dict[str, Any] = {"batch_size": None, "num_workers": 1}
    theirs = kept(lambda: list(DataLoader(images, **given)))
    with FastLoader(images, device="cpu", **given) as loader:
        assert_same(list(loader), theirs)
        stats = loader.stats()
    assert stats.deferred_images >= 5  # the first are compared with Pillow's
    assert stats.looks == PROCESSORS[name][1] * stats.deferred_images


def test_batches_that_a_collate_function_processes_are_torchs() -> None:
    processor_ = processor("ViTImageProcessor")

    def collate(images: list[Any]) -> dict[str, Any]:
        return {**processor_(images, return_tensors="pt")}

    given: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "collate_fn": collate}
    theirs = kept(lambda: list(DataLoader(Images(None, 8), **given)))
    with FastLoader(Images(None, 8), device="cpu", **given) as loader:
        assert_same(list(loader), theirs)
        stats = loader.stats()
    assert stats.deferred_images >= 5
    assert stats.looks <= 1  # in a stack with the first, which Pillow has decoded as well


def test_errors_are_torchs() -> None:
    processor_ = processor("CLIPImageProcessor")

    def process(image: Any) -> Any:
        return processor_(image, return_tensors="pt")["pixel_values"]

    def error_of(loader: Any) -> tuple[type, str] | None:
        try:
            list(loader)
        except Exception as error:
            return type(error), str(error).splitlines()[-1]
        return None

    given: dict[str, Any] = {"batch_size": None, "num_workers": 1}
    theirs = kept(lambda: error_of(DataLoader(Images(process, 10), **given)))
    assert theirs is not None
    with FastLoader(Images(process, 10), device="cpu", **given) as loader:
        assert error_of(loader) == theirs
