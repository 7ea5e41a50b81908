"""Any PNG or WebP file, crop, size and filter gives the installed Pillow's pixels."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from png_writer import CHANNELS, write_png

from fastload import _core
from fastload.pipeline.nodes import FILTERS
from fastload.vision import decode

pytestmark = pytest.mark.skipif("WebP" not in _core.codec_versions(), reason="built without")
EXAMPLES = int(os.environ.get("FASTLOAD_EXAMPLES", examples(150)))
LENGTHS = st.one_of(st.integers(1, 50), st.sampled_from([1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100]))


@st.composite
def png_files(draw: Any) -> bytes:
    color, bits = draw(st.sampled_from([(0, 1), (0, 2), (0, 4), (0, 8), (2, 8), (4, 8), (6, 8)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    levels = rng.integers(0, 2**bits, (draw(LENGTHS), draw(LENGTHS), CHANNELS[color]))
    filters = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=6)))
    how = {
        "interlace": draw(st.booleans()),
        "pieces": draw(st.integers(1, 5)),
        "level": draw(st.sampled_from([0, 1, 9])),
    }
    return write_png(levels, bits, color, filters=filters, **how)


@st.composite
def webp_files(draw: Any) -> bytes:
    width, height = draw(LENGTHS), draw(LENGTHS)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    coarse = rng.integers(0, 256, (draw(st.integers(1, height)), draw(st.integers(1, width)), 4), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    how: dict[str, Any] = {
        "lossless": draw(st.booleans()),
        "quality": draw(st.integers(0, 100)),
        "alpha_quality": draw(st.integers(0, 100)),
        "method": draw(st.integers(0, 4)),
        "exact": draw(st.booleans()),
    }
    file = io.BytesIO()
    image.convert(draw(st.sampled_from(["RGB", "RGBA"]))).save(file, "WEBP", **how)
    return file.getvalue()


@given(data=st.data(), file=st.one_of(png_files(), webp_files()))
@settings(max_examples=EXAMPLES)
@pytest.mark.matrix
def test_any_region_of_any_file_has_pillows_pixels(data: Any, file: bytes) -> None:
    with Image.open(io.BytesIO(file)) as opened:
        image = opened.convert("RGB")
    np.testing.assert_array_equal(decode(file), np.asarray(image))
    top, left = data.draw(st.integers(0, image.height - 1)), data.draw(st.integers(0, image.width - 1))
    height, width = data.draw(st.integers(1, image.height - top)), data.draw(st.integers(1, image.width - left))
    cropped = image.crop((left, top, left + width, top + height))
    np.testing.assert_array_equal(decode(file, (top, left, height, width)), np.asarray(cropped))
    size, name = (
        (data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60))),
        data.draw(st.sampled_from(sorted(FILTERS))),
    )
    got = decode(file, (top, left, height, width), size, interpolation=name, hflip=True)
    resized = cropped.resize((size[1], size[0]), FILTERS[name]).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    np.testing.assert_array_equal(got, np.asarray(resized))
