"""``fastload check``: broken is what torchvision's loader raises on; odd things are named."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import sys
import tarfile
import threading
import types
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from stored import stored
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader

from fastload import _core
from fastload.commands import cli
from fastload.commands.check import samples
from fastload.commands.check.images import judged
from fastload.sources import TarImageFolder
from fastload.vision import calibrate

SIDE = 64


def picture(number: int = 0, mode: str = "RGB") -> Image.Image:
    noise = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert(mode)


def saved(format: str, number: int = 0, mode: str = "RGB", **options) -> bytes:
    file = io.BytesIO()
    picture(number, mode).save(file, format, **options)
    return file.getvalue()


TURN, ODD_TURN = Image.Exif(), Image.Exif()
TURN[0x112], ODD_TURN[0x112] = 6, 9


def png(bits: int = 8, behind: bytes = b"") -> bytes:
    """A black image with EXIF data behind its pixels."""

    def chunk(kind: bytes, data: bytes = b"") -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, bits, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(8 * (1 + 3 * bits))))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + (chunk(b"eXIf", behind) if behind else b"") + chunk(b"IEND")


TURNED = {"exif": TURN.tobytes()}
MORE = {"save_all": True, "append_images": [picture(1)]}
JPEG = saved("JPEG")
HALF = JPEG[: len(JPEG) // 2]
FILES = {
    "good.jpg": (JPEG, set()),
    "progressive.jpg": (saved("JPEG", progressive=True), set()),
    "gray.jpg": (saved("JPEG", mode="L"), set()),
    **{f"good.{format.lower()}": (saved(format), set()) for format in ("PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")},
    "upright.tiff": (saved("TIFF", **TURNED), set()),  # Pillow turns these itself
    "empty.jpg": (b"", {"empty"}),
    "page.jpg": (b"<!DOCTYPE html>" + bytes(100), {"not-an-image"}),
    "cut.jpg": (HALF, {"truncated"}),
    "cut in header.jpg": (JPEG[:100], {"truncated"}),
    "without end.jpg": (JPEG[:-2], {"truncated"}),
    "cut.png": (saved("PNG")[:-200], {"truncated"}),
    "cut.webp": (saved("WEBP")[:-20], {"truncated"}),
    "cut.bmp": (saved("BMP")[:-20], {"truncated"}),
    "cut.gif": (saved("GIF")[:-200], {"truncated"}),
    "cut.tiff": (saved("TIFF")[:-200], {"truncated"}),
    "header alone.png": (saved("PNG")[:20], {"truncated"}),
    "wrong checksum.png": (saved("PNG")[:20] + b"?" + saved("PNG")[21:], {"corrupt"}),
    "mended.jpg": (HALF + b"\xff\xd9", {"damaged"}),
    "cmyk.jpg": (saved("JPEG", mode="CMYK"), {"cmyk"}),
    "deep.png": (png(16), {"16-bit"}),
    "deep.tiff": (saved("TIFF", mode="I"), {"16-bit"}),
    "turned.jpg": (saved("JPEG", **TURNED), {"turned"}),
    "turned.png": (saved("PNG", **TURNED), {"turned"}),
    "turned at last.png": (png(behind=TURN.tobytes().removeprefix(b"Exif\0\0")), {"turned"}),
    "turned.webp": (saved("WEBP", **TURNED), {"turned"}),
    "unknown turn.jpg": (saved("JPEG", exif=ODD_TURN.tobytes()), set()),
    "moves.gif": (saved("GIF", **MORE), {"animated"}),
    "moves.png": (saved("PNG", **MORE), {"animated"}),
    "moves.webp": (saved("WEBP", **MORE), {"animated"}),
    "camera.jpg": (saved("MPO", **MORE), {"animated"}),
    "followed.jpg": (JPEG + b"\xff\xd9 more", {"trailing"}),
    "followed progressive.jpg": (saved("JPEG", progressive=True, **TURNED) + b"more", {"trailing", "turned"}),
    "followed.png": (saved("PNG") + b"more", {"trailing"}),
    "followed.webp": (saved("WEBP") + b"more", {"trailing"}),
    "other.jpg": (saved("PNG"), {"misnamed"}),
    "other.PNG": (JPEG, {"misnamed"}),
}


@pytest.fixture(autouse=True)
def calibrated() -> None:
    calibrate()


def raises(data: bytes, tmp_path: Path) -> bool:
    (tmp_path / "judged").write_bytes(data)
    try:
        pil_loader(str(tmp_path / "judged"))
    except Exception:
        return True
    return False


def is_broken(found: list[tuple[str, str]]) -> bool:
    return any(samples.Finding(kind, "", detail).broken for kind, detail in found)


@pytest.mark.parametrize("name", FILES)
def test_each_kind_of_file_is_named_and_broken_is_what_torchvision_raises_on(name: str, tmp_path: Path) -> None:
    data, kinds = FILES[name]
    found = judged(data, name)
    assert {kind for kind, _ in found} == kinds
    assert is_broken(found) == raises(data, tmp_path)
    assert all(len(detail.splitlines()) == 1 for _, detail in found)


@pytest.mark.skipif(".avif" not in Image.registered_extensions(), reason="this Pillow reads no AVIF")
def test_avif_is_judged_too() -> None:
    file = saved("AVIF")
    assert judged(file, "good.avif") == []
    assert [kind for kind, _ in judged(file[: len(file) // 2], "cut.avif")] == ["corrupt"]
    assert [kind for kind, _ in judged(file, "other.jpg")] == ["misnamed"]


@pytest.mark.filterwarnings("ignore:Image size")
def test_large_images_are_huge_and_very_large_ones_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, kind in ((SIDE * SIDE, None), (SIDE * SIDE - 1, "huge"), (SIDE * SIDE // 2 - 1, "too-large")):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        for data, name in ((JPEG, "a.jpg"), (saved("BMP"), "a.bmp")):
            assert [found for found, _ in judged(data, name)] == ([kind] if kind else [])


@pytest.mark.parametrize("name", ["good.jpg", "progressive.jpg", "gray.jpg", "good.png", "good.webp", "good.gif"])
@pytest.mark.filterwarnings("ignore")
def test_any_damage_is_broken_if_and_only_if_torchvision_raises(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    seen = []
    for _ in range(60):
        data = bytearray(FILES[name][0])
        at = rng.randrange(2, len(data))
        match rng.randrange(4):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + 2] = b"\xff" + bytes([rng.randrange(0xC0, 256)])
            case 2:
                del data[at : at + rng.randrange(1, 40)]
            case _:
                del data[at:]
        found = judged(bytes(data), name)
        assert is_broken(found) == raises(bytes(data), tmp_path), data.hex()
        seen.append(frozenset(kind for kind, _ in found))
    assert len({*seen}) > 1


def test_a_scan_is_sound_only_if_all_of_its_codes_are(tmp_path: Path) -> None:
    assert _core.scan_end(JPEG, codes=True) == len(JPEG)
    mended = HALF + b"\xff\xd9"
    assert (_core.scan_end(mended), _core.scan_end(mended, codes=True)) == (len(mended), 0)
    early = JPEG[:-12] + JPEG[-2:]  # the data of its last blocks are missing
    assert (_core.scan_end(early), _core.scan_end(early, codes=True)) == (len(early), 0)
    longer = JPEG[:-2] + bytes(9) + JPEG[-2:]
    assert (_core.scan_end(longer), _core.scan_end(longer, codes=True)) == (len(longer), 0)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A class of ten good images."""
    folder = tmp_path / "data" / "a"
    folder.mkdir(parents=True)
    for number in range(10):
        (folder / f"{number}.jpg").write_bytes(saved("JPEG", number))
    return folder.parent


