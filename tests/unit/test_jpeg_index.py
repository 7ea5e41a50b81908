"""Index of JPEG files: later epochs begin within files, and have torch's bits."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from children import exit_code, forked
from photos import jpeg
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from fastload import FastLoader, _core

COUNT = 9


@pytest.fixture
def root(tmp_path):
    (tmp_path / "one").mkdir()
    for number in range(COUNT):
        subsampling = number % 3
        content = jpeg(number, 260 + 7 * number, 310, subsampling=subsampling)
        (tmp_path / "one" / f"{number}.jpg").write_bytes(content)
    return tmp_path


def dataset(root):
    return ImageFolder(root, v1.Compose([v1.RandomResizedCrop(40), v1.RandomHorizontalFlip(), v1.PILToTensor()]))


def options(workers, *, persistent=False):
    return {"batch_size": 4, "shuffle": True, "num_workers": workers, "persistent_workers": persistent}


def epochs(loader, count, between=None):
    torch.manual_seed(5)
    seen = []
    for epoch in range(count):
        if epoch and between is not None:
            between()
        seen.append([(images.clone(), targets.clone()) for images, targets in loader])
    return seen


def assert_same(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        for (images, targets), (their_images, their_targets) in zip(mine, other, strict=True):
            assert torch.equal(images, their_images)
            assert torch.equal(targets, their_targets)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_later_epochs_use_it_and_have_torchs_bits(root, workers, persistent):
    given = options(workers, persistent=persistent)
    with FastLoader(dataset(root), device="cpu", engine="native", **given) as loader:
        first = epochs(loader, 4)
        stats = loader.stats()
    assert_same(first, epochs(DataLoader(dataset(root), **given), 4))
    assert stats.indexed >= 3 * COUNT  # a check before the first batch may have filled it
    files = sum(path.stat().st_size for path in root.rglob("*.jpg"))
    assert 0 < stats.index_bytes < 0.1 * files + 300 * COUNT


def test_closing_frees_it_and_keeps_the_count(root):
    with FastLoader(dataset(root), device="cpu", engine="native", **options(2)) as loader:
        epochs(loader, 2)
        before = loader.stats()
    after = loader.stats()
    assert before.index_bytes > 0
    assert (after.index_bytes, after.indexed) == (0, before.indexed)


def test_a_period_counts_its_own(root):
    with FastLoader(dataset(root), device="cpu", engine="native", **options(2)) as loader:
        epochs(loader, 2)
        before = loader.stats()
        epochs(loader, 1)
        period = loader.stats().since(before)
    assert period.indexed == COUNT
    assert period.index_bytes == before.index_bytes


@pytest.mark.parametrize("workers", [0, 2])
def test_files_that_change_between_epochs_are_decoded_anew(root, workers):
    contents = [path.read_bytes() for path in sorted(root.rglob("*.jpg"))]

    def shift():
        contents.append(contents.pop(0))
        for path, content in zip(sorted(root.rglob("*.jpg")), contents, strict=True):
            path.write_bytes(content)

    def spoil():  # keeps size and time
        for path in sorted(root.rglob("*.jpg")):
            content = bytearray(path.read_bytes())
            times = path.stat().st_atime_ns, path.stat().st_mtime_ns
            content[len(content) // 2] ^= 0x15
            path.write_bytes(content)
            os.utime(path, ns=times)

    for change in (shift, spoil):
        given = options(workers)
        kept = {path: path.read_bytes() for path in root.rglob("*.jpg")}
        with FastLoader(dataset(root), device="cpu", engine="native", **given) as loader:
            ours = epochs(loader, 3, change)
        for path, content in kept.items():
            path.write_bytes(content)
        contents[:] = [path.read_bytes() for path in sorted(root.rglob("*.jpg"))]
        assert_same(ours, epochs(DataLoader(dataset(root), **given), 3, change))


@pytest.mark.parametrize("workers", [0, 2])
def test_without_it_nothing_is_kept(root, workers):
    with FastLoader(dataset(root), device="cpu", engine="native", max_index_bytes=0, **options(workers)) as loader:
        epochs(loader, 3)
        assert (loader.stats().index_bytes, loader.stats().indexed) == (0, 0)
        assert "index" not in str(loader.plan)


def test_it_keeps_to_its_limit(root):
    limit = 16 * 1200  # a shard has room for one file
    with FastLoader(dataset(root), device="cpu", engine="native", max_index_bytes=limit, **options(2)) as loader:
        ours = epochs(loader, 3)
        assert 0 < loader.stats().index_bytes <= limit
        assert f"an index of at most {limit / 1e6:.0f} MB" in " ".join(str(loader.plan).split())
    assert_same(ours, epochs(DataLoader(dataset(root), **options(2)), 3))


def test_a_child_has_one_of_its_own(root):
    with FastLoader(dataset(root), device="cpu", engine="native", **options(0)) as loader:
        epochs(loader, 2)

        def in_child():
            epochs(loader, 1)
            assert loader.stats().indexed == 0

        assert exit_code(forked(in_child)) == 0
        assert loader.stats().indexed >= COUNT


def test_decode_takes_an_index():
    index = _core.JpegIndex(1 << 20)
    content = jpeg(1, 300, 300, subsampling=2)
    whole = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    for _ in range(2):
        out = np.empty((1, 40, 50, 3), np.uint8)
        geometry = (200, 180, 40, 50, 40, 50, 0, 0, 40, 50, 0, 0)
        assert _core.decode(content, out, geometry, index=index)[0] == "ok"
        assert np.array_equal(out[0], whole[200:240, 180:230])
    size, files, found, missed, evicted = index.totals()
    assert (files, found, missed, evicted) == (1, 1, 1, 0)
    assert 0 < size < 1 << 20
