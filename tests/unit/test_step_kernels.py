"""Test on the CPU the kernel that runs steps, beside the decode threads and Pillow."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from decode_on_cpu import KernelsOnCpu, kernels_fixture
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.v2 import functional
from torchvision.transforms.v2.functional import _misc

from fastload import _core
from fastload.device.decode import files as decode
from fastload.pipeline.installed.decodes import calibrate
from fastload.pipeline.installed.steps import REFERENCES

Chain = list[tuple[str, dict[str, Any]]]
Run = Callable[..., torch.Tensor]
HEIGHT, WIDTH = 100, 130
GUARD = 7
RULE = calibrate().pass_rule or "horizontal_first"


def _files() -> list[bytes]:
    """Noise, few levels, one colour, one bright pixel, white: JPEG files of one size."""
    rng = np.random.default_rng(1)
    shape = (HEIGHT, WIDTH, 3)
    spot = np.zeros(shape, np.uint8)
    spot[HEIGHT // 2, WIDTH // 2] = 255, 1, 254
    images = [rng.integers(0, 256, shape), rng.integers(90, 96, shape), np.full(shape, (0, 77, 255)), spot]
    found = []
    for image in [*images, np.full(shape, 255)]:
        data = io.BytesIO()
        Image.fromarray(image.astype(np.uint8)).save(data, "JPEG", quality=100, subsampling=0)
        found.append(data.getvalue())
    return found


FILES = _files()


def plan_of(chain: Chain, height: int, width: int) -> _core.DrawPlan:
    plan = _core.DrawPlan()
    for kind, fields in [("center_crop", {"height": height, "width": width}), *chain]:
        plan.add(kind, **fields)
    return plan


class Staged:
    """A batch of all files, decoded by the threads, and staged on the second visit.

    Args:
        pool: Its threads do both.
        chain: The steps on the middle ``height x width`` pixels.
        height: Of what the steps begin with.
        width: The same.
        out: Height and width of the result.
        count: Of files.
        pass_rule: Of resizes.
    """

    def __init__(
        self,
        pool: _core.Pool,
        chain: Chain,
        height: int,
        width: int,
        out: tuple[int, int],
        *,
        count: int = len(FILES),
        pass_rule: str = RULE,
    ) -> None:
        index, plan = _core.JpegIndex(1 << 20, whole=True), plan_of(chain, height, width)
        options = {"plan": plan, "seeds": list(range(count)), "index": index, "pass_rule": pass_rule}
        self.want = torch.zeros(count, *out, 3, dtype=torch.uint8)
        self._all = torch.full((count + 2, *out, 3), GUARD, dtype=torch.uint8)  # one more image at each end
        self.pixels = self._all[1:-1]
        job = pool.submit(FILES[:count], self.want, **options)
        job.wait()
        self.memory = torch.zeros(1 << 20, dtype=torch.uint8)
        self.staging = _core.Staging(self.memory, count)
        again = pool.submit(FILES[:count], self.pixels, staging=self.staging, **options)
        again.wait()
        self.statuses = [*job.statuses(), *again.statuses()]
        self.is_staged = [flag != 0 for flag in self.staging.has()]

    def run(self, kernels: KernelsOnCpu) -> None:
        assert kernels.decode(self.staging, self.memory, self.pixels, len(FILES)) == []
        assert {int(level) for end in (self._all[0], self._all[-1]) for level in end.unique()} == {GUARD}


kernels = kernels_fixture


@pytest.fixture(scope="module")
def run(kernels: KernelsOnCpu) -> Iterator[Run]:
    """Run a chain by the kernels, and compare with the threads."""
    pool = _core.Pool(1)

    def check(chain: Chain, size: tuple[int, int] = (17, 31), out: tuple[int, int] | None = None) -> torch.Tensor:
        staged = Staged(pool, chain, *size, out or size)
        assert all(staged.is_staged)
        assert set(staged.statuses) == {0}
        staged.run(kernels)
        assert torch.equal(staged.pixels, staged.want)
        return staged.pixels

    yield check
    pool.close()


@pytest.fixture
def pool() -> Iterator[_core.Pool]:
    pool = _core.Pool(1)
    yield pool
    pool.close()


def resize(height: int, width: int, filter: str = "lanczos") -> tuple[str, dict[str, Any]]:
    return "resize", {"height": height, "width": width, "filter": filter}


def gaussian(height: int, width: int, sigma: float = 2.0) -> tuple[str, dict[str, Any]]:
    return "random_gaussian", {"height": height, "width": width, "jitters": [(sigma, sigma), None, None, None]}


def convolution(weights: np.ndarray[Any, Any]) -> dict[str, Any]:
    height, width = weights.shape
    return {"height": height, "width": width, "weights": weights.astype(np.float32).tobytes()}


def sources(height: int, width: int) -> list[Image.Image]:
    return [functional.center_crop(Image.open(io.BytesIO(data)), [height, width]) for data in FILES]


FAR = {"matrix": [1.0, 0.5, 4e4, 0.0, 1.0, 0.0], "sampling": "nearest"}
INVERT: tuple[str, dict[str, Any]] = ("invert", {})
SIZES = [(17, 31), (1, 70), (2, 2)]
NONE: list[dict[str, Any]] = [{}] * len(SIZES)
FACTORS = [{"value": value} for value in (0.0, 1.0, 0.5, 0.3, 1.9, 10.0, -1.5, 1e-9, 1 + 1e-10, 1e9, float("nan"))]
TORCH_FACTORS = [fields for fields in FACTORS if fields["value"] >= 0]
TURN = [0.8, 0.6, -3.0, -0.6, 0.8, 9.5]
MATRICES = [
    TURN,
    [1.0, 0.3, -2.5, 0.0, 1.0, 0.0],
    [1.0, 0.0, 5.25, 0.0, 1.0, -3.5],
    [1.0, 0.0, 1e300, 0.0, 1.0, float("nan")],
    [-0.7, 0.0, 30.0, 0.0, 1.3, -2.0],
    [1e-9, 3.0, 2.0, 90.0, -70.0, 5.0],
]
MAPS = [[1.1, 0.2, -3.0, -0.1, 0.9, 2.0, 0.003, -0.002], [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, -0.06, 0.0], [float("nan")] * 8]
HOW = [{"sampling": sampling, "fill": (1, 200, 3)} for sampling in ("nearest", "bilinear", "bicubic")]
BIG = [{"matrix": [float("inf"), 1.0, 0.0, 1e9, float("nan"), 0.0], **how} for how in HOW[1:]]
MARGINS = {"constant": (3, 0, 40, 9), "edge": (3, 0, 40, 9), "reflect": (16, 30, 5, 1), "symmetric": (17, 31, 0, 2)}
WEIGHTS = [
    np.random.default_rng(rows).normal(0, 3 / rows, (rows, columns))
    for rows, columns in ((1, 1), (3, 5), (5, 7), (23, 23), (33, 61), (1, 61), (33, 1))
]
# Sums of areas of one colour are what rounding leaves of large products, which is levels, and others in another order.
_large = np.random.default_rng(7).normal(0, 1e6, (7, 9))
WEIGHTS.append(_large - _large.mean() + 1e-2)
RADII = [(0, 0), (2.0, 0), (0, 0.3), (0.1, 1.9), (7.5, 40.0), (60.0, 3.0), (1e5, 3e3)]
KINDS: dict[str, list[dict[str, Any]]] = {
    "brightness": FACTORS,
    "contrast": FACTORS,
    "saturation": FACTORS,
    "sharpness": FACTORS,
    "grayscale": NONE,
    "invert": NONE,
    "posterize": [{"value": bits} for bits in (1.0, 3.0, 8.0)],
    "solarize": [{"value": value} for value in (0.0, 1.0, 128.0, 255.0, 256.0)],
    "solarize_add": [{"value": value} for value in (0.0, 1.0, 110.0, 255.0)],
    "autocontrast": NONE,
    "equalize": NONE,
    "hue": [{"value": shift} for shift in (0.0, 1.0, 77.0, 127.0, 129.0, 255.0)],
    "torch_brightness": TORCH_FACTORS,
    "torch_contrast": TORCH_FACTORS,
    "torch_saturation": TORCH_FACTORS,
    "torch_grayscale": NONE,
    "torch_invert": NONE,
    "torch_posterize": [{"value": 2.0}],
    "torch_solarize": [{"value": 99.0}],
    "torch_autocontrast": NONE,
    "torch_equalize": NONE,
    "flip_horizontal": NONE,
    "flip_vertical": NONE,
    "rotate_90": NONE,
    "rotate_180": NONE,
    "rotate_270": NONE,
    "affine": [*({"matrix": matrix, **how} for matrix in MATRICES for how in HOW), *BIG],
    "perspective": [{"coefficients": numbers, **how} for numbers in MAPS for how in HOW],
    "gaussian_blur": [{"radii": radii} for radii in RADII],
    "convolve": [convolution(weights) for weights in (*WEIGHTS, *(np.array([[one]]) for one in (0.5, 1e36, 1e-40)))],
    "pad": [{"margins": margins, "mode": mode, "fill": (9, 8, 7)} for mode, margins in MARGINS.items()],
}
KERNELLESS = {
    "torch_hue": {"value": 0.1},
    "torch_sharpness": {"value": 0.73},
    "torch_permute": {"order": (2, 0, 1)},
    "torch_gather": {"places": _core.PixelPlaces(np.zeros((17, 31), np.int32))},
}
# Without torch's bits for every size: the core computes what torch does for others.
OWN_BITS = {"torch_contrast"}


def test_kinds_are_all(run):
    """Those that only some transforms make, a resize and a crop are run below."""
    drawn = {"random_rotation", "random_affine_v1", "random_affine_v2"}
    assert KINDS.keys() - {"solarize_add"} == REFERENCES.keys() - drawn - {"crop", *KERNELLESS}


@pytest.mark.parametrize(
    "steps",
    [
        *([(kind, fields)] for kind, fields in KERNELLESS.items()),
        [("torch_contrast", {"value": 0.5, "twice": 6})],
    ],
    ids=lambda steps: steps[0][0],
)
def test_what_no_kernel_does_is_left_to_the_threads(pool, steps):
    assert not any(Staged(pool, [INVERT, *steps], 17, 31, (17, 31)).is_staged)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_bits_of_the_threads_and_pillow(run, kind):
    for fields, size in zip(KINDS[kind], itertools.cycle(SIZES), strict=False):
        top, left, bottom, right = fields.get("margins", (0, 0, 0, 0))
        if kind in ("pad", "convolve"):
            size = SIZES[0]  # for which the margins and weights are
        height, width = size[::-1] if kind in ("rotate_90", "rotate_270") else size
        got = run([(kind, fields)], size, (height + top + bottom, width + left + right))
        if kind in REFERENCES and kind not in OWN_BITS:
            for image, pixels in zip(sources(*size), got, strict=True):
                assert np.array_equal(np.asarray(REFERENCES[kind](image, **fields)), pixels)


@pytest.mark.parametrize("filter", ["nearest", "bilinear", "bicubic", "lanczos", "hamming", "torch_bilinear"])
def test_resizes_in_a_step(run, filter):
    for out in [(9, 50), (40, 7), (17, 31), (1, 1)]:
        got = run([INVERT, resize(*out, filter)], (17, 31), out)
        if filter in ("bilinear", "bicubic", "lanczos"):
            mode = Image.Resampling[filter.upper()]
            for image, pixels in zip(sources(17, 31), got, strict=True):
                wanted = functional.invert(image).resize(out[::-1], mode)
                assert np.array_equal(np.asarray(wanted), pixels)


def test_resizes_of_columns_first(kernels, pool):
    """As Pillow 13 resizes what shrinks more in height."""
    results = []
    for rule in ("horizontal_first", "tall_vertical_first"):
        staged = Staged(pool, [INVERT, resize(5, 30)], 45, 31, (5, 30), pass_rule=rule)
        staged.run(kernels)
        assert torch.equal(staged.pixels, staged.want)
        results.append(staged.pixels)
    assert not torch.equal(*results)


@pytest.mark.parametrize("taps", [(1, 1), (23, 23), (3, 61), (33, 5)])
def test_gaussian_filters(run, taps):
    for sigma in (0.1, 0.7, 2.0, 300.0):
        run([gaussian(*taps, sigma)], (17, 31))


@pytest.mark.parametrize("taps", [(3, 3), (9, 9), (23, 23), (5, 61)])
def test_convolutions_are_torchvisions_blur(run, taps):
    """With the kernels that it computes, between other steps."""
    height, width = taps
    for sigma in (0.1, 0.7, 2.0):
        how = [width, height], [sigma, 1.3 * sigma]
        kernel = _misc._get_gaussian_kernel2d(*how, dtype=torch.float32, device=torch.device("cpu"))
        step = "convolve", convolution(kernel.numpy())
        got = run([INVERT, ("flip_vertical", {}), step, ("rotate_180", {})], (30, 31))
        for image, pixels in zip(sources(30, 31), got, strict=True):
            turned = functional.vertical_flip(functional.invert(image))
            wanted = functional.gaussian_blur(turned, *how).transpose(Image.Transpose.ROTATE_180)
            assert np.array_equal(np.asarray(wanted), pixels)


def test_crops_in_a_step(run):
    crop = {"height": 8, "width": 13}
    for chain in ([("random_crop_v1", crop)], [("random_crop_v1", crop), ("flip_vertical", {})]):
        run([("grayscale", {}), *chain], (17, 31), (8, 13))


COLOURS = ["brightness", "contrast", "saturation", "hue", "equalize", "autocontrast", "solarize", "grayscale"]


@st.composite
def chains(draw: Any) -> tuple[Chain, tuple[int, int], tuple[int, int]]:
    """Up to six steps, the size that they begin with, and that of their result."""
    first = height, width = draw(st.integers(1, HEIGHT)), draw(st.integers(1, WIDTH))
    chain: Chain = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from([*COLOURS, *KINDS, "resize", "random_crop_v1"]))
        fields: dict[str, Any] = {}
        if kind == "pad":
            margins = [draw(st.integers(0, 6)) for _ in range(4)]
            mode = draw(st.sampled_from(["constant", "edge"] if min(height, width) < 8 else list(MARGINS)))
            fields = {"margins": margins, "mode": mode, "fill": (3, 4, 5)}
            height, width = height + margins[0] + margins[2], width + margins[1] + margins[3]
        elif kind in ("resize", "random_crop_v1"):
            height = draw(st.integers(1, height if kind == "random_crop_v1" else 50))
            width = draw(st.integers(1, width if kind == "random_crop_v1" else 50))
            fields = {"height": height, "width": width}
        elif kind == "convolve":
            shape = [2 * draw(st.integers(0, min(side - 1, 6))) + 1 for side in (height, width)]
            fields = convolution(np.random.default_rng(draw(st.integers(0, 99))).normal(0.1, 0.1, shape))
        else:
            fields = draw(st.sampled_from(KINDS[kind]))
            if kind in ("rotate_90", "rotate_270"):
                height, width = width, height
        chain.append((kind, fields))
    return chain, first, (height, width)


@settings(max_examples=examples(150))
@given(case=chains())
def test_random_chains(run, case):
    run(*case)


def test_parts_of_a_batch(run, monkeypatch):
    monkeypatch.setattr(decode, "SCRATCH_MAX_BYTES", 1)
    run([("rotate_180", {}), ("equalize", {}), ("flip_vertical", {})])


@pytest.mark.parametrize(
    ("chain", "out"),
    [
        ([("affine", FAR)], (17, 31)),
        ([resize(1600, 1400), INVERT], (1600, 1400)),
        ([INVERT, resize(1600, 1400)], (1600, 1400)),
        ([resize(1400, 1400), INVERT, resize(10, 1600)], (10, 1600)),  # by way of 1400 x 1600
        ([INVERT, ("pad", {"margins": (1600, 1400, 0, 0)})], (1617, 1431)),
        ([resize(1100, 1000), gaussian(3, 3)], (1100, 1000)),  # by way of twice as much
        ([resize(400, 400), ("convolve", convolution(np.full((29, 29), 1e-3)))], (400, 400)),
        ([resize(40, 5600, "bilinear"), INVERT, resize(40, 10)], (40, 10)),
        ([resize(5600, 40, "bilinear"), INVERT, resize(10, 40)], (10, 40)),
    ],
    ids=[
        "far away",
        "large",
        "enlarged",
        "enlarged between",
        "large margins",
        "large filter",
        "many products",
        "wide",
        "high",
    ],
)
def test_threads_run_what_the_kernel_does_not(pool, chain, out):
    staged = Staged(pool, chain, 17, 31, out, count=1, pass_rule="horizontal_first")
    assert staged.is_staged == [False]
    assert staged.statuses == [0, 0]
    assert torch.equal(staged.pixels, staged.want)


@pytest.mark.parametrize(
    ("chain", "out"),
    [
        ([INVERT, resize(16, 31)], (17, 31)),
        ([INVERT, resize(17, 30)], (17, 31)),
        ([INVERT, ("pad", {"margins": (17, 0, 0, 0), "mode": "reflect"})], (34, 31)),
        ([gaussian(35, 1)], (17, 31)),
        ([gaussian(1, 63)], (17, 31)),
        ([("convolve", convolution(np.ones((35, 1))))], (17, 31)),
        ([("convolve", convolution(np.ones((1, 63))))], (17, 31)),
    ],
    ids=[
        "another height",
        "another width",
        "margins beyond the mirror",
        "a filter beyond the mirror",
        "the same in a step",
        "weights beyond the mirror",
        "the same along a row",
    ],
)
def test_what_does_not_fit_is_an_error_as_on_the_threads(pool, chain, out):
    staged = Staged(pool, chain, 17, 31, out, count=1)
    assert staged.is_staged == [False]
    assert {_core.status_names()[status] for status in staged.statuses} == {"bad_geometry"}


def test_parts_of_a_batch_are_bounded(pool):
    """With room for the steps' images, which take more than the rest."""
    chain = [resize(200, 200), ("rotate_90", {}), ("equalize", {}), ("rotate_90", {})]
    most, images = 800_000, len(FILES)
    parts = Staged(pool, chain, 17, 31, (200, 200)).staging.finish(most)
    assert sum(part[1] for part in parts) == images > len(parts) > 1
    assert all(part[4] + part[5] <= most for part in parts)


