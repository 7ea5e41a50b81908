"""Test ``prefetch_to_device`` with a transfer that keeps a log, and on the CPU."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time
import traceback
import weakref
from itertools import islice

import pytest
import torch
from backends import assert_same
from backends.batches import COLLATES, Movable, Record
from backends.datasets import Numbers
from interrupts import interrupted_at_every_opcode
from photos import drained
from torch.utils.data import DataLoader

from fastload import prefetch, prefetch_to_device
from fastload.device import feeder as feeder_module
from fastload.device.feeder import Feeder, Prefetching

BOUND_S = feeder_module.JOIN_S
WAIT_S = 30  # only ever waited for by a test that is about to fail


class Copied:
    """A batch on its way to the device."""

    def __init__(self, data, log):
        self.data, self.log = data, log

    def wait_copied(self):
        self.log.append(("waited", self.data))


class FakeTransfer:
    """Notes what is copied and handed over; can take long, or fail."""

    device = torch.device("cuda", 0)

    def __init__(self, *_):
        self.log: list[tuple[str, object]] = []
        self.started = threading.Semaphore(0)
        self.steps = self.closed = 0
        self.room = threading.Event()
        self.room.set()
        self.held = threading.Event()
        self.fails = None

    def start(self, data, number=None):
        if not self.room.is_set():
            self.held.set()
        assert self.room.wait(WAIT_S)
        if self.fails is not None:
            raise self.fails
        self.log.append(("copied", data))
        self.started.release()
        return Copied(data, self.log)

    def take(self, copied):
        self.log.append(("taken", copied.data))
        return copied.data

    def mark_step(self):
        self.steps += 1

    def close(self):
        self.closed += 1

    def copied(self):
        return [data for what, data in self.log if what == "copied"]


@pytest.fixture
def accelerator(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, device=None: self + 100)


@pytest.fixture
def feed(accelerator):
    """Makes the consumer's end of a feeder; ends it afterwards."""
    made = []

    def of(source, depth=1):
        made.append(Prefetching(Feeder(iter(source), FakeTransfer(), depth)))
        return made[-1]

    yield of
    for prefetching in made:
        prefetching._feeder.transfer.room.set()
        prefetching.close()
        prefetching._feeder._thread.join(WAIT_S)


def copied_by(prefetching, count):
    """Wait for ``count`` more copies, then say what has been copied."""
    for _ in range(count):
        assert prefetching._feeder.transfer.started.acquire(timeout=WAIT_S)
    return prefetching._feeder.transfer.copied()


class Source:
    """Yields numbers, waiting at a gate; notes how far it was read and its closing."""

    def __init__(self, length, gate_at=None):
        self.length, self.gate_at = length, gate_at
        self.at_gate, self.gate = threading.Event(), threading.Event()
        self.read, self.closed_by = 0, None
        self.closed = threading.Event()

    def __iter__(self):
        try:
            for number in range(self.length):
                if number == self.gate_at:
                    self.at_gate.set()
                    assert self.gate.wait(WAIT_S)
                self.read += 1
                yield number
        finally:
            self.closed_by = threading.current_thread().name
            self.closed.set()


def test_batches_come_in_order_and_end(feed):
    iterator = feed(range(20))
    assert list(iterator) == list(range(20))
    assert next(iterator, "end") == "end"
    assert next(iterator, "end") == "end"
    assert iterator._feeder.transfer.steps == 20 + 3


def test_only_the_feeder_computes_with_one_thread(feed):
    def threads_of_a_new_thread():
        found = []
        thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        return found[0]

    def source():
        yield torch.get_num_threads()

    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert list(feed(source())) == [1]
        assert (threads_of_a_new_thread(), torch.get_num_threads()) == (3, 3)
    finally:
        torch.set_num_threads(usual)


def test_a_ready_batch_is_not_held_back_by_the_next_one(feed):
    source = Source(3, gate_at=1)
    iterator = feed(source)
    assert next(iterator) == 0
    assert source.at_gate.wait(WAIT_S)  # the next one is being loaded meanwhile
    assert not source.gate.is_set()
    source.gate.set()
    assert list(iterator) == [1, 2]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_copies_start_unasked_as_far_as_depth_allows(feed, depth):
    iterator = feed(range(12), depth)
    assert copied_by(iterator, depth) == list(range(depth))
    for number in range(12 - depth):
        assert next(iterator) == number
        assert copied_by(iterator, 1) == list(range(number + depth + 1))
    assert list(iterator) == list(range(12 - depth, 12))


