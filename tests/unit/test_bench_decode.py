"""Test ``python -m benchmarks decode``: equal pixels, and every figure."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import optional
import pytest

from benchmarks import decode
from benchmarks.__main__ import main as run_benchmark
from benchmarks._checkout import on_cores
from benchmarks.decode import Crops
from fastload import _core
from fastload.bench import photos
from fastload.bench.photos import PhotoSet, write_photos
from fastload.measurement.record import Spread

optional.needed("skimage", "rich")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = write_photos(tmp_path_factory.mktemp("data") / "photos", PhotoSet(count=6, classes=2, edge_px=100)).path
    return [str(path) for path in sorted(folder.glob("*/*.jpg"))]


def run(*given: object) -> int:
    return run_benchmark(["decode", *map(str, given)])


@pytest.mark.slow
def test_quick_run_writes_every_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(decode, "dali_is_installed", lambda: False)
    monkeypatch.setattr(decode, "_jpegs", lambda folder, count: [str(path) for path in sorted(folder.glob("*/*"))[:6]])
    assert run("--quick", "--threads", 2, "--json", "decode.json", "--simd-python", sys.executable) == 0
    record = json.loads((tmp_path / "decode.json").read_text())
    assert record["bench"] == "decode"
    assert set(record["environment"]) >= {"commit", "cpu", "torch", "pillow"}
    one_core_times = record["one core"]["microseconds_per_image"]
    assert set(one_core_times) == {
        *("torchvision", "fastload", "fastload, from memory", "fastload on libjpeg-turbo", "libjpeg-turbo alone"),
        *("fastload, indexed", "fastload, indexed, from memory", "fastload, making an index"),
    }
    for figures in (record["one core"], record["one core"]["indexed"], record["large photos"]["indexed"]):
        assert all(figures[name]["median"] > 0 for name in ("torchvision", "fastload on libjpeg-turbo"))
    assert record["one core"]["index"]["making"]["median"] > 0  # one repeat on a busy machine says no more
    assert record["one core"]["skipped"] == ["DALI: nvidia.dali is not importable here"]
    assert record["one core"]["libjpeg-turbo alone"]["median"] > 0
    assert set(record["threads"]["speedup"]) == {"1", "2"}
    assert all(set(resize["speedup"]) == {"Pillow", "Pillow-SIMD"} for resize in record["resize alone"].values())
    assert record["large photos"]["fast_difference"]["largest"] < 100
    shown = capsys.readouterr().out
    assert "DALI: nvidia.dali is not importable here" in shown
    assert "2 threads" in shown
    assert "with index" in shown  # the table fits 80 columns
    assert "making the index:" in shown


@pytest.mark.slow
def test_ones_own_images_need_no_scikit_image(
    paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "skimage" else find_spec(name))
    monkeypatch.chdir(tmp_path)
    photos._photo.cache_clear()
    folder = str(Path(paths[0]).parents[1])
    assert run("--quick", "--threads", 1, "--data", folder, "--json", "decode.json") == 0
    assert "large photos are left out: the photographs come from scikit-image" in capsys.readouterr().out
    assert "large photos" not in json.loads((tmp_path / "decode.json").read_text())
    assert run("--quick") == 1
    said = capsys.readouterr().err
    assert said == "python -m benchmarks decode needs scikit-image; in fastload's checkout: pip install '.[bench]'\n"


def test_the_index_knows_every_row_and_changes_no_pixel(paths: list[str]) -> None:
    crops = Crops(paths)
    index = crops.index()
    with on_cores(1):
        pool = _core.Pool(1)
        crops.core(pool)
        without = crops.out.copy()
        crops.core(pool, index=index)
        assert np.array_equal(crops.out, without)
        _, files, found, missed, *_ = index.totals()  # small files have no points, and are not looked up
        assert (found, missed) == (files, files)
        assert files > 0
        before = _core.decode_counts()[0]
        crops.core_on_libjpeg(pool)
        assert np.array_equal(crops.out, without)
        assert _core.decode_counts()[0] == before
        pool.close()
    assert _core.uses_own_decoder()


def test_differing_pixels_end_the_benchmark(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    crops = Crops(paths)
    crops.check()
    real = Crops.core_from_memory

    def with_one_bit_wrong(self: Crops, *how: object) -> None:
        real(self, *how)  # type: ignore[arg-type]
        self.out[3, 100, 50, 1] ^= 1

    monkeypatch.setattr(Crops, "core_from_memory", with_one_bit_wrong)
    with pytest.raises(RuntimeError, match=r"pixels of .* are not torchvision's"):
        crops.check()


def test_floor_decodes_the_same_regions(paths: list[str]) -> None:
    crops = Crops(paths)
    crops.floor()
    crops.geometry[0, 0] = 10_000
    with pytest.raises(ValueError, match="bad_geometry"):
        crops.floor()


def test_file_that_the_core_leaves_to_pillow_is_refused(paths: list[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(Path(paths[0]).read_bytes()[:-100])
    with pytest.raises(RuntimeError, match="every file must be one that the core decodes"):
        Crops([paths[1], str(broken)])
    broken.write_bytes(b"nothing")
    with pytest.raises(RuntimeError, match=r"broken\.jpg"):
        Crops([paths[1], str(broken)])


def test_one_core_is_one_core_and_then_all_again() -> None:
    before = os.sched_getaffinity(0)
    with on_cores(1):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before


def test_contenders_take_turns() -> None:
    calls: list[str] = []
    seconds = decode.compare(
        {name: lambda name=name: calls.append(name) for name in "ab"},  # type: ignore[misc]
        2,
        time.perf_counter,
    )
    assert calls == ["a", "b", "a", "b", "b", "a"]
    assert all(len(spread.values) == 2 for spread in seconds.values())


def test_times_are_per_image() -> None:
    record = decode.per_image({"x": Spread.of([1.0, 2.0])}, 1000)
    np.testing.assert_allclose(record["x"]["values"], [1000, 2000])


def test_files_that_the_core_does_not_decode_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad" / "one").mkdir(parents=True)
    (tmp_path / "bad" / "one" / "a.jpg").write_bytes(b"nothing")
    assert run("--quick", "--data", tmp_path / "bad") == 2
    assert "must hold folders with JPEG files" in capsys.readouterr().err


def test_missing_data_is_refused(tmp_path: Path) -> None:
    assert run("--data", tmp_path / "nowhere") == 2


def test_dali_is_looked_for() -> None:
    assert isinstance(decode.dali_is_installed(), bool)
