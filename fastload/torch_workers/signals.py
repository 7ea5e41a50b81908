"""Defer signals while processes and threads are started or ended.

Python runs signal handlers in the main thread between any two bytecodes. An exception from one (``KeyboardInterrupt``)
between ``os.fork`` and the child's first lines makes the child continue as a copy of the program; between the start of
a process and the line that records it, that process is never ended. Blocking signals does not help: another thread
receives them, and Python still runs their handlers in the main thread.

Python ignores what a handler raises within a finalizer: a Ctrl-C would be lost. So finalizers that take long defer
signals, too, and they are sent again once the main thread has left all finalizers (:func:`finalizer`).
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import os
import signal
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, TracebackType

P = ParamSpec("P")
T = TypeVar("T")

_getsignal: Final = getattr(sys.modules.get("_signal"), "getsignal", signal.getsignal)
"""Without the conversion to an enumeration, which would be most of the cost of a block (55 µs instead of 10)."""

_NUMBERS: Final = range(1, signal.NSIG)

LONGEST_S: Final = 5.0
"""Longest deferral. Later signals are delivered at once, so that Ctrl-C ends a block that hangs."""


_LOOK_S: Final = 1e-3
"""How often a thread looks whether the main thread has left a finalizer, which happens after an interrupt only."""

_libc = ctypes.CDLL(None)


def _action(number: int) -> bytes:
    """A signal's ``struct sigaction``: the handler first; 152 bytes on x86-64, at most that elsewhere."""
    action = ctypes.create_string_buffer(256)
    _libc.sigaction(number, None, action)
    return action.raw


def _set_action(number: int, action: bytes) -> None:
    _libc.sigaction(number, action, None)


def _handler_of(action: bytes) -> bytes:
    return action[: ctypes.sizeof(ctypes.c_void_p)]


class DeferredSignals:
    """See :func:`deferred_signals`."""

    def __init__(self, open_in: frozenset[CodeType] = frozenset(), again: list[int] | None = None) -> None:
        self._open_in = open_in
        self._again = again  # collects signals whose handlers raise, instead of raising at the end
        self.late: BaseException | None = None  # raised before the end, to end what hangs
        self._former: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._actions: dict[int, bytes] = {}  # the kernel's previous actions
        self._arrived: list[int] = []
        self._defers = False
        self._until = 0.0
        self._frame: FrameType | None = None
        self._outer: DeferredSignals | None = None
        self._thread = 0
        self._pid = os.getpid()

    def __enter__(self) -> None:
        thread = threading.get_ident()
        if thread != threading.main_thread().ident:  # runs no handlers
            return
        global _innermost
        self._thread = thread
        self._frame = sys._getframe(1)
        self._until = time.monotonic() + LONGEST_S
        self._outer = _innermost
        handlers = [(number, handler) for number in _NUMBERS if callable(handler := _getsignal(number))]
        try:  # without a condition that ends a loop's turn: from Python 3.13 on, a signal may leave the block there
            self._defers = True
            for number, handler in handlers:
                while isinstance(own := getattr(handler, "__self__", None), DeferredSignals) and not own._defers:
                    handler = own._former[number]  # left by an interrupted deferral
                self._take(number, handler)
            _innermost = self
        except BaseException:
            self.end()
            raise

    def _take(self, number: int, handler: Callable[[int, FrameType | None], Any]) -> None:
        """Replace a handler that Python runs; a C library's handler on top stays."""
        before = _action(number)
        self._former[number] = handler
        signal.signal(number, self._note)
        self._actions[number] = before
        if _handler_of(before) != _handler_of(_action(number)):
            self._give_back(number, handler)

    def _give_back(self, number: int, handler: Callable[[int, FrameType | None], Any]) -> None:
        if signal.getsignal(number) != self._note:
            return
        signal.signal(number, handler)
        if number in self._actions:
            _set_action(number, self._actions[number])  # with its flags: signal.signal forgets siginterrupt()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Restore the handlers and deliver the deferred signals."""
        global _innermost
        if _innermost is self:
            _innermost = self._outer
        self._frame = self._outer = None
        try:
            for number, handler in self._former.items():
                self._give_back(number, handler)
        finally:
            self._defers = False  # if our handler is still installed (chained, or after an interrupt), it forwards
            try:
                self._deliver()
            finally:
                self._again = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._defers or time.monotonic() > self._until or self._is_open(frame):
            self._call(number, frame)
        elif number not in self._arrived:
            self._arrived.append(number)

    def _is_open(self, frame: FrameType | None) -> bool:
        if not self._open_in:
            return False
        while frame is not None and frame is not self._frame:
            if frame.f_code in self._open_in:
                return True
            frame = frame.f_back
        return False

    def _deliver(self) -> None:
        while self._arrived:
            number = self._arrived.pop(0)
            try:  # not by raising the signal again: a wakeup descriptor (asyncio's) would receive it twice
                self._call(number, sys._getframe())
            finally:
                self._deliver()

    def _call(self, number: int, frame: FrameType | None) -> None:
        try:
            self._former[number](number, frame)
        except BaseException as error:
            if self._again is None:
                raise
            self._again.append(number)
            if self._defers:  # too late to wait for the end
                self.late = error
                raise

    def forked(self) -> None:
        """Reset in a forked child: earlier signals were the parent's.

        A fork in a thread other than ours ends the deferral.
        """
        self._arrived.clear()
        if threading.get_ident() != self._thread:
            self.end()


