"""Test that states do not depend on where batches are decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from resuming import flat, saved, seed
from stageable import noise
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastload import FastLoader

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    (root / "a").mkdir()
    for number in range(46):
        noise(200 + number, 300 - number, number).save(root / "a" / f"{number:03}.jpg", quality=80)
    return root


def make(root: Path, decode: str, workers: int = 2, **options: Any) -> FastLoader[Any]:
    steps = [transforms.RandomResizedCrop(96), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    dataset = ImageFolder(str(root), transforms.Compose([*steps, transforms.Normalize((0.5,) * 3, (0.2,) * 3)]))
    return FastLoader(dataset, 8, shuffle=True, num_workers=workers, engine="native", decode=decode, **options)


def on_host(batch: Any) -> Any:
    return flat([part.cpu().contiguous() for part in batch])


def states(loader: FastLoader[Any]) -> list[Any]:
    """The state before each batch of two epochs, at their ends, and each batch."""
    found: list[Any] = []
    for _ in range(2):
        found.append(loader.state_dict())
        for batch in loader:
            found += [on_host(batch), loader.state_dict()]
    found.append(loader.state_dict())
    return found


@pytest.mark.parametrize("randomness", ["worker", "sample"])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_states_are_those_of_the_threads(folder, persistent, randomness):
    options = {"persistent_workers": persistent, "randomness": randomness}
    runs = []
    for decode in ("cpu", "gpu", "auto"):
        seed(5)
        loader = make(folder, decode, **options)
        runs.append(states(loader))
        loader.close()
    assert runs[1] == runs[0]
    assert runs[2] == runs[0]


@pytest.mark.parametrize(("before", "after"), [("gpu", "gpu"), ("gpu", "cpu"), ("cpu", "gpu")])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("stop", [1, 4, 6])
def test_a_loader_goes_on_wherever_batches_were_decoded(folder, before, after, persistent, stop):
    seed(5)
    loader = make(folder, before, persistent_workers=persistent)
    expected = [[on_host(batch) for batch in loader] for _ in range(4)]
    loader.close()
    seed(5)
    loader = make(folder, before, persistent_workers=persistent)
    list(loader)
    iterator = iter(loader)
    batches = [on_host(next(iterator)) for _ in range(stop)]
    state = saved(loader.state_dict())
    loader.close()
    seed(9)
    other = make(folder, after, persistent_workers=persistent)
    other.load_state_dict(state)
    assert batches + [on_host(batch) for batch in other] == expected[1]
    assert [[on_host(batch) for batch in other] for _ in range(2)] == expected[2:]
    other.close()


def test_by_sample_another_number_of_streams_gives_the_same_rest_on_the_gpu(folder):
    seed(5)
    loader = make(folder, "gpu", randomness="sample")
    expected = [on_host(batch) for batch in loader]
    loader.close()
    seed(5)
    loader = make(folder, "gpu", randomness="sample")
    iterator = iter(loader)
    batches = [on_host(next(iterator)) for _ in range(3)]
    state = saved(loader.state_dict())
    loader.close()
    other = make(folder, "gpu", 3, randomness="sample")
    other.load_state_dict(state)
    assert batches + [on_host(batch) for batch in other] == expected
    other.close()


def test_states_are_small_beside_the_gpu(folder):
    loader = make(folder, "gpu")
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    torch.cuda.synchronize()
    state = loader.state_dict()
    assert all(len(str(worker)) <= 4_096 for worker in state["workers"])
    loader.close()
