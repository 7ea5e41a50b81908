"""Pools of slots that are not registered with CUDA; SIMD levels; pools of decoding threads."""

from __future__ import annotations

import io
import platform
from collections.abc import Iterator

import pytest

from fastload import _core
from fastload.memory.slots import PAGE, SlotPool
from fastload.vision._pools import close_pools

LEVELS = ["portable", "avx2", "avx512"] if platform.machine() == "x86_64" else ["portable", "neon"]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test at each of the core's SIMD levels."""
    best = _core.simd_level()
    if not _core.set_simd_level(request.param):
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    _core.set_simd_level(best)


@pytest.fixture(scope="session")
def fonts_are_open() -> None:
    """Matplotlib keeps the files of the fonts that it has used open."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.text(0, 0, "x ×·")
    figure.suptitle("text")
    figure.savefig(io.BytesIO())


@pytest.fixture
def no_pool_stays() -> Iterator[None]:
    yield
    close_pools()


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
