"""Start an iterator within an epoch, with generators, samplers and workers as they were.

The sampler is not asked for its place: from the generators of the epoch's start it draws the same indices again, and
no sample is read. The indices of the last batch handed over are compared, so a sampler that draws others is an error.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import itertools
import zlib
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from fastload.engines.redistribution import batches_left
from fastload.stats.shared_counters import STATE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.stats.shared_counters import SharedCounters

_WORDS: Final = slice(24, 24 + 624 * 8)  # of torch's state: 32-bit words, stored as 64
_LENGTHS: Final = (5056, STATE_BYTES)  # of torch's state, and with Python's and NumPy's


def digest_of(indices: Any) -> int:
    """Return a checksum of a batch's indices; 0 if they are not integers."""
    try:
        numbers = array("q", indices if isinstance(indices, list | tuple) else [indices])
    except (TypeError, OverflowError):
        return 0
    return zlib.crc32(numbers.tobytes()) + 1


def keep_state(shared: SharedCounters, worker: int, number: int, indices: Any) -> None:
    """Keep the states of a worker's generators after a fetch."""
    with contextlib.suppress(
        Exception
    ):  # no core, or NumPy's generator may be of another kind; the state is then absent
        from fastload.engines.random_states import state_now

        shared.keep(worker, number, digest_of(indices), state_now(others=True))


def pack(state: bytes) -> torch.Tensor:
    """Convert a state of the generators to a tensor of half the size."""
    words = np.frombuffer(state[_WORDS], np.uint64)
    if words.max() >> 32:
        return torch.frombuffer(bytearray(state), dtype=torch.uint8)
    short = state[: _WORDS.start] + words.astype(np.uint32).tobytes() + state[_WORDS.stop :]
    return torch.frombuffer(bytearray(short), dtype=torch.uint8)


def unpack(packed: torch.Tensor) -> bytes:
    """Convert what :func:`pack` returned to the state.

    Raises:
        ValueError: It has another length.
    """
    data = packed.cpu().numpy().tobytes()
    if len(data) in _LENGTHS:
        return data
    stop = _WORDS.start + 624 * 4
    if len(data) + 624 * 4 not in _LENGTHS:
        raise ValueError(f"a generator's state must have {_LENGTHS} bytes, or 2496 fewer, got {len(data)}")
    words = np.frombuffer(data[_WORDS.start : stop], np.uint32).astype(np.uint64)
    return data[: _WORDS.start] + words.tobytes() + data[stop:]


def _samplers_of(loader: Any) -> list[Any]:
    """The samplers that a loader draws indices from, outermost first."""
    samplers: list[Any] = []
    for sampler in (loader.batch_sampler, loader.sampler):
        while sampler is not None and not any(sampler is known for known in samplers):
            samplers.append(sampler)
            sampler = vars(sampler).get("sampler") if hasattr(sampler, "__dict__") else None
    return samplers


