"""Start the processes of a native epoch: for its odd samples, and for ``worker_init_fn``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from fastload.loader_state import state_of
from fastload.python_samples.sample_process import SampleProcess

if TYPE_CHECKING:
    from fastload.options import LoaderConfig
    from fastload.pipeline.recipe import Recipe

_NO_PROCESS: Final = "a process for samples made in Python cannot be started"


def sample_process(loader: LoaderConfig[Any], recipe: Recipe) -> SampleProcess | None:
    """Make the recipe's sample process, started if the check needs it.

    Returns ``None`` if it cannot be started.
    """
    checks = state_of(loader).checks
    try:
        process = SampleProcess(recipe, loader.multiprocessing_context, note_use=checks.note_python)
        if checks.python_used or not checks.has(loader, recipe):
            process.start()
        return process
    except Exception as error:  # mostly torch's workers cannot be started either, and their error says why
        if loader.engine == "native":
            raise
        checks.start_failed(loader, recipe, f"{_NO_PROCESS}: {type(error).__name__}: {error}")
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
    except RuntimeError as error:  # torch's workers raise it
        state_of(loader).checks.start_failed(loader, recipe, str(error))
        return None
    except OSError as error:
        if loader.engine == "native":
            raise
        state_of(loader).checks.start_failed(loader, recipe, f"{_NO_PROCESS}: {error}")
        return None
    return sample_process(loader, recipe)
