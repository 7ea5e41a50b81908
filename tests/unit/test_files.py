"""Folders with links that lead back, pipes and devices are walked to an end."""

from __future__ import annotations

import os
import socket

import pytest

from fastload._arguments import UsageError
from fastload._files import files_below, open_file
from fastload.bench._data import check_data
from fastload.bench.photos import MANIFEST, write_photos
from fastload.commands import cli


@pytest.fixture
def folder(tmp_path):
    """Classes that lead to each other, themselves and far up, and what is no file."""
    root = tmp_path / "root"
    for name in ("b", "a/nested"):
        (root / name).mkdir(parents=True)
        (root / name / "1.jpg").write_bytes(b"1")
    (root / "a" / "2.jpg").write_bytes(b"2")
    (root / "a" / "to b").symlink_to(root / "b")
    (root / "b" / "to a").symlink_to(root / "a")
    (root / "b" / "itself").symlink_to("itself")
    (root / "b" / "here").symlink_to(".")
    (root / "b" / "top").symlink_to("/")
    (root / "b" / "above").symlink_to(tmp_path)
    (root / "b" / "gone.jpg").symlink_to("nothing")
    (root / "b" / "link.jpg").symlink_to(root / "a" / "2.jpg")
    os.mkfifo(root / "b" / "pipe.jpg")
    (root / "b" / "device.jpg").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(root / "b" / "s.jpg"))
    return root


def below(folder, where=""):
    return [os.path.relpath(path, folder) for path in files_below(folder / where)]


def test_each_folder_is_walked_once_and_links_to_files_are_followed(folder):
    of_b = ["1.jpg", "gone.jpg", "itself", "link.jpg"]
    assert below(folder) == ["a/2.jpg", "a/nested/1.jpg", *(f"a/to b/{name}" for name in of_b)]
    found = below(folder, "b/to a")
    assert found == ["b/to a/2.jpg", "b/to a/nested/1.jpg", *(f"b/to a/to b/{name}" for name in of_b)]
    assert below(folder, "missing") == below(folder, "a/2.jpg") == []


def test_files_are_those_of_os_walk_where_no_link_leads_back(folder, tmp_path):
    plain = tmp_path / "plain"
    for name in ("z.jpg", "b/y.jpg", "b/a/x.jpg", "B/\udcff.jpg"):
        (plain / name).parent.mkdir(parents=True, exist_ok=True)
        (plain / name).touch()
    (plain / "linked").symlink_to(folder / "a" / "nested")
    walked = [os.path.join(place, name) for place, _, names in os.walk(plain, followlinks=True) for name in names]
    assert sorted(files_below(plain)) == sorted(walked)


def test_a_relative_folder_gives_relative_paths(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert next(files_below("a")) == "a/2.jpg"
    assert next(files_below(".")) == "./a/2.jpg"


def test_commands_that_walk_a_folder_end(folder, capsys):
    assert cli.main(["bench", "demo", "--quick", "--data", str(folder)]) == 2
    assert "there must be files and folders alone, but" in capsys.readouterr().err


def test_data_of_a_benchmark_must_end_and_hold_images(folder):
    with pytest.raises(UsageError, match=r"files and folders alone, but .*device.jpg is neither"):
        check_data(folder)
    for name in ("device.jpg", "pipe.jpg", "s.jpg"):
        (folder / "b" / name).unlink()
    with pytest.raises(ValueError, match=r"links must not lead to a folder twice, but .*b/above does"):
        check_data(folder)
    for name in ("to a", "here", "top", "above"):
        (folder / "b" / name).unlink()
    with pytest.raises(ValueError, match=r"but .*/root/b does"):
        check_data(folder)
    (folder / "a" / "to b").unlink()
    check_data(folder)
    (folder / "c").mkdir()
    with pytest.raises(UsageError, match=r"but .*/c holds none of"):
        check_data(folder)


def test_a_manifest_that_is_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / MANIFEST)
    with pytest.raises(OSError, match="not a regular file"):
        write_photos(tmp_path)


@pytest.mark.parametrize("path", ["/dev/zero", "/proc/self", "/dev/null"])
def test_only_regular_files_are_opened(path):
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        open_file(path)
