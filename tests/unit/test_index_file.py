"""The file of ``fastload index``: what is refused; no byte changes a pixel."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
from photos import jpeg

from fastload import _core
from fastload.commands import cli
from fastload.jpeg_index.file import IndexFileError, IndexWriter, index_beside, open_index
from fastload.jpeg_index.tagged_files import key_path, make_key
from fastload.vision import JpegIndex, decode

CROP = (200, 170, 40, 50)


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def contents():
    return [jpeg(number, 300, 260 + 20 * number, subsampling=number) for number in range(3)]


@pytest.fixture
def root(tmp_path, contents):
    (tmp_path / "data").mkdir()
    for number, content in enumerate(contents):
        (tmp_path / "data" / f"{number}.jpg").write_bytes(content)
    assert cli.main(["index", str(tmp_path / "data"), "--threads", "2"]) == 0
    return tmp_path / "data"


def assert_exact(contents, index):
    for content in contents:
        for crop in (CROP, None):
            assert np.array_equal(decode(content, crop, index=index), decode(content, crop))


def test_the_first_visit_begins_within_the_files(root, contents):
    index = JpegIndex(path=root / "fastload.index")
    assert_exact(contents, index)
    totals = index.totals()
    assert (totals.files, totals.missed) == (0, 0)
    assert totals.from_file == totals.found == 2 * len(contents)
    assert totals.bytes == 16 * len(contents)


def test_the_tag_is_siphash_2_4():
    key = bytes(32) + bytes(range(16))
    assert struct.unpack("<Q", _core.index_tag(bytes(range(15)), key)) == (0xA129CA6149BE45E5,)
    assert struct.unpack("<Q", _core.index_tag(b"", key)) == (0x726FDB47DD0E0E31,)


def test_an_image_that_has_changed_is_decoded_without(root, contents):
    index = JpegIndex(path=root / "fastload.index")
    for content in contents:
        changed = bytearray(content)
        changed[-100] ^= 0x11
        assert np.array_equal(decode(changed, (0, 0, 20, 30), index=index), decode(changed, (0, 0, 20, 30)))
    assert index.totals().from_file == 0


def test_changed_bytes_never_change_a_pixel(root, contents):
    path = root / "fastload.index"
    whole = path.read_bytes()
    random = np.random.default_rng(1)
    places = {*range(48), *random.integers(48, len(whole), 400).tolist()}
    used = refused = 0
    for place in sorted(places):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(random.integers(8))
        path.write_bytes(changed)
        try:
            index = JpegIndex(path=path)
        except IndexFileError:
            refused += 1
            continue
        for content in contents:
            assert np.array_equal(decode(content, CROP, index=index), decode(content, CROP)), place
        used += index.totals().from_file
    assert refused >= 48
    assert used > 0


def test_a_list_of_another_image_is_not_used(tmp_path, contents):
    """With the right key, but another image's points, or those of another key."""
    paths = []
    for number, content in enumerate((contents[0], jpeg(7, 300, 260, subsampling=0))):
        paths.append(tmp_path / f"{number}.jpg")
        paths[-1].write_bytes(content)
    key = make_key()
    found = [_core.index_points(os.fsencode(path), key) for path in paths]
    foreign = _core.index_points(os.fsencode(paths[1]), bytes(48))[2]
    for points in (found[1][2], found[0][2][:8] + found[1][2][8:], foreign, found[0][2][:8], found[0][2][:3]):
        with IndexWriter(tmp_path / "one.index", key) as writer:
            writer.add("0.jpg", 1, 1, found[0][1], points)
            writer.finish()
        index = JpegIndex(path=tmp_path / "one.index")
        assert_exact(contents[:1], index)
        assert index.totals().from_file == 0
    with IndexWriter(tmp_path / "one.index", key) as writer:
        writer.add("0.jpg", 1, 1, found[0][1], found[0][2])
        writer.finish()
    index = JpegIndex(path=tmp_path / "one.index")
    assert_exact(contents[:1], index)
    assert index.totals().from_file == 2


def test_a_file_that_is_cut_short_is_refused_and_while_in_use_harmless(root, contents):
    path = root / "fastload.index"
    whole = path.read_bytes()
    index = JpegIndex(path=path)
    for size in (len(whole) - 1, len(whole) // 2, 48, 47, 8, 0):
        os.truncate(path, size)
        with pytest.raises(IndexFileError, match=r"cut short|not an index"):
            open_index(path, 1 << 20)
        assert_exact(contents, index)
    path.write_bytes(os.urandom(len(whole)))
    assert_exact(contents, index)


def test_an_index_of_another_key_is_refused(root):
    key_path().unlink()
    with pytest.raises(IndexFileError, match=r"key .* cannot be read"):
        open_index(root / "fastload.index", 1 << 20)
    make_key()
    with pytest.raises(IndexFileError, match="made with another key"):
        open_index(root / "fastload.index", 1 << 20)


def test_an_index_of_another_version_is_refused(root):
    path = root / "fastload.index"
    path.write_bytes(b"FLINDEX\x03" + path.read_bytes()[8:])
    with pytest.raises(IndexFileError, match="another version"):
        open_index(path, 1 << 20)


@pytest.mark.parametrize("wrong", ["count", "begin", "end"])
def test_a_table_that_is_not_within_the_file_is_refused(root, wrong):
    """Before memory for it is asked for."""
    path = root / "fastload.index"
    whole = path.read_bytes()
    magic, count, begin, end, size = struct.unpack("<8s4Q", whole[:40])
    if wrong == "begin":
        begin = end + 16
    elif wrong == "end":
        end = begin + (1 << 48)
    count = 1 << 44 if wrong == "count" else (end - begin) % (1 << 64) // 16
    header = struct.pack("<8s4Q", magic, count, begin, end, size)
    path.write_bytes(header + _core.index_tag(header, make_key()) + whole[48:])
    with pytest.raises(IndexFileError, match="cut short, or damaged"):
        open_index(path, 1 << 30)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "some.index"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(IndexFileError, match=r"cannot be read [(]not a regular file"):
        open_index(path, 1 << 20)


def test_its_table_counts_for_the_limit(root, contents):
    needed = 16 * len(contents)
    assert open_index(root / "fastload.index", needed).bytes == needed
    with pytest.raises(IndexFileError, match=f"needs {needed} bytes"):
        JpegIndex(needed - 1, path=root / "fastload.index")


def test_it_is_looked_for_in_the_root_of_the_dataset(root):
    class Folder:
        def __init__(self, root):
            self.root = root

    class Part:
        dataset = Folder(root)

    assert index_beside(Folder(str(root))) == index_beside(Part()) == str(root / "fastload.index")
    assert index_beside(Folder(root.parent)) is None
    assert index_beside(Folder(3)) is None
    assert index_beside([1, 2]) is None


def test_an_interrupted_writer_leaves_nothing(tmp_path):
    target = tmp_path / "some.index"
    target.write_bytes(b"before")

    def interrupted():
        with IndexWriter(target, bytes(48)) as writer:
            writer.add("0.jpg", 1, 1, 1, bytes(100))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["some.index"]
    assert target.read_bytes() == b"before"


def test_a_writer_without_room_leaves_nothing(tmp_path):
    full = os.open("/dev/full", os.O_WRONLY)

    def written():
        with IndexWriter(tmp_path / "some.index", bytes(48)) as writer:
            os.dup2(full, writer._file.fileno())
            writer.add("0.jpg", 1, 1, 1, bytes(100))
            writer.finish()

    try:
        with pytest.raises(OSError, match="No space left"):
            written()
    finally:
        os.close(full)
    assert os.listdir(tmp_path) == []
