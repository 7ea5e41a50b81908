"""webdataset's pipelines give the same samples in FastLoader, and by the core's handler."""

from __future__ import annotations

import functools
import io
import pickle
import random
import tarfile

import numpy as np
import optional
import pytest
import torch
from backends import simulated
from photos import assert_same, both, epochs_of, jitter_v2, jpeg, pixels, train_v1
from PIL import Image
from references import kept
from torch.utils.data import DataLoader, default_collate
from torchvision import transforms as v1

from fastload import FastLoader
from fastload.deferred import functions
from fastload.vision import codec, handlers, image_handler

webdataset = optional.module("webdataset")

SPECS = ("pil", "pilrgb", "rgb8", "rgb", "torchrgb8", "torchrgb", "torch", "l8", "torchl", "rgba", "pill")


def encoded(number, format, mode="RGB"):
    out = io.BytesIO()
    Image.fromarray(pixels(number, 60 + number, 80)).convert(mode).save(out, format)
    return out.getvalue()


FILES = {
    "jpg": jpeg(1),
    "jpeg": jpeg(2, mode="L"),
    "png": encoded(3, "PNG"),
    "alpha.PNG": encoded(4, "PNG", "RGBA"),
    "webp": encoded(5, "WEBP"),
    "cmyk.jpg": jpeg(6, mode="CMYK"),
    "palette.png": encoded(7, "PNG", "P"),
    "bmp": encoded(8, "BMP"),
    "ppm": encoded(9, "PPM"),
    "cls": b"7",
    "txt": b"text",
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for number in range(shard * 7, shard * 7 + 7):
                kind, data = ("png", encoded(number, "PNG")) if number % 5 == 4 else ("jpg", jpeg(number, 70, 90))
                for name, part in ((f"{number:03}.{kind}", data), (f"{number:03}.cls", str(number).encode())):
                    about = tarfile.TarInfo(name)
                    about.size = len(part)
                    archive.addfile(about, io.BytesIO(part))
    return sorted(map(str, folder.iterdir()))


def pipeline(shards, transform, decoder="pil"):
    found = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False).shuffle(9, rng=random.Random(3))
    return found.decode(decoder).to_tuple("jpg;png", "cls").map_tuple(transform, int)


@pytest.mark.each_value
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("decoder", ["pil", "core"])
def test_same_batches_as_torch(shards, workers, decoder):
    def loader_of(kind, handler, **options):
        return kind(pipeline(shards, train_v1(), handler), batch_size=5, num_workers=workers, **options)

    handler = image_handler("pil") if decoder == "core" else decoder
    ours = epochs_of(lambda: loader_of(FastLoader, handler, device="cpu"))
    assert_same(ours, epochs_of(lambda: loader_of(DataLoader, "pil")))


@pytest.mark.slow
def test_batches_of_the_pipeline(shards):
    def dataset_of():
        return pipeline(shards, jitter_v2()).batched(4, partial=True)

    ours, theirs = both(dataset_of, FastLoader, {"device": "cpu"}, batch_size=None, num_workers=2)
    assert_same(ours, theirs)


def unchanged(shards):
    return pipeline(shards, train_v1())


PIPELINES = {
    "webdataset's batches": lambda shards: unchanged(shards).batched(4),
    "torch's batches": lambda shards: unchanged(shards).batched(4, collation_fn=default_collate),
    "dicts": lambda shards: unchanged(shards).map(lambda pair: {"image": pair[0], "label": pair[1]}).batched(4),
    "images last": lambda shards: unchanged(shards).map(lambda pair: pair[::-1]).batched(4),
    "batches changed": lambda shards: unchanged(shards).batched(4).map(lambda batch: (batch[0] * 2, batch[1])),
    "samples changed": lambda shards: unchanged(shards).map(lambda pair: (pair[0] * 2, pair[1])).batched(4),
    "batches of batches": lambda shards: unchanged(shards).batched(4).unbatched().batched(3),
    "own function": lambda shards: unchanged(shards).batched(4, collation_fn=lambda rows: [row[0] for row in rows]),
    "samples": unchanged,
}


