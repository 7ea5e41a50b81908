"""Damaged files give a clear status, Pillow's pixels or none, and bounded memory."""

from __future__ import annotations

import io
import os
import random
import struct
import threading
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest
from jpeg_writer import FACTORS, segment, write_jpeg, write_scans
from numpy.typing import NDArray
from PIL import Image

from fastload.vision import DecodeError, decode, decode_batch

pytestmark = pytest.mark.usefixtures("no_pool_stays")
FILES = {
    "baseline": write_jpeg(60, 50, FACTORS["4:2:0"], seed=1),
    "progressive": write_jpeg(60, 50, FACTORS["4:2:2"], seed=2, progressive=True),
    "restarts": write_jpeg(60, 50, FACTORS["4:4:4"], seed=3, restart=3),
    "gray": write_jpeg(60, 50, FACTORS["gray"], seed=4),
}
CROPS = [None, (0, 0, 9, 9), (30, 30, 20, 10)]
MUTATIONS = int(os.environ.get("FASTLOAD_MUTATIONS", "400"))


def pillow(data: bytes) -> NDArray[np.uint8] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError):
        return None


def compare(data: bytes) -> list[str]:
    """Return the core's status for each crop; pixels that Pillow lacks are a failure."""
    expected = pillow(data)
    statuses = []
    for crop in CROPS:
        try:
            got = decode(data, crop)
        except DecodeError as error:
            statuses.append(error.status)
            continue
        statuses.append("ok")
        assert expected is not None, f"Pillow raises, the core does not, for crop {crop}: {data.hex()}"
        if crop is not None:
            top, left, height, width = crop
            np.testing.assert_array_equal(got, expected[top : top + height, left : left + width])
        else:
            np.testing.assert_array_equal(got, expected)
    return statuses


@pytest.mark.parametrize("name", list(FILES))
def test_truncated_at_every_byte_is_never_good(name: str) -> None:
    for length in range(len(FILES[name])):
        statuses = compare(FILES[name][:length])
        assert set(statuses) == {"truncated" if length >= 3 else "not_jpeg"}, length
    assert compare(FILES[name]) == ["ok"] * 3


@pytest.mark.parametrize("name", list(FILES))
def test_end_marker_after_truncation_is_good_only_above_the_damage(name: str) -> None:
    """Some tools mend a truncated file by an end marker; Pillow pads the rest gray."""
    file = FILES[name]
    seen: Counter[str] = Counter()
    for length in range(file.rindex(b"\xff\xda") + 10, len(file) - 2):
        seen.update(compare(file[:length] + b"\xff\xd9")[1:2])
    assert seen["corrupt"] or name == "gray"
    assert seen["ok"] or name == "progressive"  # the corner's rows are whole, whatever comes below


@pytest.mark.parametrize("name", list(FILES))
def test_any_damage_is_found_or_harmless(name: str) -> None:
    rng = random.Random(name)
    seen: Counter[str] = Counter()
    for _ in range(MUTATIONS):
        data = bytearray(FILES[name])
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(2, len(data))
            match rng.randrange(4):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    data[at : at + 2] = b"\xff" + bytes([rng.randrange(0xC0, 256)])
                case 2:
                    del data[at : at + rng.randrange(1, 40)]
                case _:
                    data[at] ^= 1 << rng.randrange(8)
        seen.update(compare(bytes(data)))
    assert seen["ok"] > MUTATIONS // 20
    assert seen["corrupt"] > MUTATIONS // 20


def test_second_frame_header_below_the_region_is_noticed() -> None:
    """Only libjpeg-turbo 3 raises on it; a comparison with Pillow on random files found it."""
    file = FILES["baseline"][:-2] + segment(0xC0, struct.pack(">BHHB", 8, 50, 60, 1) + b"\1\x11\0") + b"\xff\xd9"
    assert "ok" not in compare(file)


def huge(width: int, height: int, *, progressive: bool) -> bytes:
    file = write_jpeg(16, 16, FACTORS["4:4:4"], progressive=progressive)
    at = file.index(b"\xff\xc2" if progressive else b"\xff\xc0") + 5
    return file[:at] + struct.pack(">HH", height, width) + file[at + 4 :]


