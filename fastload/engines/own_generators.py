"""Find the generators that a loader and its samplers own; read and set their states.

A generator is known by its owner's place, its attribute and its kind: ``1.rng.PCG64``.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

_BITS: Final = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def find(owners: Sequence[Any]) -> dict[str, Any]:
    """Return the generators of a loader and its samplers by name, each once.

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


def read(generator: Any) -> bytes:
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


def write(generator: Any, state: bytes) -> None:
    """Set what :func:`read` has read."""
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


def write_all(owners: Sequence[Any], states: dict[str, bytes]) -> None:
    """Set generators by name; make those that their owners have yet to make."""
    found = find(owners)
    for name, state in states.items():
        if name not in found:
            place, rest = name.split(".", 1)
            attribute, kind = rest.rsplit(".", 1)
            setattr(owners[int(place)], attribute, _unseeded(kind))
            found = find(owners)
        write(found[name], state)


def check(owners: Sequence[Any], states: dict[str, bytes]) -> None:
    """Check that :func:`write_all` can set the states.

    Raises:
        ValueError: One is damaged, or of other owners.
    """
    found = find(owners)
    others = {name for name in states if name not in found and not _is_made_late(owners, name)}
    if others or not set(found) <= set(states):
        raise ValueError(
            "the loader and its samplers must have the same generators of their own as when the state was saved, "
            f"{sorted(states)}, got {sorted(found)}"
        )
    for name, state in states.items():
        write(_unseeded(name.rsplit(".", 1)[1]), state)


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
