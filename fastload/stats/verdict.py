"""Bottlenecks, their remedies and the thresholds between them, for all reports."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from fastload._result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping

STALL_MIN: Final = 0.1  # least share of waiting at which the loader is the bottleneck
BUSY_MIN: Final = 0.9  # share of the time from which on a busy device is the bottleneck
DECODE_COST_MIN: Final = 0.02  # least share of a step that decoding on the GPU must take to be worth a remedy

MORE_WORKERS: Final = "raise num_workers up to the cores that there are"
"""Part of remedies that is left out where there are as many workers as cores."""

LESS_ON_GPU: Final = (
    "decode less on the GPU: decode='auto' leaves it what threads cannot do, and decode='cpu' nothing; more cores "
    "(num_workers) let threads do more"
)


IDLE_MAX: Final = 0.02
"""Up to this share of the time kernels of a loop that trains on another device run: a display's, say."""

IDLE: Final = (
    "see that the model is on the GPU, and what the loop computes, writes or waits for on the host: fastload profile "
    "shows it"
)
"""Remedy for a loop that hardly uses the GPU."""


class Bottleneck(enum.Enum):
    """What the run waits for. The value is the word before "-bound"."""

    STORAGE = "storage"
    """Reading samples: workers are blocked on a disk, a network or a lock."""
    DECODE = "decode"
    """Decoding and resizing compressed images, in a codec's native code or by the GPU's kernels."""
    PYTHON = "Python"
    """Computing in the dataset's own code and its transforms."""
    EPILOGUE = "epilogue"
    """Normalizing, casting and laying out images on the host, in the pipeline thread."""
    COLLATE = "collate/IPC"
    """Collating samples, or sending a finished batch between processes."""
    PIN = "pin"
    """Copying batches into pinned memory, or from memory that is not pinned."""
    LINK = "link"
    """Copying bytes from host to device."""
    STEP = "step"
    """The loop between two batches, which arrive in time: model or host code."""
    GPU = "GPU"
    """The model: batches arrive in time, and the GPU is busy."""
    SHARED = "shared GPU"
    """Another program's kernels: batches arrive in time, and the GPU is busy, but not with this program alone."""
    GIL = "GIL"
    """Another Python thread of this process, which keeps the loop's from running."""
    LOOP = "loop"
    """The loop's own code on the host: batches arrive in time, yet the GPU idles."""
    LAUNCH = "launch"
    """Launching kernels: they end before the host has launched the next."""
    COMMUNICATION = "communication"
    """Collectives between GPUs beside which nothing is computed."""


REMEDIES: Final[Mapping[Bottleneck, str]] = MappingProxyType(
    {
        Bottleneck.STORAGE: "keep the data on a faster disk or in memory, read fewer and larger files, or raise "
        "num_workers, also beyond the cores, so that more reads wait at the same time",
        Bottleneck.DECODE: "let the native engine decode (print(loader.plan) says what keeps it from that), "
        f"{MORE_WORKERS}, or store smaller images",
        Bottleneck.PYTHON: "move work out of __getitem__ (do it once, beforehand, or on the device), "
        f"{MORE_WORKERS}, or vectorize the code that is named",
        Bottleneck.EPILOGUE: "have it done on a GPU (device='cuda'), or leave RandomErasing to the model: on the host "
        "one thread does it, whatever num_workers is",
        Bottleneck.COLLATE: "put less into a batch's bytes (uint8 instead of float32, tensors instead of Python "
        f"objects), or {MORE_WORKERS}",
        Bottleneck.PIN: "use pinned memory: leave max_pinned_bytes at its default, engine at 'auto', and have the "
        "dataset return tensors, which are sent in pinned slots",
        Bottleneck.LINK: "send fewer bytes: uint8 images, cast and normalized on the device (dtype=, a table), or a "
        "narrower float",
        Bottleneck.STEP: "nothing to gain in the loader: speed up what the loop does between two batches (the model, "
        "metrics, logging), or use fewer workers",
        Bottleneck.GPU: "nothing to gain in the loader, which is as it should be: only a faster model (channels_last, "
        "bfloat16, torch.compile) makes the run faster",
        Bottleneck.SHARED: "use a GPU that no other program uses: nvidia-smi lists the programs",
        Bottleneck.GIL: "move what another thread computes in Python to a process of its own, or into native code that "
        "releases the GIL",
        Bottleneck.LOOP: "launch fewer and larger kernels (a larger batch, torch.compile, CUDA graphs), and let the "
        "host run ahead: no .item(), no prints, no synchronization in every step",
        Bottleneck.LAUNCH: "launch fewer and larger kernels: CUDA graphs (torch.compile(mode='reduce-overhead'), "
        "torch.cuda.graph), torch.compile, fused optimizers, a larger batch",
        Bottleneck.COMMUNICATION: "hide or shrink it: gradients in larger or smaller buckets (bucket_cap_mb), fewer "
        "synchronizations (no_sync, gradient accumulation), a larger batch, gradients in bfloat16",
    }
)


@dataclass(frozen=True, slots=True)
class Verdict(Result):
    """What limits a run.

    Attributes:
        bottleneck: The limit; ``None`` if there is too little data.
        evidence: Parts of a sentence, the strongest first.
        remedy: Change to make, as part of a sentence.
    """

    bottleneck: Bottleneck | None
    evidence: tuple[str, ...]
    remedy: str

    @classmethod
    def of(cls, bottleneck: Bottleneck, *evidence: str, remedy: str | None = None) -> Verdict:
        """Make a verdict with the bottleneck's usual remedy unless another is given."""
        return cls(bottleneck, evidence, REMEDIES[bottleneck] if remedy is None else remedy)

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Verdict:
        """Make the verdict that ``to_dict()`` converted."""
        bottleneck = None if said["bottleneck"] is None else Bottleneck(said["bottleneck"])
        return cls(bottleneck, tuple(said["evidence"]), said["remedy"])

    @property
    def name(self) -> str:
        """The verdict's name, such as ``"storage-bound"``."""
        return "undecided" if self.bottleneck is None else f"{self.bottleneck.value}-bound"

    def __str__(self) -> str:
        name = self.name[0].upper() + self.name[1:]
        return f"{name}: {', '.join(self.evidence)}; {self.remedy}."


def limit_outside_loader(stall: float, busy: float | None, busy_least: float = 0.0) -> Bottleneck | None:
    """Return the limit if it is the loop or the GPU, not the loader.

    Args:
        stall: Share of the time in which the GPU, or a loop without one, lacked a batch.
        busy: Share in which kernels ran on the GPU; ``None`` if unknown.
        busy_least: Lower bound of that share from another source.
    """
    leaves_idle = busy is not None and busy_least < BUSY_MIN and stall < (1.0 - busy) / 2
    if stall >= STALL_MIN and not leaves_idle:
        return None
    if busy_least >= BUSY_MIN:
        return Bottleneck.GPU
    if busy is None:
        return Bottleneck.STEP
    return Bottleneck.GPU if busy + stall >= BUSY_MIN else Bottleneck.LOOP
