"""Stop a loader, go on with another, and compare with an uninterrupted run."""

from __future__ import annotations

import io
import random
from typing import Any

import effort
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
    loader: Any, epochs: range, begun: int = 0, asked: Any = (), *, in_step: bool = True, before: Any = None
) -> tuple[list[Any], list[Any], dict[tuple[int, int], Any]]:
    """Return batches of some epochs, the generators after each, and states asked for.

    Args:
        loader: Closed afterwards.
        epochs: Their numbers.
        begun: Batches of the first epoch that another loader has handed over.
        asked: Where to ask for a state: (epoch, batches).
        in_step: Whether the training step draws, too.
        before: Called with the loader and the epoch's number before each.
    """
    batches: list[Any] = []
    after: list[Any] = []
    states = {}
    for epoch in epochs:
        batches.append([])
        if (epoch, begun) in asked:
            states[epoch, begun] = saved(loader.state_dict())
        if before is not None:
            before(loader, epoch)
        for number, batch in enumerate(iter(loader), begun + 1):
            batches[-1].append(flat(batch))
            if in_step:
                torch.rand(1), random.random(), np.random.rand()
            if (epoch, number) in asked:
                states[epoch, number] = saved(loader.state_dict())
        after.append(generators(loader))
        begun = 0
    loader.close()
    return batches, after, states


def restart(loader: Any, make: Any) -> Any:
    state = saved(loader.state_dict())
    loader.close()
    return resumed(make, state)


def resumed(make: Any, state: Any) -> Any:
    seed(99)
    fresh = make()
    fresh.load_state_dict(state)
    return fresh


def check(make: Any, stops: list[tuple[int, int]], epochs: int | None = None, **options: Any) -> None:
    """Go on from each stop until the next epoch has ended.

    From the first, until all have: by default, one more than there are stops in. Without ``--all``, only from every
    second stop.
    """
    stops = list(effort.some(stops))
    epochs = epochs or max(epoch for epoch, _ in stops) + 2
    seed(5)
    *expected, _ = run(make(), range(epochs), **options)
    assert len({str(epoch) for epoch in expected[0]}) == len(expected[0]), "epochs that are all alike show nothing"
    seed(5)
    *told, states = run(make(), range(epochs), asked=stops, **options)
    assert told == expected, "asking for states changes batches or generators"
    for epoch, begun in stops:
        end = epochs if (epoch, begun) == stops[0] else min(epoch + 2, epochs)
        batches, after, _ = run(resumed(make, states[epoch, begun]), range(epoch, end), begun, **options)
        rest = [expected[0][epoch][begun:], *expected[0][epoch + 1 : end]]
        assert [len(part) for part in batches] == [len(part) for part in rest], (epoch, begun)
        for number, pair in enumerate(zip(batches, rest, strict=True)):
            assert pair[0] == pair[1], (epoch, begun, number, [a == b for a, b in zip(*pair, strict=True)])
        assert after == expected[1][epoch:end], (epoch, begun)
