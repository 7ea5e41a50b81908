"""fastload.vision by itself: arguments, inputs, outputs, errors, and the files that Pillow has opinions on."""

from __future__ import annotations

import ast
import base64
import io
import os
import pickle
import re
import struct
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch
from jpeg_writer import FACTORS, segment, write_jpeg
from PIL import Image

import fastload
from fastload import _core
from fastload.vision import DecodeError, JpegInfo, decode, decode_batch, jpeg_info

pytestmark = pytest.mark.usefixtures("no_pool_stays")
JFIF = segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")


@pytest.fixture
def photo() -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (12, 15, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((150, 120), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def pillow(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


def test_info_tells_what_the_header_says() -> None:
    assert jpeg_info(write_jpeg(37, 21)) == JpegInfo(37, 21, 3, "4:2:0", False, "ok")
    assert jpeg_info(write_jpeg(8, 9, FACTORS["gray"], progressive=True)) == JpegInfo(8, 9, 1, "gray", True, "ok")
    assert jpeg_info(memoryview(write_jpeg(3, 4, FACTORS["4:1:0"]))).subsampling == "4:1:0"
    assert jpeg_info(write_jpeg(8, 8, ((2, 1), (2, 1), (2, 1)))).subsampling == "4:4:4"
    assert jpeg_info(write_jpeg(8, 8, ((3, 1), (1, 1), (1, 1)))).subsampling == "other"
    assert jpeg_info(write_jpeg(8, 8, ((1, 1),) * 4)).status == "cmyk"
    assert jpeg_info(write_jpeg(8, 8, bits=12)).status == "twelve_bit"


def test_bytes_and_paths_are_the_same_image(photo: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bild ä.jpg"
    path.write_bytes(photo)
    expected = np.asarray(pillow(photo))
    sources = [photo, bytearray(photo), memoryview(photo), np.frombuffer(photo, np.uint8), path, str(path)]
    for got in [*map(decode, sources), *decode_batch(sources)]:
        np.testing.assert_array_equal(got, expected)
    assert jpeg_info(path) == jpeg_info(photo)


def test_file_names_may_be_any_bytes(photo: bytes, tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.jpg")
    Path(path).write_bytes(photo)
    np.testing.assert_array_equal(decode(path), decode(photo))
    with pytest.raises(DecodeError, match="No such file"):
        decode(path + "x")


def test_batch_gives_each_image_its_crop_and_flips(photo: bytes) -> None:
    crops = [(0, 0, 120, 150), (7, 11, 40, 60), (119, 149, 1, 1)]
    got = decode_batch([photo] * 3, crops, (32, 48), hflip=[True, False, True], vflip=[False, True, True])
    for image, (top, left, height, width), hflip, vflip in zip(got, crops, (1, 0, 1), (0, 1, 1), strict=True):
        crop = pillow(photo).crop((left, top, left + width, top + height)).resize((48, 32), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(image, np.asarray(crop)[:: -1 if vflip else 1, :: -1 if hflip else 1])


def test_writes_to_arrays_and_tensors_in_place(photo: bytes) -> None:
    expected = decode(photo, size=(20, 30))
    for out in (np.full((20, 30, 3), 7, np.uint8), torch.full((20, 30, 3), 7, dtype=torch.uint8)):
        assert decode(photo, size=(20, 30), out=out) is out
        np.testing.assert_array_equal(np.asarray(out), expected)
    padded = np.zeros((3, 25, 30, 3), np.uint8)
    out = padded[::2, 2:22]  # strides between images and rows
    assert decode_batch([photo, photo], size=(20, 30), out=out) is out
    np.testing.assert_array_equal(padded[0, 2:22], expected)
    np.testing.assert_array_equal(padded[2, 2:22], expected)
    assert not padded[1].any()
    assert not padded[:, :2].any()
    assert not padded[:, 22:].any()


def test_channels_last_tensor_is_what_the_batch_is(photo: bytes) -> None:
    batch = torch.empty((2, 3, 20, 30), dtype=torch.uint8, memory_format=torch.channels_last)
    decode_batch([photo, photo], size=(20, 30), out=batch.permute(0, 2, 3, 1))
    np.testing.assert_array_equal(batch[1].permute(1, 2, 0).numpy(), decode(photo, size=(20, 30)))


def test_empty_batch_is_empty() -> None:
    assert decode_batch([], size=(4, 5)).shape == (0, 4, 5, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"interpolation": "cubic"}, "interpolation must be one of nearest, .*, got 'cubic'"),
        ({"antialias": False}, "antialias must be True"),
        ({"size": (0, 5)}, r"size must be \(height, width\), each at least 1, got \(0, 5\)"),
        ({"size": (5,)}, r"size must be \(height, width\)"),
        ({"crop": (0, 0, 0, 5)}, r"crops must lie within the image and not be empty, got \[0, 0, 0, 5\]"),
        ({"crop": (-1, 0, 5, 5)}, "crops must lie within the image"),
        ({"crop": (0.0, 0, 5, 5)}, "of integers"),
        ({"crop": (0, 0, 5)}, r"got shape \(1, 3\)"),
        ({"crop": (0, 0, 121, 5)}, "the crop must lie within the image"),
        ({"crop": (60000, 60000, 60000, 60000)}, "the crop must lie within the image"),
        ({"crop": (0, 0, 2**31 - 1, 2**31 - 1)}, "the crop must lie within the image"),
        ({"crop": (0, 66000, 5, 5)}, "the crop must lie within the image"),
        ({"crop": (0, 2**31, 5, 5)}, "crops must lie within the image"),
        ({"out": np.zeros((3, 3, 3), np.uint8)}, r"out must have shape \(120, 150, 3\)"),
        ({"out": np.zeros((120, 300, 3), np.uint8)[:, ::2]}, "rows contiguous"),
    ],
)
def test_misuse_is_a_value_error_that_says_the_rule(photo: bytes, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(photo, **arguments)  # type: ignore[call-overload]


def test_wrong_types_are_type_errors(photo: bytes) -> None:
    with pytest.raises(TypeError):
        decode(17)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        decode(photo, out=np.zeros((120, 150, 3), np.float32))
    with pytest.raises(TypeError):
        decode_batch([photo, None])  # type: ignore[list-item]


def test_batch_of_unlike_crops_needs_a_size(photo: bytes) -> None:
    with pytest.raises(ValueError, match="crops must all have the same height and width"):
        decode_batch([photo, photo], [(0, 0, 5, 5), (0, 0, 6, 5)])
    with pytest.raises(DecodeError, match=r"sample 1: .*the result must have the output's size") as caught:
        decode_batch([photo, write_jpeg(20, 20)])
    assert (caught.value.index, caught.value.status) == (1, "bad_geometry")


def test_error_names_sample_file_rule_and_value(tmp_path: Path, photo: bytes) -> None:
    path = tmp_path / "short.jpg"
    path.write_bytes(photo[:900])
    with pytest.raises(DecodeError) as caught:
        decode_batch([photo, path], size=(8, 8))
    error = caught.value
    assert (error.index, error.path, error.status) == (1, str(path), "truncated")
    assert str(error).startswith(f"sample 1 ({path}): premature end of JPEG")
    assert "900 bytes" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.index, again.path, again.status) == (str(error), 1, str(path), "truncated")


def test_statuses_instead_of_errors(photo: bytes, tmp_path: Path) -> None:
    statuses = ["stale"]
    images = [photo, tmp_path / "missing", b"PNG", photo[:-2], write_jpeg(8, 8, ((1, 1),) * 4)]
    got = decode_batch(images, size=(6, 6), out=np.full((5, 6, 6, 3), 9, np.uint8), statuses=statuses)
    assert statuses == ["ok", "unreadable", "not_jpeg", "truncated", "cmyk"]
    assert got[0].any()
    assert not got[1:].any()


def test_failed_decode_leaves_black_not_half_an_image(photo: bytes) -> None:
    out = np.full((120, 150, 3), 9, np.uint8)
    with pytest.raises(DecodeError, match="premature end"):
        decode(photo[: len(photo) // 2], out=out)
    assert not out.any()


def test_unreadable_files_say_why(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match="No such file") as caught:
        decode(tmp_path / "missing.jpg")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    with pytest.raises(DecodeError, match="Is a directory") as caught:
        decode(tmp_path, size=(3, 3))
    assert isinstance(caught.value.__cause__, IsADirectoryError)
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    with pytest.raises(DecodeError) as caught:  # and does not wait for a writer
        decode(fifo, size=(3, 3))
    assert caught.value.status == "unsupported"
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(DecodeError) as caught:
        decode(tmp_path / "empty.jpg")
    assert caught.value.status == "not_jpeg"
    with pytest.raises(ValueError, match="null"):
        decode("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission_is_unreadable(tmp_path: Path, photo: bytes) -> None:
    path = tmp_path / "secret.jpg"
    path.write_bytes(photo)
    path.chmod(0)
    with pytest.raises(DecodeError, match="Permission denied"):
        decode(path)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", "not_jpeg"),
        (b"\xff\xd8", "not_jpeg"),
        (b"\x89PNG\r\n\x1a\n", "corrupt"),
        (b"GIF89a", "not_jpeg"),
        (write_jpeg(9, 9, ((1, 1),) * 4), "cmyk"),
        (write_jpeg(9, 9, ((1, 1),) * 2), "unsupported"),
        (write_jpeg(9, 9, bits=12), "twelve_bit"),
        (write_jpeg(9, 9, frame_marker=0xC3), "lossless"),
        (write_jpeg(9, 9, frame_marker=0xC5), "unsupported"),
        (write_jpeg(9, 9, ((3, 1), (1, 1), (1, 1))), "unsupported"),
        (write_jpeg(9, 9, frame_marker=0xC8), "corrupt"),
        (write_jpeg(9, 9, extra=b"\xff\x02"), "corrupt"),
        (write_jpeg(9, 9, extra=JFIF + b"junk"), "corrupt"),
        (write_jpeg(9, 9, extra=segment(0xE0, b"JFIF")), "corrupt"),
        (write_jpeg(9, 9, extra=segment(0xE2, b"ICC_PROFILE\0")), "corrupt"),
        (write_jpeg(9, 9, extra=segment(0xED, b"Photoshop 3.0\0008BIM\0\1")), "corrupt"),
        (write_jpeg(9, 9, extra=segment(0xEE, b"Adobe\0")), "corrupt"),
    ],
)
def test_what_the_core_does_not_take_has_a_name(data: bytes, status: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(data, size=(4, 4))
    assert caught.value.status == status


def test_bomb_limits_are_pillows(photo: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = 120 * 150
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pixels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(photo)
    for limit in (pixels - 1, pixels // 2):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.warns(Image.DecompressionBombWarning, match=f"exceeds limit of {limit} pixels"):
            decode(photo)
        with pytest.warns(Image.DecompressionBombWarning):
            decode_batch([photo], size=(3, 3))
        with pytest.warns(Image.DecompressionBombWarning):
            pillow(photo)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pixels // 2 - 1)
    for arguments in ({}, {"size": (3, 3)}):
        with pytest.raises(DecodeError) as caught:
            decode(photo, **arguments)  # type: ignore[call-overload]
        assert caught.value.status == "bomb"
    with pytest.raises(Image.DecompressionBombError):
        pillow(photo)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    decode(photo)


def directory(entries: list[tuple[int, int, int, bytes]], endian: str = "<") -> bytes:
    """TIFF data of one directory: tag, type, count and data of each entry."""
    data = (b"II*\0" if endian == "<" else b"MM\0*") + struct.pack(endian + "LH", 8, len(entries))
    beyond = len(data) + 12 * len(entries) + 4
    rest = b""
    for tag, kind, count, value in entries:
        if len(value) > 4:
            value, rest = struct.pack(endian + "L", beyond + len(rest)), rest + value
        data += struct.pack(endian + "HHL", tag, kind, count) + value.ljust(4, b"\0")
    return data + bytes(4) + rest


def multi_picture(pictures: int = 2, entries: int = 2, *, endian: str = "<", list_type: int = 7) -> bytes:
    """Build a phone's multi-picture index, with a list that may be too short."""
    pairs = b"".join(struct.pack(endian + "LLLHH", 0x030000 if i == 0 else 2, 100, 0, 0, 0) for i in range(entries))
    index = [
        (0xB000, 7, 4, b"0100"),
        (0xB001, 4, 1, struct.pack(endian + "L", pictures)),
        (0xB002, list_type, len(pairs), pairs),
    ]
    return segment(0xE2, b"MPF\0" + directory(index, endian))


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[0x0112] = orientation
    tags[0x011A] = 300.0
    return segment(0xE1, tags.tobytes())


@pytest.mark.parametrize(
    "extra",
    [
        exif(6),
        segment(0xE1, b"Exif\0\0broken"),
        segment(0xE2, b"ICC_PROFILE\0\1\2not a profile"),
        segment(0xE2, b"ICC_PROFILE\0\7\1not a profile"),
        multi_picture(),
        multi_picture(endian=">"),
        exif(6) + multi_picture(pictures=3, entries=3),
        segment(0xE1, b"Exif\0\0" + exif(6)[4:]),
        segment(0xEE, b"Adobe\0\x64\0\0\0\0\1"),
        segment(0xEE, b"Adobe\0\x64\0\0\0\0\0"),  # no transform: RGB
        segment(0xEE, b"Adobe\0\x64\0\0\0\0\7"),  # an unknown transform
        JFIF + segment(0xFE, b"comment"),
        JFIF.replace(b"\1\1", b"\7\7", 1) + segment(0xED, b"Photoshop 3.0\0008BIM\4\4\0\0\0\0\0\2ab"),
        b"\xff\xff\xff" + JFIF,  # fill bytes
        segment(0xEB, bytes(60000)),
    ],
)
def test_metadata_does_not_matter(extra: bytes) -> None:
    file = write_jpeg(50, 40, FACTORS["4:4:4"], extra=extra, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, on broken metadata
        expected = np.asarray(pillow(file))
    np.testing.assert_array_equal(decode(file), expected)
    np.testing.assert_array_equal(decode(file, (11, 9, 20, 30)), expected[11:31, 9:39])


X_RESOLUTION, RESOLUTION_UNIT = 0x011A, (0x0128, 3, 1, b"\2\0")
BYTE = directory([(X_RESOLUTION, 7, 1, b"\5"), RESOLUTION_UNIT])  # where Pillow takes the second of two
TEXT = directory([(X_RESOLUTION, 2, 1, b"\0"), RESOLUTION_UNIT])  # where it takes the first of none

# Names and versions of Pillow that do not open such a file.
UNOPENED = {
    "a single byte": (segment(0xE1, b"Exif\0\0" + BYTE), "11 12 13"),
    "an empty text": (segment(0xE1, b"Exif\0\0" + TEXT), "11 12 13"),
    "in two segments": (segment(0xE1, b"Exif\0\0" + TEXT[:20]) + segment(0xE1, b"Exif\0\0" + TEXT[20:]), "11 12 13"),
    "after two signatures": (segment(0xE1, b"Exif\0\0" * 2 + BYTE), "11 12 13"),
    "after three signatures": (segment(0xE1, b"Exif\0\0" * 3 + BYTE), "11 12"),
    "in two segments, the second with a signature of its own": (
        segment(0xE1, b"Exif\0\0" * 2 + TEXT[:30]) + segment(0xFE, b"x") + segment(0xE1, b"Exif\0\0" + TEXT[30:]),
        "11 12 13",
    ),
    "fewer pictures than are counted": (multi_picture(3, 2), "11 12"),
    "pictures of another type": (multi_picture(3, 2, list_type=1), "11 12"),
    "a list that ends in the middle": (multi_picture(2**31, 1), "11 12"),
}


@pytest.mark.parametrize("name", list(UNOPENED))
def test_metadata_that_some_pillow_cannot_open_is_left_to_pillow(name: str) -> None:
    extra, refused_by = UNOPENED[name]
    file = write_jpeg(16, 16, extra=extra)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is no multi-picture file
        if PIL.__version__.split(".")[0] in refused_by.split():
            with pytest.raises(OSError, match="cannot identify image file"):
                pillow(file)
        else:
            pillow(file)
    with pytest.raises(DecodeError) as caught:
        decode(file)
    assert caught.value.status == "corrupt"


@pytest.mark.parametrize(
    "extra",
    [
        segment(0xE2, b"MPF\0II*\0broken"),
        segment(0xE2, b"MPF\0"),
        multi_picture(0, 0),
        multi_picture() + segment(0xE2, b"MPF\0" + directory([])),
        exif(6) * 2,
    ],
)
def test_metadata_that_leaves_a_doubt_is_left_to_pillow(extra: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(write_jpeg(16, 16, extra=extra))
    assert caught.value.status == "corrupt"


RESOLUTION = (0x011A, 5, 1, struct.pack("<LL", 300, 1))
ARTIST = (0x013B, 2, 30, b"A photographer with a long name"[:30])
SOUND_EXIF = directory([RESOLUTION, ARTIST])
HUGE = struct.pack("<L", 2**31)


@pytest.mark.parametrize(
    "tags",
    [
        b"II*\0\xff\xff\xff\xff",  # a directory beyond the end
        SOUND_EXIF[:9],  # no count of entries
        SOUND_EXIF[:30],  # the second entry cut off
        directory([ARTIST])[:22],  # no offset of the next directory
        SOUND_EXIF[:-1],  # a text cut off
        directory([RESOLUTION, (0x013B, 2, 30, HUGE)]),  # a text beyond the end
        directory([(0x013B, 7, 2**32 - 1, HUGE)]),
        directory([(0x0128, 3, 3, bytes([2, 0, 2, 0, 2, 0])), RESOLUTION]),  # three units of resolution
    ],
)
def test_exif_data_of_which_pillow_warns_is_left_to_pillow(tags: bytes) -> None:
    """So that the warning is Pillow's, or its error where warnings are errors."""
    file = write_jpeg(16, 16, extra=segment(0xE1, b"Exif\0\0" + tags))
    with pytest.warns(UserWarning, match="EXIF|Truncated|[Tt]ag"):
        pillow(file)
    with pytest.raises(DecodeError) as caught:
        decode(file)
    assert caught.value.status == "corrupt"
    decode(write_jpeg(16, 16, extra=segment(0xE1, b"Exif\0\0" + SOUND_EXIF)))


@pytest.mark.parametrize("ids", [(82, 71, 66), (1, 2, 3), (0, 1, 2), (10, 20, 30)])
def test_component_ids_choose_the_color_space_as_in_pillow(ids: tuple[int, int, int]) -> None:
    file = write_jpeg(40, 40, FACTORS["4:4:4"], ids=ids)
    np.testing.assert_array_equal(decode(file), np.asarray(pillow(file)))


@pytest.mark.parametrize(
    "factors",
    [((2, 2),), ((4, 1),), ((2, 1),) * 3, ((1, 2),) * 3, ((2, 2), (1, 2), (1, 2)), ((2, 2), (2, 1), (2, 1))],
)
@pytest.mark.parametrize("progressive", [False, True])
def test_unusual_factors_of_usual_ratios(factors: tuple[tuple[int, int], ...], progressive: bool) -> None:
    if progressive and len(factors) == 1:
        factors = ((1, 1),)
    file = write_jpeg(61, 45, factors, progressive=progressive, seed=4)
    expected = np.asarray(pillow(file))
    np.testing.assert_array_equal(decode(file), expected)
    np.testing.assert_array_equal(decode(file, (17, 18, 20, 30)), expected[17:37, 18:48])


def test_rgb_jpeg_with_keep_rgb() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "JPEG", keep_rgb=True)
    np.testing.assert_array_equal(decode(buffer.getvalue()), np.asarray(pillow(buffer.getvalue())))


def test_multi_picture_file_is_its_first_picture(photo: bytes) -> None:
    buffer = io.BytesIO()
    pillow(photo).save(buffer, "MPO", save_all=True, append_images=[Image.new("RGB", (20, 20))])
    with Image.open(io.BytesIO(buffer.getvalue())) as image:
        assert image.format == "MPO"
        expected = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(decode(buffer.getvalue()), expected)


def test_tables_of_one_image_do_not_serve_the_next(photo: bytes) -> None:
    """A file without Huffman tables means the standard ones, not the previous image's."""
    buffer = io.BytesIO()
    pillow(photo).save(buffer, "JPEG", quality=50)  # the standard tables, which a Motion JPEG frame leaves out
    whole = buffer.getvalue()
    bare, at = whole[:2], 2
    while whole[at + 1] != 0xDA:
        length = 2 + int.from_bytes(whole[at + 2 : at + 4], "big")
        bare += whole[at : at + length] if whole[at + 1] != 0xC4 else b""
        at += length
    bare += whole[at:]
    expected = np.asarray(pillow(bare))
    decode(write_jpeg(40, 40, seed=1))  # tables of its own
    np.testing.assert_array_equal(decode(bare), expected)
    decode(whole)
    np.testing.assert_array_equal(decode(write_jpeg(40, 40, seed=1)), np.asarray(pillow(write_jpeg(40, 40, seed=1))))


def test_progressive_file_without_its_last_refinements_is_left_to_pillow() -> None:
    """libjpeg smooths such images, and how depends on its version."""
    file = write_jpeg(40, 40, FACTORS["gray"], progressive=True)
    without_ac = file[: file.rindex(b"\xff\xda")] + b"\xff\xd9"
    pillow(without_ac)
    with pytest.raises(DecodeError) as caught:
        decode(without_ac)
    assert caught.value.status == "unsupported"


@pytest.mark.parametrize(
    ("options", "is_exact"),
    [({"quality": 90, "progressive": True}, False), ({"quality": 30}, False), ({"quality": 95}, True)],
)
def test_fast_decodes_at_reduced_size_what_this_makes_faster(photo: bytes, options, is_exact) -> None:
    noise = Image.effect_noise((1200, 960), 40).convert("RGB")
    image = Image.blend(pillow(photo).resize((1200, 960), Image.Resampling.BICUBIC), noise, 0.3 if is_exact else 0.0)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    file = buffer.getvalue()
    is_exact = is_exact and _core.uses_own_decoder()
    for crop in ((0, 0, 960, 1200), (33, 61, 801, 907)):
        exact = decode(file, crop, (100, 90)).astype(int)
        fast = decode(file, crop, (100, 90), fast=True).astype(int)
        assert (np.abs(exact - fast).max() == 0) == is_exact
        assert np.abs(exact - fast).max() < 40
        assert np.abs(exact - fast).mean() < 2
        np.testing.assert_array_equal(decode(file, crop, (700, 900)), decode(file, crop, (700, 900), fast=True))


# jpegtran -arithmetic made this of write_jpeg(40, 33, FACTORS["4:2:0"], seed=5).
ARITHMETIC = base64.b85decode(
    "|JeWF01!$>Nk#wx0RR9200961|JwjV00##L2L}fS2L}fS2L}fS2L}fS2L}fS2L}fS2L}fS2L}fS2L}fS2L}fS2L}fS2L}fS2L}fS"
    "2L}fS2L}fS2mi?c5eNVw04M_iA^-vr00R*K|I7di01yxb0T2-"
    "d|Jncy0|5X65d#qbKLF9iOFaSiko++_Abc#`(Pvz?+Wfx@!L3$MJzUN`Ye20QR_9|Kqd`e>)-"
    "$ksnx}=pLYd*1@9lY(HQm{!$i|cM&QEl>CZkLG3l>BRGLuxlLJ3lLl&m7g#KBj&JU^YudU7soH0J8{iazr-"
    "64!GYD(B6I<%puoJ7dU+T)7IIE@WET7A#Mer!osyaYW=}u-"
    "ZJ5(GS+E*W?=zoySrztiVzQX(;N)#E&Tk=;I_Kif%^|g);p;s}6v{Zce0mfg>o$<t%b1fX$zt>=%lrZjZfCHzs%c=M9hKYDnnbm%"
    "!tRlM?(b0E0e-ay3|*zEwkJ_N>oOKCaF3K>yh"
)


def test_arithmetic_coding_is_decoded_or_named() -> None:
    whole = np.asarray(pillow(write_jpeg(40, 33, FACTORS["4:2:0"], seed=5)))
    statuses: list[str] = []
    got = decode_batch([ARITHMETIC] * 3, [(0, 0, 9, 9), (20, 13, 9, 9), (24, 31, 9, 9)], statuses=statuses)
    if statuses != ["arithmetic"] * 3:
        assert statuses == ["ok"] * 3
        np.testing.assert_array_equal(got, [whole[:9, :9], whole[20:29, 13:22], whole[24:33, 31:40]])


def test_one_thread_decodes_like_many(photo: bytes) -> None:
    images = [photo, write_jpeg(60, 60), photo] * 20
    one = decode_batch(images, size=(30, 31), num_threads=1)
    np.testing.assert_array_equal(one, decode_batch(images, size=(30, 31), num_threads=5))
    with pytest.raises(ValueError, match="num_threads must be >= 1, got 0"):
        decode_batch(images, size=(3, 3), num_threads=0)


def stub() -> ast.Module:
    return ast.parse((Path(fastload.__file__).parent / "_core.pyi").read_text())


def signatures_of(scope: object, names: Iterable[str]) -> dict[str, list[str]]:
    """Parameter names as nanobind knows them."""
    found = {}
    for name in names:
        signature = getattr(getattr(scope, name), "__nb_signature__", None)
        if signature is None:
            continue
        overload, *_ = signature  # overloads have the same names
        text = re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\[[^\[\]]*\]", "", overload[0])))
        inside = text[text.index("(") + 1 : text.rindex(")")]
        parameters = [part.split(":")[0].split("=")[0].strip() for part in inside.split(",")]
        found[name] = [parameter for parameter in parameters if parameter.isidentifier()]
    return found


def declared_in(body: list[ast.stmt]) -> dict[str, list[str]]:
    return {
        node.name: [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
        for node in body
        if isinstance(node, ast.FunctionDef)
    }


def constants_in(name: str) -> set[str]:
    (body,) = (node.body for node in stub().body if isinstance(node, ast.ClassDef) and node.name == name)
    return {ast.unparse(node.target) for node in body if isinstance(node, ast.AnnAssign)}


def test_stub_is_what_the_core_has() -> None:
    names = {name for name in vars(_core) if not name.startswith("_")}
    functions = declared_in(stub().body)
    classes = {node.name: declared_in(node.body) for node in stub().body if isinstance(node, ast.ClassDef)}
    assert names == {*functions, *classes}
    assert signatures_of(_core, functions) == functions
    for name, methods in classes.items():
        kind = getattr(_core, name)
        public = {method for method in vars(kind) if not method.startswith("_")}
        constants = {own for own in public if isinstance(getattr(kind, own), int)}
        assert constants == constants_in(name)
        public -= constants
        assert public <= set(methods), name
        assert set(methods) <= {*public, "__init__", "__len__", "__getattr__", "__setattr__"}, name
        for method, parameters in signatures_of(kind, [*public, "__init__"]).items():
            if "args" not in parameters:  # of a constructor that is made in C++
                assert [parameter for parameter in parameters if parameter != "self"] == [
                    parameter for parameter in methods[method] if parameter != "self"
                ], f"{name}.{method}"
