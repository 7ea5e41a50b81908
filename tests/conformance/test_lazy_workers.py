"""Lazy images in workers give torch's batches and states; the main process has none."""

from __future__ import annotations

import io
import random
import sys

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from photos import MEAN, STD, assert_same, epochs_of, jpeg, photos_fixture
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from references import kept
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastload import FastLoader
from fastload.memory import unfilled

mixed = photos_fixture(13, mixed=True)


class Opaque:
    """Crops of one image, by torchvision, Pillow and all three generators."""

    def __init__(self):
        self.crop = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.RandAugment(3)])
        self.other = v2.Compose([v2.RandomResizedCrop(24), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), v2.RandomGrayscale(0.3)])
        self.tensor = v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)])

    def __call__(self, image):
        crops = [self.crop(image), self.other(image), self.crop(image)]
        if random.random() < 0.5:
            crops[0] = crops[0].filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
        if np.random.rand() < 0.5:
            crops[1] = ImageEnhance.Sharpness(ImageOps.solarize(crops[1])).enhance(1.7)
        return torch.stack([self.tensor(crop) for crop in crops])


class Patched(Dataset):
    """Whether images are lazy where samples are made, once a JPEG file has been opened."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        Image.open(io.BytesIO(jpeg(0, 30, 40))).convert("RGB")
        return Image.Image.crop.__module__ == "fastload.lazy.images"


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_images_are_lazy_in_our_workers_only(engine):
    with FastLoader(Patched(), num_workers=1, device="cpu", engine=engine) as loader:
        assert [batch.item() for batch in loader] == [engine == "auto"] * 2
    assert Image.Image.crop.__module__ == "PIL.Image"


class Arrays(Dataset):
    """Tensors of images that no file has, and whether torchvision's own function makes them."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        image = Image.fromarray(np.random.default_rng(index).integers(0, 256, (28, 28, 3), np.uint8))
        sample = v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)])(image)
        return sample, hasattr(v1.functional.to_tensor, "__wrapped__")


def test_images_of_arrays_become_tensors_at_once_in_our_workers():
    torchs, own = DataLoader(Arrays(), 3), FastLoader(Arrays(), 3, num_workers=1, device="cpu")
    (expected, [*replaced]), (batch, [*replaced_in_worker]) = next(iter(torchs)), next(iter(own))
    own.close()
    assert_same(batch, expected)
    assert (replaced, replaced_in_worker) == ([False] * 3, [True] * 3)


