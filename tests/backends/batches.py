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


class ByDevice(Movable):
    """Its ``to()`` takes a device only."""

    def to(self, device: Any) -> ByDevice:  # type: ignore[override]
        return ByDevice(self.x.to(device))


class ByName(Movable):
    """Its ``to()`` takes keywords only."""

    def to(self, *, device: Any = None, dtype: Any = None) -> ByName:  # type: ignore[override]
        return ByName(self.x.to(device, dtype))


class BySecond(Movable):
    """Its ``to()`` takes something else first."""

    def to(self, dtype: Any = None, device: Any = None, non_blocking: bool = False) -> BySecond:  # type: ignore[override]
        assert dtype is None
        return BySecond(self.x.to(device))


class InPlace(Movable):
    """Moves and pins itself, and returns nothing."""

    def pin_memory(self) -> None:  # type: ignore[override]
        self.x = self.x.pin_memory()

    def to(self, device: Any, non_blocking: bool = False) -> None:  # type: ignore[override]
        self.x = self.x.to(device, non_blocking=non_blocking)


class Letter(Movable):
    """Its ``to`` is not what moves it."""

    to = "a.b@example.org"  # type: ignore[assignment]


class Converted(Movable):
    """Its ``to()`` takes no device."""

    def to(self) -> str:  # type: ignore[override]
        return "converted"


@dataclasses.dataclass
class Edges:
    """A dataclass that has ``pin_memory()``, and a tensor ``to``."""

    source: torch.Tensor
    to: torch.Tensor

    def pin_memory(self) -> Edges:
        return Edges(self.source.pin_memory(), self.to.pin_memory())


class Attributes(dict):  # type: ignore[type-arg]
    """A mapping whose keys are attributes: others raise a KeyError."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # for copy.deepcopy()
            raise AttributeError(name)
        return self[name]


class MadeUp(collections.defaultdict):  # type: ignore[type-arg]
    """A mapping whose keys are attributes: asking for one makes it."""

    __getattr__ = Attributes.__getattr__


class Items(tuple):  # type: ignore[type-arg]
    """A tuple made from its items, not from a sequence."""

    def __new__(cls, *items: Any) -> Items:
        return super().__new__(cls, items)

    def __reduce__(self) -> Any:
        return Items, tuple(self)


class Holder(collections.abc.MutableMapping):  # type: ignore[type-arg]
    """A mapping whose copies share its items."""

    def __init__(self, **items: Any) -> None:
        self.items_of = items

    def __getitem__(self, key: str) -> Any:
        return self.items_of[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_of[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_of[key]

    def __iter__(self) -> Any:
        return iter(self.items_of)

    def __len__(self) -> int:
        return len(self.items_of)


class Typed(Holder):
    """A mapping that takes tensors and numbers only, and makes arrays of them."""

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_of[key] = np.asarray(value, np.float32)

    def __getitem__(self, key: str) -> Any:
        return torch.from_numpy(self.items_of[key])


class Shown(torch.Tensor):
    """A tensor type without memory, of which torch can do nothing but tell its size."""

    @staticmethod
    def __new__(cls, x: torch.Tensor) -> Shown:
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)  # type: ignore[attr-defined, no-any-return]

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


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
    "by device": lambda samples: ByDevice(_x(samples)),
    "by name": lambda samples: ByName(_x(samples)),
    "by second": lambda samples: BySecond(_x(samples)),
    "in place": lambda samples: InPlace(_x(samples)),
    "letter": lambda samples: Letter(_x(samples)),
    "converted": lambda samples: Converted(_x(samples)),
    "edges": lambda samples: Edges(_x(samples), _y(samples)),
    "attributes": lambda samples: Attributes(x=_x(samples)),
    "made up": lambda samples: MadeUp(list, x=_x(samples)),
    "items": lambda samples: Items(_x(samples), 3),
    "holder": lambda samples: Holder(x=_x(samples), y=3),
    "typed": lambda samples: Typed(x=_x(samples).numpy()),
    "named result": lambda samples: torch.max(_x(samples), 0),
    "meta": lambda samples: (_x(samples), torch.empty(2, 3, device="meta")),
    "meta image": lambda samples: torch.empty(2, 3, 4, 5, device="meta"),
    "storage": lambda samples: _x(samples).untyped_storage(),
    "sparse image": lambda samples: torch.ones(2, 3, 2, 2).to_sparse(),
    "conjugate": lambda samples: torch.complex(_x(samples), _x(samples)).conj(),
    "expanded": lambda samples: torch.ones(1).expand(4, 3),
    "overlapping": lambda samples: torch.arange(9.0).as_strided((3, 3), (1, 1)),
}

# What copy.deepcopy() cannot copy.
ODD: dict[str, Any] = {
    "compressed": lambda samples: _x(samples).to_sparse_csr(),
    "nested": lambda samples: torch.nested.nested_tensor([_x(samples)[0], _x(samples).flatten()]),
    "jagged": lambda samples: torch.nested.nested_tensor([_x(samples)[0]], layout=torch.jagged),
    "of zeros": lambda samples: torch._efficientzerotensor((2, 3)),
    "quantized": lambda samples: torch.quantize_per_tensor(_x(samples), 0.1, 0, torch.quint8),
    "of another type": lambda samples: Shown(_x(samples)),
    "another library's layout": lambda samples: _x(samples).to_mkldnn(),
}
