"""Start and end torch's worker processes whole, although signals interrupt it, and end them in bounded time.

An interrupt may land between any two lines of torch's and of :mod:`multiprocessing`, and they are not made for it: in
``__init__`` after a worker was started and before it is listed, in ``_shutdown_workers`` after it was marked as done,
in ``Condition.__enter__`` (Python) with the lock taken and nobody to give it back. The last keeps the threads that feed
the queues waiting, and whoever joins them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from multiprocessing import reduction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.utils.data.dataloader
from torch._utils import ExceptionWrapper

from fastload._interrupts import deferred_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

JOIN_S: Final = 5.0
"""As long as torch waits for a worker."""

_LEFT_S: Final = 0.5
"""A lock that is not to be had for so long was left by an interrupt: all of them are held for microseconds."""


# Iterators whose workers were started here, each with what is to be done once after those have ended.
_live: weakref.WeakKeyDictionary[Any, weakref.finalize[..., Any]] = weakref.WeakKeyDictionary()


def _end_with_the_program() -> None:
    """Before multiprocessing ends the workers: torch's thread that pins may be receiving a batch from them.

    Torch does so for persistent workers only.
    """
    for iterator in list(_live):
        if hasattr(iterator, "_workers") and not iterator._shutdown:
            with deferred_signals(), contextlib.suppress(Exception):  # the others are to end, too
                _finish(iterator)


def _disown() -> None:
    _live.clear()


atexit.register(_end_with_the_program)  # torch is imported, so this comes before its own and multiprocessing's
os.register_at_fork(after_in_child=_disown)


def _users_code() -> Iterator[CodeType]:
    """What torch and multiprocessing call that runs samplers and pickles datasets; workers are in order meanwhile."""
    base = getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", None)
    functions: list[Any] = [getattr(base, name, None) for name in ("__init__", "_reset", "_next_index")]
    for function in (*functions, reduction.dump):
        if hasattr(function, "__code__"):
            yield function.__code__


_OPEN_IN: Final = frozenset(_users_code())


def start_workers(make: Callable[[], Any]) -> Any:
    """Make one of torch's iterators with workers: a signal waits until all have started, and then they are ended."""
    iterator: Any = None
    try:
        with deferred_signals(_OPEN_IN):
            iterator = make()
            if hasattr(iterator, "_workers"):  # a native one has none
                _live[iterator] = after = weakref.finalize(iterator, _unlink_shared_memory, iterator._workers)
                after.atexit = False
            thread = getattr(iterator, "_pin_memory_thread", None)
            if thread is not None:  # torch waits for it without bound
                thread.join = _bounded_join(weakref.ref(thread))
    except BaseException:
        if iterator is not None:
            with deferred_signals():
                _finish(iterator)
        raise
    return iterator


def _bounded_join(thread: weakref.ref[threading.Thread]) -> Callable[..., None]:
    def join(timeout: float | None = JOIN_S) -> None:
        if (joined := thread()) is not None:
            threading.Thread.join(joined, timeout)

    return join


def restart_workers(iterator: Any, reset: Callable[[], Any]) -> None:
    """Begin another epoch of persistent workers.

    If that is interrupted, nobody knows which of them have begun, and what they answer would be taken for batches; so
    they are ended. An error of the sampler's, or a worker that is dead, is left to torch.
    """
    try:
        reset()
    except BaseException as error:
        if hasattr(iterator, "_workers") and not _is_in_users_code(error):
            with deferred_signals():
                if all(worker.is_alive() for worker in iterator._workers):
                    _finish(iterator)
        raise


def _is_in_users_code(error: BaseException) -> bool:
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in _OPEN_IN:
            return True
        traceback = traceback.tb_next
    return False


def shut_down(iterator: Any) -> None:
    """End an iterator of torch's or like torch's: its threads, workers and queues. Idempotent.

    What torch has left undone because it was interrupted is done, with less patience.
    """
    if not hasattr(iterator, "_workers"):
        getattr(iterator, "_shutdown_workers", lambda: None)()
        return
    try:
        _release_left_locks(iterator)
        iterator._shutdown_workers()
        _clean_up(iterator)
    except BaseException:
        with deferred_signals():
            _finish(iterator)
        raise


