"""Start and end torch's worker processes cleanly despite interrupts, in bounded time.

An interrupt may occur between any two lines of torch and :mod:`multiprocessing`, which do not handle it: in
``__init__`` after a worker is started and before it is listed, in ``_shutdown_workers`` after a worker is marked as
done, in ``Condition.__enter__`` (Python) with the lock taken and never released. The last blocks the threads that feed
the queues, and any thread that joins them. In ``__del__`` it would be lost.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import sys
import threading
import time
import weakref
from multiprocessing import process, reduction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.utils.data.dataloader
from torch._utils import ExceptionWrapper
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from fastload.torch_workers.signals import FINALIZERS, deferred_signals, finalizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

JOIN_S: Final = 5.0
"""As long as torch waits for a worker."""

ASKED_S: Final = 0.5
"""How long workers may take to end once they are asked to; one within a sample that stalls never does."""

_LEFT_S: Final = 0.5
"""A lock not acquired in this time was left by an interrupt: all of them are held for microseconds."""


_INIT: Final = _MultiProcessingDataLoaderIter.__init__.__code__
_DEL: Final = _MultiProcessingDataLoaderIter.__del__.__code__
FINALIZERS.add(_DEL)


class _ShutDown:
    """Replaces ``_shutdown_workers`` of a torch iterator, which keeps torch's own type.

    Keeps what tells the workers to end until they have. A garbage collection calls the callbacks of weak references
    before any ``__del__``: queues that are garbage, too, close themselves, so that workers hear nothing more, and torch
    waits 5 s for each of them.
    """

    def __init__(self, iterator: Any) -> None:
        self.iterator: Callable[[], Any] = weakref.ref(iterator)
        self.workers = iterator._workers
        self._tell = iterator._workers_done_event, iterator._index_queues, iterator._worker_result_queue
        self._pid = os.getpid()

    def __call__(self) -> None:
        frame = sys._getframe(1)
        if frame.f_code is _DEL:  # a collection has cleared weak references by then
            self._delete(frame.f_locals["self"])
        elif (iterator := self.iterator()) is not None:
            type(iterator)._shutdown_workers(iterator)

    @finalizer
    def _delete(self, iterator: Any) -> None:
        if os.getpid() == self._pid:  # else a forked child: the workers, the queues and their locks are the parent's
            try:
                type(iterator)._shutdown_workers(iterator)
            finally:
                _clean_up(iterator)


_live: dict[int, _ShutDown] = {}
"""Iterators, by their ids, whose workers were started here and have not been cleaned up after."""


def _end_with_the_program() -> None:
    """End iterators at exit, before multiprocessing ends their workers.

    Torch's pin-memory thread may still receive a batch from them. Torch itself ends only persistent workers at exit.
    """
    for ending in list(_live.values()):
        iterator = ending.iterator()
        if _has_workers(iterator):
            with deferred_signals(), contextlib.suppress(Exception):  # so that the others also end
                _finish(iterator)  # also after a shutdown of torch's, which may have been interrupted


def _disown() -> None:
    """In a forked child: the workers, their queues and their shared memory are the parent's."""
    for ending in _live.values():
        if (iterator := ending.iterator()) is not None:
            iterator._shutdown, iterator._next_data = True, _next_in_child
            if iterator._worker_pids_set:  # now, not as torch does where the child frees it: it may exit as a program
                torch._C._remove_worker_pids(id(iterator))
                iterator._worker_pids_set = False
        process._children.difference_update(ending.workers)  # type: ignore[attr-defined]  # nor multiprocessing at exit
    _live.clear()


def check_process(iterator: Any) -> None:
    """Raise in a forked child if an iterator's workers are the parent's."""
    if _is_inherited(iterator):
        _next_in_child()


def _next_in_child() -> Any:
    raise RuntimeError(
        "an iterator with workers gives batches only in the process that made it, and this is a forked child; "
        "iterate over the loader again"
    )


atexit.register(_end_with_the_program)  # torch is imported, so this comes before its own and multiprocessing's
os.register_at_fork(after_in_child=_disown)


def _users_code() -> Iterator[CodeType]:
    """Code of torch and multiprocessing that runs samplers and pickles datasets.

    While it runs, the workers are in a consistent state.
    """
    base = getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", None)
    functions: list[Any] = [getattr(base, name, None) for name in ("__init__", "_reset", "_next_index")]
    for function in (*functions, reduction.dump):
        if hasattr(function, "__code__"):
            yield function.__code__


_OPEN_IN: Final = frozenset(_users_code())


