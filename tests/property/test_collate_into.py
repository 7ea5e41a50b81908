"""The default collate that stacks into a slot, held against torch's own."""

from __future__ import annotations

import collections
import contextlib
import functools
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from backends import assert_same, normal
from backends.batches import Bag, Opaque, Pair, Row, Stack
from backends.tensors import Subclass, dense, made, seen, slot
from effort import examples
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

import fastload
from fastload._batch import map_tensors
from fastload.device.copy_scheduler import NONE_FREE
from fastload.memory import packing
from fastload.memory.packing import Packed, Packer, collate_into, unpack
from fastload.memory.slots import SlotPool, SlotWriter
from fastload.workers import start
from fastload.workers.start import Collate

SMALL = 256  # so that small batches have large tensors
few = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module", autouse=True)
def _small_tensors_are_very_small():
    with mock.patch.object(packing, "SMALL_BYTES", SMALL), mock.patch.object(start, "AT_ONCE_MAX_BYTES", 0):
        yield


# A sample is made from a form: nested kinds, of which every sample has values of its own.

LEAVES = {
    "tensor": lambda n: made(torch.float32, (2, 3), "plain", n),
    "large": lambda n: made(torch.int16, (40, 5), "plain", n),
    "bf16": lambda n: made(torch.bfloat16, (7,), "plain", n),
    "bool": lambda n: torch.tensor([n % 2 == 0, n % 3 == 0]),
    "complex": lambda n: made(torch.complex64, (30,), "plain", n),
    "float8": lambda n: made(torch.float8_e5m2, (9,), "plain", n),
    "transposed": lambda n: made(torch.float64, (5, 8), "transposed", n),
    "channels_last": lambda n: made(torch.uint8, (6, 7, 3), "plain", n).permute(2, 0, 1),
    "expanded": lambda n: made(torch.int32, (4,), "expanded", n),
    "scalar": lambda n: torch.tensor(n % 100),
    "empty": lambda n: torch.empty(0, 3),
    "array": lambda n: np.full((2, 2), n % 1000, np.int32),
    "large array": lambda n: np.full((20, 20), n % 1000, np.float64),
    "array scalar": lambda n: np.float32(n % 1000),
    "0-d array": lambda n: np.array(n % 1000),
    "int": lambda n: n,
    "float": lambda n: n / 8,
    "true or false": lambda n: n % 2 == 0,
    "str": str,
    "bytes": lambda n: str(n).encode(),
    "Row of one": lambda n: Row([n]),
}
BAD = {
    "None": lambda n: None,
    "object": lambda n: Opaque(torch.ones(2)),
    "strings": lambda n: np.array(["a"]),
    "sparse": lambda n: torch.eye(2).to_sparse(),
    "requires grad": lambda n: torch.ones(2, 3, requires_grad=True),
    "longer": lambda n: torch.ones(3, 3),
    "shorter": lambda n: torch.ones(1, 3),
    "more axes": lambda n: torch.ones(2, 3, 1),
    "float64": lambda n: torch.ones(2, 3, dtype=torch.float64),
    "float64 large": lambda n: torch.ones(40, 5, dtype=torch.float64),
    "large longer": lambda n: torch.ones(41, 5, dtype=torch.int16),
    "large shorter": lambda n: torch.ones(39, 5, dtype=torch.int16),
    "subclass": lambda n: torch.ones(40, 5, dtype=torch.int16).as_subclass(Subclass),
    "large requires grad": lambda n: torch.ones(40, 5, requires_grad=True),
    "two": lambda n: [n, n],
    "key": lambda n: {"other": n},
}
KINDS = LEAVES | BAD
FORMS: list[Any] = [
    list,
    tuple,
    lambda items: Pair(items[0], tuple(items)),
    lambda items: {str(n): item for n, item in enumerate(items)},
    lambda items: collections.OrderedDict(enumerate(items)),
    lambda items: Bag(enumerate(items)),
    lambda items: Stack(items),
]


def forms(kinds: Any) -> Any:
    return st.recursive(
        st.sampled_from(list(kinds)),
        lambda inner: st.tuples(st.sampled_from(FORMS), st.lists(inner, min_size=1, max_size=3)),
        max_leaves=5,
    )


def sample(form: Any, n: int) -> Any:
    if isinstance(form, str):
        return KINDS[form](n)
    return form[0]([sample(inner, 7 * n + place) for place, inner in enumerate(form[1])])


@contextlib.contextmanager
def worker(inside: bool):
    """Make torch believe to be in a worker, with shared memory and other errors."""
    info = mock.Mock(id=0) if inside else None
    with mock.patch.object(torch_worker, "_worker_info", info):
        yield


