"""Test that a GPU decodes JPEG files as the threads do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stageable import KINDS, noise
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.device.decode.files import Decoder
from fastload.device.decode.policy import DecodedBatch, DecodePolicy, Side
from fastload.loader_state import state_of

pytestmark = pytest.mark.gpu

SIDE = 96
FILES = 64
PROGRESSIVE = FILES // len(KINDS)  # in which there is nothing to find


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    (root / "a").mkdir()
    sizes = [(120, 200), (333, 222), (31, 50), (500, 400), (200, 1201)]
    for number in range(FILES):
        kind, size = KINDS[number % len(KINDS)], sizes[number % len(sizes)]
        image = noise(*size, number)
        if number % 11 == 3:
            image = image.convert("L")
        if number % 23 == 5:
            image.save(root / "a" / f"{number:03}.png")
        else:
            image.save(root / "a" / f"{number:03}.jpg", **kind)
    return root


STEPS = {
    "train": [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip()],
    "bicubic": [
        transforms.RandomResizedCrop(SIDE, interpolation=transforms.InterpolationMode.BICUBIC),
        transforms.RandomVerticalFlip(),
    ],
    "test": [transforms.Resize(128), transforms.CenterCrop(SIDE)],
    "enlarged": [transforms.RandomResizedCrop(512, scale=(0.05, 0.2))],
}


def dataset(root: Path, steps: str) -> ImageFolder:
    tail = [transforms.ToTensor(), transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.2))]
    return ImageFolder(str(root), transforms.Compose([*STEPS[steps], *tail]))


def epochs(root: Path, steps: str, count: int = 3, **options: Any) -> tuple[list[list[torch.Tensor]], FastLoader[Any]]:
    loader = FastLoader(dataset(root, steps), batch_size=16, num_workers=3, shuffle=True, engine="native", **options)
    torch.manual_seed(5)
    return [[images.cpu() for images, _ in loader] for _ in range(count)], loader


@pytest.mark.parametrize("steps", STEPS)
def test_same_bits_as_on_threads(folder: Path, steps: str) -> None:
    want, _ = epochs(folder, steps, decode="cpu")
    got, loader = epochs(folder, steps, decode="gpu")
    for batches, others in zip(got, want, strict=True):
        for batch, other in zip(batches, others, strict=True):
            assert torch.equal(batch, other)
    stats = loader.stats()
    assert stats.gpu_images + stats.python_images < stats.images == 192
    assert stats.gpu_images > 90  # of three epochs


def test_parts_of_a_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want, _ = epochs(folder, "train", decode="cpu")
    monkeypatch.setattr("fastload.device.decode.files.SCRATCH_MAX_BYTES", 1 << 20)
    got, _ = epochs(folder, "train", decode="gpu")
    assert all(torch.equal(a, b) for x, y in zip(got, want, strict=True) for a, b in zip(x, y, strict=True))


def test_what_kernels_refuse_is_made_in_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the first image that is staged in each batch had turned out bad."""
    from fastload.device.decode.files import StagedFiles

    want, _ = epochs(folder, "train", decode="cpu")
    refused = []

    def failed(self: StagedFiles) -> list[int]:
        if self in refused or True not in self.is_staged():
            return []
        refused.append(self)
        return [self.is_staged().index(True)]

    monkeypatch.setattr(StagedFiles, "failed", failed)
    got, loader = epochs(folder, "train", decode="gpu")
    assert all(torch.equal(a, b) for x, y in zip(got, want, strict=True) for a, b in zip(x, y, strict=True))
    assert len(refused) >= 4
    assert loader.stats().python_images >= len(refused)


def test_threads_decode_when_the_device_has_no_memory_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def memory(self: Decoder, name: str, nbytes: int) -> torch.Tensor:
        if name != "scratch":
            return allocate(self, name, nbytes)
        asked.append(nbytes)
        raise torch.OutOfMemoryError("as if")

    allocate, asked = Decoder.memory, []
    want, _ = epochs(folder, "train", decode="cpu")
    monkeypatch.setattr(Decoder, "memory", memory)
    got, loader = epochs(folder, "train", decode="gpu")
    assert all(torch.equal(a, b) for x, y in zip(got, want, strict=True) for a, b in zip(x, y, strict=True))
    assert 1 <= len(asked) <= 4  # of batches that were staged already
    assert loader.stats().gpu_images == 0


def test_batches_of_the_gpu_and_of_threads_in_turns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[DecodedBatch] = []

    def choose(self: DecodePolicy) -> tuple[Side, bool]:
        turns.append(("find", "threads", "scan")[len(turns) % 3])
        return turns[-1], False

    def waits(self: Decoder, *, steps: bool = False) -> bool:
        self.waits = True
        return is_ready(self, steps=steps)

    turns: list[Side] = []
    is_ready = Decoder.is_ready
    monkeypatch.setattr(Decoder, "is_ready", waits)
    want, _ = epochs(folder, "train", 6, decode="cpu")
    monkeypatch.setattr(DecodePolicy, "choose", choose)
    monkeypatch.setattr(DecodePolicy, "note", lambda self, made, clock=None: noted.append(made))
    got, loader = epochs(folder, "train", 6, decode="auto")
    assert all(torch.equal(a, b) for x, y in zip(got, want, strict=True) for a, b in zip(x, y, strict=True))
    assert len(noted) == len(turns) == 24
    stats = loader.stats()
    assert stats.gpu_images == sum(made.staged for made in noted) > 0
    assert [made.side for made in noted] == turns
    assert all(made.staged > 0 for made in noted if made.side != "threads")
    first = [made for made in noted[:4] if made.staged]  # no file has been visited before
    assert all(made.new > made.staged // 2 for made in first)
    assert sum(made.staged - made.new for made in first) <= PROGRESSIVE
    assert all(made.new < made.staged for made in noted[-4:] if made.side != "threads")  # new: those of few MCUs
    assert all(made.work_s > 0 for made in noted)
    timed = [made.kernel_s for made in noted if made.staged]
    assert all(0 < seconds < 0.1 for seconds in timed[:4])


def test_what_auto_has_learnt_is_kept_by_the_loader(folder: Path) -> None:
    _, loader = epochs(folder, "train", 6, decode="auto")
    (policy,) = state_of(loader).decode_policies.values()
    assert policy.available
    assert policy.needed_s > 0
    assert policy.kernel_s > 0
