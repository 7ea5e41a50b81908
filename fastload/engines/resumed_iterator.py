"""Start torch's iterators within an epoch, with workers that begin with a state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from fastload.engines.worker_progress import NotLoaded, ReadAgain
from fastload.torch_workers.processes import shut_down

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.engines.resumption import Resumption


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
