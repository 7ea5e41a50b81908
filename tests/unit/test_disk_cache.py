"""Files of the cache stay within its bound, and others' files are left alone."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fastload.sources.disk_cache import DiskCache


def test_what_was_not_read_for_longest_is_removed(tmp_path):
    cache = DiskCache(tmp_path / "cache", 40)
    for number, name in enumerate("abc"):
        cache.put(name, b"0123456789")
        os.utime(cache.path_of(name), ns=(number, number))
    cache.path_of("a")
    cache.put("d", b"0123456789")
    cache.put("e", b"0123456789")
    assert [name for name in "abcde" if cache.path_of(name)] == ["a", "d", "e"]


def bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_several_processes_keep_the_bound_but_for_a_twentieth_each(tmp_path):
    caches = [DiskCache(tmp_path, 10_000) for _ in range(4)]  # each as in a process of its own
    for number in range(600):
        caches[number % 4].put(str(number), bytes(100))
        assert bytes_in(tmp_path) <= 10_000 * (1 + 3 / 20)
    assert bytes_in(tmp_path) >= 0.8 * 10_000


def test_the_bound_holds_while_threads_write(tmp_path, monkeypatch):
    cache, most, replace = DiskCache(tmp_path, 1000), [], os.replace

    def write(*paths):
        replace(*paths)
        most.append(sum(path.stat().st_size for path in tmp_path.rglob("*[!t]") if path.is_file()))  # but *.part
        if len(most) == 20:  # while one file is written, others are
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(lambda number: cache.put(f"another {number}", bytes(130)), range(32)))

    monkeypatch.setattr(os, "replace", write)
    for number in range(40):
        cache.put(str(number), bytes(130))
    assert len(most) >= 40
    assert 800 < max(most) <= 1000


def test_other_files_in_the_folder_are_neither_counted_nor_removed(tmp_path):
    (tmp_path / "ab").mkdir()
    others = [tmp_path / "thesis.tex", tmp_path / "ab" / "notes.txt", tmp_path / "photos" / ("0" * 38)]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(50))
        os.utime(path, (0, 0))
    cache = DiskCache(tmp_path, 40)
    for name in "abcdef":
        cache.put(name, bytes(10))
    assert all(path.stat().st_size == 50 for path in others)
    assert sum(cache.path_of(name) is not None for name in "abcdef") == 4


def test_what_a_process_that_was_killed_has_begun_is_removed(tmp_path):
    cache = DiskCache(tmp_path, 40)
    cache.put("a", bytes(10))
    begun = Path(f"{cache.path_of('a')}.0123.part")
    begun.write_bytes(bytes(35))
    os.utime(begun, (0, 0))
    cache.put("b", bytes(10))
    assert not begun.exists()
    assert cache.path_of("a")
    assert cache.path_of("b")


def test_files_of_other_users_are_read_if_they_may_be(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError

    before = os.umask(0o022)
    try:
        cache = DiskCache(tmp_path, 40)
        cache.put("a", bytes(10))
    finally:
        os.umask(before)
    path = cache.path_of("a")
    assert os.stat(path).st_mode & 0o777 == 0o644
    monkeypatch.setattr(os, "utime", refuse)
    assert cache.path_of("a", 10) == path
    assert cache.path_of("a", 9) is None
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert cache.path_of("a", 10) is None


def test_empty_files_are_not_taken_unless_the_object_is_empty(tmp_path):
    cache = DiskCache(tmp_path, 40)
    cache.put("a", b"")
    assert cache.path_of("a") is None
    assert cache.path_of("a", 0) is not None
    assert cache.path_of("a", 1) is None
