"""The plan says what runs, and why decode threads do not."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from photos import eval_v1, make_folder, train_v1
from PIL import Image
from torch.utils.data import default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fastload import FastLoader
from fastload.check.results import FallbackWarning
from fastload.lazy import images as lazy_images
from fastload.native.in_workers import WorkerFetcher
from fastload.pipeline.recipe import Recipe
from fastload.workers.start import route_of


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("photos"), 4)


def locked(position):
    """A transform of which a step holds what cannot be copied."""
    transform = train_v1()
    transform.transforms[position].lock = threading.Lock()
    return transform


def probed(samples):
    """Collate, and tell whether Pillow's images are lazy where this runs."""
    return default_collate(samples), Image.Image.convert.__module__.startswith("fastload.")


def raises(worker):
    torch.manual_seed(1 // worker)


class Uncopied(list):
    """Samples that cannot be copied."""

    def __copy__(self):
        raise OSError("no copies")


def with_samples(dataset):
    dataset.samples = Uncopied(dataset.samples)
    return dataset


def of(transform, **arguments):
    change = arguments.pop("change", lambda dataset: dataset)
    target = arguments.pop("target_transform", None)
    return lambda root: FastLoader(
        change(ImageFolder(root, transform(), target)),
        **{"batch_size": 2, "num_workers": 1, "device": "cpu", **arguments},
    )


CASES: dict[str, Any] = {
    "threads": (of(train_v1), "threads", None),
    "persistent threads": (of(train_v1, persistent_workers=True), "threads", None),
    "next": (of(train_v1, num_workers=0), "next", None),
    "one by one": (of(train_v1, num_workers=0, batch_size=1), "next", None),
    "lock in next": (of(lambda: locked(0), num_workers=0), "next", None),
    "lock on a crop": (of(lambda: locked(0), num_workers=2), "python", "the transforms cannot be copied"),
    "lock on Normalize": (of(lambda: locked(-1)), "python", "the transforms cannot be copied"),
    "lock, profiled": (of(lambda: locked(0), dtype=torch.float16), "python", "the transforms cannot be copied"),
    "samples": (of(train_v1, change=with_samples), "python", "the dataset cannot be copied: OSError: no copies"),
    "first call raises": (of(train_v1, worker_init_fn=raises), "workers", "worker_init_fn raised ZeroDivisionError"),
    "collate": (of(train_v1, collate_fn=probed), "workers", None),
    "collate in next": (of(train_v1, collate_fn=probed, num_workers=0), "next", None),
    "collate, lock": (of(lambda: locked(0), collate_fn=probed), "workers", None),
    "own": (of(lambda: v1.Compose([v1.Lambda(lambda x: x.rotate(3)), train_v1()])), "python", "is your own"),
    "own collated": (
        of(lambda: v1.Compose([v1.Lambda(lambda x: x.rotate(3)), eval_v1()]), collate_fn=probed),
        "python",
        "is your own",
    ),
    "torch": (of(train_v1, engine="torch"), "python", "engine='torch'"),
    "any order": (of(train_v1, in_order=False), "python", "in_order=False"),
}


def maker_of(iterator, loader):
    """What makes the batches of an iterator that has begun."""
    if not loader.num_workers:
        return "next" if getattr(iterator, "decode_pipeline", None) is not None else "python"
    if hasattr(iterator, "runs_recipe"):
        return "threads"
    try:
        batch = next(iterator)
    except ZeroDivisionError:
        return "workers"
    return "workers" if len(batch) == 2 and batch[1] is False else "python"


@pytest.mark.filterwarnings("ignore::fastload.FallbackWarning", "ignore:This DataLoader will create")
@pytest.mark.parametrize("name", CASES)
def test_the_plan_and_what_runs_agree(root, name):
    make, maker, reason = CASES[name]
    with make(root) as loader:
        for _ in range(2 if loader.persistent_workers else 1):
            iterator = iter(loader)
            assert maker_of(iterator, loader) == maker
        plan, route = loader.plan, route_of(loader)
    assert route.maker == maker
    assert (plan.engine == "native") == (maker != "python")
    wheres = {"threads": "1 decode thread", "next": "in next()", "workers": "worker process"}
    assert wheres.get(maker, "worker process") in plan.steps[0].where
    said = [note for note in plan.notes if reason is not None and reason in note]
    assert bool(said) == (reason is not None), plan.notes
    assert plan.reasons == (route.reasons if maker == "python" else ())


def test_what_cannot_be_copied_is_known_before_an_epoch_and_forgotten_with_it(root):
    with of(lambda: locked(0))(root) as loader:
        assert route_of(loader).maker == "python"
        assert "cannot pickle '_thread.lock' object" in loader.plan.reasons[0]
        del loader.dataset.transform.transforms[0].lock
        assert route_of(loader).maker == "threads"
    with pytest.raises(ValueError, match="engine='native', but the transforms cannot be copied"):
        of(lambda: locked(0), engine="native")(root)


def test_a_start_that_fails_is_told_of_once_and_tried_again(root, monkeypatch):
    def fails(*_):
        raise OSError("no room")

    with of(eval_v1)(root) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(Recipe, "snapshot", fails)
            with pytest.warns(FallbackWarning, match="the dataset cannot be copied: OSError: no room") as told:
                assert [len(list(loader)) for _ in range(2)] == [2, 2]
            assert len([one for one in told if one.category is FallbackWarning]) == 1
            assert (loader.plan.engine, route_of(loader).is_lazy) == ("torch", True)
        assert iter(loader).runs_recipe
        assert loader.plan.engine == "native"


def test_threads_that_persist_make_the_next_epoch_too(root):
    with of(train_v1, persistent_workers=True)(root) as loader:
        list(loader)
        loader.dataset.transform = v1.Lambda(lambda image: image)
        assert loader.plan.engine == "native"
        assert len(list(loader)) == 2


def test_a_worker_whose_functions_change_the_pipeline_says_that_it_gives_up(root, monkeypatch):
    monkeypatch.setattr(lazy_images, "install", lambda: None)  # this is no worker
    dataset = ImageFolder(root, eval_v1())
    fetcher = WorkerFetcher(probed, exact=True)
    fetcher.replaced = SimpleNamespace(dataset=dataset)
    assert fetcher.read() is not None
    dataset.transform = v1.Lambda(lambda image: image)
    with pytest.warns(FallbackWarning, match="ends with a PIL image"):
        assert fetcher.read() is None
