"""Samples that raise while they are read or decoded are counted and listed.

They are left out of their batches, or replaced. Where a sample is made (:mod:`fastload.workers.tolerant`,
:mod:`fastload.native.pipeline`), it becomes a :class:`Failed` of its batch, a :class:`Checked`. The consumer's thread
notes these in an :class:`ErrorLog` as it receives the batch, so that counts do not depend on how many batches
are made ahead.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import signal
import threading
import traceback
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOGGER: Final = logging.getLogger("fastload")

JUDGED_FROM: Final = 100
"""Samples from which on the share that failed is judged."""
NOTHING_WORKS: Final = "so do all samples that may replace it: the rest of its batch, and those that follow"
FOLLOWING: Final = 64
"""BatchIndices behind a batch, at least, that may replace samples of it."""
_SHOWN: Final = 20  # samples that an error lists
_TEXT_MAX: Final = 500  # characters of an error's message
_OF_THE_SYSTEM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class SampleError:
    """A sample that raised while it was read or decoded.

    Attributes:
        index: Its index, as the sampler gave it: a number or text, or else its ``repr``. ``None`` for a sample of an
            iterable dataset.
        file: Its file, or what the dataset's ``sample_name(index)`` calls it; ``None`` if unknown.
        error: Type and message of the first error.
        times: How often it was met.
    """

    index: int | str | None
    file: str | None
    error: str
    times: int = 1

    def __str__(self) -> str:
        sample = "a sample" if self.index is None else f"sample {self.index!r}"
        return f"{sample}{f' ({self.file})' if self.file else ''} raised {self.error}"


class TooManyBadSamplesError(RuntimeError):
    """More samples have failed than ``max_errors`` allows.

    Attributes:
        errors: The samples.
    """

    def __init__(self, message: str, errors: list[SampleError] | None = None) -> None:
        super().__init__(message)
        self.errors = errors or []


@dataclass(frozen=True, slots=True)
class Failed:
    """A sample of a batch that failed.

    Attributes:
        error: What it raised.
        instead: ``repr`` of the index of the sample in its place; ``None`` if it is left out.
    """

    error: SampleError
    instead: str | None = None


class LeftOut:
    """Stands for a batch all of whose samples failed.

    A class, so that it stays itself when pickled.
    """


class Checked(NamedTuple):
    """A batch with what its samples came to, as torch's iterator receives it.

    Attributes:
        data: What the collate function returned, or :class:`LeftOut`.
        tried: Samples that the sampler, or the dataset's iterator, gave.
        failed: Those that failed.
    """

    data: Any
    tried: int
    failed: list[Failed]


def is_of_sample(error: BaseException) -> bool:
    """Whether a sample is to blame for its error: no memory, no signal."""
    if isinstance(error, OSError) and error.errno in _OF_THE_SYSTEM:
        return False
    if not isinstance(error, Exception) or isinstance(error, MemoryError | torch.OutOfMemoryError):
        return False
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    return all(frame.f_code not in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def described(error: BaseException) -> str:
    """Return an error's type and message."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - any error of the user's class
        text = ""
    kind = type(error).__name__
    return f"{kind}: {text[:_TEXT_MAX]}" if text else kind


def failed_with(index: Any, file: str | None, error: BaseException) -> Failed:
    """Describe a sample's error.

    Args:
        index: The sampler's.
        file: The sample's, if known.
        error: What it raised.
    """
    file = file or _attribute_of(error, "filename") or _attribute_of(error, "path")
    return Failed(SampleError(plain(index), file, described(error)))


def _attribute_of(error: BaseException, name: str) -> str | None:
    try:
        value = getattr(error, name, None)
    except Exception:  # noqa: BLE001 - any error of the user's class
        return None
    return value if isinstance(value, str) else None


def plain(index: Any) -> int | str | None:
    """Return a sampler's index as a number or text."""
    if index is None:
        return None
    if isinstance(index, str):
        return str(index)
    try:
        return int(index.__index__())
    except Exception:  # noqa: BLE001 - it is none, or any error of the user's class
        return shown(index)


def shown(index: Any) -> str:
    """Return an index's ``repr``."""
    try:
        return repr(index)
    except Exception:  # noqa: BLE001 - any error of the user's class
        return f"<{type(index).__name__}>"


