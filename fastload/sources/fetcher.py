"""The process that reads objects of a store, many at a time.

Worker processes are mostly forked, and the runtime of ``obstore`` does not work in a forked process. A process of its
own also spares the training process's interpreter the work. Requests come through standard input as pickles:

* ``(number, [(key, size, etag), ...], True)`` asks for objects, ``False`` for those of the store though they are in the
  cache; ``(number, LIST)`` for a pickle of all that there are; ``(number, None)`` cancels that.
* An answer, through a socket, is its number and the number of objects (``HEADER``), with a file in memory: for each
  object its kind and its length (``ENTRY``); then, for each, its bytes; or the key that its file in the cache is tagged
  with, and that file's path; or an error as a pickle. So the training process copies nothing, and its interpreter is
  held once for a batch.

Each request in flight has a thread: obstore's calls that block take half the time of a core that its coroutines take
(125 us against 258 us for an object of 44 KB).
"""

from __future__ import annotations

import os
import pickle
import random
import resource
import socket
import struct
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from fastload._tagged_files import make_key
from fastload._version import with_extra
from fastload.sources.disk_cache import DiskCache

HEADER: Final = struct.Struct("<QQ")
ENTRY: Final = struct.Struct("<BQ")
OBJECT: Final = 0
KEPT: Final = 1
ERROR: Final = 2
LIST: Final = "list"
FIRST_LIMIT: Final = 32  # requests in flight at first
MOST_REQUESTS: Final = 512
FEWEST_REQUESTS: Final = 8
_GAIN_MIN: Final = 1.2  # of the rate, by twice as many requests, for more of them to be tried
_MEASURED_S: Final = 0.25  # at least
_BEGUN_S: Final = 0.25  # that more requests take to begin: each needs a thread, a connection and the store's latency
_TRIED_EVERY_S: Final = 5.0
_HALVED_EVERY_S: Final = 1.0
_BACKOFF_S: Final = 0.1
_BACKOFF_MAX_S: Final = 8.0
_STACK_BYTES: Final = 1 << 20  # of a thread
_OBJECT_MAX: Final = 1 << 31  # bytes that are read of an object: room for all of them is made at once
_REPEATED_MAX: Final = 1000  # objects that a store lists twice, and as many more as it has
_PIECES_MAX: Final = 512  # of one write; systems take 1024
_REFUSALS: Final = ("PermissionDeniedError", "UnauthenticatedError")  # of obstore, and no builtin types


@dataclass(frozen=True, slots=True)
class Setup:
    """What the process is told first.

    Attributes:
        url: URL of the store; keys are relative to it.
        options: Arguments of ``obstore.store.from_url``.
        requests: Requests in flight; ``None`` finds the number.
        retries: Number of times that a failed request is made again.
        cache_dir: Folder of the cache, if any.
        max_cache_bytes: Most bytes of its files.
    """

    url: str
    options: dict[str, Any]
    requests: int | None
    retries: int
    cache_dir: str | None
    max_cache_bytes: int


class Kept(NamedTuple):
    """A file of the cache.

    Attributes:
        path: Path of the file.
        tagged_with: Key of its tags.
    """

    path: str
    tagged_with: bytes


class RequestLimit:
    """How many requests may be in flight: a fixed number, or what helps. Not thread-safe.

    A rate needs as many as rate x latency. The number is doubled as long as that makes the rate of objects grow, which
    is tried again later, as a busy machine hides it. It is halved when the store fails.
    """

    def __init__(self, fixed: int | None) -> None:
        self.limit = FIRST_LIMIT if fixed is None else fixed
        self._is_fixed = fixed is not None
        self._done = 0  # requests since `_begun`
        self._begun, self._try_at, self._failed_at = 0.0, 0.0, -_HALVED_EVERY_S
        self._rate = 0.0  # with half as many; 0 if it is not known

    def failed(self, now: float) -> None:
        """Halve the number, at most once a second; it may grow again."""
        if not self._is_fixed and now > self._failed_at + _HALVED_EVERY_S:
            self.limit, self._failed_at = max(FEWEST_REQUESTS, self.limit // 2), now
            self._rate, self._try_at, self._done = 0.0, 0.0, 0

    def finished(self, now: float, *, others_wait: bool) -> None:
        """Count a request that has ended; unless others wait, something else is the limit."""
        if self._is_fixed or now < self._try_at:
            return
        if not others_wait:
            self._done = 0
            return
        if self._done == 0:
            self._begun = now
        self._done += 1
        if self._done <= 2 * self.limit or now - self._begun < _MEASURED_S:
            return
        rate, self._done = (self._done - 1) / (now - self._begun), 0
        if rate >= _GAIN_MIN * self._rate and self.limit < MOST_REQUESTS:
            self.limit, self._rate, self._try_at = 2 * self.limit, rate, now + _BEGUN_S
            return
        if rate < _GAIN_MIN * self._rate:  # more are of no use
            self.limit //= 2
        self._rate, self._try_at = 0.0, now + _TRIED_EVERY_S


@dataclass(eq=False, slots=True)
class _Batch:
    """Objects that are answered together."""

    number: int
    entries: list[Any]
    missing: int
    cancelled: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True)