def start_workers(make: Callable[[], Any]) -> Any:
    """Make one of torch's iterators with workers.

    A signal is deferred until all workers have started; if its handler raises, they are ended, as after any error.
    """
    iterator: Any = None
    try:
        with deferred_signals(_OPEN_IN):
            iterator = make()
            if _has_workers(iterator):
                _live[id(iterator)] = iterator._shutdown_workers = _ShutDown(iterator)
            thread = getattr(iterator, "_pin_memory_thread", None)
            if thread is not None:  # torch waits for it indefinitely
                thread.join = _bounded_join(weakref.ref(thread))
    except BaseException as error:
        with deferred_signals():
            if iterator is None:
                iterator = _half_made(error)
            if _has_workers(iterator):
                _finish(iterator)
        raise
    return iterator


def _has_workers(iterator: Any) -> bool:
    """Whether an iterator has started workers, and does not just show those of another one."""
    return "_workers" in getattr(iterator, "__dict__", ())


def _half_made(error: BaseException) -> Any:
    """Return the iterator whose ``__init__`` has raised an error, such as the sampler's."""
    frame = _frame_of(error, _INIT)
    return None if frame is None else frame.f_locals.get("self")


def start_frozen(make: Callable[[], Any]) -> Any:
    """Make one of torch's iterators whose forked workers never collect inherited garbage."""
    with forking_workers():
        return start_workers(make)


class _Forking(threading.local):
    workers = False


_forking = _Forking()


@contextlib.contextmanager
def forking_workers() -> Iterator[None]:
    """Freeze inherited garbage in processes that this thread forks inside the block.

    Forked workers inherit garbage that this process has yet to collect. Collecting device tensors there would call
    CUDA, which aborts a forked process (seen); frozen garbage is never collected.
    """
    _forking.workers = True
    try:
        yield
    finally:
        _forking.workers = False


os.register_at_fork(after_in_child=lambda: gc.freeze() if _forking.workers else None)


def release_free_memory() -> None:
    """Return free heap memory to the system, before a fork.

    Each page that two processes have is copied when one writes to it, and the next batches are written where former
    ones were freed: up to 40,000 faults an epoch, which take longer than decoding. The C library may not have this.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _bounded_join(thread: weakref.ref[threading.Thread]) -> Callable[..., None]:
    def join(timeout: float | None = JOIN_S) -> None:
        joined = thread()
        if joined is not None and joined is not threading.current_thread():  # which may collect its own iterator
            threading.Thread.join(joined, timeout)

    return join


def restart_workers(iterator: Any, reset: Callable[[], Any]) -> None:
    """Begin another epoch of persistent workers.

    If that is interrupted, it is unknown which workers have begun, and their answers would be mistaken for batches, so
    they are ended. Torch handles errors of the sampler and dead workers.
    """
    check_process(iterator)
    try:
        reset()
    except BaseException as error:
        if _has_workers(iterator) and not _is_in_users_code(error):
            with deferred_signals():
                if all(worker.is_alive() for worker in iterator._workers):
                    _finish(iterator)
        raise


def _is_in_users_code(error: BaseException) -> bool:
    return _frame_of(error, *_OPEN_IN) is not None


def _frame_of(error: BaseException, *codes: CodeType) -> FrameType | None:
    """Return the outermost frame of an error's traceback that runs one of ``codes``."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return traceback.tb_frame
        traceback = traceback.tb_next
    return None


def shut_down(iterator: Any) -> None:
    """End an iterator of torch's, or similar: its threads, workers and queues. Idempotent.

    Completes a shutdown that was interrupted. A worker that does not end in time is terminated. In a forked child
    nothing is ended: all is the parent's.
    """
    if not _has_workers(iterator):
        getattr(iterator, "_shutdown_workers", lambda: None)()
    elif not _is_inherited(iterator):
        try:
            _finish(iterator)
        except BaseException:
            with deferred_signals():
                _finish(iterator)
            raise


def _is_inherited(iterator: Any) -> bool:
    """Whether this is a forked child, and the workers are the parent's."""
    workers = getattr(iterator, "_workers", ())
    return any(getattr(worker, "_parent_pid", os.getpid()) != os.getpid() for worker in workers)


def after_error(iterator: Any, error: BaseException) -> None:
    """Clean up after an error of ``next(iterator)``: release locks, complete a shutdown."""
    if not _has_workers(iterator) or _is_inherited(iterator) or _is_from_worker(error):
        return
    with deferred_signals(), contextlib.suppress(Exception):  # an error here would hide the user's
        if iterator._shutdown:
            _finish(iterator)
        else:
            _release_left_locks(iterator)


