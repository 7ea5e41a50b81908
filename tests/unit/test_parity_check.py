"""Test the check of a recipe on unusual user data."""

from __future__ import annotations

import gc
import io
import os
import threading
import warnings
import weakref
import zipfile

import pytest
import torch
from photos import make_folder, train_v1
from PIL import Image
from torch.utils.data import DataLoader, Subset

from fastload import FastLoader
from fastload._compare import same, same_bits
from fastload.check.results import FallbackWarning, ParityResults
from fastload.pipeline.recipe import read_recipe


def test_bits_are_compared_with_type_and_layout():
    nan, zero, image = torch.tensor([float("nan")]), torch.zeros(1), torch.rand(2, 3, 4, 5)
    last = image.to(memory_format=torch.channels_last)
    assert same_bits(nan, nan.clone())
    assert not same_bits(zero, -zero)
    assert not same_bits(zero, zero.half())
    assert not same_bits(zero, zero.view(1, 1))
    assert same_bits(image, last)
    assert not same(image, last)
    assert same(last, image, any_layout=True)
    assert not same([1, -0.0], [1, 0.0])
    assert not same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert same({"a": (nan, "b")}, {"a": (nan.clone(), "b")})
    assert not same((nan,), [nan])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return sorted(make_folder(tmp_path_factory.mktemp("photos"), 9).rglob("*.jpg"))


class Endless:
    """No ``__len__``: the sampler says which samples there are."""

    def __init__(self, files):
        self.files, self.transform = [str(file) for file in files], train_v1()

    def encoded(self, index):
        return self.files[index], index

    def __getitem__(self, index):
        with Image.open(self.files[index]) as image:
            return self.transform(image.convert("RGB")), index


class Listed(Endless):
    def __len__(self):
        return len(self.files)


class Ends(Listed):
    """Ends the process that asks for a sample."""

    def __getitem__(self, index):
        os._exit(3)


class Holds(Listed):
    """Its targets cannot be sent to another process."""

    def encoded(self, index):
        return self.files[index], lambda: index

    def __getitem__(self, index):
        return super().__getitem__(index)[0], lambda: index


UNCHECKED = {Endless: "len[(][)] of it raises TypeError", Ends: "exited unexpectedly", Holds: "cannot be pickled"}


@pytest.mark.parametrize("kind", UNCHECKED)
def test_a_dataset_that_cannot_be_checked_stays_with_the_workers(files, kind):
    make = {"batch_size": 4, "sampler": range(9), "num_workers": 1, "device": "cpu"}
    loader = FastLoader(kind(files), **make)
    with pytest.warns(FallbackWarning, match=f"cannot be checked: .*{UNCHECKED[kind]}"):
        iterator = iter(loader)
    assert loader.plan.engine == "torch"
    assert any("cannot be checked" in note for note in loader.plan.notes)
    if kind is Endless:
        assert len(list(iterator)) == 3
    del iterator
    with pytest.raises(RuntimeError, match=f"cannot be checked: .*{UNCHECKED[kind]}"):
        iter(FastLoader(kind(files), **make, engine="native"))


class Described(Listed):
    """Its targets are dicts; those that are made natively may differ from the user's own."""

    def __init__(self, files, native):
        super().__init__(files)
        self.native = native

    def encoded(self, index):
        return self.files[index], self.native(index)

    def __getitem__(self, index):
        return super().__getitem__(index)[0], {"number": index, "even": (index % 2 == 0,)}


@pytest.mark.parametrize(
    ("native", "differs"),
    [
        (lambda index: {"number": index, "even": (index % 2 == 0,)}, False),
        (lambda index: {"number": index + (index == 8), "even": (index % 2 == 0,)}, True),
        (lambda index: {"number": index, "even": (True,)}, True),
        (lambda index: {"number": index, "odd": (index % 2 == 0,)}, True),
        (lambda index: {"number": index, "even": (index % 2 == 0,), "more": 0}, True),
        (lambda index: {"number": index, "even": [index % 2 == 0, 0]}, True),
        (lambda index: {"number": float(index), "even": (index % 2 == 0,)}, True),
    ],
    ids=["same", "a value", "a value inside", "a key", "one more key", "a length", "a dtype"],
)
def test_targets_that_differ_from_the_datasets_own_are_seen(files, native, differs):
    loader = FastLoader(Described(files, native), batch_size=4, num_workers=1, device="cpu")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", FallbackWarning)
        first = next(iter(loader))
    assert (loader.plan.engine == "torch") is differs
    assert any("not the same to the bit natively" in str(warning.message) for warning in warned) is differs
    assert first[1]["number"].tolist() == [0, 1, 2, 3]
    loader.close()


