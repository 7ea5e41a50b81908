"""Test how much memory batches take on their way to a GPU, and its reuse."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.device.transfer import AT_ONCE_MAX_BYTES
from fastload.iterators import pin_large
from fastload.loader_state import state_of
from fastload.memory.buffers import BufferPool

pytestmark = pytest.mark.gpu

LONG = 100_000_000  # GPU clock cycles: about 50 ms
TAIL = [transforms.ToTensor(), transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.2))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """512 JPEG files of 500 x 400, of 32 contents as detailed as photographs."""
    root = tmp_path_factory.mktemp("photos")
    (root / "a").mkdir()
    rng = np.random.default_rng(0)
    for number in range(32):
        coarse = Image.fromarray(rng.integers(0, 256, (100, 125, 3), dtype=np.uint8)).resize((500, 400))
        coarse.save(root / "a" / f"{number:03}.jpg", quality=90)
        for copy in range(1, 16):
            (root / "a" / f"{number + 32 * copy:03}.jpg").symlink_to(root / "a" / f"{number:03}.jpg")
    return root


def loader_of(root: Path, batch_size: int, **options: Any) -> FastLoader[Any]:
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    dataset = ImageFolder(str(root), transforms.Compose([*steps, *TAIL]))
    return FastLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=4, engine="native", **options)


def test_decoding_takes_at_most_400_mb_and_says_how_much(folder: Path) -> None:
    loader = loader_of(folder, 256, decode="gpu")
    for _ in range(2):
        for _batch in loader:
            pass
    del _batch
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, images_bytes = torch.cuda.memory_allocated(), 256 * 3 * 224 * 224 * 4
    kept = state_of(loader)._decoders[torch.device("cuda", 0)]
    for images, _ in loader:
        torch.cuda._sleep(LONG)
        del images
    stats = loader.stats()
    peak = torch.cuda.max_memory_allocated()
    assert stats.gpu_images >= 512
    assert 2 * 10**7 < stats.gpu_decode_bytes == kept.nbytes <= 400 * 10**6
    assert peak - before < stats.gpu_decode_bytes + 4 * images_bytes  # in use, unfinished, ahead, and the one made
    assert f"{stats.gpu_decode_bytes / 1e6:,.0f} MB" in str(loader.report())
    loader.close()
    assert loader.stats().gpu_decode_bytes == 0


IN_FLIGHT_MAX = 8
"""At least as many batches as can be in flight. How many are depends on what else the machine and the GPU do."""


def fill(pool: BufferPool) -> None:
    """Have a pool hold memory for :data:`IN_FLIGHT_MAX` batches."""
    lent = [pool.take(1)]
    nbytes = max(loan.memory.nbytes for loan in pool._lent)
    lent += [pool.take(nbytes) for _ in range(IN_FLIGHT_MAX - 1)]


@pytest.mark.parametrize("decode", ["gpu", "cpu"])
def test_no_memory_is_allocated_once_batches_have_passed(folder: Path, decode: str) -> None:
    torch.manual_seed(1)  # crops of the sixth epoch need more memory than any before
    loader = loader_of(folder, 64, decode=decode)

    def epochs(count: int) -> None:
        for _ in range(count):
            for images, _ in loader:
                del images
        torch.cuda.synchronize()

    epochs(2)
    batches = list(loader)
    assert len(batches) == IN_FLIGHT_MAX
    del batches
    state = state_of(loader)
    for pool in (state.buffers, *(decoder._buffers for decoder in state._decoders.values())):
        fill(pool)
    epochs(1)
    on_device, on_host = torch.cuda.memory_stats(), torch.cuda.host_memory_stats()
    buffers = state.buffers.nbytes
    epochs(3)
    assert torch.cuda.memory_stats()["num_device_alloc"] == on_device["num_device_alloc"]
    assert torch.cuda.host_memory_stats()["num_host_alloc"] == on_host["num_host_alloc"]
    assert state.buffers.nbytes == buffers <= IN_FLIGHT_MAX * 64 * 224 * 224 * 3


@pytest.mark.parametrize(("decode", "device_prefetch"), [("gpu", 1), ("gpu", 2), ("cpu", 0), ("cpu", 1), ("cpu", 2)])
def test_memory_is_not_used_again_before_its_copy_is_done(folder: Path, decode: str, device_prefetch: int) -> None:
    options: dict[str, Any] = {"decode": decode, "device_prefetch": device_prefetch}
    torch.manual_seed(3)
    want = [images.cpu() for _ in range(2) for images, _ in loader_of(folder, 64, decode="cpu")]
    loader = loader_of(folder, 64, **options)
    torch.manual_seed(3)
    got = []
    for _ in range(2):
        for images, _ in loader:
            for stream in state_of(loader)._streams.values():  # copies come late
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(LONG // 4)
            got.append(images.cpu())
    assert all(map(torch.equal, got, want))
    assert len(got) == len(want) == 16


def test_iterators_of_one_loader_decode_their_own_files(folder: Path) -> None:
    with loader_of(folder, 64, decode="cpu") as loader:
        torch.manual_seed(4)
        want = [images.cpu() for _ in range(3) for images, _ in loader]
    with loader_of(folder, 64, decode="gpu") as loader:
        for _ in loader:  # makes the index
            pass
        torch.manual_seed(4)
        iterators, got = [], []
        for _ in range(3):  # in this order they draw their seeds
            iterators.append(iter(loader))
            got.append([next(iterators[-1])[0].cpu()])
        for _ in range(7):
            for iterator, batches in zip(iterators, got, strict=True):
                batches.append(next(iterator)[0].cpu())
        assert loader.stats().gpu_images > 3 * 400
    assert all(map(torch.equal, itertools.chain(*got), want))


def test_cuda_takes_small_tensors_along_with_the_call() -> None:
    small = torch.arange(AT_ONCE_MAX_BYTES // 8)
    assert pin_large(small) is small
    assert pin_large(torch.arange(AT_ONCE_MAX_BYTES // 8 + 1)).is_pinned()
    assert pin_large([small])[0].is_pinned()
    small.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(4 * LONG)
        begun = time.perf_counter()
        copied = small.to("cuda", non_blocking=True)
        took = time.perf_counter() - begun
        assert not stream.query()
        assert took < 0.02
        small.zero_()  # after the call CUDA does not read it any more
    stream.synchronize()
    assert copied.cpu().tolist() == list(range(AT_ONCE_MAX_BYTES // 8))


def test_labels_arrive_as_from_torch() -> None:
    from benchmarks.arrays import cifar10

    torch.manual_seed(1)
    want = [labels for _, labels in DataLoader(cifar10(512), batch_size=128, shuffle=True, num_workers=2)]
    torch.manual_seed(1)
    got = [labels for _, labels in FastLoader(cifar10(512), batch_size=128, shuffle=True, num_workers=2)]
    assert all(torch.equal(one.cpu(), other) for one, other in zip(got, want, strict=True))
