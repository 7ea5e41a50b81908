"""``cv2.imread`` and ``cv2.imdecode`` in worker processes give what OpenCV's own give: arrays, errors and messages."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import random
import re
import struct
import sys
import time
import types
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import optional
import pytest
from children import exit_code, forked
from jpeg_writer import FACTORS, segment, write_jpeg
from photos import jpeg
from png_writer import SIGNATURE, chunk, header, write_png
from torture import codecs, mutations

from fastload import _core
from fastload.lazy import opencv

cv2 = optional.module("cv2")

FILES = {
    "4:2:0": jpeg(1, 90, 121, subsampling=2),
    "4:2:2": jpeg(5, 33, 70, subsampling=1),
    "4:4:4": jpeg(2, 61, 47, subsampling=0),
    "gray": jpeg(4, 50, 60, mode="L"),
    "restarts": write_jpeg(60, 50, FACTORS["4:2:0"], seed=3, restart=3),
    "progressive": jpeg(3, 50, 60, progressive=True),
    "4:1:1": write_jpeg(60, 50, FACTORS["4:1:1"], seed=4),
    "CMYK": jpeg(6, 30, 40, mode="CMYK"),
    "sliver": jpeg(7, 30, 4),
}
NATIVE = ("4:2:0", "4:2:2", "4:4:4", "gray", "restarts")
LEFT = (2, 3, 4, 6, 8, 16, 17, 32, 65, 257, -2, True)


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Leave no cv2 behind, which changes the plans of other tests' loaders."""
    importlib.import_module("cv2")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "cv2"]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def ended():
    yield
    opencv.uninstall()


@pytest.fixture
def originals():
    functions = types.SimpleNamespace(imread=cv2.imread, imdecode=cv2.imdecode)
    assert opencv.install()
    state_of(cv2.imdecode).comparisons = 0
    return functions


@pytest.fixture
def decoded(monkeypatch):
    """Whether the core made each image that it was asked for."""
    made = []
    decode = _core.decode_for_opencv

    def noting(*arguments):
        result = decode(*arguments)
        made.append(result is not None)
        return result

    for flags in opencv._HOW:
        state_of(cv2.imdecode)._is_exact(flags)
    monkeypatch.setattr(_core, "decode_for_opencv", noting)
    return made


def taken():
    """Flags that the core takes; older versions of OpenCV do not know ``IMREAD_COLOR_RGB``."""
    return [flags for flags in opencv._HOW if flags < 256 or hasattr(cv2, "IMREAD_COLOR_RGB")]


def state_of(function):
    return next(cell.cell_contents for cell in function.__closure__ if type(cell.cell_contents) is opencv._OpenCV)


def outcome(function, *arguments, **rest):
    """What a call gives, as far as it can be observed, or its error."""
    try:
        made = function(*arguments, **rest)
    except Exception as error:
        return type(error), str(error)
    if made is None:
        return None
    return made.tobytes(), made.shape, made.strides, made.dtype, str(made.flags), made.base, type(made)


def both(path, data, *flags):
    path.write_bytes(data)
    return (("imread", str(path), *flags), ("imdecode", np.frombuffer(data, np.uint8), *flags))


def without_time(found):
    return found[0], *(re.sub(r"[\d.]+", "0", text) for text in found[1:])


def turned(data, value=6, kind=3, count=1, order="MM", tag=0x0112, before=b"Exif\0\0"):
    mark = {"MM": ">", "II": "<"}[order]
    field = struct.pack(mark + "HHIHH", tag, kind, count, value, 0)
    tiff = order.encode() + struct.pack(mark + "HIH", 42, 8, 1) + field + bytes(4)
    return data[:2] + segment(0xE1, before + tiff) + data[2:]


@pytest.mark.parametrize("name", FILES)
def test_arrays_are_opencvs(originals, decoded, tmp_path, name):
    for flags in (*opencv._HOW, *LEFT):
        for function, *arguments in both(tmp_path / "é.jpg", FILES[name], flags):
            expected = outcome(getattr(originals, function), *arguments)
            assert outcome(getattr(cv2, function), *arguments) == expected, (function, flags)
    assert decoded == [name in NATIVE] * 2 * len(taken())