@pytest.mark.parametrize("depth", [1, 3])
def test_the_source_is_read_one_batch_further_than_depth(feed, depth):
    source = Source(20, gate_at=depth + 1)
    iterator = feed(source, depth)
    assert not source.at_gate.wait(0.1)  # one is held, in wait for room; the next is not asked for
    assert copied_by(iterator, depth) == list(range(depth))
    assert source.read == depth + 1
    assert next(iterator) == 0
    assert source.at_gate.wait(WAIT_S)
    source.gate.set()
    assert list(iterator) == list(range(1, 20))


def test_an_error_of_the_source_comes_after_the_batches_before_it_with_its_traceback(feed):
    def source():
        yield 0
        yield 1
        raise LookupError("the source broke")

    iterator = feed(source(), depth=3)
    seen = [next(iterator), next(iterator)]
    with pytest.raises(LookupError, match="the source broke") as caught:
        next(iterator)
    assert seen == [0, 1]
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].line == 'raise LookupError("the source broke")'
    assert frames[-1].name == "source"
    assert next(iterator, "end") == "end"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_any_kind_of_error_reaches_the_consumer(feed, kind):
    def source():
        yield 0
        raise kind("stop")

    iterator = feed(source())
    assert next(iterator) == 0
    with pytest.raises(kind):
        next(iterator)


def test_an_error_in_a_copy_comes_in_its_batchs_turn(feed):
    iterator = feed(range(4), depth=1)
    assert copied_by(iterator, 1) == [0]
    iterator._feeder.transfer.fails = torch.cuda.OutOfMemoryError("no memory")
    assert next(iterator) == 0
    with pytest.raises(torch.cuda.OutOfMemoryError, match="no memory"):
        next(iterator)
    iterator._feeder.transfer.fails = None
    assert list(iterator)[-1] == 3


class Faulty:
    """An iterator that goes on after an error, as torch's do; a generator does not."""

    def __init__(self, bad):
        self.bad, self.number = bad, -1

    def __iter__(self):
        return self

    def __next__(self):
        self.number += 1
        if self.number in self.bad:
            raise LookupError(self.number)
        if self.number == 6:
            raise StopIteration
        return self.number


def outcomes(iterator):
    return [repr(item) if isinstance(item, LookupError) else item for item in drained(iterator)]


@pytest.mark.parametrize("depth", [1, 3])
def test_iteration_goes_on_after_an_error_where_the_source_does(feed, depth):
    expected = [0, "LookupError(1)", "LookupError(2)", 3, 4, "LookupError(5)"]
    assert outcomes(feed(Faulty({1, 2, 5}), depth)) == expected
    assert outcomes(iter(prefetch_to_device(Faulty({1, 2, 5}), "cpu"))) == expected


def test_errors_are_not_read_ahead_further_than_batches(feed):
    source = Faulty(range(1, 100))
    iterator = feed(source, depth=2)
    assert next(iterator) == 0
    with pytest.raises(LookupError):
        next(iterator)
    iterator.close()
    assert source.number <= 2 + 2


def test_an_error_of_a_custom_type_reaches_the_consumer(feed):
    class Unpinnable(Movable):
        def pin_memory(self):
            raise TypeError("not this one")

    with pytest.raises(TypeError, match="not this one"):
        next(feed([Unpinnable(torch.zeros(1))]))


def test_a_break_stops_the_thread_and_closes_the_generator_where_it_ran(feed):
    source = Source(100)
    iterator = feed(source, depth=2)
    thread = iterator._feeder._thread
    for number in iterator:
        if number == 3:
            break
    iterator.close()
    thread.join(WAIT_S)  # its last bytecodes
    assert not thread.is_alive()
    assert source.closed_by == "fastload-feeder"
    assert source.read <= 4 + 2 + 1
    assert iterator._feeder.transfer.closed == 1
    assert next(iterator, "end") == "end"
    iterator.close()


def test_an_iterator_of_the_users_own_is_not_closed(feed):
    class Stream:
        """Its own iterator; has further batches after each end, unless it is closed."""

        closed = False

        def __iter__(self):
            self.left = 3
            return self

        def __next__(self):
            if self.closed or not self.left:
                raise StopIteration
            self.left -= 1
            return self.left

        def close(self):
            self.closed = True

    stream = Stream()
    for _ in range(2):
        iterator = feed(stream)
        assert list(iterator) == [2, 1, 0]
        iterator._feeder._thread.join(WAIT_S)
    assert not stream.closed


