"""Archives have the samples of ``ImageFolder`` over the extracted folder, natively, with the same bits."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from photos import assert_same, eval_v1, jpeg, make_folder, mix_in, train_v1
from references import kept
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision.datasets import ImageFolder

from fastload import FastLoader, _core
from fastload.sources import ArchiveError, TarImageFolder, TarSamples, ZipImageFolder, archive_index
from fastload.sources.archive_index import read_index

LONG = "a very long name " * 12


def write_tar(path: Path, members: dict[str, bytes], **options: object) -> Path:
    with tarfile.open(path, "w", **options) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = mix_in(make_folder(tmp_path_factory.mktemp("photos"), 23))
    for name in ("class0/x-b/y.jpg", "class0/x/b/y.jpg", "class0/x/a.JPEG", f"class2/{LONG}.jpg", "class2/\xe4.jpg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(jpeg(len(name)))
    (folder / "class0" / "notes.txt").write_text("no image")
    (folder / "above.jpg").write_bytes(jpeg(1))
    return folder


@pytest.fixture(scope="module", params=["gnu", "pax", "stored", "deflated"])
def archive(request, root, tmp_path_factory):
    path = tmp_path_factory.mktemp("archives") / f"{request.param}.archive"
    files = [file for file in root.rglob("*") if file.is_file()]
    np.random.default_rng(0).shuffle(files)
    if request.param in ("gnu", "pax"):
        kind = tarfile.GNU_FORMAT if request.param == "gnu" else tarfile.PAX_FORMAT
        with tarfile.open(path, "w", format=kind) as out:
            out.add(root, "./", recursive=False)
            for file in files:
                out.add(file, f"./{file.relative_to(root)}")
        return TarImageFolder, path
    kind = zipfile.ZIP_STORED if request.param == "stored" else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", kind) as out:
        for file in files:
            out.write(file, file.relative_to(root))
    return ZipImageFolder, path


def test_samples_are_those_of_the_extracted_folder(archive, root):
    kind, path = archive
    ours, theirs = kind(path), ImageFolder(root)
    assert (ours.classes, ours.class_to_idx, ours.targets) == (theirs.classes, theirs.class_to_idx, theirs.targets)
    where = [(os.path.relpath(name, path), target) for name, target in ours.samples]
    assert where == [(os.path.relpath(name, root), target) for name, target in theirs.samples]
    assert [ours.encoded(i)[0] for i in range(len(ours))] == [Path(name).read_bytes() for name, _ in theirs.samples]
    assert ours[-1][0].tobytes() == theirs[-1][0].tobytes()
    assert ours.encoded(np.int64(3)) == ours.encoded(torch.tensor(3)) == ours.encoded(3)
    with pytest.raises(IndexError):
        ours[len(ours)]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_torchs_and_native(archive, root, workers):
    kind, path = archive
    given = {"batch_size": 5, "shuffle": True, "num_workers": workers}
    with FastLoader(kind(path, train_v1()), **given, engine="native", device="cpu") as loader:
        torch.manual_seed(0)
        ours = list(loader)
    torch.manual_seed(0)
    assert_same(ours, kept(lambda: list(DataLoader(ImageFolder(root, train_v1()), **given))))


def test_target_transforms_run_beside_native_samples(archive, root):
    kind, path = archive
    given = {"batch_size": 5, "num_workers": 0}
    dataset = kind(path, eval_v1(), target_transform=lambda target: target * 10)
    with FastLoader(dataset, **given, engine="native", device="cpu") as loader:
        ours = list(loader)
    assert_same(ours, kept(lambda: list(DataLoader(ImageFolder(root, eval_v1(), lambda target: target * 10), **given))))


def test_parts_and_several_archives(root, tmp_path):
    files = sorted(file for file in root.glob("class*/*") if file.is_file())
    halves = [{f"all/{f.relative_to(root)}": f.read_bytes() for f in files[half::2]} for half in (0, 1)]
    paths = [write_tar(tmp_path / f"{i}.tar", half) for i, half in enumerate(halves)]
    dataset = TarImageFolder(paths, eval_v1(), root="./all/")
    assert dataset.classes == ["class0", "class1", "class2"]
    names = [file.name for file in files if file.suffix != ".txt"]
    assert [os.path.basename(name) for name, _ in dataset.samples] == names
    assert TarImageFolder(paths).classes == ["all"]
    mixed = ConcatDataset([Subset(dataset, [4, 1]), dataset])
    with FastLoader(mixed, batch_size=3, engine="native", device="cpu") as loader:
        assert_same(list(loader), list(DataLoader(mixed, batch_size=3)))


def test_a_dataset_is_pickled_without_its_open_files(archive):
    kind, path = archive
    dataset = kind(path)
    data, _ = dataset.encoded(2)
    again = pickle.loads(pickle.dumps(dataset))
    assert again._reader._files == {}  # those of another process
    assert again.encoded(2)[0] == data
    assert again._reader._files.keys() == {0}


def test_files_are_closed_with_their_dataset(archive):
    kind, path = archive

    def opened():
        return [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink() and link.resolve() == path]

    dataset = kind(path)
    dataset.encoded(0)
    dataset.encoded(1)
    assert len(opened()) == 1
    del dataset
    assert opened() == []


def test_beyond_a_number_archives_do_not_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr(archive_index.ArchiveReader, "OPEN_MAX", 2)
    paths = [write_tar(tmp_path / f"{i}.tar", {f"a/{i}.jpg": b"%d" % i}) for i in range(5)]
    dataset = TarImageFolder(paths)
    assert [dataset.encoded(i)[0] for i in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    assert dataset._reader._files.keys() == {0, 1}


def test_the_index_is_kept_and_made_again_for_a_changed_archive(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "a.tar", {"a/1.jpg": b"one"})
    first = read_index(str(path), is_zip=False)
    kept = tmp_path / "a.tar.index.npz"
    assert kept.exists()
    with monkeypatch.context() as patch:
        patch.setattr(archive_index, "_made", None)  # it is not read again
        again = read_index(str(path), is_zip=False)
    assert (again.names, again.places.tolist(), again.stamp) == (first.names, first.places.tolist(), first.stamp)
    write_tar(path, {"a/2.jpg": b"two", "a/3.jpg": b"three"})
    assert read_index(str(path), is_zip=False).names == ["a/2.jpg", "a/3.jpg"]
    with monkeypatch.context() as patch:
        patch.setattr(archive_index, "_made", None)
        assert read_index(str(path), is_zip=False).names == ["a/2.jpg", "a/3.jpg"]
    with pytest.raises(ArchiveError, match="must be a zip archive"):
        read_index(str(path), is_zip=True)  # a tar's index is not taken for a zip's


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fastload" / "archives"


def test_a_folder_that_cannot_be_written_leaves_the_index_to_the_cache(tmp_path, monkeypatch, cache):
    path = write_tar(tmp_path / "a.tar", {"a/1.jpg": b"one"})
    (tmp_path / "a.tar.index.npz").mkdir()  # root may write to any folder
    assert read_index(str(path), is_zip=False).names == ["a/1.jpg"]
    (kept,) = cache.iterdir()
    assert kept.suffix == ".npz"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.tar", "a.tar.index.npz", "cache"]
    monkeypatch.setattr(archive_index, "_made", None)
    assert read_index(str(path), is_zip=False).names == ["a/1.jpg"]


def foreign_index(path: Path) -> bytes:
    """An index of the archive that someone else has made, with another sample's places."""
    read_index(str(path), is_zip=False)
    kept = Path(f"{path}.index.npz")
    with np.load(kept) as held:
        arrays = dict(held)
    kept.unlink()
    out = io.BytesIO()
    np.savez(out, **{**arrays, "places": np.roll(arrays["places"], 1, axis=0)})
    return out.getvalue() + _core.tags_of(out.getvalue(), bytes(48))


