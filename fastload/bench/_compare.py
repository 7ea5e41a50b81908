"""Two loaders side by side: are their batches the same, and which is faster?"""

from __future__ import annotations

import functools
import math
import time
from typing import TYPE_CHECKING, Any

import torch

from fastload._compare import difference
from fastload.measurement.record import Spread, interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def count_same(ours: Iterable[Any], theirs: Iterable[Any], seed: int = 0) -> int:
    """Load an epoch with both from the same seed; compare every batch bit for bit.

    Args:
        ours: Loader whose batches may be on any device and in any memory format.
        theirs: Loader to agree with; both need workers, which draw from the seed by themselves.
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
    for number, (our, their) in enumerate(zip(our_batches, their_batches, strict=True)):
        if (found := difference(their, our)) is not None:
            raise ValueError(f"batches must be the same bit for bit, but batch {number} differs: {found}")
        count = number + 1
    return count


def race(
    loaders: Mapping[str, Iterable[Any]],
    images: int | Mapping[str, int],
    repeats: int,
    receive: Mapping[str, Callable[[Any], object]] | None = None,
) -> dict[str, Spread]:
    """Images/s of whole epochs, the loaders in turn.

    The loaders should keep their workers (``persistent_workers``): each runs an epoch before the first that counts, and
    while one of them runs, the workers of the others sleep. ``images`` is the number of an epoch, or of each loader's.
    ``receive`` has functions that take each batch of a loader.
    """

    def epoch(name: str) -> float:
        use = (receive or {}).get(name)
        start = time.perf_counter()
        for batch in loaders[name]:
            if use is not None:
                use(batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        count = images if isinstance(images, int) else images[name]
        return count / (time.perf_counter() - start)

    contenders = {name: functools.partial(epoch, name) for name in loaders}
    for contender in contenders.values():
        contender()
    return interleave(contenders, repeats)


def lengthen(
    loaders: Mapping[str, Iterable[Any]],
    orders: Mapping[str, list[int]],
    turn_seconds: float,
    receive: Mapping[str, Callable[[Any], object]] | None = None,
) -> None:
    """Repeat the indices of each loader's epoch, so that one takes ``turn_seconds``, about."""
    for name, order in orders.items():
        epochs_per_s = race({name: loaders[name]}, 1, 1, receive)[name].median
        order *= math.ceil(turn_seconds * epochs_per_s)
