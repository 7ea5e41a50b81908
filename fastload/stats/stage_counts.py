"""What native batches took, by stage."""

from __future__ import annotations

from dataclasses import dataclass

from fastload.stats.stats import Totals


@dataclass(slots=True)
class StageCounts:
    """Counts of batches and images, and the seconds that they took.

    Attributes:
        work: See ``_core.Pool.work_times``.
        batches: Number of decoded batches.
        images: Of those.
        gpu_images: How many of those a GPU decoded.
        python_batches: Number of batches with samples made in Python.
        python_images: Number of such samples.
        python_s: Of making them.
        collate_s: Of collating targets.
        finish_s: Of making images of pixels.
        has_epilogue: Whether that is a stage of its own.
    """

    work: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    batches: int = 0
    images: int = 0
    gpu_images: int = 0
    python_batches: int = 0
    python_images: int = 0
    python_s: float = 0.0
    collate_s: float = 0.0
    finish_s: float = 0.0
    has_epilogue: bool = True

    def totals(self) -> Totals:
        """Time spent by stage."""
        seconds, busy, read, read_busy = self.work
        spent = {"fetch": read, "decode": seconds - read, "collate": self.collate_s}
        if self.has_epilogue:
            spent["epilogue"] = self.finish_s
        counts = dict.fromkeys(spent, float(self.batches))
        if self.python_images:
            spent["python"], counts["python"] = self.python_s, float(self.python_batches)
        return Totals(
            {
                **{f"stage:{name}:count": count for name, count in counts.items()},
                **{f"stage:{name}:s": took for name, took in spent.items()},
                "python_images": float(self.python_images),
                "gpu_images": float(self.gpu_images),
                "thread_images": float(max(0, self.images - self.gpu_images - self.python_images)),
                "made:sampled_s": seconds,
                "made:busy_s": busy,
                "made:queued_s": max(0.0, seconds - busy - (read - read_busy)),
                "made:decode_s": busy,
            }
        )