@pytest.mark.each_value
@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("where", ["host", "slots"])
def test_images_are_deferred_until_their_batch_is_sent(shards, name, where, monkeypatch):
    def loader_of(kind, **options):
        own = {"batch_size": 4 if name == "samples" else None}
        return kind(PIPELINES[name](shards), num_workers=2, persistent_workers=True, **own, **options)

    monkeypatch.setattr(functions, "LEVELS_MIN_BYTES", 1)  # PNG files' images, too
    reference = functools.partial(epochs_of, lambda: loader_of(DataLoader))
    # Of dicts, the order of keys is another in each process.
    theirs = reference() if name == "dicts" else kept(reference, name=name)
    own = {"device": "cpu"}
    if where == "slots":
        own = simulated.install_native(monkeypatch)
        own.pop("max_pinned_bytes")
    loaders = []
    ours = epochs_of(lambda: loaders.append(loader_of(FastLoader, **own)) or loaders[-1])
    assert_same(contiguous(ours), contiguous(theirs))
    stats = loaders[-1].stats()
    assert stats.deferred_images > 12
    if name not in ("batches of batches", "samples"):  # the first images of a worker are compared, and stacked at once
        assert stats.looks <= 4, stats.fetch.looks_at


def contiguous(found):
    if isinstance(found, torch.Tensor):
        return found.contiguous()
    if isinstance(found, dict):
        return {key: contiguous(value) for key, value in found.items()}
    return [contiguous(value) for value in found] if isinstance(found, list | tuple) else found


@pytest.mark.parametrize("handler", ["reraise_exception", "warn_and_continue", "ignore_and_continue", "warn_and_stop"])
def test_handlers_see_the_same_samples_fail(tmp_path, handler, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # of webdataset's handlers
    files = [jpeg(number, 70, 90) for number in range(12)]
    files[4], files[7], files[9] = files[4][:-400], b"nonsense", jpeg(9, 20, 90)
    with tarfile.open(tmp_path / "damaged.tar", "w") as archive:
        for number, data in enumerate(files):
            about = tarfile.TarInfo(f"{number:03}.jpg")
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    handled = {"handler": getattr(webdataset, handler)}
    transform = v1.Compose([v1.RandomCrop(32), v1.ToTensor()])

    def loader_of(kind, **options):
        found = webdataset.WebDataset(str(tmp_path / "damaged.tar"), shardshuffle=False, empty_check=False)
        found = found.decode("pil", **handled).to_tuple("jpg").map_tuple(transform, **handled).batched(3)
        return kind(found, batch_size=None, num_workers=1, **options)

    ours = epochs_of(lambda: loader_of(FastLoader, device="cpu"))
    assert_same(ours, epochs_of(lambda: loader_of(DataLoader)))


def test_webdatasets_loader_takes_the_handler(shards):
    def batches(decoder):
        torch.manual_seed(3)
        loader = webdataset.WebLoader(pipeline(shards, train_v1(), decoder), batch_size=5, num_workers=1)
        return [*loader.unbatched().shuffle(5, rng=random.Random(2)).batched(6)]

    assert_same(batches(image_handler("pilrgb")), batches("pilrgb"))


@pytest.mark.parametrize("spec", SPECS)
def test_images_are_webdatasets(spec):
    ours, theirs = pickle.loads(pickle.dumps(image_handler(spec))), webdataset.imagehandler(spec)
    for key, data in FILES.items():
        made, expected = ours(f".{key}", data), theirs(f".{key}", data)
        assert type(made) is type(expected) if not isinstance(expected, Image.Image) else made.mode == expected.mode
        if expected is not None:
            assert np.array_equal(np.asarray(made), np.asarray(expected))
            assert np.asarray(made).dtype == np.asarray(expected).dtype


def test_the_core_decodes(monkeypatch):
    seen = []
    monkeypatch.setattr(handlers, "decode", lambda data: seen.append(len(data)) or codec.decode(data))
    handler = image_handler("rgb8")
    for key in ("jpg", "png", "cls"):
        handler(f".{key}", FILES[key])
    assert seen == [len(FILES["jpg"]), len(FILES["png"])]


@pytest.mark.parametrize("data", [b"", b"nonsense", jpeg(1)[:500], encoded(3, "PNG")[:400]])
def test_errors_are_pillows(data):
    found = []
    for handler in (image_handler("rgb8"), webdataset.imagehandler("rgb8")):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - Pillow's, whatever it is
            handler(".jpg", data)
        found.append((type(raised.value), str(raised.value).partition("<")[0]))
    assert found[0] == found[1]


def test_unknown_types_are_refused():
    with pytest.raises(ValueError, match="Unknown imagespec"):
        image_handler("rgb16")
