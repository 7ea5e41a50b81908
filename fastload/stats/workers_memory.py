"""Host memory of a loader's worker processes, for its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastload._machine import process_memory, usable_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable


def workers_memory(pids: Iterable[int]) -> str | None:
    """Say what worker processes hold; ``None`` if none is there. Reads a file for each."""
    found = [memory for pid in pids if (memory := process_memory(pid)) is not None]
    if not found:
        return None
    rss, pss = (sum(sizes) / 1e9 for sizes in zip(*found, strict=True))
    whose = "1 worker holds" if len(found) == 1 else f"{len(found)} workers hold"
    return (
        f"{whose} {pss:,.2f} GB of memory, the largest {max(pss for _, pss in found) / 1e9:,.2f} (PSS, of pages shared "
        f"with others a part; {rss:,.2f} GB with all of them); {usable_memory_bytes() / 1e9:,.1f} GB are left"
    )
