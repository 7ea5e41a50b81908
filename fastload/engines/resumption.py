"""Start an iterator within an epoch, with generators, samplers and workers as they were.

The sampler is not asked for its place: from the generators of the epoch's start it draws the same indices again, and
no sample is read. The indices of the last batch handed over are compared, so a sampler that draws others is an error.
"""

from __future__ import annotations

import copy
import itertools
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from torch.utils.data import Sampler

from fastload.engines.packed_states import Texts, digest_of, unpack
from fastload.engines.worker_progress import NO_STATE, DatasetState, WorkerState, is_at_end
from fastload.options import has_state


def _samplers_of(loader: Any) -> list[Any]:
    """The samplers that a loader draws indices from, outermost first."""
    samplers: list[Any] = []
    for sampler in (loader.batch_sampler, loader.sampler):
        _add_samplers(samplers, sampler)
    return samplers


def _add_samplers(samplers: list[Any], sampler: Any) -> None:
    if sampler is None or any(sampler is known for known in samplers):
        return
    samplers.append(sampler)
    for name, value in getattr(sampler, "__dict__", {}).items():
        inner = value if isinstance(value, list | tuple) and isinstance(next(iter(value), None), Sampler) else [value]
        for one in inner:
            if name in ("sampler", "batch_sampler") or isinstance(one, Sampler):
                _add_samplers(samplers, one)


@dataclass
class Sources:
    """All that a loader's batches depend on in the main process, at one time.

    Attributes:
        main: States of the global generators.
        generators: Those of the loader's and its samplers' own generators, by name.
        epochs: The samplers' ``epoch``, if they have one.
        samplers: What the samplers' ``state_dict()`` returned, if they have one.
        dataset: The state of this process's dataset: as it is read here, or as worker processes begin with it.
    """

    main: bytes
    generators: dict[str, bytes]
    epochs: list[int | None] = field(default_factory=list)
    samplers: list[Any] = field(default_factory=list)
    dataset: DatasetState = NO_STATE

    @classmethod
    def read(cls, loader: Any, *, samplers: bool, dataset: DatasetState = NO_STATE) -> Sources:
        """Read the present states; those of samplers only if asked for."""
        from fastload.engines import own_generators
        from fastload.engines.random_states import state_now

        own = {name: own_generators.read(one) for name, one in own_generators.find(_owners(loader)).items()}
        sources = cls(state_now(others=True), own, dataset=dataset)
        if samplers:
            sources.epochs = epochs_of_samplers(loader)
            sources.samplers = [_asked(sampler) for sampler in _samplers_of(loader)]
        return sources

    def write(self, loader: Any, *, samplers: bool = True) -> None:
        """Set what :meth:`read` has read, but not the dataset's.

        The samplers' states only if asked for.
        """
        from fastload.engines import own_generators
        from fastload.engines.random_states import set_state

        set_state(self.main)
        own_generators.write_all(_owners(loader), self.generators)
        self.write_epochs(loader)
        for sampler, asked in zip(_samplers_of(loader), self.samplers, strict=False):
            if asked is not None and samplers:
                sampler.load_state_dict(copy.deepcopy(asked))

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
        samplers = any(asked is not None for asked in self.samplers) and not is_at_end(loader._index_sampler)
        if loader.num_workers:  # whose processes begin with it
            self.dataset.set(loader.dataset)
        else:
            self.dataset.begin(loader.dataset)
        self.write(loader, samplers=samplers)

    def packed(self, texts: Texts, name: str) -> dict[str, Any]:
        """Return plain data that ``torch.load`` takes with ``weights_only=True``.

        Args:
            texts: Of the last call.
            name: Whose texts these are.
        """
        own = {one: texts.pack((name, one), state) for one, state in self.generators.items()}
        samplers = [None if asked is None else copy.deepcopy(asked) for asked in self.samplers]
        asked = {"epochs": list(self.epochs), "samplers": samplers, "dataset": self.dataset.packed()}
        return {"main": texts.pack(name, self.main), "generators": own, **asked}

    @classmethod
    def unpacked(cls, loader: Any, data: dict[str, Any]) -> Sources:
        """Make it of :meth:`packed`.

        Raises:
            ValueError: The data is damaged, or of a loader with other generators.
        """
        from fastload.engines import own_generators

        own = {name: unpack(packed, kind=name.rpartition(".")[2]) for name, packed in data["generators"].items()}
        own_generators.check(_owners(loader), own)
        dataset = DatasetState.unpacked(data["dataset"])
        sources = cls(unpack(data["main"]), own, data["epochs"], data["samplers"], dataset)
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
        dataset = self.dataset.dataset
        for source, asked in [*zip(samplers, self.samplers, strict=False), (loader.dataset, dataset)]:
            if asked is not None and not has_state(source):
                raise ValueError(f"the state has one of a {type(source).__name__}, which has no load_state_dict here")


