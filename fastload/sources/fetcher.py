"""The process that reads objects of a store, many at a time.

The runtime of ``obstore`` does not survive a fork, which makes most worker processes; and requests so take no time of
the training process's interpreter. They come through standard input as pickles; answers leave through standard output:

* ``(number, [(key, size, etag), ...])`` asks for objects; ``(number, LIST)`` for a pickle of all that there are;
  ``(number, None)`` cancels that.
* An answer is its number and the number of objects (``HEADER``); then for each whether it is an error and its length
  (``ENTRY``), and the bytes, or the error as a pickle.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import random
import struct
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fastload.sources.disk_cache import DiskCache

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_Found = TypeVar("_Found")

HEADER: Final = struct.Struct("<QQ")
ENTRY: Final = struct.Struct("<?Q")
LIST: Final = "list"
FIRST_LIMIT: Final = 32  # requests in flight at first
MOST_REQUESTS: Final = 512
FEWEST_REQUESTS: Final = 8
_GAIN_MIN: Final = 1.2  # of the rate, by twice as many requests, for more of them to be tried
_HALVED_EVERY_S: Final = 1.0
_BACKOFF_S: Final = 0.1
_BACKOFF_MAX_S: Final = 8.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What the process is told first.

    Attributes:
        url: Of the store; keys are relative to it.
        options: Arguments of ``obstore.store.from_url``.
        requests: Requests in flight; ``None`` finds the number.
        retries: Of a request that has failed.
        cache_dir: Folder of the cache, if any.
        max_cache_bytes: Bytes of its files.
    """

    url: str
    options: dict[str, Any]
    requests: int | None
    retries: int
    cache_dir: str | None
    max_cache_bytes: int