class ErrorLog:
    """The samples of a loader that have failed. Thread-safe."""

    def __init__(self) -> None:
        self.tried = self.failed = 0
        self._known: dict[Any, SampleError] = {}
        self._count = 0  # of those that max_errors counts
        self._text: str | None = None  # of the samples, in a state
        self.drop_inherited()

    def drop_inherited(self) -> None:
        """Go on in a forked child: another thread may have held the lock."""
        self._lock = threading.RLock()

    def note(self, tried: int, failed: list[Failed], max_errors: float) -> None:
        """Note a batch, and log samples that have not failed before.

        Args:
            tried: How many samples it was made of.
            failed: Those that failed.
            max_errors: See :class:`~fastload.FastLoader`.

        Raises:
            TooManyBadSamplesError: More have failed than ``max_errors`` allows.
        """
        new = []
        with self._lock:
            self.tried += tried
            self.failed += len(failed)
            for each in failed:
                self._text = None
                key = _key(each.error)
                self._count += key not in self._known or each.error.index is None
                if (known := self._known.get(key)) is not None:
                    self._known[key] = replace(known, times=known.times + 1)
                    continue
                self._known[key] = each.error
                new.append(each)
            over = self._over(max_errors)
        for each in new:  # without the lock: a handler is anybody's code
            then = "left out" if each.instead is None else f"replaced by sample {each.instead}"
            _LOGGER.warning("%s; %s", each.error, then)
        if over is not None:
            raise TooManyBadSamplesError(over, self.listed())

    def _over(self, max_errors: float) -> str | None:
        """Say that more have failed than allowed; ``None`` if not."""
        if isinstance(max_errors, int) or not max_errors:
            if self._count <= max_errors:
                return None
            over = f"at most max_errors={max_errors} samples may fail, but {self._count} did"
        elif self.tried < JUDGED_FROM or self.failed <= max_errors * self.tried:
            return None
        else:
            over = f"at most max_errors={max_errors} of all samples may fail, but {self.failed} of {self.tried} did"
        shown = [f"  {error}" for error in itertools.islice(self._known.values(), _SHOWN)]
        if len(self._known) > _SHOWN:
            shown.append(f"  and {len(self._known) - _SHOWN} more, which loader.errors() lists")
        return "\n".join([f"{over}; repair or leave out these samples, or allow more:", *shown])

    def listed(self) -> list[SampleError]:
        """List the samples that have failed, in the order in which they first did."""
        with self._lock:
            return list(self._known.values())

    def packed(self) -> dict[str, Any]:
        """Return plain data.

        The samples are one text, because a state is looked through at each step.
        """
        with self._lock:
            if self._text is None:
                known = [[error.index, error.file, error.error, error.times] for error in self._known.values()]
                self._text = json.dumps(known)
            return {"tried": self.tried, "failed": self.failed, "samples": self._text}

    def load(self, packed: dict[str, Any] | None) -> None:
        """Go on from :meth:`packed`. A state of before has none, and knows of no errors."""
        tried, failed, known = (0, 0, []) if packed is None else unpacked(packed)
        with self._lock:
            self.tried, self.failed, self._text = tried, failed, None
            self._known = {_key(error): error for error in known}
            self._count = sum(1 if error.index is not None else error.times for error in known)


def _key(error: SampleError) -> Any:
    """What tells a sample from others; the error, too, if it has no index."""
    return error.index, error.file, error.error if error.index is None else None


def unpacked(packed: dict[str, Any]) -> tuple[int, int, list[SampleError]]:
    """Return the counts and samples of :meth:`ErrorLog.packed`.

    Raises:
        TypeError, KeyError: The data is damaged.
    """
    try:
        known = [SampleError(*fields) for fields in json.loads(packed["samples"])]
    except ValueError as error:
        raise TypeError(f"samples that failed must be JSON: {error}") from error
    tried, failed = packed["tried"], packed["failed"]
    texts = all(isinstance(e.file, str | None) and isinstance(e.error, str) for e in known)
    if not texts or {type(tried), type(failed), *(type(error.times) for error in known)} != {int}:
        raise TypeError("samples that failed must have files, errors and counts")
    return tried, failed, known


class BatchIndices(list[Any]):
    """A batch's indices that know which ones follow.

    Args:
        given: The batch sampler's, of any type.

    Attributes:
        following: The indices behind the batch in the epoch's order; behind its last come its first.
    """

    following: tuple[Any, ...] = ()

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self._given = None if type(given) is list or iter(given) is given else given

    @property
    def given(self) -> Any:
        """The batch sampler's, unless it can be iterated only once."""
        return list(self) if self._given is None else self._given


def candidates(indices: Any, place: int) -> Iterator[Any]:
    """Iterate over the indices that may replace a sample.

    The rest of its batch, the batch's beginning, and what follows.

    Args:
        indices: The batch's.
        place: The sample's place in it.
    """
    return itertools.chain(indices[place + 1 :], indices[:place], getattr(indices, "following", ()))


class IndicesAhead:
    """An index sampler that gives :class:`BatchIndices`, and draws ahead for what follows.

    Args:
        index_sampler: Of a loader that makes batches.
    """

    def __init__(self, index_sampler: Any) -> None:
        self._index_sampler = index_sampler

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __iter__(self) -> Iterator[BatchIndices]:
        return _Ahead(iter(self._index_sampler))


class _Ahead:
    """Iterates over an epoch's batches of indices.

    No generator, which an interrupt would end.
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._drawn: deque[BatchIndices] = deque()
        self._first: list[Any] = []
        self._ended = False

    def __iter__(self) -> Iterator[BatchIndices]:
        return self

    def __next__(self) -> BatchIndices:
        while not self._ended and sum(map(len, itertools.islice(self._drawn, 1, None))) < FOLLOWING:
            before = len(self._drawn)
            self._drawn.extend(map(BatchIndices, itertools.islice(self._batches, 1)))  # in C: an interrupt loses none
            self._ended = len(self._drawn) == before
            if not self._ended and len(self._first) < FOLLOWING:
                self._first += self._drawn[-1][: FOLLOWING - len(self._first)]
        if not self._drawn:
            raise StopIteration
        indices = self._drawn.popleft()
        behind = itertools.chain(*self._drawn, self._first if self._ended else ())
        indices.following = tuple(itertools.islice(behind, FOLLOWING))
        return indices


def ahead_of(index_sampler: Any, on_error: str) -> Any:
    """Return the index sampler of a loader's iterator, which draws ahead if samples are replaced."""
    return IndicesAhead(index_sampler) if on_error == "replace" else index_sampler


def ahead_like(index_sampler: Any, other: Any) -> Any:
    """Return an index sampler that draws ahead if another one does."""
    return IndicesAhead(index_sampler) if isinstance(other, IndicesAhead) else index_sampler


def noting(log: ErrorLog, max_errors: float) -> Callable[[int, list[Failed]], None]:
    """Return what notes a batch by the number of its samples and those that failed."""
    return lambda tried, failed: log.note(tried, failed, max_errors)
