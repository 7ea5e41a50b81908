"""webdataset's pipelines give the same samples in FastLoader, and by the core's handler."""

from __future__ import annotations

import io
import pickle
import random
import tarfile

import numpy as np
import optional
import pytest
import torch
from photos import assert_same, both, epochs_of, jitter_v2, jpeg, pixels, train_v1
from PIL import Image
from torch.utils.data import DataLoader

from fastload import FastLoader
from fastload.lazy import webdataset as webdataset_stages
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


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("decoder", ["pil", "core"])
def test_same_batches_as_torch(shards, workers, decoder):
    def loader_of(kind, handler, **options):
        return kind(pipeline(shards, train_v1(), handler), batch_size=5, num_workers=workers, **options)

    handler = image_handler("pil") if decoder == "core" else decoder
    ours = epochs_of(lambda: loader_of(FastLoader, handler, device="cpu"))
    assert_same(ours, epochs_of(lambda: loader_of(DataLoader, "pil")))


def test_batches_of_the_pipeline(shards):
    def dataset_of():
        return pipeline(shards, jitter_v2()).batched(4, partial=True)

    ours, theirs = both(dataset_of, FastLoader, {"device": "cpu"}, batch_size=None, num_workers=2)
    assert_same(ours, theirs)


@pytest.mark.parametrize("batched", [True, False])
def test_workers_make_the_images_of_a_batch_at_once(shards, batched, tmp_path, monkeypatch):
    def loader_of(kind, **options):
        found = pipeline(shards, train_v1())
        found = found.batched(4, partial=True) if batched else found
        own = {"batch_size": None} if batched else {"batch_size": 4}
        return kind(found, num_workers=2, persistent_workers=True, **own, **options)

    def noted(function, name):
        def call(*arguments, **rest):
            with (tmp_path / name).open("a") as file:
                file.write("x")
            return function(*arguments, **rest)

        return call

    monkeypatch.setattr(webdataset_stages, "stack", noted(webdataset_stages.stack, "stack"))
    finished = noted(webdataset_stages.PendingImage.finished, "finished")
    monkeypatch.setattr(webdataset_stages.PendingImage, "finished", finished)
    ours = epochs_of(lambda: loader_of(FastLoader, device="cpu"))
    assert_same(ours, epochs_of(lambda: loader_of(DataLoader)))
    assert len((tmp_path / ("stack" if batched else "finished")).read_text()) > (1 if batched else 28)


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
