"""Batches into a slot and back, bit for bit."""

from __future__ import annotations

import collections
import itertools
import math
import pickle
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from backends import assert_same
from backends.batches import Bag, Frozen, Opaque, Pair, Record, Row, Stack
from backends.tensors import Subclass, dense, made, seen, slot
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastload._batch import map_tensors
from fastload.memory import packing
from fastload.memory.packing import ALIGNMENT, DoesNotFitError, Packer, Ref, packed_bytes, unpack

SMALL = 256  # so that small batches have large tensors
NAMES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128 "
    "float8_e4m3fn float8_e5m2"
)
DTYPES = [getattr(torch, name) for name in NAMES.split()]
few = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module", autouse=True)
def _small_tensors_are_very_small():
    with mock.patch.object(packing, "SMALL_BYTES", SMALL):
        yield


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
    st.sampled_from([name for name in UNPACKABLE if name not in ("csr", "quantized", "nested", "meta")]).map(
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
    map_tensors(lambda leaf: found.append(leaf) or leaf if isinstance(leaf, kind) else leaf, batch)
    return found


def in_slot(batch: Any) -> list[torch.Tensor]:
    """What has bytes to be put into a slot."""
    return [tensor for tensor in leaves(batch, torch.Tensor) if packing.is_packable(tensor) and tensor.numel()]


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
    batch = map_tensors(lambda leaf: leaf if packing.is_packable(leaf) and leaf.numel() else None, batch)
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
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(taken))
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


@pytest.mark.filterwarnings("ignore")  # torch's, of what is new or old there
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