def _is_from_worker(error: BaseException) -> bool:
    """Whether a worker sent the error, so that no lock is held here."""
    return _frame_of(error, ExceptionWrapper.reraise.__code__) is not None


def _release_left_locks(iterator: Any) -> None:
    """Release locks that an interrupt left taken; other libraries' queues may lack them."""
    result = iterator._worker_result_queue
    holders = [(iterator._workers_done_event, "_cond")]  # a killed worker may have held it
    for queue in (*iterator._index_queues, result):
        holders += [(queue, "_notempty"), (getattr(getattr(queue, "_thread", None), "_started", None), "_cond")]
    if hasattr(iterator, "_pin_memory_thread_done_event"):
        holders += [(iterator._data_queue, "mutex"), (iterator._pin_memory_thread_done_event, "_cond")]
    else:
        holders.append((result, "_rlock"))  # no other thread receives
    for holder, name in holders:
        lock = getattr(holder, name, None)
        if lock is not None:
            lock.acquire(timeout=_LEFT_S)
            lock.release()
            semaphore = getattr(getattr(lock, "_lock", lock), "_semlock", None)
            if semaphore is not None and semaphore._count() < 0:  # taken by a worker: only the release is counted
                semaphore._after_fork()  # sets the count to 0


def _finish(iterator: Any) -> None:
    """End threads, workers and queues from any state. Bounded; terminates the workers."""
    _release_left_locks(iterator)
    iterator._shutdown = True
    thread = getattr(iterator, "_pin_memory_thread", None)
    if thread is not None:
        iterator._pin_memory_thread_done_event.set()
        with contextlib.suppress(ValueError, RuntimeError):  # closed, or no thread can start at interpreter exit
            iterator._worker_result_queue.put((None, None))
        threading.Thread.join(thread, JOIN_S)
        _close(iterator._worker_result_queue)
    iterator._workers_done_event.set()
    _ask_to_end(iterator)
    if iterator._worker_pids_set:  # before killing workers, or torch would raise that one was killed
        torch._C._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
    for end, wait_s in (("terminate", ASKED_S), ("kill", JOIN_S)):
        living = [worker for worker in iterator._workers if worker.is_alive()]
        for worker in living:
            getattr(worker, end)()
        _join(living, wait_s)
    _clean_up(iterator)
    for queue in iterator._index_queues:
        _close(queue)


def _ask_to_end(iterator: Any) -> None:
    for queue in iterator._index_queues:
        with contextlib.suppress(ValueError, RuntimeError):  # closed, or no thread can start at interpreter exit
            queue.put(None)
    _join(iterator._workers, ASKED_S)


def _join(workers: list[Any], wait_s: float) -> None:
    until = time.monotonic() + wait_s
    for worker in workers:
        worker.join(max(0.0, until - time.monotonic()))


def _clean_up(iterator: Any) -> None:
    """Clean up after workers that have ended, once, because process ids may be reused."""
    if (ended := _live.pop(id(iterator), None)) is not None:
        _unlink_shared_memory(ended.workers)


def end_iterator(iterator: Any) -> None:
    """End an iterator, torch's or ours, or close a loader's own generator."""
    if hasattr(iterator, "_shutdown_workers"):
        shut_down(iterator)
    else:
        getattr(iterator, "close", lambda: None)()


def end_former(loader: Any) -> None:
    """End the workers or threads that persist, if there are any."""
    former, loader._iterator = loader._iterator, None
    if former is not None:
        end_iterator(former)


def _unlink_shared_memory(workers: list[Any]) -> None:
    """Unlink shared memory that workers made and had not unlinked when they ended.

    Workers unlink it immediately if they pass it as a descriptor, in which case no process opens it by name.
    """
    if torch.multiprocessing.get_sharing_strategy() == "file_descriptor":  # type: ignore[no-untyped-call]
        theirs = tuple(f"torch_{worker.pid}_" for worker in workers)
        for file in Path("/dev/shm").glob("torch_*"):
            if file.name.startswith(theirs):
                with contextlib.suppress(PermissionError):  # another user's, of a process that had the same id
                    file.unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Whether process ``pid`` exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _close(queue: Any) -> None:
    queue.cancel_join_thread()
    queue.close()
    # An interrupt may have come before `_close` was set, which ends the thread.
    if getattr(queue, "_thread", None) is not None and queue._close is None:
        type(queue)._finalize_close(queue._buffer, queue._notempty)
