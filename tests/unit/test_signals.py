"""Signals that arrive in a ``deferred_signals()`` block: all of them delivered, none of them within."""

# ruff: noqa: PT012 (what is tested is a block)

from __future__ import annotations

import _thread
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
import weakref

import pytest
from interrupts import interrupted_at_every_opcode

from fastload.torch_workers import signals
from fastload.torch_workers.signals import Finalizer, deferred_signals, finalizer, usual_signals

WAIT_S = 20


class Alarm(Exception):
    pass


@pytest.fixture(autouse=True)
def handlers():
    """Python handlers that raise, and afterwards the former ones."""

    def alarm(number, frame):
        raise Alarm

    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, alarm)
    yield {signal.SIGINT: signal.default_int_handler, signal.SIGALRM: alarm}
    for number, handler in former.items():
        signal.signal(number, handler)
    assert signals._innermost is None


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, Alarm)])
def test_a_signal_is_delivered_once_and_at_the_end(handlers, number, error):
    log = []
    with pytest.raises(error), deferred_signals():
        signal.raise_signal(number)
        signal.raise_signal(number)
        log.append("whole")
    assert log == ["whole"]
    assert {known: signal.getsignal(known) for known in handlers} == handlers
    with pytest.raises(error):
        signal.raise_signal(number)


def test_each_of_several_signals_is_delivered():
    log = []
    signal.signal(signal.SIGTERM, lambda number, frame: log.append(number))
    with pytest.raises(Alarm) as caught, deferred_signals():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM, signal.SIGALRM):
            signal.raise_signal(number)
        assert not log
    assert log == [signal.SIGTERM]
    assert type(caught.value.__context__) is KeyboardInterrupt


def test_signals_that_kill_or_are_ignored_stay_as_they_are():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with deferred_signals():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_error_is_the_context_of_the_signal_that_came_before_it():
    with pytest.raises(KeyboardInterrupt) as caught, deferred_signals():
        signal.raise_signal(signal.SIGINT)
        raise BrokenPipeError
    assert type(caught.value.__context__) is BrokenPipeError


def test_nested_blocks_end_with_the_outermost():
    log = []
    with pytest.raises(KeyboardInterrupt), deferred_signals():
        with deferred_signals():
            signal.raise_signal(signal.SIGINT)
        log.append("after the inner one")
    assert log == ["after the inner one"]


def test_the_users_code_can_be_ended():
    log = []

    def sampler():
        signal.raise_signal(signal.SIGINT)
        log.append("went on")

    def start():
        sampler()

    for open_in, expected in ((frozenset({start.__code__}), []), (frozenset(), ["went on"])):
        log.clear()
        with pytest.raises(KeyboardInterrupt), deferred_signals(open_in):
            start()
        assert log == expected

    def outside():  # what runs around the block does not count
        with deferred_signals(frozenset({outside.__code__})):
            signal.raise_signal(signal.SIGINT)
            log.append("deferred")

    with pytest.raises(KeyboardInterrupt):
        outside()
    assert log == ["went on", "deferred"]


def test_what_has_got_stuck_can_be_ended(monkeypatch):
    monkeypatch.setattr(signals, "LONGEST_S", -1.0)
    log = []
    with pytest.raises(KeyboardInterrupt), deferred_signals():
        signal.raise_signal(signal.SIGINT)
        log.append("went on")
    assert log == []


def test_a_handler_that_was_chained_to_ours_stays_and_goes_on_to_the_former_one(handlers):
    log = []
    with deferred_signals():
        former = signal.getsignal(signal.SIGALRM)

        def chained(number, frame):  # as torch does with SIGCHLD
            log.append(number)
            former(number, frame)

        signal.signal(signal.SIGALRM, chained)
    assert signal.getsignal(signal.SIGALRM) is chained
    with pytest.raises(Alarm):
        signal.raise_signal(signal.SIGALRM)
    assert log == [signal.SIGALRM]


