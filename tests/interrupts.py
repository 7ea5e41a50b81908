"""Ctrl-C at every moment: make SIGINT pending before each bytecode in turn.

Raising from a trace function instead would be too strict: Python handles signals only after a call, at a function's
start and at a loop's back edge. So ``with`` over a lock implemented in C is atomic, but not one over a
:class:`threading.Condition`, whose ``__enter__`` is Python.

Python 3.14 handles them after the call of a ``with`` statement's ``__enter__`` as well, and then skips ``__exit__``: a
bug (gh-148874), which 3.15 mends. There, too, a signal that would land after that call comes one bytecode later here.
"""

from __future__ import annotations

import _thread
import dis
import functools
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import effort

from fastload.torch_workers.signals import on_their_way

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

TESTS = str(Path(__file__).parent)
S = TypeVar("S")


class _Pending:
    """Make a signal pending by ``pending[signum]``.

    That is no call, after which the tracer itself would get the signal.
    """

    __getitem__ = _thread.interrupt_main


class _Tracer:
    """Makes SIGINT pending before the ``moment``-th bytecode in frames of files outside the tests."""

    def __init__(self, moment: int) -> None:
        self.left = moment
        self.is_done = False
        self.pending = _Pending()

    def enter(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        if self.is_done or frame.f_code.co_filename.startswith(TESTS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if event != "opcode":
            return self.step
        self.left -= 1
        if self.left > 0 or self.is_done or _is_before_enter(frame):
            return self.step
        self.is_done = True
        outer: FrameType | None = frame
        while outer is not None:  # else the signal would land in the next call of this function
            outer.f_trace = None
            outer = outer.f_back
        self.pending[signal.SIGINT]  # type: ignore[index]
        return None


def _idle(frame: FrameType, _event: str, _arg: Any) -> None:
    """Trace nothing, but let code go on reporting its bytecodes."""
    frame.f_trace_opcodes = True


@functools.lru_cache(None)
def _nexts(code: CodeType) -> dict[int, tuple[int, frozenset[str]]]:
    """Say of each bytecode which one follows, and what may come before signals are handled.

    That is ``"return"``, or ``"enter"``, the call of a ``with`` statement's ``__enter__``, after which they are.
    """
    found: dict[int, tuple[int, frozenset[str]]] = {}
    steps, after = list(dis.get_instructions(code)), -1
    for before, step in reversed(list(zip([None, *steps], steps, strict=False))):
        kinds: frozenset[str] = frozenset()
        if "RETURN" in step.opname:
            kinds = frozenset({"return"})
        elif step.opname == "CALL" and before is not None and before.opname == "LOAD_SPECIAL":
            kinds = frozenset({"enter"})
        elif step.opname not in ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD"):
            targets = [step.argval] if "JUMP" in step.opname else []
            targets += [after] if step.opname != "JUMP_FORWARD" and "RAISE" not in step.opname else []
            kinds = frozenset().union(*(found[target][1] for target in targets if target in found))
        found[step.offset] = after, kinds
        after = step.offset
    return found


def _is_before_enter(frame: FrameType) -> bool:
    """Whether Python would next handle signals after the call of a ``with`` statement's ``__enter__``."""
    outer: FrameType | None = frame
    at = frame.f_lasti
    while outer is not None:
        _, kinds = _nexts(outer.f_code).get(at, (-1, frozenset()))
        if "enter" in kinds or "return" not in kinds:
            return "enter" in kinds
        if (outer := outer.f_back) is not None:
            at, _ = _nexts(outer.f_code).get(outer.f_lasti, (-1, frozenset()))
    return False


def interrupted_at_every_opcode(
    make: Callable[[], S],
    act: Callable[[S], object],
    check: Callable[[S, bool], object],
    *,
    at_most: int = 50_000,
    stride: int | None = None,
) -> int:
    """Interrupt ``act(make())`` before its first bytecode, a new one before its second, and so on.

    Ends with the first of these runs that completes. Frames of every Python file count (fastload's, :mod:`threading`'s,
    :mod:`weakref`'s), except those under ``tests/``. So that an interrupt does not lose an item that the code under
    test has returned, receive it without a call in between: by ``for``, or by ``seen.extend(islice(iterator, 1))``.
    Must run in the main thread.

    Args:
        make: Makes the subject. Not interrupted.
        act: The code to interrupt. It must end by itself: a pending signal does not end a wait that begins after it.
        check: Gets the subject and whether ``act`` raised :class:`KeyboardInterrupt`. Not interrupted.
        at_most: Bytecodes before giving up.
        stride: Interrupt only every ``stride``-th bytecode; by default every one with ``--all``, else every 7th.

    Returns:
        The number of moments. The last run, which was not interrupted, is checked too.
    """
    stride = effort.stride() if stride is None else stride
    handler, tracing = signal.signal(signal.SIGINT, signal.default_int_handler), sys.gettrace()
    # From Python 3.12 on, code reports its bytecodes only if it was traced before: an uninterrupted run comes first.
    # From 3.13 on, a frame that does not ask for them ends that.
    untraced = [at_most] if sys.version_info >= (3, 12) else []
    try:
        for moment in (*untraced, *range(1, at_most, stride)):
            tracer = _Tracer(moment)
            subject, interrupted = make(), False
            try:
                sys.settrace(tracer.enter)
                act(subject)
                sys.settrace(_idle)  # a call: a pending signal is still handled here
                while on_their_way:  # from a finalizer, to be raised here
                    time.sleep(0.001)
            except KeyboardInterrupt:
                interrupted = True
            finally:
                sys.settrace(_idle)
            check(subject, interrupted)
            if untraced:
                untraced.clear()
            elif tracer.left == moment:
                raise AssertionError("no bytecode was traced")
            elif tracer.left > 0:
                return moment - 1
    finally:
        sys.settrace(tracing)
        signal.signal(signal.SIGINT, handler)
    raise AssertionError(f"still running after {at_most} bytecodes")
