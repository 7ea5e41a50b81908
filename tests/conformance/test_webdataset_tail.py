"""Batches of webdataset's pipelines cross as uint8; the device gives the same tensors."""

from __future__ import annotations

import functools
import io
import random
import tarfile

import numpy as np
import optional
import pytest
import torch
from backends import simulated
from photos import assert_same, epochs_of, jpeg, pixels
from PIL import Image
from references import kept
from torch.utils.data import DataLoader, default_collate
from torchvision import transforms as v1
from torchvision.transforms import v2

from fastload import FastLoader
from fastload.pipeline.webdataset_tail import PixelBatch, pipeline_tail

webdataset = optional.module("webdataset")

NORMALIZE = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
V1 = v1.Compose([v1.RandomResizedCrop(40), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(*NORMALIZE)])
V2 = v2.Compose([v2.RandomResizedCrop(40), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
OTHER = v1.Compose([v1.RandomResizedCrop(40), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.5] * 3)])


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for number in range(12):
                data, kind = jpeg(number + shard, 70, 90), "jpg"
                if shard and number == 9:  # a batch with an image that is not decoded natively
                    data, kind = io.BytesIO(), "png"
                    Image.fromarray(pixels(3, 70, 90)).save(data, "PNG")
                    data = data.getvalue()
                for name, part in ((f"{number:03}.{kind}", data), (f"{number:03}.cls", str(number).encode())):
                    about = tarfile.TarInfo(name)
                    about.size = len(part)
                    archive.addfile(about, io.BytesIO(part))
    return sorted(map(str, folder.iterdir()))


def samples(shards):
    return webdataset.WebDataset(shards, shardshuffle=False).shuffle(5, rng=random.Random(3)).decode("pil")


def pairs(shards, transform):
    return samples(shards).to_tuple("jpg;png", "cls").map_tuple(transform, int)


def halved(batches):
    return (batch for number, batch in enumerate(batches) if number % 2)


PIPELINES = {
    "pairs": (lambda shards: pairs(shards, V1).batched(4), True),
    "pairs of v2": (lambda shards: pairs(shards, V2).batched(4), True),
    "torch's function": (lambda shards: pairs(shards, V1).batched(4, collation_fn=default_collate), True),
    "dicts, then pairs": (
        lambda shards: samples(shards).rename(image="jpg;png").map_dict(image=V1).to_tuple("image", "cls").batched(4),
        True,
    ),
    "two views": (
        lambda shards: samples(shards).to_tuple("jpg;png", "jpg;png", "cls").map_tuple(V1, V1, int).batched(4),
        True,
    ),
    "views of other values": (
        lambda shards: samples(shards).to_tuple("jpg;png", "jpg;png", "cls").map_tuple(V1, OTHER, int).batched(4),
        True,
    ),
    "dicts": (lambda shards: samples(shards).rename(image="jpg;png").map_dict(image=V1).batched(4), False),
    "images last": (lambda shards: samples(shards).to_tuple("cls", "jpg;png").map_tuple(int, V1).batched(4), False),
    "batches changed": (lambda shards: pairs(shards, V1).batched(4).map(lambda batch: (batch[0] * 2, batch[1])), False),
    "own function": (lambda shards: pairs(shards, V1).batched(4, collation_fn=lambda rows: rows[0]), False),
    "samples changed": (lambda shards: pairs(shards, V1).map(lambda pair: (pair[0] * 2, pair[1])).batched(4), False),
    "batches of batches": (lambda shards: pairs(shards, V1).batched(4).unbatched().batched(3), False),
    "own stage": (lambda shards: pairs(shards, V1).batched(4).compose(halved), False),
    "other parts of dicts": (
        lambda shards: samples(shards).rename(image="jpg;png").map_dict(image=V1).to_tuple("cls", "image").batched(4),
        False,
    ),
    "no batches": (lambda shards: pairs(shards, V1), False),
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("slots", [True, False])
def test_batches_are_torchs_and_the_plan_says_what_crosses(shards, monkeypatch, leaves, name, slots):
    make, taken = PIPELINES[name]
    reference = functools.partial(epochs_of, lambda: DataLoader(make(shards), batch_size=None, num_workers=2))
    theirs = reference() if name == "dicts" else kept(reference)  # the order of keys is another in each process
    own = simulated.install_native(monkeypatch)
    if slots:
        del own["max_pinned_bytes"]
    loader = FastLoader(make(shards), batch_size=None, num_workers=2, **own)
    flat = " ".join(str(loader.plan).split())
    assert ("sent as uint8, by a table" in flat) == taken, flat
    seen = epochs_of(lambda: FastLoader(make(shards), batch_size=None, num_workers=2, **own))
    assert_same(contiguous(seen), contiguous(theirs))
    assert (bool(leaves), set(leaves) <= {torch.uint8}) == (taken, True)


def contiguous(found):
    if isinstance(found, torch.Tensor):
        return found.contiguous()
    if isinstance(found, dict):
        return {key: contiguous(value) for key, value in found.items()}
    return [contiguous(value) for value in found] if isinstance(found, list | tuple) else found


@pytest.mark.parametrize(
    "given",
    [
        {"worker_init_fn": lambda number: None},
        {"engine": "torch"},
        {"num_workers": 0},
        {"collate_fn": lambda data: data},
    ],
    ids=lambda given: next(iter(given)),
)
def test_arguments_that_leave_the_tail_in_workers(shards, monkeypatch, given):
    own = simulated.install_native(monkeypatch)
    given = {"num_workers": 2, **given}
    loader = FastLoader(pairs(shards, V1).batched(4), batch_size=None, **{**own, **given})
    assert "sent as uint8" not in " ".join(str(loader.plan).split())


def test_other_tables_are_looked_up_in_the_worker(shards):
    found = pipeline_tail(pairs(shards, V1).batched(4))
    assert found.names == ("ToTensor", "Normalize")
    batch = PixelBatch(np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8), found.table)
    (taken, label), holds = found.take_pixels((batch, 3))
    assert (holds, label, taken.dtype, taken.shape) == (True, 3, torch.uint8, (2, 5, 7, 3))
    tail = v1.Compose(V1.transforms[2:])
    expected = torch.stack([tail(Image.fromarray(image)) for image in batch.pixels])
    (made, _), holds = found.take_pixels((PixelBatch(batch.pixels, found.table * 1), 3))
    assert holds
    (made, second), holds = found.take_pixels((PixelBatch(batch.pixels, found.table * 2), batch))
    assert (holds, torch.equal(made, expected * 2), torch.equal(second, expected)) == (False, True, True)
    assert torch.equal(found.take_pixels({"image": batch})[0]["image"], expected)
    assert found.take_pixels("text") == ("text", False)
