"""Batches into a slot and back, bit for bit; and the default collate into a slot, held against torch's own."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import pickle
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from roads import assert_same, normal
from roads.batches import Bag, Frozen, Opaque, Pair, Record, Row, Stack
from torch.utils.data import default_collate
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from fastload.engines.workers import Collate
from fastload.host import map_leaves
from fastload.memory import packing
from fastload.memory.packing import ALIGNMENT, DoesNotFitError, Packed, Packer, Ref, collate_into, packed_bytes, unpack
from fastload.memory.slots import SlotPool, SlotWriter

SMALL = 256  # so that small batches have large tensors
NAMES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128 "
    "float8_e4m3fn float8_e5m2"
)
DTYPES = [getattr(torch, name) for name in NAMES.split()]
few = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module", autouse=True)
def _small_tensors_are_very_small():
    with mock.patch.object(packing, "SMALL_BYTES", SMALL):
        yield


@dataclasses.dataclass
class Seen:
    """All that one can tell of a tensor."""

    kind: type
    dtype: torch.dtype
    layout: torch.layout
    size: tuple[int, ...]
    stride: tuple[int, ...] | None
    requires_grad: bool
    bits: bytes


def bits(tensor: torch.Tensor) -> bytes:
    """Not ``torch.equal``, for which NaN differs from itself."""
    dense = tensor.detach().resolve_conj().resolve_neg()
    dense = dense if dense.layout == torch.strided else dense.to_dense()
    return dense.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def seen(batch: Any) -> Any:
    """``batch`` with what can be told of each tensor in its place."""

    def look(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        stride = leaf.stride() if leaf.layout == torch.strided else None
        return Seen(type(leaf), leaf.dtype, leaf.layout, tuple(leaf.size()), stride, leaf.requires_grad, bits(leaf))

    return map_leaves(look, batch)


def made(dtype: torch.dtype, size: tuple[int, ...], layout: str, seed: int) -> torch.Tensor:
    """A tensor of ``dtype`` and about ``size``, filled with random bits."""
    count = math.prod(size)
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == torch.bool else 256, count * dtype.itemsize, np.uint8)
    flat = torch.from_numpy(raw).view(dtype) if count else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(size)
    if layout == "transposed":
        return tensor.permute(tuple(reversed(range(tensor.dim()))))
    if layout == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout == "every other" and tensor.dim():
        return tensor[..., ::2]
    if layout == "expanded":
        return tensor.unsqueeze(0).expand(3, *tensor.size())
    if layout == "tail" and tensor.dim() and size[0] > 1:
        return tensor[1:]  # begins in the middle of its storage
    return tensor


class Subclass(torch.Tensor):
    """A tensor type of the user's own."""


UNPACKABLE = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "requires grad": lambda: torch.ones(2, requires_grad=True),
    "with a history": lambda: torch.ones(2, requires_grad=True) * 2,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "subclass": lambda: torch.ones(2).as_subclass(Subclass),
    "conjugate": lambda: torch.tensor([1 + 2j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j]).conj().imag,
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.strided),
    "meta": lambda: torch.ones(2, device="meta"),
}

sizes = st.lists(st.integers(0, 6), max_size=4).map(tuple)
layouts = st.sampled_from(["plain", "transposed", "channels_last", "every other", "expanded", "tail"])
tensors = st.builds(made, st.sampled_from(DTYPES), sizes, layouts, st.integers(0, 2**32))
others = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.builds(lambda n: np.arange(n), st.integers(0, 3)),
    st.builds(lambda n: np.float32(n), st.integers(0, 9)),
    st.sampled_from([name for name in UNPACKABLE if name not in ("quantized", "nested", "meta")]).map(
        lambda name: UNPACKABLE[name]()
    ),
)
CONTAINERS: list[Any] = [
    list,
    tuple,
    Row,
    Stack,
    collections.deque,
    lambda items: Pair(items, items[0] if items else None),
    lambda items: Record(items, "name", None),
    lambda items: Record(items[0] if items else None, "outer", Record(items, "inner")),
    lambda items: Frozen(items, len(items)),
    lambda items: {str(n): item for n, item in enumerate(items)},
    lambda items: Bag(enumerate(items)),
    lambda items: collections.OrderedDict(enumerate(items)),
]
batches = st.recursive(
    st.one_of(tensors, tensors, others),
    lambda inner: st.builds(lambda make, items: make(items), st.sampled_from(CONTAINERS), st.lists(inner, max_size=4)),
    max_leaves=12,
)