def test_an_error_leaves_no_reference_cycle(feed):
    def fails():
        yield 0
        raise ValueError("no more")

    iterator = Prefetching(Feeder(fails(), FakeTransfer(), 1))
    next(iterator)
    gone = weakref.ref(iterator._feeder)
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            next(iterator)
        iterator.close()
        del iterator
        until = time.monotonic() + 5
        while gone() is not None and time.monotonic() < until:
            time.sleep(0.01)  # the thread's last lines may still run
        assert gone() is None
    finally:
        gc.enable()


def test_dropping_the_iterator_stops_the_thread_at_once(accelerator):
    gc.collect()
    gc.disable()
    try:
        iterator = Prefetching(Feeder(iter(range(100)), FakeTransfer(), 2))
        assert next(iterator) == 0
        thread = iterator._feeder._thread
        gone = weakref.ref(iterator)
        del iterator
        assert gone() is None
        thread.join(WAIT_S)  # its last bytecodes
        assert not thread.is_alive()
    finally:
        gc.enable()


def test_closing_does_not_wait_for_a_source_that_blocks(feed):
    source = Source(5, gate_at=1)
    iterator = feed(source)
    assert next(iterator) == 0
    assert source.at_gate.wait(WAIT_S)
    iterator.close()  # returns, though nothing can interrupt the source
    thread = iterator._feeder._thread
    assert thread.is_alive()
    assert next(iterator, "end") == "end"
    source.gate.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert source.closed_by == "fastload-feeder"
    assert iterator._feeder.transfer.copied() == [0]


def test_closing_while_a_copy_waits_for_room_waits_for_that_copy(feed):
    iterator = feed(range(5))
    assert copied_by(iterator, 1) == [0]
    iterator._feeder.transfer.room.clear()
    assert next(iterator) == 0
    assert iterator._feeder.transfer.held.wait(WAIT_S)
    closer = threading.Thread(target=iterator.close)
    closer.start()
    assert iterator._feeder.arrivals.get(timeout=WAIT_S).copied is None  # the end, put there by the closer
    assert closer.is_alive()
    iterator._feeder.transfer.room.set()
    closer.join(WAIT_S)
    assert not iterator._feeder._thread.is_alive()


def test_a_consumer_that_waits_is_woken_by_closing(feed):
    source = Source(3, gate_at=0)
    iterator = feed(source)
    seen = []
    consumer = threading.Thread(target=lambda: seen.append(next(iterator, "end")))
    consumer.start()
    assert source.at_gate.wait(WAIT_S)
    iterator._feeder.close()
    consumer.join(WAIT_S)
    assert seen == ["end"]
    source.gate.set()


