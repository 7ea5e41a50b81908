"""The core's own JPEG decoder gives libjpeg-turbo's pixels, statuses and messages, for any file."""

from __future__ import annotations

import io
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from effort import examples
from jpeg_writer import FACTORS, segment, write_jpeg
from PIL import Image
from torture.damage import damaged, scan_of

from fastload import _core

MUTATIONS = int(os.environ.get("FASTLOAD_MUTATIONS", examples(4000)))
Box = tuple[int, int, int, int]
FACTORS_OF_7 = segment(0xDB, b"\0" + bytes([7] * 64))  # write_jpeg's quantization table
WHO = ("own", "libjpeg", "replaced")


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    trusted = _core.trusted_subsamplings()
    own = _core.uses_own_decoder()
    _core.set_trusted_subsamplings(0xFF)
    yield
    _core.set_trusted_subsamplings(trusted)
    _core.set_own_decoder(own)


def run(data: bytes, box: Box, own: bool) -> tuple[str, str, bytes]:
    _core.set_own_decoder(own)
    out = np.zeros((1, box[2], box[3], 3), np.uint8)
    status, *_, detail = _core.decode(data, out, [*box, *box[2:], 0, 0, *box[2:], 0, 0])
    return status, detail, out.tobytes() if status == "ok" else b""


def decoded_by(data: bytes, box: Box) -> str:
    """Demand the same result with and without the own decoder; return which one was used.

    "neither" if there are no pixels.
    """
    before = _core.decode_counts()
    result = run(data, box, own=True)
    counts = [after - count for after, count in zip(_core.decode_counts(), before, strict=True)]
    expected = run(data, box, own=False)
    assert result[:2] == expected[:2], (result[:2], expected[:2], box, data.hex())
    assert result == expected, (box, data.hex())
    return WHO[counts.index(1)] if any(counts) else "neither"


def whole(data: bytes) -> Box:
    width, height = _core.jpeg_header(data)[3:5]
    return 0, 0, height, width


def any_box(draw: random.Random, data: bytes) -> Box:
    _, _, height, width = whole(data)
    top, left = draw.randrange(height), draw.randrange(width)
    return top, left, draw.randint(1, height - top), draw.randint(1, width - left)