def test_flags_may_be_omitted_or_named(originals, decoded, tmp_path):
    (tmp_path / "a.jpg").write_bytes(FILES["4:2:0"])
    path, data = str(tmp_path / "a.jpg"), np.frombuffer(FILES["4:2:0"], np.uint8)
    calls = [("imread", (path,), {}), ("imread", (path,), {"flags": 0}), ("imdecode", (data,), {"flags": 1})]
    for function, arguments, rest in calls:
        expected = outcome(getattr(originals, function), *arguments, **rest)
        assert outcome(getattr(cv2, function), *arguments, **rest) == expected
    assert decoded == [True] * 3


def test_other_arguments_go_to_opencv(originals, decoded, tmp_path):
    (tmp_path / "a.jpg").write_bytes(FILES["4:2:0"])
    path, data = tmp_path / "a.jpg", np.frombuffer(FILES["4:2:0"], np.uint8)
    calls = [
        ("imread", (), {}),
        ("imread", (), {"filename": str(path)}),
        ("imread", (str(path), 1, 1, 1), {}),
        ("imread", (str(path),), {"flag": 1}),
        ("imread", (str(path), None), {}),
        ("imread", (str(path), "1"), {}),
        ("imread", (path,), {}),
        ("imread", (os.fsencode(path),), {}),
        ("imread", (str(path) + "\0x",), {}),
        ("imread", (str(tmp_path / "missing.jpg"),), {}),
        ("imread", (str(tmp_path),), {}),
        ("imread", ("",), {}),
        ("imdecode", (data,), {}),
        ("imdecode", (FILES["4:2:0"], 1), {}),
        ("imdecode", (data[:0], 1), {}),
        ("imdecode", (data[None], 1), {}),
        ("imdecode", (data[:, None], 1), {}),
        ("imdecode", (np.repeat(data, 2)[::2], 1), {}),
        ("imdecode", (data.astype(np.int8), 1), {}),
        ("imdecode", (data.astype(np.float32), 1), {}),
        ("imdecode", (list(FILES["4:2:0"][:50]), 1), {}),
    ]
    for function, arguments, rest in calls:
        expected = outcome(getattr(originals, function), *arguments, **rest)
        assert outcome(getattr(cv2, function), *arguments, **rest) == expected, (function, arguments, rest)
    assert True not in decoded
    assert not opencv._is_path("\udcff.jpg")  # on which OpenCV may crash