def leaves(batch: Any, kind: type) -> list[Any]:
    found: list[Any] = []
    map_leaves(lambda leaf: found.append(leaf) or leaf if isinstance(leaf, kind) else leaf, batch)
    return found


def in_slot(batch: Any) -> list[torch.Tensor]:
    """What has bytes to be put into a slot."""
    return [tensor for tensor in leaves(batch, torch.Tensor) if packing.is_packable(tensor) and tensor.numel()]


def slot(nbytes: int) -> torch.Tensor:
    buffer = torch.full((nbytes,), 0xEE, dtype=torch.uint8)
    assert buffer.data_ptr() % ALIGNMENT == 0 or not nbytes
    return buffer


def dense(batch: Any) -> Any:
    """What packing is to give back: the same layout where it is dense, what a copy makes of it elsewhere."""
    return map_leaves(lambda leaf: leaf.clone() if packing.is_packable(leaf) and leaf.numel() else leaf, batch)


@given(batches)
@few
def test_there_and_back_is_the_same_batch(batch):
    before, expected = seen(batch), seen(dense(batch))
    buffer = slot(packed_bytes(batch))
    packed = Packer(buffer).pack(batch)
    assert packed.nbytes <= packed_bytes(batch)
    assert len(leaves(packed.tree, Ref)) == len(in_slot(batch))
    assert_same(seen(unpack(packed, buffer, lambda leaf: leaf)), expected)
    assert_same(seen(batch), before)  # packed from, not changed


@given(batches)
@few
def test_strides_of_dense_tensors_are_kept(batch):
    buffer = slot(packed_bytes(batch))
    back = unpack(Packer(buffer).pack(batch), buffer, lambda leaf: leaf)
    for before, after in zip(leaves(batch, torch.Tensor), leaves(back, torch.Tensor), strict=True):
        assert after.size() == before.size()
        if before.layout == torch.strided and torch._prims_common.is_non_overlapping_and_dense_or_false(before):
            assert after.stride() == before.stride()


@given(batches)
@few
def test_a_packed_batch_survives_being_sent(batch):
    batch = map_leaves(lambda leaf: leaf if packing.is_packable(leaf) else None, batch)
    buffer = slot(packed_bytes(batch))
    sent = pickle.loads(pickle.dumps(Packer(buffer).pack(batch)))
    assert_same(seen(unpack(sent, buffer, lambda leaf: leaf)), seen(dense(batch)))


@given(batches)
@few
def test_large_tensors_lie_before_the_small_ones_all_aligned_and_apart(batch):
    packed = Packer(slot(packed_bytes(batch))).pack(batch)
    begin, end = packed.small
    taken = []
    for ref in leaves(packed.tree, Ref):
        nbytes = math.prod(ref.size) * ref.dtype.itemsize
        assert ref.offset % ALIGNMENT == 0
        if nbytes <= SMALL:
            assert begin <= ref.offset
            assert ref.offset + nbytes <= end
        else:
            assert ref.offset + nbytes <= begin
        taken.append((ref.offset, ref.offset + nbytes))
    taken.sort()
    assert all(one[1] <= two[0] for one, two in zip(taken, taken[1:], strict=False))
    assert begin <= end == packed.nbytes


