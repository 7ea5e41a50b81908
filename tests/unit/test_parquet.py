"""Images in Parquet and Arrow files are torch's samples, natively; damaged files give clear errors."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
from types import SimpleNamespace

import optional
import pytest
import torch
from photos import assert_same, both, jpeg, train_v1
from torch.utils.data import ConcatDataset, DataLoader

from fastload import FastLoader
from fastload.sources import ArchiveError, ParquetImages, RowGroupSampler

pyarrow = optional.module("pyarrow")
parquet = optional.module("pyarrow.parquet")

NATIVE = {"device": "cpu", "engine": "native"}
IMAGES = [jpeg(number, 60 + number, 90) for number in range(23)]
COLUMNS = {
    "struct": lambda: pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()}),
    "binary": lambda: pyarrow.binary(),
    "large": lambda: pyarrow.large_binary(),
}


def table_of(images, column="struct", **more):
    values = [{"bytes": data, "path": None} for data in images] if column == "struct" else images
    columns = {"image": pyarrow.array(values, COLUMNS[column]()), "label": pyarrow.array(range(len(images)))}
    return pyarrow.table({**columns, **{name: pyarrow.array(value) for name, value in more.items()}})


def write(path, table, kind):
    if kind == "parquet":
        parquet.write_table(table, path, row_group_size=4, compression="snappy")
        return path
    new = pyarrow.ipc.new_file if kind == "arrow" else pyarrow.ipc.new_stream
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return path


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
@pytest.mark.parametrize("column", COLUMNS)
def test_rows_are_samples(tmp_path, kind, column):
    paths = [
        write(tmp_path / f"{number}.data", table_of(IMAGES[begin : begin + 12], column), kind)
        for number, begin in enumerate((0, 12))
    ]
    dataset = ParquetImages(paths)
    assert len(dataset) == 23
    assert [dataset.encoded(index) for index in range(23)] == [
        (data, number % 12) for number, data in enumerate(IMAGES)
    ]
    assert dataset.encoded(-1) == (IMAGES[-1], 10)
    assert dataset.row_groups[:4] == [range(4), range(4, 8), range(8, 12), range(12, 16)]
    copied = pickle.loads(pickle.dumps(dataset))
    assert copied.encoded(13) == (IMAGES[13], 1)
    with pytest.raises(IndexError):
        dataset.encoded(23)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("workers", [0, 2])
def test_same_batches_as_torch(tmp_path, kind, workers):
    path = write(tmp_path / "photos", table_of(IMAGES), kind)

    def dataset_of():
        return ConcatDataset([ParquetImages(path, train_v1(), float, cache_bytes=0)])

    ours, theirs = both(dataset_of, FastLoader, NATIVE, batch_size=4, shuffle=True, num_workers=workers)
    assert_same(ours, theirs)


def test_images_without_labels(tmp_path):
    path = write(tmp_path / "photos", table_of(IMAGES), "parquet")
    arguments = {"batch_size": 4, "num_workers": 2}
    ours, theirs = both(lambda: ParquetImages(path, train_v1(), label=None), FastLoader, NATIVE, **arguments)
    assert_same(ours, theirs)
    assert ours[0].shape[0] == 4


def test_forked_workers_and_threads_read_alike(tmp_path):
    path = write(tmp_path / "photos", table_of(IMAGES), "parquet")
    dataset = ParquetImages(path, train_v1())
    dataset.encoded(0)
    lock = dataset._groups._kept.lock
    lock.acquire()  # as if another thread were reading while workers are forked
    try:
        labels = [batch for _, batch in DataLoader(dataset, batch_size=4, num_workers=2)]
    finally:
        lock.release()
    assert torch.cat(labels).tolist() == list(range(23))


def test_threads_may_read_first_at_the_same_time(tmp_path, monkeypatch):
    """As those of a worker to which the dataset was pickled."""
    dataset = pickle.loads(pickle.dumps(ParquetImages(write(tmp_path / "photos", table_of(IMAGES), "parquet"))))
    found = []

    def lock():  # between two lines of the first thread
        monkeypatch.undo()
        other = threading.Thread(target=lambda: found.append(dataset.encoded(5)))
        other.start()
        other.join(30)
        return threading.Lock()

    monkeypatch.setattr("fastload.sources.parquet.threading", SimpleNamespace(Lock=lock))
    assert dataset.encoded(4) == (IMAGES[4], 4)
    assert found == [(IMAGES[5], 5)]


def test_row_groups_are_read_once(tmp_path, monkeypatch):
    path = write(tmp_path / "photos", table_of(IMAGES), "parquet")
    dataset = ParquetImages(path, train_v1())
    read, seen = type(dataset._groups)._read, []
    monkeypatch.setattr(type(dataset._groups), "_read", lambda *arguments: seen.append(arguments) or read(*arguments))
    sizes = [sum(len(IMAGES[row]) for row in group) for group in dataset.row_groups]
    dataset._groups._cache_bytes = 2 * max(sizes) + 1000
    order = [*RowGroupSampler(dataset, mixed=2)]
    assert sorted(order) == list(range(23))
    assert order != list(range(23))
    for index in order:
        assert dataset.encoded(index) == (IMAGES[index], index)
    assert len(seen) == len(dataset.row_groups) == 6
    kept = dataset._groups._kept
    assert kept.nbytes == sum(column.nbytes for column in kept.groups.values()) <= dataset._groups._cache_bytes
    del seen[:], order
    gc.collect()


def test_the_sampler_draws_as_torchs(tmp_path):
    dataset = ParquetImages(write(tmp_path / "photos", table_of(IMAGES), "parquet"))
    orders = []
    for _ in range(2):
        torch.manual_seed(5)
        sampler = RowGroupSampler(dataset, mixed=3)
        orders.append([[*sampler], [*sampler], torch.rand(1).item()])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]
    generator = torch.Generator().manual_seed(3)
    assert len({tuple(RowGroupSampler(dataset, generator=generator)) for _ in range(3)}) == 3
    assert len(sampler) == 23
    with pytest.raises(ValueError, match="mixed must be an int >= 1, got 0"):
        RowGroupSampler(dataset, mixed=0)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
def test_rows_without_an_image_are_errors_in_their_turn(tmp_path, kind):
    values = [{"bytes": IMAGES[0], "path": None}, None, {"bytes": None, "path": "a.jpg"}, {"bytes": b"", "path": None}]
    table = pyarrow.table({"image": pyarrow.array(values, COLUMNS["struct"]()), "label": [0, 1, 2, 3]})
    dataset = ParquetImages(write(tmp_path / "photos", table, kind))
    assert dataset.encoded(0) == (IMAGES[0], 0)
    for row in (1, 2):
        with pytest.raises(ArchiveError, match=f"photos must have the bytes of each image, and row {row} has none"):
            dataset.encoded(row)
    assert dataset.encoded(3) == (b"", 3)


def test_slices_of_arrays_lie_where_they_begin(tmp_path):
    table = table_of([b"x" * 7, *IMAGES[:9]], "binary").slice(3, 5)
    dataset = ParquetImages(write(tmp_path / "photos", table, "arrow"))
    assert [dataset.encoded(index)[0] for index in range(5)] == IMAGES[2:7]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
def test_files_cut_short_or_changed(tmp_path, kind):
    whole = write(tmp_path / "whole", table_of(IMAGES), kind).read_bytes()
    path = tmp_path / "photos"
    for size in (0, 3, 5, 9, len(whole) // 2, len(whole) - 9):
        path.write_bytes(whole[:size])
        with pytest.raises(ArchiveError, match=r"photos (must be|is damaged)"):
            ParquetImages(path)
    path.write_bytes(whole[:-8])  # of a stream, all rows
    with pytest.raises(ArchiveError, match=r"photos (must end as Arrow's streams do|is damaged)"):
        ParquetImages(path)
    path.write_bytes(whole)
    dataset = ParquetImages(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArchiveError, match="photos has changed since it was opened"):
        dataset.encoded(20)


def test_checksums_of_pages_are_checked(tmp_path):
    path = tmp_path / "photos"
    how = {"row_group_size": 4, "compression": "none", "write_page_checksum": True}
    parquet.write_table(table_of(IMAGES), path, **how)
    data = bytearray(path.read_bytes())
    data[data.index(IMAGES[5]) + 300] ^= 1
    path.write_bytes(data)
    dataset = ParquetImages(path)
    assert dataset.encoded(3) == (IMAGES[3], 3)
    with pytest.raises(ArchiveError, match="photos is damaged in row group 1"):
        dataset.encoded(5)


@pytest.mark.parametrize("kind", ["arrow", "stream"])
def test_errors_of_any_type_are_those_of_a_damaged_file(tmp_path, kind):
    path = write(tmp_path / "photos", table_of(IMAGES), kind)
    path.write_bytes(path.read_bytes().replace(b"label", b"\xfflabel"[:5]))  # names are UTF-8
    with pytest.raises(ArchiveError, match="photos is damaged"):
        ParquetImages(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_changed_bytes_are_errors_or_other_pixels(tmp_path, kind):
    """Offsets and lengths that lie never reach beyond the file."""
    whole = write(tmp_path / "whole", table_of(IMAGES[:6]), kind).read_bytes()
    path = tmp_path / "photos"
    for seed in range(300):
        data, generator = bytearray(whole), torch.Generator().manual_seed(seed)
        begin = 0 if seed % 2 else max(0, len(data) - 2500)
        for _ in range(4):
            place = begin + int(torch.randint(2500, (), generator=generator))
            data[place % len(data)] = int(torch.randint(256, (), generator=generator))
        path.write_bytes(data)
        try:
            dataset = ParquetImages(path)
            for index in range(min(len(dataset), 50)):
                assert len(dataset.encoded(index)[0]) <= len(whole)
        except ArchiveError:
            pass


def test_columns_are_checked(tmp_path):
    path = write(tmp_path / "photos", table_of(IMAGES, text=["x"] * 23), "parquet")
    with pytest.raises(ArchiveError, match="must have a column 'picture', and has image, label, text; name another"):
        ParquetImages(path, image="picture")
    with pytest.raises(ArchiveError, match="must have a column 'class'"):
        ParquetImages(path, label="class")
    with pytest.raises(ArchiveError, match="photos must hold bytes, or structs with bytes, and holds string"):
        ParquetImages(path, image="text")
    assert ParquetImages(path, label="text").targets == ["x"] * 23
    with pytest.raises(FileNotFoundError):
        ParquetImages(tmp_path / "none")


def test_compressed_arrow_files_are_refused(tmp_path):
    table = table_of([b"a" * 10000] * 3)
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.ipc.new_file(str(tmp_path / "photos"), table.schema, options=options) as writer:
        writer.write_table(table)
    with pytest.raises(ArchiveError, match="photos must not be compressed"):
        ParquetImages(tmp_path / "photos")


@pytest.mark.slow
def test_pyarrow_is_imported_when_it_is_used():
    program = "import sys; from fastload.sources import ParquetImages; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
