"""What native batches took, by stage."""

from __future__ import annotations

from dataclasses import dataclass

from fastload.stats.stats import Totals


@dataclass(slots=True)
class StageCounts:
    """Counts of batches and images, and the seconds that they took."""

    work: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)  # see _core.Pool.work_times
    batches: int = 0  # number of decoded batches
    images: int = 0  # of those
    gpu_images: int = 0  # how many of those a GPU decoded
    kept_images: int = 0  # how many of these were of files in its memory
    python_batches: int = 0  # number of batches with samples made in Python
    python_images: int = 0  # number of such samples
    python_s: float = 0.0  # of making them
    collate_s: float = 0.0  # of collating targets
    finish_s: float = 0.0  # of making images of pixels
    has_epilogue: bool = True  # whether that is a stage of its own

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
                "kept_images": float(self.kept_images),
                "thread_images": float(max(0, self.images - self.gpu_images - self.python_images)),
                "made:sampled_s": seconds,
                "made:busy_s": busy,
                "made:queued_s": max(0.0, seconds - busy - (read - read_busy)),
                "made:decode_s": busy,
            }
        )
