"""Measure loaders over each source of images: ``python -m benchmarks sources``.

The same photographs in each source, cropped to 224 pixels, in batches of 64, by two workers or decode threads, or by as
many as asked. Batches are compared first, where both draw the same numbers; then the loaders of a source take turns, an
epoch each.

A source's function writes the photographs as the source has them, unless they are there, and returns its contenders by
name: functions that make a loader of epochs, torch's or the source's own first. It raises ImportError without its
library.
"""

from __future__ import annotations

import argparse
import functools
import io
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from benchmarks._recipes import write_shards
from benchmarks.arrays import cifar10
from fastload import FastLoader
from fastload._arguments import check_names
from fastload._compare import difference
from fastload.bench._data import check_data, training_transform
from fastload.bench.photos import PhotoSet, write_photos
from fastload.measurement.console import console
from fastload.measurement.record import environment, interleave, ratio, save
from fastload.sources import ParquetImages, RowGroupSampler, TarImageFolder, TarSamples, ZipImageFolder
from fastload.vision import image_handler

Makers = dict[str, Callable[[], Iterable[Any]]]

PHOTOS_PER_WORKER: Final = 256
BATCH_SIZE: Final = 64
OURS: Final = "fastload"
SHARDS: Final = 4
GROUP: Final = 32  # rows of a Parquet file's row group


@dataclass(frozen=True, slots=True)
class Row:
    """A source of images."""

    what: str  # name of its dataset in a table
    # function that makes the contenders of a folder with one folder of images per class, in a folder to write to, for a
    # number of workers
    make: Callable[[Path, Path, int], Makers]
    same_bits: bool = True  # whether all contenders but those of own_order have equal batches for a seed
    own_order: tuple[str, ...] = ()  # contenders that shuffle in their own way


TRANSFORM: Final = training_transform()


def _both(dataset: Any, workers: int, **more: Any) -> Makers:
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": workers, "persistent_workers": True}
    options |= {"shuffle": "sampler" not in more, **more}
    return {"torch": lambda: DataLoader(dataset, **options), OURS: lambda: FastLoader(dataset, device="cpu", **options)}


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
        images = [{"bytes": Path(name).read_bytes(), "path": None} for name, _ in samples]
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
        write_shards(paths, ImageFolder(str(photos)).samples)

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
            writer[number] = {"image": Path(name).read_bytes(), "label": label}
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
                    writer.write({"image": Path(name).read_bytes(), "label": label})
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


class Epochs:
    """Reads epochs of images and labels, and notes a core's seconds per image of each."""

    def __init__(self, epochs: Iterator[Iterable[Any]], cpu_s: Callable[[], float]) -> None:
        self._epochs = epochs
        self._spent_s = cpu_s
        self.cpu_s: list[float] = []

    def read(self) -> float:
        """Read the next epoch, its start included, and return images per second."""
        begun, spent_s, images = time.perf_counter(), self._spent_s(), 0
        for pixels, _ in next(self._epochs):
            images += len(pixels)
        self.cpu_s.append((self._spent_s() - spent_s) / images)
        return images / (time.perf_counter() - begun)

    def first(self) -> list[Any]:
        """Return copies of the next epoch's batches."""
        return [(images.clone(), labels.clone()) for images, labels in next(self._epochs)]


def epoch(loader: Any) -> float:
    """Read an epoch, and return images per second."""
    begun, images = time.perf_counter(), 0
    for batch in loader:
        images += max(len(leaf) for leaf in tree_leaves(batch))
    return images / (time.perf_counter() - begun)


def first_batches(make: Callable[[], Any], count: int = 2) -> list[torch.Tensor]:
    """Return the tensors of a seeded loader's first batches."""
    torch.manual_seed(0)
    iterator = iter(make())
    found = []
    for _ in range(count):
        found += [
            leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf) for leaf in tree_leaves(next(iterator))
        ]
    return found


def different(row: Row, makers: dict[str, Callable[[], Any]]) -> list[str]:
    """List the contenders whose batches are not those of the first one."""
    if not row.same_bits:
        return []
    first, *others = (name for name in makers if name not in row.own_order)
    expected = first_batches(makers[first])
    return [name for name in others if difference(expected, first_batches(makers[name])) is not None]


def measure(row: Row, makers: dict[str, Callable[[], Any]], repeats: int) -> dict[str, Any]:
    """Compare a source's loaders, and let them take turns."""
    if wrong := different(row, makers):
        return {"different": wrong}
    loaders = {name: make() for name, make in makers.items()}
    for loader in loaders.values():
        epoch(loader)  # its workers start, and it checks itself
    spreads = interleave({name: functools.partial(epoch, loader) for name, loader in loaders.items()}, repeats)
    beside = next(iter(makers))
    return {
        "beside": beside,
        "compared": [name for name in makers if row.same_bits and name not in row.own_order],
        "images_per_s": {name: spread.record() for name, spread in spreads.items()},
        "speedup": {name: ratio(spreads[name], spreads[beside]).record() for name in makers if name != beside},
    }


def main(args: argparse.Namespace) -> int:
    """Run ``python -m benchmarks sources``; 1 if batches differ."""
    check_data(args.data)
    check_names("--only", args.only or (), ROWS)
    count = BATCH_SIZE * 3 if args.quick else PHOTOS_PER_WORKER * args.workers
    photo_set = PhotoSet(count=count, edge_px=64 if args.quick else 500)
    name = f"photos-{count}-{photo_set.edge_px}"
    photos = args.data or write_photos(Path(".fastload") / name, photo_set).path
    parameters = {"quick": args.quick, "batch_size": BATCH_SIZE, "workers": args.workers, "repeats": args.repeats}
    record = {"benchmark": "sources", "environment": environment(), "parameters": parameters}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(suffix="-quick" if args.quick else "") as room:
        wanted = args.only or list(ROWS)
        for key in wanted:
            row = ROWS[key]
            try:
                answer = measure(row, row.make(Path(photos).resolve(), Path(room), args.workers), args.repeats)
            except ImportError as error:
                answer = {"skipped": f"{error.name or error} is not installed"}
            rows.append({"source": key, "what": row.what, **answer})
            console().print(_line(key, answer))
            save(args.json, {**record, "complete": len(rows) == len(wanted), "rows": rows})
    return int(any("different" in row for row in rows))


def _line(key: str, answer: dict[str, Any]) -> str:
    if "images_per_s" not in answer:
        return f"{key}: {answer.get('skipped') or 'batches differ: ' + ', '.join(answer['different'])}"
    speeds = (f"{name} {speed['median']:,.0f}" for name, speed in answer["images_per_s"].items())
    return f"{key}: {', '.join(speeds)} images/s; {answer['speedup'][OURS]['median']:.2f}x"
