"""The epilogue's GPU kernel matches the CPU's bits for every dtype, layout and size."""

from __future__ import annotations

import gc
import importlib.util
import sys
import threading

import numpy as np
import pytest
import torch

from fastload.device import normalize, nvrtc
from fastload.device.normalize import NormalizeTable, apply_table

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LAYOUTS = (torch.channels_last, torch.contiguous_format)
SHAPES = [
    (256, 224, 224),
    (3, 299, 299),
    (5, 33, 17),
    (1, 1, 1),
    (7, 1, 3),
    (2, 4, 2),
    (1, 513, 1021),
    (300, 8, 8),
    (2, 1024, 1024),
]
HAS_CUDA_CORE = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.core") is not None
needs_cuda_core = pytest.mark.skipif(not HAS_CUDA_CORE, reason="needs cuda.core")


def to_bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def random_images(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def random_table(channels: int, dtype: torch.dtype) -> NormalizeTable:
    return NormalizeTable(torch.randn(channels, 256, generator=torch.Generator().manual_seed(1)).to(dtype))


def assert_same(batch: torch.Tensor, images: torch.Tensor, table: NormalizeTable, layout: torch.memory_format) -> None:
    """``batch``, from the GPU, against torch on the CPU; strides too."""
    expected = apply_table(images, table, layout)
    assert batch.is_cuda
    assert batch.dtype == expected.dtype
    assert batch.shape == expected.shape
    assert batch.stride() == expected.stride()
    assert torch.equal(to_bits(batch.cpu()), to_bits(expected))


@pytest.fixture
def only_the_kernel(monkeypatch) -> None:
    """A fallback would hide that there is no kernel."""
    if not HAS_CUDA_CORE:
        pytest.skip("needs cuda.core")
    assert nvrtc.unavailable(torch.device("cuda"), torch.float32, 3) is None
    look_up = normalize.look_up

    def refuse(images, table, memory_format):
        assert not images.is_cuda, "the kernel was not used"
        return look_up(images, table, memory_format)

    monkeypatch.setattr(normalize, "look_up", refuse)


@pytest.mark.usefixtures("only_the_kernel")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_kernel_gives_the_bits_of_the_cpu(layout, dtype, channels, shape):
    if channels != 3 and shape[0] == 256:
        shape = (16, *shape[1:])
    images = random_images(*shape, channels)
    table = random_table(channels, dtype)
    assert_same(apply_table(images.cuda(), table, layout), images, table, layout)


@pytest.mark.usefixtures("only_the_kernel")
@pytest.mark.parametrize("offset", [1, 2, 3, 4, 5, 8, 12])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_images_at_any_address(layout, dtype, offset):
    flat = random_images(offset + 3 * 16 * 16 * 3)
    table = random_table(3, dtype)
    on_gpu = flat.cuda()[offset:].view(3, 16, 16, 3)
    assert_same(apply_table(on_gpu, table, layout), flat[offset:].view(3, 16, 16, 3), table, layout)


@pytest.mark.usefixtures("only_the_kernel")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_empty_batches(layout):
    table = random_table(3, torch.float32)
    for shape in ((0, 8, 8, 3), (2, 0, 8, 3)):
        images = torch.zeros(shape, dtype=torch.uint8)
        assert_same(apply_table(images.cuda(), table, layout), images, table, layout)


@pytest.mark.usefixtures("only_the_kernel")
def test_values_that_are_no_numbers_are_copied_too():
    bits = torch.arange(256, dtype=torch.int32) * 0x01010101  # infinities, NaN with payloads, denormals
    table = NormalizeTable(bits.view(torch.float32).view(1, 256))
    images = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1)
    for layout in LAYOUTS:
        assert torch.equal(to_bits(apply_table(images.cuda(), table, layout).cpu()).view(-1), bits)