def test_what_an_interrupt_left_in_place_does_not_pile_up(handlers):
    for _ in range(2000):  # deeper than Python calls functions
        deferral = deferred_signals()
        deferral.__enter__()
        left = signal.getsignal(signal.SIGINT)
        deferral.end()
        signal.signal(signal.SIGINT, left)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with deferred_signals():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_thread_changes_no_handlers(handlers):
    seen = []

    def run():
        with deferred_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def child(function):
    """Fork and run ``function``; return the exit status, which is 1 for KeyboardInterrupt."""
    pid = os.fork()
    if not pid:
        status = 99
        try:
            status = function()
        except KeyboardInterrupt:
            status = 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_defers_until_it_says_otherwise():
    def early():
        signal.raise_signal(signal.SIGINT)
        return 7

    def settled():
        signal.raise_signal(signal.SIGINT)
        usual_signals()
        return 7

    def own_handlers():
        usual_signals()  # the parent's signal is no concern of it
        return 7 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 8

    with pytest.raises(KeyboardInterrupt), deferred_signals(), deferred_signals():
        signal.raise_signal(signal.SIGINT)
        statuses = [child(early), child(settled), child(own_handlers)]
        usual_signals()  # nothing to a process that was not forked
        statuses.append("whole")
    assert statuses == [7, 1, 7, "whole"]


def test_a_child_of_another_thread_has_the_usual_handlers():
    statuses = []
    with deferred_signals():
        thread = threading.Thread(
            target=lambda: statuses.append(child(lambda: signal.raise_signal(signal.SIGINT) or 7))
        )
        thread.start()
        thread.join()
    assert statuses == [1]


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, Alarm)])
def test_an_interrupt_at_any_bytecode_is_delivered_exactly_once(handlers, number, error):
    """Also between two bytecodes of :mod:`fastload.torch_workers.signals` itself."""
    own = signals.__file__
    ran = []

    def interrupted_at(k):
        """Whether there is a bytecode ``k``; raises as the block does."""
        count = 0

        def trace(frame, event, arg):
            nonlocal count
            if frame.f_code.co_filename != own:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if event == "opcode":
                count += 1
                if count == k + 1:
                    signal.raise_signal(number)
            return trace

        sys.settrace(trace)
        try:
            with deferred_signals():
                ran.append(k)
        finally:
            sys.settrace(None)
        return count > k

    outcomes = []
    k = 0
    while True:
        try:
            if not interrupted_at(k):
                break
            outcomes.append("lost")
        except error:
            outcomes.append("raised")
        assert signals._innermost is None
        for known, handler in handlers.items():
            with pytest.raises((KeyboardInterrupt, Alarm)):  # either handler, but it is delivered
                signal.raise_signal(known)
            signal.signal(known, handler)
        k += 1
    assert set(outcomes) == {"raised"}
    assert len(outcomes) > 100
    assert len(ran) > 50


def kernels_side(number):
    action = ctypes.create_string_buffer(256)
    ctypes.CDLL(None).sigaction(number, None, action)
    return action.raw[:8], action.raw[136:140]  # of x86-64: handler and flags


def test_flags_and_the_handlers_of_c_libraries_stay_as_they_were():
    """signal.signal forgets siginterrupt()'s flags and replaces a handler in C for good."""
    former = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    try:
        signal.siginterrupt(signal.SIGUSR1, False)
        faulthandler.register(signal.SIGUSR2)
        before = [kernels_side(number) for number in former]
        with deferred_signals():
            inside = [kernels_side(number) for number in former]
        assert [kernels_side(number) for number in former] == before
        assert inside[1] == before[1], "a handler in C is not deferred"
        assert inside[0] != before[0]
    finally:
        faulthandler.unregister(signal.SIGUSR2)
        for number, handler in former.items():
            signal.signal(number, handler)


def test_a_wakeup_descriptor_hears_of_a_signal_once():
    reader, writer = os.pipe2(os.O_NONBLOCK)
    calls = []
    former = signal.signal(signal.SIGUSR1, lambda *_: calls.append(1))
    wakeup = signal.set_wakeup_fd(writer)
    try:
        with deferred_signals():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert calls == []
        assert calls == [1]
        assert os.read(reader, 16) == bytes([signal.SIGUSR1])
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGUSR1, former)
        os.close(reader)
        os.close(writer)


class Held:
    """What a finalizer belongs to."""

    def __init__(self, function):
        self.function = function


class Deleted(Held):
    @finalizer
    def __del__(self):
        self.function()


class DeletedSlowly(Held):
    """Its own ``__del__`` goes on after what the wrapper protects."""

    def __del__(self):
        finalizer(self.function)()
        time.sleep(0.1)