class RequestLimit:
    """How many requests may be in flight.

    A rate needs as many as rate x latency. The number is doubled as long as that makes the rate of objects grow, and
    halved when the store fails.

    Args:
        fixed: The number, if it is not to be found.
    """

    def __init__(self, fixed: int | None) -> None:
        self.limit = FIRST_LIMIT if fixed is None else fixed
        self._grows = fixed is None
        self._is_fixed = fixed is not None
        self._in_flight = self._done = 0
        self._begun, self._rate, self._failed = 0.0, 0.0, -_HALVED_EVERY_S
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        while self._in_flight >= self.limit:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._in_flight += 1

    async def __aexit__(self, *_: object) -> None:
        self._in_flight -= 1
        self._measure()
        self._wake()

    def failed(self) -> None:
        """Halve the number, at most once a second; it may grow again."""
        now = time.monotonic()
        if not self._is_fixed and now > self._failed + _HALVED_EVERY_S:
            self.limit, self._failed = max(FEWEST_REQUESTS, self.limit // 2), now
            self._grows, self._rate, self._done = True, 0.0, 0

    def _measure(self) -> None:
        if not self._grows:
            return
        if not self._waiting:  # others are the limit
            self._done = 0
            return
        now = time.monotonic()
        if self._done == 0:
            self._begun = now
        self._done += 1
        if self._done <= 2 * self.limit:
            return
        rate, self._done = 2 * self.limit / (now - self._begun), 0
        self._grows = rate >= _GAIN_MIN * self._rate and self.limit < MOST_REQUESTS
        self._rate = rate
        if self._grows:
            self.limit *= 2

    def _wake(self) -> None:
        free = self.limit - self._in_flight
        while self._waiting and free > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1


class Fetcher:
    """Reads objects.

    Args:
        setup: What is read, and how.
        store: An ``obstore`` store of the URL.
    """

    def __init__(self, setup: Setup, store: Any) -> None:
        self._setup = setup
        self._store = store
        self._limit = RequestLimit(setup.requests)
        self._cache = None if setup.cache_dir is None else DiskCache(setup.cache_dir, setup.max_cache_bytes)

    async def read(self, key: str, size: int | None, etag: str | None) -> bytes | Exception:
        """Return an object's bytes, or the error."""
        name = f"{self._setup.url} {key} {etag} {size}"
        if self._cache is not None and (kept := self._cache.get(name, size)) is not None:
            return kept
        try:
            data = await self._retried(lambda: self._object(key, size))
        except Exception as error:  # noqa: BLE001 - any error of the store; raised in the sample's turn
            return _named(error, f"{self._setup.url}/{key}")
        if self._cache is not None:
            self._cache.put(name, data)
        return data

    async def keys(self) -> bytes | Exception:
        """Return a pickled list of all objects' keys, sizes and entity tags, or the error."""
        try:
            return pickle.dumps(await self._retried(self._list))
        except Exception as error:  # noqa: BLE001 - any error of the store; raised where the answer is taken
            return _named(error, self._setup.url)

    async def _list(self) -> list[tuple[str, int, str | None]]:
        import obstore

        return [
            (about["path"], about["size"], about["e_tag"]) async for some in obstore.list(self._store) for about in some
        ]

    async def _retried(self, attempt_of: Callable[[], Awaitable[_Found]]) -> _Found:
        for attempt in range(self._setup.retries + 1):
            try:
                async with self._limit:
                    return await attempt_of()
            except (FileNotFoundError, PermissionError):
                raise
            except Exception:
                self._limit.failed()
                if attempt == self._setup.retries:
                    raise
            await asyncio.sleep(min(_BACKOFF_MAX_S, _BACKOFF_S * 2**attempt) * random.uniform(0.5, 1))
        raise AssertionError  # the last attempt returns or raises

    async def _object(self, key: str, size: int | None) -> bytes:
        import obstore

        answer = await obstore.get_async(self._store, key)
        data = bytes(await answer.bytes_async())
        for expected, by in ((answer.meta["size"], "announced"), (size, "listed")):
            if expected is not None and expected != len(data):
                raise OSError(f"got {len(data)} bytes of the {expected} {by}")
        return data

    async def answer(self, number: int, wanted: Any) -> list[bytes]:
        """Read a batch, or list all; return the pieces of the answer."""
        asked = [self.keys()] if wanted == LIST else [self.read(*one) for one in wanted]
        pieces = [HEADER.pack(number, len(asked))]
        for entry in await asyncio.gather(*asked):
            is_error = isinstance(entry, Exception)
            data = pickle.dumps(entry) if isinstance(entry, Exception) else entry
            pieces += [ENTRY.pack(is_error, len(data)), data]
        return pieces


def _named(error: Exception, url: str) -> Exception:
    """Make an error of a builtin type that names the object."""
    kind = (
        next(known for known in (FileNotFoundError, PermissionError, OSError) if issubclass(known, type(error)))
        if isinstance(error, OSError)
        else OSError
    )
    text = str(error).partition("\n")[0]
    return kind(f"{url} cannot be read: {text}" if text else f"{url} cannot be read: {type(error).__name__}")


async def _serve(fetcher: Fetcher) -> None:
    loop = asyncio.get_running_loop()
    messages: asyncio.Queue[Any] = asyncio.Queue()

    def listen() -> None:
        with contextlib.suppress(EOFError, RuntimeError):  # the other process, or this loop, has ended
            while True:
                loop.call_soon_threadsafe(messages.put_nowait, pickle.load(sys.stdin.buffer))
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(messages.put_nowait, None)

    threading.Thread(target=listen, daemon=True, name="fastload-listen").start()
    tasks: dict[int, asyncio.Task[None]] = {}
    writing = asyncio.Lock()

    async def serve(number: int, wanted: Any) -> None:
        try:
            pieces = await fetcher.answer(number, wanted)
            async with writing:
                await loop.run_in_executor(None, _write, pieces)
        finally:
            tasks.pop(number, None)

    while (message := await messages.get()) is not None:
        number, wanted = message
        if wanted is not None:
            tasks[number] = loop.create_task(serve(number, wanted))
        elif (task := tasks.get(number)) is not None:
            task.cancel()


def _write(pieces: list[bytes]) -> None:
    sys.stdout.buffer.writelines(pieces)
    sys.stdout.buffer.flush()


def main() -> None:
    """Answer requests until standard input ends."""
    from obstore.store import from_url

    setup: Setup = pickle.load(sys.stdin.buffer)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(_serve(Fetcher(setup, from_url(setup.url, **setup.options))))


if __name__ == "__main__":
    main()