@pytest.mark.parametrize("progressive", [False, True])
def test_gigabyte_claiming_header_takes_no_gigabytes(progressive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    file = huge(65500, 65500, progressive=progressive)
    before = psutil.Process().memory_info().rss
    for size in (None, (5, 5)):
        with pytest.raises(DecodeError) as caught:
            decode(file, size=size)
        assert caught.value.status == "bomb"
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    for crop in ((0, 0, 100, 100), (65000, 65000, 500, 500)):
        with pytest.raises(DecodeError) as caught:
            decode(file, crop, size=(5, 5))
        assert caught.value.status == ("unsupported" if progressive else "corrupt")
    assert psutil.Process().memory_info().rss - before < 100e6


def test_image_of_very_many_scans_is_left_to_whoever_can_be_ended() -> None:
    """Each scan visits all pixels, however few its bytes; no encoder writes more than 20."""
    few = write_scans(64, 64, 883)
    np.testing.assert_array_equal(decode(few), pillow(few))
    assert compare(few) == ["ok"] * 3
    with pytest.raises(DecodeError, match="66 scans or more of 4000 x 4100 pixels") as caught:
        decode(write_scans(4000, 4100, 200), (0, 0, 8, 8))
    assert caught.value.status == "unsupported"


def test_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path, fresh = tmp_path / "shrinking.jpg", tmp_path / "fresh.jpg"
    file = write_jpeg(300, 200, seed=1)
    expected = decode(file)
    path.write_bytes(file)
    done = threading.Event()

    def shrink() -> None:
        while not done.is_set():
            fresh.write_bytes(file)
            fresh.replace(path)
            # Whole pages: cutting within one, Linux clears its rest, which a reader may see before the new length.
            for length in (8192, 4096, 0):
                os.truncate(path, length)

    shrinker = threading.Thread(target=shrink)
    shrinker.start()
    seen: Counter[str] = Counter()
    try:
        for _ in range(300):
            statuses: list[str] = []
            got = decode_batch([path] * 4, [(0, 0, 200, 300)] * 4, statuses=statuses)
            for image, status in zip(got, statuses, strict=True):
                np.testing.assert_array_equal(image, expected if status == "ok" else 0)
            seen.update(statuses)
    finally:
        done.set()
        shrinker.join()
    assert set(seen) <= {"ok", "truncated", "corrupt", "not_jpeg"}
    assert len(seen) > 1


@pytest.mark.slow
def test_nothing_leaks_over_100000_decodes(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(FILES["baseline"])
    images = [
        *FILES.values(),
        FILES["baseline"][:300],
        FILES["progressive"][:-30],
        FILES["gray"][:200] + b"\xff\xd9",
        b"no",
        path,
        tmp_path / "missing",
    ]
    images *= 100
    out = np.empty((len(images), 7, 8, 3), np.uint8)
    process = psutil.Process()
    statuses: list[str] = []

    def run(times: int) -> None:
        for _ in range(times):
            decode_batch(images, size=(7, 8), out=out, statuses=statuses, num_threads=2)

    run(10)
    descriptors, memory = process.num_fds(), [process.memory_info().rss]
    # What leaks grows every time; an allocator that keeps a little more, after thousands of tests, does so once.
    while len(memory) == 1 or (len(memory) < 5 and memory[-1] - memory[-2] >= 4e6):
        run(100)
        memory.append(process.memory_info().rss)
    assert Counter(statuses)["ok"] == 500
    assert memory[-1] - memory[-2] < 4e6, memory  # 40 bytes per decode would show
    assert process.num_fds() == descriptors


@pytest.mark.slow
def test_memory_of_a_huge_image_is_given_back() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((8000, 6000)).save(buffer, "JPEG", progressive=True)
    decode(FILES["baseline"])
    before = psutil.Process().memory_info().rss
    decode(buffer.getvalue(), (0, 0, 6000, 8000), (50, 50))
    assert psutil.Process().memory_info().rss - before < 30e6
