"""What packing and sending know of tensors whose memory is filled when sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from fastload._batch import Leaf


class Unfilled(Protocol):
    """What a tensor's whole memory is to hold. Filling it needs no GIL."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        ...

    @property
    def staged_bytes(self) -> int:
        """About how many bytes of a slot it takes for a GPU to make it."""
        ...

    def paint(self, out: NDArray[np.uint8]) -> None:
        """Write it to memory, ``(nbytes,)``."""
        ...

    def write(self, file: int, offset: int = 0) -> None:
        """Write it to a file; raises OSError."""
        ...


Parts: TypeAlias = "list[torch.Tensor | Unfilled]"
"""What a tensor holds, one behind the other: of tensors, their values in order of their dimensions."""


class SlotStager(Protocol):
    """Stages one batch's unfilled tensors in a slot, for a GPU to make."""

    def take(self, content: Any, size: Sequence[int], stride: Sequence[int]) -> Leaf | None:
        """Return what takes a tensor's place; ``None`` if no GPU makes it."""
        ...

    def write(self, memory: torch.Tensor) -> tuple[Any, int] | None:
        """Write what was taken, if anything.

        Args:
            memory: The free rest of the slot.

        Returns:
            What is there, and the bytes used.

        Raises:
            Exception: It does not fit.
        """
        ...


class Unfilleds(Protocol):
    """Knows this process's unfilled tensors."""

    def content_of(self, tensor: torch.Tensor) -> Unfilled | None:
        """Return what a tensor is to hold; ``None`` if it holds it."""
        ...

    def parts_of(self, samples: Sequence[Any]) -> Parts | None:
        """Return what the stack of samples, contiguous, is to hold.

        ``None`` if no sample is unfilled, or they are not alike.
        """
        ...

    def stager(self) -> SlotStager:
        """Return what stages the next batch."""
        ...


@dataclass
class Filled:
    """Bytes of tensors that were filled, and what a slot would need."""

    nbytes: int = 0
    staged_bytes: int = 0

    def add(self, parts: Parts) -> None:
        """Count tensors' parts."""
        for part in parts:
            if not isinstance(part, torch.Tensor):
                self.nbytes += part.nbytes
                self.staged_bytes += part.staged_bytes


_known: Unfilleds | None = None


def serve(known: Unfilleds | None) -> None:
    """Let ``known`` answer for this process's tensors."""
    global _known
    _known = known


def are_known() -> bool:
    """Whether there may be unfilled tensors here."""
    return _known is not None


def content_of(tensor: torch.Tensor) -> Unfilled | None:
    """See :meth:`Unfilleds.content_of`."""
    return None if _known is None else _known.content_of(tensor)


def parts_of(samples: Sequence[Any]) -> Parts | None:
    """See :meth:`Unfilleds.parts_of`."""
    if _known is None:
        return None
    with torch._C.DisableTorchFunction():
        return _known.parts_of(samples)


def stager() -> SlotStager | None:
    """See :meth:`Unfilleds.stager`."""
    return None if _known is None else _known.stager()


def paint(parts: Iterable[torch.Tensor | Unfilled], flat: torch.Tensor) -> None:
    """Fill memory, ``(nbytes,)`` uint8, with parts one behind the other."""
    begin = 0
    for part in parts:
        place = flat[begin : begin + part.nbytes]
        if isinstance(part, torch.Tensor):
            place.view(part.dtype).view(part.size()).copy_(part)
        else:
            part.paint(place.numpy())
        begin += part.nbytes
