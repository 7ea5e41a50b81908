"""Functions for ``worker_init_fn`` that only seed the worker's generators.

Those of Lightning, Trainer and timm are known by their names. One of the user's own is known by its code: it calls
nothing but functions that seed and functions without effects.
"""

from __future__ import annotations

import functools
import os
import random
import sys
from types import FunctionType
from typing import Any, Final

import numpy as np
import torch

from fastload.pipeline.code.bytecode import global_of, uses_of
from fastload.pipeline.installed.patches import Functions

_LIBRARIES: Final = {
    "lightning.fabric.utilities.seed": ("pl_worker_init_function", "seed_everything"),
    "lightning_fabric.utilities.seed": ("pl_worker_init_function", "seed_everything"),
    "transformers.trainer_utils": ("seed_worker", "set_seed"),
    "accelerate.utils.random": ("set_seed",),
    "timm.data.loader": ("_worker_init",),
}
_MODULES: Final = ("random", "numpy", "numpy.random", "torch", "torch.random", "torch.utils", "torch.utils.data")
_PURE: Final = (int, abs, divmod, hash, len, max, min, pow, range, str)
_PLAIN: Final = (int, float, str, bool, type(None))
_ATTRIBUTES: Final = frozenset(
    (
        *("seed", "manual_seed", "initial_seed", "set_num_threads", "get_worker_info", "id", "num_workers", "item"),
        *("random", "utils", "data", "get_state", "SeedSequence", "generate_state", "uint32", "int64", "astype"),
    )
)
_DEPTH: Final = 3
_NUMPYS: Final = {name: getattr(np.random, name) for name in ("seed", "get_state", "random", "SeedSequence")}
"""Not told from others by where they were written."""


def only_seeds(function: Any) -> bool:
    """Whether calling a function in a worker does nothing but seed generators, if it returns."""
    return seeded_by(function) is not None


def seeded_by(function: Any, depth: int = 0) -> tuple[Any, ...] | None:
    """Return what a function's seeds depend on besides its worker.

    Two results are equal only if it seeds alike in processes forked after each. ``None`` if it does more than seed.
    """
    if depth == 0 and (
        any(getattr(np.random, name) is not known for name, known in _NUMPYS.items())
        or _watched().patched() is not None
    ):
        return None
    if type(function) is functools.partial:
        given = (*function.args, *function.keywords.values())
        inner = seeded_by(function.func, depth) if all(type(value) in _PLAIN for value in given) else None
        return None if inner is None else (repr(given), *function.keywords, inner)
    if type(function) is not FunctionType or hasattr(function, "__wrapped__"):
        return None
    module = function.__module__
    uses = uses_of(function.__code__)
    if function.__name__ in _LIBRARIES.get(module, ()):
        file = os.path.join(*module.split(".")) + ".py"
        whole = getattr(sys.modules.get(module), function.__name__, None) is function
        named = (global_of(function, name) for name in sorted(uses.names))  # one of Lightning's has the rank
        ranks = [_plain(vars(value)) for value in named if type(value) is FunctionType]
        return (function, repr(ranks)) if whole and function.__code__.co_filename.endswith(file) else None
    held = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    try:
        held += tuple(cell.cell_contents for cell in function.__closure__ or ())
    except ValueError:  # an empty cell
        return None
    if (
        uses.changes
        or vars(function)  # attributes of its own, which it or another may read
        or not all(type(value) in _PLAIN for value in held)
        or not uses.imports <= set(_MODULES)
        or not uses.attributes <= _ATTRIBUTES
    ):
        return None
    read = [_harmless(global_of(function, name), depth) for name in sorted(uses.names)]
    if None in read:
        return None
    modules = [sys.modules.get(name) for name in _MODULES]
    reached = [getattr(module, name, None) for module in modules for name in sorted(uses.attributes)]
    return function.__code__, repr(held), *read, *reached


def _harmless(value: Any, depth: int) -> Any:
    """Return a global's part of :func:`seeded_by`; ``None`` if it may do more."""
    if type(value) in _PLAIN:
        return repr(value)
    known = (*(sys.modules.get(name) for name in _MODULES), *_PURE, *_seeding())
    if any(value is one for one in known):
        return value
    return seeded_by(value, depth + 1) if depth < _DEPTH else None


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if type(value) in _PLAIN}


def _seeding() -> tuple[Any, ...]:
    seeding = random.seed, np.random.seed, torch.manual_seed, torch.set_num_threads
    return (*seeding, torch.initial_seed, torch.utils.data.get_worker_info)


@functools.cache
def _watched() -> Functions:
    """What such functions call. Once torchvision is imported, torch has replaced some by wrappers."""
    found = Functions()
    found.add(random, ("seed", "random"))
    for module in (torch, torch.random):
        found.add(module, ("seed", "manual_seed", "initial_seed"))
    found.add(torch, ("set_num_threads",))
    found.add(torch.utils.data, ("get_worker_info",))
    return found
