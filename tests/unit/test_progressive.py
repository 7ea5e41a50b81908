"""Test that progressive files have Pillow's pixels, or are left to libjpeg."""

from __future__ import annotations

import io
import random
import struct
from typing import Any

import numpy as np
import pytest
import torch
from decode_on_cpu import KernelsOnCpu, kernels_fixture, pool_fixture
from jpeg_writer import FACTORS, segment, write_block, write_jpeg, write_scans, write_symbols
from PIL import Image
from stageable import PLANES, QUANTIZATION, ROW_ENDS, SCAN_COUNT, VALUES, noise, staged_number

from fastload import _core

kernels, pool = kernels_fixture, pool_fixture

SIDE = 24


def encoded(image: Image.Image, **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, "JPEG", progressive=True, **options)
    return data.getvalue()


class Staged:
    """Files without an index, whose crops are made by threads alone and are staged."""

    def __init__(self, pool: _core.Pool, files: list[bytes], crops: Any = None) -> None:
        self.count = len(files)
        rows = np.array([[0, 0, 0, 0, SIDE, SIDE, 0, 0, SIDE, SIDE, 0, 0]] * self.count, np.int32)
        if crops is not None:
            rows[:, :4] = crops
        self.want, self.pixels = (torch.zeros((self.count, SIDE, SIDE, 3), dtype=torch.uint8) for _ in range(2))
        job = pool.submit(files, self.want, geometry=rows)
        job.wait()
        self.statuses = job.statuses()
        self.memory = torch.zeros(self.count << 18, dtype=torch.uint8)
        self.staging = _core.Staging(self.memory, self.count)
        job = pool.submit(files, self.pixels, geometry=rows, staging=self.staging)
        job.wait()
        assert job.statuses() == self.statuses
        self.has = [*self.staging.has()]

    def decode(self, kernels: KernelsOnCpu) -> None:
        """Check that the kernels make the pixels that threads make."""
        if not any(self.has):
            return
        assert not any(torch.equal(self.pixels[i], self.want[i]) for i in range(self.count) if self.has[i])
        refused = kernels.decode(self.staging, self.memory, self.pixels, self.count)
        same = [torch.equal(*both) for both in zip(self.pixels, self.want, strict=True)]
        assert [i for i in range(self.count) if not same[i] and i not in refused] == []
        self.refused = refused


def varied() -> list[bytes]:
    sizes = [(24, 24), (97, 61), (120, 83), (31, 200), (64, 64), (45, 46), (127, 25)]
    options: list[dict[str, Any]] = [
        {"quality": 90},
        {"quality": 75, "subsampling": 0},
        {"quality": 60, "subsampling": 1},
        {"quality": 100, "subsampling": 0},
        {"quality": 95, "restart_marker_blocks": 5},
        {"quality": 80, "restart_marker_rows": 1},
        {"quality": 5},
    ]
    made = [encoded(noise(*size, 1), **kind) for size, kind in zip(sizes, options, strict=True)]
    made += [
        encoded(noise(*size, 2).convert("L"), **kind) for size, kind in zip(sizes[::2], options[::4], strict=False)
    ]
    for restart in (0, 1, 7):
        made += [write_jpeg(70, 50, FACTORS[name], restart=restart, progressive=True) for name in ("4:2:0", "gray")]
    return made


def test_crops_have_pillows_pixels(kernels, pool):
    files, rng = varied() * 2, np.random.default_rng(1)
    images = [Image.open(io.BytesIO(file)).convert("RGB") for file in files]
    corners = [rng.integers(0, (image.height - SIDE + 1, image.width - SIDE + 1)) for image in images]
    staged = Staged(pool, files, [(top, left, SIDE, SIDE) for top, left in corners])
    assert all(staged.has)
    assert staged.staging.new_files == staged.staging.search[0] == staged.staging.codes[1] == 0
    staged.decode(kernels)
    assert staged.refused == []
    for made, image, (top, left) in zip(staged.pixels, images, corners, strict=True):
        want = np.asarray(image.crop((left, top, left + SIDE, top + SIDE)))
        np.testing.assert_array_equal(made.numpy(), want)


