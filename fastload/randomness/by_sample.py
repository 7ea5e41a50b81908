"""``randomness="sample"``: random draws depend on (seed, epoch, index) alone, not on workers or batches.

*Seed* is the base seed that the loader's first iterator draws from the loader's generator. Later iterators also draw
one, so that the generator advances as with torch, but samples do not depend on it. *Epoch* counts the loader's
iterations: 0 for the first ``iter()``, 1 for the second, whether or not the first was finished. *Index* is the
sampler's; an index that occurs twice in an epoch draws the same numbers twice. A copy of a loader, made by ``copy``,
``pickle`` or ``FastLoader.wrap``, has its own first iterator.
"""

from __future__ import annotations

import operator
import random
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from fastload.options import has_own_iterator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ALL: Final = 0xFFFF_FFFF_FFFF_FFFF
_INT64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF


class Epochs:
    """Seed and epoch of a loader, shared by all of its iterators.

    Attributes:
        seed: The base seed of the loader's first iterator; ``None`` before there is one.
        epoch: Number of the last iteration begun.
    """

    def __init__(self) -> None:
        self.seed: int | None = None
        self.epoch = -1
        self._lock = threading.RLock()

    def begin(self, make_iterator: Callable[[], Any]) -> Any:
        """Begin an iteration. Blocks while another thread begins one, since the first draws the seed."""
        with self._lock:
            self.epoch += 1
            try:
                iterator = make_iterator()
            except BaseException:
                self.epoch -= 1  # no iteration has begun
                raise
            if self.seed is None:
                self.seed = getattr(iterator, "_base_seed", None)
            return iterator


class SeededByIndex(Dataset[Any]):
    """Seeds torch, NumPy and Python by the index before each sample of a dataset.

    Samples are read one by one, even if the dataset could fetch whole batches.

    Args:
        dataset: The user's.
        seed: ``None`` is the base seed of the iterator.
        epoch: Number of the epoch.
        in_workers: Whether workers make samples, and must learn the numbers of later epochs.
    """

    def __init__(self, dataset: Any, seed: int | None, epoch: int, *, in_workers: bool) -> None:
        self.dataset = dataset
        self._seed = seed
        self._epoch: int | torch.Tensor = epoch
        self._here = False
        if in_workers:
            with torch.inference_mode(False):  # an inference tensor could not be changed outside the mode
                self._epoch = torch.tensor(epoch).share_memory_()  # type: ignore[no-untyped-call]

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch. Call it before torch's iterator is reset."""
        if isinstance(self._epoch, torch.Tensor):
            self._epoch.fill_(epoch)
        else:
            self._epoch = epoch

    def run_here(self, base_seed: int) -> None:
        """Make samples in this process, without workers, and preserve its random states."""
        self._here = True
        if self._seed is None:
            self._seed = base_seed

    def seed_here(self, index: Any) -> int:
        """A sample's seed, after :meth:`run_here`."""
        return seed_for_index(self._seed or 0, int(self._epoch), index)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        if self._here:
            with random_states_kept():
                return self._seeded_sample(self._seed, index)
        worker = get_worker_info()
        if worker is None:
            raise RuntimeError("a sample was asked for before its iterator had a base seed")
        return self._seeded_sample(worker.seed - worker.id if self._seed is None else self._seed, index)

    def _seeded_sample(self, seed: Any, index: Any) -> Any:
        set_states(seed_for_index(seed, int(self._epoch), index))
        return self.dataset[index]


def show_own_dataset() -> None:
    """Show the user's dataset in this worker's ``get_worker_info()``."""
    worker = get_worker_info()
    if worker is not None and isinstance(worker.dataset, SeededByIndex):
        object.__setattr__(worker, "dataset", worker.dataset.dataset)  # a normal assignment raises


def check_seedable(loader: DataLoader[Any], randomness: str) -> None:
    """Raise ``ValueError`` if a loader cannot use ``randomness="sample"``.

    It needs samples with an index and torch's own iterators.
    """
    if randomness != "sample":
        return
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            f"randomness='sample' needs a dataset with indices, got the iterable {type(loader.dataset).__name__}; "
            "use randomness='worker'"
        )
    if has_own_iterator(loader):
        raise ValueError(
            f"randomness='sample' needs torch's iterators, but {type(loader).__name__} has a _get_iterator"
        )


def seeded(
    loader: DataLoader[Any],
    changes: dict[str, Any],
    epochs: Epochs | None = None,
    former: DataLoader[Any] | None = None,
) -> dict[str, Any]:
    """Extend ``changes`` for a view of ``loader`` that seeds samples by their index.

    Args:
        loader: Its dataset is wrapped.
        changes: Other changes of the view.
        epochs: Seed and epoch; ``None`` for a loader's first epoch.
        former: The previous view, if its iterator goes on.
    """
    seed, epoch = (None, 0) if epochs is None else (epochs.seed, epochs.epoch)
    if former is None:
        dataset: Any = SeededByIndex(loader.dataset, seed, epoch, in_workers=loader.num_workers > 0)
    else:
        dataset = former.dataset
        dataset.begin_epoch(epoch)
    return {**changes, "dataset": dataset}


def number_of(index: Any) -> int:
    """Convert a sampler's index to an unsigned 64-bit number.

    Raises:
        TypeError: The index is not an integer.
    """
    try:
        return operator.index(index) & _ALL
    except TypeError:
        raise TypeError(
            f"randomness='sample' needs a sampler of integers, got {type(index).__name__}; use randomness='worker'"
        ) from None


def seed_for_index(seed: int, epoch: int, index: Any) -> int:
    """Hash seed, epoch and index with SplitMix64's steps, as the core does.

    The result has 63 bits: a dataset may return ``torch.initial_seed()``, which collating puts into an int64 tensor.

    Raises:
        TypeError: ``index`` is not an integer.
    """
    state = 0
    for word in (seed, epoch, number_of(index)):
        state = ((state ^ word) + 0x9E37_79B9_7F4A_7C15) & _ALL
        state = ((state ^ (state >> 30)) * 0xBF58_476D_1CE4_E5B9) & _ALL
        state = ((state ^ (state >> 27)) * 0x94D0_49BB_1331_11EB) & _ALL
        state ^= state >> 31
    return state & _INT64_MAX


def set_states(seed: int) -> None:
    """Seed the global generators of torch, NumPy and Python."""
    # Not torch.manual_seed, which seeds the accelerators too: in a worker, which has none, those calls would pile up.
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    random.seed(seed)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the global random states of torch, NumPy and Python afterwards."""
    python, numpy, kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(kept)
