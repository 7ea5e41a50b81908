"""``fastload index``: what it writes, when, and what it says."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
import torchvision.transforms as v1
from photos import jpeg
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import ImageFolder

from fastload import FastLoader, _core
from fastload.commands import cli

COUNT = 6


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "data" / "one"
    folder.mkdir(parents=True)
    for number in range(COUNT):
        (folder / f"{number}.jpg").write_bytes(jpeg(number, 260, 310, subsampling=number % 3))
    (folder / "notes.txt").write_text("no image")
    return tmp_path / "data"


@pytest.fixture
def read(monkeypatch):
    """The names of the images that were read."""
    names: list[str] = []
    real = _core.index_points

    def index_points(path, key):
        names.append(os.path.basename(os.fsdecode(path)))
        return real(path, key)

    monkeypatch.setattr(_core, "index_points", index_points)
    return names


def dataset(root):
    return ImageFolder(root, v1.Compose([v1.RandomResizedCrop(40), v1.PILToTensor()]))


def loader(root, **own):
    options = {"batch_size": 4, "shuffle": True, "num_workers": 2, "generator": torch.Generator().manual_seed(3)}
    return FastLoader(dataset(root), **options, device="cpu", engine="native", **own)


def assert_torchs_bits(ours, root):
    theirs = DataLoader(dataset(root), 4, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(3))
    for mine, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))


def test_the_first_epoch_uses_it_with_torchs_bits(root, capsys):
    assert cli.main(["index", str(root)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        f"{root / 'fastload.index'}: {COUNT} of {COUNT} images have points, {COUNT} of them read now"
    )
    with loader(root) as ours:
        assert f"a file says where to begin in {COUNT} images" in " ".join(str(ours.plan).split())
        first = [(images.clone(), targets.clone()) for images, targets in ours]
        stats = ours.stats()
        part = ours.stats().since(stats)
    assert_torchs_bits(first, root)
    assert stats.indexed == stats.indexed_by_file >= COUNT
    assert (part.indexed, part.indexed_by_file) == (0, 0)
    assert ours.stats().indexed_by_file == stats.indexed_by_file


def test_images_that_changed_since_are_decoded_without(root):
    assert cli.main(["index", str(root)]) == 0
    paths = sorted(root.rglob("*.jpg"))
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths[:3], [contents[1], contents[2], jpeg(77, 260, 310, subsampling=0)], strict=True):
        about = path.stat()
        path.write_bytes(content)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    with loader(root) as ours:
        assert_torchs_bits(list(ours), root)


def test_a_foreign_index_in_the_root_is_not_used_and_a_named_one_raises(root, tmp_path):
    assert cli.main(["index", str(root)]) == 0
    shutil.rmtree(tmp_path / "state")
    with loader(root) as ours:
        assert "the key" in str(ours.plan)
        assert_torchs_bits(list(ours), root)
        assert ours.stats().indexed_by_file == 0
    with (
        loader(root, jpeg_index=root / "fastload.index") as ours,
        pytest.raises(ValueError, match="cannot be used: the key"),
    ):
        next(iter(ours))
    assert "cannot be used" in " ".join(str(ours.plan).split())


def test_another_place(root, tmp_path):
    output = tmp_path / "other.index"
    assert cli.main(["index", str(root), "--output", str(output)]) == 0
    assert not (root / "fastload.index").exists()
    with loader(root, jpeg_index=output) as ours:
        list(ours)
        assert ours.stats().indexed_by_file >= COUNT
    with loader(root, jpeg_index=output, max_index_bytes=0) as ours:
        list(ours)
        assert ours.stats().indexed_by_file == 0
    part = FastLoader(Subset(dataset(root), [0, 1]), 2, jpeg_index=str(output), device="cpu", engine="native")
    with part:
        list(part)
        assert part.stats().indexed_by_file >= 2


def test_a_second_run_reads_only_what_changed(root, read, capsys):
    assert cli.main(["index", str(root)]) == 0
    assert len(read) == COUNT
    index = root / "fastload.index"
    before = index.read_bytes(), index.stat().st_ino
    read.clear()
    assert cli.main(["index", str(root)]) == 0
    assert (index.read_bytes(), index.stat().st_ino) == before
    assert read == []
    assert "nothing has changed" in capsys.readouterr().out
    (root / "one" / "0.jpg").unlink()
    (root / "one" / "1.jpg").write_bytes(jpeg(50, 260, 310, subsampling=2))
    (root / "one" / "new.jpeg").write_bytes(jpeg(51, 260, 310, subsampling=2))
    assert cli.main(["index", str(root)]) == 0
    assert sorted(read) == ["1.jpg", "new.jpeg"]
    with loader(root) as ours:
        assert_torchs_bits(list(ours), root)
        assert ours.stats().indexed == ours.stats().indexed_by_file >= COUNT


def test_a_damaged_index_is_made_anew(root, read):
    assert cli.main(["index", str(root)]) == 0
    index = root / "fastload.index"
    whole = index.read_bytes()
    for place in (9, len(whole) - 3, 48 + 8 + 5):
        index.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        read.clear()
        assert cli.main(["index", str(root)]) == 0
        assert len(read) in (COUNT, 0)
    with loader(root) as ours:
        assert_torchs_bits(list(ours), root)


def test_files_that_cannot_be_read_are_named_and_others_indexed(root, capsys):
    (root / "one" / "gone.jpg").symlink_to(root / "nowhere")
    (root / "one" / "text.jpg").write_text("no JPEG file")
    (root / "one" / "empty.jpg").write_bytes(b"")
    (root / "one" / "tiny.jpg").write_bytes(jpeg(1, 8, 8, subsampling=0))
    odd = os.fsdecode(b"odd-\xff.jpg")
    (root / "one" / odd).write_bytes(jpeg(90, 260, 310, subsampling=0))
    assert cli.main(["index", str(root)]) == 1
    printed = capsys.readouterr()
    assert printed.err == f"fastload index: cannot read {root / 'one' / 'gone.jpg'}\n"
    assert f"{COUNT + 1} of {COUNT + 4} images have points" in printed.out


def test_a_file_that_is_no_index_is_not_overwritten(root, capsys):
    note = root / "one" / "notes.txt"
    assert cli.main(["index", str(root), "--output", str(note)]) == 2
    assert capsys.readouterr().err.startswith(f"fastload index: {note} is not an index of fastload's, so it is not")
    assert note.read_text() == "no image"
    note.write_bytes(b"")
    assert cli.main(["index", str(root), "--output", str(note)]) == 0
    os.mkfifo(root / "pipe")
    assert cli.main(["index", str(root), "--output", str(root / "pipe")]) == 2
    assert "not a regular file" in capsys.readouterr().err
    assert (root / "pipe").is_fifo()


def test_nothing_to_index_is_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.jpg").write_bytes(b"")
    for name, why in (("empty", "holds none"), ("missing", "does not exist"), ("file.jpg", "is a file")):
        assert cli.main(["index", str(tmp_path / name)]) == 2
        assert why in capsys.readouterr().err
    assert list((tmp_path / "empty").iterdir()) == []


def test_ctrl_c_leaves_what_was_there(root, monkeypatch, capsys):
    assert cli.main(["index", str(root)]) == 0
    index = root / "fastload.index"
    before = index.read_bytes()
    (root / "one" / "0.jpg").write_bytes(jpeg(50, 260, 310, subsampling=2))

    def interrupted(path, key):
        raise KeyboardInterrupt

    monkeypatch.setattr(_core, "index_points", interrupted)
    assert cli.main(["index", str(root)]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert index.read_bytes() == before
    assert sorted(path.name for path in root.iterdir()) == ["fastload.index", "one"]


def test_a_place_that_cannot_be_written(root, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(root / "one" / "0.jpg"))
    assert cli.main(["index", str(root)]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [0, 1])
def test_a_named_index_that_cannot_be_used_is_an_error(root, tmp_path, workers):
    (tmp_path / "no.index").write_bytes(b"anything")
    for name, text in (
        ("none.index", "none.index does not exist; fastload index DIR"),
        ("no.index", "no.index is not an index of fastload's; fastload index DIR"),
        ("", "cannot be read [(]Is a directory"),
    ):
        with (
            FastLoader(dataset(root), 4, num_workers=workers, jpeg_index=tmp_path / name, device="cpu") as loader,
            pytest.raises(ValueError, match=text),
        ):
            next(iter(loader))
