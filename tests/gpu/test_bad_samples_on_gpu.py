"""Samples that raise are left out or replaced where a GPU decodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stageable import KINDS, noise
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastload import FastLoader

pytestmark = pytest.mark.gpu

FILES, SIDE = 64, 64
SMALL = (40, 40)  # refused by the crop, behind a flip that has drawn
EVERY = 7


class Opened(torch.utils.data.Dataset):
    """Is read by worker processes."""

    def __init__(self, folder: ImageFolder) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return len(self.folder)

    def __getitem__(self, index: int) -> Any:
        return self.folder[index]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    (root / "a").mkdir()
    for number in range(FILES):
        path = root / "a" / f"{number:03}.jpg"
        kind = number // EVERY % 3 if number % EVERY == 2 else None
        noise(*(SMALL if kind == 0 else (150, 180)), number).save(path, **KINDS[number % len(KINDS)])
        if kind is not None and kind > 0:
            path.write_bytes(path.read_bytes()[: (None, 1500, 0)[kind]])
    return root


def epochs(root: Path, mode: str, *, native: bool, **options: Any) -> tuple[list[Any], FastLoader[Any]]:
    steps = [transforms.RandomHorizontalFlip(), transforms.RandomCrop(SIDE), transforms.ToTensor()]
    dataset: Any = ImageFolder(str(root), transforms.Compose(steps))
    options |= {"on_error": mode, "max_errors": 1.0, "engine": "native" if native else "auto"}
    loader = FastLoader(dataset if native else Opened(dataset), 8, shuffle=True, num_workers=3, **options)
    torch.manual_seed(5)
    return [(images.cpu(), labels.cpu()) for _ in range(3) for images, labels in loader], loader


@pytest.mark.parametrize("mode", ["skip", "replace"])
@pytest.mark.parametrize("native", [True, False])
def test_batches_are_those_of_the_threads(folder: Path, mode: str, native: bool) -> None:
    want, threads = epochs(folder, mode, native=native, decode="cpu", device="cpu")
    got, loader = epochs(folder, mode, native=native, decode="gpu" if native else "auto")
    assert len(got) == len(want)
    for ours, theirs in zip(got, want, strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
    assert loader.errors() == threads.errors()
    assert len(loader.errors()) == len(range(2, FILES, EVERY))
    if native:
        assert loader.stats().gpu_images > 0


def test_a_batch_without_samples_is_left_out(folder: Path) -> None:
    bad = torch.utils.data.Subset(ImageFolder(str(folder), transforms.ToTensor()), [9, 16, 30, 37])
    loader = FastLoader(bad, 2, num_workers=2, on_error="skip", max_errors=1.0)
    assert [*loader] == []
    assert loader.stats().errors == 4