@pytest.mark.parametrize("seed", range(6))
def test_damaged_files_are_what_threads_make_of_them(kernels, pool, seed):
    rng, files = random.Random(seed), []
    for file in varied() * 3:
        changed = bytearray(file)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(0 if rng.random() < 0.3 else len(file) // 2, len(file))] ^= 1 << rng.randrange(8)
        files.append(bytes(changed))
    staged = Staged(pool, files)
    assert [status for status, has in zip(staged.statuses, staged.has, strict=True) if has and status] == []
    staged.decode(kernels)


def parts(file: bytes) -> tuple[bytes, list[bytes]]:
    """A file's header, and its scans with their tables, without the end marker."""
    at, begin, header, scans = 2, 0, b"", []
    while file[at + 1] != 0xD9:
        marker, length = file[at + 1], int.from_bytes(file[at + 2 : at + 4], "big")
        if not begin and marker == 0xC4:
            begin, header = at, file[:at]
        at += 2 + length
        if marker == 0xDA:
            while file[at] != 0xFF or file[at + 1] == 0 or 0xD0 <= file[at + 1] <= 0xD7:
                at += 1
            scans.append(file[begin:at])
            begin = at
    return header, scans


END = b"\xff\xd9"
PHOTO = encoded(noise(90, 75, 3), quality=90)
HEADER, SCANS = parts(PHOTO)


def scan_at(scan: bytes) -> int:
    """Where a scan's data begin."""
    at = scan.index(b"\xff\xda")
    return at + 2 + int.from_bytes(scan[at + 2 : at + 4], "big")


def with_bits(scan: bytes, first: int, last: int, bits: int) -> bytes:
    """A scan of other coefficients, and bits of them."""
    at = scan_at(scan)
    return scan[: at - 3] + bytes([first, last, bits]) + scan[at:]


def flat(size: tuple[int, int], ways: list[tuple[int, int, int]]) -> bytes:
    """A gray file whose scans of those AC coefficients and bits are zeros."""
    header, (dc, ac) = parts(write_scans(*size, 2))
    scans = [with_bits(ac, *way) for way in ways]
    return header + dc + b"".join(scans) + END


GRAY = write_jpeg(64, 64, FACTORS["gray"], progressive=True)
EMPTY = [(0, 0, 0, 0)]  # a block without more coefficients


def with_interval(blocks: int, scan: bytes) -> bytes:
    return struct.pack(">BBHH", 0xFF, 0xDD, 4, blocks) + scan


def with_levels(low: int, file: bytes) -> bytes:
    """A gray file of 64 blocks with so many scans of DC bits: zeros."""
    header, (dc, ac) = parts(file)
    later = [with_bits(dc[: scan_at(dc)], 0, 0, high << 4 | high - 1) + bytes(8) for high in range(low, 0, -1)]
    header = header.replace(bytes([7] * 64), bytes([1] * 64))
    return header + with_bits(dc, 0, 0, low) + b"".join(later) + ac + END


def refined(low: int) -> list[tuple[int, int, int]]:
    return [(1, 63, low), *((1, 63, high << 4 | high - 1) for high in range(low, 0, -1))]


def damaged() -> dict[str, bytes]:
    """Files that libjpeg warns about, refuses, smooths, or reads in its own way."""
    made = {f"{count} of its scans": HEADER + b"".join(SCANS[:count]) + END for count in range(1, len(SCANS))}
    for count, scan in enumerate(SCANS):
        made[f"without scan {count}"] = HEADER + b"".join([*SCANS[:count], *SCANS[count + 1 :]]) + END
        made[f"scan {count} twice"] = HEADER + b"".join([*SCANS[: count + 1], scan, *SCANS[count + 1 :]]) + END
        for name, piece in (
            ("cut", scan[:-2]),
            ("with a byte", scan + b"\x12"),
            ("with a zero", scan + b"\0"),
            ("with a fill byte in its data", scan[: scan_at(scan) + 9] + b"\xff" + scan[scan_at(scan) + 9 :]),
            ("with a restart", scan + b"\xff\xd0"),
            ("with other quantization", segment(0xDB, b"\1" + bytes([9] * 64)) + scan),
            ("with a marker of Adobe's", segment(0xEE, b"Adobe\0\x64\0\0\0\0\0") + scan),
        ):
            if count or ("with other" not in name and "Adobe" not in name):
                made[f"scan {count} {name}"] = HEADER + b"".join([*SCANS[:count], piece, *SCANS[count + 1 :]]) + END
    made["swapped"] = HEADER + b"".join([SCANS[1], SCANS[0], *SCANS[2:]]) + END
    made["no end"] = PHOTO[:-2]
    made["truncated"] = PHOTO[: len(PHOTO) // 2]
    frame = PHOTO.index(b"\xff\xc2")
    made["arithmetic"] = PHOTO[: frame + 1] + b"\xca" + PHOTO[frame + 2 :]
    made["other quantization table"] = PHOTO[: frame + 12] + b"\3" + PHOTO[frame + 13 :]
    restarts = write_jpeg(64, 64, FACTORS["gray"], restart=3, progressive=True)
    for marker in (b"\xff\xd0", b"\xff\xd3"):
        at = restarts.rindex(marker)
        made[f"without {marker.hex()}"] = restarts[:at] + restarts[at + 2 :]
        made[f"renumbered {marker.hex()}"] = restarts[: at + 1] + b"\xd6" + restarts[at + 2 :]
    made["wide samples"] = write_jpeg(64, 64, ((4, 1), (1, 1), (1, 1)), progressive=True)
    made["rgb"] = write_jpeg(64, 64, FACTORS["4:4:4"], progressive=True, ids=b"RGB")
    made["two columns of chroma"] = write_jpeg(4, 64, FACTORS["4:2:0"], progressive=True)
    made["bits refined from another one"] = flat((64, 64), [(1, 63, 2), (1, 63, 0x10)])
    made["bits refined twice"] = flat((64, 64), [(1, 63, 1), (1, 63, 0x10), (1, 63, 0x10)])
    made["more than one bit refined"] = flat((64, 64), [(1, 63, 2), (1, 63, 0x20)])
    for name, count, place, value in (
        ("component", 1, -5, 9),
        ("table", 1, -4, 4),
        ("last one", 1, -2, 64),
        ("last one before the first", 1, -2, 0),
        ("last one of DC", 0, -2, 5),
        ("order", 0, -9, 2),
        ("number of components", 1, -6, 2),
        ("bit of DC", 0, -1, 14),
    ):
        changed = bytearray(SCANS[count])
        changed[scan_at(SCANS[count]) + place] = value
        made[f"another {name}"] = HEADER + b"".join([*SCANS[:count], changed, *SCANS[count + 1 :]]) + END
    made["levels of more than 16 bits"] = with_levels(9, GRAY)
    made["bits above all of a level"] = with_levels(14, flat((64, 64), [(1, 63, 0)]))
    ends = (5, 63, 0, EMPTY)
    made["a value behind the band"] = write_block((1, 4, 0, [(4, 1, 1, 1), *EMPTY]), ends)
    made["zeros up to the end of the band"] = write_block((1, 16, 0, [(15, 0, 0, 0), *EMPTY]), (17, 63, 0, EMPTY))
    made["more coefficients than there are"] = write_block((1, 64, 0, EMPTY))
    made["a refined value of two bits"] = write_block((1, 63, 1, EMPTY), (1, 63, 0x10, [(0, 2, 2, 3), *EMPTY]))
    made["a refined value behind the band"] = write_block(
        (1, 4, 1, EMPTY), (5, 63, 0, EMPTY), (1, 4, 0x10, [(4, 1, 1, 1)])
    )
    made["16 zeros that are not there"] = write_block(
        (1, 4, 1, EMPTY), (5, 63, 0, EMPTY), (1, 4, 0x10, [(15, 0, 0, 0)])
    )
    for bits in (0, 0x10):  # runs that go on behind the data
        before = [(1, 63, 1, EMPTY)] if bits else []
        made[f"empty blocks behind the last, {bits}"] = write_block(*before, (1, 63, bits, [(1, 0, 1, 0)]))
    header, (dc, ac) = parts(write_scans(16, 8, 2))
    made["all coefficients in a scan of DC"] = header + with_bits(dc, 0, 63, 0) + END
    at = dc.index(b"\xff\xda")
    other = bytes([*dc[at : at + 6], 0x40, *dc[at + 7 :]])  # that slot is behind the last
    made["a table of no slot"] = (
        header + dc[:at] + segment(0xC4, bytes([0x10, 1, *[0] * 16])) + other + dc[:at] + ac + END
    )
    crossing = write_symbols([(1, 0, 1, 0)]) + b"\xff\xd0" + write_symbols(EMPTY)
    made["empty blocks behind a restart"] = header + dc + with_interval(1, ac[: scan_at(ac)]) + crossing + END
    made["many planes"] = flat((64, 64), refined(5))
    made["many scans"] = flat((64, 64), [(k, k, 0) for k in range(1, 64)])
    return made


DAMAGED = damaged()


def test_what_libjpeg_might_see_otherwise_is_left_to_it(pool):
    staged = Staged(pool, [*DAMAGED.values()])
    assert [name for name, has in zip(DAMAGED, staged.has, strict=True) if has] == []
    assert 0 in staged.statuses
    assert {*staged.statuses} > {0}


def test_what_is_only_unusual_is_taken(kernels, pool):
    """Comments no decoder sees, tables that stay, and scans in other orders."""
    tables = SCANS[0][: SCANS[0].index(b"\xff\xda")]
    first, *others = SCANS
    dri = struct.pack(">BBHH", 0xFF, 0xDD, 4, 0)
    files = [
        HEADER + segment(0xFE, b"words") + b"".join(SCANS) + END,
        HEADER + first + b"".join(tables + dri + scan for scan in others) + END + b"more",
        HEADER + first + b"".join(b"\xff\xff" + scan for scan in others) + b"\xff" + END,
        HEADER + b"".join([first, SCANS[2], SCANS[3], SCANS[1], *SCANS[4:]]) + END,
        flat((64, 64), refined(4)),
        with_levels(3, GRAY),
        write_block((1, 63, 1, [(5, 1, 1, 1), *EMPTY]), (1, 63, 0x10, [(3, 1, 1, 0), (15, 0, 1, 1), *EMPTY])),
        flat((64, 64), [(k, min(k + 2, 63), 0) for k in range(1, 64, 3)]),
    ]
    staged = Staged(pool, files)
    assert all(staged.has)
    staged.decode(kernels)
    assert staged.refused == []


def test_a_row_of_blocks_has_1024(kernels, pool):
    file = encoded(noise(16, 8300, 4).convert("L"), quality=80)
    whole, beside = Staged(pool, [file], [(0, 8, 16, 8192)]), Staged(pool, [file], [(0, 12, 16, 8192)])
    assert (whole.has, beside.has) == ([1], [0])
    whole.decode(kernels)
    assert whole.refused == []


@pytest.mark.slow
@pytest.mark.parametrize(("side", "has"), [(8184, 1), (8200, 0)])
def test_images_that_take_much_memory_are_left_to_libjpeg(pool, side, has):
    staged = Staged(pool, [encoded(Image.new("L", (side, side), 99))], [(0, 0, SIDE, SIDE)])
    assert staged.has == [has]


def test_values_out_of_range_are_refused(kernels, pool):
    """Whose products with the quantization are more than the kernels are exact for."""
    at = PHOTO.index(b"\xff\xdb") + 5
    loud = PHOTO[:at] + b"\xff" * 64 + PHOTO[at + 64 :]
    staged = Staged(pool, [loud, PHOTO])
    assert staged.has == [1, 1]
    staged.decode(kernels)
    assert staged.refused == [0]


@pytest.mark.parametrize("seed", range(4))
def test_kernels_stay_within_the_image_whatever_its_data_say(kernels, pool, seed):
    staged = Staged(pool, varied())
    assert staged_number(staged.memory, 0, SCAN_COUNT) == 4
    assert staged_number(staged.memory, 0, QUANTIZATION) == 0x20003  # two factors of Pillow's quality 90
    generator = torch.Generator().manual_seed(seed)
    begin = staged.count * _core.Staging.bytes_per_image
    noise_bytes = torch.randint(256, (staged.staging.used - begin,), dtype=torch.uint8, generator=generator)
    damaged = range(0, staged.count, 2)
    for number in damaged:
        begins = ROW_ENDS if seed < 2 else VALUES
        part = slice(*(staged_number(staged.memory, number, place) for place in (begins, PLANES)))
        staged.memory[part] = noise_bytes[part.start - begin : part.stop - begin] if seed else 255
    refused = kernels.decode(staged.staging, staged.memory, staged.pixels, staged.count)
    assert {*refused} <= {*damaged}
    assert all(torch.equal(staged.pixels[i], staged.want[i]) for i in range(1, staged.count, 2))
