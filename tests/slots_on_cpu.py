"""Slots as a worker sees them, in this process."""

from __future__ import annotations

from fastload.memory.slots import SlotPool, SlotWriter


def free(pool: SlotPool) -> int:
    """How many slots can be had now."""
    writer, got = SlotWriter(pool.handle), []
    while (acquired := writer.acquire(0)) is not None:
        got.append(acquired[0])
    for stamp in got:
        writer.give_back(stamp)
    return len(got)