EXIFS = {
    "upright": (turned(FILES["4:2:0"], 1), True),
    "upright in the other order": (turned(FILES["4:2:0"], 1, order="II"), True),
    "something else": (turned(FILES["4:2:0"], 6, tag=0x0128), True),
    "XMP": (turned(FILES["4:2:0"], before=b"http://ns.adobe.com/xap/1.0/\0"), True),
    "like XMP": (turned(FILES["4:2:0"], before=b"http:/"), False),
    "nothing": (FILES["4:2:0"][:2] + segment(0xE1, b"") + FILES["4:2:0"][2:], False),
    "another prefix": (turned(FILES["4:2:0"], before=b"exif\0\0"), False),
    **{f"turned by {value}": (turned(FILES["4:2:0"], value), False) for value in (0, *range(2, 10))},
    "turned in the other order": (turned(FILES["4:4:4"], 8, order="II"), False),
    "of another type": (turned(FILES["4:4:4"], 1, kind=1), False),
    "of many values": (turned(FILES["4:4:4"], 1, count=2), False),
    "twice": (turned(turned(FILES["4:4:4"], 6), 1), False),
    "cut off": (FILES["4:4:4"][:2] + segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\x02") + FILES["4:4:4"][2:], False),
}


COLORS = (1, 256, 129, 384)
LEVELS = np.random.default_rng(0).integers(0, 256, (33, 21, 4))
DATA = zlib.compress(bytes(3 * 64))  # of a gray image, 63 by 3


END = chunk(b"IEND")


def gray_png(*images, before=b"", after=b"", end=END):
    return SIGNATURE + header(63, 3, color=0) + before + b"".join(chunk(b"IDAT", i) for i in images) + after + end


PHYS = chunk(b"pHYs", bytes(9))
PNGS = {
    "RGB": (write_png(LEVELS[..., :3], pieces=3), (-1, *COLORS)),
    "RGBA": (write_png(LEVELS, color=6), COLORS),
    "gray": (write_png(LEVELS[..., :1], color=0), tuple(opencv._HOW)),
    "density": (gray_png(DATA, before=PHYS), tuple(opencv._HOW)),
    "gray with alpha": (write_png(LEVELS[..., :2], color=4), ()),
    "16 bits": (write_png(LEVELS[..., :3], 16, 2), ()),
    "4 bits": (write_png(LEVELS[..., :1] & 15, 4, 0), ()),
    "interlaced": (write_png(LEVELS[..., :3], interlace=True), ()),
    "palette": (write_png(LEVELS[..., :1] & 7, color=3, before=chunk(b"PLTE", bytes(range(24)))), ()),
    "transparent color": (write_png(LEVELS[..., :3], before=chunk(b"tRNS", bytes(6))), ()),
    "text": (gray_png(DATA, before=chunk(b"tEXt", b"Software\0x")), ()),
    "unknown compression": (
        SIGNATURE + chunk(b"IHDR", bytes([0, 0, 0, 63, 0, 0, 0, 3, 8, 0, 1, 0, 0])) + gray_png(DATA)[33:],
        (),
    ),
    "wrong text": (gray_png(DATA, before=chunk(b"tEXt", b"\0x")), ()),
    "gamma": (gray_png(DATA, before=chunk(b"gAMA", b"\0\0\xff\0")), ()),
    "density twice": (gray_png(DATA, before=PHYS * 2), ()),
    "density of another size": (gray_png(DATA, before=chunk(b"pHYs", bytes(10))), ()),
    "density late": (gray_png(DATA, after=PHYS), ()),
    "wrong checksum": (gray_png(DATA, before=chunk(b"pHYs", bytes(9), 1)), ()),
    "wrong checksum of pixels": (gray_png(after=chunk(b"IDAT", DATA, 1)), ()),
    "wrong checksum of the end": (gray_png(DATA, end=chunk(b"IEND", crc=1)), ()),
    "no pixels in a chunk": (gray_png(DATA[:5], b"", DATA[5:]), ()),
    "more pixels": (gray_png(zlib.compress(bytes(4 * 64))), ()),
    "fewer pixels": (gray_png(zlib.compress(bytes(2 * 64))), ()),
    "more data": (gray_png(DATA + b"more"), ()),
    "more data in another chunk": (gray_png(DATA, b"more"), ()),
    "wrong sum of pixels": (gray_png(DATA[:-1] + b"\x77"), ()),
    "a filter that is none": (gray_png(zlib.compress(b"\5" + bytes(3 * 64 - 1))), ()),
    "no end": (gray_png(DATA, end=b""), ()),
    "more behind": (gray_png(DATA) + b"more", ()),
    "an end with data": (gray_png(DATA, end=chunk(b"IEND", b"x")), ()),
}


@pytest.mark.parametrize("name", PNGS)
def test_png(originals, decoded, tmp_path, capfd, name):
    data, native = PNGS[name]
    for flags in taken():
        for function, *arguments in both(tmp_path / "a.png", data, flags):
            decoded.clear()
            expected = outcome(getattr(originals, function), *arguments), *capfd.readouterr()
            found = outcome(getattr(cv2, function), *arguments), *capfd.readouterr()
            if "pixels" not in name:  # else older versions leave some as the memory was
                assert without_time(found) == without_time(expected), flags
            assert decoded == [flags in native], flags


@pytest.mark.parametrize("name", EXIFS)
def test_images_that_may_be_turned_are_left_to_opencv(originals, decoded, tmp_path, name):
    data, native = EXIFS[name]
    for flags in taken():
        ignores = flags not in (0, 1, 256)
        for function, *arguments in both(tmp_path / "a.jpg", data, flags):
            decoded.clear()
            expected = outcome(getattr(originals, function), *arguments)
            assert outcome(getattr(cv2, function), *arguments) == expected
            is_odd = name in ("twice", "cut off")  # of which Pillow could complain, too
            assert decoded == [native or (ignores and not is_odd)], flags


JFIF = b"JFIF\0\2\1\0\0\1\0\1\0\0"
COMPLAINTS = {
    "truncated": FILES["4:2:0"][:-300],
    "no end": FILES["4:2:0"][:-2],
    "more before the end": FILES["4:2:0"][:-2] + b"more\xff\xd9",
    "another version": FILES["restarts"][:2] + segment(0xE0, JFIF) + FILES["restarts"][2:],
    "a restart marker lost": FILES["restarts"].replace(b"\xff\xd2", b"", 1),
    "bytes between segments": FILES["4:2:0"].replace(b"\xff\xc0", b"??\xff\xc0", 1),
}


def test_a_version_that_turns_images_in_spite_of_flags_decodes_itself(originals):
    state = state_of(cv2.imdecode)
    state.imdecode = lambda data, flags: originals.imdecode(data, flags & ~128)
    assert [state._is_exact(flags) for flags in (1, 129)] == [True, False]


@pytest.mark.parametrize("name", COMPLAINTS)
def test_opencv_complains_itself(originals, decoded, tmp_path, capfd, name):
    for function, *arguments in both(tmp_path / "a.jpg", COMPLAINTS[name], 1):
        expected = getattr(originals, function)(*arguments), *capfd.readouterr()
        found = getattr(cv2, function)(*arguments), *capfd.readouterr()
        assert found[1:] == expected[1:]
        assert np.shape(found[0]) == np.shape(expected[0])  # the pixels of lost rows are anything in older versions
    assert decoded == [False] * 2


def test_damaged_files_give_the_same_in_silence(originals, capfd):
    decode, seen = _core.decode_for_opencv, Counter()
    rng = random.Random(1)
    photos, pngs = [FILES[name] for name in NATIVE], [data for data, native in PNGS.values() if native]
    capfd.readouterr()
    for _ in range(800):
        kind = rng.randrange(3)
        if kind == 0:
            data = mutations.mutated(rng)
        elif kind == 1:
            data = codecs.damaged(rng.choice(pngs), rng)  # most with the right checksums
        else:  # within a scan that is decoded natively
            data = bytearray(rng.choice(photos))
            at = rng.randrange(len(data) // 2, len(data))
            data[at] ^= 1 << rng.randrange(8)
        array = np.frombuffer(bytes(data), np.uint8)
        flags = rng.choice(taken())
        made = decode(array, *opencv._HOW[flags], opencv._empty)
        if made is not None and made.size < 3_000_000:
            assert outcome(lambda made=made: made) == outcome(originals.imdecode, array, flags), bytes(data).hex()
            assert "".join(capfd.readouterr()) == "", bytes(data).hex()
        seen[made is not None] += 1
    assert min(seen.values()) > 100, seen


def test_changes_of_an_array_stay_in_it(originals, decoded):
    data = np.frombuffer(FILES["4:2:0"], np.uint8).copy()
    first, second = cv2.imdecode(data, 1), cv2.imdecode(data, 1)
    assert not np.shares_memory(first, second)
    data[:] = 0
    first[:] = 0
    assert np.array_equal(second, originals.imdecode(np.frombuffer(FILES["4:2:0"], np.uint8), 1))
    assert decoded == [True] * 2


def test_large_files_are_read_in_parts(originals, decoded, tmp_path):
    comments = segment(0xFE, bytes(65_000)) * 20
    (tmp_path / "large.jpg").write_bytes(FILES["4:2:0"][:2] + comments + FILES["4:2:0"][2:])
    path = str(tmp_path / "large.jpg")
    assert np.array_equal(cv2.imread(path), originals.imread(path))
    assert decoded == [True]


def test_a_pipe_is_not_opened(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = forked(lambda: os.open(pipe, os.O_WRONLY))  # which waits for a reader

    def is_waiting():
        return Path(f"/proc/{writer}/stat").read_text().rpartition(")")[2].split()[0] == "S"

    while not is_waiting():
        time.sleep(0.001)
    assert _core.decode_for_opencv(str(pipe), "bgr", True, opencv._empty) is None
    still_waits = is_waiting()
    os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
    assert exit_code(writer) == 0
    assert still_waits


def test_more_pixels_than_opencv_takes_are_not_even_allocated(originals):
    size = FILES["4:4:4"].index(b"\xff\xc0") + 5
    for height, width, native in ((32768, 32768, True), (32769, 32768, False)):
        data = FILES["4:4:4"][:size] + struct.pack(">HH", height, width) + FILES["4:4:4"][size + 4 :]
        asked = []
        with pytest.raises(RuntimeError) if native else contextlib.nullcontext():
            _core.decode_for_opencv(data, "bgr", True, asked.append)
        assert asked == [(height, width, 3)] * native
    data = np.frombuffer(data, np.uint8)
    assert outcome(cv2.imdecode, data, 1) == outcome(originals.imdecode, data, 1) is not None


def fails(*_):
    raise MemoryError


def test_without_memory_opencv_raises(originals, monkeypatch):
    monkeypatch.setattr(opencv, "_empty", fails)
    state_of(cv2.imdecode).exact[1] = True
    data = np.frombuffer(FILES["4:2:0"], np.uint8)
    assert outcome(cv2.imdecode, data, 1) == outcome(originals.imdecode, data, 1)


def test_the_functions_look_like_opencvs(originals):
    for name in ("imread", "imdecode"):
        assert getattr(cv2, name).__doc__ == getattr(originals, name).__doc__
        assert pickle.loads(pickle.dumps(getattr(cv2, name))) is getattr(cv2, name)
    opencv.uninstall()
    assert (cv2.imread, cv2.imdecode) == (originals.imread, originals.imdecode)


def test_a_patched_imread_gains_by_imdecode(monkeypatch):
    """As Ultralytics patches it."""

    def own(name, flags=1):
        return cv2.imdecode(np.fromfile(name, np.uint8), flags)

    monkeypatch.setattr(sys.modules["cv2"], "imread", own)
    imdecode = cv2.imdecode
    assert opencv.install()
    assert cv2.imread is own
    assert cv2.imdecode is not imdecode
    opencv.uninstall()
    assert opencv.is_used()
    monkeypatch.setattr(sys.modules["cv2"], "imdecode", own)
    assert (opencv.is_used(), opencv.install()) == (False, False)  # and no plan says that they are


def test_lower_limits_of_the_users_are_left_to_opencv(monkeypatch):
    for name, value, native in (
        *(("PIXELS", "9999", False), ("PIXELS", str(1 << 30), True), ("PIXELS", str(1 << 40), True)),
        *(("PIXELS", "2000MB", False), ("PIXELS", "", False), ("PIXELS", "²", False)),
        *(("WIDTH", str((1 << 20) - 1), False), ("HEIGHT", "99", False), ("HEIGHT", str(1 << 20), True)),
    ):
        with monkeypatch.context() as changed:
            changed.setenv(f"OPENCV_IO_MAX_IMAGE_{name}", value)
            assert (opencv.is_used(), opencv.install()) == (native, native), (name, value)
            opencv.uninstall()


def test_flags_whose_bits_differ_are_left_to_opencv(originals, monkeypatch):
    state = state_of(cv2.imdecode)
    state.imdecode = lambda data, flags: originals.imdecode(data, flags) ^ np.uint8(flags == 1)
    asked, decode = [], _core.decode_for_opencv
    monkeypatch.setattr(_core, "decode_for_opencv", lambda *a: (asked.append(a), decode(*a))[1])
    assert [state._is_exact(flags) for flags in (1, 1)] == [False, False]
    assert len(asked) == 1
    data = np.frombuffer(FILES["4:2:0"], np.uint8)
    assert outcome(cv2.imdecode, data, 1) == outcome(originals.imdecode, data, 1)
    assert len(asked) == 1


def test_the_first_images_are_compared(originals, monkeypatch):
    state = state_of(cv2.imdecode)
    data = np.frombuffer(FILES["4:2:0"], np.uint8)
    assert state._is_exact(1)
    decode = _core.decode_for_opencv
    monkeypatch.setattr(_core, "decode_for_opencv", lambda *a: decode(*a) ^ np.uint8(1))
    state.comparisons = opencv.COMPARED
    with pytest.warns(RuntimeWarning, match="its bits differ"):
        first = cv2.imdecode(data, 1)
    state.comparisons = 0
    expected = originals.imdecode(data, 1)
    assert all(np.array_equal(made, expected) for made in (first, cv2.imdecode(data, 1)))


class Photos:
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = cv2.resize(cv2.imread(self.paths[index]), (32, 32))
        return image, type(cv2.imread).__name__


def test_workers_decode_for_opencv(tmp_path):
    from fastload import FastLoader

    for i in range(8):
        (tmp_path / f"{i}.jpg").write_bytes(jpeg(i, 60 + i, 70))
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    loader = FastLoader(Photos(paths), batch_size=4, num_workers=2, multiprocessing_context="fork")
    assert "cv2 reads are decoded natively" in str(loader.plan)
    expected = np.stack([cv2.resize(cv2.imread(path), (32, 32)) for path in paths])
    batches = list(loader)
    assert np.array_equal(np.concatenate([images.numpy() for images, _ in batches]), expected)
    assert {name for _, names in batches for name in names} == {"function"}
    assert type(cv2.imread) is types.BuiltinFunctionType
    plain = FastLoader(Photos(paths), batch_size=4, num_workers=1, engine="torch", multiprocessing_context="fork")
    assert {name for _, names in plain for name in names} == {"builtin_function_or_method"}
    assert "natively" not in str(plain.plan)
