"""Hand the global generators' states to the core and back.

A state is that of torch's default generator, as the core holds it; behind it those of Python's ``random`` and of NumPy,
if the pipeline draws from one of these.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data._utils import worker

from fastload import _core
from fastload.engines.generator_memory import numpy_now, python_now
from fastload.pipeline.python_stream import STATE_BYTES, numpy_bytes, numpy_state, python_bytes, python_state

if TYPE_CHECKING:
    from collections.abc import Sequence


def set_state(state: bytes) -> None:
    """Set the state of torch's default generator, and of the others if it has theirs."""
    of_torch = _core.Generator.STATE_BYTES
    torch.set_rng_state(torch.frombuffer(bytearray(state[:of_torch]), dtype=torch.uint8))
    if others := state[of_torch:]:
        random.setstate(python_state(others[:STATE_BYTES]))
        np.random.set_state(numpy_state(others[STATE_BYTES:]))


def state_now(*, others: bool) -> bytes:
    """Return the state of torch's default generator, and of the others if asked for."""
    state = torch.default_generator.get_state().numpy().tobytes()
    return b"".join((state, python_now(), numpy_now())) if others else state


def parts(state: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the states of torch's, Python's and NumPy's generator."""
    others = _core.Generator.STATE_BYTES
    return state[:others], state[others : others + STATE_BYTES], state[others + STATE_BYTES :]


def state_of_seed(seed: int, *, others: bool) -> bytes:
    """Return the state in which a sample starts whose random numbers depend on its index."""
    generator = _core.Generator(seed)
    if others:
        generator.seed_others(seed)
    return generator.get_state()


def streams_of_workers(
    base_seed: int, first_states: Sequence[bytes | None], *, others: bool
) -> list[_core.RandomStream]:
    """Return the random streams of torch's workers.

    Those without a state in ``first_states`` are seeded as torch seeds them.
    """
    return [_stream_of_worker(base_seed, number, state, others=others) for number, state in enumerate(first_states)]


def _stream_of_worker(base_seed: int, number: int, state: bytes | None, *, others: bool) -> _core.RandomStream:
    if not others:
        if state is not None:
            return _core.RandomStream(state[: _core.Generator.STATE_BYTES])
        return _core.RandomStream.from_seed(base_seed + number)
    if state is not None and len(state) > _core.Generator.STATE_BYTES:
        return _core.RandomStream(state)
    of_torch = state or _core.Generator(base_seed + number).get_state()
    python = random.Random(base_seed + number)
    legacy = np.random.RandomState(worker._generate_state(base_seed, number))  # type: ignore[no-untyped-call]
    return _core.RandomStream(of_torch + python_bytes(python.getstate()) + numpy_bytes(legacy.get_state()))