@pytest.mark.usefixtures("only_the_kernel")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_runs_on_the_current_stream_behind_the_work_that_is_queued_there(dtype):
    images = random_images(8, 64, 64, 3)
    table = random_table(3, dtype)
    apply_table(images.cuda(), table, torch.channels_last)  # compiled, and the table uploaded
    on_gpu = torch.zeros_like(images, device="cuda")
    pinned = images.pin_memory()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        on_gpu.copy_(pinned, non_blocking=True)
        batch = apply_table(on_gpu, table, torch.channels_last)
        done = side.record_event()
    assert not done.query()  # neither did the host wait for it
    assert torch.cuda.current_stream().query()  # nor is any of it on another stream
    done.synchronize()
    assert_same(batch, images, table, torch.channels_last)


@pytest.mark.usefixtures("only_the_kernel")
def test_a_thread_that_has_not_touched_cuda():
    images = random_images(4, 32, 32, 3)
    table = random_table(3, torch.float32)
    on_gpu = images.cuda()
    torch.cuda.synchronize()
    batches = []
    thread = threading.Thread(target=lambda: batches.append(apply_table(on_gpu, table, torch.channels_last)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert_same(batches[0], images, table, torch.channels_last)


@pytest.mark.usefixtures("only_the_kernel")
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_the_current_one():
    images = random_images(4, 32, 32, 3)
    table = random_table(3, torch.float32)
    batch = apply_table(images.to("cuda:1"), table, torch.contiguous_format)
    assert torch.cuda.current_device() == 0
    assert batch.device == torch.device("cuda:1")
    torch.cuda.synchronize(1)
    assert_same(batch, images, table, torch.contiguous_format)


@pytest.mark.usefixtures("only_the_kernel")
def test_the_table_is_uploaded_once_and_not_reused_while_it_is_read():
    images = random_images(64, 224, 224, 3)
    on_gpu = images.cuda()
    table = random_table(3, torch.float32)
    assert table.on(on_gpu.device) is table.on(on_gpu.device)
    kept = NormalizeTable(table.values)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        batch = apply_table(on_gpu, table, torch.channels_last)
    del table
    gc.collect()
    others = [torch.full((3, 256), 7.0, device="cuda") for _ in range(64)]  # would get its memory, were it free
    torch.cuda.synchronize()
    assert len(others) == 64
    assert_same(batch, images, kept, torch.channels_last)


@needs_cuda_core
def test_each_kernel_is_compiled_once(monkeypatch):
    compiled = []
    compile_kernel = nvrtc._compile
    monkeypatch.setattr(nvrtc, "_loaded", nvrtc._Loaded())
    monkeypatch.setattr(nvrtc, "_compile", lambda *key: compiled.append(key) or compile_kernel(*key))
    images = random_images(2, 8, 8, 3).cuda()
    for layout in LAYOUTS:
        for dtype in (*DTYPES, *DTYPES):
            apply_table(images, random_table(3, dtype), layout)
    assert sorted(compiled) == [(0, 2, 3), (0, 4, 3)]  # a kernel copies values; it does not care what 2 bytes mean


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_same_bits_without_cuda_core(monkeypatch, layout, dtype):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    monkeypatch.setattr(nvrtc, "_loaded", nvrtc._Loaded())
    images = random_images(3, 33, 17, 3)
    table = random_table(3, dtype)
    assert_same(apply_table(images.cuda(), table, layout), images, table, layout)
    assert "[cuda]'" in nvrtc.unavailable(torch.device("cuda"), dtype, 3)


@needs_cuda_core
def test_the_same_bits_when_the_compilation_fails(monkeypatch):
    monkeypatch.setattr(nvrtc, "source", lambda *files: "this is not CUDA")
    monkeypatch.setattr(nvrtc, "_loaded", nvrtc._Loaded())
    images = random_images(3, 33, 17, 3)
    table = random_table(3, torch.float32)
    with pytest.warns(RuntimeWarning, match="the kernel cannot be compiled"):
        batch = apply_table(images.cuda(), table, torch.channels_last)
    assert_same(batch, images, table, torch.channels_last)
