"""Compare the core's draws with Python's ``random`` and NumPy's, and convert states."""

from __future__ import annotations

import itertools
import math
import random
import struct
import threading
from array import array
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data._utils import worker

from fastload import _core
from fastload.pipeline.errors import Refused
from fastload.pipeline.installed.patches import Functions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastload.pipeline.nodes import Node

STATE_BYTES: Final = 624 * 4 + 16
"""Size of one of the two generators' states, as the core holds it."""
KINDS: Final = frozenset(
    (
        *("python_chance", "python_blur", "python_choose", "python_choose_weighted", "python_shuffle", "numpy_choose"),
        *("python_resized_crop", "python_crop_or_pad", "resize_keep_ratio", "python_augment", "python_erasing"),
    )
)
"""The core's kinds of ops that draw from one of the two."""
_DRAWS: Final = 300
_SEEDS: Final = (0, 7, 2**32 - 1, 2**40 + 7)
_METHODS: Final = ("choice", "choices", "gauss", "getrandbits", "randint", "random", "randrange", "shuffle", "uniform")
_FUNCTIONS: Final = Functions()
_FUNCTIONS.add(random, (*_METHODS, "seed"))
_FUNCTIONS.add(random.Random, (*_METHODS, "seed", "_randbelow"))
_lock: Final = threading.Lock()


def draws_from_others(nodes: Iterable[Node]) -> bool:
    """Whether any node, inner ones included, draws from Python's or NumPy's generator."""
    return any(
        kind in KINDS or any(draws_from_others(branch) for branch in fields.get("branches", ()))
        for kind, fields in nodes
    )


def check_others() -> None:
    """Refuse if Python or NumPy would draw other numbers than the core. Thread-safe.

    Raises:
        Refused: Says why.
    """
    with _lock:
        reason = _FUNCTIONS.patched()
        if reason is None and type(random._inst) is not random.Random:
            reason = "Python's random draws from another generator than its own; leave that as it is"
        if reason is None and not _is_numpys_own():
            reason = "numpy.random's choice, seed or bit generator was replaced; leave NumPy's as they are"
        if reason is None and not {"_generate_state", "random", "seed"} <= set(worker._worker_loop.__code__.co_names):
            reason = f"torch {torch.__version__} seeds Python and NumPy in workers otherwise than the native core"
        if reason is None and not _draws_alike():
            reason = "Python or NumPy draws random numbers otherwise here than the native core"
    if reason is not None:
        raise Refused(reason)


def _is_numpys_own() -> bool:
    own: Any = np.random.mtrand
    same = np.random.choice == own._rand.choice and np.random.seed in (getattr(own, "seed", None), own._rand.seed)
    return same and type(own._rand._bit_generator) is np.random.MT19937


def python_bytes(state: tuple[Any, ...]) -> bytes:
    """Convert what ``random.getstate()`` returns to the core's layout."""
    _, words, normal = state
    return array("I", words[:-1]).tobytes() + struct.pack("<IId", words[-1], normal is not None, normal or 0.0)


def python_state(data: bytes) -> tuple[Any, ...]:
    """Convert the core's layout to an argument of ``random.setstate()``."""
    words, (used, kept, normal) = _parsed(data)
    return 3, (*words.tolist(), used), normal if kept else None


def numpy_bytes(state: Any) -> bytes:
    """Convert what ``numpy.random.get_state()`` returns to the core's layout."""
    _, words, *rest = state
    return bytes(words) + struct.pack("<IId", *rest)


def numpy_state(data: bytes) -> tuple[Any, ...]:
    """Convert the core's layout to an argument of ``numpy.random.set_state()``."""
    words, rest = _parsed(data)
    return "MT19937", words, *rest


def _parsed(data: bytes) -> tuple[np.ndarray[Any, np.dtype[np.uint32]], tuple[int, int, float]]:
    return np.frombuffer(data, np.uint32, 624), struct.unpack_from("<IId", data, 624 * 4)


@cache
def _draws_alike() -> bool:
    return all(_python_draws_alike(seed) and _numpy_draws_alike(seed) for seed in _SEEDS) and _branches_alike()


def _python_draws_alike(seed: int) -> bool:
    core, python = _core.PythonRandom(seed), random.Random(seed)
    for i in range(_DRAWS):
        count = 1 + i * 7 % 500
        drawn = core.random(), core.randbelow(count), core.uniform(0.08, 1.0), core.gauss(9, 0.5)
        if drawn != (python.random(), python.randint(0, count - 1), python.uniform(0.08, 1.0), python.gauss(9, 0.5)):
            return False
        if _core.PythonRandom.exp(drawn[0] - 0.5) != math.exp(drawn[0] - 0.5):
            return False
    core.gauss(0, 1)
    python.gauss(0, 1)
    return core.get_state() == python_bytes(python.getstate())


def _numpy_draws_alike(seed: int) -> bool:
    core, legacy = _core.NumpyRandom(seed & 0xFFFF_FFFF), np.random.RandomState(seed & 0xFFFF_FFFF)
    for i in range(_DRAWS):
        count = 1 + i * 7 % 500
        if legacy.choice(count, 2).tolist() != [core.randint(count), core.randint(count)]:
            return False
    return core.get_state() == numpy_bytes(legacy.get_state())


def _branches_alike() -> bool:
    """Compare choices of all kinds, shuffles, and the states afterwards."""
    core, python, legacy = _core.Generator(3), random.Random(3), np.random.RandomState(3)
    core.seed_others(3)
    for i in range(_DRAWS):
        count = 2 + i % 6
        weights = [1 + (i + k) % 5 / 10 for k in range(count)]
        order = list(range(count))
        python.shuffle(order)
        wanted = [order[0], python.choice(range(count)), *python.choices(range(count), weights)]
        wanted += legacy.choice(count, 1).tolist()
        sums = list(itertools.accumulate(weights))
        kinds: tuple[tuple[str, dict[str, Any]], ...] = (("python_shuffle", {}), ("python_choose", {}))
        kinds += (("python_choose_weighted", {"chances": sums}), ("numpy_choose", {"count": 1}))
        if wanted != [_first_branch(core, count, kind, fields) for kind, fields in kinds]:
            return False
    return core.get_state().endswith(python_bytes(python.getstate()) + numpy_bytes(legacy.get_state()))


def _first_branch(core: _core.Generator, count: int, kind: str, fields: dict[str, Any]) -> int | None:
    """The branch that a plan of one op applies first."""
    plan = _core.DrawPlan()
    plan.add(kind, branches=[[("resize", {"height": 1, "width": 1 + k})] for k in range(count)], **fields)
    _, geometry, _ = plan.draw(core, 10, 10)
    return None if geometry is None else geometry[5] - 1
