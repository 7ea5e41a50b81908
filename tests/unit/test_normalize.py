"""Normalize as a table: the bits of torchvision's own pipelines, whatever looks them up."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import pickle
import sys
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from normalize_on_cpu import KernelOnCpu
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload import _core
from fastload.device import nvrtc
from fastload.device.normalize import NormalizeTable, apply_table, look_up

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LAYOUTS = (torch.channels_last, torch.contiguous_format)
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def to_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Comparable as integers: NaN equals itself, and -0.0 is not 0.0."""
    return tensor.contiguous().view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def pipeline_v1(mean: list[float], std: list[float], dtype: torch.dtype) -> Any:
    return v1.Compose([v1.ToTensor(), v1.ConvertImageDtype(dtype), v1.Normalize(mean, std)])


def pipeline_v2(mean: list[float], std: list[float], dtype: torch.dtype) -> Any:
    return v2.Compose([v2.ToImage(), v2.ToDtype(dtype, scale=True), v2.Normalize(mean, std)])


PIPELINES = {"v1": pipeline_v1, "v2": pipeline_v2}


def to_image(pixels: torch.Tensor) -> Image.Image:
    """Of ``(H, W, C)`` uint8."""
    array = pixels.numpy()
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else array, MODES[array.shape[2]])


def table_of(pipeline: Any, channels: int) -> NormalizeTable:
    """What the pipeline makes of an image that has every level in every channel."""
    ramp = torch.arange(256, dtype=torch.uint8).view(16, 16, 1).expand(16, 16, channels).contiguous()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Pillow's, on naming a mode
        return NormalizeTable(torch.as_tensor(pipeline(to_image(ramp))).reshape(channels, 256))


def batch_of(pipeline: Any, images: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.stack([torch.as_tensor(pipeline(to_image(image))) for image in images])


def random_images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def random_table(channels: int, dtype: torch.dtype) -> NormalizeTable:
    return NormalizeTable(torch.randn(channels, 256, generator=torch.Generator().manual_seed(1)).to(dtype))


numbers = st.floats(-2, 2, width=32)
deviations = st.one_of(st.floats(2**-6, 4, width=32), st.sampled_from([1.0, 0.229, 255.0, 1e-4]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("version", PIPELINES)
@given(data=st.data(), channels=st.integers(1, 4))
def test_equal_to_torchvision_bit_for_bit(version, dtype, data, channels):
    mean = data.draw(st.lists(numbers, min_size=channels, max_size=channels))
    std = data.draw(st.lists(deviations, min_size=channels, max_size=channels))
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 19), st.integers(1, 19)))
    images = random_images(*shape, channels, seed=data.draw(st.integers(0, 2**20)))
    pipeline = PIPELINES[version](mean, std, dtype)
    for memory_format in LAYOUTS:
        batch = apply_table(images, table_of(pipeline, channels), memory_format)
        expected = batch_of(pipeline, images)
        assert batch.dtype == expected.dtype == dtype
        assert torch.equal(to_bits(batch), to_bits(expected))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("version", PIPELINES)
@pytest.mark.matrix
def test_every_level_of_every_channel(version, dtype):
    levels = torch.arange(256, dtype=torch.uint8)
    images = torch.stack([levels, levels.flip(0), levels.roll(7)], dim=-1).view(1, 16, 16, 3)
    pipeline = PIPELINES[version](*IMAGENET, dtype)
    batch = apply_table(images, table_of(pipeline, 3), torch.channels_last)
    assert torch.equal(to_bits(batch), to_bits(batch_of(pipeline, images)))


def test_values_that_are_no_numbers_are_copied_too():
    bits = torch.arange(256, dtype=torch.int32) * 0x01010101  # infinities, NaN with payloads, denormals
    table = NormalizeTable(bits.view(torch.float32).view(1, 256))
    images = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1)
    assert torch.equal(to_bits(apply_table(images, table, torch.channels_last)).view(-1), bits)


@pytest.mark.parametrize("shape", [(2, 5, 7, 3), (1, 1, 1, 3), (3, 4, 4, 1), (0, 8, 8, 3), (2, 0, 8, 3)], ids=str)
@pytest.mark.parametrize("memory_format", LAYOUTS, ids=str)
def test_strides_are_those_that_torch_gives_the_memory_format(shape, memory_format):
    count, height, width, channels = shape
    batch = apply_table(torch.zeros(shape, dtype=torch.uint8), random_table(channels, torch.float32), memory_format)
    like = torch.empty((count, channels, height, width), memory_format=memory_format)
    assert batch.shape == like.shape
    assert batch.stride() == like.stride()


