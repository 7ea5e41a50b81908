"""Test images in an object store, on a real server with latency and faults."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import time
from pathlib import Path

import optional
import pytest
import torch
from object_store import OPTIONS, store_of
from photos import make_folder, train_v1
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from fastload import FastLoader, _tagged_files
from fastload._tagged_files import key_path, make_key
from fastload.pipeline.datasets.samples import KeptFile
from fastload.sources import ObjectStoreImageFolder
from fastload.sources.fetcher import Kept

optional.needed("obstore", "moto")

COUNT, BATCH = 36, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = make_folder(tmp_path_factory.mktemp("images"), COUNT)
    nested = root / "class1" / "nested"
    nested.mkdir()
    shutil.copy(root / "class1" / "001.jpg", nested / "a.JPEG")
    (root / "class1" / "notes.txt").write_text("no image")
    (root / "top.jpg").write_bytes(b"in no class")
    return root


@pytest.fixture(scope="module")
def served(folder):
    with store_of(folder) as (store, client):
        yield store, client


@pytest.fixture
def store(served):
    served[0].set()
    return served[0]


def dataset(store, **options):
    return ObjectStoreImageFolder("s3://bucket/", train_v1(), **store.options, **options)


def batches(kind, data, workers=2, **options):
    torch.manual_seed(3)
    loader = kind(data, batch_size=BATCH, shuffle=True, num_workers=workers, **options)
    return [(images.clone(), target) for images, target in loader]


def assert_same(ours, folder):
    theirs = batches(DataLoader, ImageFolder(folder, train_v1()))
    assert len(ours) == len(theirs) == -(-(COUNT + 1) // BATCH)
    for (images, target), (expected, labels) in zip(ours, theirs, strict=True):
        assert torch.equal(images, expected)
        assert torch.equal(target, labels)


@pytest.mark.slow
def test_classes_and_samples_are_those_of_the_folder(store, folder):
    ours, theirs = dataset(store), ImageFolder(folder)
    assert (ours.classes, ours.class_to_idx, ours.targets) == (theirs.classes, theirs.class_to_idx, theirs.targets)
    assert [key for key, _ in ours.samples] == [os.path.relpath(path, folder) for path, _ in theirs.samples]
    assert len(ours) == len(theirs) == COUNT + 1


def test_samples_may_be_taken_out_and_put_in_another_order(store, folder):
    ours, theirs = dataset(store, retries=0), ImageFolder(folder)
    ours.samples = [*ours.samples[::-2], ours.samples[0]]
    files = [Path(path).read_bytes() for path, _ in [*theirs.samples[::-2], theirs.samples[0]]]
    assert [bytes(source) for source, _ in ours.encoded_many(range(len(ours))).result()] == files


@pytest.mark.slow
def test_same_batches_natively(store, folder):
    data = dataset(store)
    assert_same(batches(FastLoader, data, engine="native"), folder)
    assert len(store.reads) == COUNT + 1
    assert sum(store.reads.values()) <= COUNT + 1 + 2 * 8  # eight samples were compared first


@pytest.mark.slow
def test_same_batches_in_torchs_workers(store, folder):
    data = dataset(store)
    data.encoded(0)  # so that there is a process that workers must not use
    assert_same(batches(DataLoader, data), folder)
    assert_same(batches(FastLoader, pickle.loads(pickle.dumps(data)), engine="torch"), folder)


FAULTS = {4: "busy", 7: "cut", 9: "drop", 10: "short", 13: "changed", 17: "huge"}


@pytest.mark.slow
def test_faults_lose_nothing(store, folder):
    store.set(fault=lambda number: next((FAULTS[by] for by in FAULTS if number % by == 0), "none"))
    assert_same(batches(FastLoader, dataset(store), engine="native"), folder)
    assert len(store.reads) == COUNT + 1
    assert sum(store.reads.values()) > 1.3 * COUNT


def test_requests_wait_together(store, folder):
    latency_s = 0.3
    store.set(latency_s=latency_s)
    data = dataset(store)
    data.encoded(0)
    begun = time.monotonic()
    answers = data.encoded_many(range(COUNT)).result()
    assert time.monotonic() - begun < COUNT * latency_s / 3
    files = [Path(path).read_bytes() for path, _ in ImageFolder(folder).samples[:COUNT]]
    assert [bytes(source) for source, _ in answers] == files


@pytest.mark.parametrize("fault", ["busy", "cut", "drop", "short", "changed", "huge"])
def test_a_store_that_only_fails_is_an_error_with_the_key(store, fault, tmp_path):
    store.set(fault=lambda number: fault)
    data = dataset(store, retries=1, cache_dir=tmp_path)
    with pytest.raises(OSError, match=r"s3://bucket/class0/000.jpg cannot be read: "):
        data.encoded(0)
    assert sum(store.reads.values()) == 2
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    store.set()
    assert data.encoded(0)[0] == dataset(store).encoded(0)[0]


def test_a_refusal_is_an_error_at_once(store):
    store.set(fault=lambda number: "denied")
    with pytest.raises(PermissionError, match=r"s3://bucket/class0/000.jpg cannot be read: "):
        dataset(store).encoded(0)
    assert sum(store.reads.values()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "workers"), [("native", 1), ("torch", 0)])
def test_a_missing_object_is_an_error_with_the_key(store, engine, workers):
    data = dataset(store)
    data.samples[9] = ("class0/gone.jpg", 0)
    loader = FastLoader(data, batch_size=BATCH, num_workers=workers, engine=engine)
    iterator = iter(loader)
    assert next(iterator)[1].tolist() == [0] * BATCH
    next(iterator)
    with pytest.raises(FileNotFoundError, match=r"s3://bucket/class0/gone.jpg cannot be read: "):
        next(iterator)


@pytest.mark.slow
def test_cached_objects_are_not_requested_again(store, folder, tmp_path):
    data = dataset(store, cache_dir=tmp_path)
    first = batches(FastLoader, data, engine="native")
    store.set()
    assert_same(first, folder)
    assert_same(batches(FastLoader, data, engine="native"), folder)
    assert_same(batches(DataLoader, dataset(store, cache_dir=tmp_path)), folder)
    assert not store.reads


def test_cached_objects_are_read_where_they_lie(store, folder, tmp_path):
    data = dataset(store, cache_dir=tmp_path)
    objects = [bytes(source) for source, _ in data.encoded_many(range(COUNT)).result()]
    paths = [source for source, _ in data.encoded_many(range(COUNT)).result()]
    assert [path.read() for path in paths] == objects
    before = [os.stat(path) for path in paths]
    time.sleep(0.01)
    data.encoded_many(range(COUNT)).result()
    after = [os.stat(path) for path in paths]
    assert all(late.st_atime_ns > early.st_atime_ns for early, late in zip(before, after, strict=True))
    assert [late.st_mtime_ns for late in after] == [early.st_mtime_ns for early in before]  # indexes stay good


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_cached_objects_that_are_removed_meanwhile_are_requested_again(store, folder, tmp_path, engine, monkeypatch):
    data = dataset(store, cache_dir=tmp_path)
    data.encoded_many(range(len(data))).result()
    entry, chosen = data._entry, {key for key, _ in data.samples[::3]}

    def remove(source, sample):
        made = entry(source, sample)
        if isinstance(source, Kept) and sample[0] in chosen:
            chosen.discard(sample[0])
            os.unlink(source.path)
        return made

    monkeypatch.setattr(data, "_entry", remove)
    assert_same(batches(FastLoader, data, engine=engine), folder)
    assert engine == "torch" or not chosen


def test_a_kept_file_has_its_bytes_or_those_of_the_store(tmp_path):
    path, key = tmp_path / "file", bytes(range(48))
    kept = KeptFile(str(path), key, lambda: memoryview(b"of the store"))
    assert kept.read() == pickle.loads(pickle.dumps(kept)) == b"of the store"
    _tagged_files.write(path, b"of the cache", key)
    assert kept.read() == pickle.loads(pickle.dumps(kept)) == b"of the cache"
    path.write_bytes(b"of someone else")
    assert kept.read() == pickle.loads(pickle.dumps(kept)) == b"of the store"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_cached_objects_that_others_have_changed_are_requested_again(store, folder, tmp_path, engine):
    """Each becomes another image of its size, every third another of the cache's files."""
    data = dataset(store, cache_dir=tmp_path)
    data.encoded_many(range(len(data))).result()
    kept = [Path(source) for source, _ in data.encoded_many(range(len(data))).result()]
    whole = {path: path.read_bytes() for path in kept}
    image = min(whole.values(), key=len)[: -_tagged_files.TAGS_BYTES]
    for number, (path, content) in enumerate(whole.items()):
        padded = image.ljust(len(content) - _tagged_files.TAGS_BYTES, b"\0") + content[-_tagged_files.TAGS_BYTES :]
        path.write_bytes(whole[kept[number - 1]] if number % 3 == 0 else padded)
    store.set()
    assert_same(batches(FastLoader, data, engine=engine), folder)
    assert len(store.reads) == COUNT + 1
    assert {path: path.read_bytes() for path in kept} == whole
    store.set()
    assert_same(batches(FastLoader, data, engine=engine), folder)
    assert not store.reads


