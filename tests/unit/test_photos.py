from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import optional
import pytest
from PIL import Image

from fastload.bench import photos
from fastload.bench.photos import MANIFEST, PHOTOS, PhotoSet, make_photo, write_photos
from fastload.commands import cli
from fastload.commands.bench import COMMANDS

optional.needed("skimage")

SMALL = PhotoSet(count=24, classes=4, edge_px=96)


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("class_*/*.jpg"))
    }


def test_same_parameters_give_same_files_and_other_seed_gives_others(tmp_path: Path) -> None:
    write_photos(tmp_path / "a", SMALL)
    write_photos(tmp_path / "b", SMALL)
    write_photos(tmp_path / "c", PhotoSet(count=24, classes=4, edge_px=96, seed=1))
    a, b, c = digests(tmp_path / "a"), digests(tmp_path / "b"), digests(tmp_path / "c")
    assert len(a) == 24
    assert a == b
    assert a.keys() == c.keys()
    assert not set(a.values()) & set(c.values())


def test_image_does_not_depend_on_how_many_there_are() -> None:
    few, many = PhotoSet(count=8), PhotoSet(count=1000)
    assert np.array_equal(make_photo(few, 5), make_photo(many, 5))


def test_folder_is_an_image_folder_with_even_classes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    dataset = datasets.ImageFolder(write_photos(tmp_path / "a", SMALL).path)
    assert len(dataset) == 24
    assert [dataset.targets.count(label) for label in range(4)] == [6, 6, 6, 6]
    assert dataset[0][0].mode == "RGB"


def test_default_images_look_like_imagenet_in_size_and_weight(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a", PhotoSet(count=200))
    assert 45_000 < folder.total_bytes / folder.count < 110_000
    sizes = [Image.open(path).size for path in (tmp_path / "a").glob("class_*/*.jpg")]
    widths, heights = zip(*sizes, strict=True)
    assert 430 < np.mean(widths) < 510
    assert 360 < np.mean(heights) < 450
    assert len(set(sizes)) > 20
    assert sizes.count((500, 375)) > 60


def test_large_images_keep_the_entropy_of_photographs(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "a", PhotoSet(count=8, edge_px=2000))
    pixels = sum(np.prod(Image.open(path).size) for path in (tmp_path / "a").glob("class_*/*.jpg"))
    assert max(Image.open(path).size[0] for path in (tmp_path / "a").glob("class_*/*.jpg")) >= 1500
    assert folder.total_bytes * 8 / pixels > 1.5  # blown-up photographs would have about 0.3 bits per pixel


def test_complete_folder_is_kept_untouched(tmp_path: Path) -> None:
    first = write_photos(tmp_path / "a", SMALL)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")}
    second = write_photos(tmp_path / "a", SMALL)
    assert (first.written, second.written) == (True, False)
    assert (first.count, first.total_bytes) == (second.count, second.total_bytes)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")}


def test_other_contents_are_refused_and_kept(tmp_path: Path) -> None:
    write_photos(tmp_path / "a", SMALL)
    with pytest.raises(FileExistsError, match="count 24"):
        write_photos(tmp_path / "a", PhotoSet(count=25, classes=4, edge_px=96))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="no manifest"):
        write_photos(tmp_path / "b", SMALL)
    assert (tmp_path / "b" / "thesis.txt").read_text() == "mine"


def test_missing_image_is_noticed(tmp_path: Path) -> None:
    write_photos(tmp_path / "a", SMALL)
    next((tmp_path / "a").glob("class_*/*.jpg")).unlink()
    with pytest.raises(FileExistsError, match="changed or deleted"):
        write_photos(tmp_path / "a", SMALL)


def test_interrupted_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_late(folder: Path, photo_set: PhotoSet, index: int) -> int:
        if index == 20:
            raise KeyboardInterrupt
        return write_image(folder, photo_set, index)

    write_image = photos._write_image
    monkeypatch.setattr(photos, "_write_image", fail_late)
    with pytest.raises(KeyboardInterrupt):
        write_photos(tmp_path / "a", SMALL)
    assert list(tmp_path.iterdir()) == []


def test_loser_of_a_race_uses_the_winners_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_then_lose(folder: Path, photo_set: PhotoSet, index: int) -> int:
        monkeypatch.setattr(photos, "_write_image", write_image)
        assert write_photos(tmp_path / "a", SMALL).written
        return write_image(folder, photo_set, index)

    write_image = photos._write_image
    monkeypatch.setattr(photos, "_write_image", write_then_lose)
    monkeypatch.setattr(photos, "usable_cpus", lambda: 1)
    assert not write_photos(tmp_path / "a", SMALL).written
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"count": 0}, "count must be >= 1, got 0"),
        ({"count": 4, "classes": 5}, "classes must be from 1 to 4, got 5"),
        ({"quality": 96}, "quality must be from 1 to 95, got 96"),
        ({"edge_px": 16}, "edge_px must be from 32 to 8192, got 16"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PhotoSet(**parameters)


def test_every_photograph_ships_with_scikit_image() -> None:
    shapes = [photos._photo(index).shape for index in range(len(PHOTOS))]
    assert all(shape[2] == 3 and min(shape[:2]) >= 300 for shape in shapes)


def run(*given: object) -> int:
    return cli.main(["bench", "photos", *map(str, given)])


def test_command_needs_no_more_images_than_it_is_asked_for(tmp_path: Path) -> None:
    assert run(tmp_path / "a", "--count", 5, "--edge-px", 64) == 0
    assert json.loads((tmp_path / "a" / MANIFEST).read_text())["classes"] == 5


def test_command_writes_the_folder(tmp_path: Path) -> None:
    usual = vars(COMMANDS["photos"].parse("photos", ["a"]))
    assert {**usual, "classes": 8} == {"dir": Path("a"), **asdict(PhotoSet())}
    assert run(tmp_path / "a", "--count", 10, "--edge-px", 64, "--classes", 2) == 0
    assert (tmp_path / "a" / MANIFEST).exists()
    assert len(digests(tmp_path / "a")) == 10


def test_command_refuses_a_file_in_the_place_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run(tmp_path / "file") == 2
    said = f"fastload bench photos: error: [Errno 20] Not a directory: '{tmp_path / 'file'}'\n"
    assert capsys.readouterr().err == said
