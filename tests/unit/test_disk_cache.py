"""Files of the cache are whole and stay within its bound; others are left alone."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastload import _tagged_files
from fastload.sources.disk_cache import DiskCache

KEY = bytes(range(48))
DATA = b"0123456789"
FILE = len(DATA) + _tagged_files.TAGS_BYTES  # bytes


def read(cache, name):
    return _tagged_files.read(cache.path_of(name), cache.key_of(name))


def test_what_was_not_read_for_longest_is_removed(tmp_path):
    cache = DiskCache(tmp_path / "cache", 4 * FILE, KEY)
    for number, name in enumerate("abc"):
        cache.put(name, DATA)
        os.utime(cache.path_of(name), ns=(number, number))
    cache.path_of("a")
    cache.put("d", DATA)
    cache.put("e", DATA)
    assert [name for name in "abcde" if cache.path_of(name)] == ["a", "d", "e"]


def bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_several_processes_keep_the_bound_but_for_a_twentieth_each(tmp_path):
    caches = [DiskCache(tmp_path, 10_000, KEY) for _ in range(4)]  # each as in a process of its own
    for number in range(600):
        caches[number % 4].put(str(number), bytes(100 - _tagged_files.TAGS_BYTES))
        assert bytes_in(tmp_path) <= 10_000 * (1 + 3 / 20)
    assert bytes_in(tmp_path) >= 0.8 * 10_000


def test_the_bound_holds_while_threads_write(tmp_path, monkeypatch):
    cache, most, replace = DiskCache(tmp_path, 1000, KEY), [], os.replace

    def write(*paths):
        replace(*paths)
        most.append(sum(path.stat().st_size for path in tmp_path.rglob("*[!t]") if path.is_file()))  # but *.part
        if len(most) == 20:  # while one file is written, others are
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(lambda number: cache.put(f"another {number}", bytes(106)), range(32)))

    monkeypatch.setattr(os, "replace", write)
    for number in range(40):
        cache.put(str(number), bytes(106))
    assert len(most) >= 40
    assert 800 < max(most) <= 1000


def test_other_files_in_the_folder_are_neither_counted_nor_removed(tmp_path):
    (tmp_path / "ab").mkdir()
    names = ["thesis.tex", "ab/notes.txt", "ab/film.mkv.part", f"photos/{'0' * 38}"]
    others = [tmp_path / name for name in names]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(50))
        os.utime(path, (0, 0))
    cache = DiskCache(tmp_path, 4 * FILE, KEY)
    for name in "abcdef":
        cache.put(name, DATA)
    assert all(path.stat().st_size == 50 for path in others)
    assert sum(cache.path_of(name) is not None for name in "abcdef") == 4


def test_files_that_cannot_be_removed_count(tmp_path, monkeypatch):
    theirs, ours, unlink = DiskCache(tmp_path, 3 * FILE, bytes(48)), DiskCache(tmp_path, 4 * FILE, KEY), os.unlink
    for name in "abc":
        theirs.put(name, DATA)
        os.utime(theirs.path_of(name), (0, 0))
    kept = {theirs.path_of(name) for name in "abc"}

    def refuse(path):
        if path in kept:
            raise PermissionError
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)
    for name in "abcdef":
        ours.put(name, DATA)
        assert bytes_in(tmp_path) <= 4 * FILE
    assert all(map(os.path.exists, kept))


def test_files_that_another_process_removes_meanwhile_make_room(tmp_path, monkeypatch):
    def too_late(path):
        unlink(path)
        raise FileNotFoundError

    cache, unlink = DiskCache(tmp_path, 4 * FILE, KEY), os.unlink
    monkeypatch.setattr(os, "unlink", too_late)
    for name in "abcdef":
        cache.put(name, DATA)
        assert cache.path_of(name)


def test_what_a_process_that_was_killed_has_begun_is_removed(tmp_path):
    cache = DiskCache(tmp_path, 4 * FILE, KEY)
    cache.put("a", DATA)
    begun = Path(f"{cache.path_of('a')}.0123.part")
    begun.write_bytes(bytes(4 * FILE - 5))
    os.utime(begun, (0, 0))
    cache.put("b", DATA)
    assert not begun.exists()
    assert cache.path_of("a")
    assert cache.path_of("b")


def test_files_of_other_users_are_read_if_they_may_be(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError

    before = os.umask(0o022)
    try:
        cache = DiskCache(tmp_path, 4 * FILE, KEY)
        cache.put("a", DATA)
    finally:
        os.umask(before)
    path = cache.path_of("a")
    assert os.stat(path).st_mode & 0o777 == 0o644
    monkeypatch.setattr(os, "utime", refuse)
    assert cache.path_of("a", len(DATA)) == path
    assert cache.path_of("a", len(DATA) - 1) is None
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert cache.path_of("a", len(DATA)) is None


def test_files_without_tags_are_not_taken_and_empty_objects_are(tmp_path):
    cache = DiskCache(tmp_path, 4 * FILE, KEY)
    cache.put("a", b"")
    assert cache.path_of("a", 1) is None
    assert cache.path_of("a", 0) == cache.path_of("a")
    assert read(cache, "a") == b""
    Path(cache.path_of("a")).write_bytes(b"")  # as after a crash of the machine
    assert cache.path_of("a") is None


def test_another_users_files_are_never_found(tmp_path):
    ours, theirs = DiskCache(tmp_path, 10 * FILE, KEY), DiskCache(tmp_path, 10 * FILE, bytes(48))
    ours.put("a", DATA)
    theirs.put("a", b"other data")
    assert read(ours, "a") == DATA
    assert read(theirs, "a") == b"other data"


@pytest.mark.parametrize("change", ["exchanged", "padded", "cut", "byte", "other object's"])
def test_a_file_that_was_changed_has_no_data(tmp_path, change):
    cache = DiskCache(tmp_path, 10 * FILE, KEY)
    cache.put("a", DATA)
    cache.put("b", DATA[::-1])
    path = Path(cache.path_of("a"))
    whole = path.read_bytes()
    changed = {
        "exchanged": bytes(FILE),
        "padded": whole + b"\0",
        "cut": whole[:-1],
        "byte": b"1" + whole[1:],
        "other object's": Path(cache.path_of("b")).read_bytes(),
    }
    path.write_bytes(changed[change])
    assert read(cache, "a") is None
    cache.put("a", DATA)
    assert read(cache, "a") == DATA
