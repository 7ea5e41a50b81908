"""Two loaders side by side: are their batches the same, and which is sooner?"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import torch

from fastload.measurement.record import Spread, interleave

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.data import DataLoader


def count_same(ours: DataLoader[Any], theirs: DataLoader[Any], seed: int = 0) -> int:
    """Load an epoch with both from the same seed; compare every batch bit for bit.

    Args:
        ours: Its batches may be on any device and in any memory format.
        theirs: The loader to agree with; both need workers, which draw from the seed by themselves.
        seed: Torch's global seed at the start of each epoch.

    Returns:
        The number of batches, all of them the same.

    Raises:
        ValueError: A batch differs; the message says which and in what.
    """
    torch.manual_seed(seed)
    our_batches = iter(ours)
    torch.manual_seed(seed)
    their_batches = iter(theirs)
    count = 0
    for count, (our_batch, their_batch) in enumerate(zip(our_batches, their_batches, strict=True), start=1):
        for name, our, their in zip(("images", "labels"), our_batch, their_batch, strict=True):
            our_bits, their_bits = our.cpu().contiguous(), their.cpu().contiguous()
            if our_bits.dtype != their_bits.dtype or our_bits.shape != their_bits.shape:
                raise ValueError(f"the {name} of batch {count - 1} must be {_kind(their)}, got {_kind(our)}")
            if not torch.equal(our_bits.view(torch.uint8), their_bits.view(torch.uint8)):
                raise ValueError(f"the {name} of batch {count - 1} must be the same bit for bit, but they differ")
    return count


def race(
    loaders: dict[str, DataLoader[Any]],
    images: int,
    repeats: int,
    receive: dict[str, Callable[[Any], object]] | None = None,
) -> dict[str, Spread]:
    """Images/s of whole epochs, the loaders in turn.

    The loaders should keep their workers (``persistent_workers``): each runs an epoch before the first that counts, and
    while one of them runs, the workers of the others sleep.

    Args:
        loaders: Name to loader.
        images: Images per epoch.
        repeats: Epochs per loader.
        receive: What is done with each batch of a loader, by its name; nothing by default.
    """

    def epoch(name: str) -> float:
        use = (receive or {}).get(name)
        start = time.perf_counter()
        for batch in loaders[name]:
            if use is not None:
                use(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return images / (time.perf_counter() - start)

    contenders = {name: functools.partial(epoch, name) for name in loaders}
    for contender in contenders.values():
        contender()
    return interleave(contenders, repeats)


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
