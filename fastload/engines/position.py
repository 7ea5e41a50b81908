"""How far the consumer of one iteration is, and the states of its workers there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from fastload.engines.resumption import Resumption, Sources, digest_of

if TYPE_CHECKING:
    from fastload.options import LoaderConfig
    from fastload.stats.meter import Meter


class UnknownStateError(Exception):
    """A worker's generators are not known."""


class Position:
    """How far the consumer is in one iteration.

    It outlives the iterator, and does not refer to it.

    Args:
        start: What the epoch started from.
        again: Whether its workers had made another epoch before.
        first: Batches handed over by the process that saved the state.
        resumption: How the iterator was resumed, if it was.
    """

    def __init__(self, start: Sources, *, again: bool, first: int = 0, resumption: Resumption | None = None) -> None:
        self.start = start
        self.again = again
        self.base_seed = 0
        self.num_workers = 0
        self._first = first
        self._indices: Any = None  # drawn last, without workers
        self._drawn = 0
        self._digest = 0 if resumption is None else resumption.indices
        self.initial = None if resumption is None else resumption.workers
        self._meter: Meter | None = None
        self._pipeline: Any = None
        self._iterable = False
        self._by_index = False
        self._served: list[int] = []  # batches that each worker has made in former epochs
        self._at_close: Any = None
        self.sent: list[int] = []
        self.dealt: list[dict[str, Any]] = []  # see redistribution

    def follow(self, loader: LoaderConfig[Any], iterator: Any, former: Position | None) -> None:
        """Follow an iterator that was just begun."""
        host = getattr(iterator, "host", iterator)
        meter = self._meter = iterator.meter if host is not iterator else iterator._next_data.meter
        self.base_seed, self.num_workers = int(host._base_seed), int(host._num_workers)
        self._iterable = isinstance(loader.dataset, IterableDataset)
        self._by_index = loader.randomness == "sample"
        pipeline = getattr(host, "decode_pipeline", None)
        if not self.num_workers:
            if not self._iterable:
                host._sampler_iter = map(self._note, host._sampler_iter)
        elif pipeline is not None:
            self._pipeline = pipeline
        else:
            self._served = [0] * self.num_workers
            if former is not None:
                self._served, self.initial = former.sent, former.initial
            meter.before_close = self._keep_states

    def _note(self, indices: Any) -> Any:
        self._drawn += 1
        self._indices = indices
        return indices

    def leave(self, host: Any) -> None:
        """Count what the workers have made, before they begin another epoch."""
        if not self._served or host is None:  # closed: the next epoch has new workers
            return
        self.sent = [past + now for past, now in zip(self._served, self._by_worker(host._send_idx), strict=True)]

    def _by_worker(self, batches: int) -> list[int]:
        workers = self.num_workers
        return [len(range((worker - self._first) % workers, batches, workers)) for worker in range(workers)]

    @property
    def ended(self) -> bool:
        """Whether the epoch is over."""
        return self._meter is not None and self._meter.ended

    @property
    def handed_over(self) -> int:
        """Batches of the epoch that the consumer has."""
        if self._pipeline is not None:
            return int(self._pipeline.handed_over())
        if self._meter is None or self._iterable:
            return self._first + (0 if self._meter is None else self._meter.taken)
        return self._first + (self._meter.received if self.num_workers else self._drawn)

    def states(self) -> tuple[int, list[bytes | None] | None]:
        """Return the digest of the last batch handed over, and the workers' states.

        Raises:
            UnknownStateError: A worker's states are not known.
        """
        if self._at_close is not None:
            if isinstance(self._at_close, UnknownStateError):
                raise self._at_close
            return self._at_close  # type: ignore[no-any-return]
        if self._pipeline is not None:
            digest, states = self._pipeline.states.at(self._pipeline.handed_over())
            return digest or self._digest, states
        if not self.num_workers or self._iterable or self._by_index:
            known = self._digest if self.handed_over == self._first else 0
            return (digest_of(self._indices) if self._drawn else known), None
        return self._workers_states()

    def _workers_states(self) -> tuple[int, list[bytes | None] | None]:
        assert self._meter is not None  # noqa: S101 - follow() sets it
        shared, received = self._meter.shared, self._meter.received
        digest, states = self._digest, list(self.initial or [None] * self.num_workers)
        last = (self._first + received - 1) % self.num_workers
        for worker, made in enumerate(self._by_worker(received)):
            number = self._served[worker] + made
            if number:
                kept = None if shared is None else shared.kept(worker, number)
                if kept is None:
                    raise UnknownStateError(f"the generators of worker {worker} cannot be read")
                states[worker] = kept[1]
                digest = kept[0] if received and worker == last else digest
        return digest, states

    def _keep_states(self) -> None:
        try:
            self._at_close = self.states()
        except UnknownStateError as error:
            self._at_close = error
