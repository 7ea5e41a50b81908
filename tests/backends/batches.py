"""Collate functions for every kind of batch that torch's loader supports, importable by spawned workers."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pack_sequence


class Pair(NamedTuple):
    """A namedtuple."""

    x: torch.Tensor
    y: torch.Tensor


@dataclasses.dataclass
class Record:
    """A nested dataclass."""

    x: torch.Tensor
    name: str
    inner: Record | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """A frozen dataclass with slots."""

    x: torch.Tensor
    count: int


class Bag(dict):  # type: ignore[type-arg]
    """A mapping with an extra attribute."""

    note: str


class Row(tuple):  # type: ignore[type-arg]
    """A tuple subclass."""


class Stack(list):  # type: ignore[type-arg]
    """A list with an extra attribute."""

    note: str


class Movable:
    """A custom batch type, as torch's documentation requires it."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def pin_memory(self) -> Movable:
        self.x = self.x.pin_memory()
        return self

    def to(self, device: Any, *, non_blocking: bool = False) -> Movable:
        return Movable(self.x.to(device, non_blocking=non_blocking))


class Opaque:
    """A type that cannot be moved to a device."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


def _x(samples: list[Any]) -> torch.Tensor:
    return torch.stack([sample[0] for sample in samples])


def _y(samples: list[Any]) -> torch.Tensor:
    return torch.tensor([sample[1] for sample in samples])


def _bag(samples: list[Any]) -> Bag:
    bag = Bag(x=_x(samples))
    bag.note = "kept"
    return bag


def _stack(samples: list[Any]) -> Stack:
    stack = Stack([_x(samples), _y(samples)])
    stack.note = "kept"
    return stack


class Collator:
    """A collate function that is an object."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, samples: list[Any]) -> dict[str, torch.Tensor]:
        return {"scaled": _x(samples) * self.scale}


COLLATES: dict[str, Any] = {
    "tensor": _x,
    "tuple": lambda samples: (_x(samples), _y(samples)),
    "list": lambda samples: [_x(samples), [_y(samples)]],
    "namedtuple": lambda samples: Pair(_x(samples), _y(samples)),
    "tuple subclass": lambda samples: Row((_x(samples), 3)),
    "list with an attribute": _stack,
    "dict": lambda samples: {"x": _x(samples), "deep": {"y": _y(samples), "z": [None, "s", 1.5]}},
    "dict with an attribute": _bag,
    "defaultdict": lambda samples: collections.defaultdict(list, x=_x(samples)),
    "OrderedDict": lambda samples: collections.OrderedDict(b=_x(samples), a=_y(samples)),
    "UserDict": lambda samples: collections.UserDict(x=_x(samples)),
    "Counter": lambda samples: collections.Counter("aab"),
    "deque": lambda samples: collections.deque([_x(samples), 2], maxlen=5),
    "dataclass": lambda samples: Record(_x(samples), "outer", Record(_y(samples), "inner")),
    "frozen dataclass": lambda samples: Frozen(_x(samples), len(samples)),
    "movable": lambda samples: Movable(_x(samples)),
    "opaque": lambda samples: Opaque(_x(samples)),
    "object": Collator(2.0),
    "str": lambda samples: "text",
    "bytes": lambda samples: b"bytes",
    "bytearray": lambda samples: bytearray(b"bytes"),
    "None": lambda samples: None,
    "number": lambda samples: len(samples),
    "range": lambda samples: (range(3), {"r": range(2)}),
    "set": lambda samples: {1, 2},
    "array": lambda samples: np.arange(len(samples)),
    "strings": lambda samples: [str(sample[1]) for sample in samples],
    "samples": lambda samples: samples,
    "empty": lambda samples: ([], {}, (), torch.empty(0, 3)),
    "half": lambda samples: _y(samples) % 2 == 0,
    "uint8 image": lambda samples: torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).reshape(2, 3, 4, 5),
    "sparse": lambda samples: _x(samples).to_sparse(),
    "packed sequence": lambda samples: pack_sequence([sample[0] for sample in samples]),
    "strided": lambda samples: _x(samples).t(),
    "same tensor twice": lambda samples: [_x(samples)] * 2,
    "scalar": lambda samples: torch.tensor(7),
    "requires grad": lambda samples: _x(samples).requires_grad_(),
}
