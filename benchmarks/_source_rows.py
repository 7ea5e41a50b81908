"""The rows of ``python -m benchmarks sources``: where images lie, and who reads them.

A row's function writes the photographs as its source has them, unless they are there, and returns its contenders by
name: what makes a loader of epochs; torch's or the source's own first. It raises ImportError without its library.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks._array_rows import cifar10
from fastload import FastLoader
from fastload.bench._data import MEAN, STD
from fastload.sources import ParquetImages, RowGroupSampler, TarImageFolder, TarSamples, ZipImageFolder
from fastload.vision import image_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    Makers = dict[str, Callable[[], Iterable[Any]]]

BATCH_SIZE: Final = 64
OURS: Final = "fastload"
SHARDS: Final = 4
GROUP: Final = 32
"""Rows of a Parquet file's row group."""


@dataclass(frozen=True, slots=True)
class Row:
    """A source of images.

    Attributes:
        what: Its dataset, as a table names it.
        make: Makes the contenders of a folder with one folder of images per class, in a folder to write to, for a
            number of workers.
        same_bits: Whether all contenders but those of ``own_order`` have equal batches for a seed.
        own_order: Contenders that shuffle in their own way.
    """

    what: str
    make: Callable[[Path, Path, int], Makers]
    same_bits: bool = True
    own_order: tuple[str, ...] = ()


