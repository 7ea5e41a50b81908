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
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from fastload.sources.fetcher import ENTRY, HEADER, KEPT, LIST, OBJECT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastload.sources.fetcher import Setup

Answer: TypeAlias = "Future[list[memoryview | str | Exception]]"
_JOIN_S: Final = 5.0


class Requests:
    """Objects that are asked for here and read in another process.

    Thread-safe; a forked child makes its own.

    Args:
        setup: What is read, and how.
    """

    def __init__(self, setup: Setup) -> None:
        self._answers, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fastload.sources.fetcher", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            )
        self._pending: dict[int, Answer] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        reader = threading.Thread(
            target=_take_answers,
            args=(self._answers, self._process, self._pending),
            name="fastload-requests",
            daemon=True,
        )
        self.close = weakref.finalize(self, _close, os.getpid(), self._process, self._answers, reader)
        reader.start()
        self._send(setup)

    def ask(self, objects: Sequence[tuple[str, int | None, str | None]] | str) -> Answer:
        """Ask for objects: key, and size and entity tag as far as they are known.

        Returns:
            For each its bytes, the path of its file in the cache, or an error that names it. Cancelling it ends the
            requests.
        """
        number, answer = next(self._numbers), Future[Any]()
        self._pending[number] = answer
        answer.add_done_callback(lambda done: self._cancelled(number) if done.cancelled() else None)
        self._send((number, objects))
        return answer

    def list(self) -> list[tuple[str, int, str | None]]:
        """Return all objects' keys, sizes in bytes, and entity tags. Blocks."""
        found: Any = self.ask(LIST).result()[0]
        if isinstance(found, Exception):
            raise found
        listed: list[tuple[str, int, str | None]] = pickle.loads(found)
        return listed

    def _cancelled(self, number: int) -> None:
        if self._pending.pop(number, None) is not None:
            self._send((number, None))

    def _send(self, message: Any) -> None:
        try:
            with self._lock:
                pipe: Any = self._process.stdin
                pipe.write(pickle.dumps(message))
                pipe.flush()
        except (OSError, ValueError):  # it has ended
            _fail(self._process, self._pending)


def _take_answers(answers: socket.socket, process: subprocess.Popen[bytes], pending: dict[int, Answer]) -> None:
    try:
        while True:
            _take_answer(answers, pending)
    except (EOFError, ValueError, OSError):
        _fail(process, pending)


def _take_answer(answers: socket.socket, pending: dict[int, Answer]) -> None:
    """Take one answer.

    A function, as the thread must not hold on to an answer or error: both refer to the owner.
    """
    header, files, _, _ = socket.recv_fds(answers, HEADER.size, 1)
    if not files:
        raise EOFError
    with open(files[0], "rb", buffering=0) as file:
        number, count = HEADER.unpack(header)
        data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if count else b"")
    begin, entries = count * ENTRY.size, []
    for kind, size in ENTRY.iter_unpack(data[:begin]):
        entries.append(_entry(kind, data[begin : begin + size]))
        begin += size
    answer = pending.pop(number, None)
    if answer is not None and answer.set_running_or_notify_cancel():
        answer.set_result(entries)


def _entry(kind: int, data: memoryview) -> memoryview | str | Exception:
    if kind == OBJECT:
        return data
    return os.fsdecode(bytes(data)) if kind == KEPT else cast("Exception", pickle.loads(data))


def _fail(process: subprocess.Popen[bytes], pending: dict[int, Answer]) -> None:
    """Give all who wait an error, as the process has ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_JOIN_S)
    while pending:
        _, answer = pending.popitem()
        if answer.set_running_or_notify_cancel():
            answer.set_exception(
                RuntimeError(
                    f"the process that reads objects has ended (exit code {process.returncode}); see its output"
                )
            )


def _close(owner: int, process: subprocess.Popen[bytes], answers: socket.socket, reader: threading.Thread) -> None:
    if os.getpid() != owner:  # a forked child, whose process it is not
        return
    process.kill()
    process.wait()
    with contextlib.suppress(OSError):
        answers.shutdown(socket.SHUT_RDWR)  # a process forked meanwhile may hold the other end
    if reader is not threading.current_thread():
        reader.join(_JOIN_S)
    answers.close()
    if process.stdin is not None:
        with contextlib.suppress(OSError):  # what was not yet written
            process.stdin.close()
