"""Test the kernels that find points of files without an index, on the CPU."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
import torch
from decode_on_cpu import KernelsOnCpu, kernels_fixture, pool_fixture
from jpeg_writer import segment
from PIL import Image
from stageable import KINDS, noise

from fastload import _core

kernels, pool = kernels_fixture, pool_fixture

SIDE = 32


def encoded(image: Image.Image, **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, "JPEG", **options)
    return data.getvalue()


def varied() -> list[bytes]:
    """Files of all kinds, of one subsequence to some hundred."""
    kinds = [kind for kind in KINDS if not kind.get("progressive")]
    made = [encoded(noise(20 + 110 * n, 30 + 90 * n, n), **kind) for n, kind in enumerate(kinds)]
    gray = encoded(noise(300, 200, 9).convert("L"), quality=85)
    flat = encoded(Image.new("RGB", (640, 480), (90, 120, 200)), quality=90)
    every_mcu = encoded(noise(64, 80, 3), restart_marker_blocks=1)
    return [*made, gray, flat, every_mcu]


FILES = varied()


def crops_of(files: list[bytes], seed: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    rng = np.random.default_rng(seed)
    rows = []
    for data in files:
        width, height = Image.open(io.BytesIO(data)).size
        top, left = rng.integers(0, height // 2), rng.integers(0, width // 2)
        size = rng.integers(9, height - top + 1), rng.integers(9, width - left + 1)
        rows.append([top, left, *size, SIDE, SIDE, 0, 0, SIDE, SIDE, 0, 0])
    return np.array(rows, np.int32)


class Found:
    """A batch whose points the kernels are to find, and the threads' pixels."""

    def __init__(self, pool: _core.Pool, files: list[bytes], seed: int = 0, *, corner: bool = False) -> None:
        self.files, self.crops = files, crops_of(files, seed)
        if corner:  # of which the later kernels decode the first MCUs only
            self.crops[:, :4] = 0, 0, 8, 8
        shape = (len(files), SIDE, SIDE, 3)
        self.want, self.pixels = torch.zeros(shape, dtype=torch.uint8), torch.zeros(shape, dtype=torch.uint8)
        self.known, self.learned = (_core.JpegIndex(1 << 24, whole=True) for _ in range(2))
        pool.submit(files, self.want, geometry=self.crops, index=self.known).wait()
        self.memory = torch.zeros(1 << 22, dtype=torch.uint8)
        self.staging = _core.Staging(self.memory, len(files), new_file="find")
        pool.submit(files, self.pixels, geometry=self.crops, index=self.learned, staging=self.staging).wait()

    @property
    def has(self) -> list[bool]:
        return [*map(bool, self.staging.has())]

    def scan(self, image: int) -> torch.Tensor:
        at = image * _core.Staging.bytes_per_image
        begin, size = self.memory[at : at + 8].view(torch.int32).tolist()
        return self.memory[begin : begin + size]

    def decode(self, kernels: KernelsOnCpu) -> list[int]:
        return kernels.decode(self.staging, self.memory, self.pixels, len(self.files))

    def same(self) -> list[bool]:
        return [torch.equal(a, b) for a, b in zip(self.pixels, self.want, strict=True)]


@pytest.mark.parametrize("seed", range(2))
def test_same_bits_as_on_threads(kernels, pool, seed):
    found = Found(pool, FILES, seed)
    assert all(found.has)
    assert found.decode(kernels) == []
    assert all(found.same())


def staged(pool: _core.Pool, batch: Found, index: _core.JpegIndex | None, **options: Any) -> Any:
    """Stage the files anew."""
    staging = _core.Staging(batch.memory, len(batch.files), **options)
    pool.submit(batch.files, batch.pixels.zero_(), geometry=batch.crops, index=index, staging=staging).wait()
    return staging


NOTED = [min(Image.open(io.BytesIO(data)).size) >= 100 for data in FILES]  # of at least 64 MCUs