def test_tensors_without_memory_are_left_to_torch():
    table = random_table(3, torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True):
        batch = apply_table(torch.zeros(1, 2, 2, 3, dtype=torch.uint8), table, torch.channels_last)
    assert type(batch) is FakeTensor
    assert batch.shape == (1, 3, 2, 2)


@pytest.mark.parametrize(
    ("levels", "table", "out"),
    [
        ((1, 2, 2, 3), (1, 256), (1, 3, 2, 2)),
        ((1, 2, 2, 3), (3, 255), (1, 3, 2, 2)),
        ((1, 2, 2, 3), (3, 256), (1, 3, 2, 1)),
        ((1, 2, 2, 5), (5, 256), (1, 5, 2, 2)),
        ((1, 2, 2, 3), (3, 256), torch.zeros(1, 3, 2, 2, dtype=torch.float16)),
    ],
)
def test_the_core_refuses_to_look_up_what_does_not_fit(levels, table, out):
    target = torch.zeros(out) if isinstance(out, tuple) else out
    with pytest.raises(ValueError, match="must fit"):
        _core.look_up(torch.zeros(levels, dtype=torch.uint8), torch.zeros(table), target, True)


@pytest.mark.parametrize(
    ("images", "memory_format", "said"),
    [
        (torch.zeros(4, 4, 3, dtype=torch.uint8), torch.channels_last, r"\(N, H, W, C\) uint8 .* got \(4, 4, 3\)"),
        (torch.zeros(1, 4, 4, 3), torch.channels_last, "uint8 .* got .* torch.float32"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.uint8).permute(0, 2, 3, 1), torch.channels_last, "contiguous.*strides"),
        (torch.zeros(1, 4, 4, 1, dtype=torch.uint8), torch.channels_last, "3 channels of the table, got 1"),
        (torch.zeros(1, 4, 4, 3, dtype=torch.uint8), torch.preserve_format, "memory_format must be"),
    ],
)
def test_misuse_is_named(images, memory_format, said):
    with pytest.raises(ValueError, match=said):
        apply_table(images, random_table(3, torch.float32), memory_format)


@pytest.mark.parametrize(
    "values",
    [torch.zeros(256), torch.zeros(3, 255), torch.zeros(5, 256), torch.zeros(0, 256), torch.zeros(3, 256).double()],
    ids=lambda values: f"{tuple(values.shape)} {values.dtype}",
)
def test_a_table_checks_itself(values):
    with pytest.raises(ValueError, match="values must be"):
        NormalizeTable(values)


@pytest.mark.parametrize("copier", [lambda table: pickle.loads(pickle.dumps(table)), copy.deepcopy, copy.copy])
def test_a_table_can_be_copied(copier):
    table = random_table(3, torch.bfloat16)
    copied = copier(table)
    assert copied.channels == 3
    assert torch.equal(copied.values, table.values)


@pytest.fixture(scope="module")
def kernels_on_cpu(tmp_path_factory) -> dict[tuple[int, int], KernelOnCpu]:
    folder = tmp_path_factory.mktemp("epilogue")
    return {(size, channels): KernelOnCpu(folder, size, channels) for size in (4, 2) for channels in (1, 2, 3, 4)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("memory_format", LAYOUTS, ids=str)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(1, 40)),
    offset=st.integers(0, 9),
    blocks=st.integers(1, 3),
)
@example(shape=(3, 32, 64), offset=0, blocks=1)  # planes of a whole number of stores, more than one round of a block
@example(shape=(130, 4, 4), offset=0, blocks=2)  # many images in one tile
@example(shape=(2, 31, 67), offset=0, blocks=2)  # an odd plane
@example(shape=(1, 64, 64), offset=1, blocks=3)  # an address that allows no wide load
def test_the_kernels_indices_give_the_same_bits(kernels_on_cpu, memory_format, channels, dtype, shape, offset, blocks):
    size = shape[0] * shape[1] * shape[2] * channels
    images = random_images(size + offset)[offset:].view(*shape, channels)
    table = random_table(channels, dtype)
    batch = kernels_on_cpu[dtype.itemsize, channels](images, table.values, memory_format, blocks)
    assert torch.equal(to_bits(batch), to_bits(look_up(images, table, memory_format)))


def test_the_kernels_source_and_launch_agree_on_the_block():
    assert f"constexpr unsigned THREADS = {nvrtc.THREADS};" in nvrtc.source("normalize.cu")


