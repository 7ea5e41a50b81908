"""The states that the generators of torch's workers have before their first sample."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import _utils

from fastload.randomness.generators import state_now

if TYPE_CHECKING:
    from fastload.pipeline.recipe import Recipe


def first_states(recipe: Recipe, base_seed: int, workers: int) -> Any:
    """Seed as torch's workers do, and run the user's ``worker_init_fn``, for one after the other.

    Changes the random states of this process.

    Returns:
        The states of the generators, or the function's error.
    """
    states = []
    for worker in range(workers):
        seed = base_seed + worker
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(_utils.worker._generate_state(base_seed, worker))  # type: ignore[no-untyped-call]
        info = _utils.worker.WorkerInfo(id=worker, num_workers=workers, seed=seed, dataset=recipe.dataset)
        _utils.worker._worker_info = info
        try:
            if recipe.first_call is not None:
                recipe.first_call(worker)
        except Exception as error:  # noqa: BLE001 - any error of the user's function
            return f"{type(error).__name__}: {error}"
        finally:
            _utils.worker._worker_info = None
        states.append(state_now(others=recipe.pipeline.draws_others))
    return states
