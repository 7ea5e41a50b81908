"""Wrap functions, generators, coroutines and asynchronous generators in ranges."""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch.compiler import is_dynamo_compiling

from fastload.nvtx.ranges import NvtxRange, listening, pop, push

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from types import FunctionType

Kind: TypeAlias = Literal["function", "generator", "coroutine", "async generator"]


class Label:
    """Names the range of a call.

    Args:
        name: The range's name, unless ``message`` returns another.
        message: Takes the call's arguments and returns the range's name; if it raises, ``name`` is used.
    """

    def __init__(self, name: str, message: Callable[..., object] | None = None) -> None:
        self.name = name
        self.message = message
        self._complained = False

    def range(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NvtxRange:
        """A range for a call with these arguments."""
        if self.message is None:
            return NvtxRange(self.name)
        try:
            text = str(self.message(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the program must run as it would without a profiler
            if not self._complained:
                self._complained = True
                warnings.warn(
                    f"annotate: the message function for {self.name} raised {type(error).__name__}: {error}; its "
                    "ranges bear that name instead",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return NvtxRange(self.name)
        return NvtxRange(text.encode(errors="backslashreplace").decode(), registered=False)


def kind_of(function: Any) -> Kind:
    """The kind of ``function``, which decides how to wrap it."""
    if inspect.isgeneratorfunction(function):
        return "generator"
    if inspect.iscoroutinefunction(function):
        return "coroutine"
    return "async generator" if inspect.isasyncgenfunction(function) else "function"


def is_wrapper(function: FunctionType) -> bool:
    """Whether :func:`around` has made ``function``."""
    return function.__globals__ is globals()


def around(function: Callable[..., Any], labels: Iterable[Label]) -> Callable[..., Any]:
    """Wrap ``function`` with a range per label around each call; keeps its kind.

    A range never stays open while a generator or coroutine is suspended, which may resume in another thread: each
    period that it runs has its own range. Labels are read at each call; the first is the outermost range.
    """

    def opened(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NvtxRange | None:
        """Open all ranges; returns the outermost, whose end ends the others."""
        outermost = None
        for label in labels:
            inner = push(label.range(args, kwargs))
            outermost = outermost or inner
        return outermost

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or not listening():
            return function(*args, **kwargs)
        outermost = opened(args, kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            if outermost is not None:
                pop(outermost)

    @functools.wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Any:
        return (yield from _run_in_ranges(function(*args, **kwargs), functools.partial(opened, args, kwargs)))

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await _AwaitInRanges(function(*args, **kwargs), functools.partial(opened, args, kwargs))

    @functools.wraps(function)
    async def generate_later(*args: Any, **kwargs: Any) -> Any:
        begin = functools.partial(opened, args, kwargs)
        source = function(*args, **kwargs)
        step = source.asend(None)
        while True:
            try:
                item = await _AwaitInRanges(step, begin)
            except StopAsyncIteration:
                return
            try:
                sent = yield item
            except GeneratorExit:
                await _AwaitInRanges(source.aclose(), begin)
                raise
            except BaseException as error:  # noqa: BLE001 - forwarded to the generator
                step = source.athrow(error)
            else:
                step = source.asend(sent)

    wrappers: dict[Kind, Callable[..., Any]] = {
        "function": call,
        "generator": generate,
        "coroutine": run,
        "async generator": generate_later,
    }
    return wrappers[kind_of(function)]


def _run_in_ranges(inner: Any, begin: Callable[[], NvtxRange | None]) -> Generator[Any, Any, Any]:
    """Run a generator or coroutine, with ranges around each period between suspensions."""
    sent: Any = None
    error: BaseException | None = None
    while True:
        outermost = begin() if listening() else None
        try:
            yielded = inner.send(sent) if error is None else inner.throw(error)
        except StopIteration as stop:
            return stop.value
        finally:
            error = None
            if outermost is not None:
                pop(outermost)
        try:
            sent = yield yielded
        except GeneratorExit:
            outermost = begin() if listening() else None
            try:
                inner.close()
            finally:
                if outermost is not None:
                    pop(outermost)
            raise
        except BaseException as thrown:  # noqa: BLE001 - forwarded to the generator
            error, sent = thrown, None


class _AwaitInRanges:
    """Awaits a coroutine, with ranges around each period that it runs."""

    def __init__(self, coroutine: Any, begin: Callable[[], NvtxRange | None]) -> None:
        self._coroutine = coroutine
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, Any]:
        return _run_in_ranges(self._coroutine, self._begin)