def outcome(function: Any, samples: list[Any]) -> Any:
    try:
        return seen(dense(function(samples)))  # what is not stacked may have gaps
    except Exception as error:
        return type(error), normal(str(error))


def into(samples: list[Any]) -> Any:
    buffer = slot(2**20)
    packer = Packer(buffer)
    packed = packer.pack(collate_into(packer, samples))
    assert isinstance(packed, Packed)
    return unpack(packed, buffer, lambda leaf: leaf)


@given(forms(LEAVES), st.lists(st.integers(0, 2**20), min_size=1, max_size=4), st.booleans())
@few
def test_collating_into_a_slot_is_default_collate(form, seeds, inside):
    samples = [sample(form, n) for n in seeds]
    with worker(inside):
        assert_same(outcome(into, samples), outcome(default_collate, samples))


@pytest.mark.filterwarnings("ignore")  # torch's, of odd samples
@given(st.sampled_from(list(LEAVES)), st.sampled_from(list(KINDS)), st.integers(0, 2), st.booleans(), st.data())
@few
def test_samples_that_do_not_match_fail_as_they_fail_in_default_collate(kind, odd, at, inside, data):
    wrap = data.draw(st.sampled_from([lambda items: items[0], *FORMS]))
    samples = [wrap([KINDS[odd if n == at else kind](n)]) for n in range(3)]
    with worker(inside):
        got, expected = outcome(through_a_slot, samples), outcome(default_collate, samples)
    event("error" if isinstance(expected, tuple) and isinstance(expected[0], type) else "no error")
    assert_same(got, expected)


@pytest.mark.filterwarnings("ignore")  # torch's, of odd samples
@pytest.mark.parametrize("inside", [False, True], ids=["main process", "worker"])
@pytest.mark.parametrize("odd", BAD)
@pytest.mark.parametrize("first", [False, True], ids=["odd later", "odd first"])
@pytest.mark.parametrize("kind", ["tensor", "large"])
def test_each_odd_sample_among_tensors(kind, odd, first, inside):
    plain, strange = KINDS[kind](1), KINDS[odd](2)
    samples = [strange, plain] if first else [plain, strange]
    with worker(inside):
        assert_same(outcome(through_a_slot, samples), outcome(default_collate, samples))


@pytest.mark.parametrize("inside", [False, True], ids=["main process", "worker"])
@pytest.mark.parametrize("samples", [[], [[1], [1, 2]], [{"a": 1}, {"b": 1}], [range(2), range(2)]], ids=str)
def test_odd_containers(samples, inside):
    with worker(inside):
        assert_same(outcome(through_a_slot, samples), outcome(default_collate, samples))


# From here on through the engine's own collate function, with a real slot.

last: list[Any] = []


def through_a_slot(samples: list[Any]) -> Any:
    """What arrives of ``samples``, and how, in ``last``."""
    pool = SlotPool(2, 2**22, register=False)
    try:
        pool.want(2**19, wait=True)
        batch = Collate(default_collate, 0, SlotWriter(pool.handle))(samples)
        last[:] = [batch.missed if batch.stamp is None else "in a slot"]
        if batch.stamp is None:
            return batch.data
        lease = pool.adopt(batch.stamp)
        return map_tensors(
            lambda leaf: leaf.clone() if packing.is_packable(leaf) else leaf,
            unpack(batch.data, lease.buffer, lambda leaf: leaf),
        )
    finally:
        pool.close()


class Holder:
    """Holds a tensor that no search finds."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


class Item:
    """A sample type of the user's own."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


def collate_items(batch: list[Item], *, collate_fn_map: Any = None) -> Holder:
    return Holder(collate([item.x for item in batch], collate_fn_map=collate_fn_map))


def test_a_tensor_that_an_added_collate_function_hides_does_not_lie_in_the_slot():
    with mock.patch.dict(default_collate_fn_map, {Item: collate_items}):
        got = through_a_slot([Item(torch.full((200,), float(n))) for n in range(3)])
    assert last == [None]  # nothing to put into a slot was found
    assert_same(got.x, torch.arange(3.0)[:, None].expand(3, 200).contiguous())


def test_a_replaced_collate_function_is_called():
    def padded(batch, *, collate_fn_map=None):
        return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)

    samples = [(torch.ones(length, 50), length) for length in (1, 3, 2)]
    with mock.patch.dict(default_collate_fn_map, {torch.Tensor: padded}):
        expected = default_collate(samples)
        assert_same(seen(through_a_slot(samples)), seen(expected))
    assert last == ["in a slot"]
    assert expected[0].size() == (3, 3, 50)


def test_a_callable_object_may_replace_a_collate_function():
    class Doubled:
        def __call__(self, batch, *, collate_fn_map=None):
            return collate_tensor_fn(batch, collate_fn_map=collate_fn_map) * 2

    samples = [torch.full((200,), float(n)) for n in range(3)]
    with mock.patch.dict(default_collate_fn_map, {torch.Tensor: Doubled()}):
        assert_same(seen(through_a_slot(samples)), seen(torch.stack(samples) * 2))