def test_a_second_image_has_room_only_where_it_is_needed(pool):
    """Otherwise images share memory, which shows only where they run at once."""

    def used(*chain: tuple[str, dict[str, Any]]) -> int:
        (part,) = Staged(pool, list(chain), 16, 32, (16, 32), count=1).staging.finish(1 << 30)
        return part[5] - before

    turn, image, before = ("rotate_180", {}), 16 * 32 * 4, 0
    before = used()
    assert used(INVERT) == used(turn) == used(INVERT, turn) == image
    assert (
        used(turn, INVERT) == used(("gaussian_blur", {"radii": (1, 1)})) == used(INVERT, resize(5, 5), resize(16, 32))
    )
    assert used(turn, INVERT) == 2 * image
    weights = "convolve", convolution(np.ones((3, 3)))
    assert used(weights) == image
    assert used(weights, INVERT) == 2 * image
    assert used(gaussian(3, 3)) == 4 * image  # whose pixels take twice as much


@pytest.mark.thorough
def test_every_colour_shifts_its_hue_as_on_the_threads(kernels):
    """By the kernel's own function, for all colours."""
    levels = np.arange(1 << 24, dtype=np.uint32)
    got = kernels.hues(levels, 77)
    want = np.ascontiguousarray(levels.view(np.uint8).reshape(4096, 4096, 4)[..., :3])
    _core.adjust_hue(want, 77)
    assert np.array_equal(got.view(np.uint8).reshape(4096, 4096, 4)[..., :3], want)
