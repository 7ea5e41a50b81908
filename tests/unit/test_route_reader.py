"""Test that a recipe is read again if what it was read from has changed."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any
from unittest import mock

import pytest
import torch
from photos import make_folder
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Normalize, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, ToTensor

from fastload import FastLoader, route
from fastload._compare import same
from fastload.loader_state import state_of
from fastload.pipeline.installed import stamp

EPOCHS = 5


@pytest.fixture
def dataset(tmp_path: Any) -> Any:
    make_folder(tmp_path, 8)
    return ImageFolder(str(tmp_path), Compose([RandomResizedCrop(16), RandomHorizontalFlip(), ToTensor()]))


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    read, made = route.read_loader, []

    def counted(loader: Any, device: torch.device) -> Any:
        made.append(len(made))
        return read(loader, device)

    monkeypatch.setattr(route, "read_loader", counted)
    return made


def test_a_plan_that_is_asked_for_while_the_recipe_is_read_does_not_wait(
    dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a signal handler, or by the user's own code that reading runs."""
    read, engines = route.read_loader, []

    def asking(loader: Any, device: torch.device) -> Any:
        if not engines:
            engines.append("asks")
            engines[0] = loader.plan.engine
        return read(loader, device)

    monkeypatch.setattr(route, "read_loader", asking)
    with FastLoader(dataset, 4, num_workers=2, device="cpu") as loader:
        assert len(batches(loader)) == 4
    assert engines == ["native"]


@pytest.mark.parametrize("workers", [2, "auto"])
def test_it_does_not_matter_how_many_threads_there_are(dataset: Any, readings: list[int], workers: Any) -> None:
    with FastLoader(dataset, 4, num_workers=workers, device="cpu") as loader:
        for _ in range(EPOCHS):
            batches(loader)
    assert len(readings) < EPOCHS


def batches(loader: Any) -> list[torch.Tensor]:
    torch.manual_seed(4)
    return [part for batch in loader for part in batch]


def test_later_epochs_know_the_recipe(dataset: Any, readings: list[int]) -> None:
    with FastLoader(dataset, 4, num_workers=2, shuffle=True, device="cpu") as loader:
        first = batches(loader)
        for _ in range(EPOCHS - 1):
            assert all(map(torch.equal, batches(loader), first))
        assert loader.plan.engine == "native"
        assert 2 <= len(readings) < EPOCHS  # at least one between two looks at what it was read from
        before = len(readings)
        batches(loader)
        assert len(readings) == before


def _transform(loader: Any) -> None:
    loader.dataset.transform = Compose([RandomCrop(16, pad_if_needed=True), ToTensor()])


def _attribute(loader: Any) -> None:
    loader.dataset.transform.transforms[1].p = 1.0


def _list(loader: Any) -> None:
    loader.dataset.transform.transforms.append(Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))


def _samples(loader: Any) -> None:
    loader.dataset.samples.reverse()


def _target(loader: Any) -> None:
    loader.dataset.target_transform = str


def _collate(loader: Any) -> None:
    loader.collate_fn = list


def _init(loader: Any) -> None:
    loader.worker_init_fn = torch.manual_seed


def _method(loader: Any) -> None:
    class Turned(RandomHorizontalFlip):
        def forward(self, img: Any) -> Any:
            return img.rotate(180)

    loader.dataset.transform.transforms[1].__class__ = Turned


@pytest.mark.parametrize("change", [_transform, _attribute, _list, _samples, _target, _collate, _init, _method])
def test_what_changes_between_epochs_is_seen_in_the_next(change: Any, dataset: Any) -> None:
    """As by a loader that begins then."""
    with FastLoader(dataset, 4, num_workers=2, shuffle=True, device="cpu") as loader:
        for _ in range(EPOCHS):
            before = batches(loader)
        change(loader)
        after = batches(loader)
        with FastLoader(copy.deepcopy(dataset), 4, num_workers=2, shuffle=True, device="cpu") as other:
            other.collate_fn, other.worker_init_fn = loader.collate_fn, loader.worker_init_fn
            expected = batches(other)
    assert same(after, expected)
    assert not same(after, before)


@pytest.mark.parametrize("whole", [True, False])
def test_what_a_stamp_does_not_see_is_read_each_time(monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    class Reader(route.RecipeReader):
        count = 0

        def read_anew(self) -> Any:
            self.count += 1
            return "key", mock.Mock(dataset=None), None

    monkeypatch.setattr(stamp, "RecipeStamp", lambda *_, **__: mock.Mock(is_whole=whole, holds=lambda: True))
    reader = Reader()
    for _ in range(EPOCHS):
        reader.known = reader.read()
    assert reader.count == (2 if whole else EPOCHS)


def test_a_worker_init_fn_whose_code_changes_is_read_each_time(dataset: Any, readings: list[int]) -> None:
    with FastLoader(dataset, 4, num_workers=2, worker_init_fn=torch.manual_seed, device="cpu") as loader:
        for _ in range(EPOCHS):
            batches(loader)
    assert len(readings) >= EPOCHS


def test_transforms_that_cannot_be_copied_are_named(dataset: Any, readings: list[int]) -> None:
    dataset.transform.transforms[0].lock = threading.Lock()
    with FastLoader(dataset, 4, num_workers=2, device="cpu") as loader:
        for _ in range(EPOCHS):
            assert "the transforms cannot be copied (TypeError" in " ".join(str(loader.plan).split())
        del dataset.transform.transforms[0].lock
        assert loader.plan.engine == "native"


def test_a_reader_keeps_no_loader(dataset: Any) -> None:
    loader = FastLoader(dataset, 4, num_workers=2, device="cpu")
    for _ in range(EPOCHS):
        batches(loader)
    assert state_of(loader).reader.known is not None
    gone = weakref.ref(loader)
    gc.collect()
    gc.disable()
    try:
        del loader
        assert gone() is None
    finally:
        gc.enable()
