"""Test the values that the native pool's threads look up as samples are decoded."""

from __future__ import annotations

import gc
import io
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from jpeg_writer import FACTORS, write_jpeg
from numpy.typing import NDArray
from photos import assert_same, epochs_of, jpeg
from PIL import Image
from references import kept
from stored import stored
from torch.utils.data import DataLoader
from torchvision import transforms

from fastload import FastLoader, _core
from fastload.check.results import FallbackWarning
from fastload.native.in_next import InProcessFetcher, UnsupportedError

SIDE = 24
FILES = [write_jpeg(40 + 9 * index, 90 - 7 * index, FACTORS["4:4:4"], seed=index) for index in range(5)]
SENTINEL = 77


@pytest.fixture
def pool() -> Iterator[_core.Pool]:
    pool = _core.Pool(3)
    yield pool
    pool.close()


def plan(*sizes: tuple[int, int]) -> _core.DrawPlan:
    made = _core.DrawPlan()
    for height, width in sizes:
        made.add("resize", height=height, width=width)
        made.add("horizontal_flip", p=0.5)
    return made


def room(channels: int, dtype: np.dtype[Any], *sizes: tuple[int, int], count: int = 5) -> list[NDArray[Any]]:
    return [np.full((count, channels, *size), SENTINEL, dtype) for size in sizes]


def table_of(channels: int, dtype: Any) -> NDArray[Any]:
    return np.random.default_rng(1).integers(0, 1 << 8 * np.dtype(dtype).itemsize, (channels, 256), dtype)


def looked_up(pixels: NDArray[np.uint8], table: NDArray[Any]) -> NDArray[Any]:
    return np.stack([row[pixels[..., channel]] for channel, row in enumerate(table)], axis=1)


def finish(job: _core.Job) -> list[str]:
    while job.wait(30.0) == "requested":
        kind, _, question = job.request()
        job.provide(kind, question, torch.exp(torch.tensor(question)).tolist())
    return [_core.status_names()[code] for code in job.statuses()]


