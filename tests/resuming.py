"""Stop a loader, go on with another, and compare with an uninterrupted run."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

STOPS = [(0, 0), (0, 1), (0, 4), (1, 0), (1, 1), (1, 3), (1, 6), (2, 5)]


class Drawing(Dataset):
    """Draws from all three generators for each sample."""

    def __init__(self, count: int = 23) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        drawn = [float(torch.rand(())), random.gauss(0, 1), float(np.random.rand())]
        worker = [-1, -1] if info is None else [info.id, info.seed % 2**31]
        return torch.tensor([index, *drawn, *worker], dtype=torch.float64)


def generators(loader: Any) -> list[Any]:
    """States of all generators of this process that batches come from."""
    own = [] if loader.generator is None else [loader.generator.get_state().tolist()]
    return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist(), own]


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def flat(batch: Any) -> Any:
    return [flat(part) for part in batch] if isinstance(batch, list | tuple) else batch.numpy().tobytes()


def saved(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def run(
    make: Any, stop: tuple[int, int] | None, epochs: int = 4, *, in_step: bool = True, before: Any = None
) -> tuple[list[Any], list[Any]]:
    """Return the batches of some epochs and the generators after each.

    ``stop`` is (epoch, batches).
    """
    batches: list[Any] = []
    after: list[Any] = []
    seed(5)
    with_loader = make()
    epoch, state = 0, None
    while epoch < epochs:
        if state is None:
            batches.append([])
        if stop == (epoch, 0):
            with_loader, stop = restart(with_loader, make), None
        if before is not None:
            before(with_loader, epoch)
        iterator = iter(with_loader)
        state = None
        while (batch := next(iterator, None)) is not None:
            batches[-1].append(flat(batch))
            if in_step:
                torch.rand(1), random.random(), np.random.rand()  # the training step draws too
            if stop == (epoch, len(batches[-1])):
                stop = None
                del iterator
                with_loader, state = restart(with_loader, make), True
                break
        if state is None:
            after.append(generators(with_loader))
            epoch += 1
    with_loader.close()
    assert stop is None
    return batches, after


def restart(loader: Any, make: Any) -> Any:
    state = saved(loader.state_dict())
    loader.close()
    seed(99)
    fresh = make()
    fresh.load_state_dict(state)
    return fresh


def check(make: Any, stops: list[tuple[int, int]], **options: Any) -> None:
    expected = run(make, None, **options)
    assert len({str(epoch) for epoch in expected[0]}) == len(expected[0]), "epochs that are all alike show nothing"
    for stop in stops:
        batches, after = run(make, stop, **options)
        assert [len(epoch) for epoch in batches] == [len(epoch) for epoch in expected[0]], stop
        for number, pair in enumerate(zip(batches, expected[0], strict=True)):
            assert pair[0] == pair[1], (stop, number, [a == b for a, b in zip(*pair, strict=True)])
        assert after == expected[1], stop