@pytest.mark.parametrize("what", ["places", "empty", "zip", "pipe", "inflated"])
def test_an_index_that_is_not_ours_is_neither_used_nor_replaced(tmp_path, what, cache, monkeypatch):
    path = write_tar(tmp_path / "a.tar", {"a/1.jpg": b"one", "a/2.jpg": b"two"})
    kept = tmp_path / "a.tar.index.npz"
    data = {"places": foreign_index(path), "empty": b"", "zip": b"PK\3\4 no archive"}.get(what)
    if what == "pipe":
        os.mkfifo(kept)
    elif what == "inflated":
        with zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED) as out:
            out.writestr("places.npy", bytes(1 << 24))
    else:
        kept.write_bytes(data)
    before = kept.lstat().st_ino, kept.lstat().st_mtime_ns
    if what == "inflated":
        monkeypatch.setattr(np, "load", None)
    dataset = TarImageFolder(path)
    assert [dataset.encoded(i)[0] for i in range(2)] == [b"one", b"two"]
    assert (kept.lstat().st_ino, kept.lstat().st_mtime_ns) == before
    assert len(list(cache.iterdir())) == 1


def test_an_index_of_another_version_is_made_anew(tmp_path, monkeypatch, cache):
    path = write_tar(tmp_path / "a.tar", {"a/1.jpg": b"one"})
    with monkeypatch.context() as patch:
        patch.setattr(archive_index, "_VERSION", 1)
        read_index(str(path), is_zip=False)
    assert read_index(str(path), is_zip=False).names == ["a/1.jpg"]
    monkeypatch.setattr(archive_index, "_made", None)
    assert read_index(str(path), is_zip=False).names == ["a/1.jpg"]


