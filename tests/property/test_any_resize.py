"""Any resize equals the installed Pillow's, at every SIMD level, whole or streamed."""

from __future__ import annotations

import shutil

import native_shim
import numpy as np
import PIL
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from native_shim import FILTERS, SIMD_LEVELS, Resize
from PIL import Image

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the shim is compiled with g++")

SIDES = st.one_of(st.integers(1, 8), st.integers(1, 300), st.integers(300, 3000))


@st.composite
def jobs(draw: st.DrawFn) -> dict:
    width, height = draw(SIDES), draw(SIDES)
    while width * height > 600_000:
        width, height = (width + 1) // 2, (height + 1) // 2
    out_width = draw(st.one_of(st.integers(1, 260), st.just(width)))
    out_height = draw(st.one_of(st.integers(1, 260), st.just(height)))
    left, right = sorted(draw(st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32))))
    top, bottom = sorted(draw(st.tuples(st.floats(0, 1, width=32), st.floats(0, 1, width=32))))
    parts = ((width, left), (height, top), (width, right), (height, bottom))
    box = tuple(float(np.float32(side * part)) for side, part in parts)
    if not (draw(st.booleans()) and box[0] + 0.01 < box[2] <= width and box[1] + 0.01 < box[3] <= height):
        box = None
    window = None
    if draw(st.booleans()):
        window_height, window_width = draw(st.integers(1, out_height)), draw(st.integers(1, out_width))
        window_top = draw(st.integers(0, out_height - window_height))
        window = (window_top, draw(st.integers(0, out_width - window_width)), window_height, window_width)
    return {
        "size": (width, height),
        "out_size": (out_width, out_height),
        "resample": draw(st.sampled_from(list(FILTERS))),
        "box": box,
        "window": window,
        "flip_horizontal": draw(st.booleans()),
        "flip_vertical": draw(st.booleans()),
        "channels": draw(st.sampled_from([3, 3, 1])),
    }


@settings(max_examples=examples(300))
@given(job=jobs(), seed=st.integers(0, 1000), extreme=st.booleans(), chunk=st.integers(1, 16), margin=st.integers(0, 3))
def test_any_resize_equals_pillow(job: dict, seed: int, extreme: bool, chunk: int, margin: int) -> None:
    lib = native_shim.library()
    (width, height), (out_width, out_height) = job["size"], job["out_size"]
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, job["channels"]), np.uint8)
    if extreme:
        pixels = np.where(pixels < 128, 0, 255).astype(np.uint8)
    image = Image.fromarray(pixels[..., 0] if job["channels"] == 1 else pixels)
    expected = np.asarray(image.resize((out_width, out_height), FILTERS[job["resample"]][1], box=job["box"]))
    expected = expected.reshape(out_height, out_width, job["channels"])
    if job["window"] is not None:
        top, left, window_height, window_width = job["window"]
        expected = expected[top : top + window_height, left : left + window_width]
    expected = expected[:: -1 if job["flip_vertical"] else 1, :: -1 if job["flip_horizontal"] else 1]

    pillow = tuple(int(part) for part in PIL.__version__.split(".")[:2])
    rule = 1 if pillow >= (13, 0) else 2 * (pillow >= (12, 2))
    order = bool(lib.shim_pass_order(rule, width, height, out_width, out_height))
    best = lib.shim_simd()
    try:
        for level in native_shim.simd_levels():
            lib.shim_set_simd(SIMD_LEVELS[level])
            resize = Resize(**job, vertical_first=order)
            assert np.array_equal(resize(pixels, margin=margin), expected), level
            assert np.array_equal(resize(pixels, margin=margin, stream=chunk), expected), f"{level}, streamed"
    finally:
        lib.shim_set_simd(best)