class Uncopied(Listed):
    def __reduce_ex__(self, protocol):
        raise TypeError("an open connection")


def test_a_dataset_is_not_held_longer_than_its_failed_start(files):
    results, loader = ParityResults(), FastLoader(Listed(files), device="cpu")
    former = weakref.ref(loader.dataset)
    recipe = read_recipe(loader.dataset)
    with pytest.warns(FallbackWarning, match="no process"):
        results.start_failed(loader, recipe, "no process")
    assert results.not_started(loader, recipe) == "no process"
    loader = recipe = None
    assert former() is not None
    results.forget_start()
    gc.collect()
    assert former() is None


def test_what_cannot_be_started_natively_is_for_torch_to_refuse(files):
    make = {"batch_size": 4, "num_workers": 1, "device": "cpu", "multiprocessing_context": "spawn"}
    for loader in (
        DataLoader(Uncopied(files), 4, num_workers=1, multiprocessing_context="spawn"),
        FastLoader(Uncopied(files), **make),
        FastLoader(Uncopied(files), **make, engine="native"),
    ):
        with pytest.raises(TypeError, match="an open connection"):
            iter(loader)


class Waits(Listed):
    """Sample 5 takes for ever, in every process but the one that decodes."""

    def __getitem__(self, index):
        if index == 5:
            threading.Event().wait()
        return super().__getitem__(index)


def test_the_check_gives_up_after_the_timeout(files):
    loader = FastLoader(Waits(files), batch_size=4, num_workers=1, timeout=1, device="cpu")
    with pytest.warns(FallbackWarning, match=r"sample 5 took longer than timeout=1 s"):
        iter(loader)
    assert loader.plan.engine == "torch"


def test_a_file_without_an_end_is_left_to_its_own_turn(files, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    dataset = Listed(files)
    dataset.files[8] = str(tmp_path / "fifo")
    loader = FastLoader(dataset, batch_size=4, num_workers=1, timeout=60, device="cpu")
    iterator = iter(loader)
    assert loader.plan.engine == "native"
    assert [next(iterator)[1].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    iterator._timeout = 0.3
    with pytest.raises(RuntimeError, match=r"timed out after 0\.3 seconds"):
        next(iterator)
    iterator._shutdown_workers()


def test_a_sample_that_the_core_refuses_is_its_batchs_error(files):
    dataset = Listed(files)
    dataset.files[0] = "no\0file"
    loader = FastLoader(dataset, batch_size=4, num_workers=1, device="cpu")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        batches = iter(loader)
    assert not [each for each in warned if "use of fork() may lead" not in str(each.message)]
    assert loader.plan.engine == "native"
    with pytest.raises(ValueError, match="null"):
        next(batches)
    assert next(batches)[1].tolist() == [4, 5, 6, 7]
    loader.close()


class Zipped(Listed):
    """The archive is opened when it is first read, as is recommended for workers."""

    archive = None

    def __init__(self, path, files):
        super().__init__(files)
        self.path = path

    def encoded(self, index):
        if self.archive is None:
            self.archive = zipfile.ZipFile(self.path)
        return self.archive.read(f"{index}"), index

    def __getitem__(self, index):
        with Image.open(io.BytesIO(self.encoded(index)[0])) as image:
            return self.transform(image.convert("RGB")), index


def test_a_file_that_the_check_opens_is_not_shared_by_the_workers(tmp_path, files):
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        for number, file in enumerate(files):
            bmp = io.BytesIO()
            Image.open(file).save(bmp, "BMP")  # so that the check falls back
            archive.writestr(f"{number}", bmp.getvalue())
    dataset = Zipped(tmp_path / "images.zip", files)
    part = Subset(Subset(dataset, range(9)), range(8))
    loader = FastLoader(part, batch_size=2, num_workers=2, device="cpu")
    torch.manual_seed(1)
    ours = list(loader)
    assert "no JPEG, PNG or WebP images" in str(loader.plan)
    assert dataset.archive is None  # in this process
    torch.manual_seed(1)
    for (images, _), (expected, _) in zip(ours, DataLoader(part, 2, num_workers=2), strict=True):
        assert torch.equal(images, expected)
