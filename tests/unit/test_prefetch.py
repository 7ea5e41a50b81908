"""``prefetch_to_device``: the feeder with a transfer that only keeps a log, and the plain way on the CPU."""

from __future__ import annotations

import contextlib
import gc
import threading
import traceback
import weakref

import pytest
import torch
from roads import assert_same
from roads.batches import COLLATES, Movable, Record
from roads.datasets import Numbers
from torch.utils.data import DataLoader

from fastload import prefetch_to_device
from fastload.device import prefetch
from fastload.device.prefetch import Feeder, _Prefetching

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
        self.fails = None

    def start(self, data, number=None):
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
        made.append(_Prefetching(Feeder(iter(source), FakeTransfer(), depth)))
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
    """Yields numbers up to a gate, which opens later; notes how far it was read and that it was closed."""

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
        assert len(iterator._feeder._ready) <= depth
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


def test_an_error_in_a_copy_reaches_the_consumer(feed):
    source = Source(5)
    iterator = feed(source, depth=1)
    assert copied_by(iterator, 1) == [0]
    iterator._feeder.transfer.fails = torch.cuda.OutOfMemoryError("no memory")
    assert next(iterator) == 0
    with pytest.raises(torch.cuda.OutOfMemoryError, match="no memory"):
        next(iterator)
    assert source.closed.wait(WAIT_S)


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

    feeder = Feeder(fails(), FakeTransfer(), 1)
    feeder.get()
    gone = weakref.ref(feeder)
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            feeder.get()
        feeder.close()
        del feeder
        assert gone() is None
    finally:
        gc.enable()


def test_dropping_the_iterator_stops_the_thread_at_once(accelerator):
    gc.collect()
    gc.disable()
    try:
        iterator = _Prefetching(Feeder(iter(range(100)), FakeTransfer(), 2))
        assert next(iterator) == 0
        thread = iterator._feeder._thread
        gone = weakref.ref(iterator)
        del iterator
        assert gone() is None
        assert not thread.is_alive()
    finally:
        gc.enable()


def test_closing_does_not_wait_for_a_source_that_blocks(feed):
    source = Source(5, gate_at=1)
    iterator = feed(source)
    assert next(iterator) == 0
    assert source.at_gate.wait(WAIT_S)
    iterator.close()  # returns, though nobody can interrupt the source
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
    closer = threading.Thread(target=iterator.close)
    closer.start()
    with iterator._feeder._changed:
        assert iterator._feeder._changed.wait_for(lambda: iterator._feeder._closed, WAIT_S)
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


def test_each_iteration_reads_the_source_anew_with_a_thread_of_its_own(cuda):
    prefetched = prefetch_to_device([1, 2, 3], "cuda", depth=2)
    assert (list(prefetched), list(prefetched)) == ([1, 2, 3], [1, 2, 3])
    one, two = iter(prefetched), iter(prefetched)
    assert [next(one), next(two), next(one), next(two)] == [1, 1, 2, 2]
    assert len(prefetched._streams) == 1
    assert one._feeder._thread is not two._feeder._thread


def test_threads_end_with_the_loop(cuda):
    for batch in prefetch_to_device(iter(range(100)), "cuda"):
        if batch == 5:
            break
    assert "fastload-feeder" not in {thread.name for thread in threading.enumerate()}


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
    iterator = iter(prefetch_to_device(source, "cpu", depth=4))
    assert source.read == 0
    assert (next(iterator), source.read) == (0, 1)
    iterator.close()
    assert source.closed_by == "MainThread"


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
