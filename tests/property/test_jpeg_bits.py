"""Any JPEG, crop, size and filter gives the installed Pillow's pixels, bit for bit."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jpeg_writer import FACTORS, write_jpeg
from PIL import Image

from fastload.pipeline.nodes import FILTERS
from fastload.vision import decode

EXAMPLES = int(os.environ.get("FASTLOAD_EXAMPLES", examples(250)))
# Around block and MCU sizes, where the decoder's special cases are.
LENGTHS = st.one_of(
    st.integers(1, 70), st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200])
)


@st.composite
def crops(draw: Any, height: int, width: int) -> tuple[int, int, int, int]:
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left))


def pillow(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


def crop_of(image: Image.Image, crop: tuple[int, int, int, int]) -> Image.Image:
    top, left, height, width = crop
    return image.crop((left, top, left + width, top + height))


@given(
    data=st.data(),
    width=LENGTHS,
    height=LENGTHS,
    subsampling=st.sampled_from(list(FACTORS)),
    progressive=st.booleans(),
    restart=st.sampled_from([0, 0, 1, 2, 7]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=EXAMPLES)
@pytest.mark.matrix
def test_any_region_of_any_file_decodes_to_pillows_pixels(
    data: Any, width: int, height: int, subsampling: str, progressive: bool, restart: int, seed: int
) -> None:
    file = write_jpeg(width, height, FACTORS[subsampling], seed=seed, restart=restart, progressive=progressive)
    image = pillow(file)
    whole = np.asarray(image)
    np.testing.assert_array_equal(decode(file), whole)
    for _ in range(12):
        crop = data.draw(crops(height, width))
        hflip, vflip = data.draw(st.booleans()), data.draw(st.booleans())
        expected = np.asarray(crop_of(image, crop))[:: -1 if vflip else 1, :: -1 if hflip else 1]
        np.testing.assert_array_equal(decode(file, crop, hflip=hflip, vflip=vflip), expected, err_msg=str(crop))


@given(
    data=st.data(),
    width=LENGTHS,
    height=LENGTHS,
    subsampling=st.sampled_from(["gray", "4:4:4", "4:2:2", "4:2:0"]),
    quality=st.sampled_from([30, 75, 95, 100]),
    options=st.sampled_from(
        [{}, {"progressive": True}, {"optimize": True}, {"restart_marker_rows": 1}, {"restart_marker_blocks": 3}]
    ),
    interpolation=st.sampled_from(list(FILTERS)),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=EXAMPLES)
@pytest.mark.matrix
def test_any_crop_resizes_to_pillows_pixels(
    data: Any,
    width: int,
    height: int,
    subsampling: str,
    quality: int,
    options: dict[str, Any],
    interpolation: str,
    seed: int,
) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (1 + height // 5, 1 + width // 5, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    if subsampling == "gray":
        picture.convert("L").save(buffer, "JPEG", quality=quality, **options)
    else:
        picture.save(buffer, "JPEG", quality=quality, subsampling=subsampling, **options)
    file = buffer.getvalue()
    image = pillow(file)
    for _ in range(4):
        crop = data.draw(crops(height, width))
        size = data.draw(st.tuples(st.integers(1, 90), st.integers(1, 90)))
        flip = data.draw(st.booleans())
        expected = np.asarray(crop_of(image, crop).resize(size[::-1], FILTERS[interpolation]))
        got = decode(file, crop, size, interpolation=interpolation, hflip=flip)
        np.testing.assert_array_equal(got, expected[:, :: -1 if flip else 1], err_msg=f"{crop} to {size}")


@pytest.mark.skipif("FASTLOAD_SLOW" not in os.environ, reason="takes minutes; FASTLOAD_SLOW=1 runs it")
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", list(FACTORS))
@pytest.mark.slow
def test_every_region_of_a_small_file(subsampling: str, progressive: bool) -> None:
    height, width = 35, 37
    file = write_jpeg(width, height, FACTORS[subsampling], progressive=progressive, seed=1)
    whole = np.asarray(pillow(file))
    for top in range(height):
        for left in range(width):
            for rows in range(1, height - top + 1):
                for columns in range(1 + (top + left + rows) % 5, width - left + 1, 5):
                    got = decode(file, (top, left, rows, columns))
                    assert np.array_equal(got, whole[top : top + rows, left : left + columns])


@given(width=st.integers(1500, 3000), height=st.integers(1500, 3000), seed=st.integers(0, 9), data=st.data())
@example(width=3000, height=2999, seed=0, data=None)
@settings(max_examples=2 if EXAMPLES < 1000 else EXAMPLES // 50)
def test_large_photos(width: int, height: int, seed: int, data: Any) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (height // 50, width // 50, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((width, height), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=85, subsampling="4:2:0")
    image = pillow(buffer.getvalue())
    crop = (height // 3, width // 5, height // 2, width // 2) if data is None else data.draw(crops(height, width))
    expected = np.asarray(crop_of(image, crop).resize((224, 224), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(decode(buffer.getvalue(), crop, (224, 224)), expected)
