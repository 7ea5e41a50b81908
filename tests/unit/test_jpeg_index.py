"""Index of JPEG files: later epochs begin within files, and have torch's bits."""

from __future__ import annotations

import io
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from children import exit_code, forked
from photos import jpeg
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.vision import DecodeError, JpegIndex, decode, decode_batch

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


CROP = (200, 180, 40, 50)


def cut(content, crop=CROP):
    top, left, height, width = crop
    whole = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    return whole[top : top + height, left : left + width]


def test_decode_takes_an_index():
    index = JpegIndex(1 << 20)
    content = jpeg(1, 300, 300, subsampling=2)
    for _ in range(2):
        assert np.array_equal(decode(content, CROP, index=index), cut(content))
    totals = index.totals()
    assert (totals.files, totals.found, totals.missed, totals.evicted) == (1, 1, 1, 0)
    assert 0 < totals.bytes < index.max_bytes == 1 << 20


def test_an_index_knows_files_by_all_their_bytes(tmp_path):
    path = tmp_path / "photo.jpg"
    contents = [bytearray(jpeg(1, 300, 300, subsampling=2)), bytearray(jpeg(2, 300, 300, subsampling=2))]
    longest = max(map(len, contents))
    contents = [content.ljust(longest, b"\0") for content in contents]  # of one size, under one name
    changed = bytearray(contents[0])
    changed[500] ^= 1  # of a table, or the first coefficients
    index = JpegIndex()
    for content in (*contents, changed, *contents, changed):
        path.write_bytes(content)
        os.utime(path, ns=(0, 0))
        outcomes = []
        for given in (None, index):
            try:
                outcomes.append(decode(path, CROP, index=given).tobytes())
            except DecodeError as error:
                outcomes.append(error.status)
        assert outcomes[0] == outcomes[1]
    assert index.totals().files in (2, 3)


def test_threads_share_an_index():
    contents = [jpeg(number, 200 + number, 260, subsampling=number % 3) for number in range(6)]
    index = JpegIndex(1 << 20)
    random = np.random.default_rng(0)
    crops = [[int(v) for v in (*random.integers(0, 150, 2), 30, 40)] for _ in range(120)]

    def one(number):
        content = contents[number % len(contents)]
        return np.array_equal(decode(content, crops[number], index=index), cut(content, crops[number]))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(one, range(len(crops))))
    assert index.totals().files == len(contents)
    assert index.totals().found + index.totals().missed == len(crops)
    assert index.totals().found > len(crops) / 2


def test_a_batch_takes_an_index(no_pool_stays):
    contents = [jpeg(number, 300, 300, subsampling=2) for number in range(4)]
    index = JpegIndex()
    for _ in range(2):
        batch = decode_batch(contents, [CROP] * 4, index=index, num_threads=2)
        assert all(np.array_equal(image, cut(content)) for image, content in zip(batch, contents, strict=True))
    assert (index.totals().found, index.totals().missed) == (4, 4)


def test_an_index_makes_the_second_visit_faster():
    content = jpeg(3, 1200, 1600, subsampling=2)
    crop = (1100, 1400, 64, 64)
    index = JpegIndex()
    decode(content, crop, index=index)

    def quickest(given):
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            decode(content, crop, index=given)
            times.append(time.perf_counter() - begin)
        return min(times)

    assert quickest(index) < 0.7 * quickest(None)


def test_a_child_begins_with_an_empty_index():
    index = JpegIndex()
    content = jpeg(1, 300, 300, subsampling=2)
    decode(content, index=index)

    def in_child():
        assert index.totals().files == 0
        decode(content, index=index)
        assert index.totals().files == 1

    assert exit_code(forked(in_child)) == 0
    assert index.totals().missed == 1


def test_an_index_needs_room():
    with pytest.raises(ValueError, match="max_bytes must be >= 1, got 0"):
        JpegIndex(0)
