"""Start an iterator within an epoch, with generators, samplers and workers as they were.

The sampler is not asked for its place: from the generators of the epoch's start it draws the same indices again, and
no sample is read. The indices of the last batch handed over are compared, so a sampler that draws others is an error.
"""

from __future__ import annotations

import itertools
import pickle
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from fastload.bad_samples import FOLLOWING, ahead_like
from fastload.randomness.packed import digest_of
from fastload.state.in_worker import NotLoaded, ReadAgain, WorkerState
from fastload.torch_workers.processes import shut_down

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.state.sources import Sources


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
        dealt: How the epoch was dealt to other processes before (:mod:`fastload.state.ranks`).
        switched: Whether indices are drawn further ahead than then, or less far, for ``on_error="replace"``.
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
    switched: bool = False
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
            from fastload.state.ranks import batches_left

            index_sampler = ahead_like(batches_left(self.loader, self.dealt), index_sampler)
            iterator._sampler_iter = iter(index_sampler)
        if self.skip:
            self._skip(iterator, index_sampler)
        if self.now is not None:
            if self.switched:
                self._check_switch(iterator)
            self._draw_ahead(iterator, self.now)

    def _skip(self, iterator: Any, index_sampler: Any) -> None:
        from fastload.state.index_replay import after_batches

        iterator._sampler_iter, last = after_batches(index_sampler, iterator._sampler_iter, self.skip)
        if last is None or (self.indices and digest_of(last) != self.indices):
            raise RuntimeError(
                "load_state_dict needs a sampler that draws the same indices again from the same generators and "
                f"epoch, but batch {self.skip - 1} of this epoch has others than when the state was saved; {_REMEDY}"
            )

    def _check_switch(self, iterator: Any) -> None:
        """Raise if it matters how far ahead indices are drawn."""
        from fastload.state.sources import Sources

        def sources() -> bytes:
            return pickle.dumps(Sources.read(self.loader, samplers=True))

        indices = iterator._sampler_iter
        drawn = list(itertools.islice(indices, 1))  # the first may draw a seed
        before = sources()
        drawn += itertools.islice(indices, max(0, self.drawn - self.skip) + FOLLOWING)
        if sources() != before:
            raise RuntimeError(
                "load_state_dict needs the on_error that the loader had when the state was saved, as its sampler draws "
                "random numbers as it goes, and 'replace' draws indices further ahead; load it into a loader like that "
                "one and change to another at the end of the epoch"
            )
        iterator._sampler_iter = itertools.chain(drawn, indices)

    def _draw_ahead(self, iterator: Any, now: Sources) -> None:
        """Draw what had been drawn ahead of the consumer, and set the generators of then."""
        from fastload.randomness.generators import parts, state_now

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


class ResumedIterator(_MultiProcessingDataLoaderIter):
    """Torch's iterator over worker processes, from within an epoch on.

    Once a worker could not begin with its state, each ``next()`` raises its error. That is no batch handed over.
    """

    def __init__(self, loader: Any, resumption: Resumption) -> None:
        self._resumption: Resumption | None = resumption
        self._failed = resumption.failed
        self._failure: NotLoaded | None = None
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
            for _ in range(resumption.turn):  # the next batch is this worker's
                next(self._worker_queue_idx_cycle)
        return super()._next_index()  # type: ignore[no-untyped-call]

    def _next_data(self) -> Any:
        if self._failure is not None:
            self._failure.reraise()  # type: ignore[no-untyped-call]
        return super()._next_data()  # type: ignore[no-untyped-call]

    def _process_data(self, data: Any, worker: int) -> Any:
        if isinstance(data, NotLoaded):
            self._failure = data
            self._failed.set()
            self._rcvd_idx -= 1
            shut_down(self)  # the other workers' batches cannot be handed over
            data.reraise()  # type: ignore[no-untyped-call]
        return super()._process_data(data, worker)  # type: ignore[no-untyped-call]


def start_resumed(view: Any, resumption: Resumption, make: Callable[[], Any]) -> Any:
    """Return ``make()``, which iterates ``view``, from where the resumption says."""
    if not view.num_workers:
        iterator = make()
        if not isinstance(view.dataset, IterableDataset):
            resumption.enter(iterator)
        return iterator
    first_call = view.worker_init_fn
    states = resumption.workers or [None] * int(view.num_workers)
    vars(view)["worker_init_fn"] = replace(first_call, resumed=(states, ReadAgain.of(resumption.loader)))
    vars(view)["_get_iterator"] = lambda: ResumedIterator(view, resumption)
    try:
        iterator = make()
        iterator._worker_init_fn = first_call
        return iterator
    finally:
        del vars(view)["_get_iterator"]
        vars(view)["worker_init_fn"] = first_call