def findings(capsys: pytest.CaptureFixture[str], *argv: str | Path, code: int = 1) -> list[tuple[str, str]]:
    """Run the command; return each finding's kind and the last part of its path."""
    assert cli.main(["check", *map(str, argv), "--json"]) == code
    report = json.loads(capsys.readouterr().out)
    return [(one["kind"], one["file"].rpartition("/")[2]) for one in report["findings"]]


def test_exit_codes_lines_and_summary(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(place)]) == 0
    assert capsys.readouterr().out.startswith("10 images in ")
    (place / "a" / "3.jpg").write_bytes(saved("JPEG", 3, "CMYK"))
    (place / "notes.txt").write_text("no image")
    assert cli.main(["check", str(place), "--fail-on", "broken"]) == 0
    line, summary = capsys.readouterr().out.splitlines()
    assert line == f"odd     cmyk          {place}/a/3.jpg: becomes RGB without its colour profile"
    assert summary.startswith("10 images in ")
    assert summary.endswith(": 1 odd (1 cmyk); left out, as no images: 1")
    assert cli.main(["check", str(place)]) == 1
    (place / "a" / "4.jpg").write_bytes(b"")
    assert cli.main(["check", str(place), "--fail-on", "broken"]) == 1
    assert "1 broken (1 empty), 1 odd (1 cmyk)" in capsys.readouterr().out


