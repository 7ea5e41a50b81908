"""Use slots in this process, as a worker would."""

from __future__ import annotations

from fastload.memory.slots import SlotPool, SlotWriter


def free(pool: SlotPool) -> int:
    """Number of slots that are free now."""
    writer, got = SlotWriter(pool.handle), []
    while (acquired := writer.acquire(0)) is not None:
        got.append(acquired[0])
    for stamp in got:
        writer.give_back(stamp)
    return len(got)
