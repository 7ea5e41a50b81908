"""Native batches on a device: simulated, or on CUDA (marked ``gpu``) in every dtype."""

from __future__ import annotations

import gc
import signal
import threading

import effort
import pytest
import torch
import torchvision.transforms as v1
from backends import simulated
from interrupts import interrupted_at_every_opcode
from photos import NOISY, PIPELINES, assert_same, epochs_of, photos_fixture, train_v1
from references import kept
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload import FastLoader
from fastload.torch_workers import signals

ARGUMENTS = {"batch_size": 4, "num_workers": 2, "shuffle": True}
root = photos_fixture(14, mixed=True)


def on_host(seen):
    return [[leaf.cpu().contiguous() for leaf in item] if isinstance(item, list) else item for item in seen]


def in_dtype(dtype):
    return v2.Compose(
        [v2.RandomResizedCrop(40), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(dtype, scale=True)]
    )


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("breaks_at", [None, 2])
def test_epochs_and_generators_on_a_simulated_device(root, monkeypatch, persistent, prefetch, breaks_at):
    compare_on_a_simulated_device(root, monkeypatch, train_v1, persistent, prefetch, breaks_at)


@pytest.mark.parametrize("name", ["train_on_tensors", "erasing_v1", "erasing_v2", "erasing_bytes", *NOISY])
@pytest.mark.matrix
def test_pipelines_on_a_simulated_device(root, monkeypatch, name):
    compare_on_a_simulated_device(root, monkeypatch, PIPELINES[name], count=2)


class TwoViews:
    """As MoCo has it."""

    def __init__(self, base):
        self.base = base

    def __call__(self, x):
        q = self.base(x)
        k = self.base(x)
        return [q, k]


class MultiCrop:
    """As DINO has it."""

    def __init__(self):
        self.large = v1.Compose([v1.RandomResizedCrop(24), v1.ToTensor()])
        self.other = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()])
        self.small = v1.Compose([v1.RandomResizedCrop((9, 13)), v1.ToTensor()])
        self.n = 3

    def __call__(self, image):
        crops = []
        crops.append(self.large(image))
        crops.append(self.other(image))
        for _ in range(self.n):
            crops.append(self.small(image))
        return crops


