"""Where the batches of one iterator are decoded, as the policy decides."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Protocol

from fastload.device.decode.policy import DecodedBatch, probed_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from fastload.device.decode.files import Decoder, StagedFiles
    from fastload.device.decode.kept import FilesOnDevice
    from fastload.device.decode.policy import DecodePolicy, Side


class Decoded(Protocol):
    """A batch of the pipeline."""

    sources: Any
    staged: Any
    job: Any


class DecodeChoice:
    """Decides for each batch whether the GPU decodes it.

    Called by the pipeline's thread, or, for :meth:`begin`, while that has nothing to do.

    Args:
        decoder: For the batches that go to the GPU.
        policy: Decides if it is free to; what it learns stays with it. ``None`` if all go to the GPU.
        totals: Returns the device clock's totals; ``None`` without a clock.
        clock: Returns the time in seconds.
        kept: The files that stay on the device, if any do.

    Attributes:
        on_change: Called when other work is to follow for the threads: the policy has changed sides, or asks them in
            between.
        threads_max: How many threads there may be; 0 if their number is fixed.
        has_room: Whether a batch can be passed on to the device without a wait.
    """

    def __init__(
        self,
        decoder: Decoder,
        policy: DecodePolicy | None,
        *,
        totals: Callable[[], Mapping[str, float]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        kept: FilesOnDevice | None = None,
    ) -> None:
        self._decoder = decoder
        self._policy = policy
        self._totals = totals
        self._kept = kept
        self.on_change: Callable[[], None] | None = None
        self.threads_max = 0
        self.has_room: Callable[[], bool] = lambda: True
        self._clock = clock
        self._passed_at = 0.0  # when the batch before was passed on
        self._on_gpu = policy is not None and policy.on_gpu

    def begin(self) -> None:
        """Begin an epoch."""
        self._passed_at = 0.0
        if self._policy is not None:
            self._policy.begin(self._steps)

    def files(self, pixels: torch.Tensor, by_view: Callable[[torch.Tensor], list[torch.Tensor]]) -> StagedFiles | None:
        """Return room for the next batch, or None if the threads decode it.

        Args:
            pixels: The batch's on the host.
            by_view: Returns each view's part of such pixels.
        """
        files = self._files(pixels, by_view)
        if files is None and self._kept is not None:
            self._kept.look()  # it may have to give memory back
        return files

    def _files(self, pixels: torch.Tensor, by_view: Callable[[torch.Tensor], list[torch.Tensor]]) -> StagedFiles | None:
        if not self._decoder.is_ready():
            if self._policy is not None and self._decoder.gave_up is not None:
                self._policy.give_up(self._decoder.gave_up)
            return None
        if self._policy is None:
            return self._decoder.files(pixels, by_view)
        side, probes = self._policy.choose()
        if self._policy.on_gpu and (side == "threads" or probes) and self.on_change is not None:
            self.on_change()
        if side == "threads":
            return None
        if not probes:
            return self._decoder.files(pixels, by_view, side)
        samples = len(by_view(pixels)[0])
        return self._decoder.files(pixels, by_view, side, samples - probed_of(samples))

    def learn(self, index: Any, has_time: Callable[[], bool]) -> None:
        """Note in the index what kernels have found, while there is time.

        Args:
            index: A :class:`_core.JpegIndex`.
            has_time: Whether there still is.
        """
        with contextlib.suppress(MemoryError):  # the batch does not need it
            while (points := self._decoder.to_learn()) is not None and has_time():
                points.learn(index)

    def note(self, batch: Decoded, blocked_s: float, threads: int) -> int:
        """Learn from a batch that was passed on to the device.

        Args:
            batch: The batch.
            blocked_s: Seconds in which the pipeline's thread had nothing to do, or waited for room on the device.
            threads: How many threads there are.

        Returns:
            How many of its images the GPU has decoded.
        """
        if not self._decoder.is_ready():
            self._decoder.prepare()  # not before, as a first batch must not be delayed
            if batch.staged is None and self._decoder.gave_up is None:
                return 0  # the policy learns from what follows
        staged, images = batch.staged, len(batch.sources)
        side: Side = "threads"
        on_gpu = new = probed = 0
        if staged is not None:
            side, on_gpu, new = staged.decoded
            probed = 0 if staged.most_samples is None else images - staged.most_samples
        if (policy := self._policy) is None:
            return on_gpu
        now = self._clock()
        interval_s, self._passed_at = now - self._passed_at if self._passed_at else 0.0, now
        kernel_s = 0.0 if staged is None else staged.decode_s
        work_s, threads = batch.job.work_seconds(), max(threads, self.threads_max)
        policy.note(
            DecodedBatch(side, images, on_gpu, new, interval_s, blocked_s, work_s, threads, kernel_s, probed),
            self._steps,
        )
        if policy.on_gpu != self._on_gpu:
            self._on_gpu = policy.on_gpu
            if self.on_change is not None:
                self.on_change()
        return on_gpu

    def _steps(self) -> tuple[float, float, float]:
        if self._totals is None:
            return 0.0, 0.0, 0.0
        totals = self._totals()
        return totals["device:steps"], totals["device:total_s"], totals["device:idle_s"]
