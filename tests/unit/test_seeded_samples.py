"""Samples by index, made in any process, are those of ``randomness="sample"``."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from fastload import FastLoader
from fastload.sources import SeededSamples, seed_of


class Drawing(Dataset):
    """Draws from all three generators."""

    def __len__(self):
        return 9

    def __getitem__(self, index):
        if index == 7:
            raise LookupError("no such sample")
        return torch.rand(3) + random.random() + np.random.rand(), index % 4


@pytest.mark.parametrize("epoch", [0, 1])
def test_they_are_those_of_a_loader(epoch):
    order = [3, 8, 0, 1, 3]
    generator = torch.Generator().manual_seed(5)
    loader = FastLoader(Drawing(), 5, sampler=order, randomness="sample", generator=generator, device="cpu")
    for _ in range(epoch):
        list(loader)
    ((images, targets),) = loader
    make = SeededSamples(Drawing(), seed_of(torch.Generator().manual_seed(5)), epoch)
    made = pickle.loads(pickle.dumps(make))({"index": np.array(order)})
    assert made["index"].tolist() == order
    assert torch.equal(torch.from_numpy(made["image"]), images)
    assert torch.equal(torch.from_numpy(made["target"]), targets)


@pytest.mark.parametrize("index", [2, 7])
def test_they_leave_the_generators_as_they_were(index):
    def states():
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    before = states()
    try:
        SeededSamples(Drawing(), 0, 0)({"index": np.array([index])})
    except LookupError:
        assert index == 7
    assert states() == before


def test_the_seed_is_drawn_from_the_generator():
    generator = torch.Generator().manual_seed(5)
    assert seed_of(generator) != seed_of(generator)
    torch.manual_seed(5)
    assert seed_of() == seed_of(torch.Generator().manual_seed(5))