def doubled(batch, *, collate_fn_map=None):
    return torch.stack(batch) * 2


def test_a_replacement_that_introduces_itself_as_torchs_is_called():
    @functools.wraps(collate_tensor_fn)
    def replacement(batch, *, collate_fn_map=None):
        return doubled(batch)

    samples = [torch.full((200,), float(n)) for n in range(3)]
    with mock.patch.dict(default_collate_fn_map, {torch.Tensor: replacement}):
        assert_same(seen(through_a_slot(samples)), seen(torch.stack(samples) * 2))


def test_what_default_collate_runs_may_be_replaced(monkeypatch):
    samples = [torch.full((200,), float(n)) for n in range(3)]
    for owner, name, value in (
        (torch_collate, "collate", doubled),
        (torch_collate, "default_collate_fn_map", {torch.Tensor: doubled}),
        (collate_tensor_fn, "__code__", doubled.__code__),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, value)
            assert_same(seen(through_a_slot(samples)), seen(torch.stack(samples) * 2))
        assert_same(seen(through_a_slot(samples)), seen(torch.stack(samples)))
        assert last == ["in a slot"]


def test_an_entry_that_was_taken_out_is_missed():
    samples = [torch.full((200,), float(n)) for n in range(3)]
    with mock.patch.dict(default_collate_fn_map):
        del default_collate_fn_map[torch.Tensor]
        with pytest.raises(TypeError, match="batch must contain tensors"):
            through_a_slot(samples)


def test_an_annotated_collate_function_stacks_into_the_slot():
    with fastload.annotate(torch_collate, "collate_tensor_fn"), fastload.annotate(torch_collate, "collate"):
        assert packing.stacks_into(default_collate)


class Hiding(dict):  # type: ignore[type-arg]
    """A mapping that pins and moves itself, so that no other code looks into it."""

    def pin_memory(self) -> Hiding:
        return self

    def to(self, device: Any, **_: Any) -> Hiding:
        return self


def test_a_container_that_hides_its_tensors_takes_the_ordinary_path_and_is_collated_once_from_then_on():
    samples = [Hiding(x=torch.full((200,), float(n))) for n in range(3)]
    expected = default_collate(samples)
    pool = SlotPool(2, 2**22, register=False)
    try:
        pool.want(2**19, wait=True)
        into_slot = Collate(default_collate, 0, SlotWriter(pool.handle))
        with mock.patch("fastload.workers.start.collate_into", wraps=collate_into) as stacking:
            for _ in range(3):
                batch = into_slot(samples)
                assert batch.stamp is None
                assert_same(seen(batch.data["x"]), seen(expected["x"]))
        assert stacking.call_count == 1
        tokens = pool._drain()
        assert len(tokens) == 2
        region = pool._current.mapping.bytes
        assert not region.data_ptr() <= batch.data["x"].data_ptr() < region.data_ptr() + region.numel()
    finally:
        pool.close()


def test_tensors_large_and_small_are_stacked_as_said():
    """The large tensor's bytes are in the slot before anything is packed."""
    buffer = slot(2**20)
    packer = Packer(buffer)
    large, small = collate_into(packer, [(torch.ones(200), torch.ones(2)) for _ in range(4)])
    begin = buffer.data_ptr()
    assert large.data_ptr() == begin
    assert not begin <= small.data_ptr() < begin + buffer.numel()
    packed = packer.pack([large, small])
    assert [ref.offset for ref in packed.tree] == [0, 3200]
    assert packed.small == (3200, 3264)


@pytest.mark.parametrize("collate_fn", [default_collate, lambda samples: torch.stack(samples)], ids=["default", "own"])
@pytest.mark.parametrize("rows", [200, 600_000])
def test_a_slot_that_was_not_used_is_given_back(collate_fn, rows):
    """After an error, and when the batch is larger than the slot."""
    samples = [torch.ones(rows), torch.ones(rows)]
    pool = SlotPool(2, 2**22, register=False)
    try:
        pool.want(2**19, wait=True)
        into_slot = Collate(collate_fn, 0, SlotWriter(pool.handle))
        for _ in range(3):
            with pytest.raises(RuntimeError):
                into_slot([*samples, torch.ones(rows + 1)])
        batch = into_slot(samples)
        assert (batch.stamp is None) is (rows > 200)
        if batch.stamp is None:
            assert batch.missed in ("larger than a slot", NONE_FREE)
            assert_same(batch.data, torch.stack(samples))
        assert len(pool._drain()) == (2 if batch.stamp is None else 1)
    finally:
        pool.close()