_innermost: DeferredSignals | None = None


def deferred_signals(open_in: frozenset[CodeType] = frozenset()) -> DeferredSignals:
    """Defer signals with Python handlers to the end of a ``with`` block.

    Each is then delivered once. Has no effect outside the main thread, where no handlers run. May be nested. A child
    forked inside the block continues to defer for up to :data:`LONGEST_S`, or until it calls :func:`usual_signals`. A
    spawned child starts with a new program's handlers.

    Args:
        open_in: Functions that run the user's code, which a signal must be able to end: during a call of one, signals
            are delivered at once. The state must be consistent whenever they are called.
    """
    return DeferredSignals(open_in)


def finalizer(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a finalizer so that signals neither end it nor are lost.

    They wait for its end, as in :func:`deferred_signals`. Where a handler raises then, which Python would ignore, the
    signal is sent again, and the handler is called again, once the main thread has left all finalizers. Has no effect
    in other threads. An interrupt before the wrapper's first lines is still lost. Once the interpreter has taken this
    module apart, nothing is done: what is left ends with the process.

    Args:
        function: A ``__del__``, or what one calls.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if _finalize is None:
            return None
        return _finalize(function, *args, **kwargs)

    return run


class Finalizer(weakref.finalize):  # type: ignore[type-arg]
    """A ``weakref.finalize`` that is a :func:`finalizer` when the object has gone.

    A direct call, as at exit, raises what handlers raise. After exit it does nothing.
    """

    __slots__ = ()

    def __call__(self, gone: Any = None) -> Any:  # noqa: D102
        if gone is None or self._shutdown:  # type: ignore[attr-defined]  # the interpreter takes this module apart
            return super().__call__()
        return _finalize(weakref.finalize.__call__, self)


def _finalize(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    again: list[int] = []
    while True:
        try:
            deferral = DeferredSignals(again=again)
            deferral.__enter__()
            break
        except KeyboardInterrupt:  # not deferred yet
            again.append(signal.SIGINT)
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        if error is not deferral.late:  # which is raised again
            raise
        return cast("T", None)
    finally:
        deferral.late = None
        try:
            deferral.end()
        except KeyboardInterrupt:  # not deferred any more
            again.append(signal.SIGINT)
        # Without a call from here on, an interrupt is raised in the code that Python returns to, not in this finalizer.
        if again and (numbers := set(again) - on_their_way):
            on_their_way.update(numbers)
            try:
                _thread.start_new_thread(_send_again, (numbers,))
            except RuntimeError:  # no more threads
                on_their_way.difference_update(numbers)
                raise


FINALIZERS: Final = {finalizer(print).__code__, Finalizer.__call__.__code__}
"""Code that Python calls in finalizers. The wrapper's is the same for all."""


on_their_way: Final[set[int]] = set()
"""Signals of finalizers that are about to be sent again."""


def _send_again(numbers: set[int]) -> None:
    """Send signals to the main thread when it has left all finalizers."""
    main = cast("int", threading.main_thread().ident)
    left = 0
    while left < 2:  # not at once: a signal just before a call such as time.sleep() does not end that (CPython)
        time.sleep(_LOOK_S)
        left = 0 if _is_finalizing(main) else left + 1
    for number in numbers:
        signal.pthread_kill(main, number)
    on_their_way.difference_update(numbers)


def _is_finalizing(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code in FINALIZERS:
            return True
        frame = frame.f_back
    return False


def usual_signals() -> None:
    """Restore the handlers in a forked child, and deliver signals since the fork.

    Has no effect in other processes.
    """
    while _innermost is not None and _innermost._pid != os.getpid():
        _innermost.end()


def _after_fork() -> None:
    on_their_way.clear()
    deferral = _innermost
    while deferral is not None:
        outer = deferral._outer
        deferral.forked()
        deferral = outer


os.register_at_fork(after_in_child=_after_fork)