@pytest.mark.parametrize("draws", ["stream", "seeds"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_values_are_those_of_the_table(pool: _core.Pool, dtype: Any, channels: int, draws: str) -> None:
    pixels = np.zeros((5, SIDE, 31, 3), np.uint8)
    values, table = room(channels, np.dtype(dtype), (SIDE, 31)), table_of(channels, dtype)
    state = torch.Generator().manual_seed(1).get_state().numpy().tobytes()
    how: dict[str, Any] = {"stream": _core.RandomStream(state)} if draws == "stream" else {"seeds": [1, 2, 3, 4, 5]}
    job = pool.submit(FILES, pixels, plan=plan((SIDE, 31)), values=values, table=table, **how)
    assert finish(job) == ["ok"] * 5
    assert pixels.any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(values[0], looked_up(pixels, table))


def test_pixels_have_values_too(pool: _core.Pool) -> None:
    images = np.random.default_rng(1).integers(0, 256, (9, 30, 40, 3), np.uint8)
    pixels, indices = np.zeros((40, SIDE, SIDE, 3), np.uint8), np.arange(40) % 9
    values, table = room(3, np.dtype(np.uint32), (SIDE, SIDE), count=40), table_of(3, np.uint32)
    stream = _core.RandomStream(torch.Generator().manual_seed(1).get_state().numpy().tobytes())
    job = pool.submit(
        images, pixels, plan=plan((SIDE, SIDE)), stream=stream, indices=indices, values=values, table=table
    )
    assert finish(job) == ["ok"] * 40
    np.testing.assert_array_equal(values[0], looked_up(pixels, table))


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("second", [(SIDE, SIDE), (9, SIDE + 3)])
def test_each_view_has_values(pool: _core.Pool, second: tuple[int, int], channels: int, count: int) -> None:
    views = _core.DrawPlan()
    sizes = [(SIDE, SIDE), second]
    views.add("resize", height=SIDE, width=SIDE)
    views.begin_view()
    views.add("resize", height=second[0], width=second[1])
    views.add("horizontal_flip", p=1.0)
    areas = [count * height * width for height, width in sizes]
    row = torch.zeros(sum(areas), 3, dtype=torch.uint8).numpy()
    alike = second == sizes[0]
    options: dict[str, Any] = {} if alike else {"sizes": sizes}
    out = row.reshape((2 * count, SIDE, SIDE, 3) if alike else (1, 1, -1, 3))
    values, table = room(channels, np.dtype(np.uint16), *sizes, count=count), table_of(channels, np.uint16)
    inputs = [file for file in FILES[:count] for _ in sizes]
    stream = _core.RandomStream(torch.Generator().manual_seed(1).get_state().numpy().tobytes())
    job = pool.submit(inputs, out, plan=views, stream=stream, values=values, table=table, **options)
    assert finish(job) == ["ok"] * 2 * count
    for made, pixels, size in zip(values, np.split(row, areas[:1]), sizes, strict=True):
        levels = pixels.reshape(count, *size, 3)
        assert levels.any(axis=(1, 2, 3)).all()
        np.testing.assert_array_equal(made, looked_up(levels, table))


def test_a_batch_without_samples_has_no_values(pool: _core.Pool) -> None:
    pixels = torch.zeros(0, SIDE, SIDE, 3, dtype=torch.uint8).numpy()  # its strides are not those of NumPy's own
    values, table = room(3, np.dtype(np.uint32), (SIDE, SIDE), count=0), table_of(3, np.uint32)
    assert finish(pool.submit([], pixels, plan=plan((SIDE, SIDE)), values=values, table=table)) == []


def test_each_view_needs_room_of_its_own(pool: _core.Pool) -> None:
    views = plan((SIDE, SIDE))
    views.begin_view()
    views.add("resize", height=SIDE, width=SIDE)
    pixels, table = np.zeros((4, SIDE, SIDE, 3), np.uint8), table_of(3, np.uint32)
    values = room(3, np.dtype(np.uint32), (SIDE, SIDE), count=4)
    with pytest.raises(ValueError, match="room for the values of each view"):
        pool.submit(FILES[:4], pixels, plan=views, values=values, table=table)


@pytest.mark.parametrize("channels", [1, 3])
def test_gray_pixels_have_values(pool: _core.Pool, channels: int) -> None:
    images = np.random.default_rng(1).integers(0, 256, (5, SIDE, 31), np.uint8)
    pixels, table = np.zeros((5, SIDE, 31, 3), np.uint8), table_of(channels, np.uint16)
    values = room(channels, np.dtype(np.uint16), (SIDE, 31))
    whole = {"plan": plan((SIDE, 31)), "seeds": [1] * 5, "values": values, "table": table}
    assert finish(pool.submit(list(images), pixels, arrays=True, **whole)) == ["ok"] * 5
    np.testing.assert_array_equal(values[0], looked_up(pixels, table))
    gray = np.stack([table[channel][images] for channel in range(channels)], axis=1)
    assert all((values[0][i] == gray[i]).all() or (values[0][i] == gray[i, ..., ::-1]).all() for i in range(5))


def test_a_sample_that_fails_leaves_its_values(pool: _core.Pool) -> None:
    pixels = np.full((5, SIDE, SIDE, 3), SENTINEL, np.uint8)
    values, table = room(3, np.dtype(np.uint32), (SIDE, SIDE)), table_of(3, np.uint32)
    inputs = [FILES[0], b"", FILES[1], FILES[2][: len(FILES[2]) * 2 // 3], FILES[3]]
    job = pool.submit(inputs, pixels, plan=plan((SIDE, SIDE)), seeds=[1] * 5, values=values, table=table)
    statuses = finish(job)
    assert [place for place, status in enumerate(statuses) if status != "ok"] == [1, 3]
    assert not pixels[[1, 3]].any()
    assert (values[0][[1, 3]] == SENTINEL).all()
    np.testing.assert_array_equal(values[0][[0, 2, 4]], looked_up(pixels, table)[[0, 2, 4]])


def test_nothing_is_written_once_a_cancelled_job_is_idle(pool: _core.Pool) -> None:
    count, table = 400, table_of(3, np.uint32)
    for _ in range(20):
        pixels = np.zeros((count, SIDE, SIDE, 3), np.uint8)
        values = room(3, np.dtype(np.uint32), (SIDE, SIDE), count=count)
        inputs = (FILES * count)[:count]
        job = pool.submit(inputs, pixels, plan=plan((SIDE, SIDE)), seeds=[1] * count, values=values, table=table)
        threading.Event().wait(0.002)
        assert job.cancel(30.0) is True
        before = values[0].copy()
        again = pool.submit(FILES, np.zeros((5, 8, 8, 3), np.uint8), plan=plan((8, 8)), seeds=[1] * 5)
        assert finish(again) == ["ok"] * 5
        np.testing.assert_array_equal(values[0], before)
        ok = [code == 0 for code in job.statuses()]
        np.testing.assert_array_equal(values[0][ok], looked_up(pixels, table)[ok])


def test_values_of_a_sample_that_is_made_too_late_are_not_written() -> None:
    pool, table = _core.Pool(1), table_of(3, np.uint32)
    large = np.random.default_rng(1).integers(0, 256, (2000, 2000, 3), np.uint8)
    untouched: list[bool] = []
    deadline = time.monotonic() + 60
    while len(untouched) < 5 and time.monotonic() < deadline:
        pixels, values = np.zeros((1, SIDE, SIDE, 3), np.uint8), room(3, np.dtype(np.uint32), (SIDE, SIDE), count=1)
        how: dict[str, Any] = {"plan": plan((SIDE, SIDE)), "seeds": [1], "values": values, "table": table}
        job = pool.submit([large], pixels, arrays=True, **how)
        time.sleep(0.001)
        is_late = not job.cancel(0.0)  # the thread is at work on it, and does not look up until it is done
        assert job.cancel(30.0) is True
        if is_late:
            untouched.append((values[0] == SENTINEL).all())
    pool.close()
    assert any(untouched)  # not all: it may be cancelled just after its values were written


def test_a_job_keeps_the_memory_of_values_and_table(pool: _core.Pool) -> None:
    pixels, table = np.zeros((5, SIDE, SIDE, 3), np.uint8), table_of(3, np.uint32)
    values = room(3, np.dtype(np.uint32), (SIDE, SIDE))
    job = pool.submit(FILES, pixels, plan=plan((SIDE, SIDE)), seeds=[1] * 5, values=values, table=table)
    assert finish(job) == ["ok"] * 5
    held = sys.getrefcount(values[0]), sys.getrefcount(table)
    del job
    gc.collect()
    assert sys.getrefcount(values[0]) < held[0]
    assert sys.getrefcount(table) < held[1]


FLOAT = np.dtype(np.float32)


@pytest.mark.parametrize(
    "values",
    [
        room(3, FLOAT, (SIDE, SIDE), count=4),
        room(3, FLOAT, (SIDE, SIDE), count=6),
        room(1, FLOAT, (SIDE, SIDE)),
        room(3, FLOAT, (SIDE, SIDE - 1)),
        room(3, FLOAT, (SIDE - 1, SIDE)),
        room(3, np.dtype(np.float64), (SIDE, SIDE)),
        room(3, FLOAT, (SIDE, SIDE), (SIDE, SIDE)),
    ],
)
def test_values_of_the_wrong_shape_or_type_are_refused(pool: _core.Pool, values: list[NDArray[Any]]) -> None:
    pixels, table = np.zeros((5, SIDE, SIDE, 3), np.uint8), np.zeros((3, 256), np.float32)
    with pytest.raises(ValueError, match="values must be NCHW"):
        pool.submit(FILES, pixels, plan=plan((SIDE, SIDE)), seeds=[1] * 5, values=values, table=table)


def test_values_and_tables_with_gaps_are_refused(pool: _core.Pool) -> None:
    pixels, table = np.zeros((5, SIDE, SIDE, 3), np.uint8), np.zeros((3, 256), np.float32)
    wide = np.zeros((5, 3, SIDE, 2 * SIDE), np.float32)[..., ::2]
    arguments: dict[str, Any] = {"plan": plan((SIDE, SIDE)), "seeds": [1] * 5}
    with pytest.raises(TypeError):
        pool.submit(FILES, pixels, values=[wide], table=table, **arguments)
    with pytest.raises(TypeError):
        pool.submit(FILES, pixels, values=room(3, FLOAT, (SIDE, SIDE)), table=table[:, ::-1], **arguments)
    with pytest.raises(ValueError, match="table must fit"):
        pool.submit(FILES, pixels, values=room(3, FLOAT, (SIDE, SIDE)), table=table[:, :255].copy(), **arguments)
    wide = room(3, np.dtype(np.complex128), (SIDE, SIDE))[0]
    with pytest.raises(ValueError, match="table must fit"):
        pool.submit(FILES, pixels, values=[wide], table=table.astype(np.complex128), **arguments)
    with pytest.raises(ValueError, match="table must fit"):
        pool.submit(
            FILES, pixels, values=room(5, FLOAT, (SIDE, SIDE)), table=np.zeros((5, 256), np.float32), **arguments
        )
    gaps = np.zeros((5, SIDE, SIDE + 1, 3), np.uint8)[:, :, :SIDE]
    with pytest.raises(ValueError, match="must have no gaps"):
        pool.submit(FILES, gaps, values=room(3, FLOAT, (SIDE, SIDE)), table=table, **arguments)


def test_there_are_values_for_no_more_channels_than_pixels_have(pool: _core.Pool) -> None:
    pixels, table = np.zeros((5, SIDE, SIDE, 3), np.uint8), np.zeros((4, 256), np.float32)
    arguments: dict[str, Any] = {"plan": plan((SIDE, SIDE)), "seeds": [1] * 5}
    with pytest.raises(ValueError, match="three channels"):
        pool.submit(FILES, pixels, values=room(4, FLOAT, (SIDE, SIDE)), table=table, **arguments)


def test_values_need_a_table_and_a_table_values(pool: _core.Pool) -> None:
    pixels, table = np.zeros((5, SIDE, SIDE, 3), np.uint8), np.zeros((3, 256), np.float32)
    arguments: dict[str, Any] = {"plan": plan((SIDE, SIDE)), "seeds": [1] * 5}
    for given in ({"table": table}, {"values": room(3, FLOAT, (SIDE, SIDE))}):
        with pytest.raises(ValueError, match="go together"):
            pool.submit(FILES, pixels, **given, **arguments)


def test_memory_that_may_only_be_read_is_refused(pool: _core.Pool) -> None:
    pixels, table = np.zeros((5, SIDE, SIDE, 3), np.uint8), np.zeros((3, 256), np.float32)
    values = room(3, FLOAT, (SIDE, SIDE))
    values[0].flags.writeable = False
    with pytest.raises(TypeError):
        pool.submit(FILES, pixels, plan=plan((SIDE, SIDE)), seeds=[1] * 5, values=values, table=table)


def test_a_gpus_images_have_no_values(pool: _core.Pool) -> None:
    pixels, table = np.zeros((5, SIDE, SIDE, 3), np.uint8), np.zeros((3, 256), np.float32)
    staging = _core.Staging(torch.zeros(1 << 18, dtype=torch.uint8), 5)
    with pytest.raises(ValueError, match="a GPU's images have no values"):
        pool.submit(
            FILES,
            pixels,
            plan=plan((SIDE, SIDE)),
            seeds=[1] * 5,
            values=room(3, FLOAT, (SIDE, SIDE)),
            table=table,
            staging=staging,
        )


class Encoded:
    """Files in memory; some are none of the core's."""

    def __init__(self, files: list[bytes], transform: Any) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def encoded(self, index: int) -> tuple[bytes, int]:
        return self.files[index], index

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with Image.open(io.BytesIO(self.files[index])) as image:
            return self.transform(image.convert("RGB")), index


def bmp(seed: int) -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(jpeg(seed))).save(out, "BMP")
    return out.getvalue()


def transform_of(kind: str) -> Any:
    crop = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip()]
    color = [transforms.ToTensor(), transforms.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.1])]
    return transforms.Compose(
        {
            "values": [*crop, *color],
            "bytes": [*crop, transforms.PILToTensor()],
            "erased": [*crop, *color, transforms.RandomErasing(p=0.7, value=(0.1, 0.2, 0.3))],
            "noise": [*crop, *color, transforms.RandomErasing(p=0.7, value="random")],
        }[kind]
    )


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["values", "bytes", "erased", "noise"])
def test_batches_are_torchs_with_samples_made_in_python_between(
    kind: str, dtype: torch.dtype | None, workers: int
) -> None:
    files = [bmp(i) if i % 7 == 3 else jpeg(i, 60 + i, 80) for i in range(26)]
    arguments = {"batch_size": 6, "num_workers": workers, "shuffle": True}

    def dataset() -> Any:
        return Encoded(files, transform_of(kind))

    ours = epochs_of(lambda: FastLoader(dataset(), device="cpu", engine="native", dtype=dtype, **arguments))
    theirs = kept(lambda: epochs_of(lambda: DataLoader(dataset(), **arguments)))
    for batch in theirs:
        if isinstance(batch, list) and batch[0].is_floating_point():
            batch[0] = batch[0].to(dtype or batch[0].dtype)
    assert_same(ours, theirs)