class _Wanted:
    """An object to be read, or all to be listed."""

    batch: _Batch
    place: int
    wanted: tuple[str, int | None, str | None] | None  # key, size in bytes, entity tag; None: the list of all
    attempt: int = 0


class Fetcher:
    """Reads objects with as many threads as requests may be in flight.

    Args:
        setup: What is read, and how.
        store: An ``obstore`` store of the URL; or an error, which is then each answer.
        write: Takes an answer's header and the pieces of its file; called in any thread.
    """

    def __init__(self, setup: Setup, store: Any, write: Any) -> None:
        self._setup = setup
        self._store = store
        self._write = write
        self._limit = RequestLimit(setup.requests)
        self._lock = threading.Lock()  # of the limit, and of the next two
        self._threads = 0
        self._unfinished = 0  # tasks that wait or are being read
        self._tasks: SimpleQueue[_Wanted] = SimpleQueue()
        self._cache: DiskCache | None = None
        try:
            if setup.cache_dir is not None:
                self._cache = DiskCache(setup.cache_dir, setup.max_cache_bytes, make_key())
        except (OSError, ValueError) as error:
            self._store = error
        self._batches: dict[int, _Batch] = {}

    def take(self, number: int, wanted: Any, cached: bool = True) -> None:
        """Begin what a message asks for."""
        if wanted is None:
            if (known := self._batches.get(number)) is not None:
                known.cancelled = True
            return
        objects = [None] if wanted == LIST else wanted
        entries = [self._kept(one) if cached else None for one in objects]
        batch = _Batch(number, entries, entries.count(None))
        self._batches[number] = batch
        if not batch.missing:
            self._answer(batch)
        self._put([_Wanted(batch, place, one) for place, one in enumerate(objects) if entries[place] is None])

    def _kept(self, wanted: Any) -> Kept | None:
        """Return an object's file in the cache, if it is there."""
        if self._cache is None or wanted is None:
            return None
        path = self._cache.path_of(name := self._name(wanted), wanted[1])
        return None if path is None else Kept(path, self._cache.key_of(name))

    def _name(self, wanted: Any) -> str:
        return f"{self._setup.url} {wanted}"

    def _put(self, tasks: list[_Wanted]) -> None:
        for task in tasks:
            self._tasks.put(task)
        with self._lock:
            self._unfinished += len(tasks)
        self._start_threads()

    def _start_threads(self) -> None:
        """Start as many threads as there are tasks, up to the limit."""
        with self._lock:
            missing = min(self._limit.limit, self._unfinished) - self._threads
            self._threads += max(0, missing)
        for started in range(missing):
            try:
                threading.Thread(target=self._work, daemon=True).start()
            except RuntimeError:  # the system allows no more; tried again when something is asked for
                with self._lock:
                    self._threads -= missing - started
                    if self._threads == 0:
                        raise
                return

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._threads > self._limit.limit:
                    self._threads -= 1
                    return
            task = self._tasks.get()
            try:
                entry = self._entry(task)
            except BaseException as error:  # noqa: BLE001 - Rust's panics, too; without an answer the loader would hang
                entry = self._named(error, task)
            with self._lock:
                self._unfinished -= 1
            if entry is not None:
                self._done(task, entry)

    def _entry(self, task: _Wanted) -> Any:
        """Return an object's bytes or an error; ``None`` if it will be tried again."""
        if task.batch.cancelled:
            return b""
        if isinstance(self._store, Exception):
            return self._store
        try:
            data = self._list() if task.wanted is None else self._object(*task.wanted)
        except Exception as error:  # noqa: BLE001 - any error of the store; raised in the sample's turn
            if _kind_of(error) is not OSError:
                return self._named(error, task)
            with self._lock:
                self._limit.failed(time.monotonic())
            if task.attempt == self._setup.retries:
                return self._named(error, task)
            self._try_later(task)
            return None
        with self._lock:
            before = self._limit.limit
            self._limit.finished(time.monotonic(), others_wait=not self._tasks.empty())
            has_grown = self._limit.limit > before
        if has_grown:
            self._start_threads()
        if self._cache is not None and task.wanted is not None:
            self._cache.put(self._name(task.wanted), data)
        return data

    def _try_later(self, task: _Wanted) -> None:
        delay_s = min(_BACKOFF_MAX_S, _BACKOFF_S * 2**task.attempt) * random.uniform(0.5, 1)
        task.attempt += 1
        timer = threading.Timer(delay_s, self._put, ([task],))
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # the system allows no more threads
            time.sleep(delay_s)
            self._put([task])

    def _done(self, task: _Wanted, entry: Any) -> None:
        batch = task.batch
        with batch.lock:
            batch.entries[task.place] = entry
            batch.missing -= 1
            whole = batch.missing == 0
        if whole:
            self._answer(batch)

    def _answer(self, batch: _Batch) -> None:
        self._batches.pop(batch.number, None)
        if batch.cancelled:
            return
        entries = [*map(_as_bytes, batch.entries)]
        pieces = [ENTRY.pack(kind, len(data)) for kind, data in entries] + [data for _, data in entries]
        self._write(HEADER.pack(batch.number, len(entries)), pieces)

    def _list(self) -> bytes:
        import obstore

        found: dict[str, tuple[str, int, str | None]] = {}
        count = 0
        for some in obstore.list(self._store):
            found.update((about["path"], (about["path"], about["size"], about["e_tag"])) for about in some)
            count += len(some)
            if count > 2 * len(found) + _REPEATED_MAX:
                raise OSError(f"the store's list repeats itself: {len(found)} different objects among {count}")
        return pickle.dumps([*found.values()])

    def _object(self, key: str, size: int | None, etag: str | None) -> Any:
        import obstore

        answer = obstore.get(self._store, key)
        announced, found = answer.meta["size"], answer.meta.get("e_tag")
        if size is not None and announced != size:
            raise OSError(f"got {announced} bytes of the {size} listed")
        if announced > _OBJECT_MAX:
            raise OSError(f"it has {announced} bytes; leave out what has more than {_OBJECT_MAX}")
        if etag and found and _plain(etag) != _plain(found):
            raise OSError(f"its entity tag is {found}, and {etag} was listed; make the dataset again if it has changed")
        data = answer.bytes()
        if announced != len(data):
            raise OSError(f"got {len(data)} bytes of the {announced} announced")
        return data

    def _named(self, error: BaseException, task: _Wanted) -> Exception:
        """Make an error of a builtin type that names the object."""
        url = self._setup.url if task.wanted is None else f"{self._setup.url}/{task.wanted[0]}"
        kind = _kind_of(error)
        text = str(error).partition("\n")[0]
        return kind(f"{url} cannot be read: {text}" if text else f"{url} cannot be read: {type(error).__name__}")