@given(batches)
@few
def test_a_slot_is_too_small_exactly_when_the_last_byte_has_no_room(batch):
    order = sorted((tensor.nbytes <= SMALL, place) for place, tensor in enumerate(in_slot(batch)))
    nbytes = [in_slot(batch)[place].nbytes for _, place in order]
    # Expanded tensors need their own number of elements, whatever their storage holds.
    needed = sum(-(-n // ALIGNMENT) * ALIGNMENT for n in nbytes[:-1]) + (nbytes[-1] if nbytes else 0)
    buffer = slot(needed)
    packed = Packer(buffer).pack(batch)
    assert_same(seen(unpack(packed, buffer, lambda leaf: leaf)), seen(dense(batch)))
    if needed:
        with pytest.raises(DoesNotFitError, match="larger than a slot"):
            Packer(slot(needed - 1)).pack(batch)


@pytest.mark.parametrize("name", UNPACKABLE)
def test_what_cannot_be_packed_is_carried_beside(name):
    leaf = UNPACKABLE[name]()
    beside = [None, "text", 1.5, np.arange(3), Opaque(torch.ones(2)), torch.empty(0, 3)]
    buffer = slot(4096)
    packed = Packer(buffer).pack({"x": torch.ones(3), "leaf": leaf, "beside": beside})
    assert packed.tree["leaf"] is leaf
    assert all(a is b for a, b in zip(packed.tree["beside"], beside, strict=True))
    assert isinstance(packed.tree["x"], Ref)
    seen_by_others = []
    back = unpack(packed, buffer, lambda leaf: seen_by_others.append(leaf) or leaf)
    assert back["leaf"] is leaf
    assert [other is leaf or other is beside[-1] for other in seen_by_others] == [True, True]


def test_a_scalar_comes_back_as_a_scalar():
    buffer = slot(64)
    back = unpack(Packer(buffer).pack(torch.tensor(7.5)), buffer, lambda leaf: leaf)
    assert back.size() == ()
    assert back.item() == 7.5


def test_what_comes_back_lies_in_the_slot():
    buffer = slot(4096)
    back = unpack(Packer(buffer).pack([torch.ones(3), torch.ones(500)]), buffer, lambda leaf: leaf)
    buffer.zero_()
    assert not any(bool(tensor.any()) for tensor in back)


# The default collate. A sample is made from a form: nested kinds, of which every sample has values of its own.

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
    """Within it, torch believes to be in a worker, where it stacks into shared memory and has other errors."""
    info = mock.Mock(id=0) if inside else None
    with mock.patch.object(torch_worker, "_worker_info", info):
        yield


def outcome(function: Any, samples: list[Any]) -> Any:
    try:
        return seen(function(samples))
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


@given(st.sampled_from(list(LEAVES)), st.sampled_from(list(KINDS)), st.integers(0, 2), st.booleans(), st.data())
@few
def test_samples_that_do_not_match_fail_as_they_fail_in_default_collate(kind, odd, at, inside, data):
    wrap = data.draw(st.sampled_from([lambda items: items[0], *FORMS]))
    samples = [wrap([KINDS[odd if n == at else kind](n)]) for n in range(3)]
    with worker(inside):
        got, expected = outcome(through_a_slot, samples), outcome(default_collate, samples)
    event("error" if isinstance(expected, tuple) and isinstance(expected[0], type) else "no error")
    assert_same(got, expected)


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
        return map_leaves(
            lambda leaf: leaf.clone() if packing.is_packable(leaf) else leaf,
            unpack(batch.data, lease.buffer, lambda leaf: leaf),
        )
    finally:
        pool.close()


class Holder:
    """Holds a tensor where nobody looks."""

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


class Hiding(dict):  # type: ignore[type-arg]
    """A mapping that pins and moves itself: nobody else looks into it."""

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
        with mock.patch("fastload.engines.workers.collate_into", wraps=collate_into) as stacking:
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
    """The large one without a batch in between: its bytes are in the slot before anything is packed."""
    buffer = slot(2**20)
    packer = Packer(buffer)
    large, small = collate_into(packer, [(torch.ones(200), torch.ones(2)) for _ in range(4)])
    begin = buffer.data_ptr()
    assert large.data_ptr() == begin
    assert not begin <= small.data_ptr() < begin + buffer.numel()
    packed = packer.pack([large, small])
    assert [ref.offset for ref in packed.tree] == [0, 3200]
    assert packed.small == (3200, 3264)