@pytest.mark.parametrize("workers", [0, 2])
def test_views_are_torchs_with_samples_made_in_python_between(workers: int) -> None:
    files = [bmp(i) if i % 5 == 3 else jpeg(i, 60 + i, 80) for i in range(13)]
    arguments = {"batch_size": 3, "num_workers": workers, "shuffle": True}

    def dataset() -> Any:
        return Encoded(files, Views())

    ours = epochs_of(lambda: FastLoader(dataset(), device="cpu", engine="native", **arguments))
    assert_same(ours, kept(lambda: epochs_of(lambda: DataLoader(dataset(), **arguments))))


class Views:
    """Two views of other sizes, of which the core knows by the code."""

    def __init__(self) -> None:
        color = [transforms.ToTensor(), transforms.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.1])]
        self.large = transforms.Compose([transforms.RandomResizedCrop(SIDE), *color])
        self.small = transforms.Compose([transforms.RandomResizedCrop(9), transforms.RandomHorizontalFlip(), *color])

    def __call__(self, x: Any) -> Any:
        return [self.large(x), self.small(x)]


class Unreadable(Encoded):
    """The first sample of the second batch of three raises an error."""

    def encoded(self, index: int) -> tuple[bytes, int]:
        self.check(index)
        return super().encoded(index)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.check(index)
        return super().__getitem__(index)

    def check(self, index: int) -> None:
        if index == 3:
            raise LookupError("the third is missing")


