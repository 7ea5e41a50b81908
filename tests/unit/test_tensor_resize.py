"""The core's resize of tensors against the installed torchvision's, to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torchvision.transforms import InterpolationMode
from torchvision.transforms import _functional_tensor as first
from torchvision.transforms.v2 import functional

from fastload import _core
from fastload.pipeline.installed.resizes import (
    FLOAT_FILTERS,
    TENSOR_FILTERS,
    _halves,
    _resizes_alike_in_float,
    float_filters,
    tensor_filters,
)

SIDE = st.one_of(st.integers(1, 40), st.integers(1, 700))
bytes_are_resized = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="torch has no uint8 kernel here"
)


def both(source, size, name):
    expected = functional.resize(
        torch.from_numpy(source).permute(2, 0, 1), list(size), InterpolationMode(name), antialias=True
    )
    out = np.empty((*size, 3), np.uint8)
    _core.resize(source, out, TENSOR_FILTERS[name])
    return out, expected.permute(1, 2, 0).numpy()


@bytes_are_resized
@pytest.mark.matrix
def test_bilinear_gives_torchs_bits_here():
    assert "torch_bilinear" in tensor_filters()
    assert tensor_filters() <= set(TENSOR_FILTERS.values())


@bytes_are_resized
@pytest.mark.parametrize("name", TENSOR_FILTERS)
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize(
    ("source_size", "size"),
    [((292, 355), (224, 224)), ((29, 37), (50, 64)), ((391, 517), (19, 23)), ((48, 64), (48, 31)), ((900, 4), (2, 9))],
)
@pytest.mark.matrix
def test_every_level_gives_torchs_bits(level, name, extreme, source_size, size):
    if TENSOR_FILTERS[name] not in tensor_filters():
        pytest.skip(f"this torch resizes bytes otherwise ({name})")
    source = np.random.default_rng(1).integers(0, 256, (*source_size, 3), np.uint8)
    if extreme:
        source = np.where(source < 128, 0, 255).astype(np.uint8)
    ours, theirs = both(source, size, name)
    assert np.array_equal(ours, theirs)


@bytes_are_resized
@settings(max_examples=examples(150))
@given(st.tuples(SIDE, SIDE), st.tuples(SIDE, SIDE), st.sampled_from(sorted(TENSOR_FILTERS)), st.integers(0, 99))
def test_any_resize(source_size, size, name, seed):
    if TENSOR_FILTERS[name] in tensor_filters():
        ours, theirs = both(np.random.default_rng(seed).integers(0, 256, (*source_size, 3), np.uint8), size, name)
        assert np.array_equal(ours, theirs)


def both_in_float(source, size, mode):
    """Our whole image, and torchvision's first ``resize`` of it."""
    expected = first.resize(torch.from_numpy(source).permute(2, 0, 1), list(size), mode, antialias=True)
    out = np.empty((*size, 3), np.uint8)
    _core.resize(source, out, float_filters()[mode])
    return out, expected.permute(1, 2, 0).numpy()


@pytest.mark.matrix
def test_one_way_to_round_is_torchs():
    for mode, cores in FLOAT_FILTERS.items():
        assert [_resizes_alike_in_float(mode, core) for core in cores].count(True) == 1
        assert float_filters()[mode] in cores


@pytest.mark.parametrize("mode", FLOAT_FILTERS)
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize(
    ("source_size", "size"),
    [((292, 355), (224, 224)), ((29, 37), (50, 64)), ((391, 517), (19, 23)), ((48, 64), (48, 31)), ((900, 4), (2, 9))],
)
def test_every_level_gives_torchs_bits_in_float(level, mode, extreme, source_size, size):
    source = np.random.default_rng(1).integers(0, 256, (*source_size, 3), np.uint8)
    if extreme:
        source = np.where(source < 128, 0, 255).astype(np.uint8)
    ours, theirs = both_in_float(source, size, mode)
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("mode", FLOAT_FILTERS)
def test_every_level_rounds_halves_as_torch_does(level, mode):
    for shrinks in range(2, 24, 2):
        rows = np.ascontiguousarray(_halves(shrinks))
        for source, size in ((rows, (16, 15)), (np.ascontiguousarray(rows.swapaxes(0, 1)), (15, 16))):
            ours, theirs = both_in_float(source, size, mode)
            assert np.array_equal(ours, theirs)


@settings(max_examples=examples(150))
@given(st.tuples(SIDE, SIDE), st.tuples(SIDE, SIDE), st.sampled_from(sorted(FLOAT_FILTERS)), st.integers(0, 99))
def test_any_resize_in_float(source_size, size, mode, seed):
    assume(size[1] > 1)  # one column torch fills with its first pixel; such sizes are left to it
    source = np.random.default_rng(seed).integers(0, 256, (*source_size, 3), np.uint8)
    ours, theirs = both_in_float(source, size, mode)
    assert np.array_equal(ours, theirs)


def test_windows_and_flips_in_float(level):
    source = np.random.default_rng(3).integers(0, 256, (75, 93, 3), np.uint8)
    for mode, core in float_filters().items():
        for channels in (1, 3):
            pixels = np.ascontiguousarray(source[..., :channels])
            _, theirs = both_in_float(np.repeat(pixels, 3 // channels, 2), (41, 52), mode)
            for mirrored in (False, True):
                out = np.empty((20, 33, channels), np.uint8)
                _core.resize(pixels, out, core, "horizontal_first", (41, 52), (7, 11), mirrored, not mirrored)
                window = theirs[7:27, 11:44, :channels]
                window = window[:, ::-1] if mirrored else window[::-1]
                assert np.array_equal(out, window)


def test_pillows_bits_are_others():
    """Most pixels of the two agree, so that a mix-up would go unnoticed; some differ."""
    source = np.random.default_rng(1).integers(0, 256, (292, 355, 3), np.uint8)
    torchs, pillows = np.empty((2, 224, 224, 3), np.uint8)
    _core.resize(source, torchs, "torch_bilinear")
    _core.resize(source, pillows, "bilinear")
    different = (torchs != pillows).mean()
    assert 0 < different < 0.1
    assert np.abs(torchs.astype(int) - pillows).max() == 1


@bytes_are_resized
@pytest.mark.slow
def test_a_torch_without_fused_products_is_noticed():
    code = "from fastload.pipeline.installed.resizes import float_filters; print(float_filters()['bicubic'])"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "float_bicubic", done.stderr


@bytes_are_resized
@pytest.mark.slow
def test_a_torch_that_resizes_by_way_of_floats_is_noticed():
    code = "from fastload.pipeline.installed.resizes import tensor_filters; print('torch_bilinear' in tensor_filters())"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