def _plain(etag: str) -> str:
    """Return an entity tag as all stores write it, in lists and in answers."""
    return etag.removeprefix("W/").strip('"')


def _kind_of(error: BaseException) -> type[OSError]:
    """Return the builtin type of an error; those but ``OSError`` are not tried again."""
    if type(error).__name__ in _REFUSALS:
        return PermissionError
    return next((kind for kind in (FileNotFoundError, PermissionError) if isinstance(error, kind)), OSError)


def _as_bytes(entry: Any) -> tuple[int, Any]:
    """Return what kind of entry it is, and its bytes."""
    if isinstance(entry, Kept):
        return KEPT, entry.tagged_with + os.fsencode(entry.path)
    return (ERROR, pickle.dumps(entry)) if isinstance(entry, Exception) else (OBJECT, entry)


class _Answers:
    """Sends answers through a socket. Thread-safe."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.Lock()

    def write(self, header: bytes, pieces: list[Any]) -> None:
        """Send an answer, or end the process: who asked would wait forever."""
        try:
            with open(os.memfd_create("fastload-objects"), "wb", buffering=0) as file:
                for place in range(0, len(pieces), _PIECES_MAX):
                    _write_all(file.fileno(), pieces[place : place + _PIECES_MAX])
                with self._lock:
                    socket.send_fds(self._socket, [header], [file.fileno()])
        except (BrokenPipeError, ConnectionResetError):  # the reader has ended
            os._exit(0)
        except OSError:  # no memory or descriptor is left
            traceback.print_exc()
            os._exit(1)


def _write_all(descriptor: int, pieces: list[Any]) -> None:
    left = sum(map(len, pieces))
    while (left := left - os.writev(descriptor, pieces)) > 0:  # one write takes at most 2 GB
        written = sum(map(len, pieces)) - left
        while written >= len(pieces[0]):
            written -= len(pieces.pop(0))
        pieces[0] = memoryview(pieces[0])[written:]


def _store_of(setup: Setup) -> Any:
    """Make the store, or the error that says why there is none."""
    try:
        from obstore.store import from_url
    except ImportError as error:
        return ImportError(f"object stores need obstore; {with_extra('stores')} ({error})")
    try:
        return from_url(setup.url, **setup.options)
    except Exception as error:  # noqa: BLE001 - of many types, which are obstore's own
        text = str(error).partition("\n")[0]
        return ValueError(f"{setup.url} cannot be opened with these options: {text}")


def main() -> None:
    """Answer requests until standard input ends, then end the process and its threads."""
    try:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each request in flight has a connection
        setup: Setup = pickle.load(sys.stdin.buffer)
        threading.stack_size(_STACK_BYTES)
        fetcher = Fetcher(setup, _store_of(setup), _Answers(int(sys.argv[1])).write)
        while True:
            fetcher.take(*pickle.load(sys.stdin.buffer))
    except (KeyboardInterrupt, EOFError, pickle.UnpicklingError):  # it may end within a message
        os._exit(0)
    except BaseException:  # noqa: BLE001 - any
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main()
