"""Compare the traversal of randomly nested batches with torch's pinning."""

from __future__ import annotations

import array
import collections
import copy
import time
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from backends import assert_same
from backends.batches import Bag, Frozen, Holder, Items, Movable, Opaque, Record, Stack, Typed
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data._utils.pin_memory import pin_memory

from fastload._batch import Leaf, map_tensors

TUPLE_TYPE = type(pin_memory((1,)))


class Three(NamedTuple):
    a: Any
    b: Any
    c: Any


class Unsettable(collections.abc.Mapping):  # type: ignore[type-arg]
    """A mapping that is neither mutable nor made from a mapping."""

    def __init__(self, *, pairs: Any) -> None:
        self.pairs = pairs

    def __getitem__(self, key: Any) -> Any:
        return dict(self.pairs)[key]

    def __iter__(self) -> Any:
        return (key for key, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)


class Reader(collections.abc.Sequence):  # type: ignore[type-arg]
    """A sequence that is not mutable but made from one."""

    def __init__(self, items: Any) -> None:
        self.items = list(items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)


class Forwarding:
    """Answers to ``pin_memory`` and ``to`` only when asked, as wrappers do."""

    def __init__(self, inner: Movable) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in ("pin_memory", "to"):
            return getattr(self.inner, name)
        raise AttributeError(name)


def _noted(container: Any) -> Any:
    container.note = "kept"
    return container


tensors = st.builds(lambda n: torch.full((2,), float(n)), st.integers(0, 99))
others = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.builds(range, st.integers(0, 400)),
    st.builds(lambda n: np.arange(n), st.integers(0, 3)),
    st.builds(lambda b: bytearray(b), st.binary(max_size=3)),
    st.builds(lambda n: Opaque(torch.tensor([n])), st.integers(0, 9)),
    st.frozensets(st.integers(), max_size=2),
)
movables = st.builds(lambda n: Movable(torch.full((2,), float(n))), st.integers(0, 99))
keys = st.one_of(st.text(max_size=2), st.integers(0, 9), st.none())


SEQUENCES: list[Callable[[list[Any]], Any]] = [
    list,
    tuple,
    collections.deque,
    collections.UserList,
    Reader,
    lambda items: _noted(Stack(items)),
    lambda items: Three(items, None, items[-1] if items else 0),
]
MAPPINGS: list[Callable[[dict[Any, Any]], Any]] = [
    dict,
    collections.OrderedDict,
    collections.UserDict,
    types.MappingProxyType,
    lambda items: collections.defaultdict(list, items),
    lambda items: _noted(Bag(items)),
    lambda items: Unsettable(pairs=tuple(items.items())),  # the last cannot be rebuilt
]


@st.composite
def nested(draw: st.DrawFn, depth: int = 3, mappings: Any = tuple(MAPPINGS)) -> Any:
    kind = draw(st.integers(0, 2 if depth else 0))
    if kind == 0:
        return draw(st.one_of(tensors, tensors, movables, others))
    children = draw(st.lists(nested(depth - 1, mappings), max_size=3))
    if kind == 1:
        return draw(st.sampled_from(SEQUENCES))(children)
    names = draw(st.lists(keys, min_size=len(children), max_size=len(children), unique=True))
    return draw(st.sampled_from(mappings))(dict(zip(names, children, strict=True)))


batches = nested()
rebuildable = nested(mappings=tuple(MAPPINGS[:-1]))


@pytest.fixture(scope="module", autouse=True)
def _pinning_adds_one():
    """Stand for pinning without an accelerator: each tensor is pinned once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "pin_memory", lambda self, device=None: self + 1)
        yield


@given(rebuildable)
def test_walks_where_torchs_pin_memory_walks(batch):
    expected = pin_memory(_rebuilt(batch))
    got = map_tensors(lambda leaf: leaf.pin_memory(), _rebuilt(batch), TUPLE_TYPE)
    assert_same(got, expected)


def test_what_cannot_be_rebuilt_becomes_a_dict_when_it_is_pinned_as_in_torch():
    batch = Unsettable(pairs=(("a", torch.zeros(1)),))
    assert_same(map_tensors(lambda leaf: leaf.pin_memory(), batch, TUPLE_TYPE), pin_memory(batch))


def _rebuilt(batch: Any) -> Any:
    """The same batch with leaves of its own: pinning may change a movable in place."""
    return map_tensors(lambda leaf: copy.deepcopy(leaf), batch)


@given(rebuildable)
def test_leaves_come_in_the_order_of_the_containers_and_once_each(batch):
    def order(walk: Any) -> list[float]:
        seen: list[float] = []

        def pin(self: torch.Tensor, device: Any = None) -> torch.Tensor:
            seen.append(float(self[0]))
            return self

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "pin_memory", pin)
            walk(_rebuilt(batch))
        return seen

    assert order(lambda data: map_tensors(lambda leaf: leaf.pin_memory(), data)) == order(pin_memory)


@given(batches)
def test_a_batch_in_which_nothing_changes_is_that_batch(batch):
    assert map_tensors(lambda leaf: leaf, batch) is batch


@given(batches)
def test_the_batch_walked_through_is_left_alone(batch):
    before = _leaves(batch)
    for tuple_type in (None, TUPLE_TYPE):
        map_tensors(copy.deepcopy, batch, tuple_type)
        assert all(a is b for a, b in zip(_leaves(batch), before, strict=True))


@given(rebuildable)
def test_there_and_back_is_the_same_batch(batch):
    class Stood(Leaf):
        def __init__(self, leaf: Any) -> None:
            self.leaf = leaf

    there = map_tensors(Stood, batch)
    assert not _leaves(there, torch.Tensor)
    back = map_tensors(lambda stood: stood.leaf, there)
    assert_same(back, batch)
    assert all(a is b for a, b in zip(_leaves(back), _leaves(batch), strict=True))


def _leaves(batch: Any, kind: type = object) -> list[Any]:
    found: list[Any] = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, kind):
            found.append(leaf)
        return leaf

    map_tensors(note, batch)
    return found


@given(tensors, others)
def test_dataclasses_are_walked_through_as_well(tensor, other):
    record = Record(tensor, "outer", Record(tensor + 1, "inner"))
    record.extra = other  # no field: kept as it is
    moved = map_tensors(lambda leaf: leaf * 2, [record, Frozen(tensor, 3)])
    assert_same(moved[0].x, tensor * 2)
    assert_same(moved[0].inner.x, tensor * 2 + 2)
    assert moved[0].extra is other
    assert (moved[0].name, moved[0].inner.name) == ("outer", "inner")
    assert_same(moved[1], Frozen(tensor * 2, 3))
    assert_same(record.x, tensor)


def test_a_type_that_forwards_its_attributes_is_a_leaf():
    forwarding = Forwarding(Movable(torch.zeros(2)))
    assert _leaves([forwarding]) == [forwarding]


@given(st.lists(st.one_of(tensors, others), max_size=3), tensors)
def test_containers_of_peculiar_types_are_rebuilt_and_the_given_ones_left(items, tensor):
    tuple_, holder = Items(*items, tensor), Holder(a=items, b=tensor)
    tuple_.note = holder.note = ["kept"]
    moved = map_tensors(lambda leaf: leaf + 1, [tuple_, holder])
    assert_same(moved[0][-1], tensor + 1)
    assert_same(moved[1]["b"], tensor + 1)
    assert (type(moved[0]), type(moved[1])) == (Items, Holder)
    assert moved[0].note is moved[1].note is tuple_.note
    assert tuple_[-1] is holder["b"] is tensor
    assert len(moved[0]) == len(tuple_) == len(items) + 1


class Locked(dict):
    """A mapping that can be copied but not changed."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise PermissionError(key)


