"""A GPU makes of staged tensors what the workers would have painted."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
import torch
from deferred_images import deferred, expected, fill_of, pending, table
from stageable import KINDS, noise
from torch.utils.data import Dataset, default_collate, get_worker_info

from fastload import FastLoader
from fastload.deferred.calls import stacks
from fastload.deferred.content import Content
from fastload.device.decode import files as decode
from fastload.device.decode.files import Decoder, DecodeRun
from fastload.loader_state import state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.gpu

COUNT, BATCH, SIDE = 96, 16, 96
SIZES = [(200, 120), (222, 333), (90, 64), (400, 500)]


@pytest.fixture(autouse=True)
def _few_threads() -> Iterator[None]:
    """Many processes of tests share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def file_of(number: int) -> bytes:
    data = io.BytesIO()
    width, height = SIZES[number % len(SIZES)]
    noise(height, width, number).save(data, "JPEG", **KINDS[number % len(KINDS)])
    return data.getvalue()


class Deferring(Dataset[Any]):
    """Two views of each image, which are deferred in worker processes."""

    def __init__(self, dtype: torch.dtype = torch.float32, *, planar: bool = True) -> None:
        values = table(dtype)
        self.contents = []
        for number in range(COUNT):
            data, size = file_of(number), SIZES[number % len(SIZES)]
            first = pending(data, size, number, SIDE)
            views = [first, pending(data, size, number + 1, 40, file=first.file)]
            steps = (("invert", {}),) if number % 7 == 2 else ()
            views[0] = views[0] if not steps else views[0].changed(*steps[0])
            fills = (fill_of(dtype),) if number % 3 == 0 else ()
            self.contents.append([Content((view,), values, planar, fills) for view in views])

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        made = deferred if get_worker_info() is not None else _painted
        large, small = (made(content, single=True) for content in self.contents[index])
        return {"large": large, "small": small, "target": index}


def _painted(content: Content, *, single: bool) -> torch.Tensor:
    return expected(content)[0]


def lists(samples: list[dict[str, Any]]) -> Any:
    return [sample["large"] for sample in samples], torch.tensor([sample["target"] for sample in samples])


def install(worker: int) -> None:
    stacks.install()


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Loaders that compile in threads have the kernels at once."""
    for file in decode.KERNELS:
        with torch.cuda.device(0):
            decode._kernels(0, file)


def checked(dataset: Deferring, *, epochs: int = 4, breaks: bool = False, **options: Any) -> FastLoader[Any]:
    """Compare batches with those that workers would have painted and that were copied then."""
    device, layout = torch.device("cuda"), options.get("memory_format", torch.channels_last)
    dtype = options.get("dtype")
    loader = FastLoader(
        dataset, BATCH, num_workers=3, shuffle=True, worker_init_fn=install, persistent_workers=True, **options
    )
    for epoch in range(epochs):
        for number, batch in enumerate(loader):
            for image, target in zip(batch["large"], batch["target"].tolist(), strict=True):
                want = expected(dataset.contents[target][0])[0].to(device)
                assert torch.equal(image, want if dtype is None or want.dtype == torch.uint8 else want.to(dtype))
            whole = [expected(dataset.contents[target][1])[0] for target in batch["target"].tolist()]
            want = torch.stack(whole).to(device)
            want = want if dtype is None or want.dtype == torch.uint8 else want.to(dtype)
            want = want if layout is None else want.contiguous(memory_format=layout)
            assert torch.equal(batch["small"], want)
            assert (batch["small"].dtype, batch["small"].stride()) == (want.dtype, want.stride())
            assert batch["small"]._base is None
            if breaks and number == epoch:
                break
    return loader


@pytest.mark.parametrize(
    ("dtype", "planar", "options"),
    [
        (torch.float32, True, {}),
        (torch.float32, False, {"memory_format": torch.contiguous_format, "dtype": torch.float16}),
        (torch.float16, True, {"memory_format": None}),
        (torch.uint8, False, {"memory_format": torch.channels_last}),
    ],
)
def test_same_bits_as_workers(dtype: torch.dtype, planar: bool, options: dict[str, Any]) -> None:
    with checked(Deferring(dtype, planar=planar), **options) as loader:
        assert loader.stats().gpu_images > COUNT


def test_single_images_are_no_views() -> None:
    dataset = Deferring(planar=False)
    with FastLoader(dataset, BATCH, num_workers=2, collate_fn=lists, worker_init_fn=install) as loader:
        for _ in range(30):
            if loader.stats().gpu_images:  # the kernels are there
                break
            for images, targets in loader:
                for image, target in zip(images, targets.tolist(), strict=True):
                    want = expected(dataset.contents[target][0])[0]
                    assert torch.equal(image.cpu(), want)
                    assert image.stride() == want.stride()
                    assert image._base is None
        assert loader.stats().gpu_images > 0


def test_early_breaks() -> None:
    with checked(Deferring(), epochs=5, breaks=True) as loader:
        assert loader.stats().gpu_images > 0


def test_what_kernels_refuse_is_painted_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if an image of each batch had turned out bad."""
    wait, spoilt = DecodeRun.wait, []

    def refused(self: DecodeRun) -> bool:
        was = wait(self)
        if was:
            self.bad[len(self.bad) // 2] = 1
            self.bad[0] = 1
            spoilt.append(self)
        return was

    monkeypatch.setattr(DecodeRun, "wait", refused)
    with checked(Deferring()):
        assert len(spoilt) > 8


def test_workers_paint_when_the_device_has_no_memory_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def memory(self: Decoder, name: str, nbytes: int) -> torch.Tensor:
        if name != "scratch":
            return allocate(self, name, nbytes)
        raise torch.OutOfMemoryError("as if")

    allocate = Decoder.memory
    monkeypatch.setattr(Decoder, "memory", memory)
    with checked(Deferring()) as loader:
        slots = state_of(loader).slots
        assert slots is not None
        assert not slots.paints


def test_workers_paint_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kernels(index: int, file: str) -> None:
        raise ImportError("as if")

    monkeypatch.setattr(decode, "_kernels", no_kernels)
    with checked(Deferring()) as loader:
        assert loader.stats().gpu_images == 0


def test_nothing_is_staged_if_the_gpu_must_not_decode() -> None:
    with checked(Deferring(), decode="cpu") as loader:
        assert loader.stats().gpu_images == 0


def test_several_iterators_and_a_tight_limit_of_pinned_memory() -> None:
    dataset = Deferring()
    options = {"worker_init_fn": install, "collate_fn": default_collate, "max_pinned_bytes": 3 << 20}
    with FastLoader(dataset, BATCH, num_workers=2, **options) as loader:
        for _ in range(2):
            for one, other in zip(loader, loader, strict=True):
                for batch in (one, other):
                    whole = [expected(dataset.contents[target][1])[0] for target in batch["target"].tolist()]
                    assert torch.equal(batch["small"].cpu(), torch.stack(whole))
