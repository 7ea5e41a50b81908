"""The check of contenders' images refuses planted faults and accepts torchvision's own redraws."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import optional
import pytest
import torch
from PIL import Image
from torchvision import transforms as t

from benchmarks import _outputs
from benchmarks._outputs import (
    EPOCHS,
    Likeness,
    _wrong,
    batch_size,
    check_outputs,
    lay_out,
    torchvision_traits,
    write_expected,
)
from benchmarks.contenders import nvjpeg_lists
from benchmarks.contenders._job import Job
from benchmarks.contenders._registry import CONTENDERS, Contender
from benchmarks.contenders._serve import Server
from fastload.bench._data import MEAN, STD
from fastload.bench.photos import PhotoSet, write_photos

optional.needed("skimage", "rich")

pytestmark = pytest.mark.slow

ENDING = (t.ToTensor(), t.Normalize(MEAN, STD))
CROP, FLIP = t.RandomResizedCrop(224), t.RandomHorizontalFlip()

# The figure that each fault is refused for.
FAULTS = {
    "32 px, enlarged": ("neighbouring", t.Compose([t.RandomResizedCrop(32), t.Resize(224), FLIP])),
    "upside down": ("top less bottom", t.Compose([CROP, t.RandomVerticalFlip(1.0), FLIP])),
    "the centre alone": ("an image's crops", t.Compose([t.Resize(256), t.CenterCrop(224), FLIP])),
    "large crops alone": ("an image's crops", t.Compose([t.RandomResizedCrop(224, scale=(0.6, 1.0)), FLIP])),
    "never flipped": ("left less right", CROP),
    "always flipped": ("left less right", t.Compose([CROP, t.RandomHorizontalFlip(1.0)])),
    "red and blue exchanged": (
        "mean of the channels",
        t.Compose([CROP, FLIP, t.Lambda(lambda image: exchanged(image))]),
    ),
}


def exchanged(image):
    red, green, blue = image.split()
    return Image.merge("RGB", (blue, green, red))


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    return write_photos(tmp_path_factory.mktemp("data") / "photos", PhotoSet(count=64, edge_px=256)).path


@pytest.fixture(scope="module")
def job(photos, tmp_path_factory) -> Job:
    folder = tmp_path_factory.mktemp("laid") / "out"
    count = lay_out([str(path) for path in sorted(photos.glob("*/*.jpg"))], folder)
    return Job(data=str(folder), threads=2, batch_size=batch_size(count), images=count, seed=1)


@pytest.fixture(scope="module")
def usual(job) -> Likeness:
    return Likeness.of(job)


def drawn(job: Job, geometry, seed: int = 7) -> tuple[list[list[int]], np.ndarray]:
    torch.manual_seed(seed)
    seen = torchvision_traits(job, t.Compose([geometry, *ENDING]), EPOCHS)
    return [list(range(job.images))] * EPOCHS, seen


@pytest.mark.parametrize("seed", [7, 8])
def test_torchvision_drawn_anew_passes(job, usual, seed) -> None:
    labels, seen = drawn(job, t.Compose([CROP, FLIP]), seed)
    assert usual.unlike(labels, seen)[1] is None
    shuffled = np.random.default_rng(0).permuted(np.tile(np.arange(job.images), (EPOCHS, 1)), axis=1)
    in_its_order = np.stack([epoch[order] for epoch, order in zip(seen, shuffled, strict=True)])
    assert usual.unlike(shuffled.tolist(), in_its_order)[1] is None


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_refused(job, usual, fault) -> None:
    reason, geometry = FAULTS[fault]
    off, refused = usual.unlike(*drawn(job, geometry))
    assert refused, off
    assert reason in refused


def test_labels_of_other_images_are_refused(job, usual) -> None:
    labels, seen = drawn(job, t.Compose([CROP, FLIP]))
    turned = [[(label + 1) % job.images for label in epoch] for epoch in labels]
    assert "mean of each image" in (usual.unlike(turned, seen)[1] or "")
    twice = [[0, 0, *epoch[2:]] for epoch in labels]
    assert "must come once" in (usual.unlike(twice, seen)[1] or "")


def test_figures_that_are_no_numbers_are_refused(job, usual) -> None:
    labels, seen = drawn(job, t.Compose([CROP, FLIP]))
    seen[0, 0, 0] = np.nan
    assert usual.unlike(labels, seen)[1] is not None


def test_few_images_fill_whole_batches(photos, tmp_path) -> None:
    files = [str(path) for path in sorted(photos.glob("*/*.jpg"))]
    assert lay_out(files[:40], tmp_path / "a") == 32
    assert lay_out(files[:5], tmp_path / "b") == batch_size(5) == 5
    assert os.path.samefile(tmp_path / "b" / "0004" / "0.jpg", files[4])


@pytest.mark.parametrize("name", ["torch-decode-jpeg", "timm"])
def test_who_follows_torch_draws_is_compared_image_by_image(photos, tmp_path, name) -> None:
    if (missing := CONTENDERS[name].missing("cpu")) is not None:
        pytest.skip(missing)
    job = Job(data=str(photos), threads=2, batch_size=16, seed=1)
    refused = {}
    for seed in (1, 2):
        write_expected(Job(**{**job.record(), "seed": seed}), tmp_path / "expected.npz")
        seen = Server(name).check(str(tmp_path / "expected.npz"), **job.record())
        refused[seed] = _wrong({**seen, "labels_equal": True}, CONTENDERS[name].tolerance)
        assert seen["labels_equal"] is (seed == 1)
    assert refused[1] is None
    assert "pixels" in (refused[2] or "")


@pytest.mark.parametrize("library", ["torchvision", "torchcodec"])
def test_lists_that_a_library_decodes_are_those_images(photos, job, usual, tmp_path, library, monkeypatch) -> None:
    """On the CPU, where both have libjpeg-turbo's pixels."""
    if (missing := nvjpeg_lists.missing(library, "cpu")) is not None:
        pytest.skip(missing)
    monkeypatch.setattr(nvjpeg_lists, "TRIAL_S", 0.01)
    monkeypatch.setattr(Contender, "open_feed", lambda self, job: nvjpeg_lists.open_feed(job, library))
    whole = Job(data=str(photos), threads=2, batch_size=16, train=False, images=32)
    write_expected(whole, tmp_path / "expected.npz")
    seen = Server(f"{library}-gpu").check(str(tmp_path / "expected.npz"), **whole.record())
    assert _wrong(seen, CONTENDERS[f"{library}-gpu"].tolerance) is None
    answer = Server(f"{library}-gpu").draw(EPOCHS, **job.record())
    assert usual.unlike(answer["labels"], np.asarray(answer["traits"]))[1] is None
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("decode-", "read"))]


class Drawing:
    """torch's loader, taken for one that draws by itself, in this process."""

    name, contender = "torch", SimpleNamespace(loads=True, draws_itself=True, tolerance=None)

    def ask(self, do: str, **arguments):
        return getattr(Server("torch"), do)(**arguments)


def test_who_draws_itself_is_asked_for_epochs(photos, monkeypatch) -> None:
    monkeypatch.setattr(_outputs, "IMAGES", 32)
    team = SimpleNamespace(
        loading=[Drawing()], device="cpu", together=lambda remotes, do: [do(remote) for remote in remotes]
    )
    seen = check_outputs(team, str(photos))["torch"]
    assert "failed" not in seen
    assert seen["check_training"]["images"] == 32
    assert set(seen["check_training"]["off"]) == set(seen["check_training"]["allowed"])