def test_a_cache_without_a_key_is_refused(store, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    make_key()
    key_path().chmod(0o644)
    with pytest.raises(ValueError, match=r"the key .* must have 48 bytes, and only you may read it"):
        dataset(store, cache_dir=tmp_path / "cache")


def test_the_cache_keeps_its_bound(store, folder, tmp_path):
    most = 20_000
    data = dataset(store, cache_dir=tmp_path, max_cache_bytes=most)
    data.encoded_many(range(COUNT)).result()
    kept = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert sum(kept) <= most


def test_a_damaged_cache_is_read_from_the_store(store, tmp_path):
    data = dataset(store, cache_dir=tmp_path)
    source = bytes(data.encoded(0)[0])
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())
    kept.write_bytes(b"short")
    assert data.encoded(0)[0] == source
    assert kept.read_bytes()[: -_tagged_files.TAGS_BYTES] == source


@pytest.mark.slow
def test_break_ends_requests(store):
    store.set(latency_s=0.05)
    for _ in FastLoader(dataset(store), batch_size=BATCH, num_workers=2, engine="native"):
        break


def test_the_end_of_the_process_is_an_error(store):
    store.set(latency_s=3)  # longer than it takes to end the process, shorter than threads may survive a test
    data = dataset(store)
    answer = data.encoded_many([0, 1])
    data._asked()._process.kill()
    with pytest.raises(RuntimeError, match=r"the process that reads objects has ended \(exit code -9\)"):
        answer.result(20)


