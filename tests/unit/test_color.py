"""The core's changes of colour against the installed Pillow's and torchvision's, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import functional

from fastload import _core

SIZES = [(1, 1), (1, 40), (40, 1), (2, 2), (3, 2), (2, 3), (3, 3), (17, 31), (5, 64), (224, 224)]
FACTORS = [0.0, -0.0, 1.0, 0.5, -1.0, 1.9, 10.0, 1e-9, 1 + 1e-10, 0.3, 3e38, -1e300, float("inf"), float("nan")]
THRESHOLDS = [128, 0, 1, 255, 255.5, 256, 127.5, -3, 1e9, float("inf"), float("nan")]
SHIFTS = [0.0, 0.5, -0.5, 0.1, -0.003, 0.27]


def shifted_hue(image, factor):
    _core.adjust_hue(image, int(np.int32(factor * 255).astype(np.uint8)))


def grayscale(image):
    return functional.to_grayscale(image, 3)


CALLS = {
    "brightness": (_core.adjust_brightness, functional.adjust_brightness, FACTORS),
    "contrast": (_core.adjust_contrast, functional.adjust_contrast, FACTORS),
    "saturation": (_core.adjust_saturation, functional.adjust_saturation, FACTORS),
    "sharpness": (_core.adjust_sharpness, functional.adjust_sharpness, FACTORS),
    "hue": (shifted_hue, functional.adjust_hue, SHIFTS),
    "posterize": (_core.posterize, functional.posterize, range(1, 9)),
    "solarize": (_core.solarize, functional.solarize, THRESHOLDS),
    "grayscale": (_core.to_grayscale, grayscale, None),
    "invert": (_core.invert, functional.invert, None),
    "autocontrast": (_core.autocontrast, functional.autocontrast, None),
    "equalize": (_core.equalize, functional.equalize, None),
}
ARGUMENTS = {
    "posterize": st.integers(1, 8),
    "solarize": st.one_of(st.integers(-1, 257), st.floats(-1, 257)),
    "hue": st.floats(-0.5, 0.5),
}


def images(height, width):
    """Yield images of noise, few levels, few pixels per level, constants, one bright pixel."""
    rng = np.random.default_rng(height * 1000 + width)
    shape = (height, width, 3)
    yield rng.integers(0, 256, shape, np.uint8)
    yield rng.integers(90, 96, shape, np.uint8)
    yield np.sort(rng.integers(0, 256, shape, np.uint8), axis=1) // np.array([1, 2, 100], np.uint8)
    yield np.full(shape, (0, 77, 255), np.uint8)
    spot = np.zeros(shape, np.uint8)
    spot[height // 2, width // 2] = (255, 1, 254)
    yield spot


def check(name, image, *arguments):
    ours, theirs, _ = CALLS[name]
    expected = np.asarray(theirs(Image.fromarray(image), *arguments))
    out = image.copy()
    ours(out, *arguments)
    np.testing.assert_array_equal(out, expected, err_msg=f"{name}{arguments} of {image.shape}")


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_every_level_gives_pillows_bits(level, name, size):
    choices = CALLS[name][2]
    if size == (224, 224) and choices is not None:
        choices = choices[:6]
    for image in images(*size):
        for arguments in [()] if choices is None else [(choice,) for choice in choices]:
            check(name, image, *arguments)


@pytest.mark.parametrize("name", CALLS)
def test_rows_may_be_apart_and_nothing_between_them_changes(level, name):
    ours, theirs, choices = CALLS[name]
    arguments = () if choices is None else (choices[3],)
    whole = np.random.default_rng(1).integers(0, 256, (19, 50, 3), np.uint8)
    expected = whole.copy()
    expected[3:16, 5:42] = theirs(Image.fromarray(whole[3:16, 5:42]), *arguments)
    ours(whole[3:16, 5:42], *arguments)
    np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("name", CALLS)
def test_an_upside_down_view_is_changed_in_place(level, name):
    ours, theirs, choices = CALLS[name]
    arguments = () if choices is None else (choices[3],)
    image = np.random.default_rng(2).integers(0, 256, (9, 33, 3), np.uint8)
    expected = np.asarray(theirs(Image.fromarray(image[::-1].copy()), *arguments))[::-1]
    ours(image[::-1], *arguments)
    np.testing.assert_array_equal(image, expected)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", [(0, 0, 3), (0, 5, 3), (5, 0, 3)])
def test_empty_images_are_left_alone(level, name, shape):
    ours, _, choices = CALLS[name]
    ours(np.empty(shape, np.uint8), *(() if choices is None else (choices[3],)))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(list(CALLS)), height=st.integers(1, 12), width=st.integers(1, 80))
def test_random_images_and_arguments(level, data, name, height, width):
    seed, spread = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.integers(1, 256))
    image = np.random.default_rng(seed).integers(256 - spread, 256, (height, width, 3), np.uint8)
    if CALLS[name][2] is None:
        arguments = ()
    else:
        arguments = (data.draw(ARGUMENTS.get(name, st.one_of(st.floats(-2, 4), st.floats(width=32)))),)
    check(name, image, *arguments)


def test_contrast_rounds_a_mean_of_a_half_up(level):
    image = np.repeat(np.array([[10, 11]], np.uint8)[..., None], 3, axis=2)
    _core.adjust_contrast(image, 0.0)
    assert (image == 11).all()


def test_grayscale_rounds_halves_up(level):
    red, green, blue = np.ogrid[:256, :256, :256:5]
    halves = np.argwhere((red * 19595 + green * 38470 + blue * 7471) % 65536 == 32768) * (1, 1, 5)
    assert len(halves) > 20
    check("grayscale", halves.astype(np.uint8)[None])


@pytest.mark.parametrize("pixels_below_white", [254, 255, 256, 400, 509, 510, 764])
def test_equalize_clips_levels_beyond_white(level, pixels_below_white):
    """Pillow's table steps by a 255th, rounded down: 509 pixels would reach level 509."""
    below = np.arange(pixels_below_white) % 255
    check("equalize", np.repeat(np.append(below, 255).astype(np.uint8)[None, :, None], 3, axis=2))