def check_noted(pool: _core.Pool, kernels: KernelsOnCpu, found: Found) -> None:
    """The index knows what threads would have noted, and the kernels decode from it."""
    known, noted = found.known.totals(), found.learned.totals()
    assert noted[:2] == known[:2]
    staging = staged(pool, found, found.learned)
    assert [*map(bool, staging.has())] == NOTED
    assert staging.search[0] == 0
    assert kernels.decode(staging, found.memory, found.pixels, len(FILES)) == []
    assert all(found.same())


def test_the_index_learns_what_threads_would_have_noted(kernels, pool):
    found = Found(pool, FILES)
    found.decode(kernels)
    points = found.staging.found(kernels.points, kernels.bad)
    for _ in FILES:
        assert not points.done
        points.learn(found.learned)
    assert points.done
    points.learn(found.learned)
    check_noted(pool, kernels, found)


def test_threads_note_what_was_found_before(kernels, pool):
    found = Found(pool, FILES)
    found.decode(kernels)
    points = found.staging.found(kernels.points, kernels.bad)
    staged(pool, found, None, found=points)
    assert not points.done
    staged(pool, found, found.learned, found=points)
    assert points.done
    check_noted(pool, kernels, found)


def test_nothing_is_noted_of_images_that_kernels_could_not_decode(kernels, pool):
    found = Found(pool, FILES)
    found.decode(kernels)
    points = found.staging.found(kernels.points, torch.ones_like(kernels.bad))
    assert points.done
    with pytest.raises(ValueError, match="as large as"):
        found.staging.found(kernels.points, kernels.bad[1:])


def test_threads_may_scan_files_for_points(kernels, pool):
    found = Found(pool, FILES)
    staging = staged(pool, found, found.learned, new_file="scan")
    assert [*map(bool, staging.has())] == NOTED
    assert staging.search[0] == 0
    check_noted(pool, kernels, found)


@pytest.mark.parametrize("new_file", ["refuse", "scan", "find"])
def test_without_an_index_all_files_are_new(kernels, pool, new_file):
    found = Found(pool, FILES)
    staging = staged(pool, found, None, new_file=new_file)
    assert any(staging.has()) == (new_file == "find")
    assert kernels.decode(staging, found.memory, found.pixels, len(FILES)) == []
    assert all(found.same())


def test_an_image_that_is_taken_out_is_left_alone(kernels, pool):
    """Once the others have been decoded, they may be so anew."""
    found = Found(pool, FILES)
    assert found.decode(kernels) == []
    found.staging.remove(3)
    found.pixels.zero_()
    found.pixels[3] = 7
    assert kernels.decode(found.staging, found.memory, found.pixels, len(FILES), again=True) == []
    assert found.same() == [number != 3 for number in range(len(FILES))]
    assert set(found.pixels[3].flatten().tolist()) == {7}


def with_scan(data: bytes, change: Any) -> bytes:
    """The file with another scan: ``change`` takes the stuffed data and returns it."""
    start = data.index(b"\xff\xda")
    start += 2 + int.from_bytes(data[start + 2 : start + 4], "big")
    return data[:start] + change(data[start:-2]) + data[-2:]


