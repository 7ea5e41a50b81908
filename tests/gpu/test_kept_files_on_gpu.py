"""Test files that a GPU keeps: their bits, and the memory that goes back."""

from __future__ import annotations

import gc
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from stageable import KINDS, noise
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.device.decode import kept
from fastload.loader_state import state_of

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("error::RuntimeWarning")]

SIDE, FILES, BATCH = 64, 48, 16
SETTLED_S = 3.5  # only then is a file kept
KEPT = sum(not KINDS[number % len(KINDS)].get("progressive") for number in range(FILES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    (root / "a").mkdir()
    for number in range(FILES):
        image = noise(120 + 7 * number, 140 + number, number)
        image.save(root / "a" / f"{number:03}.jpg", **KINDS[number % len(KINDS)])
    time.sleep(SETTLED_S)
    return root


def loader_of(root: Path, most: Any, augment: bool = False, **options: Any) -> FastLoader[Any]:
    crop = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip()]
    steps = [*crop, *([transforms.RandAugment()] if augment else []), transforms.ToTensor()]
    options = {"batch_size": BATCH, "num_workers": 3, "shuffle": True, "engine": "native", "decode": "gpu", **options}
    return FastLoader(ImageFolder(str(root), transforms.Compose(steps)), device_cache_bytes=most, **options)


def epochs(loader: FastLoader[Any], count: int) -> list[torch.Tensor]:
    torch.manual_seed(5)
    return [images.cpu() for _ in range(count) for images, _ in loader]


def kept_by(loader: FastLoader[Any]) -> kept.FilesOnDevice:
    files = state_of(loader)._decoders[torch.device("cuda", 0)].kept
    assert files is not None
    return files


def same(made: list[torch.Tensor], want: list[torch.Tensor]) -> bool:
    return len(made) == len(want) and all(map(torch.equal, made, want))


@pytest.mark.parametrize("augment", [False, True], ids=["crops", "randaugment"])
@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
def test_later_epochs_read_nothing_and_have_the_bits_of_threads(folder: Path, augment: bool, persistent: bool) -> None:
    want = epochs(loader_of(folder, 0, augment, decode="cpu", persistent_workers=persistent), 4)
    loader = loader_of(folder, "auto", augment, persistent_workers=persistent)
    assert same(epochs(loader, 4), want)
    stats = loader.stats()
    assert stats.python_images == 0
    assert stats.kept_images == 3 * KEPT
    assert stats.gpu_images == 4 * FILES
    loader.close()


def test_a_file_that_changes_is_read_again(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "a", tmp_path / "a")
    time.sleep(SETTLED_S)
    loader = loader_of(tmp_path, 1 << 28, shuffle=False)
    epochs(loader, 2)
    changed = tmp_path / "a" / "005.jpg"
    changed.unlink()
    noise(300, 200, 999).save(changed, quality=90)
    assert same(epochs(loader, 2), epochs(loader_of(tmp_path, 0, shuffle=False, decode="cpu"), 2))
    loader.close()


def test_memory_goes_back_with_the_last_loader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freed = []

    def free(memory: kept.CudaMemory, address: int) -> None:
        original(memory, address)  # which raises if the driver does not free it
        freed.append(address)

    original = kept.CudaMemory.free
    monkeypatch.setattr(kept.CudaMemory, "free", free)
    gc.collect()
    assert kept.files_on(torch.device("cuda", 0), 0).nbytes == 0
    first, second = loader_of(folder, "auto"), loader_of(folder, "auto")
    epochs(first, 1)
    epochs(second, 1)
    assert second.stats().kept_images == KEPT, "the first has read them"
    nbytes = kept_by(first).nbytes
    assert nbytes == kept_by(second).nbytes == kept.PART_BYTES
    freed.clear()
    first.close()
    del first
    gc.collect()
    assert same(epochs(second, 1), epochs(loader_of(folder, 0, decode="cpu"), 1))
    assert not freed
    second.close()
    del second
    gc.collect()
    assert len(freed) == 1


def test_a_program_that_takes_the_memory_gets_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process takes is to the driver as what another takes."""
    monkeypatch.setattr(kept, "_LOOK_S", 0.0)
    want = epochs(loader_of(folder, 0, decode="cpu"), 6)
    loader = loader_of(folder, "auto")
    torch.manual_seed(5)
    made = [images.cpu() for _ in range(2) for images, _ in loader]
    files = kept_by(loader)
    assert files.nbytes == kept.PART_BYTES
    free, total = torch.cuda.mem_get_info()
    taken = torch.empty(free - int(0.5 * kept.SPARE * total), dtype=torch.uint8, device="cuda")
    made += [images.cpu() for _ in range(2) for images, _ in loader]
    assert files.nbytes == 0
    del taken
    torch.cuda.empty_cache()
    made += [images.cpu() for _ in range(2) for images, _ in loader]
    assert same(made, want)
    assert files.nbytes == kept.PART_BYTES, "there is room again"
    loader.close()
