"""Files read in chunks give Pillow's pixels, in bounded memory, without unneeded reads."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from jpeg_writer import FACTORS, segment, write_jpeg
from numpy.typing import NDArray
from PIL import Image
from png_writer import SIGNATURE, chunk, header, riff

from fastload import _core
from fastload.vision import DecodeError, decode, decode_batch, jpeg_info

pytestmark = pytest.mark.usefixtures("no_pool_stays")
WHOLE = 1 << 20  # bytes; larger files are read in chunks
CHUNK = 1 << 18
FILES = {
    "baseline": write_jpeg(60, 50, FACTORS["4:2:0"], seed=1),
    "progressive": write_jpeg(60, 50, FACTORS["4:2:2"], seed=2, progressive=True),
    "restarts": write_jpeg(60, 50, FACTORS["4:4:4"], seed=3, restart=3),
}


def pillow(data: bytes) -> NDArray[np.uint8]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def noise(**options: object) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (800, 1000, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=100, **options)
    return buffer.getvalue()


def metadata(sizes: list[int]) -> bytes:
    return b"".join(segment(0xE0 + 3 + i % 9, bytes([i % 256]) * size) for i, size in enumerate(sizes))


LARGE: dict[str, Callable[[], bytes]] = {
    "baseline": lambda: noise(subsampling="4:4:4"),
    "restarts": lambda: noise(restart_marker_blocks=7),
    "progressive": lambda: noise(progressive=True),
    "full header": lambda: write_jpeg(90, 80, extra=metadata([65533] * 20), seed=5),
    "odd segments": lambda: write_jpeg(90, 80, extra=metadata([*range(0, 65534, 1009)] * 2), seed=6),
    "little segments": lambda: write_jpeg(90, 80, extra=metadata([1] * 250_000), seed=7),
}


@pytest.mark.parametrize("name", list(LARGE))
def test_every_region_of_a_large_file_is_pillows(name: str, tmp_path: Path) -> None:
    file = LARGE[name]()
    assert len(file) > WHOLE
    path = tmp_path / "large.jpg"
    path.write_bytes(file)
    expected = pillow(file)
    height, width = expected.shape[:2]
    assert jpeg_info(path) == jpeg_info(file)
    np.testing.assert_array_equal(decode(path), expected)
    rng = np.random.default_rng(0)
    for _ in range(12):
        top, left = int(rng.integers(height)), int(rng.integers(width))
        rows, columns = int(rng.integers(1, height - top + 1)), int(rng.integers(1, width - left + 1))
        got = decode(path, (top, left, rows, columns))
        np.testing.assert_array_equal(got, expected[top : top + rows, left : left + columns])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FILES))
def test_chunk_may_end_at_any_byte(name: str, tmp_path: Path) -> None:
    """Fill bytes before the first marker shift the file against the chunks."""
    file = FILES[name]
    expected = pillow(file)
    path = tmp_path / "shifted.jpg"
    for at in [*range(3, len(file), 17), len(file) - 2, len(file) - 1]:
        path.write_bytes(file[:2] + b"\xff" * (5 * CHUNK - at) + file[2:])
        np.testing.assert_array_equal(decode(path), expected, str(at))
        np.testing.assert_array_equal(decode(path, (3, 5, 8, 9)), expected[3:11, 5:14], str(at))


@pytest.mark.parametrize("name", ["baseline", "progressive", "odd segments"])
def test_large_file_that_is_cut_off_is_truncated(name: str, tmp_path: Path) -> None:
    file = LARGE[name]()
    path = tmp_path / "short.jpg"
    for length in (len(file) - 1, len(file) - 2, len(file) * 9 // 10, 4 * CHUNK + 1, 5 * CHUNK):
        if length >= len(file):
            continue
        path.write_bytes(file[:length])
        for crop in (None, (0, 0, 9, 9), (30, 30, 20, 10)):
            with pytest.raises(DecodeError) as caught:
                decode(path, crop)
            assert caught.value.status == "truncated"


def sparse(path: Path, start: bytes, size: int = 1 << 32) -> Path:
    path.write_bytes(start)
    os.truncate(path, size)
    return path


SCRIPT = """
import importlib.util, json, resource, sys, time
import numpy as np
spec = importlib.util.spec_from_file_location("_core", sys.argv[1])  # without the package, which takes memory itself
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
def decode(paths):
    geometry = np.zeros((len(paths), 12), np.int32)
    geometry[:, 4:6] = 8
    job = pool.submit(paths, np.zeros((len(paths), 8, 8, 3), np.uint8), geometry=geometry, max_pixels=10**8)
    job.wait()
    return [core.status_names()[code] for code in job.statuses()]
