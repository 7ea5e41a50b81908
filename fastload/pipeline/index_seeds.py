"""Seeds of samples by (seed, epoch, index), and the generators that they set."""

from __future__ import annotations

import operator
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALL = 0xFFFF_FFFF_FFFF_FFFF
_INT64_MAX = 0x7FFF_FFFF_FFFF_FFFF


def number_of(index: Any) -> int:
    """Convert a sampler's index to an unsigned 64-bit number.

    Raises:
        TypeError: The index is not an integer.
    """
    try:
        return operator.index(index) & _ALL
    except TypeError:
        raise TypeError(
            f"randomness='sample' needs a sampler of integers, got {type(index).__name__}; use randomness='worker'"
        ) from None


def seed_for_index(seed: int, epoch: int, index: Any) -> int:
    """Hash seed, epoch and index with SplitMix64's steps, as the core does.

    The result has 63 bits: a dataset may return ``torch.initial_seed()``, which collating puts into an int64 tensor.

    Raises:
        TypeError: ``index`` is not an integer.
    """
    state = 0
    for word in (seed, epoch, number_of(index)):
        state = ((state ^ word) + 0x9E37_79B9_7F4A_7C15) & _ALL
        state = ((state ^ (state >> 30)) * 0xBF58_476D_1CE4_E5B9) & _ALL
        state = ((state ^ (state >> 27)) * 0x94D0_49BB_1331_11EB) & _ALL
        state ^= state >> 31
    return state & _INT64_MAX


def set_states(seed: int) -> None:
    """Seed the global generators of torch, NumPy and Python."""
    # Not torch.manual_seed, which seeds the accelerators too: in a worker, which has none, those calls would pile up.
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    random.seed(seed)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the global random states of torch, NumPy and Python afterwards."""
    python, numpy, kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(kept)
