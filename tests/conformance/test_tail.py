"""The tail of a transform in workers: pixels leave as uint8, and the device gives the same tensors."""

from __future__ import annotations

import pytest
import torch
from backends import simulated
from photos import assert_same, epochs_of, make_folder, mix_in
from torch.utils.data import DataLoader, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload import FastLoader
from fastload.device.normalize import TableImages
from fastload.pipeline.tail import WithoutTail, without_tail

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


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return mix_in(make_folder(tmp_path_factory.mktemp("photos"), 14))


@pytest.fixture
def leaves(monkeypatch):
    seen = []
    former = TableImages.__init__

    def noted(self, pixels, *arguments):
        seen.append(pixels.dtype)
        former(self, pixels, *arguments)

    monkeypatch.setattr(TableImages, "__init__", noted)
    return seen


@pytest.mark.parametrize(
    ("pipeline", "taken"),
    [(with_v1, True), (with_v2, True), (erasing, False), (of_sizes, False), (some_gray, False)],
)
@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("slots", [True, False])
def test_batches_and_generators_are_torchs(root, monkeypatch, leaves, pipeline, taken, persistent, slots):
    dataset = ImageFolder(root, pipeline(Own()))
    transform = dataset.transform
    arguments = {**ARGUMENTS, "persistent_workers": persistent}
    theirs = epochs_of(lambda: DataLoader(dataset, **arguments))
    own = simulated.install_native(monkeypatch)
    if slots:
        del own["max_pinned_bytes"]
    seen = epochs_of(lambda: FastLoader(dataset, **arguments, **own))
    for item in seen:
        if isinstance(item, list):
            assert item[0].is_contiguous(memory_format=torch.channels_last)
    assert_same([[x.contiguous() for x in item] if isinstance(item, list) else item for item in seen], theirs)
    last = [[str(item).splitlines()[-1] for item in run if isinstance(item, Exception)] for run in (seen, theirs)]
    assert last[0] == last[1]
    assert dataset.transform is transform
    assert bool(leaves) >= taken
    assert set(leaves) <= {torch.uint8}
    if pipeline is erasing:
        assert not leaves


def test_only_a_known_end_is_taken_off(root, monkeypatch):
    part = Subset(ImageFolder(root, with_v1(Own())), [1, 2])
    taken = without_tail(part).dataset
    assert type(taken.dataset.transform) is WithoutTail
    assert type(part.dataset.transform) is v1.Compose

    class Other(ImageFolder):
        pass

    assert without_tail(Other(root, with_v1(Own()))) is None
    assert without_tail(ImageFolder(root, erasing(Own()))) is None
    assert without_tail(ImageFolder(root, v1.PILToTensor())) is None
    monkeypatch.setattr(v1.Normalize, "forward", lambda self, tensor: tensor * 2)
    assert without_tail(part) is None


@pytest.mark.gpu
@pytest.mark.parametrize("pipeline", [with_v1, with_v2, erasing, some_gray])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format, None])
def test_batches_on_the_gpu(root, pipeline, memory_format):
    dataset = ImageFolder(root, pipeline(Own()))
    theirs = epochs_of(lambda: DataLoader(dataset, **ARGUMENTS))
    seen = epochs_of(lambda: FastLoader(dataset, **ARGUMENTS, device="cuda", memory_format=memory_format))
    assert_same([[x.cpu().contiguous() for x in item] if isinstance(item, list) else item for item in seen], theirs)
