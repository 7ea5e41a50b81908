"""``rng="index"``: what a sample draws at random depends on (seed, epoch, index) alone, not on workers or batches.

*Seed* is the base seed that torch's iterator draws from the loader's generator, as ever. *Epoch* counts the epochs of
one iterator: 0, and with persistent workers, which draw no new base seed, 1, 2 and so on. *Index* is the sampler's; the
same index twice in one epoch draws the same numbers twice.
"""

from __future__ import annotations

import operator
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ALL = 0xFFFF_FFFF_FFFF_FFFF


def number_of(index: Any) -> int:
    """A sampler's index as an unsigned number of 64 bits.

    Raises:
        TypeError: It is no integer.
    """
    try:
        return operator.index(index) & _ALL
    except TypeError:
        raise TypeError(
            f"rng='index' needs a sampler of integers, got {type(index).__name__}; use rng='torch'"
        ) from None


def seed_for_index(seed: int, epoch: int, index: Any) -> int:
    """The seed of one sample, 64 bits: SplitMix64's steps, one number absorbed after the other, as the core does it.

    Raises:
        TypeError: ``index`` is no integer.
    """
    state = 0
    for word in (seed, epoch, number_of(index)):
        state = ((state ^ word) + 0x9E37_79B9_7F4A_7C15) & _ALL
        state = ((state ^ (state >> 30)) * 0xBF58_476D_1CE4_E5B9) & _ALL
        state = ((state ^ (state >> 27)) * 0x94D0_49BB_1331_11EB) & _ALL
        state ^= state >> 31
    return state


class SeededByIndex(Dataset[Any]):
    """A dataset before each of whose samples the random states of torch, NumPy and Python are set by its index.

    Samples are asked for one by one, also of a dataset that could fetch whole batches.

    Args:
        dataset: The user's.
        epochs: Whether several epochs are run with the same workers, so that these must know which one it is.
    """

    def __init__(self, dataset: Any, *, epochs: bool) -> None:
        self.dataset = dataset
        self._epoch: torch.Tensor | None = None
        if epochs:
            self._epoch = torch.full((), -1)
            self._epoch.share_memory_()  # type: ignore[no-untyped-call]
        self._base_seed: int | None = None

    def begin_epoch(self) -> None:
        """To be called before torch's iterator is made or reset."""
        if self._epoch is not None:
            self._epoch += 1

    def run_here(self, base_seed: int) -> None:
        """There are no workers: samples are made in this process, whose random states are to stay as they are."""
        self._base_seed = base_seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        if self._base_seed is not None:
            with random_states_kept():
                _set_states(seed_for_index(self._base_seed, 0, index))
                return self.dataset[index]
        worker = get_worker_info()
        if worker is None:
            raise RuntimeError("a sample was asked for before its iterator had a base seed")
        epoch = 0 if self._epoch is None else int(self._epoch)
        _set_states(seed_for_index(worker.seed - worker.id, epoch, index))
        return self.dataset[index]


class OwnDataset:
    """A worker's first call: ``get_worker_info()`` shows the user's dataset; then runs their ``worker_init_fn``."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self.worker_init_fn = worker_init_fn

    def __call__(self, worker_id: int) -> None:  # noqa: D102
        worker = get_worker_info()
        if worker is not None and isinstance(worker.dataset, SeededByIndex):
            object.__setattr__(worker, "dataset", worker.dataset.dataset)  # read-only else
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


def check_seedable(loader: DataLoader[Any], rng: str) -> None:
    """With ``rng="index"``, raise ``ValueError`` if samples have no index, or an iterator of its own makes them."""
    if rng != "index":
        return
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            f"rng='index' needs a dataset with indices, got the iterable {type(loader.dataset).__name__}; "
            "use rng='torch'"
        )
    if type(loader)._get_iterator is not DataLoader._get_iterator:
        raise ValueError(f"rng='index' needs torch's iterators, but {type(loader).__name__} has a _get_iterator")


def seeded(loader: DataLoader[Any], changes: dict[str, Any], former: DataLoader[Any] | None = None) -> dict[str, Any]:
    """``changes`` for a view of ``loader`` whose samples are seeded by their index.

    Args:
        loader: Whose dataset and ``worker_init_fn`` are wrapped.
        changes: What else differs in the view.
        former: The view whose persistent workers go on.
    """
    persists = loader.num_workers > 0 and loader.persistent_workers
    dataset = SeededByIndex(loader.dataset, epochs=persists) if former is None else former.dataset
    first_call = changes.get("worker_init_fn", loader.worker_init_fn)
    wrapped = {} if loader.num_workers == 0 else {"worker_init_fn": OwnDataset(first_call)}
    return {**changes, "dataset": dataset, **wrapped}


def _set_states(seed: int) -> None:
    # Not torch.manual_seed, which seeds the accelerators too: a worker has none, and there the calls would pile up.
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    random.seed(seed)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """The global random states of torch, NumPy and Python are afterwards as they were."""
    python, numpy, kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(kept)
