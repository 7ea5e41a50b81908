"""Images that own steps have made give torch's batches."""

from __future__ import annotations

import pytest
import torch
from backends import simulated
from photos import assert_same, epochs_of, photos_fixture
from references import kept
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload import FastLoader
from fastload.deferred import functions

ARGUMENTS = {"batch_size": 4, "num_workers": 2, "shuffle": True}
NORMALIZE = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


class Own:
    """A step that draws, and that is not known."""

    def __call__(self, image):
        return image.rotate(float(torch.rand(1)) * 9)


class SometimesGray(Own):
    def __call__(self, image):
        return image.convert("L").convert("L" if torch.rand(1) < 0.5 else "RGB")


def with_v1(own):
    return v1.Compose([v1.RandomResizedCrop(40), own, v1.ToTensor(), v1.Normalize(*NORMALIZE)])


def with_v2(own):
    last = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(*NORMALIZE), v2.ToPureTensor()]
    return v2.Compose([v2.RandomResizedCrop(40), own, *last])


def erasing(own):
    return v1.Compose([with_v1(own), v1.RandomErasing(0.9)])


def of_sizes(own):
    return v1.Compose([own, v1.ToTensor()])


def some_gray(_own):
    return with_v1(SometimesGray())


root = photos_fixture(14, mixed=True)


@pytest.fixture(autouse=True)
def _small_images_too(monkeypatch):
    monkeypatch.setattr(functions, "LEVELS_MIN_BYTES", 1)


@pytest.mark.each_value
@pytest.mark.parametrize("pipeline", [with_v1, with_v2, erasing, of_sizes, some_gray])
@pytest.mark.parametrize("where", ["host", "device", "slots"])
def test_batches_and_generators_are_torchs(root, monkeypatch, pipeline, where):
    dataset = ImageFolder(root, pipeline(Own()))
    transform = dataset.transform
    theirs = kept(lambda: epochs_of(lambda: DataLoader(dataset, **ARGUMENTS)), name=pipeline.__name__)
    own = {"device": "cpu"} if where == "host" else simulated.install_native(monkeypatch)
    if where == "slots":
        del own["max_pinned_bytes"]
    loaders = []

    def loader():
        loaders.append(FastLoader(dataset, **ARGUMENTS, **own))
        return loaders[-1]

    seen = epochs_of(loader)
    assert_same([[x.contiguous() for x in item] if isinstance(item, list) else item for item in seen], theirs)
    last = [[str(item).splitlines()[-1] for item in run if isinstance(item, Exception)] for run in (seen, theirs)]
    assert last[0] == last[1]
    assert dataset.transform is transform
    assert loaders[-1].stats().deferred_images or pipeline in (of_sizes, some_gray)  # of which no batch is made


@pytest.mark.gpu
@pytest.mark.parametrize("pipeline", [with_v1, with_v2, erasing, some_gray])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format, None])
def test_batches_on_the_gpu(root, pipeline, memory_format):
    dataset = ImageFolder(root, pipeline(Own()))
    theirs = kept(lambda: epochs_of(lambda: DataLoader(dataset, **ARGUMENTS)))
    seen = epochs_of(lambda: FastLoader(dataset, **ARGUMENTS, device="cuda", memory_format=memory_format))
    assert_same([[x.cpu().contiguous() for x in item] if isinstance(item, list) else item for item in seen], theirs)