def test_borrowed_memory_is_copied_before_the_source_is_asked_again(feed, monkeypatch):
    """A source may yield the same pinned buffer again and again."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, device=None: self)
    iterator = feed([torch.zeros(1), torch.ones(1)])
    assert len(list(iterator)) == 2
    kinds = [what for what, _ in iterator._feeder.transfer.log]
    assert kinds.count("waited") == 2
    assert kinds.index("waited") < [i for i, what in enumerate(kinds) if what == "copied"][1]


def test_memory_that_was_pinned_here_is_not_waited_for(feed):
    iterator = feed([{"x": torch.zeros(1)}, {"x": torch.ones(1)}])
    assert [batch["x"].item() for batch in iterator] == [100, 101]
    assert all(what != "waited" for what, _ in iterator._feeder.transfer.log)


def test_the_thread_is_a_named_daemon_and_leaves_torchs_threads_alone(feed):
    before = torch.get_num_threads()
    iterator = feed(range(3))
    assert (iterator._feeder._thread.name, iterator._feeder._thread.daemon) == ("fastload-feeder", True)
    assert list(iterator) == [0, 1, 2]
    assert torch.get_num_threads() == before


@pytest.fixture
def cuda(accelerator, monkeypatch):
    """``prefetch_to_device(..., "cuda")`` with threads, and without a GPU."""
    monkeypatch.setattr(prefetch, "resolve_device", lambda device: torch.device("cuda", 0))
    monkeypatch.setattr(prefetch, "check_device", lambda device: None)
    monkeypatch.setattr(prefetch, "new_stream", lambda device: object())
    monkeypatch.setattr(prefetch, "Transfer", FakeTransfer)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """So that a busy machine is told from a join that ran into its bound."""
    monkeypatch.setattr(feeder_module, "JOIN_S", 100.0)


def feeders():
    return [thread for thread in threading.enumerate() if thread.name == "fastload-feeder"]


def ended(iterator):
    """Close, which must not take its time, and say whether the thread has ended."""
    begun = time.monotonic()
    iterator.close()
    assert time.monotonic() - begun < feeder_module.JOIN_S / 2
    return iterator._feeder._ended


def test_an_interrupt_at_any_moment_of_next_loses_no_batch_and_doubles_none(accelerator):
    def make():
        return Prefetching(Feeder(iter(range(5)), FakeTransfer(), 2)), []

    def act(subject):
        iterator, seen = subject
        seen.extend(islice(iterator, 3))

    def check(subject, interrupted):
        iterator, seen = subject
        seen.extend(iterator)
        assert seen == list(range(5))
        assert ended(iterator)

    assert interrupted_at_every_opcode(make, act, check) > 200


def test_an_interrupt_at_any_moment_of_the_end_leaves_the_end(accelerator):
    def check(iterator, interrupted):
        assert list(iterator) == []
        assert ended(iterator)

    make = lambda: Prefetching(Feeder(iter(()), FakeTransfer(), 1))  # noqa: E731
    assert interrupted_at_every_opcode(make, list, check) > 50


@pytest.mark.parametrize("read", [0, 1, 4])
def test_an_interrupt_at_any_moment_of_close_leaves_nothing_locked(accelerator, read):
    def make():
        iterator = Prefetching(Feeder(iter(range(4)), FakeTransfer(), 1))
        assert len(list(islice(iterator, read))) == read
        return iterator

    def check(iterator, interrupted):
        assert ended(iterator)
        assert next(iterator, "end") == "end"

    assert interrupted_at_every_opcode(make, Prefetching.close, check) > 30


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that lands in a finalizer
def test_an_interrupt_at_any_moment_of_iter_leaves_no_thread(cuda):
    def check(prefetched, interrupted):
        for thread in feeders():
            assert thread._started.wait(WAIT_S)
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def act(prefetched):
        iter(prefetched)

    assert interrupted_at_every_opcode(lambda: prefetch_to_device([1, 2, 3], "cuda"), act, check) > 200


def test_ctrl_c_ends_the_wait_for_a_batch_and_the_batch_comes_later(feed, monkeypatch):
    monkeypatch.setattr(feeder_module, "WAKE_S", 0.02)
    source = Source(3, gate_at=1)
    iterator = feed(source)
    assert next(iterator) == 0

    asked = threading.Event()
    iterator._feeder.transfer.mark_step = asked.set

    def interrupt():
        assert asked.wait(WAIT_S)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    interrupter.join()
    source.gate.set()
    assert list(iterator) == [1, 2]


def test_a_dropped_iterator_ends_its_thread_also_if_its_finalizer_was_interrupted(feed):
    iterator = Prefetching(Feeder(iter(range(9)), FakeTransfer(), 1))
    thread = iterator._feeder._thread
    assert next(iterator) == 0
    iterator._finalizer.detach()  # as if an interrupt had landed in it
    del iterator
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_closing_waits_for_a_busy_thread_as_long_as_torch_does_for_a_worker(feed, monkeypatch):
    assert BOUND_S == torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL
    monkeypatch.setattr(feeder_module, "JOIN_S", 0.05)
    iterator = feed(range(5))
    assert copied_by(iterator, 1) == [0]
    iterator._feeder.transfer.room.clear()
    assert next(iterator) == 0
    assert iterator._feeder.transfer.held.wait(WAIT_S)
    iterator.close()  # returns, though the copy hangs
    assert not iterator._feeder._ended
    iterator._feeder.transfer.room.set()
    iterator._feeder._thread.join(WAIT_S)
    assert not iterator._feeder._thread.is_alive()
    assert iterator._feeder.arrivals.qsize() == 1  # the end alone: nothing on the device is held


def test_several_threads_share_the_batches_of_one_iterator(feed):
    iterator = feed(range(400), depth=3)
    seen = [[] for _ in range(4)]
    threads = [threading.Thread(target=taken.extend, args=(iterator,)) for taken in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(number for taken in seen for number in taken) == list(range(400))
    assert all(taken == sorted(taken) for taken in seen)


def test_where_no_thread_can_be_started_that_is_the_error(monkeypatch, accelerator):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(feeder_module._thread, "start_new_thread", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            Prefetching(Feeder(iter([1]), FakeTransfer(), 1))
    feeder = Feeder(iter([1]), FakeTransfer(), 1)
    monkeypatch.setattr(feeder._thread, "start", refuse)
    iterator = Prefetching(feeder)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        next(iterator)
    assert next(iterator, "end") == "end"
    assert ended(iterator)


def test_each_iteration_reads_the_source_anew_with_a_thread_of_its_own(cuda):
    prefetched = prefetch_to_device([1, 2, 3], "cuda", device_prefetch=2)
    assert (list(prefetched), list(prefetched)) == ([1, 2, 3], [1, 2, 3])
    one, two = iter(prefetched), iter(prefetched)
    assert [next(one), next(two), next(one), next(two)] == [1, 1, 2, 2]
    assert len(prefetched._streams) == 1
    assert one._feeder._thread is not two._feeder._thread


def test_threads_end_with_the_loop(cuda):
    for batch in prefetch_to_device(iter(range(100)), "cuda"):
        if batch == 5:
            break
    assert feeders() == []


def test_a_source_that_cannot_be_iterated_now_says_so_at_once(cuda):
    class Unready:
        def __iter__(self):
            raise ConnectionError("not yet")

    with pytest.raises(ConnectionError, match="not yet"):
        iter(prefetch_to_device(Unready(), "cuda"))


def test_on_the_cpu_batches_pass_through_untouched():
    batches = [
        COLLATES[kind]([Numbers(2)[0]] * 2) for kind in ("dict", "namedtuple", "dataclass", "str", "None", "range")
    ]
    names = {thread.name for thread in threading.enumerate()}
    for got, expected in zip(prefetch_to_device(batches, "cpu"), batches, strict=True):
        assert got is expected
        assert {thread.name for thread in threading.enumerate()} == names


def test_on_the_cpu_dtype_applies_and_memory_format_does_not():
    image = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    (got,) = prefetch_to_device([Record(image, "r", None)], "cpu", dtype=torch.float64)
    assert got.x.dtype == torch.float64
    assert got.x.is_contiguous()
    assert_same(got.x, image.double())


def test_on_the_cpu_nothing_is_read_ahead():
    source = Source(10)
    iterator = iter(prefetch_to_device(source, "cpu", device_prefetch=4))
    assert source.read == 0
    assert (next(iterator), source.read) == (0, 1)
    iterator.close()
    assert source.closed_by == "MainThread"


def test_on_the_cpu_iteration_begins_with_iter_and_goes_on_after_an_error():
    class Source:
        begun = False

        def __iter__(self):
            self.begun = True
            return Faulty({0})

    source = Source()
    iterator = iter(prefetch_to_device(source, "cpu"))
    assert source.begun
    assert outcomes(iterator) == ["LookupError(0)", 1, 2, 3, 4, 5]


def test_it_has_a_length_when_the_source_has():
    assert len(prefetch_to_device([1, 2, 3], "cpu")) == 3
    assert len(prefetch_to_device(DataLoader(Numbers(5), batch_size=2), "cpu")) == 3
    with pytest.raises(TypeError, match=r"has no len\(\)"):
        len(prefetch_to_device(iter([1]), "cpu"))


def test_any_iterable_will_do():
    class Items:
        def __getitem__(self, index):
            if index == 3:
                raise IndexError
            return index

    for source in (Items(), {1: 0, 2: 0}, "ab", range(2), (i for i in range(2)), DataLoader(Numbers(2))):
        assert len(list(prefetch_to_device(source, "cpu"))) in (2, 3)


class Resumable:
    """Calls as torchdata's StatefulDataLoader does; its state is an object that it keeps changing."""

    def __init__(self, length=7):
        self.length, self.state, self.asked = length, {"read": 0, "finished": False}, 0
        self.fails = None

    def __iter__(self):
        begin = 0 if self.state["finished"] else self.state.pop("resume", 0)
        self.state = {"read": begin, "finished": False}
        return self.read_on(begin, self.state)

    def read_on(self, begin, state):
        for number in range(begin, self.length):
            state["read"] = number + 1
            yield number
        state["finished"] = True

    def state_dict(self):
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        return self.state

    def load_state_dict(self, state):
        self.state = {**state, "resume": state["read"]}


