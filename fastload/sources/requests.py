"""Ask a process of its own for objects of a store; see :mod:`fastload.sources.fetcher`."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import pickle
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from fastload._tagged_files import KEY_BYTES
from fastload.sources import fetcher
from fastload.sources.fetcher import ENTRY, HEADER, KEPT, LIST, OBJECT, Kept
from fastload.torch_workers.signals import Finalizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastload.sources.fetcher import Setup

Answer: TypeAlias = "Future[list[memoryview | Kept | Exception]]"
_JOIN_S: Final = 5.0
_COPIED_BYTES: Final = 1 << 24  # at most, of a file; one read takes 2 GB


class Requests:
    """Objects that are asked for here and read in another process.

    Thread-safe; a forked child makes its own.
    """

    def __init__(self, setup: Setup) -> None:
        first = pickle.dumps(setup)
        self._answers, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # -P: a file of the current folder may be called as a module of Python's
                [sys.executable, "-P", "-m", fetcher.__name__, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                process_group=0,  # so that Ctrl-C does not end it: the program may handle that and go on
            )
        self._pending: dict[int, Answer] = {}
        self._numbers = itertools.count()
        self._messages: SimpleQueue[bytes | None] = SimpleQueue()
        self._messages.put(first)
        threads = [
            threading.Thread(target=target, args=(way, self._process, self._pending), name=name, daemon=True)
            for target, way, name in (
                (_take_answers, self._answers, "fastload-requests-reader"),
                (_send_messages, self._messages, "fastload-requests-sender"),
            )
        ]
        self.close = Finalizer(self, _close, os.getpid(), self._process, self._answers, self._messages, threads)
        for thread in threads:
            thread.start()

    def ask(self, objects: Sequence[tuple[str, int | None, str | None]] | str, *, cached: bool = True) -> Answer:
        """Ask for objects: key, and size and entity tag as far as known. Doesn't block.

        With ``cached``, those in the cache will do. Returns for each its bytes, its file in the cache, or an error that
        names it. Cancelling that ends the requests.
        """
        number, answer = next(self._numbers), Future[Any]()
        message = pickle.dumps((number, objects, cached))
        self._pending[number] = answer
        answer.add_done_callback(lambda done: self._cancelled(number) if done.cancelled() else None)
        self._messages.put(message)
        if not self.close.alive:
            _fail(self._process, self._pending)
        return answer

    def list(self) -> list[tuple[str, int, str | None]]:
        """Return all objects' keys, sizes in bytes, and entity tags. Blocks."""
        found: Any = self.ask(LIST).result()[0]
        if isinstance(found, Exception):
            raise found
        listed: list[tuple[str, int, str | None]] = pickle.loads(found)
        return listed

    def _cancelled(self, number: int) -> None:
        """Tell the process. Called in any thread, and by garbage collections within any call."""
        if self._pending.pop(number, None) is not None:
            self._messages.put(pickle.dumps((number, None)))


def _send_messages(
    messages: SimpleQueue[bytes | None], process: subprocess.Popen[bytes], pending: dict[int, Answer]
) -> None:
    pipe: Any = process.stdin
    while (message := messages.get()) is not None:
        try:
            pipe.write(message)
            pipe.flush()
        except (OSError, ValueError):  # it has ended
            _fail(process, pending)


def _take_answers(answers: socket.socket, process: subprocess.Popen[bytes], pending: dict[int, Answer]) -> None:
    cause = None
    try:
        while True:
            _take_answer(answers, pending)
    except EOFError:
        pass
    except Exception as error:  # noqa: BLE001 - raised where answers are waited for
        cause = f"{type(error).__name__}: {error}"
    process.kill()  # no more answers are taken
    _fail(process, pending, cause)


def _take_answer(answers: socket.socket, pending: dict[int, Answer]) -> None:
    """Take one answer.

    A function, as the thread must not hold on to an answer or error: both refer to the owner.
    """
    header, files, _, _ = socket.recv_fds(answers, HEADER.size, 1)
    if not header:
        raise EOFError
    if not files:
        raise OSError("no file descriptor is left for it; raise the limit, ulimit -n")
    with open(files[0], "rb", buffering=0) as file:
        number, count = HEADER.unpack(header)
        data = memoryview(_content(file.fileno(), count))
    begin, entries = count * ENTRY.size, []
    for kind, size in ENTRY.iter_unpack(data[:begin]):
        entries.append(_entry(kind, data[begin : begin + size]))
        begin += size
    answer = pending.pop(number, None)
    if answer is not None and answer.set_running_or_notify_cancel():
        answer.set_result(entries)


def _content(descriptor: int, count: int) -> bytes | mmap.mmap:
    """Map a file, or copy one of a single object.

    A program may keep thousands of these, and a map has a descriptor.
    """
    size = os.fstat(descriptor).st_size
    if count <= 1 and size <= _COPIED_BYTES:
        return os.pread(descriptor, size, 0)
    return mmap.mmap(descriptor, size, prot=mmap.PROT_READ)


def _entry(kind: int, data: memoryview) -> memoryview | Kept | Exception:
    if kind == OBJECT:
        return data
    if kind == KEPT:
        return Kept(os.fsdecode(bytes(data[KEY_BYTES:])), bytes(data[:KEY_BYTES]))
    return cast("Exception", pickle.loads(data))


def _fail(process: subprocess.Popen[bytes], pending: dict[int, Answer], cause: str | None = None) -> None:
    """Give an error to all who wait, as the process or its answers have ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_JOIN_S)
    text = f"the process that reads objects has ended (exit code {process.returncode}); see its output"
    if cause is not None:
        text = f"an answer of the process that reads objects cannot be taken: {cause}"
    with contextlib.suppress(KeyError):  # none is left; the other thread may take some
        while True:
            _, answer = pending.popitem()
            if answer.set_running_or_notify_cancel():
                answer.set_exception(RuntimeError(text))


def _close(
    owner: int,
    process: subprocess.Popen[bytes],
    answers: socket.socket,
    messages: SimpleQueue[bytes | None],
    threads: list[threading.Thread],
) -> None:
    if os.getpid() != owner:  # a forked child, whose process it is not
        return
    process.kill()
    process.wait()
    messages.put(None)
    with contextlib.suppress(OSError):
        answers.shutdown(socket.SHUT_RDWR)  # a process forked meanwhile may hold the other end
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(_JOIN_S)
    answers.close()
    if process.stdin is not None:
        with contextlib.suppress(OSError):  # what was not yet written
            process.stdin.close()
