"""Whole epochs of the native engine are those of torch's DataLoader, bit for bit."""

from __future__ import annotations

import io
import re
import sys
import tarfile
import types

import pytest
import torch
import torchvision.transforms as v1
from photos import (
    NOISY,
    OF_PYTHON,
    PIPELINES,
    Encoded,
    OwnCrop,
    Seeding,
    assert_same,
    both,
    damaged,
    damaged_twice,
    epochs_of,
    jpeg,
    patched_instance,
    photos_fixture,
    pixels,
    train_v1,
)
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Subset
from torchvision.datasets import DatasetFolder, ImageFolder, ImageNet
from torchvision.datasets.folder import default_loader

from fastload import FastLoader
from fastload.native import iterator as decode_threads

NATIVE = {"device": "cpu", "engine": "native"}
folder = photos_fixture()
mixed = photos_fixture(12, mixed=True)


def check(folder, transform=train_v1, **arguments):
    arguments = {"batch_size": 5, "num_workers": 2, "shuffle": True, **arguments}
    dataset_of = arguments.pop("dataset_of", lambda: ImageFolder(folder, transform()))
    ours, theirs = both(dataset_of, FastLoader, NATIVE, **arguments)
    assert_same(ours, theirs)
    return ours, theirs


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.matrix
def test_pipelines(folder, name):
    check(folder, PIPELINES[name])


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [1, 3, 4, 5])  # test_pipelines() has 2
@pytest.mark.parametrize("name", ["train_v1", "eval_v2", *OF_PYTHON, *NOISY])
def test_numbers_of_workers(folder, workers, name):
    check(folder, PIPELINES[name], num_workers=workers)


@pytest.mark.parametrize("drop_last", [True, False])
def test_generator_and_last_batch(folder, drop_last):
    assert 23 % 5  # the last batch is smaller
    check(folder, drop_last=drop_last, build=lambda: {"generator": torch.Generator().manual_seed(9)}, prefetch_factor=1)


def test_no_shuffle(folder):
    check(folder, shuffle=False, batch_size=1, num_workers=3)


@pytest.mark.parametrize("name", ["train_v1", *OF_PYTHON, *NOISY])
@pytest.mark.matrix
def test_persistent_workers(folder, name):
    check(folder, PIPELINES[name], persistent_workers=True, run={"count": 3})


@pytest.mark.each_value
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("name", NOISY)
def test_break_and_next_epoch_with_noise(folder, persistent, name):
    check(folder, PIPELINES[name], persistent_workers=persistent, num_workers=3, run={"breaks_at": 2, "count": 3})


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("generator", [True, False])
def test_break_and_next_epoch(folder, persistent, generator):
    build = (lambda: {"generator": torch.Generator().manual_seed(4)}) if generator else dict
    check(folder, persistent_workers=persistent, build=build, batch_size=2, run={"breaks_at": 2, "count": 3})


def test_subset(folder):
    check(folder, dataset_of=lambda: Subset(Subset(ImageFolder(folder, train_v1()), range(3, 20)), [5, 1, 9, 9, 0, 3]))


def test_distributed_sampler(folder):
    build = lambda: {"sampler": DistributedSampler(ImageFolder(folder), 2, 1, seed=5)}  # noqa: E731
    check(folder, shuffle=None, build=build)


def test_batch_sampler(folder):
    build = lambda: {"batch_sampler": BatchSampler(RandomSampler(range(23)), 4, True)}  # noqa: E731
    check(folder, shuffle=None, batch_size=1, build=build)


@pytest.mark.parametrize(
    "name",
    ["train_v1", "eval_v1", "random_crop", "train_on_tensors", "erasing_v1", "erasing_v2", *OF_PYTHON, *NOISY],
)
@pytest.mark.matrix
def test_other_formats_among_the_jpegs(mixed, name):
    check(mixed, PIPELINES[name], num_workers=3, batch_size=4)


def last_line(error):
    """What was raised in the worker, without where; of an object's address, nothing."""
    return re.sub(r" at 0x\w+>.*", "", str(error).strip().splitlines()[-1])


@pytest.mark.each_value
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("damage", ["truncated", "no image", "misnamed text", "missing", "noise"])
def test_damaged_files(tmp_path, damage, persistent):
    dataset_of = damaged(tmp_path, damage)
    ours, theirs = check(tmp_path, dataset_of=dataset_of, batch_size=3, persistent_workers=persistent, run={"count": 3})
    errors = [item for item in ours if isinstance(item, Exception)]
    assert errors or damage == "noise"  # Pillow makes something of that
    for error, wanted in zip(errors, (item for item in theirs if isinstance(item, Exception)), strict=True):
        assert last_line(wanted) in str(error)
    assert all(("none.jpg" if damage == "missing" else "004.jpg") in str(error) for error in errors)


def test_two_damaged_files_and_a_crop_that_does_not_fit(tmp_path):
    transform = lambda: v1.Compose([v1.RandomHorizontalFlip(), v1.RandomCrop(40), v1.ToTensor()])  # noqa: E731
    check(damaged_twice(tmp_path), transform, batch_size=3, persistent_workers=True, run={"count": 3})


def test_an_index_out_of_range_raises_what_torch_raises(folder):
    ours, _ = check(folder, shuffle=None, build=lambda: {"sampler": [0, 1, 2, 99, 4, 5]}, batch_size=3)
    assert any(isinstance(item, IndexError) for item in ours)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_an_index_out_of_range_comes_first_in_its_batch(folder, batch_size):
    build = lambda: {"sampler": [0, 1, 99, 2, 3, 4, 99, 5]}  # noqa: E731
    transform = lambda: v1.Compose([*train_v1().transforms, v1.RandomErasing(p=1.0)])  # noqa: E731
    ours, _ = check(folder, transform, shuffle=None, build=build, batch_size=batch_size)
    assert any(isinstance(item, IndexError) for item in ours)


