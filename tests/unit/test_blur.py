"""The core's Gaussian blur has the installed Pillow's bits at every SIMD level."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from fastload import _core
from fastload.pipeline.installed import steps as step_calibration
from fastload.pipeline.installed.steps import REFERENCES, differing_step

SIZES = [(1, 1), (1, 13), (13, 1), (2, 3), (17, 31), (33, 500), (224, 224)]  # height, width


def check(height: int, width: int, radius: float | tuple[float, float]) -> None:
    frame = np.random.default_rng([height, width]).integers(0, 256, (height + 2, width + 2, 3), np.uint8)
    frame[: height // 2, : width // 2] = 255
    image = frame[1:-1, 1:-1]
    expected = frame.copy()
    expected[1:-1, 1:-1] = Image.fromarray(image).filter(ImageFilter.GaussianBlur(radius))
    _core.gaussian_blur(image, radius)
    np.testing.assert_array_equal(frame, expected)


@pytest.mark.parametrize("size", SIZES)
def test_blur_has_pillows_bits(level: str, size: tuple[int, int]) -> None:
    for radius in (0, 1e-9, 0.1, 0.37, 0.5, 1, 1.3, 2, 2.7, 5, 13.3, 40, 700, -1.5, (0, 1.2), (3.1, 0), (0.4, 6)):
        check(*size, radius)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sides=st.tuples(*[st.integers(1, 40)] * 2),
    radius=st.one_of(st.floats(0, 3), st.floats(0, 60), st.tuples(*[st.floats(0, 9)] * 2)),
)
def test_random_blurs_have_pillows_bits(level: str, sides: tuple[int, int], radius) -> None:
    check(*sides, radius)


@pytest.mark.parametrize("side", [0, 1])
def test_other_bits_in_images_of_one_row_or_column_are_seen(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow-SIMD has them."""
    real = REFERENCES["gaussian_blur"]

    def other(image: Image.Image, radii: tuple[float, float]) -> Image.Image:
        return image if image.size[side] == 1 else real(image, radii=radii)

    radius = 0.71 + side  # not compared before
    nodes = [("gaussian_blur", {"radii": (radius, radius)})]
    with monkeypatch.context() as patched:
        patched.setitem(REFERENCES, "gaussian_blur", other)
        assert differing_step(nodes) == "gaussian_blur"
    step_calibration._same_as_reference.cache_clear()
    assert differing_step(nodes) is None


def test_rows_may_run_backwards() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    expected = np.asarray(Image.fromarray(pixels[::-1]).filter(ImageFilter.GaussianBlur(1.5)))
    _core.gaussian_blur(pixels[::-1], 1.5)
    np.testing.assert_array_equal(pixels[::-1], expected)


@pytest.mark.parametrize("radius", [math.nan, math.inf, 2e5, (1, -math.inf)])
def test_radius_without_limit_is_refused(radius) -> None:
    with pytest.raises(ValueError, match="radius must be at most 100000"):
        _core.gaussian_blur(np.zeros((3, 3, 3), np.uint8), radius)


def test_other_layouts_are_refused() -> None:
    with pytest.raises(ValueError, match="image must be HWC"):
        _core.gaussian_blur(np.zeros((3, 3, 4), np.uint8), 1)
