"""The core's transforms have Pillow's and torchvision's bits at every SIMD level."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import InterpolationMode, autoaugment
from torchvision.transforms import functional as F
from torchvision.transforms.v2.functional import _geometry as geometry_v2

from fastload import _core

SIZES = [(1, 1), (1, 13), (13, 1), (2, 2), (3, 4), (5, 6), (17, 31), (33, 500), (224, 224)]  # height, width
SAMPLINGS = {"nearest": 0, "bilinear": 2, "bicubic": 3}
FILL = (7, 130, 255)
NAN, INF = math.nan, math.inf
MATRICES = [
    (1, 0, 0, 0, 1, 0),
    (1, 0, 3, 0, 1, -2),
    (1, 0, 0.5, 0, 1, 0.25),
    (0.5, 0, 0, 0, 2, 0),
    (-1, 0, 17, 0, -1, 31),
    (0, 0, 3.7, 0, 0, 0.2),  # one pixel everywhere
    (0, 0, 0, 0, 0, 0),
    (0.3, 0, -1e-17, 0, 0.7, -0.0),
    (0.9, 0.1, 0, -0.1, 0.9, 1),
    (0.7071067811865476, 0.7071067811865475, -4.1, -0.7071067811865475, 0.7071067811865476, 9.3),
    (0, 1, 0, 1, 0, 0),
    (1, 1e-9, 0, 1e-9, 1, 0),
    (3, 0.5, -20, 1.5, 4, -9),
    (1, 1e-3, 0.5, 1e-3, 1, 0.5),
    (1, 0.5, 1e9, 0.5, 1, 0),  # beyond fixed point, all outside
    (400, 1, -3000, 1, 300, -2000),
    (1e4, 1, -5e4, 1, 1e4, -5e4),  # beyond fixed point, partly inside
    (1e300, 1e300, -1e300, 1, 1, 0),
    (33000, 33001, -32000.5, 32999, 33000, -32000.5),
    (60000, 0, -30000, 1, 1, 0),
    (NAN, 0, 0, 0, 1, 0),
    (1, 0.1, NAN, 0.1, 1, 0),
    (1, 0.1, 0, 0.1, 1, NAN),
    (NAN, NAN, NAN, NAN, NAN, NAN),
    (INF, 0, 0, 0, 1, 0),
    (1, 0, -INF, 0, 1, 0),
    (1, INF, 0, 0.1, 1, 0),
]
NUMBERS = st.one_of(
    st.floats(-3, 3),
    st.floats(-700, 700),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-12, 4e4, 1e19, NAN, INF, -INF]),
)


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Make noise with strided rows."""
    pixels = np.random.default_rng([seed, height, width]).integers(0, 256, (height, width + 2, 3), np.uint8)
    return pixels[:, 1 : width + 1]