class Uncopied(Holder):
    def __copy__(self) -> Any:
        raise RuntimeError("no copies")


class Unreadable(collections.abc.Sequence):  # type: ignore[type-arg]
    def __getitem__(self, index: Any) -> Any:
        raise OSError(index)

    def __len__(self) -> int:
        return 1


class Frame(NamedTuple):
    """Its subclass makes another of what it is made from."""

    x: Any


class Scaled(Frame):
    def __new__(cls, x: Any) -> Any:
        return super().__new__(cls, x * 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda tensor: Locked(x=tensor),
        lambda tensor: Uncopied(x=tensor),
        lambda tensor: Unsettable(pairs=(("x", tensor),)),
        lambda tensor: Typed(x=tensor.numpy(), y=3),
        lambda tensor: Unreadable(),
    ],
    ids=["locked", "uncopied", "unsettable", "typed", "unreadable"],
)
def test_a_container_that_cannot_be_rebuilt_stays_as_it_was(make):
    container = make(torch.ones(2))
    before = vars(copy.deepcopy(container)) if not isinstance(container, dict) else dict(container)
    stood = map_tensors(lambda leaf: collections.deque([leaf]), [container, torch.zeros(1)])
    assert stood[0] is container
    assert isinstance(stood[1], collections.deque)
    assert_same(dict(container) if isinstance(container, dict) else vars(container), before)


def test_a_named_tuple_is_not_made_anew_from_its_items():
    assert map_tensors(lambda leaf: leaf + 1, Scaled(torch.ones(1))).x.item() == 3


def test_a_batch_that_contains_itself_stays():
    batch: list[Any] = [torch.ones(1)]
    batch.append({"again": (batch,)})
    assert map_tensors(lambda leaf: leaf + 1, batch) is batch
    record = Record(torch.ones(1), "again")
    record.inner = record
    assert map_tensors(lambda leaf: leaf + 1, record) is record
    with pytest.raises(RecursionError):
        map_tensors(lambda leaf: leaf, batch, TUPLE_TYPE)
    twice = [batch[0]] * 2
    assert map_tensors(lambda leaf: leaf + 1, [twice, twice])[1][1].item() == 2


def test_counts_are_not_added_up():
    """Torch's own pinning does: it updates a copy of the Counter with itself."""
    counter = collections.Counter("aab")
    assert map_tensors(lambda leaf: leaf + 1, [counter, torch.zeros(1)])[0] == {"a": 2, "b": 1}
    assert map_tensors(lambda leaf: leaf, counter, tuple) == {"a": 2, "b": 1}
    mixed = collections.Counter(a=2)
    mixed["t"] = torch.zeros(1)
    assert map_tensors(lambda leaf: leaf + 1, mixed)["a"] == 2


def test_a_string_of_a_type_of_its_own_is_a_string():
    text = collections.UserString("text")
    assert map_tensors(lambda leaf: leaf, [text], tuple)[0] is text


def test_an_error_of_a_leaf_is_not_mistaken_for_an_odd_container():
    def fail(leaf: Any) -> Any:
        raise TypeError("of the leaf")

    for batch in ({"a": torch.zeros(1)}, [torch.zeros(1)]):
        with pytest.raises(TypeError, match="of the leaf"):
            map_tensors(fail, batch)


@pytest.mark.parametrize("flat", [bytearray(10**7), memoryview(bytes(10**7)), array.array("f", [0.0]) * 10**7])
def test_what_can_only_hold_numbers_is_not_walked(flat):
    begin = time.thread_time()
    assert map_tensors(lambda leaf: leaf, [flat])[0] is flat
    assert time.thread_time() - begin < 0.1  # it would take a second
