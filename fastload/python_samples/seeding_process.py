"""The process that runs a ``worker_init_fn`` that only seeds, for all epochs of a loader."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from fastload.pipeline.code.worker_seeds import seeded_by
from fastload.torch_workers.signals import Finalizer, deferred_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastload.pipeline.recipe import Recipe
    from fastload.python_samples.sample_process import SampleProcess


class SeedingProcess:
    """Keeps one process that answers for every epoch. Thread-safe.

    A fork for each epoch would delay its start by 20 ms and more, and this process would copy each page that it writes
    during the epoch. A changed function, or changed values that it reads, need a new process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: SampleProcess | None = None
        self._key: Any = None
        self._end: Callable[[], object] = lambda: None
        self._last: tuple[Any, list[bytes]] = None, []

    def keep(self, recipe: Recipe, process: SampleProcess) -> bool:
        """Take over a process, started if need be, and return ``True``, unless one is kept.

        Args:
            recipe: Made it.
            process: Its former owner needs another.

        Raises:
            Exception: See :meth:`SampleProcess.start`.
        """
        if not process.forks or not self._lock.acquire(blocking=False):
            return False
        try:
            key = _key_of(recipe)
            if self._answers(key):
                return False
            process.start()
            self.close()
            with deferred_signals():
                self._process, self._key = process, key
                self._end = Finalizer(self, _end, process)  # before Python ends, when it is too late for __del__
            return True
        finally:
            self._lock.release()

    def states(self, recipe: Recipe, process: SampleProcess, base_seed: int, workers: int) -> list[bytes]:
        """Return the states of the workers' generators after the user's ``worker_init_fn``. Blocks.

        Args:
            recipe: Has the function.
            process: Answers if none is kept, or while another thread asks that.
            base_seed: Of the epoch.
            workers: Their number.

        Raises:
            RuntimeError: The function has raised an error, or the process has ended.
        """
        key = _key_of(recipe)
        if not self._lock.acquire(blocking=False):  # by another thread, or by this one below a signal's handler
            return _ask(process, base_seed, workers)
        try:
            asked = key, base_seed, workers
            last, self._last = self._last, (None, [])
            if last[0] == asked:  # once, because seeds may come from the system: each epoch has its own
                return last[1]
            kept = self._process if self._answers(key) else None
            self._last = asked, _ask(kept or process, base_seed, workers)
            return self._last[1]
        finally:
            self._lock.release()

    def _answers(self, key: Any) -> bool:
        return self._process is not None and self._key == key and self._process.answers

    def close(self) -> None:
        """End the process. Idempotent."""
        self._process = None
        self._end()


def _end(process: SampleProcess) -> None:
    process.kill()
    process.close()


def _ask(process: SampleProcess, base_seed: int, workers: int) -> list[bytes]:
    process.start()
    try:
        return process.first_states(base_seed, workers)
    except RuntimeError:  # an answer
        raise
    except BaseException:  # the answer may still come, and be taken for the next one
        process.kill()
        raise


def _key_of(recipe: Recipe) -> Any:
    return recipe.pipeline.draws_others, seeded_by(recipe.first_call)