signals.FINALIZERS.add(DeletedSlowly.__del__.__code__)


def finalized(function):
    held = Held(function)
    Finalizer(held, function)
    return held


def finalized_within(function):
    """By another finalizer."""
    held = Held(function)
    Finalizer(held, [finalized(function)].clear)
    return held


@pytest.mark.parametrize("make", [Deleted, DeletedSlowly, finalized, finalized_within])
@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, Alarm)])
def test_what_a_handler_raises_in_a_finalizer_is_raised_when_that_has_ended(make, number, error):
    log = []

    def close():
        signal.raise_signal(number)
        log.append("whole")

    held = [make(close)]
    with pytest.raises(error):
        held.clear()
        time.sleep(WAIT_S)
    assert log == ["whole"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_is_lost_only_where_a_finalizer_begins():
    """Also one that comes when signals are not deferred any more."""
    raised = []

    def make():
        held = Held(None)
        Finalizer(held, int)
        return [held]

    interrupted_at_every_opcode(make, list.clear, lambda _, interrupted: raised.append(interrupted), stride=7)
    uninterrupted, *first, last = raised
    assert not uninterrupted
    assert not last
    assert first.count(False) <= 2
    assert all(first[2:])


def test_a_finalizer_that_hangs_is_interrupted_and_the_interrupt_raised(monkeypatch):
    monkeypatch.setattr(signals, "LONGEST_S", -1.0)
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: log.append("printed"))
    log = []

    def close():
        signal.raise_signal(signal.SIGINT)
        log.append("went on")

    held = [Deleted(close)]
    with pytest.raises(KeyboardInterrupt):
        held.clear()
        time.sleep(WAIT_S)
    assert log == []


def test_a_signal_that_no_thread_can_send_again_does_not_keep_later_ones(monkeypatch):
    def no_thread(*arguments):
        raise RuntimeError("can't start new thread")

    def drop():
        held = [Deleted(lambda: signal.raise_signal(signal.SIGINT))]
        held.clear()

    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", no_thread)
        patch.setattr(sys, "unraisablehook", lambda raised: None)
        drop()
    with pytest.raises(KeyboardInterrupt):
        drop()
        time.sleep(WAIT_S)


def test_a_forked_child_raises_what_its_own_finalizers_defer():
    def drop():
        held = [Deleted(lambda: signal.raise_signal(signal.SIGINT))]
        held.clear()
        time.sleep(WAIT_S)
        return 0

    signals.on_their_way.add(signal.SIGINT)  # about to be sent to the parent
    try:
        assert child(drop) == 1
    finally:
        signals.on_their_way.clear()


def test_a_handler_that_raises_nothing_is_called_once_at_the_end_of_a_finalizer():
    log = []

    def close():
        signal.raise_signal(signal.SIGTERM)
        log.append("whole")

    signal.signal(signal.SIGTERM, lambda number, frame: log.append(number))
    held = [Deleted(close)]
    held.clear()
    assert log == ["whole", signal.SIGTERM]


def test_a_finalizer_that_is_called_directly_raises_at_once():
    held = Held(None)
    call = Finalizer(held, signal.raise_signal, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        call()
    assert not call.alive


def test_a_finalizer_within_a_block_leaves_signals_to_that():
    log = []
    with pytest.raises(KeyboardInterrupt), deferred_signals():
        held = [Deleted(lambda: signal.raise_signal(signal.SIGINT))]
        held.clear()
        log.append("after the finalizer")
    assert log == ["after the finalizer"]


def test_what_lives_until_the_interpreter_takes_modules_apart_is_not_finalized(monkeypatch):
    held, called, ignored = type("Held", (), {})(), [], []
    Finalizer(held, called.append, 1).atexit = False
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    monkeypatch.setattr(weakref.finalize, "_shutdown", True)  # as after its own call at exit
    for name in ("weakref", "_finalize"):
        monkeypatch.setattr(signals, name, None)
    del held
    assert (called, ignored) == ([], [])


def test_a_finalizer_does_nothing_once_the_interpreter_has_taken_its_module_apart(monkeypatch):
    called = []
    function = finalizer(lambda: called.append(1))
    function()
    monkeypatch.setattr("fastload.torch_workers.signals._finalize", None)
    assert function() is None
    assert called == [1]