@pytest.mark.parametrize(
    "change",
    [
        lambda scan: scan + b"\x12",  # data behind the last block
        lambda scan: scan[:-9],  # blocks are missing
        lambda scan: scan[: len(scan) // 2] + b"\xff\xd3" + scan[len(scan) // 2 :],  # a restart without an interval
        lambda scan: b"",
    ],
    ids=["longer", "shorter", "marker", "empty"],
)
def test_scans_that_do_not_come_out_even_go_to_the_threads(kernels, pool, change):
    damaged = with_scan(FILES[2], change)
    found = Found(pool, [FILES[1], damaged, FILES[3]])
    assert found.has[0]
    assert found.has[2]
    assert found.decode(kernels) == ([1] if found.has[1] else [])
    assert found.same()[0]
    assert found.same()[2]


def test_a_scan_without_data_goes_to_the_threads(kernels, pool):
    """Nothing to search, and so no room for what a search writes."""
    small = encoded(noise(24, 24, 1))
    found = Found(pool, [with_scan(small, lambda scan: b""), FILES[1]])
    assert found.has == [False, True]
    assert found.decode(kernels) == []
    assert found.same()[1]


def staged_in(pool: _core.Pool, data: bytes, size: int) -> Any:
    """Stage a file for one pixel in so many bytes, or return None."""
    memory = torch.zeros(size, dtype=torch.uint8)
    staging = _core.Staging(memory, 1, new_file="find")
    out, geometry = (
        torch.zeros(1, 1, 1, 3, dtype=torch.uint8),
        np.array([[0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0]], np.int32),
    )
    pool.submit([data], out, geometry=geometry, staging=staging).wait()
    return staging if staging.has() == b"\1" else None


@pytest.mark.parametrize("size", [32_600, 32_660])
def test_all_that_a_search_needs_has_room(pool, size):
    """Also one more block of threads, for scans of about 256 subsequences."""
    data = with_scan(FILES[1], lambda _: bytes(size))
    low, high = 1 << 10, 1 << 17
    while low < high:  # the least room that is enough
        middle = (low + high) // 2
        low, high = (low, middle) if staged_in(pool, data, middle) else (middle + 1, high)
    staging = staged_in(pool, data, low)
    staging.finish(1 << 28)
    assert staging.used + staging.search[4] <= low
    assert low <= staging.used + staging.search[4] + 160  # what the header of the file might have taken


def restarts(data: bytes, change: Any) -> bytes:
    """The file with other data between its restart markers."""

    def changed(scan: bytes) -> bytes:
        parts, begin, at = [], 0, 0
        while (at := scan.find(b"\xff", at)) >= 0:
            if 0xD0 <= scan[at + 1] <= 0xD7:
                parts.append(scan[begin:at])
                begin = at + 2
            at += 2
        parts.append(scan[begin:])
        parts = change(parts)
        return b"".join(part + bytes([0xFF, 0xD0 + n % 8]) for n, part in enumerate(parts[:-1])) + parts[-1]

    return with_scan(data, changed)


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: [parts[0] + parts[1], *parts[2:], parts[-1]],  # two intervals in one, and one more at the end
        lambda parts: [parts[0] + b"\x00", *parts[1:]],
        lambda parts: [parts[0][:-1], *parts[1:]],
        lambda parts: parts[:-1],
    ],
    ids=["joined", "longer", "shorter", "fewer"],
)
def test_restarts_have_to_be_where_the_interval_says(kernels, pool, change):
    file = FILES[5]
    assert restarts(file, lambda parts: parts) == file
    found = Found(pool, [restarts(file, change), FILES[1]])
    assert found.decode(kernels) == ([0] if found.has[0] else [])
    assert found.same()[1]


@pytest.mark.parametrize("seed", range(6))
def test_hostile_bits_are_refused_and_nothing_else_is_written(kernels, pool, seed):
    found = Found(pool, FILES)
    generator = torch.Generator().manual_seed(seed)
    hostile = [*range(seed % 2, len(FILES), 2)]
    for number in hostile:
        scan = found.scan(number)
        if seed < 3:
            scan.copy_(torch.randint(256, scan.shape, dtype=torch.uint8, generator=generator))
        else:
            at = int(torch.randint(len(scan), (1,), generator=generator))
            scan[at] ^= 1 << seed
    bad = found.decode(kernels)
    assert {*bad} <= {*hostile}
    if seed < 3:
        assert bad == hostile
    same = found.same()
    assert all(same[number] for number in range(len(FILES)) if number not in hostile)