core.set_trusted_formats(2 ** len(core.format_names()) - 1)
pool = core.Pool(4)
decode(sys.argv[2:3] * 40)
before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
statuses = decode(sys.argv[3:])
took, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([statuses, took, (after - before) * 1024]))
pool.close()
"""


def test_gigabyte_files_take_no_gigabytes(tmp_path: Path) -> None:
    small = write_jpeg(300, 200, seed=1)
    scan = small.rindex(b"\xff\xda") + 14
    frame = small.index(b"\xff\xc0")
    kinds = {
        "no.bin": (b"", "not_jpeg"),
        "no.jpg": (small[:frame], "corrupt"),
        "zeros.jpg": (small[: scan + 500], "corrupt"),
        "sound.jpg": (small, "ok"),
        "cmyk.jpg": (write_jpeg(9, 9, ((1, 1),) * 4), "cmyk"),
        "claim.jpg": (small[: frame + 5] + struct.pack(">HH", 60_000, 60_000) + small[frame + 9 :], "bomb"),
    }
    rows = zlib.compress(bytes(48 * 193))
    pngs = {"sound": chunk(b"IDAT", rows) + chunk(b"IEND")}
    pngs |= {name: struct.pack(">I", 0x7FFFFFFF) + name.encode() + rows for name in ("IDAT", "tEXt", "prVt")}
    for name, chunks in pngs.items():
        kinds[f"{name}.png"] = SIGNATURE + header(64, 48) + chunks, "ok" if name == "sound" else "corrupt"
    kinds["claim.png"] = SIGNATURE + header(60_000, 60_000) + pngs["IDAT"], "bomb"
    if "WebP" in _core.codec_versions():
        file = io.BytesIO()
        Image.new("RGB", (64, 48)).save(file, "WEBP", lossless=True)
        webp, claim = file.getvalue(), struct.pack("<I", 0xFFFFFFF)
        kinds["sound.webp"] = webp, "corrupt"  # its end is not where it says
        kinds["size.webp"] = webp[:4] + struct.pack("<I", (1 << 32) - 8) + webp[8:], "corrupt"
        kinds["claim.webp"] = riff((b"VP8L", webp[20:21] + claim + webp[25:])), "bomb"
    paths = [
        sparse(tmp_path / name, start, len(start) if name == "claim.webp" else 1 << 32)
        for name, (start, _) in kinds.items()
    ]
    (tmp_path / "small.jpg").write_bytes(small)
    command = [sys.executable, "-c", SCRIPT, _core.__file__, tmp_path / "small.jpg", *paths * 4]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    statuses, took, grown = json.loads(out)
    assert statuses == [status for _, status in kinds.values()] * 4
    assert took < 50  # reading them would take minutes
    assert grown < 20e6


def test_rest_that_no_image_can_take_is_left_to_pillow(tmp_path: Path) -> None:
    """Otherwise all of an endless file would be read for a few of its rows."""
    path = sparse(tmp_path / "zeros.jpg", write_jpeg(300, 200, seed=1)[:-2], 2**36)
    pool = _core.Pool(1)
    geometry = np.array([[0, 0, 8, 8, *[0] * 8]], np.int32)
    job = pool.submit([path], np.empty((1, 8, 8, 3), np.uint8), geometry=geometry)
    assert job.wait(5.0) == "done"
    assert (job.outcome(0)[0], job.outcome(0)[5]) == ("corrupt", "no end marker")
    pool.close()


def waiting(pool: _core.Pool, paths: list[Path]) -> tuple[_core.Job, NDArray[np.uint8]]:
    """Make a job whose draws wait for its first sample, which cannot be read."""
    plan = _core.DrawPlan()
    plan.add("random_crop_v1", height=8, width=8)
    images = [paths[0].parent / "missing", *paths]
    out = np.full((len(images), 8, 8, 3), 7, np.uint8)
    job = pool.submit(images, out, plan=plan, stream=_core.RandomStream.from_seed(1))
    assert job.wait(30.0) == "requested"
    after = pool.submit([write_jpeg(8, 8)], np.empty((1, 8, 8, 3), np.uint8), geometry=np.zeros((1, 12), np.int32))
    assert after.wait(30.0) == "done"  # by the pool's one thread, so all that came before is read
    return job, out


def statuses_of(job: _core.Job) -> list[str]:
    job.skip(job.generator_before(0) or b"")
    assert job.wait(30.0) == "done"
    return [_core.status_names()[code] for code in job.statuses()[1:]]


def test_file_that_is_exchanged_between_header_and_decode_is_not_taken(tmp_path: Path) -> None:
    extra = metadata([65533] * 20)
    paths = [tmp_path / f"{name}.jpg" for name in ("same", "exchanged", "written", "gone")]
    for path in paths:
        path.write_bytes(write_jpeg(90, 80, extra=extra))
    pool = _core.Pool(1)
    job, out = waiting(pool, paths)
    (tmp_path / "new").write_bytes(write_jpeg(90, 80, extra=extra, seed=1))
    (tmp_path / "new").replace(paths[1])
    os.utime(paths[2], ns=(1, 1))
    paths[3].unlink()
    assert statuses_of(job) == ["ok", "corrupt", "corrupt", "unreadable"]
    assert job.outcome(2)[5] == "the file has changed since its header was read"
    assert out[1].any()
    assert not out[2:].any()
    pool.close()


def test_files_that_wait_for_their_draws_take_little_memory(tmp_path: Path) -> None:
    """Whole files are held up to 64 MiB; the others are read once more."""
    path = sparse(tmp_path / "a.jpg", write_jpeg(90, 80), WHOLE - 4096)
    small = tmp_path / "b.jpg"
    small.write_bytes(write_jpeg(90, 80))
    pool = _core.Pool(1)
    before = psutil.Process().memory_info().rss
    job, out = waiting(pool, [path] * 250 + [small] * 50)
    assert psutil.Process().memory_info().rss - before < 90e6
    assert statuses_of(job) == ["ok"] * 300
    pool.close()
    alone = np.empty((300, 8, 8, 3), np.uint8)
    crops = [job.geometry(i)[:4] for i in range(1, 301)]  # type: ignore[index]
    np.testing.assert_array_equal(decode_batch([small] * 300, crops, out=alone, num_threads=1), out[1:])
