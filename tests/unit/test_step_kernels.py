"""Test on the CPU the kernel that runs steps, beside the decode threads and Pillow."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from decode_on_cpu import KernelsOnCpu
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.v2 import functional

from fastload import _core
from fastload.device import decode
from fastload.pipeline.calibration import calibrate
from fastload.pipeline.step_calibration import REFERENCES

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
    """

    def __init__(self, pool: _core.Pool, chain: Chain, height: int, width: int, out: tuple[int, int]) -> None:
        index, plan, count = _core.JpegIndex(1 << 20, whole=True), plan_of(chain, height, width), len(FILES)
        options = {"plan": plan, "seeds": list(range(count)), "index": index, "pass_rule": RULE}
        self.want = torch.zeros(count, *out, 3, dtype=torch.uint8)
        self._all = torch.full((count + 2, *out, 3), GUARD, dtype=torch.uint8)  # one more image at each end
        self.pixels = self._all[1:-1]
        job = pool.submit(FILES, self.want, **options)
        job.wait()
        assert set(job.statuses()) == {0}
        self.memory = torch.zeros(1 << 20, dtype=torch.uint8)
        self.staging = _core.Staging(self.memory, count)
        pool.submit(FILES, self.pixels, staging=self.staging, **options).wait()
        self.is_staged = [flag != 0 for flag in self.staging.has()]

    def run(self, kernels: KernelsOnCpu) -> None:
        assert kernels.decode(self.staging, self.memory, self.pixels, len(FILES)) == []
        assert {int(level) for end in (self._all[0], self._all[-1]) for level in end.unique()} == {GUARD}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> KernelsOnCpu:
    return KernelsOnCpu(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module")
def run(kernels: KernelsOnCpu) -> Iterator[Run]:
    """Run a chain by the kernels, and compare with the threads."""
    pool = _core.Pool(1)

    def check(chain: Chain, size: tuple[int, int] = (17, 31), out: tuple[int, int] | None = None) -> torch.Tensor:
        staged = Staged(pool, chain, *size, out or size)
        assert all(staged.is_staged)
        staged.run(kernels)
        assert torch.equal(staged.pixels, staged.want)
        return staged.pixels

    yield check
    pool.close()


def sources(height: int, width: int) -> list[Image.Image]:
    return [functional.center_crop(Image.open(io.BytesIO(data)), [height, width]) for data in FILES]


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
    "gaussian_blur": [{"radii": radii} for radii in ((0, 0), (2.0, 0), (0, 0.3), (0.1, 1.9), (7.5, 40.0), (1e5, 3e3))],
    "pad": [{"margins": margins, "mode": mode, "fill": (9, 8, 7)} for mode, margins in MARGINS.items()],
}
# Without torch's bits for every size: the core computes what torch does for others.
OWN_BITS = {"torch_contrast"}


def test_kinds_are_all(run):
    """Those that only some transforms make, and a resize and a crop, are run below."""
    drawn = {"random_rotation", "random_affine_v1", "random_affine_v2"}
    assert KINDS.keys() - {"solarize_add"} == REFERENCES.keys() - drawn


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_bits_of_the_threads_and_pillow(run, kind):
    for fields, size in zip(KINDS[kind], itertools.cycle(SIZES), strict=False):
        top, left, bottom, right = fields.get("margins", (0, 0, 0, 0))
        if kind == "pad":
            size = SIZES[0]  # for which the margins are
        height, width = size[::-1] if kind in ("rotate_90", "rotate_270") else size
        got = run([(kind, fields)], size, (height + top + bottom, width + left + right))
        if kind in REFERENCES and kind not in OWN_BITS:
            for image, pixels in zip(sources(*size), got, strict=True):
                assert np.array_equal(np.asarray(REFERENCES[kind](image, **fields)), pixels)


@pytest.mark.parametrize("filter", ["nearest", "bilinear", "bicubic", "lanczos", "hamming", "torch_bilinear"])
def test_resizes_in_a_step(run, filter):
    for out in [(9, 50), (40, 7), (17, 31), (1, 1)]:
        how = {"height": out[0], "width": out[1], "filter": filter}
        got = run([("invert", {}), ("resize", how)], (17, 31), out)
        if filter in ("bilinear", "bicubic", "lanczos"):
            mode = Image.Resampling[filter.upper()]
            for image, pixels in zip(sources(17, 31), got, strict=True):
                wanted = functional.invert(image).resize(out[::-1], mode)
                assert np.array_equal(np.asarray(wanted), pixels)


def test_resizes_of_columns_first(kernels):
    """As Pillow 13 resizes what shrinks more in height."""
    pool = _core.Pool(1)
    chain = [("invert", {}), ("resize", {"height": 5, "width": 30})]
    index, plan = _core.JpegIndex(1 << 20, whole=True), plan_of(chain, 45, 31)
    results = []
    for rule in ("horizontal_first", "tall_vertical_first"):
        want, got = (torch.zeros(len(FILES), 5, 30, 3, dtype=torch.uint8) for _ in range(2))
        options = {"plan": plan, "seeds": [0] * len(FILES), "index": index, "pass_rule": rule}
        pool.submit(FILES, want, **options).wait()
        memory = torch.zeros(1 << 20, dtype=torch.uint8)
        staging = _core.Staging(memory, len(FILES))
        pool.submit(FILES, got, staging=staging, **options).wait()
        assert kernels.decode(staging, memory, got, len(FILES)) == []
        assert torch.equal(got, want)
        results.append(got)
    pool.close()
    assert not torch.equal(*results)


@pytest.mark.parametrize("taps", [(1, 1), (23, 23), (3, 61), (33, 5)])
def test_gaussian_filters(run, taps):
    height, width = taps
    for sigma in (0.1, 0.7, 2.0, 300.0):
        how = {"height": height, "width": width, "jitters": [(sigma, sigma), None, None, None]}
        run([("random_gaussian", how)], (17, 31))


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
    ("chain", "why"),
    [
        ([("affine", {"matrix": [1.0, 0.5, 4e4, 0.0, 1.0, 0.0], "sampling": "nearest"})], "its positions are sums"),
        ([("invert", {}), ("resize", {"height": 2000, "width": 2000})], "it is too large"),
    ],
)
def test_threads_make_what_the_kernel_does_not(chain, why):
    pool = _core.Pool(1)
    size = (2000, 2000) if "large" in why else (17, 31)
    staged = Staged(pool, chain, 17, 31, size)
    pool.close()
    assert not any(staged.is_staged), why
    assert torch.equal(staged.pixels, staged.want)


@pytest.mark.slow
def test_every_colour_shifts_its_hue_as_on_the_threads(tmp_path):
    """By the kernel's own function, for all colours."""
    levels = np.arange(1 << 24, dtype=np.uint32)
    got = KernelsOnCpu(tmp_path).hues(levels, 77)
    want = np.ascontiguousarray(levels.view(np.uint8).reshape(4096, 4096, 4)[..., :3])
    _core.adjust_hue(want, 77)
    assert np.array_equal(got.view(np.uint8).reshape(4096, 4096, 4)[..., :3], want)
