"""Workers send pixels without the transform's tail as uint8; the device gives the same tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from backends import simulated
from photos import assert_same, epochs_of, photos_fixture
from references import kept
from torch.utils.data import DataLoader, Subset, default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload import FastLoader, iterators
from fastload.pipeline.tail import WithoutTail, without_tail
from fastload.workers.start import route_of

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
    theirs = kept(lambda: epochs_of(lambda: DataLoader(dataset, **arguments)))
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


def hundreds(target):
    return target + 100


@pytest.mark.parametrize("chosen", ["tail", "native samples", "both"])
def test_a_target_transform_of_ones_own(root, monkeypatch, leaves, chosen):
    """Native samples win over the tail.

    If both were chosen, workers would refuse the transform without its tail.
    """
    step = Own() if chosen == "tail" else v1.RandomHorizontalFlip()
    dataset = ImageFolder(root, with_v1(step), target_transform=hundreds)
    if chosen == "both":
        decided = iterators.TorchDeviceIterator.__init__
        both = lambda self, loader, route: decided(self, loader, replace(route, tail=without_tail(loader.dataset)))  # noqa: E731
        monkeypatch.setattr(iterators.TorchDeviceIterator, "__init__", both)
    theirs = kept(lambda: epochs_of(lambda: DataLoader(dataset, **ARGUMENTS)))
    own = simulated.install_native(monkeypatch)
    loader = FastLoader(dataset, **ARGUMENTS, **own)
    assert ("sent as uint8" in str(loader.plan)) == (chosen == "tail")
    assert (route_of(loader).maker == "workers") == (chosen != "tail")
    seen = epochs_of(lambda: FastLoader(dataset, **ARGUMENTS, **own))
    assert_same([[x.contiguous() for x in item] if isinstance(item, list) else item for item in seen], theirs)
    assert bool(leaves) == (chosen != "native samples")


def tensors_of(samples):
    assert all(type(image) is torch.Tensor for image, _ in samples)
    return default_collate(samples)


@pytest.mark.parametrize(
    "given",
    [
        {"collate_fn": tensors_of},
        {"worker_init_fn": lambda number: None},
        {"engine": "torch"},
        {"randomness": "sample"},
        {"num_workers": 0},
    ],
    ids=lambda given: next(iter(given)),
)
def test_what_sees_samples_or_workers_sees_tensors(root, monkeypatch, leaves, given):
    own = simulated.install_native(monkeypatch)
    loader = FastLoader(ImageFolder(root, with_v1(Own())), **{**ARGUMENTS, **given}, **own)
    assert "by a table" not in str(loader.plan)
    assert all(batch[0].dtype is torch.float32 for batch in loader)
    assert not leaves


def test_the_plan_names_the_tail(root, monkeypatch):
    own = simulated.install_native(monkeypatch)
    loader = FastLoader(ImageFolder(root, with_v1(Own())), **ARGUMENTS, **own)
    assert "ToTensor, Normalize of RGB images of one size, sent as uint8, by a table" in loader.plan.steps[-1].what


def test_only_a_known_end_is_taken_off(root):
    part = Subset(ImageFolder(root, with_v1(Own())), [1, 2])
    taken = without_tail(part).dataset
    assert type(taken.dataset.transform) is WithoutTail
    assert type(part.dataset.transform) is v1.Compose

    class Other(ImageFolder):
        pass

    assert without_tail(Other(root, with_v1(Own()))) is None
    assert without_tail(ImageFolder(root, erasing(Own()))) is None
    assert without_tail(ImageFolder(root, v1.PILToTensor())) is None


@pytest.mark.parametrize(
    ("owner", "name"), [(v1.Normalize, "forward"), (v1.functional, "to_tensor"), (ImageFolder, "__getitem__")]
)
def test_no_end_is_taken_off_after_a_patch(root, monkeypatch, owner, name):
    part = Subset(ImageFolder(root, with_v1(Own())), [1, 2])
    assert without_tail(part) is not None
    former = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *arguments, **named: former(*arguments, **named))
    assert without_tail(part) is None


def test_a_sample_alone_is_no_list_of_samples(root, monkeypatch):
    own = simulated.install_native(monkeypatch)
    arguments = {"batch_size": None, "collate_fn": default_collate, "num_workers": 1}
    said = []
    for loader_class, given in ((DataLoader, {}), (FastLoader, own)):
        with pytest.raises(Exception, match="in DataLoader worker process 0") as caught:
            next(iter(loader_class(ImageFolder(root, with_v1(Own())), **arguments, **given)))
        said.append((caught.type, str(caught.value).splitlines()[-1]))
    assert said[0] == said[1]


@pytest.mark.gpu
@pytest.mark.parametrize("pipeline", [with_v1, with_v2, erasing, some_gray])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format, None])
def test_batches_on_the_gpu(root, pipeline, memory_format):
    dataset = ImageFolder(root, pipeline(Own()))
    theirs = kept(lambda: epochs_of(lambda: DataLoader(dataset, **ARGUMENTS)))
    seen = epochs_of(lambda: FastLoader(dataset, **ARGUMENTS, device="cuda", memory_format=memory_format))
    assert_same([[x.cpu().contiguous() for x in item] if isinstance(item, list) else item for item in seen], theirs)