class Recorded(Dataset):
    """Whether calls are recorded, and deferred tensors looked for; makes one at sample 2."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        found = torch._C._len_torch_function_stack(), unfilled.are_known()
        for _ in range(4 if index == 2 else 0):  # the first ones are compared with Pillow's
            v1.functional.to_tensor(Image.open(io.BytesIO(jpeg(0, 30, 40))).convert("RGB"))
        return found


def test_a_worker_without_deferred_tensors_takes_no_time_for_them():
    """Else what makes small samples takes a third more."""
    with FastLoader(Recorded(), batch_size=2, num_workers=1, device="cpu") as loader:
        found = [torch.stack(batch, 1).tolist() for batch in loader]
    assert found[:2] == [[[0, 0], [0, 0]], [[0, 0], [1, 1]]]


def recording(sample=None):
    return torch._C._len_torch_function_stack()


def large(number=0):
    """A deferred tensor, after the first ones of a process."""
    return v1.functional.to_tensor(Image.open(io.BytesIO(jpeg(number, 150, 160))).convert("RGB"))


class Watched(Dataset):
    """Whether calls are recorded before and after a sample has a deferred tensor.

    Args:
        before: Called at first in each sample; gets what the one before it has made.
    """

    def __init__(self, before=recording, kept=False):
        self.before, self.kept, self.last = before, kept, None

    def __len__(self):
        return 12

    def __getitem__(self, index):
        seen = recording()
        if self.last is not None:
            self.before(self.last)
        image = large(index) * 2
        made = image if self.kept or index % 4 < 3 else None
        self.last = made if self.before is not recording or self.kept else None
        return seen, recording(), image


def summed(samples):
    before, after, images = zip(*samples, strict=True)
    return [*before, *after, recording()], torch.stack(images)


class WatchedStream(IterableDataset):
    def __iter__(self):
        yield from map(Watched().__getitem__, range(11))


class Few(Watched):
    """Every fourth sample has no deferred tensor."""

    def __getitem__(self, index):
        if index % 4 < 3:
            return super().__getitem__(index)
        return recording(), recording(), torch.from_numpy(np.ones((3, 150, 160), np.float32))


def recorded_in(dataset, **options):
    options |= {"batch_size": 4, "num_workers": 1, "collate_fn": summed}
    with FastLoader(dataset, **options, device="cpu") as loader:
        found = [(seen, images.sum().item()) for seen, images in loader]
        assert loader.stats().deferred_images >= 6
    assert [each for _, each in found] == [images.sum().item() for _, images in DataLoader(dataset, **options)]
    return [seen for seen, _ in found][1:]  # the first images of a worker are compared with Pillow's


PAUSED, UNPAUSED = [0, 0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("dataset", [Watched(), Subset(Watched(), range(12))])
def test_within_a_sample_recording_begins_with_its_first_deferred_tensor(dataset):
    assert recorded_in(dataset) == [PAUSED] * 2
    assert recorded_in(WatchedStream()) == [PAUSED, [0, 0, 0, 1, 1, 1, 1]]
    assert recorded_in(WatchedStream(), drop_last=True) == [PAUSED]
    assert recorded_in(Few()) == [[0, 0, 0, 0, 1, 1, 1, 0, 1]] * 2


EARLY = [lambda last: last + 1, lambda last: torch.zeros_like(last).copy_(last), lambda last: torch.zeros(3, 200, 200)]


@pytest.mark.parametrize("before", EARLY)
def test_samples_that_need_others_tensors_are_recorded_from_their_beginning_on(before):
    assert recorded_in(Watched(before)) == [UNPAUSED] * 2


def test_samples_that_need_others_tensors_no_more_are_recorded_later():
    count = iter(range(100))
    dataset = Watched(lambda last: last + 1 if next(count) < 3 else last)
    assert recorded_in(dataset) == [UNPAUSED, PAUSED]


def test_samples_are_recorded_whole_while_the_program_keeps_a_deferred_tensor():
    assert recorded_in(Watched(kept=True)) == [[1] * 9] * 2


def test_a_fetch_of_the_programs_own_gets_torchs_indices(monkeypatch):
    def fetch(fetcher, indices):
        return fetcher.collate_fn([fetcher.dataset[indices[place]] for place in range(len(indices))])

    monkeypatch.setattr(_MapDatasetFetcher, "fetch", fetch)
    assert recorded_in(Watched()) == [UNPAUSED] * 2


class Grows(Dataset):
    """It gets ``__getitems__`` with its third sample."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 2:
            self.__getitems__ = lambda indices: [(type(indices).__name__, large(each)) for each in indices]
        return "none", large(index)


def test_datasets_may_get_a_method_for_many_samples_later():
    options = {"batch_size": 4, "num_workers": 1}
    with FastLoader(Grows(), **options, device="cpu") as loader:
        assert_same(list(loader), list(DataLoader(Grows(), **options)))


class TypeOfIndices(Dataset):
    def __getitem__(self, indices):
        return type(indices).__name__

    def __len__(self):
        return 4


class TakesMany(TypeOfIndices):
    def __getitems__(self, indices):
        return [type(indices).__name__] * len(indices)


@pytest.mark.parametrize("options", [{"batch_size": 2}, {"batch_size": None, "sampler": [[0, 1], [2, 3]]}])
@pytest.mark.parametrize("dataset", [TypeOfIndices(), TakesMany(), Subset(TakesMany(), range(4))])
def test_datasets_get_torchs_indices(dataset, options):
    with FastLoader(dataset, num_workers=1, device="cpu", **options) as loader:
        assert [*loader] == [*DataLoader(dataset, num_workers=1, **options)]


class Imported(Dataset):
    """Names of the modules of this package that are imported where samples are made."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return " ".join(name for name in sys.modules if name.startswith("fastload"))


def test_forked_workers_import_nothing(monkeypatch):
    """Each worker of each epoch would import it again."""
    for name in sorted((name for name in sys.modules if name.startswith("fastload.deferred.")), reverse=True):
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(name)
    with FastLoader(Imported(), num_workers=1, device="cpu") as loader:
        iterator = iter(loader)
        here = set(sys.modules)
        assert set(next(iterator)[0].split()) <= here


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_opaque_transform_gives_torchs_batches(mixed, workers, persistent):
    arguments = {"batch_size": 4, "shuffle": True, "num_workers": workers, "persistent_workers": persistent}
    theirs = kept(lambda: epochs_of(lambda: DataLoader(ImageFolder(mixed, Opaque()), **arguments)))
    ours = epochs_of(lambda: FastLoader(ImageFolder(mixed, Opaque()), **arguments, device="cpu"))
    assert_same(ours, theirs)