def test_the_users_error_ends_a_batch_of_views_without_samples() -> None:
    files = [jpeg(i) for i in range(7)]
    loader = FastLoader(Unreadable(files, Views()), device="cpu", engine="native", num_workers=2, batch_size=3)
    batches = iter(loader)
    next(batches)
    with pytest.raises(LookupError, match="the third is missing"):
        next(batches)
    assert next(batches)[1].tolist() == [6]


@pytest.mark.parametrize("kind", ["values", "bytes"])
def test_a_batch_may_be_resized_in_place_as_torchs(kind: str) -> None:
    """Memory that a NumPy array has seen may not."""
    dataset = Encoded([jpeg(i) for i in range(4)], transform_of(kind))
    for loader in (DataLoader(dataset, 4), FastLoader(dataset, 4, device="cpu", engine="native")):
        images, _ = next(iter(loader))
        images.resize_(8, 3, SIDE, SIDE)
        assert images.shape == (8, 3, SIDE, SIDE)


def test_images_of_another_size_between_two_batches_are_made_natively(recwarn: pytest.WarningsRecorder) -> None:
    def epoch(kind: Any, **own: Any) -> list[Any]:
        dataset = stored("CIFAR10", transforms.ToTensor())
        batches = iter(kind(dataset, batch_size=3, **own))
        seen = [next(batches)]
        dataset.data = np.tile(dataset.data, (1, 1, 2, 1))
        return seen + list(batches)

    ours = epoch(FastLoader, device="cpu", engine="native")
    assert not [warning for warning in recwarn if warning.category is FallbackWarning]
    assert_same(ours, epoch(DataLoader))


