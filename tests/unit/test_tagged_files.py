"""Tagged files: what was not written with the key is not read, and costs nothing."""

from __future__ import annotations

import os
import resource
import struct

import pytest

from fastload import _core, _tagged_files
from fastload._tagged_files import UserKeyError, key_for, key_path, make_key

KEY = key_for("a test", bytes(range(48)))


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4096, (1 << 20) + 1])
def test_what_is_written_is_read(tmp_path, size):
    data = os.urandom(size)
    _tagged_files.write(tmp_path / "file", data, KEY)
    assert os.listdir(tmp_path) == ["file"]
    assert _tagged_files.read(tmp_path / "file", KEY) == data
    assert _tagged_files.read(tmp_path / "file", key_for("another", bytes(range(48)))) is None
    assert _tagged_files.read(tmp_path / "file", key_for("a test", bytes(48))) is None


def test_the_tags_are_of_siphash_2_4():
    """Computed by another implementation; files of earlier versions stay in use."""
    key = bytes(32) + bytes(range(16))
    of_size, of_content = struct.unpack("<8x2Q", _core.tags_of(b"fives", key))
    assert (of_size, of_content) == (0x094DB73B83961848, 0x3EF9207DEB3B634C)


def test_any_changed_bit_and_length_is_noticed(tmp_path):
    path = tmp_path / "file"
    _tagged_files.write(path, os.urandom(130), KEY)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        assert _tagged_files.read(path, KEY) is None, place
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert _tagged_files.read(path, KEY) is None, size
    path.write_bytes(whole + b"\0")
    assert _tagged_files.read(path, KEY) is None
    path.write_bytes(whole[:-64] + bytes(64) + whole[-64:])  # zeros in its last block change the size alone
    assert _tagged_files.read(path, KEY) is None


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "nothing"])
def test_what_is_no_file_is_not_waited_for(tmp_path, kind):
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    assert _tagged_files.read(path, KEY) is None
    if kind == "pipe":
        key_path().parent.mkdir(parents=True)
        path.rename(key_path())
        with pytest.raises(UserKeyError, match="not a regular file"):
            make_key()


@pytest.mark.parametrize("tags", ["of other data", "forged"])
def test_a_huge_file_without_tags_is_not_read(tmp_path, tags):
    path = tmp_path / "file"
    _tagged_files.write(path, b"data", KEY)
    tags = (
        path.read_bytes()[-_tagged_files.TAGS_BYTES :] if tags == "of other data" else struct.pack("<3Q", 1 << 40, 1, 1)
    )
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 40)
        file.write(tags)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert _tagged_files.read(path, KEY) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < most + 10_000


def test_a_write_that_fails_leaves_nothing(tmp_path):
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "other").touch()
    with pytest.raises(OSError, match="file"):
        _tagged_files.write(tmp_path / "file", b"data", KEY)
    assert os.listdir(tmp_path) == ["file"]


def test_a_key_that_others_may_read_is_not_used():
    assert make_key() == make_key()
    assert key_path().stat().st_mode & 0o777 == 0o600
    key_path().chmod(0o644)
    with pytest.raises(UserKeyError, match="chmod 600"):
        make_key()
    key_path().chmod(0o600)
    key_path().write_bytes(b"short")
    with pytest.raises(UserKeyError, match="48 bytes"):
        make_key()


def test_a_user_without_a_home_has_no_key(monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with pytest.raises(UserKeyError, match="set XDG_STATE_HOME"):
        make_key()
