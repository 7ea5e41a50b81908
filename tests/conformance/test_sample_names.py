"""The error of a damaged image names its file, wherever it lies."""

from __future__ import annotations

import io
import tarfile
import zipfile

import pytest
import torch
from photos import jpeg, train_v1
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.pipeline.datasets.folders import sample_name
from fastload.sources import ObjectStoreImageFolder, ParquetImages, TarImageFolder, TarSamples, ZipImageFolder

FILES = {f"class/{number}.jpg": jpeg(number) for number in range(6)} | {"class/4.jpg": jpeg(4)[:700]}
BAD = 4


class Own:
    """A dataset of the user's own, that says what its samples are called."""

    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return len(FILES)

    def encoded(self, index):
        return [*FILES.values()][index], 0

    def sample_name(self, index):
        return f"record {[*FILES][index]}"

    def __getitem__(self, index):
        data, target = self.encoded(index)
        with Image.open(io.BytesIO(data)) as image:
            return self.transform(image.convert("RGB")), target


def folder(path, transform):
    for name, data in FILES.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(data)
    return ImageFolder(path, transform), f"{path}/class/4.jpg"


def tar(path, transform):
    folder(path, transform)
    with tarfile.open(path / "a.tar", "w") as archive:
        archive.add(path / "class", "class")
    return TarImageFolder(path / "a.tar", transform), f"{path}/a.tar/class/4.jpg"


def zipped(path, transform):
    with zipfile.ZipFile(path / "a.zip", "w") as archive:
        for name, data in FILES.items():
            archive.writestr(name, data)
    return ZipImageFolder(path / "a.zip", transform), f"{path}/a.zip/class/4.jpg"


def pairs(path, transform):
    with tarfile.open(path / "a.tar", "w") as archive:
        for name, data in FILES.items():
            for member, part in ((name, data), (name.replace("jpg", "cls"), b"3")):
                about = tarfile.TarInfo(member)
                about.size = len(part)
                archive.addfile(about, io.BytesIO(part))
    return TarSamples(path / "a.tar", transform), f"{path}/a.tar/class/4.jpg"


def rows(path, transform):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"image": pyarrow.array([*FILES.values()], pyarrow.binary()), "label": [0] * len(FILES)}
    parquet.write_table(pyarrow.table(columns), path / "a.parquet")
    return ParquetImages(path / "a.parquet", transform), f"row 4 of {path}/a.parquet"


def objects(path, transform):
    pytest.importorskip("obstore")
    folder(path, transform)
    return ObjectStoreImageFolder(f"file://{path}", transform), f"file://{path}/class/4.jpg"


def own(path, transform):
    return Own(transform), "record class/4.jpg"


def error_of(dataset, **options):
    with FastLoader(dataset, 3, device="cpu", **options) as loader:
        batches = iter(loader)
        assert next(batches)[0].shape[0] == 3
        with pytest.raises(OSError, match=r"truncated|Truncated") as caught:
            next(batches)
    return str(caught.value), getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize("source", [folder, tar, zipped, pairs, rows, objects, own])
@pytest.mark.parametrize("workers", [0, 2])
def test_native_samples_are_named(tmp_path, source, workers):
    dataset, name = source(tmp_path, train_v1())
    text, notes = error_of(dataset, num_workers=workers, engine="native")
    if workers:
        assert text.endswith(f"\nsample 4 ({name})")
    else:
        assert (text.count("\n"), len(notes)) == (0, 1), "torch's error, and one note"
        assert name in notes[0]


@pytest.mark.parametrize("source", [tar, pairs, rows, objects])
@pytest.mark.parametrize("workers", [0, 1])
def test_samples_made_by_torch_are_named(tmp_path, source, workers):
    dataset, name = source(tmp_path, train_v1())
    text, notes = error_of(dataset, num_workers=workers, engine="torch")
    assert f"in {name}" in (text.splitlines() if workers else notes)


def test_what_a_dataset_raises_where_its_samples_lie_is_named(tmp_path):
    class Failing(Own):
        def encoded(self, index):
            if index == BAD:
                raise OSError("Truncated record")
            return super().encoded(index)

    text, _ = error_of(Failing(train_v1()), num_workers=1, engine="native")
    assert text.endswith("\nsample 4 (record class/4.jpg)")


def test_names_are_found_within_other_datasets(tmp_path):
    dataset, name = folder(tmp_path, train_v1())
    both = Subset(ConcatDataset([Own(train_v1()), dataset]), [5, 10, BAD])
    assert [sample_name(both, index) for index in range(3)] == ["record class/5.jpg", name, "record class/4.jpg"]
    assert sample_name(both, 3) is sample_name(both, "x") is sample_name(range(3), 1) is None
    assert sample_name(torch.utils.data.TensorDataset(torch.zeros(3)), 1) is None


def test_other_errors_have_no_note(tmp_path):
    dataset, _ = folder(tmp_path, train_v1())
    with FastLoader(Subset(dataset, [0, 1, 9, 9]), 2, device="cpu", engine="native") as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(IndexError) as caught:
            next(batches)
        assert not hasattr(caught.value, "__notes__")