def saved(draw: random.Random, height: int, width: int, **options: object) -> bytes:
    """Encode a picture of flat, smooth and noisy parts."""
    rng = np.random.default_rng(draw.getrandbits(32))
    coarse = rng.integers(0, 256, (draw.randint(1, 9), draw.randint(1, 9), 3), dtype=np.uint8)
    picture = np.asarray(Image.fromarray(coarse).resize((width, height), draw.choice((0, 1, 3)))).astype(int)
    picture[:, width // 2 :] += rng.integers(-1, 2, (height, width - width // 2, 3)) * draw.choice((0, 3, 120))
    file = io.BytesIO()
    image = Image.fromarray(picture.clip(0, 255).astype(np.uint8))
    if draw.random() < 0.15:
        image = image.convert("L")
        options["subsampling"] = "4:4:4"  # the own decoder leaves gray of other factors
    image.save(file, "JPEG", **options)
    return file.getvalue()


def some_options(draw: random.Random) -> dict[str, object]:
    options: dict[str, object] = {"quality": draw.randint(1, 100), "optimize": draw.random() < 0.5}
    options["subsampling"] = draw.choice(("4:4:4", "4:2:2", "4:2:0"))
    if draw.random() < 0.4:
        options["restart_marker_blocks"] = draw.randint(1, 9)
    return options


def is_small(data: bytes) -> bool:
    """Whether libjpeg-turbo upsamples by repetition: the own decoder leaves such files."""
    return whole(data)[3] < 5


@pytest.mark.parametrize("seed", range(examples(120)))
def test_any_region_of_any_picture(seed: int, level: str) -> None:
    draw = random.Random(seed)
    height, width = (
        (draw.randint(1, 40), draw.randint(1, 40)) if seed % 4 else (draw.randint(41, 300), 37 * seed % 299 + 1)
    )
    data = saved(draw, height, width, **some_options(draw))
    for box in (whole(data), *(any_box(draw, data) for _ in range(8))):
        assert decoded_by(data, box) == "own" or is_small(data)


@pytest.mark.parametrize("subsampling", ["gray", "4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("size", [(1, 5), (8, 8), (15, 17), (16, 16), (17, 33), (35, 31), (33, 6)])
def test_every_region_of_small_files(size: tuple[int, int], subsampling: str) -> None:
    data = write_jpeg(size[1], size[0], FACTORS[subsampling], seed=size[0], restart=size[0] % 3)
    draw = random.Random(0)
    for _ in range(200):
        assert decoded_by(data, any_box(draw, data)) == "own"


@pytest.mark.parametrize("subsampling", ["4:4:0", "4:1:1", "4:1:0"])
def test_other_subsamplings_are_left_to_libjpeg(subsampling: str) -> None:
    data = write_jpeg(40, 40, FACTORS[subsampling])
    assert decoded_by(data, whole(data)) == "libjpeg"


def test_other_colors_are_left_to_libjpeg() -> None:
    def adobe(transform: int) -> bytes:
        return segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([transform]))

    jfif = segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
    for extra, ids, who in (
        (b"", (82, 71, 66), "libjpeg"),
        (jfif, (82, 71, 66), "own"),
        (adobe(0), (1, 2, 3), "libjpeg"),
        (adobe(1), (1, 2, 3), "own"),
        (adobe(2), (1, 2, 3), "libjpeg"),
        (b"", (7, 1, 9), "own"),
    ):
        data = write_jpeg(40, 40, FACTORS["4:4:4"], extra=extra, ids=ids)
        assert decoded_by(data, whole(data)) == who


def test_other_factors_are_left_to_libjpeg() -> None:
    for factors in (((2, 2),) * 3, ((1, 1), (2, 1), (1, 1)), ((2, 2), (1, 2), (1, 2)), ((2, 2),)):
        data = write_jpeg(40, 40, factors)
        assert decoded_by(data, whole(data)) in ("libjpeg", "neither")


def test_missing_tables_are_left_to_libjpeg() -> None:
    data = write_jpeg(40, 40, tables=False)
    assert decoded_by(data, whole(data)) in ("libjpeg", "neither")
    data = write_jpeg(40, 40, FACTORS["gray"])
    assert decoded_by(data.replace(FACTORS_OF_7, b""), whole(data)) == "neither"


def test_images_too_large_for_libjpeg_stay_so() -> None:
    for width, who in ((65500, "own"), (65501, "neither")):
        data = write_jpeg(width, 1, FACTORS["gray"])
        assert decoded_by(data, (0, 0, 1, 70)) == who


def test_other_spectral_selection_is_left_to_libjpeg() -> None:
    good = write_jpeg(40, 40, FACTORS["gray"])
    for offset, value in ((3, 1), (2, 62), (1, 1), (1, 16)):
        data = bytearray(good)
        data[scan_of(good) - offset] = value
        assert decoded_by(bytes(data), whole(good)) == "neither"


def test_factors_of_16_bits() -> None:
    good = write_jpeg(40, 40, FACTORS["gray"])
    for factor, who in ((7, "own"), (1 << 15, "libjpeg"), (65535, "libjpeg")):
        wide = segment(0xDB, b"\x10" + b"\0\7" * 63 + factor.to_bytes(2, "big"))
        assert decoded_by(good.replace(FACTORS_OF_7, wide), whole(good)) == who


def gray_of(width: int, scan: bytes) -> bytes:
    good = write_jpeg(width, 8, FACTORS["gray"])
    return good[: scan_of(good)] + scan + b"\xff\xd9"


def test_dc_coefficients_beyond_16_bits_are_left_to_libjpeg() -> None:
    # Each block adds 255, and has no AC coefficients.
    for blocks, who in ((16, "own"), (130, "replaced")):
        data = gray_of(8 * blocks, b"\x08\xff\0\0" * blocks)
        assert decoded_by(data, (0, 0, 8, 8)) == who


def one_block(dc: int, ac: int, dc_factor: int, ac_factor: int) -> bytes:
    """Write a gray file of one block, with the DC and the first AC coefficient."""
    # Codes of write_jpeg have 8 bits; those of AC coefficients without zeros before them are their sizes.
    bits = "".join(f"{value.bit_length():08b}{value:b}" for value in (dc, ac) if value) + "0" * 8
    bits += "1" * (-len(bits) % 8)
    scan = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    factors = b"".join(factor.to_bytes(2, "big") for factor in (dc_factor, *[ac_factor] * 63))
    return gray_of(8, scan).replace(FACTORS_OF_7, segment(0xDB, b"\x10" + factors))


@pytest.mark.parametrize(
    ("coefficients", "used"),
    [
        ((200, 0, 10, 1), "own"),
        ((200, 1, 10, 1), "own"),
        ((255, 0, 17, 1), "replaced"),  # a level that libjpeg-turbo without SIMD does not clip
        ((199, 62, 10, 32), "replaced"),  # another one
        ((250, 1, 10, 1), "replaced"),  # too large after one pass
        ((1, 4, 1, 1 << 14), "replaced"),  # too large for 16 bits, which hold 0 instead
    ],
)
def test_absurd_coefficients_are_left_to_libjpeg(
    coefficients: tuple[int, int, int, int], used: str, level: str
) -> None:
    assert decoded_by(one_block(*coefficients), (0, 0, 8, 8)) == used


def test_data_behind_the_last_block_is_left_to_libjpeg() -> None:
    block = b"\x08\xff\0\0"
    for scan, who in ((block * 4, "own"), (block * 4 + b"\x55", "replaced"), (block * 3, "neither")):
        assert decoded_by(gray_of(32, scan), (0, 0, 8, 8)) == who


@pytest.mark.parametrize("subsampling", ["gray", "4:4:4", "4:2:2", "4:2:0"])
def test_every_bit_of_a_scan(subsampling: str) -> None:
    data = write_jpeg(40, 50, FACTORS[subsampling], seed=5, restart=3)
    draw = random.Random(1)
    places = range(8 * scan_of(data), 8 * len(data))
    seen = Counter[str]()
    for place in draw.sample(places, min(len(places), 10 * MUTATIONS)):
        file = bytearray(data)
        file[place // 8] ^= 1 << place % 8
        seen[decoded_by(bytes(file), any_box(draw, data))] += 1
    assert set(seen) >= {"own", "replaced", "neither"}, seen


def test_damage_at_any_place_is_noticed_as_soon_as_by_libjpeg() -> None:
    # Whether a region of a scan that was cut short is decoded depends on how far libjpeg-turbo reads for it.
    data = write_jpeg(20, 70, FACTORS["4:2:0"], seed=3)
    for cut in range(scan_of(data), len(data) - 2):
        for bottom in (13, 14, 15, 16, 29, 30, 31, 46, 47, 70):
            decoded_by(data[:cut] + b"\xff\xd9", (bottom - 3, 2, 3, 9))


def test_a_stopped_source_is_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (3000, 3000, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, quality=95)
    pool = _core.Pool(1)
    out = np.zeros((1, 3000, 3000, 3), np.uint8)
    geometry = np.array([[0, 0, 3000, 3000, 3000, 3000, 0, 0, 3000, 3000, 0, 0]], np.int32)
    job = pool.submit([str(path)], out, geometry=geometry)
    assert job.cancel()
    assert job.outcome(0)[0] == "cancelled"
    pool.close()


@pytest.mark.parametrize("part", range(4))
def test_any_damage_gives_the_same_result(part: int) -> None:
    draw = random.Random(part)
    seen = Counter[str]()
    while sum(seen.values()) < MUTATIONS // 4:
        if draw.random() < 0.5:
            data = saved(draw, draw.randint(1, 120), draw.randint(1, 120), **some_options(draw))
        else:
            factors = FACTORS[draw.choice(("gray", "4:4:4", "4:2:2", "4:2:0"))]
            data = write_jpeg(
                draw.randint(1, 90), draw.randint(1, 90), factors, seed=draw.randrange(99), restart=draw.randrange(5)
            )
        for _ in range(5):
            file = damaged(draw, data)
            if _core.jpeg_header(file)[0] != "ok" or whole(file)[2] * whole(file)[3] > 1 << 16:
                continue
            seen[decoded_by(file, any_box(draw, file) if draw.random() < 0.7 else whole(file))] += 1
    assert set(seen) >= {"own", "replaced", "neither"}, seen