@pytest.mark.slow
def test_http_takes_a_list_of_keys(store, folder):
    keys = [os.path.relpath(path, folder) for path, _ in ImageFolder(folder).samples]
    data = ObjectStoreImageFolder(store.url, train_v1(), keys=reversed(keys), **OPTIONS)
    assert_same(batches(FastLoader, data, engine="native"), folder)
    with pytest.raises(ValueError, match=r"cannot be listed; give keys="):
        ObjectStoreImageFolder(store.url, **OPTIONS)


def test_wrong_arguments(store):
    with pytest.raises(ValueError, match="requests must be >= 1, got 0"):
        dataset(store, requests=0)
    with pytest.raises(ValueError, match="retries must be >= 0, got -1"):
        dataset(store, retries=-1)
    with pytest.raises(ValueError, match="max_cache_bytes must be >= 0, got -1"):
        dataset(store, max_cache_bytes=-1)
    with pytest.raises(FileExistsError, match=re.escape(__file__)):
        dataset(store, cache_dir=__file__)
    with pytest.raises(FileNotFoundError, match="has no images in folders"):
        ObjectStoreImageFolder("s3://bucket/nothing", **store.options)


def test_targets_are_transformed(store):
    def target_of(number):
        if number == 2:
            raise ValueError("no such class")
        return -number

    data = ObjectStoreImageFolder("s3://bucket", train_v1(), target_of, **store.options)
    assert data.encoded(len(data) // 2)[1] == -1
    with pytest.raises(ValueError, match="no such class"):
        data.encoded(len(data) - 1)
