"""``randomness="sample"``: random draws depend on (seed, epoch, index) alone, not on workers or batches.

*Seed* is the base seed that the loader's first iterator draws from the loader's generator. Later iterators also draw
one, so that the generator advances as with torch, but samples do not depend on it. *Epoch* counts the loader's
iterations: 0 for the first ``iter()``, 1 for the second, whether or not the first was finished. *Index* is the
sampler's; an index that occurs twice in an epoch draws the same numbers twice. A copy of a loader, made by ``copy``,
``pickle`` or ``FastLoader.wrap``, has its own first iterator.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from fastload.pipeline.index_seeds import random_states_kept, seed_for_index, set_states

if TYPE_CHECKING:
    from collections.abc import Callable


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
        persists: Whether the same workers run later epochs and so must learn their numbers.
    """

    def __init__(self, dataset: Any, seed: int | None, epoch: int, *, persists: bool) -> None:
        self.dataset = dataset
        self._seed = seed
        self._epoch: int | torch.Tensor = epoch
        self._here = False
        if persists:
            with torch.inference_mode(False):  # an inference tensor could not be changed outside the mode
                self._epoch = torch.tensor(epoch).share_memory_()  # type: ignore[no-untyped-call]

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch. Call it before torch's iterator is reset."""
        if isinstance(self._epoch, torch.Tensor):
            self._epoch.fill_(epoch)

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
    if type(loader)._get_iterator is not DataLoader._get_iterator:
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
        former: The previous view, if its persistent workers continue.
    """
    seed, epoch = (None, 0) if epochs is None else (epochs.seed, epochs.epoch)
    if former is None:
        persists = loader.num_workers > 0 and loader.persistent_workers
        dataset: Any = SeededByIndex(loader.dataset, seed, epoch, persists=persists)
    else:
        dataset = former.dataset
        dataset.begin_epoch(epoch)
    return {**changes, "dataset": dataset}