@pytest.mark.parametrize(
    ("levels", "out", "plane_px", "value_bytes", "memory_format", "wide"),
    [
        (64, 64, 49, 4, torch.channels_last, True),
        (64, 64, 49, 4, torch.contiguous_format, False),
        (64, 64, 52, 4, torch.contiguous_format, True),
        (64, 64, 52, 2, torch.contiguous_format, False),
        (68, 64, 56, 4, torch.channels_last, True),
        (68, 64, 56, 2, torch.channels_last, False),
        (65, 64, 56, 4, torch.channels_last, False),
        (64, 72, 56, 2, torch.channels_last, False),
    ],
)
def test_wide_where_every_address_is_a_multiple(levels, out, plane_px, value_bytes, memory_format, wide):
    assert nvrtc.is_wide(levels, out, plane_px, value_bytes, memory_format) is wide


@pytest.fixture
def loaded(monkeypatch) -> nvrtc._Loaded:
    fresh = nvrtc._Loaded()
    monkeypatch.setattr(nvrtc, "_loaded", fresh)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    return fresh


def test_without_cuda_core_there_is_no_kernel_and_no_warning(monkeypatch, loaded):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loaded.kernel(0, 4, 3, torch.channels_last) is None
    assert "pip install '.[cuda]'" in loaded.failure(0, 4, 3)


def test_a_failed_compilation_is_told_once(monkeypatch, loaded):
    attempts = []

    def fail(*key: int) -> None:
        attempts.append(key)
        raise RuntimeError("unsupported architecture")

    monkeypatch.setattr(nvrtc, "_compile", fail)
    with pytest.warns(RuntimeWarning, match="same values but slower.*RuntimeError: unsupported architecture"):
        assert loaded.kernel(0, 4, 3, torch.channels_last) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loaded.kernel(0, 4, 3, torch.contiguous_format) is None
    assert attempts == [(0, 4, 3)]
    assert "unsupported architecture" in loaded.failure(0, 4, 3)


def test_a_kernel_that_nobody_waits_for_is_compiled_beside_the_second_batch(monkeypatch, loaded):
    may_end, compiled = threading.Event(), []

    def compile_slowly(*key: int) -> dict[torch.memory_format, str]:
        compiled.append(threading.current_thread().name)
        may_end.wait()
        return {torch.channels_last: "the kernel"}

    monkeypatch.setattr(nvrtc, "_compile", compile_slowly)
    assert loaded.kernel(0, 4, 3, torch.channels_last, wait=False) is None
    assert not compiled
    assert [loaded.kernel(0, 4, 3, torch.channels_last, wait=False) for _ in range(3)] == [None] * 3
    may_end.set()
    assert loaded.kernel(0, 4, 3, torch.channels_last) == "the kernel"
    assert loaded.kernel(0, 4, 3, torch.channels_last, wait=False) == "the kernel"
    assert compiled == ["fastload-nvrtc"]


def test_a_device_without_kernel_is_named():
    assert nvrtc.unavailable(torch.device("cpu"), torch.float32, 3) == "the kernel is for CUDA devices"


def test_what_a_plan_can_know_without_compiling(monkeypatch, loaded):
    device = torch.device("cuda", 0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert nvrtc.lacking(device, torch.float32, 3) == (
        "cuda.core is not installed; in fastload's checkout: pip install '.[cuda]'"
    )
    assert nvrtc.lacking(torch.device("cpu"), torch.float32, 3) is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert nvrtc.lacking(device, torch.float32, 3) is None
    compiled = []
    monkeypatch.setattr(nvrtc, "_compile", lambda *key: compiled.append(key) or {}["no such architecture"])
    assert nvrtc.lacking(device, torch.float32, 3) is None
    assert not compiled
    with pytest.warns(RuntimeWarning, match="slower"):
        loaded.kernel(0, 4, 3, torch.channels_last)
    assert nvrtc.lacking(device, torch.float32, 3) == "the kernel cannot be compiled: KeyError: 'no such architecture'"


def test_a_kernel_that_cannot_be_compiled_stops_no_loader_where_warnings_are_errors(monkeypatch, loaded):
    def fails(*_):
        raise RuntimeError("no such architecture")

    monkeypatch.setattr(nvrtc, "_compile", fails)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loaded.kernel(0, 4, 3, torch.channels_last) is None
    assert "no such architecture" in loaded.failure(0, 4, 3)
