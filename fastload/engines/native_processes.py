"""Start the processes of a native epoch: for its odd samples, and for ``worker_init_fn``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fastload.engines.loader_state import state_of
from fastload.engines.sample_process import SampleProcess

if TYPE_CHECKING:
    from fastload.options import LoaderConfig
    from fastload.pipeline.reader import Recipe


def sample_process(loader: LoaderConfig[Any], recipe: Recipe) -> SampleProcess | None:
    """Make the recipe's sample process, started if the check needs it.

    Returns ``None`` if it cannot be started.
    """
    try:
        checks = state_of(loader).checks
        process = SampleProcess(recipe, loader.multiprocessing_context, note_use=checks.note_python)
        if checks.python_used or not checks.has(loader, recipe):
            process.start()
        return process
    except Exception:  # torch's workers cannot be started either, and their error says why
        if loader.engine == "native":
            raise
        return None


def own_process(loader: LoaderConfig[Any], recipe: Recipe, process: SampleProcess) -> SampleProcess | None:
    """Run ``worker_init_fn`` with the next base seed; return the process of this epoch.

    That is ``process``, or another if the loader keeps it for such calls; ``None`` if the function raises an error or
    no process can be started.
    """
    if recipe.first_call is None or loader.randomness == "sample":
        return process
    generator = torch.default_generator if loader.generator is None else loader.generator
    before = generator.get_state()
    seed = torch.empty((), dtype=torch.int64).random_(generator=generator).item()
    generator.set_state(before)
    seeding = state_of(loader).seeding
    try:
        seeding.states(recipe, process, int(seed), loader.num_workers)
        if loader.persistent_workers or not seeding.keep(recipe, process):
            return process
    except RuntimeError:  # torch's workers raise it
        return None
    except OSError:
        if loader.engine == "native":
            raise
        return None
    return sample_process(loader, recipe)