def test_without_a_key_no_index_is_kept(tmp_path, monkeypatch, cache):
    monkeypatch.setenv("XDG_STATE_HOME", str(write_tar(tmp_path / "a.tar", {"a/1.jpg": b"one"})))  # not a folder
    assert TarImageFolder(tmp_path / "a.tar").encoded(0) == (b"one", 0)
    assert os.listdir(tmp_path) == ["a.tar"]


def replaced(path: Path, write, members: dict[str, bytes], *, in_place: bool) -> None:
    """Write another archive under the same name, of the same size and time."""
    about = path.stat()
    other = write(path.with_suffix(".other"), members)
    if in_place:
        path.write_bytes(other.read_bytes())
        other.unlink()
    else:
        other.replace(path)
    assert path.stat().st_size == about.st_size
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name, data in members.items():
            out.writestr(zipfile.ZipInfo(name), data)
    return path


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("kind", "write"), [(TarImageFolder, write_tar), (ZipImageFolder, write_zip)])
def test_an_archive_replaced_by_one_of_the_same_size_and_time_is_indexed_again(tmp_path, kind, write, in_place):
    """Reproducible builds set all times alike."""
    path = write(tmp_path / "a.archive", {"a/1.jpg": b"cat", "b/1.jpg": b"dog"})
    assert [kind(path).encoded(i) for i in range(2)] == [(b"cat", 0), (b"dog", 1)]
    replaced(path, write, {"b/1.jpg": b"cat", "a/1.jpg": b"dog"}, in_place=in_place)
    assert [kind(path).encoded(i) for i in range(2)] == [(b"dog", 0), (b"cat", 1)]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("long", ["", LONG])
@pytest.mark.parametrize(("kind", "write"), [(TarImageFolder, write_tar), (ZipImageFolder, write_zip)])
def test_a_member_whose_header_has_changed_is_not_read(tmp_path, kind, write, in_place, long):
    path = write(tmp_path / "a.archive", {f"a/{long}1.jpg": b"cat", f"b/{long}1.jpg": b"dog", "c/1.jpg": b"cow"})
    dataset = kind(path)
    dataset.encoded(0)
    read = pickle.loads(pickle.dumps(dataset))  # as in a process that opens the archive later
    replaced(path, write, {f"b/{long}1.jpg": b"cat", f"a/{long}1.jpg": b"dog", "c/1.jpg": b"cow"}, in_place=in_place)
    with pytest.raises(ArchiveError, match="has changed since it was opened"):
        read.encoded(0)
    assert read.encoded(2) == (b"cow", 2)


