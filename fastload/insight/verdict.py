"""The words for what limits a training loop, shared by every report that names a bottleneck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

__all__ = ["BOUNDS", "REMEDIES", "Bound", "Verdict"]

Bound: TypeAlias = Literal["storage", "decode", "Python", "collate/IPC", "pin", "link", "GPU"]

BOUNDS: Final[tuple[Bound, ...]] = get_args(Bound)
"""In the order in which a batch meets them."""

REMEDIES: Final[dict[Bound, str]] = {
    "storage": "bring the files nearer (a local disk, or memory), read fewer and larger ones, or add workers: they wait "
    "side by side",
    "decode": "have the native engine decode (print(loader.plan) says what keeps it from that), add workers up to the "
    "cores that there are, or store the images smaller",
    "Python": "replace the slow step of the dataset or its transforms, move it to the GPU, or add workers up to the "
    "cores that there are",
    "collate/IPC": "yield uint8 instead of float32, let the default collate function stack straight into slots "
    "(max_pinned_bytes=None), or use smaller batches",
    "pin": "let batches be written into pinned slots (device='auto', max_pinned_bytes=None) instead of being pinned in "
    "a thread",
    "link": "copy fewer bytes: yield uint8 and cast on the device, and copy from pinned memory beside the kernels "
    "(device_prefetch=1)",
    "GPU": "the loader keeps up; make the model faster: channels_last, bfloat16, torch.compile, or a larger batch",
}
"""What to change, for each bound, where nothing more specific is known."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits the training loop, how that is known, and what to do about it.

    Attributes:
        bound: What the loop is bound by.
        evidence: Numbers, as a clause.
        remedy: What to change.
    """

    bound: Bound
    evidence: str
    remedy: str

    def __post_init__(self) -> None:
        if self.bound not in BOUNDS:
            raise ValueError(f"bound must be one of {', '.join(BOUNDS)}, got {self.bound!r}")

    def __str__(self) -> str:
        return f"{self.bound}-bound: {self.evidence}. {self.remedy[:1].upper()}{self.remedy[1:]}."

    def to_dict(self) -> dict[str, Any]:
        """As JSON writes it."""
        return {"bound": self.bound, "evidence": self.evidence, "remedy": self.remedy}