TRANSFORM: Final = transforms.Compose(
    [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
)


def _both(dataset: Any, workers: int, **more: Any) -> Makers:
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": workers, "persistent_workers": True, **more}
    if "sampler" not in more and "shuffle" not in more:
        options["shuffle"] = True
    return {
        "torch": lambda: DataLoader(dataset, **options),
        OURS: lambda: FastLoader(dataset, device="cpu", **options),
    }


def arrays(photos: Path, room: Path, workers: int) -> Makers:
    """CIFAR-10's arrays, of random images."""
    return _both(cifar10(BATCH_SIZE * (4 if room.name.endswith("quick") else 200)), workers)


def folder(photos: Path, room: Path, workers: int) -> Makers:
    """Files in folders."""
    return _both(ImageFolder(str(photos), TRANSFORM), workers)


def tar(photos: Path, room: Path, workers: int) -> Makers:
    """A tar file of the folder."""
    path = room / "photos.tar"
    if not path.exists():
        with tarfile.open(path, "w") as archive:
            archive.add(photos, "")
    return _both(TarImageFolder(path, TRANSFORM), workers)


def zipped(photos: Path, room: Path, workers: int) -> Makers:
    """A zip file of the folder, stored."""
    path = room / "photos.zip"
    if not path.exists():
        with zipfile.ZipFile(path, "w") as archive:
            for name, _ in ImageFolder(str(photos)).samples:
                archive.write(name, name.removeprefix(f"{photos}/"))
    return _both(ZipImageFolder(path, TRANSFORM), workers)


def _parquet(photos: Path, room: Path) -> Path:
    import pyarrow
    from pyarrow import parquet

    path = room / "photos.parquet"
    if not path.exists():
        samples = ImageFolder(str(photos)).samples
        images = [{"bytes": _bytes(name), "path": None} for name, _ in samples]
        kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
        labels = pyarrow.array([label for _, label in samples])
        table = pyarrow.table({"image": pyarrow.array(images, kind), "label": labels})
        parquet.write_table(table, path, row_group_size=GROUP)
    return path


def parquet_images(photos: Path, room: Path, workers: int) -> Makers:
    """A Parquet file, shuffled by row groups."""
    dataset = ParquetImages(_parquet(photos, room), TRANSFORM)
    return _both(dataset, workers, sampler=RowGroupSampler(dataset))


def _pixel_values(batch: dict[str, Any]) -> dict[str, Any]:
    batch["pixel_values"] = [TRANSFORM(image.convert("RGB")) for image in batch["image"]]
    return batch


def _collated(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    pixel_values = torch.stack([example["pixel_values"] for example in examples])
    return {"pixel_values": pixel_values, "labels": torch.tensor([example["label"] for example in examples])}


def hugging_face(photos: Path, room: Path, workers: int) -> Makers:
    """Hugging Face's datasets, as transformers' example of image classification uses them."""
    import datasets

    datasets.disable_progress_bars()
    loaded = datasets.load_dataset(
        "parquet", data_files=str(_parquet(photos, room)), split="train", cache_dir=str(room / "hugging-face")
    )
    dataset = loaded.cast_column("image", datasets.Image()).with_transform(_pixel_values)
    return _both(dataset, workers, collate_fn=_collated)


def webdataset(photos: Path, room: Path, workers: int) -> Makers:
    """Webdataset's shards, in its own loader, with the core's handler, in FastLoader, and by index."""
    import webdataset as wds

    shards = max(SHARDS, workers)
    paths = [str(room / f"photos-{shard}.tar") for shard in range(shards)]
    if not (room / f"photos-{shards - 1}.tar").exists():
        samples = ImageFolder(str(photos)).samples
        for shard, path in enumerate(paths):
            with tarfile.open(path, "w") as archive:
                for number, (name, label) in enumerate(samples[shard::shards]):
                    _add(archive, f"{shard}-{number:06}.jpg", _bytes(name))
                    _add(archive, f"{shard}-{number:06}.cls", str(label).encode())

    def pipeline(decoder: Any) -> Any:
        found = wds.WebDataset(paths, shardshuffle=False).decode(decoder).to_tuple("jpg;jpeg;png", "cls")
        return found.map_tuple(TRANSFORM, int).batched(BATCH_SIZE)

    options: dict[str, Any] = {"batch_size": None, "num_workers": workers, "persistent_workers": True}
    return {
        "webdataset": lambda: wds.WebLoader(pipeline("pil"), **options),
        "webdataset, core's handler": lambda: wds.WebLoader(pipeline(image_handler("pil")), **options),
        OURS: lambda: FastLoader(pipeline("pil"), device="cpu", **options),
        "fastload, TarSamples": _both(TarSamples(paths, TRANSFORM), workers)[OURS],
    }


def _bytes(name: str) -> bytes:
    with open(name, "rb") as file:
        return file.read()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(data)
    archive.addfile(about, io.BytesIO(data))


def _opened(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    from PIL import Image

    with Image.open(io.BytesIO(sample["image"])) as image:
        return TRANSFORM(image.convert("RGB")), sample["label"]


def _of_bytes(base: Any) -> Any:
    """Subclass a library's dataset of records, so that its samples are transformed images and labels."""
    return type("Photos", (base,), {"__getitem__": lambda self, index: _opened(base.__getitem__(self, index))})


def litdata(photos: Path, room: Path, workers: int) -> Makers:
    """Chunks of litdata's, in its own loader, beside FastLoader over the folder."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming.writer import BinaryWriter

    path = room / "litdata"
    if not (path / "index.json").exists():
        writer = BinaryWriter(str(path), chunk_bytes="16MB")
        for number, (name, label) in enumerate(ImageFolder(str(photos)).samples):
            writer[number] = {"image": _bytes(name), "label": label}
        writer.done()
        writer.merge()

    photos_of = _of_bytes(StreamingDataset)

    def own() -> Any:
        return StreamingDataLoader(photos_of(str(path), shuffle=True), batch_size=BATCH_SIZE, num_workers=workers)

    return {"litdata": own, OURS: folder(photos, room, workers)[OURS]}


def mosaic(photos: Path, room: Path, workers: int) -> Makers:
    """Shards of mosaicml-streaming's, in torch's loader and in FastLoader, beside FastLoader over the folder."""
    from streaming import MDSWriter, StreamingDataset

    photos_of = _of_bytes(StreamingDataset)
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": workers, "persistent_workers": True}

    def dataset_in(path: Path) -> Any:  # no two loaders may read one folder
        if not (path / "index.json").exists():
            with MDSWriter(out=str(path), columns={"image": "bytes", "label": "int"}) as writer:
                for name, label in ImageFolder(str(photos)).samples:
                    writer.write({"image": _bytes(name), "label": label})
        return photos_of(local=str(path), shuffle=True, batch_size=BATCH_SIZE)

    return {
        "mosaicml-streaming": lambda: DataLoader(dataset_in(room / "streaming"), **options),
        "fastload, same dataset": lambda: FastLoader(dataset_in(room / "streaming-again"), device="cpu", **options),
        OURS: folder(photos, room, workers)[OURS],
    }


ROWS: Final[dict[str, Row]] = {
    "arrays": Row("CIFAR-10's arrays", arrays),
    "folder": Row("`ImageFolder`", folder),
    "tar": Row("`TarImageFolder`", tar),
    "zip": Row("`ZipImageFolder`", zipped),
    "parquet": Row("`ParquetImages`", parquet_images),
    "hugging-face": Row("Hugging Face `datasets`", hugging_face),
    "webdataset": Row("webdataset's shards", webdataset, own_order=("fastload, TarSamples",)),
    "litdata": Row("litdata's chunks; `ImageFolder`", litdata, same_bits=False),
    "mosaicml-streaming": Row("mosaicml-streaming's shards; `ImageFolder`", mosaic, same_bits=False),
}
"""The rows, by the names that ``--only`` takes."""
