"""Read and set the states of random generators: the global ones, and a loader's own.

A state of the global ones is that of torch's default generator, as the core holds it; behind it those of Python's
``random`` and of NumPy, if the pipeline draws from one of these.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data._utils import worker

from fastload import _core
from fastload.pipeline.installed.python_stream import STATE_BYTES, numpy_bytes, numpy_state, python_bytes, python_state
from fastload.randomness import in_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

_BITS: Final = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


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
    if not others:
        return state
    python = in_memory.python_now() or python_bytes(random.getstate())
    return b"".join((state, python, in_memory.numpy_now() or _numpy_now()))


def _numpy_now() -> bytes:
    state: Any = np.random.get_state(legacy=False)  # the other form warns of a kind that it does not know
    if state["bit_generator"] != "MT19937":
        raise TypeError(f"NumPy's global bit generator must be MT19937, which is its own, got {state['bit_generator']}")
    words = state["state"]
    return numpy_bytes(("MT19937", words["key"], words["pos"], state["has_gauss"], state["gauss"]))


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


def own_generators(owners: Sequence[Any]) -> dict[str, Any]:
    """Return the generators of a loader and its samplers by name, each once.

    A generator is known by its owner's place, its attribute and its kind: ``1.rng.PCG64``.

    Args:
        owners: The loader first, whose attribute ``generator`` counts; then its samplers, whose attributes all count.
    """
    found: dict[str, Any] = {}
    for place, owner in enumerate(owners):
        if type(owner).__name__ == "SeedableRandomSampler":  # Accelerate's: makes it late, and seeds it in each epoch
            continue
        attributes = {"generator": getattr(owner, "generator", None)}
        for attribute, value in {**attributes, **(getattr(owner, "__dict__", {}) if place else {})}.items():
            kind = _kind_of(value)
            if kind is not None and not any(value is known for known in found.values()):
                found[f"{place}.{attribute}.{kind}"] = value
    return found


def read_generator(generator: Any) -> bytes:
    """Return a generator's state."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        state: Any = generator.getstate()
    elif isinstance(generator, np.random.RandomState):
        state = generator.get_state(legacy=False)
    else:
        state = generator.bit_generator.state
    return json.dumps(state, default=lambda array: array.tolist()).encode()


def write_generator(generator: Any, state: bytes) -> None:
    """Set what :func:`read_generator` has read."""
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        return
    parsed: Any = json.loads(state)
    if isinstance(generator, random.Random):
        version, words, normal = parsed
        generator.setstate((version, tuple(words), normal))
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(parsed)
    else:
        generator.bit_generator.state = parsed


def write_own(owners: Sequence[Any], states: dict[str, bytes]) -> None:
    """Set generators by name; make those that their owners have yet to make."""
    found = own_generators(owners)
    for name, state in states.items():
        if name not in found:
            place, rest = name.split(".", 1)
            attribute, kind = rest.rsplit(".", 1)
            setattr(owners[int(place)], attribute, _unseeded(kind))
            found = own_generators(owners)
        write_generator(found[name], state)


def check_own(owners: Sequence[Any], states: dict[str, bytes]) -> None:
    """Check that :func:`write_own` can set the states.

    Raises:
        ValueError: One is damaged, or of other owners.
    """
    found = own_generators(owners)
    others = {name for name in states if name not in found and not _is_made_late(owners, name)}
    if others or not set(found) <= set(states):
        raise ValueError(
            "the loader and its samplers must have the same generators of their own as when the state was saved, "
            f"{sorted(states)}, got {sorted(found)}"
        )
    for name, state in states.items():
        write_generator(_unseeded(name.rsplit(".", 1)[1]), state)


def _kind_of(value: Any) -> str | None:
    """Name the kind of a generator that can be set; ``None`` for anything else."""
    if isinstance(value, torch.Generator):
        return value.device.type
    if type(value) in (random.Random, np.random.RandomState):
        return type(value).__name__
    kind = type(value.bit_generator).__name__ if type(value) is np.random.Generator else None
    return kind if kind in _BITS else None


def _unseeded(kind: str) -> Any:
    if kind == "Random":
        return random.Random()
    if kind in _BITS:
        return np.random.Generator(getattr(np.random, kind)())
    return np.random.RandomState() if kind == "RandomState" else torch.Generator(kind)


def _is_made_late(owners: Sequence[Any], name: str) -> bool:
    """Whether a sampler has yet to make a generator of this name."""
    place, _, rest = name.partition(".")
    attribute, _, kind = rest.rpartition(".")
    if not place.isdecimal() or not 0 < int(place) < len(owners) or attribute in ("", "generator"):
        return False
    owner = owners[int(place)]
    users_own = hasattr(owner, "__dict__") and not type(owner).__module__.startswith("torch.")
    return users_own and bool(kind) and getattr(owner, attribute, None) is None