def handmade(columns: int, rows: int, intervals: list[str], *, dc: int = 0, ac: bytes = b"\0", every: int = 0) -> bytes:
    """A 4:4:4 file of the bits of its intervals.

    Codes are 0 for the DC symbol, and 0, 10 and so on for AC symbols.
    """
    counts = bytes([1] * len(ac) + [0] * (16 - len(ac)))
    frame = struct.pack(">BHHB", 8, 8 * rows, 8 * columns, 3) + b"".join(bytes([c, 0x11, 0]) for c in (1, 2, 3))
    parts = [segment(0xDB, bytes([0, *[1] * 64])), segment(0xC0, frame)]
    parts += [segment(0xC4, bytes([0x00, 1, *[0] * 15, dc])), segment(0xC4, bytes([0x10]) + counts + ac)]
    if every:
        parts.append(segment(0xDD, struct.pack(">H", every)))
    parts.append(segment(0xDA, bytes([3, 1, 0, 2, 0, 3, 0, 0, 63, 0])))
    for number, bits in enumerate(intervals):
        padded = bits + "1" * (-len(bits) % 8)
        data = int(padded, 2).to_bytes(len(padded) // 8, "big").replace(b"\xff", b"\xff\0")
        last = number == len(intervals) - 1
        parts.append(data + (b"\xff\xd9" if last else bytes([0xFF, 0xD0 + number % 8])))
    return b"\xff\xd8" + b"".join(parts)


def refused(kernels: KernelsOnCpu, pool: _core.Pool, file: bytes) -> None:
    """The kernels leave the file to the host, and other files alone."""
    found = Found(pool, [FILES[0], file, FILES[1]], corner=True)
    assert found.has == [True] * 3
    assert found.decode(kernels) == [1]
    assert [found.same()[number] for number in (0, 2)] == [True, True]


def test_a_scan_that_does_not_synchronize_is_left_to_the_host(kernels, pool):
    """Whose MCUs have 381 bits, of which none tells a decoder where it is."""
    refused(kernels, pool, handmade(40, 20, ["0" * 381 * 800], ac=b"\x01"))


BLOCK = "00"  # DC 0, and the end


@pytest.mark.parametrize("columns", [8, 48], ids=["one subsequence", "many"])
@pytest.mark.parametrize(
    "blocks",
    [
        lambda n: [3 * n, 3 * n],
        lambda n: [3 * n - 3, 3 * n + 3],
        lambda n: [3 * n - 1, 3 * n + 1],
        lambda n: [3 * n, 3 * n - 3],
        lambda n: [3 * n, 3 * n + 3],
        lambda n: [3 * n, 6 * n],
    ],
    ids=["right", "an MCU early", "a block early", "an MCU too few", "an MCU too many", "far too many"],
)
def test_intervals_and_scans_have_to_have_their_mcus(kernels, pool, columns, blocks):
    n = columns * 24 // 2
    file = handmade(columns, 24, [BLOCK * count for count in blocks(n)], every=n)
    if blocks(n) != [3 * n, 3 * n]:
        refused(kernels, pool, file)
        return
    found = Found(pool, [FILES[0], file])
    assert found.decode(kernels) == []
    assert all(found.same())


def test_more_and_more_blocks_write_no_points_behind_the_last(kernels, pool):
    """Each interval lacks a block, whose MCU counts all the same."""
    intervals = [BLOCK * 2] * 63 + [BLOCK * 3 * 3000]
    refused(kernels, pool, handmade(8, 8, intervals, every=1))


def test_predictors_beyond_16_bits_are_left_to_the_host(kernels, pool):
    refused(kernels, pool, handmade(8, 8, [("0" + "1" * 11 + "0") * 3 * 64], dc=11))


def test_coefficients_beyond_a_block_are_left_to_the_host(kernels, pool):
    """Of runs of 16 zeros the fourth ends behind the block."""
    refused(kernels, pool, handmade(8, 8, [BLOCK * (3 * 64 - 1) + "010101010"], ac=b"\x00\xf0"))