def framed(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Make an output within a frame of known bytes; return the frame and the output."""
    frame = np.full((height + 2, width + 2, 3), 99, np.uint8)
    return frame, frame[1:-1, 1:-1]


def check(run, source: np.ndarray, expected: Image.Image | np.ndarray) -> None:
    expected = np.asarray(expected)
    frame, out = framed(*expected.shape[:2])
    run(source, out)
    np.testing.assert_array_equal(out, expected)
    out[:] = 99
    assert (frame == 99).all()


def check_transform(source: np.ndarray, numbers, sampling: str, size: tuple[int, int], fill=FILL) -> None:
    affine = len(numbers) == 6
    kind = Image.Transform.AFFINE if affine else Image.Transform.PERSPECTIVE
    expected = Image.fromarray(source).transform(size[::-1], kind, numbers, SAMPLINGS[sampling], fillcolor=fill)
    run = _core.transform_affine if affine else _core.transform_perspective
    check(lambda source, out: run(source, out, numbers, sampling, fill or (0, 0, 0)), source, expected)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("size", SIZES)
def test_affine_has_pillows_bits(level: str, size: tuple[int, int], sampling: str) -> None:
    source = photo(*size)
    for matrix in MATRICES:
        check_transform(source, matrix, sampling, size)
    check_transform(source, MATRICES[8], sampling, (29, 40), None)
    check_transform(source[::-1], MATRICES[8], sampling, size)  # rows from the last up


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_rows_may_be_far_apart(level: str, sampling: str) -> None:
    distance = 3 << 28  # offsets exceed 32 bits; the system backs only the pages in use
    memory = np.zeros(3 * distance + 300, np.uint8)
    source = np.lib.stride_tricks.as_strided(memory, (4, 100, 3), (distance, 3, 1))
    source[:] = photo(4, 100)
    check_transform(source, MATRICES[8], sampling, (4, 100))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("size", SIZES)
def test_perspective_has_pillows_bits(level: str, size: tuple[int, int], sampling: str) -> None:
    source = photo(*size)
    for matrix in MATRICES:
        for ends in [(0, 0), (0.001, -0.002), (-0.1, 0.1), (NAN, 0), (-1 / (size[1] - 0.5), 0), (INF, 1)]:
            check_transform(source, (*matrix, *ends), sampling, size if size[0] < 100 else (60, 70))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sides=st.tuples(*[st.integers(1, 40)] * 4),
    numbers=st.one_of(st.tuples(*[NUMBERS] * 6), st.tuples(*[NUMBERS] * 6, *[st.floats(-0.3, 0.3)] * 2)),
    sampling=st.sampled_from(list(SAMPLINGS)),
)
def test_random_transforms_have_pillows_bits(level: str, sides, numbers, sampling: str) -> None:
    check_transform(photo(*sides[:2]), numbers, sampling, sides[2:])


@pytest.mark.parametrize("interpolation", SAMPLINGS)
@pytest.mark.parametrize(
    "policy", [autoaugment.RandAugment(), autoaugment.TrivialAugmentWide(), autoaugment.AutoAugment()]
)
def test_magnitudes_of_automatic_augmentation_have_torchvisions_bits(level: str, policy, interpolation: str) -> None:
    mode = InterpolationMode(interpolation)
    source = photo(61, 47)
    image = Image.fromarray(source)
    bins = 31 if not isinstance(policy, autoaugment.AutoAugment) else 10
    space = (
        policy._augmentation_space(bins)
        if isinstance(policy, autoaugment.TrivialAugmentWide)
        else policy._augmentation_space(bins, (61, 47))
    )
    for name in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"):
        for magnitude in [float(m) * sign for m in space[name][0] for sign in (1, -1)]:
            expected = autoaugment._apply_op(image, name, magnitude, mode, [1, 2, 3])
            center, shear, translate = [0.0, 0.0], [0.0, 0.0], [0, 0]
            if name == "Rotate":
                matrix = _core.rotation_matrix(magnitude, (47 / 2, 61 / 2))
            else:
                if name.startswith("Shear"):
                    shear[name == "ShearY"] = math.degrees(math.atan(magnitude))
                    center = [0.0, 0.0]
                else:
                    center = [47 * 0.5, 61 * 0.5]
                    translate[name == "TranslateY"] = int(magnitude)
                matrix = _core.inverse_affine_matrix(center, 0.0, translate, 1.0, shear)
                assert list(matrix) == F._get_inverse_affine_matrix(center, 0.0, translate, 1.0, shear)
            run = lambda source, out, matrix=matrix: _core.transform_affine(  # noqa: E731
                source, out, matrix, interpolation, (1, 2, 3)
            )
            check(run, source, expected)


class _Recorder(Image.Image):
    """An image that records the matrix with which it is transformed."""

    def transform(self, size, method, data=None, *args, **kwargs):
        self.matrix = list(data)
        return self


def bits(numbers) -> list[str]:
    return [float(number).hex() for number in numbers]


@pytest.mark.slow
@settings(max_examples=400)
@given(
    angle=st.one_of(st.floats(-1000, 1000), st.floats(-1e-12, 1e-12), st.integers(-24, 24).map(lambda n: n * 30.0)),
    center=st.one_of(
        st.none(), st.tuples(*[st.floats(-1e4, 1e4)] * 2).filter(any), st.tuples(*[st.integers(-99, 99)] * 2)
    ),
    sides=st.tuples(*[st.integers(1, 5000)] * 2).filter(lambda sides: sides[0] != sides[1]),
)
def test_rotation_matrix_is_pillows(angle: float, center, sides: tuple[int, int]) -> None:
    recorder = _Recorder()
    recorder._size = sides
    recorder.copy = lambda: None
    recorder.matrix = None
    recorder.load = lambda: None
    if center is None and angle % 180 == 0:
        return  # copied or transposed
    recorder.rotate(angle, center=center)
    matrix = _core.rotation_matrix(angle, center or (sides[0] / 2, sides[1] / 2))
    assert bits(matrix) == bits(recorder.matrix)


@settings(max_examples=400)
@given(
    center=st.tuples(*[st.floats(-1e4, 1e4)] * 2),
    angle=st.floats(-720, 720),
    translate=st.tuples(*[st.integers(-500, 500)] * 2),
    scale=st.floats(-5, 5).filter(lambda scale: scale != 0),
    shear=st.tuples(*[st.floats(-200, 200)] * 2),
    v2=st.booleans(),
)
def test_inverse_affine_matrix_is_torchvisions(center, angle, translate, scale, shear, v2: bool) -> None:
    module = geometry_v2 if v2 else F
    expected = module._get_inverse_affine_matrix(list(center), angle, list(translate), scale, list(shear))
    assert bits(_core.inverse_affine_matrix(center, angle, translate, scale, shear, v2)) == bits(expected)


@pytest.mark.parametrize("size", [*SIZES, (4, 4), (8, 8), (20, 6), (19, 7)])
def test_transposes_have_pillows_bits(level: str, size: tuple[int, int]) -> None:
    for source in (photo(*size), photo(*size)[::-1]):
        for how in ("flip_horizontal", "flip_vertical", "rotate_90", "rotate_180", "rotate_270"):
            kind = {"flip_horizontal": "flip_left_right", "flip_vertical": "flip_top_bottom"}.get(how, how)
            expected = Image.fromarray(source).transpose(Image.Transpose[kind.upper()])
            check(lambda source, out, how=how: _core.transpose(source, out, how), source, expected)


@settings(max_examples=200, deadline=None)
@given(
    sides=st.tuples(*[st.integers(1, 30)] * 2),
    margins=st.tuples(*[st.integers(0, 30)] * 4),  # left, top, right, bottom
    mode=st.sampled_from(["constant", "edge", "reflect", "symmetric"]),
)
def test_pad_has_torchvisions_bits(sides, margins, mode: str) -> None:
    source = photo(*sides)
    most = {"reflect": -1, "symmetric": 0}
    if mode in most:
        margins = [min(margin, sides[1 - i % 2] + most[mode]) for i, margin in enumerate(margins)]
    expected = F.pad(Image.fromarray(source), list(margins), list(FILL), mode)
    check(lambda source, out: _core.pad(source, out, margins[0], margins[1], mode, FILL), source, expected)


def test_misuse_is_refused() -> None:
    source, out = photo(4, 5), np.empty((4, 5, 3), np.uint8)
    identity = MATRICES[0]
    refusals = [
        ("no such sampling: lanczos", lambda: _core.transform_affine(source, out, identity, "lanczos", FILL)),
        ("no such transpose: transverse", lambda: _core.transpose(source, out, "transverse")),
        ("no such mode of padding: wrap", lambda: _core.pad(source, out, 0, 0, "wrap", FILL)),
        ("out must have the source's sides", lambda: _core.transpose(source, out, "rotate_90")),
        ("out must have the source's sides", lambda: _core.transpose(source, out[:3], "flip_vertical")),
        ("margins must be at least 0", lambda: _core.pad(source, out, 1, 0, "edge", FILL)),
        ("margins must be at least 0", lambda: _core.pad(source, out, 0, -1, "edge", FILL)),
        ("margins are too large", lambda: _core.pad(source, np.empty((4, 10, 3), np.uint8), 0, 0, "reflect", FILL)),
        ("margins are too large", lambda: _core.pad(source, np.empty((9, 5, 3), np.uint8), 0, 0, "symmetric", FILL)),
        ("must not overlap", lambda: _core.transform_affine(out, out, identity, "nearest", FILL)),
        ("must not overlap", lambda: _core.transform_affine(out[::-1], out[3:], identity, "nearest", FILL)),
        ("source must be HWC", lambda: _core.transform_affine(source[:, ::2], out, identity, "nearest", FILL)),
        ("out must be HWC", lambda: _core.transform_affine(source, out[..., ::-1], identity, "nearest", FILL)),
        ("out must be HWC", lambda: _core.transform_perspective(source, out[..., :1], (0,) * 8, "nearest", FILL)),
        ("source's sides must be", lambda: _core.transform_affine(source[:0], out, identity, "nearest", FILL)),
        ("scale must not be 0", lambda: _core.inverse_affine_matrix((0, 0), 0, (0, 0), 0, (0, 0))),
        ("must be finite", lambda: _core.inverse_affine_matrix((0, 0), 0, (0, NAN), 1, (0, 0))),
        ("must be finite", lambda: _core.rotation_matrix(INF, (0, 0))),
    ]
    for message, call in refusals:
        with pytest.raises(ValueError, match=re.escape(message)):
            call()
    with pytest.raises(TypeError):
        _core.transform_affine(source.astype(np.float32), out, identity, "nearest", FILL)