def after_error(iterator: Any, error: BaseException) -> None:
    """``next(iterator)`` has raised: if it was interrupted, leave no lock taken and nothing half ended."""
    if not hasattr(iterator, "_workers") or _is_a_samples(error):
        return
    with deferred_signals(), contextlib.suppress(Exception):  # which would hide the user's error
        if iterator._shutdown:
            _finish(iterator)
        else:
            _release_left_locks(iterator)


def _is_a_samples(error: BaseException) -> bool:
    """Whether an error has come from a worker, with no lock held here."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is ExceptionWrapper.reraise.__code__:
            return True
        traceback = traceback.tb_next
    return False


def _release_left_locks(iterator: Any) -> None:
    """Give back what an interrupt has left locked; queues of another library's may have no such locks."""
    result = iterator._worker_result_queue
    holders = [(iterator._workers_done_event, "_cond")]  # which a worker that was killed may have held
    for queue in (*iterator._index_queues, result):
        holders += [(queue, "_notempty"), (getattr(getattr(queue, "_thread", None), "_started", None), "_cond")]
    if hasattr(iterator, "_pin_memory_thread_done_event"):
        holders += [(iterator._data_queue, "mutex"), (iterator._pin_memory_thread_done_event, "_cond")]
    else:
        holders.append((result, "_rlock"))  # nobody else receives
    for holder, name in holders:
        lock = getattr(holder, name, None)
        if lock is not None:
            lock.acquire(timeout=_LEFT_S)
            lock.release()
            semaphore = getattr(getattr(lock, "_lock", lock), "_semlock", None)
            if semaphore is not None and semaphore._count() < 0:  # it was a worker's, and counts as released twice here
                semaphore._after_fork()  # sets the count to 0


def _finish(iterator: Any) -> None:
    """End what there is, wherever torch was. Bounded; workers are not asked."""
    _release_left_locks(iterator)
    iterator._shutdown = True
    thread = getattr(iterator, "_pin_memory_thread", None)
    if thread is not None:
        iterator._pin_memory_thread_done_event.set()
        with contextlib.suppress(ValueError, RuntimeError):  # closed; or no thread starts any more, for it is the end
            iterator._worker_result_queue.put((None, None))
        threading.Thread.join(thread, JOIN_S)
        _close(iterator._worker_result_queue)
    iterator._workers_done_event.set()
    if iterator._worker_pids_set:  # first, or torch would raise that a worker was killed
        torch._C._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
    for end in ("terminate", "kill"):
        until = time.monotonic() + JOIN_S
        living = [worker for worker in iterator._workers if worker.is_alive()]
        for worker in living:
            getattr(worker, end)()
        for worker in living:
            worker.join(max(0.0, until - time.monotonic()))
    _clean_up(iterator)
    for queue in iterator._index_queues:
        _close(queue)


def _clean_up(iterator: Any) -> None:
    """Once: process numbers may be used again."""
    if (after := _live.get(iterator)) is not None:
        after()


def _unlink_shared_memory(workers: list[Any]) -> None:
    """Unlink what workers had made and not yet unlinked when they ended.

    They do that at once where shared memory is passed as a descriptor; nobody opens it by its name there.
    """
    if torch.multiprocessing.get_sharing_strategy() == "file_descriptor":  # type: ignore[no-untyped-call]
        theirs = tuple(f"torch_{worker.pid}_" for worker in workers)
        for file in Path("/dev/shm").glob("torch_*"):
            if file.name.startswith(theirs):
                file.unlink(missing_ok=True)


def _close(queue: Any) -> None:
    queue.cancel_join_thread()
    queue.close()
    # An interrupt may have come before it was known how to end the thread.
    if getattr(queue, "_thread", None) is not None and queue._close is None:
        type(queue)._finalize_close(queue._buffer, queue._notempty)
