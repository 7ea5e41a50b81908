"""PNG and WebP files: the core gives Pillow's pixels, or leaves the file to Pillow."""

from __future__ import annotations

import io
import os
import random
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin
from png_writer import CHANNELS, SIGNATURE, chunk, header, riff, riff_chunks, write_png
from references import kept
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torture.codecs import damaged

from fastload import FastLoader, _core
from fastload.vision import DecodeError, calibrate, decode, decode_batch, jpeg_info

pytestmark = [
    pytest.mark.usefixtures("no_pool_stays"),
    pytest.mark.skipif("WebP" not in _core.codec_versions(), reason="built without"),
]
KINDS = ((0, 1), (0, 2), (0, 4), (0, 8), (2, 8), (4, 8), (6, 8))
TRIALS = int(os.environ.get("FASTLOAD_MUTATIONS", "300"))


@pytest.fixture(autouse=True)
def calibrated() -> None:
    assert {"PNG", "WebP (lossy)", "WebP (lossless)"} == calibrate().formats


def noise(*shape: int, bits: int = 8, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 2**bits, shape)


def picture(mode: str = "RGBA", width: int = 61, height: int = 43, seed: int = 0) -> Image.Image:
    coarse = noise(height // 4, width // 4, 4, seed=seed).astype(np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def saved(image: Image.Image, format: str = "WEBP", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def pillow(data: bytes) -> NDArray[np.uint8] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                return np.asarray(image.convert("RGB"))
    except Exception:  # whatever it is, the user's own Python raises it
        return None


def status_of(data: bytes) -> str:
    """The core's status; if it is "ok", the pixels are Pillow's."""
    try:
        got = decode(data)
    except DecodeError as error:
        return error.status
    expected = pillow(data)
    assert expected is not None, f"Pillow raises, the core does not: {data.hex()}"
    np.testing.assert_array_equal(got, expected, data.hex())
    return "ok"


@pytest.mark.matrix
@pytest.mark.parametrize("interlace", [False, True])
@pytest.mark.parametrize(("color", "bits"), KINDS)
def test_png_of_every_kind_and_filter(color: int, bits: int, interlace: bool) -> None:
    for height, width in ((1, 1), (1, 9), (9, 1), (2, 3), (5, 5), (8, 7), (9, 35), (3, 70)):
        levels = noise(height, width, CHANNELS[color], bits=bits)
        for filters in ((0,), (1,), (2,), (3,), (4,), (4, 3, 2, 1, 0)):
            file = write_png(levels, bits, color, interlace=interlace, filters=filters, pieces=1 + width % 3)
            assert status_of(file) == "ok"
            expected = pillow(file)
            assert expected is not None
            for top, left, bottom, right in (
                (0, 0, height, (width + 1) // 2),
                (height // 2, width // 3, height, width),
            ):
                got = decode(file, (top, left, bottom - top, right - left))
                np.testing.assert_array_equal(got, expected[top:bottom, left:right])


@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize(
    "options", [{"quality": 5}, {"quality": 90}, {"lossless": True}, {"lossless": True, "exact": True}]
)
def test_webp_of_every_kind_and_size(mode: str, options: dict[str, object]) -> None:
    for width, height in ((4, 4), (5, 4), (16, 16), (17, 33), (61, 43)):
        image = picture(mode, width, height)
        for metadata in ({}, {"exif": b"Exif\0\0II", "icc_profile": b"profile", "xmp": b"<x/>"}):
            file = saved(image, **options, **metadata)
            assert status_of(file) == "ok"
            expected = pillow(file)
            assert expected is not None
            np.testing.assert_array_equal(decode(file, (1, 2, 3, 2)), expected[1:4, 2:4])


def test_a_crop_is_resized_and_flipped_as_pillow_does() -> None:
    box, crop = (7, 3, 57, 40), (3, 7, 37, 50)
    files = [saved(picture(mode), format) for mode in ("RGB", "RGBA") for format in ("PNG", "WEBP")]
    batch = decode_batch(files, [crop] * len(files), (16, 24), interpolation="bicubic", hflip=True, vflip=True)
    for file, got in zip(files, batch, strict=True):
        image = Image.open(io.BytesIO(file)).convert("RGB").crop(box).resize((24, 16), Image.Resampling.BICUBIC)
        np.testing.assert_array_equal(got, np.asarray(image)[::-1, ::-1])
        np.testing.assert_array_equal(
            got, decode(file, crop, (16, 24), interpolation="bicubic", hflip=True, vflip=True)
        )


def test_threads_decode_files_of_all_kinds_at_once() -> None:
    files = [
        saved(picture(mode, 61, 43, seed), format)
        for mode in ("RGB", "RGBA")
        for format in ("PNG", "WEBP")
        for seed in (1, 2)
    ]
    expected = [pillow(file) for file in files]
    batch = decode_batch(
        [*files, files[0][:-1]] * 40, num_threads=6, statuses=(statuses := []), out=np.empty((360, 43, 61, 3), np.uint8)
    )
    assert statuses == ([*["ok"] * 8, "corrupt"] * 40)
    for number, got in enumerate(batch):
        np.testing.assert_array_equal(got, [*expected, np.zeros((43, 61, 3), np.uint8)][number % 9])


def test_large_files_are_read_in_pieces(tmp_path: Path) -> None:
    """Files beyond 1 MiB are not read whole; chunks lie across the pieces."""
    levels = noise(500, 720, 3)
    files = {
        "one.png": write_png(levels, filters=(0,), level=0),
        "many.png": write_png(levels, filters=(4,), level=1, pieces=1000),
        "lossless.webp": saved(Image.fromarray(levels.astype(np.uint8)), lossless=True, method=0, quality=0),
    }
    for name, data in files.items():
        assert len(data) > 1 << 20
        (tmp_path / name).write_bytes(data)
        np.testing.assert_array_equal(decode(tmp_path / name), levels)
        np.testing.assert_array_equal(decode(data), levels)
        (tmp_path / name).write_bytes(data[:-1])
        with pytest.raises(DecodeError):
            decode(tmp_path / name)


TEXT = zlib.compress(b"text" * 9)
TAKEN = {
    "gamma": chunk(b"gAMA", struct.pack(">I", 45455)) + chunk(b"cHRM", bytes(32)) + chunk(b"sRGB", b"\0"),
    "profile": chunk(b"iCCP", b"name\0\0" + TEXT),
    "large profile": chunk(b"iCCP", b"name\0\0" + zlib.compress(noise(200_000).astype(np.uint8).tobytes())),
    "broken small profile": chunk(b"iCCP", b"name\0\0junk"),
    "texts": chunk(b"tEXt", b"Title\0a")
    + chunk(b"zTXt", b"Title\0\0" + TEXT)
    + chunk(b"iTXt", b"k\0\1\0en\0k\0" + TEXT),
    "time and size": chunk(b"tIME", bytes(7)) + chunk(b"pHYs", struct.pack(">IIB", 2835, 2835, 1)),
    "exif": chunk(b"eXIf", b"II*\0junk"),
    "private": chunk(b"prVt", b"anything"),
    "suggested palette": chunk(b"PLTE", bytes(9)),
}
LEFT = {
    "animation": chunk(b"acTL", struct.pack(">II", 1, 0)),
    "unknown critical": chunk(b"ABCD"),
    "wrong checksum": chunk(b"tEXt", b"Title\0a", crc=1),
    "short gamma": chunk(b"gAMA", b"\0"),
    "short size": chunk(b"pHYs", bytes(8)),
    "odd name": chunk(b"t\0xt"),
    "profile bomb": chunk(b"iCCP", b"name\0\0" + zlib.compress(bytes(2 << 20))),
    "text bomb": chunk(b"zTXt", b"Title\0\0" + zlib.compress(bytes(2 << 20))),
    "international bomb": chunk(b"iTXt", b"Title\0\1\0\0\0" + zlib.compress(bytes(2 << 20))),
    "profile of another method": chunk(b"iCCP", b"name\0\1" + TEXT),
    "text of another method": chunk(b"zTXt", b"Title\0\1" + TEXT),
    "a note of Pillow's own": chunk(b"tEXt", b"interlace\0x"),
    "text without a key": chunk(b"tEXt", b"text"),
    "short transparency": chunk(b"tRNS", b"\0"),
    "second header": header(9, 8),
    "large chunk": chunk(b"prVt", bytes(1 << 18)),
}


@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize("name", [*TAKEN, *LEFT])
def test_chunks_are_known_to_be_harmless_or_left_to_pillow(name: str, at: str) -> None:
    file = write_png(noise(8, 9, 3), **{at: {**TAKEN, **LEFT}[name]})
    late = name == "suggested palette" and at == "after"
    assert (status_of(file) == "ok") is (name in TAKEN and not late)


@pytest.mark.parametrize("key", [b"transparency", b"bbox", b"default_image", b"exif", b"icc_profile", b"loop"])
def test_texts_that_pillow_takes_for_its_own_notes_are_its(key: bytes) -> None:
    for name, data in ((b"tEXt", b"1"), (b"zTXt", b"\0" + TEXT), (b"iTXt", b"\0\0\0\0x")):
        assert status_of(write_png(noise(8, 9, 3), before=chunk(name, key + b"\0" + data))) == "unsupported"


@pytest.mark.parametrize(("color", "bits"), [kind for kind in KINDS if kind[0] in (0, 2)])
def test_a_transparent_color_changes_no_pixel(color: int, bits: int) -> None:
    levels = noise(8, 9, CHANNELS[color], bits=bits)
    for value in (0, 1, 255, 300, 65535):
        transparent = chunk(b"tRNS", struct.pack(">H", value) * CHANNELS[color])
        assert status_of(write_png(levels, bits, color, before=transparent)) == "ok"
        assert status_of(write_png(levels, bits, color, after=transparent)) == "unsupported"


def test_kinds_of_png_that_are_pillows() -> None:
    palette = chunk(b"PLTE", bytes(range(48)))
    for color, bits in ((0, 16), (2, 16), (4, 16), (6, 16)):
        assert status_of(write_png(noise(5, 7, CHANNELS[color], bits=16), bits, color)) == "unsupported"
    for transparent in (b"", chunk(b"tRNS", b"\0\1\2")):
        assert status_of(write_png(noise(5, 7, 1, bits=4), 4, 3, before=palette + transparent)) == "unsupported"
    for fields in ((9, 8, 8, 2, 0, 1, 0), (9, 8, 8, 2, 0, 0, 2)):  # another filter method or interlacing
        with_fields = chunk(b"IHDR", struct.pack(">IIBBBBB", *fields))
        assert status_of(write_png(noise(8, 9, 3)).replace(header(9, 8), with_fields)) == "corrupt"
    assert status_of(saved(picture(), "PNG", save_all=True, append_images=[picture(seed=1)])) == "unsupported"


def _with_data(data: bytes, width: int = 9, height: int = 16) -> bytes:
    return SIGNATURE + header(width, height) + chunk(b"IDAT", data) + chunk(b"IEND")


def test_pixels_that_are_not_exactly_there_are_pillows() -> None:
    rows = b"".join(b"\0" + row.tobytes() for row in noise(16, 27).astype(np.uint8))
    good = zlib.compress(rows)
    assert status_of(_with_data(good)) == "ok"
    small_window = bytes([0x08, 0x1D]) + zlib.compress(rows, wbits=-15) + zlib.adler32(rows).to_bytes(4, "big")
    damaged = {
        "too few rows": zlib.compress(rows[:-28]),
        "too many rows": zlib.compress(rows + rows[:28]),
        "another filter": zlib.compress(rows[:-28] + b"\5" + rows[-27:]),
        "another checksum": good[:-1] + bytes([good[-1] ^ 1]),
        "no checksum": good[:-4],
        "something behind": good + b"\0",
        "no data": b"",
        "a small window": small_window,
    }
    for name, data in damaged.items():
        assert status_of(_with_data(data)) in ("corrupt", "unsupported"), name
    for end in (b"", chunk(b"IEND", b"x"), chunk(b"IEND", crc=1), chunk(b"IEND")[:-1]):
        assert status_of(SIGNATURE + header(9, 16) + chunk(b"IDAT", good) + end) == "corrupt"
    between = chunk(b"IDAT", good[:20]) + chunk(b"tEXt", b"k\0v") + chunk(b"IDAT", good[20:])
    assert status_of(SIGNATURE + header(9, 16) + between + chunk(b"IEND")) != "ok"
    assert status_of(_with_data(good) + b"anything") == "ok"  # which Pillow does not read


def test_headers_that_lie_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = _with_data(zlib.compress(bytes(1000)), 13000, 13000)
    for size in ((4, 4), None):
        with pytest.raises(DecodeError) as caught:
            decode(huge, (0, 0, 9, 9), size)
        assert caught.value.status == "corrupt"
    for width, height in ((70000, 1), (1, 70000)):
        assert status_of(write_png(noise(height, width, 1, bits=1), 1, 0)) == "unsupported"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(DecodeError) as caught:
        decode(_with_data(b"", 2**31 - 1, 2**31 - 1))
    assert caught.value.status == "unsupported"


def test_the_limit_of_pixels_is_pillows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 61 * 43 // 2)
    for format in ("PNG", "WEBP"):
        with pytest.raises(DecodeError) as caught:
            decode(saved(picture(), format))
        assert caught.value.status == "bomb"


def _swapped(chunks: list[tuple[bytes, bytes]], name: bytes, data: Callable[[bytes], bytes]) -> bytes:
    return riff(*((key, data(value) if key == name else value) for key, value in chunks))


def test_kinds_of_webp_that_are_pillows() -> None:
    assert status_of(saved(picture(), save_all=True, append_images=[picture(seed=1)])) == "unsupported"
    file = saved(picture(), exif=b"Exif\0\0II")
    chunks = riff_chunks(file)
    assert [name for name, _ in chunks] == [b"VP8X", b"ALPH", b"VP8 ", b"EXIF"]
    assert status_of(riff(*chunks)) == "ok"
    left = {
        "trailing bytes": file + b"\0\0",
        "a smaller size": file[:4] + struct.pack("<I", len(file) - 10) + file[8:],
        "short": file[:-2],
        "no image": riff(*chunks[:2], chunks[3]),
        "two images": riff(*chunks[:3], chunks[2]),
        "another order": riff(chunks[0], chunks[3], *chunks[1:3]),
        "an unknown chunk": riff(*chunks, (b"ABCD", b"")),
        "no alpha": riff(chunks[0], *chunks[2:]),
        "alpha that is not announced": _swapped(chunks, b"VP8X", lambda data: b"\x08" + data[1:]),
        "another canvas": _swapped(chunks, b"VP8X", lambda data: data[:4] + b"\0" + data[5:]),
        "unknown flags": _swapped(chunks, b"VP8X", lambda data: bytes([data[0] | 0x80]) + data[1:]),
        "damaged alpha": _swapped(chunks, b"ALPH", lambda data: data[:-20]),
        "animated": _swapped(chunks, b"VP8X", lambda data: bytes([data[0] | 2]) + data[1:]),
    }
    left["something behind a plain image"] = riff(*riff_chunks(saved(picture("RGB"))), (b"EXIF", b"x"))
    for name, data in left.items():
        assert status_of(data) != "ok", name


def test_lossless_data_ends_with_its_chunk() -> None:
    """Given the whole file, libwebp would go on in the next chunk."""
    for seed in range(30):
        chunks = riff_chunks(saved(picture("RGB", seed=seed), lossless=True, exif=b"Exif\0\0" + bytes(500)))
        image = next(data for name, data in chunks if name == b"VP8L")
        for count in range(1, 8):
            status_of(riff(*((name, image[:-count] if name == b"VP8L" else data) for name, data in chunks)))


def test_a_header_is_no_jpegs() -> None:
    for format in ("PNG", "WEBP"):
        with pytest.raises(DecodeError) as caught:
            jpeg_info(saved(picture(), format))
        assert caught.value.status == "not_jpeg"


@pytest.mark.parametrize("crop", [None, (0, 100, 2, 2), (0, 69_998, 2, 2), (0, 0, 3, 70_000), (0, 80_000, 2, 2)])
def test_a_side_that_is_too_long_is_an_error_of_the_image(crop: tuple[int, ...] | None) -> None:
    file = write_png(np.zeros((3, 70_000, 3), np.int64))
    for size in (None, (4, 5)):
        with pytest.raises(DecodeError, match="70000x3 pixels") as caught:
            decode(file, crop, size)
        assert caught.value.status == "unsupported"


def test_formats_that_are_not_trusted_are_not_decoded() -> None:
    mask, names = _core.trusted_formats(), _core.format_names()
    files = {
        "PNG": saved(picture(), "PNG"),
        "WebP (lossy)": saved(picture()),
        "WebP (lossless)": saved(picture(), lossless=True),
    }
    try:
        for name in files:
            _core.set_trusted_formats(mask & ~(1 << names.index(name)))
            statuses = {other: status_of(file) for other, file in files.items()}
            assert statuses == {other: "not_jpeg" if other == name else "ok" for other in files}
    finally:
        _core.set_trusted_formats(mask)


def seeds() -> Iterator[bytes]:
    """Small files with something to damage in each part."""
    before = chunk(b"gAMA", struct.pack(">I", 45455)) + chunk(b"zTXt", b"Comment\0\0" + TEXT)
    after = chunk(b"iTXt", b"k\0\0\0en\0k\0v")
    for color, bits in KINDS:
        for interlace in (False, True):
            levels = noise(11, 13, CHANNELS[color], bits=bits)
            yield write_png(levels, bits, color, interlace=interlace, pieces=2, before=before, after=after)
    for mode in ("RGB", "RGBA"):
        for options in ({"quality": 70}, {"lossless": True}):
            yield saved(picture(mode, 37, 29), **options)
            yield saved(picture(mode, 37, 29), **options, exif=b"Exif\0\0II*\0", xmp=b"<x/>", icc_profile=b"profile")


def _damage(trials: int, seed: int) -> Counter[str]:
    files, rng = list(seeds()), random.Random(seed)
    return Counter(status_of(damaged(rng.choice(files), rng)) for _ in range(trials))


def test_damage_is_found_or_harmless() -> None:
    seen = _damage(TRIALS, 1)
    assert min(seen["ok"], seen["corrupt"], seen["unsupported"]) > 0, seen


@pytest.mark.slow
def test_twenty_thousand_damaged_files() -> None:
    seen = _damage(20_000, 2)
    assert seen["ok"] > 1000, seen


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_of_both_is_decoded_natively_with_torchs_batches(tmp_path: Path, workers: int) -> None:
    (tmp_path / "of-one-class").mkdir()
    for number in range(12):
        mode, format = ("RGB", "RGBA", "L")[number % 3], ("png", "webp")[number % 2]
        picture(mode, 50 + number, 70, seed=number).save(tmp_path / "of-one-class" / f"{number:02}.{format}")
    dataset = ImageFolder(
        str(tmp_path), v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()])
    )
    torch.manual_seed(3)
    expected = kept(lambda: list(DataLoader(dataset, 4, shuffle=True, num_workers=workers)))
    with FastLoader(dataset, 4, shuffle=True, num_workers=workers, device="cpu", engine="native") as loader:
        torch.manual_seed(3)
        for (images, labels), (images_of_torch, labels_of_torch) in zip(loader, expected, strict=True):
            assert torch.equal(images, images_of_torch)
            assert torch.equal(labels, labels_of_torch)
        assert "JPEG, PNG, WebP files to 24x24 pixels" in str(loader.plan)
        assert loader.stats().python_images == 0


def test_limits_of_texts_are_pillows_own() -> None:
    """The core knows these two; if they get lower, it has to know."""
    assert (PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY) == (1 << 20, 64 << 20)