def test_timeout_argument_is_kept(folder):
    check(folder, timeout=50)


def test_a_sampler_of_ones_own(folder):
    build = lambda: {"sampler": [7, 7, 0, -1, 22, 3, 12, 5]}  # noqa: E731
    check(folder, shuffle=None, build=build, batch_size=3, num_workers=3)


def test_a_dataset_folder(folder):
    dataset_of = lambda: DatasetFolder(str(folder), default_loader, (".jpg",), transform=train_v1())  # noqa: E731
    check(folder, dataset_of=dataset_of)


def test_imagenet(folder, tmp_path):
    """With the file that torchvision makes of the development kit."""
    names = [f"n0000000{i}" for i in range(3)]
    torch.save(({name: (f"class {name}",) for name in names}, []), tmp_path / "meta.bin")
    (tmp_path / "train").mkdir()
    for source, name in zip(sorted(folder.iterdir()), names, strict=True):
        (tmp_path / "train" / name).symlink_to(source)
    check(folder, dataset_of=lambda: ImageNet(str(tmp_path), "train", transform=train_v1()))


def test_datasets_of_encoded_images():
    ours, theirs = both(lambda: Encoded(train_v1()), FastLoader, NATIVE, batch_size=4, num_workers=2, shuffle=True)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, list):
            assert torch.equal(a[0], b[0])
            assert torch.equal(a[1]["label"], b[1]["label"])
            assert a[1]["name"] == b[1]["name"]
        else:
            assert torch.equal(a, b)


class Tarred(Encoded):
    """The images of a tar file; their names say the targets."""

    def __init__(self, path, transform):
        self.path, self.transform = path, transform
        with tarfile.open(path) as tar:
            self.files = [(m.offset_data, m.size, int(m.name.partition("_")[0])) for m in tar.getmembers()]

    def encoded(self, index):
        offset, size, target = self.files[index]
        with open(self.path, "rb") as file:
            file.seek(offset)
            return file.read(size), target


@pytest.mark.parametrize("randomness", ["worker", "sample"])
def test_images_from_a_tar_file(tmp_path, randomness):
    path = tmp_path / "images.tar"
    with tarfile.open(path, "w") as tar:
        for i in range(11):
            data = saved(i, {4: "BMP", 7: "PNG"}[i]) if i in (4, 7) else jpeg(i, 60 + i, 90)
            member = tarfile.TarInfo(f"{i % 3}_{i}.jpg")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    dataset = Tarred(path, train_v1())
    run = {"batch_size": 4, "num_workers": 2, "shuffle": True, "device": "cpu", "randomness": randomness}
    workers, own = ({**run, "engine": engine} for engine in ("torch", "native"))
    assert_same(epochs_of(lambda: FastLoader(dataset, **own)), epochs_of(lambda: FastLoader(dataset, **workers)))


def saved(seed, format):
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels(seed, 70, 80)).save(out, format)
    return out.getvalue()


NOT_LOWERED = {
    "subclass": lambda: [OwnCrop(40), v1.ToTensor()],
    "patched instance": lambda: [patched_instance(), v1.ToTensor()],
    "patched class": lambda: [v1.RandomResizedCrop(40), v1.ToTensor()],
    "manual_seed": lambda: [Seeding(), v1.RandomResizedCrop(40), v1.ToTensor()],
    "lambda": lambda: [v1.Lambda(lambda image: image.rotate(90)), v1.RandomResizedCrop(40), v1.ToTensor()],
    "lambda that seeds": lambda: [v1.RandomResizedCrop(40), v1.Lambda(lambda x: torch.manual_seed(1) and x), TENSOR],
    "function": lambda: [lambda image: image.rotate(90), v1.RandomResizedCrop(40), v1.ToTensor()],
}
TENSOR = v1.ToTensor()


@pytest.mark.parametrize("name", NOT_LOWERED)
def test_what_is_not_supported_natively_runs_in_the_workers(folder, monkeypatch, name):
    """Nothing native is as much as made, and the batches are torch's."""
    if name == "patched class":
        monkeypatch.setattr(v1.RandomResizedCrop, "get_params", staticmethod(lambda *_: (3, 0, 25, 20)))
    monkeypatch.setattr(decode_threads.NativeIterator, "__init__", lambda *_, **__: pytest.fail("something is native"))
    dataset_of = lambda: ImageFolder(folder, v1.Compose(NOT_LOWERED[name]()))  # noqa: E731
    arguments = {"batch_size": 5, "num_workers": 2, "shuffle": True}
    ours, theirs = both(dataset_of, FastLoader, {"device": "cpu"}, **arguments)
    assert_same(ours, theirs)
    assert any(isinstance(item, list) for item in ours)
    assert FastLoader(dataset_of(), device="cpu", **arguments).plan.engine == "torch"
    with pytest.raises(ValueError, match="engine='native'"):
        FastLoader(dataset_of(), **NATIVE, **arguments)


def test_a_loader_of_worker_processes_may_start_while_another_thread_imports_the_native_engine(monkeypatch):
    module = types.ModuleType("fastload.native.iterator")  # without its class as yet
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert list(FastLoader(range(4), num_workers=1, device="cpu"))
