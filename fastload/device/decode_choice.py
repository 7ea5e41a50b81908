"""Where each batch is decoded: by the threads or by the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

    from fastload.device.decode import Decoder, StagedFiles

LATE_MIN: Final = 3
"""Batches in succession that the threads have to be late with before the GPU takes over."""

STAY_MIN: Final = 64
STAY_MAX: Final = 4096
"""For how many batches."""


class DecodeChoice:
    """Decides for each batch whether the GPU decodes it. Not thread-safe.

    ``"auto"`` turns to the GPU when three batches in succession were not decoded when they were wanted, and tries the
    threads again after a while, which doubles each time that they do not suffice.

    Args:
        decoder: For the batches that go to the GPU.
        always: Whether all do.
    """

    def __init__(self, decoder: Decoder, *, always: bool) -> None:
        self._decoder = decoder
        self._always = always
        self._late = 0  # batches in succession
        self._left = 0  # batches to decode on the GPU
        self._stay = STAY_MIN

    def files(self, pixels: torch.Tensor) -> StagedFiles | None:
        """Return room for the next batch, or None if the threads decode it."""
        if self._decoder.out_of_memory:
            return None
        if not self._always:
            if self._left == 0:
                return None
            self._left -= 1
        return self._decoder.files(pixels)

    def note(self, *, on_gpu: bool, late: bool) -> None:
        """Note where a batch was decoded, and whether it was late."""
        if self._always or on_gpu:
            return
        self._late = self._late + 1 if late else 0
        if self._late >= LATE_MIN and self._left == 0:
            self._late, self._left = 0, self._stay
            self._stay = min(2 * self._stay, STAY_MAX)
