"""Check at run time that the core's random draws equal the installed torch's.

Two things depend on torch's version and the CPU: whether ``uniform_`` rounds once or twice (fused multiply-add kernels
round once), and what a draw that rounds up to the upper bound becomes.
"""

from __future__ import annotations

import contextlib
import math
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fastload import _core

_DRAWS = 400
# Intervals that tell the rules apart: a scale and a log ratio that transforms use, and one so narrow that half of the
# draws round up to its upper bound.
_INTERVALS = ((0.08, 1.0), (-0.28768208622932434, 0.28768208622932434), (1.0, 1.0 + 2.0**-23))
_RANGES = (1, 2, 177, 224, 65536)


@dataclass(frozen=True, slots=True)
class StreamCalibration:
    """The rules by which the core's draws equal the installed torch's.

    Attributes:
        torch: Version of torch.
        fused: ``uniform_(from, to)`` rounds ``x * (to - from) + from`` once.
        excludes_upper: A draw that rounds up to ``to`` becomes ``from``.
        weighted: ``multinomial`` draws as the core chooses by weights.
        normals: ``normal_`` draws as many numbers as the core skips.
    """

    torch: str
    fused: bool
    excludes_upper: bool
    weighted: bool
    normals: bool


_LOCK = threading.Lock()


def calibrate_stream() -> StreamCalibration | None:
    """Compare the core with the installed torch, once per process. Thread-safe.

    Uses its own generators; torch's default one is untouched.

    Returns:
        The rules for ``_core.DrawPlan.set_uniform_rule``; None if no rule reproduces this torch, and nothing random may
        run natively.
    """
    is_usual = torch.get_default_device() == torch.device("cpu")  # else each call of torch's is dearer
    with _LOCK, contextlib.nullcontext() if is_usual else torch.device("cpu"):
        return _calibrate()


@lru_cache(maxsize=1)
def _calibrate() -> StreamCalibration | None:
    if not (_same_integers() and exp_errs_less_than_an_ulp()):
        return None
    for fused in (True, False):
        for excludes_upper in (True, False):
            if all(_same_uniforms(low, high, fused, excludes_upper) for low, high in _INTERVALS):
                return StreamCalibration(torch.__version__, fused, excludes_upper, _same_choices(), _same_normals())
    return None


def _same_integers() -> bool:
    """Compare seeding, ``rand``, ``randint``, ``randperm`` and the state afterwards."""
    seed = 2**40 + 7
    core, generator = _core.Generator(seed), torch.Generator().manual_seed(seed)
    for _ in range(_DRAWS):
        if core.rand() != torch.rand(1, dtype=torch.float32, generator=generator).item():
            return False
        if [core.rand(), core.rand()] != torch.rand((2,), dtype=torch.float32, generator=generator).tolist():
            return False
        if [core.randint(0, 2), core.randint(0, 2)] != torch.randint(0, 2, (2,), generator=generator).tolist():
            return False
        if any(core.randperm(n) != torch.randperm(n, generator=generator).tolist() for n in (4, 9)):
            return False
        for high in _RANGES:
            if core.randint(0, high) != torch.randint(0, high, (1,), generator=generator).item():
                return False
    return core.get_state() == generator.get_state().numpy().tobytes()


def _same_uniforms(low: float, high: float, fused: bool, excludes_upper: bool) -> bool:
    core, generator = _core.Generator(1), torch.Generator().manual_seed(1)
    drawn = torch.empty(1, dtype=torch.float32)
    return all(
        core.uniform(low, high, fused, excludes_upper) == drawn.uniform_(low, high, generator=generator).item()
        for _ in range(_DRAWS)
    )


def _same_choices() -> bool:
    """Compare choices by weights, from 2 to 7, and the state afterwards."""
    core, generator = _core.Generator(2), torch.Generator().manual_seed(2)
    for i in range(_DRAWS):
        weights = [(i + k) % 5 / 10 for k in range(2 + i % 6)]
        plan = _core.DrawPlan()
        branches: list[Any] = [[("center_crop", {"height": 1, "width": 1 + k})] for k in range(len(weights))]
        plan.add("choose_weighted", branches=branches, chances=weights)
        status, geometry, _ = plan.draw(core, 10, 10)
        chosen = int(torch.multinomial(torch.tensor(weights, dtype=torch.float32), 1, generator=generator))
        if status != "ok" or geometry is None or geometry[3] != 1 + chosen:
            return False
    return core.get_state() == generator.get_state().numpy().tobytes()


def _same_normals() -> bool:
    """Compare the states after boxes of all sizes; small ones may leave a sample behind."""
    core, generator = _core.Generator(4), torch.Generator().manual_seed(4)
    for i in range(_DRAWS):
        size = (3, 1 + i % 7, 1 + i % 23) if i else (3, 219, 211)
        for shape in (size, (3, 1, 1)):
            core.skip_normals(math.prod(shape))
            torch.empty(shape, dtype=torch.float32).normal_(generator=generator)
            if core.get_state() != generator.get_state().numpy().tobytes():
                return False
    return True


def exp_errs_less_than_an_ulp(count: int = 1 << 14) -> bool:
    """Whether ``torch.exp`` in float32 stays within 1 ulp, as ``_core.DrawPlan`` assumes.

    Which float within that bound it returns depends on the CPU and on the library that torch was built with (MKL,
    Sleef, libm). The core need not know: it draws a crop only if all candidates give the same one.
    """
    inputs = torch.linspace(-3.0, 3.0, count, dtype=torch.float32)
    got = torch.exp(inputs).numpy()
    exact = np.exp(inputs.numpy().astype(np.float64))
    errors = np.abs(got.astype(np.float64) - exact) / np.spacing(exact.astype(np.float32)).astype(np.float64)
    alone = all(torch.exp(inputs[i : i + 1].clone()).item() == got[i] for i in range(0, count, count // 64))
    return bool(errors.max() < 1.0) and alone
