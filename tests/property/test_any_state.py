"""Stopped after any batch, any loader goes on with the same batches and generators."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
import torch
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from photos import photos_fixture, train_v1
from resuming import seed
from torch.utils.data import BatchSampler, Dataset, RandomSampler, Subset, WeightedRandomSampler
from torchvision.datasets import ImageFolder

from fastload import FastLoader

folder = photos_fixture()


class Drawing(Dataset):
    """Draws as many numbers as the index says, from one of three generators."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> Any:
        draws = [lambda: float(torch.rand(())), random.random, lambda: float(np.random.rand())]
        return torch.tensor([index, *(draws[index % 3]() for _ in range(3))], dtype=torch.float64)


@st.composite
def loaders(draw):
    """Return a function that makes a loader, and whether all draw as far ahead."""
    native = draw(st.booleans())
    count = draw(st.integers(1, 23))
    kind = draw(st.sampled_from(["order", "shuffle", "own generator", "replacement", "weighted", "batches"]))
    with_generator = draw(st.booleans())
    workers = draw(st.sampled_from([0, 0, 1, 2, 3]))
    options: dict[str, Any] = {"num_workers": workers, "randomness": draw(st.sampled_from(["worker", "sample"]))}
    options["persistent_workers"] = workers > 0 and draw(st.booleans())
    if draw(st.booleans()) and not native:
        options["dtype"] = torch.float32  # through a device iterator
    size, drop_last = draw(st.integers(1, 6)), draw(st.booleans())

    factors = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))  # of the loader before and the one after

    def make(root, after=False):
        options["prefetch_factor"] = factors[after] if workers else None
        own = torch.Generator().manual_seed(3)
        dataset = Subset(ImageFolder(root, train_v1()) if native else Drawing(), range(count))
        generator = torch.Generator().manual_seed(4) if with_generator else None
        samplers = {
            "own generator": lambda: RandomSampler(dataset, generator=own),
            "replacement": lambda: RandomSampler(dataset, replacement=True, num_samples=2 * count, generator=own),
            "weighted": lambda: WeightedRandomSampler([1.0 + i for i in range(count)], count, generator=own),
        }
        if kind == "batches":
            batches = BatchSampler(RandomSampler(dataset), size, drop_last)
            return FastLoader(dataset, batch_sampler=batches, generator=generator, **options)
        sampler = samplers[kind]() if kind in samplers else None
        more = {"shuffle": kind == "shuffle"} if sampler is None else {"sampler": sampler}
        return FastLoader(dataset, size, drop_last=drop_last, generator=generator, **more, **options)

    return make, not workers or factors[0] == factors[1]


def step(loader: Any, iterator: Any, alike: bool) -> Any:
    """Take a batch, as bytes, with the generators after it."""
    batch = next(iterator, None)
    if batch is None:
        return None
    torch.rand(1), random.random(), np.random.rand()
    parts = batch if isinstance(batch, list) else [batch]
    return [part.numpy().tobytes() for part in parts], generators(loader, alike)


def generators(loader: Any, with_own: bool = True) -> Any:
    own = [] if loader.generator is None or not with_own else loader.generator.get_state().tolist()
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist(), own


def epoch(loader: Any, alike: bool) -> list[Any]:
    iterator = iter(loader)
    return [*iter(lambda: step(loader, iterator, alike), None), generators(loader)]


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(made=loaders(), before=st.integers(0, 2), share=st.floats(0, 1), drops=st.booleans())
def test_any_loader_goes_on(folder, made, before, share, drops):
    make, alike = made
    seed(1)
    loader = make(folder)
    expected = [epoch(loader, alike) for _ in range(before + 3)]
    loader.close()
    seed(1)
    loader = make(folder)
    assert [epoch(loader, alike) for _ in range(before)] == expected[:before]
    iterator = iter(loader)
    batches = [step(loader, iterator, alike) for _ in range(round(share * (len(expected[before]) - 1)))]
    if drops:
        del iterator
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    loader.close()
    seed(2)
    fresh = make(folder, after=True)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert batches + epoch(fresh, alike) == expected[before]
    assert [epoch(fresh, alike), epoch(fresh, alike)] == expected[before + 1 :]
    fresh.close()