def epochs_of_samplers(loader: Any) -> list[int | None]:
    """Return the ``epoch`` of each of a loader's samplers; ``None`` for one that has none."""
    epochs = (getattr(sampler, "epoch", None) for sampler in _samplers_of(loader))
    return [epoch if type(epoch) is int else None for epoch in epochs]


def _asked(source: Any) -> Any:
    return copy.deepcopy(source.state_dict()) if has_state(source) else None


def _owners(loader: Any) -> list[Any]:
    return [loader, *_samplers_of(loader)]


@dataclass
class Resumption:
    """What a new iterator needs to go on within an epoch.

    Attributes:
        loader: The loader.
        skip: Batches handed over in the epoch.
        base_seed: Of the workers; ``None`` keeps the iterator's own.
        workers: States of the workers; ``None`` for those that have made no batch yet.
        turn: Number of the worker that makes the next batch.
        num_workers: Number of workers; ``None`` if any number is right.
        again: What the epoch started from, if its workers had made another epoch before.
        indices: Digest of the last batch handed over; 0 if unknown.
        now: What to set once as many batches are drawn as when the state was saved; ``None`` sets nothing.
        drawn: How many that were, with those drawn ahead.
        dealt: How the epoch was dealt to other processes before (:mod:`fastload.engines.redistribution`).
        failed: Set once a worker could not begin with its state.
    """

    loader: Any
    skip: int
    base_seed: int | None
    workers: list[WorkerState | None] | None
    turn: int
    num_workers: int | None
    again: Sources | None
    indices: int
    now: Sources | None = None
    drawn: int = 0
    dealt: list[dict[str, Any]] = field(default_factory=list)
    failed: threading.Event = field(default_factory=threading.Event)

    @property
    def generators(self) -> list[bytes | None] | None:
        """States of the workers' generators."""
        return None if self.workers is None else [None if one is None else one.generators for one in self.workers]

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
        index_sampler = iterator._index_sampler
        if self.dealt:
            from fastload.engines.redistribution import batches_left

            index_sampler = batches_left(self.loader, self.dealt)
            iterator._sampler_iter = iter(index_sampler)
        if self.skip:
            self._skip(iterator, index_sampler)
        if self.now is not None:
            self._draw_ahead(iterator, self.now)

    def _skip(self, iterator: Any, index_sampler: Any) -> None:
        from fastload.engines.index_replay import after_batches

        iterator._sampler_iter, last = after_batches(index_sampler, iterator._sampler_iter, self.skip)
        if last is None or (self.indices and digest_of(last) != self.indices):
            raise RuntimeError(
                "load_state_dict needs a sampler that draws the same indices again from the same generators and "
                f"epoch, but batch {self.skip - 1} of this epoch has others than when the state was saved; {_REMEDY}"
            )

    def _draw_ahead(self, iterator: Any, now: Sources) -> None:
        """Draw what had been drawn ahead of the consumer, and set the generators of then."""
        from fastload.engines.random_states import parts, state_now

        indices, ahead = iterator._sampler_iter, max(0, self.drawn - self.skip)
        drawn = list(itertools.islice(indices, 0 if self.skip else min(1, ahead)))  # the first may draw a seed
        before = state_now(others=True)
        drawn += itertools.islice(indices, ahead - len(drawn))
        after = zip(parts(before), parts(state_now(others=True)), parts(now.main), strict=True)
        if any(one != other and other != then for one, other, then in after):
            raise RuntimeError(
                "load_state_dict needs a sampler that draws the same indices again, but it draws from a global "
                f"generator as it goes, from which the loop had drawn in between; {_REMEDY}"
            )
        iterator._sampler_iter = itertools.chain(drawn, indices)
        now.write(self.loader)


_REMEDY: Final = (
    "give the sampler a torch.Generator as its attribute 'generator', or state_dict() and load_state_dict()"
)


def other_workers(saved: int, now: int) -> str:
    """Say that the number of workers has changed, and the remedy."""
    return (
        f"num_workers must be {saved}, as when the state was saved, got {now}: each worker has random numbers of its "
        f"own; use num_workers={saved}, or randomness='sample' from the start, which does not depend on workers"
    )
