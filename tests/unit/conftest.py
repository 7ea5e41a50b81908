"""Pools of slots that are not registered with CUDA."""

from __future__ import annotations

import pytest

from fastload.memory.slots import PAGE, SlotPool


@pytest.fixture
def make_pool():
    """Pools with slots in them, closed in the end."""
    pools = []

    def make(count=4, max_bytes=2**24, homes=1, slot_bytes=PAGE):
        pool = SlotPool(count, max_bytes, homes, register=False)
        pools.append(pool)
        if slot_bytes:
            pool.want(slot_bytes, wait=True)
            assert pool.counts().slots == count
        return pool

    yield make
    for pool in pools:
        pool.close()