@pytest.mark.parametrize("prefetch", [0, 1])
def test_views_of_two_sizes_on_a_simulated_device(root, monkeypatch, prefetch):
    theirs = kept(lambda: crops_of(lambda: DataLoader(ImageFolder(root, MultiCrop()), **ARGUMENTS)))
    own = {**simulated.install_native(monkeypatch), "engine": "native", "device_prefetch": prefetch}
    ours = crops_of(lambda: FastLoader(ImageFolder(root, MultiCrop()), **ARGUMENTS, **own))
    assert_same(ours, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("workers", [0, 2])
def test_views_of_two_sizes_on_the_gpu(root, prefetch, workers):
    arguments = {**ARGUMENTS, "num_workers": workers}
    theirs = kept(lambda: crops_of(lambda: DataLoader(ImageFolder(root, MultiCrop()), **arguments)))
    own = {"device": "cuda", "engine": "native", "device_prefetch": prefetch}
    ours = crops_of(lambda: FastLoader(ImageFolder(root, MultiCrop()), **arguments, **own))
    assert_same(ours, theirs)


def crops_of(loader_of):
    """All batches of an epoch, on the host."""
    torch.manual_seed(3)
    batches = list(loader_of())
    assert all(type(crops) is list for crops, _ in batches)
    return [[*(crop.cpu().contiguous() for crop in crops), targets.cpu()] for crops, targets in batches]


@pytest.mark.parametrize("prefetch", [0, 1])
def test_views_on_a_simulated_device(root, monkeypatch, prefetch):
    torch.manual_seed(3)
    theirs = kept(lambda: list(DataLoader(ImageFolder(root, TwoViews(train_v1())), **ARGUMENTS)))
    own = simulated.install_native(monkeypatch)
    torch.manual_seed(3)
    dataset = ImageFolder(root, TwoViews(train_v1()))
    ours = list(FastLoader(dataset, **ARGUMENTS, **own, engine="native", device_prefetch=prefetch))
    assert len(ours) == len(theirs)
    for (views, targets), (expected, wanted) in zip(ours, theirs, strict=True):
        assert type(views) is list
        assert all(view.is_contiguous(memory_format=torch.channels_last) for view in views)
        assert_same([*(view.cpu().contiguous() for view in views), targets.cpu()], [*expected, wanted])


def test_the_thread_that_issues_copies_works_on_their_device(root, monkeypatch):
    set_by = {}
    own = simulated.install_native(monkeypatch)
    monkeypatch.setattr(
        torch.accelerator, "set_device_index", lambda device: set_by.update({threading.current_thread().name: device})
    )
    dataset = ImageFolder(root, train_v1())
    assert list(FastLoader(dataset, **ARGUMENTS, **own, engine="native"))
    assert set_by == {"fastload-pipeline": torch.device("cuda", 0)}


def device_iterators(root, monkeypatch):
    """Return a function that makes an iterator with one batch taken, and its loaders."""
    own = simulated.install_native(monkeypatch)
    monkeypatch.setattr(signals, "_NUMBERS", (signal.SIGINT,))  # deferring takes bytecodes for each number
    dataset = ImageFolder(root, train_v1())
    loaders = []

    def make():
        loaders.append(FastLoader(dataset, batch_size=2, num_workers=2, prefetch_factor=1, engine="native", **own))
        iterator = iter(loaders[-1])
        next(iterator)
        return iterator

    return make, loaders


@pytest.mark.slow
def test_an_interrupt_anywhere_in_close_leaves_nothing(root, monkeypatch):
    make, loaders = device_iterators(root, monkeypatch)

    def check(iterator, interrupted):
        iterator._shutdown_workers()
        assert loaders[-1]._state._before["copied"] == iterator.transfer.batches  # once
        for thread in threading.enumerate():
            if thread.name == "fastload-pipeline":  # the first close() was interrupted before it waited
                thread.join(30)
                assert not thread.is_alive()
        with pytest.raises(RuntimeError, match="was closed"):
            next(iterator)

    stride = 10 * effort.stride()
    assert interrupted_at_every_opcode(make, lambda iterator: iterator._shutdown_workers(), check, stride=stride) > 300


def test_dropping_an_iterator_ends_its_threads(root, monkeypatch):
    make, loaders = device_iterators(root, monkeypatch)
    iterator = make()
    transfer = iterator.transfer
    gc.disable()
    try:
        del iterator
        assert not any(thread.name == "fastload-pipeline" for thread in threading.enumerate())
        assert loaders[-1]._state._before["copied"] == transfer.batches > 0
        assert loaders[-1].stats().batches > 0
    finally:
        gc.enable()


def compare_on_a_simulated_device(root, monkeypatch, pipeline, persistent=False, prefetch=1, breaks_at=None, count=3):
    arguments = {**ARGUMENTS, "persistent_workers": persistent}
    dataset = ImageFolder(root, pipeline())
    run = {"count": count, "breaks_at": breaks_at}
    theirs = kept(lambda: epochs_of(lambda: DataLoader(dataset, **arguments), **run))
    own = {**simulated.install_native(monkeypatch), "device_prefetch": prefetch, "engine": "native"}
    seen = epochs_of(lambda: FastLoader(dataset, **arguments, **own), **run)
    layouts = [item[0].is_contiguous(memory_format=torch.channels_last) for item in seen if isinstance(item, list)]
    assert layouts
    assert all(layouts)
    assert_same(on_host(seen), theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("randomness", ["worker", "sample"])
def test_pipelines_on_the_gpu(root, name, memory_format, randomness):
    dataset = ImageFolder(root, PIPELINES[name]())
    own = {"randomness": randomness, "engine": "native", "memory_format": memory_format}
    theirs = epochs_of(lambda: FastLoader(dataset, **ARGUMENTS, device="cpu", randomness=randomness, engine="torch"))
    seen = epochs_of(lambda: FastLoader(dataset, **ARGUMENTS, **own, device="cuda"))
    assert all(leaf.is_cuda for item in seen if isinstance(item, list) for leaf in item)
    assert_same(on_host(seen), theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format, None])
@pytest.mark.parametrize("prefetch", [0, 1])
def test_epochs_on_the_gpu(root, dtype, memory_format, prefetch):
    dataset = ImageFolder(root, in_dtype(dtype))
    theirs = kept(lambda: epochs_of(lambda: DataLoader(dataset, **ARGUMENTS)))
    own = {"device": "cuda", "engine": "native", "memory_format": memory_format, "device_prefetch": prefetch}
    seen = epochs_of(lambda: FastLoader(dataset, **ARGUMENTS, **own))
    assert all(leaf.is_cuda for item in seen if isinstance(item, list) for leaf in item)
    assert_same(on_host(seen), theirs)