@pytest.mark.parametrize("factor", SHIFTS)
def test_hue_of_grays_and_random_colours(level, factor):
    gray = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    check("hue", gray, factor)
    check("hue", np.random.default_rng(3).integers(0, 256, (256, 1024, 3), np.uint8), factor)


@pytest.mark.thorough
@pytest.mark.parametrize("factor", SHIFTS)
def test_hue_of_all_colours(level, factor):
    values = np.arange(2**24, dtype=np.uint32)
    check("hue", values[:, None].view(np.uint8)[:, :3].reshape(4096, 4096, 3), factor)


def test_table_is_applied_to_each_channel(level):
    rng = np.random.default_rng(4)
    table = rng.integers(0, 256, (3, 256), np.uint8)
    for width in (1, 31, 32, 33, 300):
        image = rng.integers(0, 256, (7, width, 3), np.uint8)
        expected = np.asarray(Image.fromarray(image).point(table.ravel().tolist()))
        _core.apply_table(image, table)
        np.testing.assert_array_equal(image, expected)


@pytest.mark.parametrize(
    "image",
    [np.zeros((4, 4, 1), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 8, 3), np.uint8)[:, ::2]],
    ids=["gray", "rgba", "every other pixel"],
)
def test_images_that_are_not_rgb_rows_are_refused(image):
    with pytest.raises(ValueError, match="HWC with 3 channels"):
        _core.invert(image)


def test_a_read_only_image_is_refused():
    image = np.zeros((4, 4, 3), np.uint8)
    image.setflags(write=False)
    with pytest.raises(TypeError):
        _core.invert(image)


def test_arguments_out_of_range_are_refused():
    image = np.zeros((4, 4, 3), np.uint8)
    for bits in (0, 9):
        with pytest.raises(ValueError, match="bits must be from 1 to 8"):
            _core.posterize(image, bits)
    for shift in (-1, 256):
        with pytest.raises(TypeError):
            _core.adjust_hue(image, shift)
    with pytest.raises(TypeError):
        _core.apply_table(image, np.zeros((1, 256), np.uint8))
