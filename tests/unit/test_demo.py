"""``fastload bench demo``: it compares, times, draws, and names an image that cannot be read."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optional
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fastload import FastLoader
from fastload.bench import _compare
from fastload.bench._compare import count_same, race
from fastload.bench.photos import PhotoSet, write_photos
from fastload.commands import cli

optional.needed("matplotlib", "skimage", "rich")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos", PhotoSet(count=40, classes=2, edge_px=64)).path


class Pairs(Dataset[Any]):
    """Random images whose every pixel is drawn anew, and labels that can be falsified."""

    def __init__(self, length: int = 10, wrong: int | None = None, dtype: torch.dtype = torch.float32) -> None:
        self.length, self.wrong, self.dtype = length, wrong, dtype

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.rand(3, 4, 4).to(self.dtype), index + (index == self.wrong)


def loader(kind: type = DataLoader, **changes: Any) -> Any:
    return kind(Pairs(**changes), batch_size=4, shuffle=True, num_workers=2)


def test_all_batches_of_equal_loaders_are_counted() -> None:
    assert count_same(loader(FastLoader), loader()) == 3


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        ({"wrong": 7}, r"the same bit for bit, but batch \d differs: batch\[1\]"),
        ({"dtype": torch.float16}, r"batch 0 differs: batch\[0\]: torch.float32 \(4, 3, 4, 4\) and torch.float16"),
        ({"length": 3}, "differs|shorter"),
    ],
)
def test_a_difference_is_found_and_named(ours: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        count_same(loader(FastLoader, **ours), loader())


def test_race_runs_every_loader_once_more_than_it_counts_and_uses_its_batches() -> None:
    epochs: list[str] = []
    used: list[int] = []

    class Named(list[int]):
        def __init__(self, name: str) -> None:
            super().__init__([1, 2])
            self.name = name

        def __iter__(self) -> Any:
            epochs.append(self.name)
            return super().__iter__()

    result = race({"a": Named("a"), "b": Named("b")}, 8, 2, {"a": used.append})
    assert epochs == ["a", "b", "a", "b", "b", "a"]
    assert used == [1, 2] * 3
    assert [len(spread.values) for spread in result.values()] == [2, 2]


def test_race_counts_each_loaders_own_images(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(_compare, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))
    result = race({"a": [1], "b": [1]}, {"a": 8, "b": 80}, 1)
    assert {name: spread.median for name, spread in result.items()} == {"a": 8.0, "b": 80.0}


def demo(*given: object) -> int:
    return cli.main(["bench", "demo", *map(str, given)])


@pytest.mark.slow
@pytest.mark.usefixtures("fonts_are_open")
def test_demo_compares_and_times(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert demo("--quick", "--data", photos, "--repeats", 1, "--json", tmp_path / "d.json") == 0
    record = json.loads((tmp_path / "d.json").read_text())
    assert record["same_batches"] == 5
    assert all(spread["median"] > 0 for spread in record["images_per_s"].values())
    shown = capsys.readouterr().out.rstrip()
    assert len(re.findall(r"(torch DataLoader|FastLoader) +[\d,]+ +– *$", shown, re.MULTILINE)) == 2  # of one repeat
    *_, picture, blank, first, _, line, loader, plan = shown.splitlines()
    assert picture == f"picture: {tmp_path / '.fastload' / 'demo.png'}"
    assert (tmp_path / ".fastload" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert (blank, first) == ("", "In your own script:")
    pasted = "\n".join(text.strip() for text in (line, loader.replace("(dataset, ...)", "(range(4))"), plan))
    given: dict[str, object] = {}
    exec(pasted, given)
    assert given["DataLoader"] is FastLoader
    assert capsys.readouterr().out.startswith("engine torch")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_ladder_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo("--ladder") == 2
    assert "--ladder trains on a GPU" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["truncated", "empty", "no image", "unreadable"])
def test_an_image_that_cannot_be_read_ends_the_demo_with_its_name(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    folder = Path(shutil.copytree(photos, tmp_path / "images"))
    broken = sorted(folder.glob("*/*.jpg"))[7]
    content = broken.read_bytes()
    broken.unlink()
    if kind == "unreadable":
        broken.mkdir()  # is no file; root may read any
    else:
        broken.write_bytes({"truncated": content[:-200], "empty": b"", "no image": b"GIF89a"}[kind])
    assert demo("--quick", "--data", folder, "--repeats", 1) == (0 if kind == "unreadable" else 2)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    if kind != "unreadable":
        assert said.splitlines()[-1].startswith("fastload bench demo: error: --data must hold images that Pillow reads")
        assert str(broken) in said
