"""Samples with draws by (seed, epoch, index), made in any process of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastload.randomness.by_sample import random_states_kept, seed_for_index, set_states

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def seed_of(generator: torch.Generator | None = None) -> int:
    """Draw the seed that a loader's first iterator would draw.

    Args:
        generator: The loader's; ``None`` is torch's default one. It advances.
    """
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


class SeededSamples:
    """Makes batches of a dataset's samples with the bits of ``FastLoader(..., randomness="sample")``.

    A callable that maps one batch of columns to another, as ``map_batches`` of Ray Data takes it. Pickled, it takes the
    dataset along. Not thread-safe: samples draw from the global generators, whose states it restores.

    Args:
        dataset: Of pairs: a tensor, and a number.
        seed: See :func:`seed_of`.
        epoch: Number of the epoch, from 0.
    """

    def __init__(self, dataset: Any, seed: int, epoch: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self.epoch = epoch

    def __call__(self, batch: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[Any]]:
        """Make the samples of ``batch["index"]``. Blocks.

        Returns:
            ``index`` as given; ``image``, ``(N, ...)``; and ``target``, ``(N,)``.
        """
        indices = batch["index"]
        images, targets = [], []
        with random_states_kept():
            for index in indices.tolist():
                set_states(seed_for_index(self.seed, self.epoch, index))
                image, target = self.dataset[index]
                images.append(image)
                targets.append(target)
        return {"index": indices, "image": torch.stack(images).numpy(), "target": np.asarray(targets)}