def test_a_new_name_or_mode_of_the_archive_ends_no_epoch(tmp_path):
    path = write_tar(tmp_path / "a.tar", {"a/1.jpg": b"one"})
    dataset = TarImageFolder(path)
    dataset.encoded(0)
    path.chmod(0o400)
    os.link(path, tmp_path / "b.tar")
    assert dataset.encoded(0) == (b"one", 0)
    assert pickle.loads(pickle.dumps(dataset)).encoded(0) == (b"one", 0)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_an_archive_that_is_no_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "a.tar"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for dataset in (TarImageFolder, ZipImageFolder):
        with pytest.raises(OSError, match="not a regular file"):
            dataset(path)


def test_an_archive_that_changes_meanwhile_is_not_read(tmp_path):
    path = write_tar(tmp_path / "a.tar", {"a/1.jpg": b"one"})
    dataset = TarImageFolder(path)
    assert dataset.encoded(0) == (b"one", 0)
    with path.open("r+b") as file:
        file.write(b"b")
    os.utime(path, ns=(0, 0))
    with pytest.raises(ArchiveError, match="has changed since it was opened"):
        dataset.encoded(0)


def test_the_last_of_several_members_with_a_name_counts(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as out:
        for name, data in (("a/1.jpg", b"old"), ("a/0.jpg", b"0"), ("./a/1.jpg", b"newer")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    assert TarImageFolder(tmp_path / "a.tar").encoded(1) == (b"newer", 0)
    assert read_index(str(tmp_path / "a.tar"), is_zip=False).names == ["a/0.jpg", "a/1.jpg"]  # where the last one is


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "a.tar", "w") as out:
        member = tarfile.TarInfo("a/1.jpg")
        member.type, member.linkname = kind, "../../secret.jpg"
        out.addfile(member)
    with pytest.raises(ArchiveError, match=r"a/1.jpg is a link, a device"):
        TarImageFolder(tmp_path / "a.tar")


def zip_of(path, member, data=b"data", kind=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w") as out:
        out.writestr(member, data, kind)
    return path


def test_links_encryption_and_other_compression_in_a_zip_are_refused(tmp_path):
    link = zipfile.ZipInfo("a/1.jpg")
    link.external_attr = 0o120777 << 16
    zip_of(tmp_path / "link.zip", link)
    zip_of(tmp_path / "bz2.zip", "a/1.jpg", kind=zipfile.ZIP_BZIP2)
    encrypted = bytearray(zip_of(tmp_path / "encrypted.zip", "a/1.jpg").read_bytes())
    encrypted[encrypted.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "encrypted.zip").write_bytes(encrypted)
    for path in tmp_path.glob("*.zip"):
        with pytest.raises(ArchiveError, match=r"a/1.jpg is a link, a device, sparse, encrypted"):
            ZipImageFolder(path)


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damaged_members_of_a_zip_raise(tmp_path, kind):
    data = jpeg(3)
    path = zip_of(tmp_path / "a.zip", "a/1.jpg", data, kind)
    dataset = ZipImageFolder(path)
    about = path.stat()
    with path.open("r+b") as file:
        file.seek(300)
        (was,) = file.read(1)
        file.seek(300)
        file.write(bytes([was ^ 1]))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    with pytest.raises(ArchiveError, match="is damaged"):
        dataset.encoded(0)


@pytest.fixture
def inflated(monkeypatch):
    """How many bytes each member was inflated to."""
    sizes: list[int] = []

    class Watched:
        def __init__(self, *arguments):
            self._inner = zlib.decompressobj(*arguments)

        def decompress(self, *arguments):
            data = self._inner.decompress(*arguments)
            sizes.append(len(data))
            return data

    monkeypatch.setattr(archive_index, "zlib", SimpleNamespace(**{**vars(zlib), "decompressobj": Watched}))
    return sizes


def test_a_member_that_inflates_to_more_than_it_says_is_not_inflated_whole(tmp_path, inflated):
    path = zip_of(tmp_path / "a.zip", "a/1.jpg", bytes(1 << 20), zipfile.ZIP_DEFLATED)
    dataset = ZipImageFolder(path)
    dataset._places[0, 3] = 10
    with pytest.raises(ArchiveError, match="is damaged"):
        dataset.encoded(0)
    assert inflated == [11]


def test_a_member_that_says_that_it_inflates_to_very_much_is_not_inflated(tmp_path, inflated, monkeypatch):
    monkeypatch.setattr(archive_index, "_INFLATED_BYTES", 1 << 16)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in (("0", bytes(1 << 16)), ("1", bytes((1 << 16) + 1)), ("2", os.urandom(1 << 17))):
            out.writestr(f"a/{name}.jpg", data)
    dataset = ZipImageFolder(tmp_path / "a.zip")
    assert dataset.encoded(0)[0] == bytes(1 << 16)
    with pytest.raises(ArchiveError, match=r"not have more than 100 times its bytes .* 65,537 of 79; store it without"):
        dataset.encoded(1)
    assert len(dataset.encoded(2)[0]) == 1 << 17
    assert inflated == [1 << 16, 1 << 17]


def test_a_member_of_which_less_can_be_read_raises(tmp_path, monkeypatch):
    dataset = TarImageFolder(write_tar(tmp_path / "a.tar", {"a/1.jpg": b"some data"}))
    read = os.pread
    with monkeypatch.context() as patch:  # the archive is cut between a look at its size and the read
        patch.setattr(os, "pread", lambda number, count, offset: read(number, {9: 4, 5: 0}.get(count, count), offset))
        with pytest.raises(ArchiveError, match="is damaged"):
            dataset.encoded(0)
    assert dataset.encoded(0)[0] == b"some data"


def test_an_archive_that_changes_while_it_is_indexed_is_refused(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "a.tar", {"a/1.jpg": b"one"})
    members_of = archive_index._members_of_tar

    def changed_meanwhile(file):
        yield from members_of(file)
        os.utime(path, ns=(0, 0))

    monkeypatch.setattr(archive_index, "_members_of_tar", changed_meanwhile)
    with pytest.raises(ArchiveError, match="was changed while it was read"):
        TarImageFolder(path)
    assert not (tmp_path / "a.tar.index.npz").exists()


@pytest.mark.parametrize("name", ["../a/1.jpg", "a/../../1.jpg"])
def test_members_outside_of_the_folder_are_refused(tmp_path, name):
    with pytest.raises(ArchiveError, match="outside of its folder"):
        TarImageFolder(write_tar(tmp_path / "a.tar", {name: b""}))
    with pytest.raises(ArchiveError, match="outside of its folder"):
        ZipImageFolder(zip_of(tmp_path / "a.zip", name))


def test_what_is_no_archive_is_refused(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz"):
        pass
    (tmp_path / "empty.tar").write_bytes(b"")
    (tmp_path / "photo.tar").write_bytes(jpeg(1))
    for name in ("a.tar.gz", "empty.tar", "photo.tar"):
        with pytest.raises(ArchiveError, match="must be a tar archive without compression"):
            TarImageFolder(tmp_path / name)
    with pytest.raises(ArchiveError, match="must be a zip archive"):
        ZipImageFolder(tmp_path / "photo.tar")
    with pytest.raises(FileNotFoundError):
        TarImageFolder(tmp_path / "none.tar")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_of_a_tar_that_says_that_it_is_huge_is_not_read(tmp_path, kind):
    header = tarfile.TarInfo("a/1.jpg")
    header.type, header.size = kind, 1 << 32
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(header.tobuf())
        file.truncate(1 << 33)
    with pytest.raises(ArchiveError, match=r"a header must have at most 16,777,216 bytes, and one has more"):
        TarImageFolder(tmp_path / "a.tar")


@pytest.mark.parametrize("where", ["data", "header", "garbage"])
def test_a_tar_that_is_cut_short_or_damaged_is_refused(tmp_path, where):
    path = write_tar(tmp_path / "a.tar", {f"a/{i}.jpg": bytes(range(256)) * 8 for i in range(3)})
    data = bytearray(path.read_bytes())
    step = 512 + 2048
    if where == "garbage":
        data[2 * step : 2 * step + 512] = bytes(range(256)) * 2
    path.write_bytes(data[: {"data": 2 * step + 900, "header": 2 * step + 100, "garbage": len(data)}[where]])
    with pytest.raises(ArchiveError, match=r"a.tar"):
        TarImageFolder(path)


def test_a_file_in_two_archives_and_classes_without_images_are_refused(tmp_path):
    one = write_tar(tmp_path / "1.tar", {"a/1.jpg": b"", "b/notes.txt": b""})
    two = write_tar(tmp_path / "2.tar", {"a/1.jpg": b""})
    with pytest.raises(ArchiveError, match=r"a/1.jpg is in .*1.tar and .*2.tar"):
        TarImageFolder([one, two])
    with pytest.raises(FileNotFoundError, match="no valid file for the classes b"):
        TarImageFolder(one)
    assert TarImageFolder(one, allow_empty=True).classes == ["a", "b"]
    with pytest.raises(FileNotFoundError, match="any class folder"):
        TarImageFolder(two, root="c")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(2):
        members = {}
        for i in range(shard * 6, shard * 6 + 6):
            members |= {
                f"x.y/{i:03}.jpg": jpeg(i),
                f"x.y/{i:03}.cls": b"%d" % (i % 5),
                f"x.y/{i:03}.json": b'{"i":%d}' % i,
            }
        write_tar(folder / f"{shard}.tar", members)
    return sorted(folder.glob("*.tar"))


def test_pairs_are_those_of_webdataset(shards):
    wds = pytest.importorskip("webdataset")
    theirs = wds.WebDataset([str(shard) for shard in shards], shardshuffle=False).decode("pilrgb")
    theirs = theirs.to_tuple("jpg", "cls").map_tuple(eval_v1(), lambda label: label)
    ours = TarSamples(shards, eval_v1())
    assert_same(list(DataLoader(ours, batch_size=5)), list(DataLoader(theirs, batch_size=5)))
    with FastLoader(ours, batch_size=5, num_workers=1, engine="native", device="cpu") as loader:
        assert_same(list(loader), list(DataLoader(theirs, batch_size=5)))
    assert TarSamples(shards, label="json").encoded(7)[1] == {"i": 7}
    assert ours.samples[0] == f"{shards[0]}/x.y/000.jpg"


def test_keys_without_a_label_are_refused(tmp_path):
    path = write_tar(tmp_path / "a.tar", {"1.jpg": b"", "1.cls": b"0", "2.jpg": b""})
    with pytest.raises(ArchiveError, match=r"and 2 of .* has jpg"):
        TarSamples(path)
    with pytest.raises(ValueError, match="label must be one of cls"):
        TarSamples(path, label="pkl")


def test_a_root_may_be_a_path_and_there_must_be_archives(tmp_path):
    path = write_tar(tmp_path / "a.tar", {"train/a/1.jpg": jpeg(1)})
    assert TarImageFolder(path, root=Path("train")).classes == ["a"]
    for kind in (TarImageFolder, ZipImageFolder, TarSamples):
        with pytest.raises(ValueError, match="path_or_paths must name at least one file"):
            kind([])