@dataclass
class Sources:
    """All that a loader's batches depend on in the main process, at one time.

    Attributes:
        main: States of the global generators.
        generators: Those of the loader's and its samplers' own generators.
        epochs: The samplers' ``epoch``, if they have one.
        samplers: What the samplers' ``state_dict()`` returned, if they have one.
        dataset: What the dataset's returned, if it has one and is read in this process.
    """

    main: bytes
    generators: list[torch.Tensor]
    epochs: list[int | None] = field(default_factory=list)
    samplers: list[Any] = field(default_factory=list)
    dataset: Any = None

    @classmethod
    def read(cls, loader: Any, *, samplers: bool) -> Sources:
        """Read the present states; those of samplers only if asked for."""
        from fastload.engines.random_states import state_now

        own = [generator.get_state() for generator in _generators_of(loader)]
        sources = cls(state_now(others=True), own)
        if samplers:
            sources.epochs = epochs_of_samplers(loader)
            sources.samplers = [_asked(sampler) for sampler in _samplers_of(loader)]
        if not loader.num_workers:
            sources.dataset = _asked(loader.dataset)
        return sources

    def write(self, loader: Any, *, samplers: bool = True, dataset: bool = True) -> None:
        """Set what :meth:`read` has read."""
        from fastload.engines.random_states import set_state

        set_state(self.main)
        for generator, state in zip(_generators_of(loader), self.generators, strict=True):
            generator.set_state(state)
        self.write_epochs(loader)
        for sampler, asked in zip(_samplers_of(loader), self.samplers, strict=False):
            if asked is not None and samplers:
                sampler.load_state_dict(copy.deepcopy(asked))
        if dataset and self.dataset is not None:
            loader.dataset.load_state_dict(copy.deepcopy(self.dataset))

    def write_epochs(self, loader: Any) -> None:
        """Set the samplers' ``epoch``."""
        for sampler, epoch in zip(_samplers_of(loader), self.epochs, strict=False):
            if epoch is not None and sampler.epoch != epoch:  # it may be a property without a setter
                sampler.epoch = epoch

    def begin(self, loader: Any) -> None:
        """Set what :meth:`read` has read, so that samplers and dataset begin an epoch.

        One whose state is its place, as torchdata's, is then at the end of the epoch before: it goes on there, without
        anything to give, and is at the beginning after that.
        """
        self.write(loader)
        samplers = any(asked is not None for asked in self.samplers) and not _at_end(loader._index_sampler)
        dataset = self.dataset is not None and not (
            isinstance(loader.dataset, IterableDataset) and _at_end(loader.dataset)
        )
        self.write(loader, samplers=samplers, dataset=dataset)

    def packed(self) -> dict[str, Any]:
        """Return plain data that ``torch.load`` takes with ``weights_only=True``."""
        asked = {"epochs": self.epochs, "samplers": self.samplers, "dataset": self.dataset}
        return {"main": pack(self.main), "generators": self.generators, **asked}

    @classmethod
    def unpacked(cls, loader: Any, data: dict[str, Any]) -> Sources:
        """Make it of :meth:`packed`.

        Raises:
            ValueError: The data is damaged, or of a loader with other generators.
        """
        own = [state.cpu() for state in data["generators"]]
        if len(own) != len(_generators_of(loader)):
            raise ValueError(
                f"the loader and its samplers must have as many generators of their own as when the state was saved, "
                f"{len(own)}, got {len(_generators_of(loader))}"
            )
        for state in own:
            torch.Generator().set_state(state)
        sources = cls(unpack(data["main"]), own, data["epochs"], data["samplers"], data["dataset"])
        sources._check(loader)
        return sources

    def _check(self, loader: Any) -> None:
        """Raise a ValueError unless :meth:`write` can set all of it."""
        samplers = _samplers_of(loader)
        for name in ("epochs", "samplers"):
            listed = getattr(self, name)
            if not isinstance(listed, list) or len(listed) not in (0, len(samplers)):
                raise ValueError(f"the state is of other samplers: {name!r} must have {len(samplers)} entries")
        if not all(epoch is None or type(epoch) is int for epoch in self.epochs):
            raise ValueError("the state is damaged: a sampler's epoch must be an integer")
        for source, asked in [*zip(samplers, self.samplers, strict=False), (loader.dataset, self.dataset)]:
            if asked is not None and not has_state(source):
                raise ValueError(f"the state has one of a {type(source).__name__}, which has no load_state_dict here")


def epochs_of_samplers(loader: Any) -> list[int | None]:
    """Return the ``epoch`` of each of a loader's samplers; ``None`` for one that has none."""
    epochs = (getattr(sampler, "epoch", None) for sampler in _samplers_of(loader))
    return [epoch if type(epoch) is int else None for epoch in epochs]


def _at_end(source: Any) -> bool:
    """Whether an iterable gives nothing; an error counts as something."""
    with contextlib.suppress(Exception):
        for _ in source:
            return False
        return True
    return False


def has_state(source: Any) -> bool:
    """Whether a sampler or dataset can save and restore its own state."""
    # Accelerate's unpickled loaders first have a class for a dataset.
    return not isinstance(source, type) and hasattr(source, "state_dict") and hasattr(source, "load_state_dict")


def _asked(source: Any) -> Any:
    return copy.deepcopy(source.state_dict()) if has_state(source) else None


