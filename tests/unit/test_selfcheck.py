"""The check of a recipe on the user's own data, where that data is out of the ordinary."""

from __future__ import annotations

import io
import warnings
import zipfile

import pytest
import torch
from photos import make_folder, train_v1
from PIL import Image
from torch.utils.data import DataLoader, Subset

from fastload import FastLoader
from fastload.lowered import FallbackWarning


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


class Uncopied(Listed):
    def __reduce_ex__(self, protocol):
        raise TypeError("an open connection")


@pytest.mark.parametrize(("kind", "why"), [(Endless, "len[(][)] of it raises TypeError"), (Uncopied, "an open conn")])
def test_a_dataset_that_cannot_be_checked_stays_with_the_workers(files, kind, why):
    make = {"batch_size": 4, "sampler": range(9), "num_workers": 1, "device": "cpu"}
    loader = FastLoader(kind(files), **make)
    with pytest.warns(FallbackWarning, match=f"cannot be checked: .*{why}"):
        assert len(list(loader)) == 3
    assert loader.plan.engine == "torch"
    assert any("cannot be checked" in note for note in loader.plan.notes)
    with pytest.raises(RuntimeError, match=f"cannot be checked: .*{why}"):
        iter(FastLoader(kind(files), **make, accelerate="require"))


def test_a_sample_that_the_core_refuses_is_its_batchs_error(files):
    dataset = Listed(files)
    dataset.files[0] = "no\0file"
    loader = FastLoader(dataset, batch_size=4, num_workers=1, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        batches = iter(loader)
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
            png = io.BytesIO()
            Image.open(file).save(png, "PNG")  # so that the check falls back
            archive.writestr(f"{number}", png.getvalue())
    dataset = Zipped(tmp_path / "images.zip", files)
    part = Subset(Subset(dataset, range(9)), range(8))
    loader = FastLoader(part, batch_size=2, num_workers=2, device="cpu")
    torch.manual_seed(1)
    with pytest.warns(FallbackWarning, match="no JPEG images"):
        ours = list(loader)
    assert dataset.archive is None  # in this process
    torch.manual_seed(1)
    for (images, _), (expected, _) in zip(ours, DataLoader(part, 2, num_workers=2), strict=True):
        assert torch.equal(images, expected)
