"""What a loader has done so far, counted as it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of a loader, over all its epochs.

    Attributes:
        batches: Copied to the device.
        device_bytes: That they had, as they crossed the link.
        slot_batches: Of ``batches``: written by workers straight into pinned slots.
        missed: Batches that took torch's ordinary path although slots are on, by reason.
        slots: How many slots there are now.
        slot_bytes: Bytes of each.
        pinned_bytes: Bytes of pinned memory that the slots hold.
    """

    batches: int = 0
    device_bytes: int = 0
    slot_batches: int = 0
    missed: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    slots: int = 0
    slot_bytes: int = 0
    pinned_bytes: int = 0