def _generators_of(loader: Any) -> list[torch.Generator]:
    found: list[torch.Generator] = []
    for owner in (loader, *_samplers_of(loader)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and not any(generator is known for known in found):
            found.append(generator)
    return found


@dataclass
class Resumption:
    """What a new iterator needs to go on within an epoch.

    Attributes:
        loader: The loader.
        skip: Batches handed over in the epoch.
        base_seed: Of the workers; ``None`` keeps the iterator's own.
        workers: States of the workers' generators; ``None`` for those that have made no batch yet.
        num_workers: Number of workers; ``None`` if any number is right.
        again: What the epoch started from, if its workers had made another epoch before.
        indices: Digest of the last batch handed over; 0 if unknown.
        dealt: How the epoch was dealt to other processes before (:mod:`fastload.engines.redistribution`).
    """

    loader: Any
    skip: int
    base_seed: int | None
    workers: list[bytes | None] | None
    num_workers: int | None
    again: Sources | None
    indices: int
    dealt: list[dict[str, Any]] = field(default_factory=list)

    def enter(self, iterator: Any) -> None:
        """Draw the indices of the batches handed over, before the iterator draws its own first.

        Raises:
            RuntimeError: The number of workers or the order of the samples has changed.
        """
        if self.num_workers is not None and iterator._num_workers != self.num_workers:
            raise RuntimeError(other_workers(self.num_workers, iterator._num_workers))
        if self.again is not None:
            self.again.begin(self.loader)
            iterator._sampler_iter = iter(iterator._index_sampler)
        if self.dealt:
            iterator._sampler_iter = iter(batches_left(self.loader, self.dealt))
        last = collections.deque(itertools.islice(iterator._sampler_iter, self.skip), maxlen=1)
        digest = digest_of(_listed(last[0])) if last else 0
        if self.skip and (not last or (self.indices and digest != self.indices)):
            raise RuntimeError(
                "load_state_dict needs a sampler that draws the same indices again from the same generators and "
                f"epoch, but batch {self.skip - 1} of this epoch has others than when the state was saved; "
                "give the sampler a torch.Generator as its attribute 'generator', or state_dict() and load_state_dict()"
            )


def other_workers(saved: int, now: int) -> str:
    """Say that the number of workers has changed, and the remedy."""
    return (
        f"num_workers must be {saved}, as when the state was saved, got {now}: each worker has random numbers of its "
        f"own; use num_workers={saved}, or randomness='sample' from the start, which does not depend on workers"
    )


def _listed(indices: Any) -> Any:
    return indices if isinstance(indices, int) else list(indices)


class ResumedIterator(_MultiProcessingDataLoaderIter):
    """Torch's iterator over worker processes, from within an epoch on."""

    def __init__(self, loader: Any, resumption: Resumption) -> None:
        self._resumption: Resumption | None = resumption
        super().__init__(loader)

    @property
    def _base_seed(self) -> int:
        return self._seed

    @_base_seed.setter
    def _base_seed(self, drawn: int) -> None:
        own = None if self._resumption is None else self._resumption.base_seed
        self._seed = drawn if own is None else own

    def _next_index(self) -> Any:
        resumption, self._resumption = self._resumption, None
        if resumption is not None:
            resumption.enter(self)
            for _ in range(resumption.skip % self._num_workers):  # the next batch is this worker's
                next(self._worker_queue_idx_cycle)
        return super()._next_index()  # type: ignore[no-untyped-call]


class StartsFrom:
    """A worker's first call: runs the user's ``worker_init_fn``, then sets the generators."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None, states: list[bytes | None]) -> None:
        self.worker_init_fn = worker_init_fn
        self.states = states

    def __call__(self, worker_id: int) -> None:  # noqa: D102
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)
        if (state := self.states[worker_id]) is not None:
            from fastload.engines.random_states import set_state

            set_state(state)


def start_resumed(view: Any, resumption: Resumption | None, make: Callable[[], Any]) -> Any:
    """Return ``make()``, which iterates ``view``, from where the resumption says."""
    if resumption is None:
        return make()
    if not view.num_workers:
        iterator = make()
        resumption.enter(iterator)
        return iterator
    first_call = view.worker_init_fn
    if resumption.workers is not None:
        vars(view)["worker_init_fn"] = StartsFrom(first_call, resumption.workers)
    vars(view)["_get_iterator"] = lambda: ResumedIterator(view, resumption)
    try:
        iterator = make()
        iterator._worker_init_fn = first_call
        return iterator
    finally:
        del vars(view)["_get_iterator"]
        vars(view)["worker_init_fn"] = first_call