def stateful_loader(num_workers):
    def make():
        stateful = pytest.importorskip("torchdata.stateful_dataloader")
        return stateful.StatefulDataLoader(range(7), batch_size=None, num_workers=num_workers)

    return make


RESUMABLE = {"own": Resumable, "torchdata": stateful_loader(0), "torchdata, worker": stateful_loader(1)}


@pytest.fixture(params=RESUMABLE)
def resumable(request):
    return RESUMABLE[request.param]


def numbers(iterator):
    return [int(number) for number in iterator]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("read", [0, 1, 3, 7])
def test_resuming_from_its_state_loses_no_batch_and_doubles_none(cuda, monkeypatch, resumable, device, read):
    if device == "cpu":
        monkeypatch.setattr(prefetch, "resolve_device", torch.device)
    prefetched = prefetch_to_device(resumable(), device, device_prefetch=2)
    iterator = iter(prefetched)
    if device == "cuda":
        copied_by(iterator, 2)  # further than the consumer
    seen = numbers(islice(iterator, read))
    state = prefetched.state_dict()
    assert numbers(iterator) == list(range(read, 7))
    again = prefetch_to_device(resumable(), device, device_prefetch=2)
    again.load_state_dict(state)
    assert seen + numbers(again) == list(range(7))
    assert numbers(again) == list(range(7))  # the epoch after


