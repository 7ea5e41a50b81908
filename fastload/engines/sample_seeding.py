"""``randomness="sample"``: random draws depend on (seed, epoch, index) alone, not on workers or batches.

*Seed* is the base seed that the loader's first iterator draws from the loader's generator. Later iterators draw theirs,
too, so that the generator goes on as with torch, but samples do not depend on them. *Epoch* counts the loader's
iterations: 0 for the first ``iter()``, 1 for the second, whether or not the first was finished. *Index* is the
sampler's; the same index twice in one epoch draws the same numbers twice. A copy of a loader, be it by ``copy``,
``pickle`` or ``FastLoader.wrap``, has a first iterator of its own.
"""

from __future__ import annotations

import operator
import random
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ALL = 0xFFFF_FFFF_FFFF_FFFF
_INT64_MAX = 0x7FFF_FFFF_FFFF_FFFF


def number_of(index: Any) -> int:
    """A sampler's index as an unsigned number of 64 bits.

    Raises:
        TypeError: It is no integer.
    """
    try:
        return operator.index(index) & _ALL
    except TypeError:
        raise TypeError(
            f"randomness='sample' needs a sampler of integers, got {type(index).__name__}; use randomness='worker'"
        ) from None


def seed_for_index(seed: int, epoch: int, index: Any) -> int:
    """The seed of one sample: SplitMix64's steps, one number absorbed after the other, as the core does it.

    63 bits, so that a dataset may return ``torch.initial_seed()``, which a collate function puts into an int64 tensor.

    Raises:
        TypeError: ``index`` is no integer.
    """
    state = 0
    for word in (seed, epoch, number_of(index)):
        state = ((state ^ word) + 0x9E37_79B9_7F4A_7C15) & _ALL
        state = ((state ^ (state >> 30)) * 0xBF58_476D_1CE4_E5B9) & _ALL
        state = ((state ^ (state >> 27)) * 0x94D0_49BB_1331_11EB) & _ALL
        state ^= state >> 31
    return state & _INT64_MAX


class Epochs:
    """What the samples of a loader depend on beside their index, in all of its iterators.

    Attributes:
        seed: The base seed of the loader's first iterator; ``None`` before there is one.
        epoch: The number of the iteration that was begun last.
    """

    def __init__(self) -> None:
        self.seed: int | None = None
        self.epoch = -1
        self._lock = threading.RLock()

    def begin(self, make_iterator: Callable[[], Any]) -> Any:
        """Begin an iteration. Blocks while another thread begins one: the first has to draw the seed before."""
        with self._lock:
            self.epoch += 1
            iterator = make_iterator()
            if self.seed is None:
                self.seed = getattr(getattr(iterator, "_host", iterator), "_base_seed", None)
            return iterator


class SeededByIndex(Dataset[Any]):
    """A dataset before each of whose samples the random states of torch, NumPy and Python are set by its index.

    Samples are asked for one by one, also of a dataset that could fetch whole batches.

    Args:
        dataset: The user's.
        seed: ``None`` is the base seed of the iterator.
        epoch: Its number.
        persists: Whether the same workers run later epochs, too, and so must be told.
    """

    def __init__(self, dataset: Any, seed: int | None, epoch: int, *, persists: bool) -> None:
        self.dataset = dataset
        self._seed = seed
        self._epoch: int | torch.Tensor = epoch
        self._here = False
        if persists:
            with torch.inference_mode(False):  # a tensor made inside of it could not be changed outside
                self._epoch = torch.tensor(epoch).share_memory_()  # type: ignore[no-untyped-call]

    def begin_epoch(self, epoch: int) -> None:
        """To be called before torch's iterator is reset."""
        if isinstance(self._epoch, torch.Tensor):
            self._epoch.fill_(epoch)

    def run_here(self, base_seed: int) -> None:
        """There are no workers: samples are made in this process, whose random states are to stay as they are."""
        self._here = True
        if self._seed is None:
            self._seed = base_seed

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
        _set_states(seed_for_index(seed, int(self._epoch), index))
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


def check_seedable(loader: DataLoader[Any], randomness: str) -> None:
    """Raise ``ValueError`` if samples have no index, or the loader makes its own iterators, with ``"sample"``."""
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
    """``changes`` for a view of ``loader`` whose samples are seeded by their index.

    Args:
        loader: Whose dataset and ``worker_init_fn`` are wrapped.
        changes: What else differs in the view.
        epochs: The seed and the epoch; ``None`` for the first of a loader.
        former: The view whose persistent workers go on.
    """
    seed, epoch = (None, 0) if epochs is None else (epochs.seed, epochs.epoch)
    if former is None:
        persists = loader.num_workers > 0 and loader.persistent_workers
        dataset: Any = SeededByIndex(loader.dataset, seed, epoch, persists=persists)
    else:
        dataset = former.dataset
        dataset.begin_epoch(epoch)
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