def test_the_report_is_json_on_request(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "a" / "3.jpg").write_bytes(HALF)
    assert cli.main(["check", str(place), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    found = report.pop("findings")
    assert report.pop("seconds") > 0
    assert report == {"images": 10, "left_out": 0, "complete": True, "counts": {"truncated": 1}}
    assert found[0].pop("detail").startswith("OSError: image file is truncated")
    assert found == [{"kind": "truncated", "file": f"{place}/a/3.jpg", "index": None, "broken": True}]


def test_nothing_to_check_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    assert cli.main(["check", str(tmp_path)]) == 2
    assert "there must be an image to check" in capsys.readouterr().err
    assert cli.main(["check", str(tmp_path / "missing")]) == 2
    assert "there must be a folder, archive or file, or a module:factory" in capsys.readouterr().err


def test_files_that_cannot_be_read_and_links_that_lead_back(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "a" / "gone.jpg").symlink_to("nothing")
    (place / "a" / "again").symlink_to("..")
    os.mkfifo(place / "a" / "pipe.jpg")
    os.mkfifo(place / "a" / "pipe")
    (place / "a" / "no\nfile\udcff.jpg").write_bytes(b"no")
    (place / "shut").mkdir()
    open_file, scandir = samples.open_file, os.scandir

    def refuse(path, opened):
        if path.endswith(("7.jpg", "shut")):  # root may read any
            raise PermissionError(13, "Permission denied", path)
        return opened(path)

    monkeypatch.setattr(samples, "open_file", lambda path: refuse(path, open_file))
    monkeypatch.setattr(os, "scandir", lambda path: refuse(path, scandir))
    assert findings(capsys, place) == [
        *[("unreadable", "pipe.jpg"), ("linked-twice", "again"), ("unreadable", "shut"), ("unreadable", "7.jpg")],
        *[("unreadable", "gone.jpg"), ("not-an-image", "no\nfile\udcff.jpg")],
    ]
    assert cli.main(["check", str(place)]) == 1
    out = capsys.readouterr().out
    assert r"a/no\nfile\udcff.jpg: Pillow knows no such format; it begins with b'no'" in out
    assert len(out.splitlines()) == 7


def test_duplicates_and_images_that_their_names_hide(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "a" / "copy.jpg").write_bytes((place / "a" / "3.jpg").read_bytes())
    for name in ("hidden", "hidden.txt"):
        (place / name).write_bytes(saved("PNG", len(name)))
    (place / "a" / "broken.jpg").write_bytes(HALF)
    (place / "a" / "broken too.jpg").write_bytes(HALF)  # said once, as broken
    assert findings(capsys, place) == [
        *[("misnamed", "hidden"), ("misnamed", "hidden.txt"), ("truncated", "broken too.jpg")],
        *[("truncated", "broken.jpg"), ("duplicate", "copy.jpg")],
    ]


def test_archives_are_read_where_they_lie_and_nothing_is_written(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = {"b/1.jpg": saved("JPEG", 20), "b/1.cls": b"3", "b/2.jpg": HALF, "b/3.jpg": saved("JPEG", 4)}
    with tarfile.open(place / "shard.tar", "w") as archive:
        for name, data in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
        archive.addfile(about := tarfile.TarInfo("b/link.jpg"))
        about.type, about.linkname, about.name = tarfile.SYMTYPE, "1.jpg", "b/link2.jpg"
        archive.addfile(about)
    with zipfile.ZipFile(place / "more.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("c/page.jpg", "<html>")
    (place / "none.tar").write_bytes(b"no archive" * 1000)
    before = sorted(place.rglob("*"))
    assert findings(capsys, place) == [
        *[("unreadable", "none.tar"), ("not-an-image", "page.jpg"), ("truncated", "2.jpg"), ("duplicate", "3.jpg")],
        *[("empty", "link.jpg"), ("unreadable", "link2.jpg")],
    ]
    assert sorted(place.rglob("*")) == before
    assert findings(capsys, place / "more.zip") == [("not-an-image", "page.jpg")]
    assert findings(capsys, place / "a" / "3.jpg", code=0) == []


def test_all_cores_look_at_files_at_once(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = threading.Barrier(3)
    monkeypatch.setattr(samples, "usable_cpus", lambda: 3)
    monkeypatch.setattr(samples, "CHUNK", 1)
    monkeypatch.setattr(samples, "judged", lambda data, name: meeting.wait(20) * [])
    (place / "a" / "9.jpg").unlink()  # of nine files three threads look at three each
    assert findings(capsys, place, code=0) == []


def test_ctrl_c_says_what_was_found_so_far(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(data, name):
        if name.endswith("5.jpg"):
            raise KeyboardInterrupt
        return judged(data, name)

    monkeypatch.setattr(samples, "judged", interrupted)
    monkeypatch.setattr(samples, "CHUNK", 1)
    (place / "a" / "2.jpg").write_bytes(b"")
    assert cli.main(["check", str(place)]) == 130
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith("broken  empty ")
    assert out.splitlines()[1].startswith("5 images in ")
    assert err == "fastload check: interrupted; not everything was read\n"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fastload-check")]


def test_a_terminal_gets_a_bar_and_lines_above_it(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # a thread of tqdm's own, which stays for good
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    (place / "a" / "2.jpg").write_bytes(HALF)
    assert cli.main(["check", str(place)]) == 1
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["broken", "10"]
    assert "checking" in err
    assert "/10 " in err


@pytest.mark.filterwarnings("error")
def test_warnings_of_pillow_are_findings(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", SIDE * SIDE - 1)
    assert {kind for kind, _ in findings(capsys, place)} == {"huge"}


def test_settings_of_pillow_are_those_of_before(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    (place / "a" / "2.jpg").write_bytes(HALF)
    assert findings(capsys, place) == [("truncated", "2.jpg")]
    assert ImageFile.LOAD_TRUNCATED_IMAGES


class Own(Dataset):
    """Raises for two samples; the second may end the worker process."""

    def __init__(self, ends: bool = False) -> None:
        self.ends = ends

    def __len__(self) -> int:
        return 70

    def sample_name(self, index: int) -> str | None:
        return f"row {index}" if index < 40 else None

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in (17, 51):
            if self.ends and index == 51:
                os._exit(3)
            raise LookupError(f"no {index}\nsecond line")
        return torch.zeros(2)


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(5)
        raise LookupError("no more")


class Encoded(Dataset):
    """Gives its samples' files for whole batches."""

    transform = None

    def __init__(self, place: Path) -> None:
        self.files = sorted(place.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def encoded(self, index):
        raise AssertionError

    def encoded_many(self, indices):
        if 0 not in indices:
            raise LookupError("no such batch")
        return [(self.files[i].read_bytes(), 0) if i != 4 else LookupError("none") for i in indices]


@pytest.fixture
def loader_of(monkeypatch: pytest.MonkeyPatch):
    """Makes ``check_probe:make`` a factory of a dataset's loader."""

    def use(dataset, **options) -> str:
        module = types.ModuleType("check_probe")
        module.make = lambda: DataLoader(dataset, 4, **options)
        monkeypatch.setitem(sys.modules, "check_probe", module)
        return "check_probe:make"

    return use


def test_files_of_a_loaders_dataset_are_read_without_transforms(
    place: Path, capsys: pytest.CaptureFixture[str], loader_of
) -> None:
    (place / "a" / "3.jpg").write_bytes(HALF)
    (place / "a" / "5.jpg").unlink()
    (place / "a" / "5.jpg").symlink_to("4.jpg")
    folder = ImageFolder(place, lambda image: 1 / 0)
    (place / "a" / "6.jpg").unlink()
    assert cli.main(["check", loader_of(Subset(folder, [6, 3, 4, 5, 4, 3]))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == [
        f"broken  unreadable    sample 0, {place}/a/6.jpg",
        f"broken  truncated     sample 1, {place}/a/3.jpg",
        f"odd     duplicate     sample 3, {place}/a/5.jpg",
    ]
    assert lines[-1].startswith("6 images in ")


def test_datasets_of_archives_and_of_encoded_images(place: Path, capsys: pytest.CaptureFixture[str], loader_of) -> None:
    with tarfile.open(place / "shard.tar", "w") as archive:
        archive.add(place / "a", "a")
        about = tarfile.TarInfo("a/x.jpg")
        about.size = len(HALF)
        archive.addfile(about, io.BytesIO(HALF))
    assert findings(capsys, loader_of(TarImageFolder(place / "shard.tar"))) == [("truncated", "x.jpg")]
    (place / "a" / "6.jpg").write_bytes(HALF)
    (place / "b").mkdir()
    for number in range(10, 18):
        (place / "b" / f"{number}.jpg").write_bytes(saved("JPEG", number))
    found = findings(capsys, loader_of(Encoded(place)))
    assert found == [
        *[("unreadable", "sample 4"), ("truncated", "sample 6"), ("unreadable", "sample 16")],
        ("unreadable", "sample 17"),
    ]


def test_other_samples_are_fetched_and_what_raises_is_named(capsys: pytest.CaptureFixture[str], loader_of) -> None:
    assert cli.main(["check", loader_of(Own())]) == 1
    *lines, summary = capsys.readouterr().out.splitlines()
    assert lines == [
        "broken  raises        sample 17, row 17: LookupError: no 17",
        "broken  raises        sample 51: LookupError: no 51",
    ]
    assert summary.startswith("70 images in ")


def test_samples_of_arrays_are_fetched_with_their_transforms(capsys: pytest.CaptureFixture[str], loader_of) -> None:
    found = findings(capsys, loader_of(Subset(stored("CIFAR10", lambda image: 1 / 0), [1, 2])))
    assert found == [("raises", "sample 0"), ("raises", "sample 1")]


def test_a_dataset_without_a_length_is_refused(capsys: pytest.CaptureFixture[str], loader_of) -> None:
    class Endless(Dataset):
        def __getitem__(self, index: int) -> int:
            return index

    assert cli.main(["check", loader_of(Endless(), sampler=[1, 2])]) == 2
    assert "the dataset must have a length, or be an IterableDataset, got Endless" in capsys.readouterr().err


def test_a_worker_that_ends_is_a_finding(capsys: pytest.CaptureFixture[str], loader_of) -> None:
    assert cli.main(["check", loader_of(Own(ends=True))]) == 1
    line = capsys.readouterr().out.splitlines()[-2]
    assert line.startswith("broken  raises        samples behind the first ")
    assert "exited unexpectedly" in line


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_read_up_to_its_error(capsys: pytest.CaptureFixture[str], loader_of, workers: int) -> None:
    assert cli.main(["check", loader_of(Stream(), num_workers=workers)]) == 1
    *lines, summary = capsys.readouterr().out.splitlines()
    names = [f"sample 5 of worker {number}" for number in range(workers)] or ["sample 5"]
    why = "LookupError: no more; what follows was not read"
    assert lines == [f"broken  raises        {name}: {why}" for name in names]
    assert summary.startswith(f"{6 * max(1, workers)} images in ")