def test_its_state_before_iteration_and_after_an_epoch(cuda, resumable):
    prefetched = prefetch_to_device(resumable(), "cuda")
    before = prefetched.state_dict()
    assert numbers(prefetched) == list(range(7))
    after = prefetched.state_dict()
    for state in (before, after):
        again = prefetch_to_device(resumable(), "cuda")
        again.load_state_dict(state)
        assert numbers(again) == list(range(7))


def test_its_state_after_a_break_and_after_loading(cuda, resumable):
    prefetched = prefetch_to_device(resumable(), "cuda", device_prefetch=3)
    for number in prefetched:
        if number == 2:
            break
    state = prefetched.state_dict()
    assert numbers(islice(iter(prefetched), 5)) == list(range(5))
    prefetched.load_state_dict(state)
    assert numbers(prefetched) == list(range(3, 7))
    prefetched.load_state_dict(state)
    again = prefetch_to_device(resumable(), "cuda")
    again.load_state_dict(prefetched.state_dict())
    assert numbers(again) == list(range(3, 7))


def test_its_state_is_that_of_the_newest_iteration(cuda):
    source = Resumable()
    prefetched = prefetch_to_device(source, "cuda")
    older = iter(prefetched)
    assert next(older) == 0
    copied_by(older, 2)
    newer = iter(prefetched)
    assert next(older) == 1
    assert prefetched.state_dict()["read"] == 0
    assert numbers(older) == list(range(2, 7))
    assert prefetched.state_dict()["read"] == 0
    assert numbers(islice(newer, 2)) == [0, 1]
    assert prefetched.state_dict()["read"] == 2


def test_an_iteration_that_another_has_followed_asks_for_no_more_states(cuda):
    source = Resumable()
    older = iter(prefetch_to_device(source, "cuda"))
    older._feeder.states.leave()
    asked = source.asked
    assert numbers(older) == list(range(7))
    assert source.asked <= asked


def test_a_source_that_cannot_say_its_state_still_gives_its_batches(cuda):
    source = Resumable()
    source.fails = NotImplementedError("not in this mode")
    prefetched = prefetch_to_device(source, "cuda")
    assert numbers(prefetched) == list(range(7))
    lengths = []
    for _ in range(3):
        with pytest.raises(NotImplementedError, match="not in this mode") as raised:
            prefetched.state_dict()
        assert raised.traceback[-1].name == "state_dict"  # the source's
        lengths.append(len(raised.traceback))
    assert len(set(lengths)) == 1  # what is kept does not grow


def test_it_has_a_state_when_the_source_has():
    assert not hasattr(prefetch_to_device([1], "cpu"), "state_dict")
    assert not hasattr(prefetch_to_device([1], "cpu"), "load_state_dict")
    assert prefetch_to_device(Resumable(), "cpu").state_dict() == {"read": 0, "finished": False}
