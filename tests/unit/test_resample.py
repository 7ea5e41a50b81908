"""The core's resize against the installed Pillow, at every SIMD level, to the last bit."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import native_shim
import numpy as np
import PIL
import pytest
from cases import check_each
from native_shim import FILTERS, SIMD_LEVELS, Resize
from PIL import Image

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the shim is compiled with g++")

PILLOW = tuple(int(part) for part in PIL.__version__.split(".")[:2])
RULES = {"horizontal_first": 0, "tall_vertical_first": 1, "sliver_vertical_first": 2}
PILLOWS_RULE = {(12, 2): "sliver_vertical_first", (12, 3): "sliver_vertical_first"}.get(
    PILLOW, "tall_vertical_first" if PILLOW >= (13, 0) else "horizontal_first"
)
FILTER_NAMES = list(FILTERS)
SIZES = [  # source (width, height), target: up, down, far down, one axis only, single rows and columns, not at all
    ((37, 29), (64, 50)),
    ((355, 292), (224, 224)),
    ((120, 300), (100, 60)),
    ((300, 70), (11, 64)),
    ((517, 391), (23, 19)),
    ((700, 5), (3, 40)),
    ((4, 900), (9, 2)),
    ((64, 48), (64, 31)),
    ((64, 48), (31, 48)),
    ((1, 1), (5, 7)),
    ((1, 60), (1, 9)),
    ((33, 1), (224, 1)),
    ((40, 30), (40, 30)),
    ((6, 5), (8, 8)),
]


def test_simd_levels_include_portable() -> None:
    assert native_shim.simd_levels()[0] == "portable"


def test_a_library_is_compiled_again_when_a_source_a_header_or_a_flag_is_another(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(native_shim, "ROOT", tmp_path)
    monkeypatch.setattr(native_shim, "CSRC", tmp_path)
    source, header = tmp_path / "source.cpp", tmp_path / "number.h"
    source.write_text('#include "number.h"\nint number() { return NUMBER; }')
    header.write_text("#define NUMBER 1")
    first = native_shim.compiled([source])
    made = Path(first).stat().st_mtime_ns
    assert native_shim.compiled([source]) == first
    assert Path(first).stat().st_mtime_ns == made
    assert native_shim.compiled([source], "-O1") != first
    header.write_text("#define NUMBER 2")
    second = native_shim.compiled([source])
    source.write_text("int number() { return 3; }")
    assert len({first, second, native_shim.compiled([source])}) == 3


@pytest.fixture(params=["portable", "avx2", "avx512"] if platform.machine() == "x86_64" else ["portable", "neon"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    lib = native_shim.library()
    best = lib.shim_simd()
    if not lib.shim_set_simd(SIMD_LEVELS[request.param]):
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    lib.shim_set_simd(best)


def pixels_of(size: tuple[int, int], channels: int = 3, *, extreme: bool = False, seed: int = 0) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], channels), np.uint8)
    return np.where(pixels < 128, 0, 255).astype(np.uint8) if extreme else pixels


def pillow(pixels: np.ndarray, out_size: tuple[int, int], resample: str, box: tuple | None = None) -> np.ndarray:
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    return np.asarray(image.resize(out_size, FILTERS[resample][1], box=box)).reshape(*out_size[::-1], pixels.shape[2])


def vertical_first(size: tuple[int, int], out_size: tuple[int, int], rule: str = PILLOWS_RULE) -> bool:
    return bool(native_shim.library().shim_pass_order(RULES[rule], *size, *out_size))


def resize(pixels: np.ndarray, out_size: tuple[int, int], resample: str, **options: object) -> np.ndarray:
    call = {name: options.pop(name) for name in ("margin", "stream") if name in options}
    size = (pixels.shape[1], pixels.shape[0])
    options.setdefault("vertical_first", vertical_first(size, out_size))
    return Resize(size, out_size, resample=resample, channels=pixels.shape[2], **options)(pixels, **call)


@pytest.mark.matrix
def test_resize_equals_pillow(level: str) -> None:
    def check(sizes: tuple[tuple[int, int], tuple[int, int]], resample: str, channels: int, extreme: bool) -> None:
        size, out_size = sizes
        pixels = pixels_of(size, channels, extreme=extreme)
        assert np.array_equal(resize(pixels, out_size, resample), pillow(pixels, out_size, resample))

    check_each(check, SIZES, FILTER_NAMES, (3, 1), (False, True))


def test_every_number_of_taps(level: str) -> None:
    def check(resample: str, scale: float, out: int) -> None:
        pixels = pixels_of((max(1, round(out * scale)), max(1, round(21 * scale))))
        assert np.array_equal(resize(pixels, (out, 21), resample), pillow(pixels, (out, 21), resample))

    scales = (1.02, 1.49, 1.98, 2.7, 3.3, 4.2, 7.5, 17.0, 40.0)
    check_each(check, ("bilinear", "lanczos"), scales, (1, 15, 16, 17, 23, 24, 33))


def test_weights_to_the_last_unit() -> None:
    # A weight wrong by one unit of 2^-22 changes about one value in 10,000 that it takes part in: it takes many values.
    def check(resample: str, sizes: tuple[tuple[int, int], tuple[int, int]], turn: int) -> None:
        size, out_size = sizes
        pixels = pixels_of(size, seed=10 * turn + size[0])
        assert np.array_equal(resize(pixels, out_size, resample), pillow(pixels, out_size, resample))

    sizes = (((600, 500), (331, 352)), ((351, 420), (520, 360)), ((640, 480), (224, 299)))
    check_each(check, FILTER_NAMES, sizes, range(3))


def test_every_row_length_writes_its_row_and_no_more(level: str) -> None:
    pixels = pixels_of((53, 9))

    def check(out_width: int) -> None:
        assert np.array_equal(resize(pixels, (out_width, 7), "bicubic"), pillow(pixels, (out_width, 7), "bicubic"))

    check_each(check, range(1, 45))


def test_box(level: str) -> None:
    pixels = pixels_of((80, 60))

    def check(box: tuple[float, float, float, float], resample: str) -> None:
        assert np.array_equal(resize(pixels, (64, 48), resample, box=box), pillow(pixels, (64, 48), resample, box))

    boxes = ((0.25, 3.5, 70.75, 41.0), (10, 5, 74, 53), (3, 0, 67, 60), (79.5, 59.5, 80, 60))
    check_each(check, boxes, FILTER_NAMES)


def test_window_and_flips(level: str) -> None:
    pixels = pixels_of((110, 85))
    top, left, height, width = 13, 7, 41, 50

    def check(out_size: tuple[int, int], flip_horizontal: bool, flip_vertical: bool, resample: str) -> None:
        expected = pillow(pixels, out_size, resample)[top : top + height, left : left + width]
        expected = expected[:: -1 if flip_vertical else 1, :: -1 if flip_horizontal else 1]
        window = (top, left, height, width)
        options = {"window": window, "flip_horizontal": flip_horizontal, "flip_vertical": flip_vertical}
        assert np.array_equal(resize(pixels, out_size, resample, **options), expected)
        assert np.array_equal(resize(pixels, out_size, resample, stream=5, **options), expected)

    check_each(check, ((90, 70), (130, 60), (60, 100), (110, 85)), (False, True), (False, True), FILTER_NAMES)


def test_crop_alone_is_a_copy(level: str) -> None:
    def check(width: int, channels: int, flip: bool) -> None:
        pixels = pixels_of((60, 20), channels)
        got = resize(pixels, (60, 20), "bilinear", window=(3, 4, 9, width), flip_horizontal=flip)
        assert np.array_equal(got, pixels[3:12, 4 : 4 + width][:, :: -1 if flip else 1])

    check_each(check, (1, 2, 5, 6, 11, 16, 17, 47), (3, 1), (False, True))


def test_streamed_equals_whole(level: str) -> None:
    def check(sizes: tuple[tuple[int, int], tuple[int, int]], resample: str, chunk: int, order: bool) -> None:
        size, out_size = sizes
        pixels = pixels_of(size)
        whole = resize(pixels, out_size, resample, vertical_first=order)
        for margin in (0, 2):
            got = resize(pixels, out_size, resample, vertical_first=order, margin=margin, stream=chunk)
            assert np.array_equal(got, whole)

    sizes = (((90, 140), (50, 60)), ((90, 40), (50, 80)), ((50, 90), (50, 33)))
    check_each(check, sizes, ("nearest", "bilinear", "lanczos"), (1, 2, 7, 16), (False, True))


def test_pixels_outside_of_the_region_do_not_matter(level: str) -> None:
    # The shim surrounds the region with noise; were a tap outside of it used, this would differ.
    pixels = pixels_of((200, 150))
    window = (30, 40, 20, 25)
    expected = pillow(pixels, (90, 80), "bicubic")[30:50, 40:65]
    assert np.array_equal(resize(pixels, (90, 80), "bicubic", window=window, margin=3), expected)


def test_region_is_no_larger_than_the_taps_reach() -> None:
    job = Resize((1000, 800), (100, 80), resample="bilinear", window=(40, 50, 1, 1))
    # Output pixel 50 is centered on source position 505; the triangle reaches 10 pixels to either side, where it is 0.
    assert (job.region.left, job.region.width) == (495, 20)
    assert (job.region.top, job.region.height) == (395, 20)


def test_pass_order_is_the_installed_pillows() -> None:
    # On these sizes the order changes the bits, so that Pillow's own choice shows.
    sizes = [((60, 40 + less), (50, 40)) for less in (-5, 1, 5, 15, 19, 20, 21, 22, 30, 50)]  # 20 is twice 10
    sizes += [((60, 40 + less), (80, 40)) for less in (-5, -1, 1, 5, 15)]  # width grows: any loss of height will do
    sizes += [((7, height), (out_width, 650)) for height in (690, 700, 701, 720) for out_width in (5, 6, 9)]
    told_apart = 0
    for seed, (size, out_size) in enumerate(sizes):
        pixels = pixels_of(size, seed=seed)
        by_order = {order: resize(pixels, out_size, "bicubic", vertical_first=order) for order in (False, True)}
        if np.array_equal(by_order[False], by_order[True]):
            continue
        told_apart += 1
        expected = pillow(pixels, out_size, "bicubic")
        assert np.array_equal(by_order[vertical_first(size, out_size)], expected), (size, out_size)
    assert told_apart >= 20


def test_pass_rules() -> None:
    tall, sliver = "tall_vertical_first", "sliver_vertical_first"
    assert not vertical_first((400, 400), (224, 224), tall)
    assert not vertical_first((300, 376), (224, 224), tall)  # 152 is twice 76, not more
    assert vertical_first((300, 377), (224, 224), tall)
    assert vertical_first((100, 225), (224, 224), tall)
    assert not vertical_first((100, 224), (224, 224), tall)
    assert not vertical_first((7, 700), (5, 224), sliver)  # 100 times the width, not more
    assert vertical_first((7, 701), (5, 224), sliver)
    assert not vertical_first((7, 701), (5, 701), sliver)
    assert not vertical_first((300, 4000), (224, 224), sliver)
    assert not vertical_first((7, 4000), (224, 224), "horizontal_first")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": (0, 5), "out_size": (3, 3)}, "the source's sides must be 1 to 2\\^24 pixels, got 0 x 5"),
        ({"size": (5, 5), "out_size": (3, -1)}, "the target's sides must be 1 to 2\\^24 pixels, got 3 x -1"),
        ({"size": (5, 5), "out_size": (3, 3), "window": (0, 1, 3, 3)}, "the window must lie within the target"),
        ({"size": (5, 5), "out_size": (3, 3), "box": (0, 0, 5.5, 5)}, "box must lie within the source"),
        ({"size": (5, 5), "out_size": (3, 3), "box": (2, 0, 2, 5)}, "must not be empty"),
        ({"size": (5, 5), "out_size": (3, 3), "channels": 4}, "channels must be 1 or 3, got 4"),
    ],
)
def test_misuse_says_what_is_wrong(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Resize(**arguments)


CSRC = native_shim.CSRC
LEVELS = native_shim.core_files("base/simd_level.cpp", "resample/*.cpp", "resample/float/*.cpp", "tests/levels.cpp")


@pytest.mark.thorough
def test_levels_agree_under_sanitizers(tmp_path: Path) -> None:
    program = tmp_path / "levels"
    flags = [
        "-std=c++17",
        "-O1",
        "-g",
        "-ffp-contract=off",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ]
    subprocess.run(["g++", *flags, f"-I{CSRC}", *LEVELS, "-o", str(program)], check=True)
    run = subprocess.run([str(program), "400"], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-g++") is None or shutil.which("qemu-aarch64") is None,
    reason="needs g++-aarch64-linux-gnu and qemu-user",
)
@pytest.mark.slow
def test_neon_agrees_under_emulation(tmp_path: Path) -> None:
    program = tmp_path / "levels"
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-static"]
    subprocess.run(["aarch64-linux-gnu-g++", *flags, f"-I{CSRC}", *LEVELS, "-o", str(program)], check=True)
    run = subprocess.run(["qemu-aarch64", str(program), "300"], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "best level neon" in run.stdout