def test_a_color_that_changes_little_between_two_batches_is_torchs() -> None:
    def epoch(kind: Any, **own: Any) -> list[Any]:
        erasing = transforms.RandomErasing(1.0, value=0.5)
        transform = transforms.Compose([transforms.Resize((SIDE, SIDE)), transforms.ToTensor(), erasing])
        torch.manual_seed(1)
        batches = iter(kind(Encoded([jpeg(i) for i in range(6)], transform), batch_size=3, **own))
        seen = [next(batches)]
        erasing.value = 0.50001
        return seen + list(batches)

    assert_same(epoch(FastLoader, device="cpu", engine="native"), epoch(DataLoader))


class Closed:
    """A job whose pool was closed while a thread was at work."""

    def wait(self, timeout_s: float) -> str:
        return "done"

    def cancel(self, timeout_s: float) -> bool:
        return timeout_s > 0

    def statuses(self) -> bytes:
        return b"\1"


def test_no_sample_is_made_in_python_where_a_thread_may_yet_write() -> None:
    files = [jpeg(i) for i in range(4)]
    loader = FastLoader(Encoded(files, transform_of("values")), 4, device="cpu", engine="native")
    fetcher = InProcessFetcher(loader, torch.device("cpu"))
    assert fetcher.known is not None
    with pytest.raises(UnsupportedError):
        fetcher._complete(fetcher.known[1], Closed(), [0], files[:1], None)
