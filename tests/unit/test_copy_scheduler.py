"""Test the order of copies and of batches, with a transfer that keeps a log."""

from __future__ import annotations

import gc
import multiprocessing
import random
import threading
import weakref

import pytest
import torch
from backends import raised_by

from fastload._batch import HostBatch
from fastload.device import copy_scheduler as copy_scheduler_module
from fastload.device.copy_scheduler import Arrival, CopyScheduler

WAIT_S = 30  # only ever waited for by a test that is about to fail


class Copied(str):
    """Stands for a batch on the device: notes when it had room and was issued."""

    stages = ("hand-over", 2.0), ("gpu", 3.0), ("h2d", 4.0)
    waited = False

    def wait_copied(self):
        self.waited = True


class FakeTransfer:
    """Notes who copied which batches; can be made to fail or to take long."""

    device = torch.device("cpu")
    room = True

    def __init__(self):
        self.started: list[str] = []
        self.numbers: list[int] = []
        self.threads: list[str] = []
        self.waited_for: list[bool] = []
        self.closed = 0
        self.fails: dict[str, BaseException] = {}
        self.gates: dict[str, threading.Event] = {}
        self.entered = threading.Semaphore(0)

    def start(self, data, number, *, small=None, on_copied=None):
        self.entered.release()
        if data in self.gates:
            assert self.gates[data].wait(WAIT_S)
        if data in self.fails:
            raise self.fails[data]
        self.started.append(data)
        self.numbers.append(number)
        self.threads.append(threading.current_thread().name)
        if on_copied is not None:
            on_copied()
        return Copied(f"copy of {data}")

    def take(self, copied):
        self.waited_for.append(copied.waited)
        return copied.removeprefix("copy of ")

    def wait_copied(self):
        pass

    def reap(self):
        pass

    def has_room(self):
        return self.room

    def close(self):
        self.closed += 1


class Bell:
    """What wakes the thread, and says when it sleeps."""

    def __init__(self):
        self.changed = threading.Condition()
        self._rung = 0
        self._sleeps = False

    def put(self, _):
        with self.changed:
            self._rung += 1
            self.changed.notify_all()

    def get(self):
        with self.changed:
            self._sleeps = True
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self._rung, WAIT_S)
            self._sleeps = False
            self._rung -= 1

    def is_quiet(self):
        return self._sleeps and not self._rung


@pytest.fixture
def make(monkeypatch):
    """Makes CopyScheduler and stops their feeders afterwards."""
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda device: None)
    made = []

    def of(num_workers=1, ahead=1, pin=False, slots=None):
        made.append(CopyScheduler(FakeTransfer(), num_workers, ahead, pin, None, slots))
        made[-1]._wake = Bell()
        return made[-1]

    yield of
    for scheduler in made:
        for gate in scheduler.transfer.gates.values():
            gate.set()
        scheduler.close()


def arrive(scheduler, name):
    """Deliver batch ``"2.5"``, the sixth of worker 2; return what torch would queue."""
    return HostBatch(name, int(name.split(".")[0]), scheduler.key).pin_memory()


def settle(scheduler):
    """Wait until the thread has copied all that it may, and say what that is."""
    asleep(scheduler)
    assert scheduler._next() is None
    return scheduler.transfer.started


def asleep(scheduler):
    """Wait until the thread has seen the last change and sleeps again."""
    bell = scheduler._wake
    with bell.changed:
        assert bell.changed.wait_for(bell.is_quiet, WAIT_S), scheduler.transfer.started
    return scheduler.transfer.started


def asking(scheduler, batch):
    """A consumer that has asked for ``batch``, and where it puts it."""
    taken, asks, advance = [], threading.Event(), scheduler._advance
    scheduler._advance = lambda arrival: (advance(arrival), asks.set())
    consumer = threading.Thread(target=lambda: taken.append(scheduler.take(batch)))
    consumer.start()
    assert asks.wait(WAIT_S)
    return consumer, taken


def test_the_first_batch_is_copied_on_arrival_and_the_next_when_it_has_been_taken(make):
    scheduler = make()
    first, second, third = (arrive(scheduler, f"0.{i}") for i in range(3))
    assert settle(scheduler) == ["0.0"]
    assert scheduler.take(first) == "0.0"
    assert settle(scheduler) == ["0.0", "0.1"]
    assert [scheduler.take(second), scheduler.take(third)] == ["0.1", "0.2"]
    assert scheduler.transfer.started == ["0.0", "0.1", "0.2"]


def test_the_feeder_numbers_on_while_the_consumer_waits_for_the_batch_before(make):
    """Seen once: two batches of one number."""
    scheduler = make()
    scheduler.transfer.gates["0.0"] = gate = threading.Event()
    first, second = (arrive(scheduler, f"0.{i}") for i in range(2))
    assert scheduler.transfer.entered.acquire(timeout=WAIT_S)
    consumer, _ = asking(scheduler, first)
    with scheduler._lock:
        assert scheduler._next() == (second, 1)
    gate.set()
    consumer.join()
    assert settle(scheduler) == ["0.0", "0.1"]
    assert scheduler.transfer.numbers == [0, 1]


def test_copies_are_made_by_the_feeder_and_not_by_the_consumer(make):
    scheduler = make()
    queue = [arrive(scheduler, f"0.{i}") for i in range(5)]
    for arrival in queue:
        settle(scheduler)
        scheduler.take(arrival)
    assert set(scheduler.transfer.threads) == {"fastload-copy-scheduler"}
    assert scheduler.transfer.numbers == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("ahead", [1, 2, 3, 5])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_the_window_is_never_exceeded_and_always_filled(make, num_workers, ahead):
    """Torch deals in turn; each worker keeps its order; otherwise batches arrive as they like."""
    order = [f"{i % num_workers}.{i // num_workers}" for i in range(24)]
    for seed in range(8):
        chance = random.Random(seed)
        scheduler = make(num_workers, ahead)
        coming = [[name for name in order if name.startswith(f"{w}.")] for w in range(num_workers)]
        here, taken = {}, 0
        while taken < len(order):
            ready = [names for names in coming if names]
            if ready and (order[taken] not in here or chance.random() < 0.5):
                name = chance.choice(ready).pop(0)
                here[name] = arrive(scheduler, name)
            else:
                assert scheduler.take(here.pop(order[taken])) == order[taken]
                taken += 1
            due = set(order[:taken]) | {name for name in order[taken : taken + ahead] if name in here}
            assert set(settle(scheduler)) == due
        assert len(scheduler.transfer.started) == len(order)


def test_a_batch_that_arrives_before_its_turn_waits_for_it(make):
    scheduler = make(num_workers=2)
    late = arrive(scheduler, "1.0")
    assert settle(scheduler) == []
    early = arrive(scheduler, "0.0")
    assert settle(scheduler) == ["0.0"]
    assert scheduler.take(early) == "0.0"
    assert settle(scheduler) == ["0.0", "1.0"]
    assert scheduler.take(late) == "1.0"


def test_a_wider_window_copies_what_is_there_of_it(make):
    scheduler = make(num_workers=3, ahead=2)
    batches = [arrive(scheduler, "1.0"), arrive(scheduler, "2.0")]
    assert settle(scheduler) == ["1.0"]  # the second in turn; the first is not here yet, and the third not in reach
    first = arrive(scheduler, "0.0")
    assert settle(scheduler) == ["1.0", "0.0"]
    assert scheduler.take(first) == "0.0"
    assert settle(scheduler) == ["1.0", "0.0", "2.0"]
    assert [scheduler.take(batch) for batch in batches] == ["1.0", "2.0"]


def test_a_worker_that_was_passed_over_is_not_waited_for_again(make):
    """An iterable dataset that has ended there: torch deals to the others from now on."""
    scheduler = make(num_workers=3)
    for name in ("0.0", "1.0", "2.0", "1.1"):  # and nothing more of worker 0
        scheduler.take(arrive(scheduler, name))
    following = arrive(scheduler, "1.2")
    assert "1.2" not in settle(scheduler)  # worker 2 is before it
    scheduler.take(arrive(scheduler, "2.1"))
    assert settle(scheduler)[-1] == "1.2"  # worker 0 would be, had it not ended
    scheduler.take(following)
    last = [arrive(scheduler, f"2.{i}") for i in (2, 3, 4)]
    scheduler.take(last[0])
    scheduler.take(last[1])  # worker 1 has ended as well
    assert settle(scheduler)[-1] == "2.4"
    assert scheduler.take(last[2]) == "2.4"


def test_a_worker_whose_batch_raised_an_error_is_passed_over_only_once(make):
    """Torch raises the error itself: its batch is missing here, and the next one comes."""
    scheduler = make(num_workers=2)
    scheduler.take(arrive(scheduler, "0.0"))
    third = arrive(scheduler, "0.1")  # 1.0 was an error
    scheduler.take(third)
    queue = [arrive(scheduler, "1.1"), arrive(scheduler, "0.2"), arrive(scheduler, "1.2")]
    assert settle(scheduler)[2:] == ["1.1"]
    for batch in queue:
        scheduler.take(batch)
        settle(scheduler)
    assert scheduler.transfer.started == ["0.0", "0.1", "1.1", "0.2", "1.2"]
    assert scheduler.transfer.threads[2:] == ["fastload-copy-scheduler"] * 3

    early = make(num_workers=2)
    early.take(arrive(early, "0.0"))
    waiting = arrive(early, "1.1")  # there already when its worker is passed over
    early.take(arrive(early, "0.1"))
    assert sorted(settle(early)) == ["0.0", "0.1", "1.1"]  # 1.1 may have been copied on arrival
    assert early.take(waiting) == "1.1"


def test_without_order_batches_are_copied_as_they_arrive(make):
    scheduler = make(num_workers=1, ahead=2)  # in_order=False: workers are not told apart
    names = ["2.0", "0.0", "1.0", "2.1"]
    queue = [HostBatch(name, int(name[0]), scheduler.key).pin_memory() for name in names]
    assert settle(scheduler) == ["2.0", "0.0"]
    assert [scheduler.take(arrival) for arrival in queue] == names


def test_what_was_not_copied_ahead_is_copied_when_it_is_asked_for(make):
    scheduler = make(ahead=0)
    first = arrive(scheduler, "0.0")
    assert scheduler.transfer.started == []
    assert scheduler.take(first) == "0.0"
    assert scheduler.take(HostBatch("0.1", 0, scheduler.key)) == "0.1"  # not pinned, so it never arrived
    assert scheduler._thread is None
    assert set(scheduler.transfer.threads) == {"MainThread"}


def test_a_slow_copy_holds_up_neither_arrivals_nor_other_batches(make):
    scheduler = make(num_workers=2, ahead=2)
    gate = scheduler.transfer.gates["1.0"] = threading.Event()
    slow = arrive(scheduler, "1.0")
    assert scheduler.transfer.entered.acquire(timeout=WAIT_S)  # the thread is in it
    quick = arrive(scheduler, "0.0")
    assert scheduler.take(quick) == "0.0"  # the consumer copies it itself
    assert scheduler.transfer.threads == ["MainThread"]
    gate.set()
    assert scheduler.take(slow) == "1.0"
    assert scheduler.transfer.started == ["0.0", "1.0"]


def test_a_batch_that_is_being_copied_is_waited_for_and_copied_once(make):
    scheduler = make()
    gate = scheduler.transfer.gates["0.0"] = threading.Event()
    batch = arrive(scheduler, "0.0")
    assert scheduler.transfer.entered.acquire(timeout=WAIT_S)
    consumer, taken = asking(scheduler, batch)
    assert not taken
    gate.set()
    consumer.join(WAIT_S)
    assert taken == ["0.0"]
    assert scheduler.transfer.started == ["0.0"]


@pytest.mark.parametrize("error", [ValueError("cannot move"), MemoryError(), SystemExit(3)])
def test_an_error_in_a_copy_ahead_is_the_consumers_in_its_turn(make, error):
    scheduler = make(ahead=2)
    scheduler.transfer.fails["0.1"] = error
    queue = [arrive(scheduler, f"0.{i}") for i in range(4)]
    assert settle(scheduler) == ["0.0"]
    assert scheduler.take(queue[0]) == "0.0"
    with pytest.raises(type(error)) as caught:
        scheduler.take(queue[1])
    assert caught.value is error
    assert [scheduler.take(arrival) for arrival in queue[2:]] == ["0.2", "0.3"]
    del caught


def test_a_copy_that_failed_for_want_of_memory_is_tried_again_in_its_turn(make):
    scheduler = make(ahead=2)
    scheduler.transfer.fails["0.1"] = MemoryError()
    queue = [arrive(scheduler, f"0.{i}") for i in range(3)]
    settle(scheduler)
    scheduler.take(queue[0])
    scheduler.transfer.fails.clear()
    assert [scheduler.take(arrival) for arrival in queue[1:]] == ["0.1", "0.2"]


class FakeLease:
    """Notes what becomes of a slot."""

    def __init__(self):
        self.log = []
        self.buffer = torch.zeros(8, dtype=torch.uint8)

    def __getattr__(self, name):
        if name in ("copying", "not_copying", "release"):
            return lambda: self.log.append(name)
        raise AttributeError(name)


def test_a_slot_is_free_after_the_copy_and_ready_again_when_there_was_none():
    transfer = FakeTransfer()
    lease = FakeLease()
    arrival = Arrival("0.0", 0, lease, None)
    transfer.fails["0.0"] = MemoryError()
    assert type(raised_by(lambda: arrival.start(transfer, 0))) is MemoryError
    assert lease.log == ["copying", "not_copying"]
    assert arrival.data == "0.0"
    transfer.fails.clear()
    arrival.start(transfer, 0)
    assert lease.log == ["copying", "not_copying", "copying", "release"]
    assert arrival.data is None


@pytest.mark.parametrize("in_process", [False, True])
@pytest.mark.parametrize("pinned", [0, 1])
def test_pinned_memory_of_the_users_own_is_copied_before_it_is_handed_over(monkeypatch, in_process, pinned):
    monkeypatch.setattr(copy_scheduler_module, "count_pinned", lambda data: (pinned, 8 * pinned))
    transfer = FakeTransfer()
    scheduler = CopyScheduler(transfer, 1, 0, False, None, borrows=in_process)
    scheduler.take(HostBatch("0.0", 0, scheduler.key))
    assert transfer.waited_for == [in_process and pinned == 1]


def test_nothing_is_copied_while_torch_drains_an_epoch_that_was_broken_off(make):
    scheduler = make(num_workers=2, ahead=2)
    torchs = [arrive(scheduler, name) for name in ("0.0", "1.0", "0.1", "1.1")]
    assert settle(scheduler) == ["0.0", "1.0"]
    scheduler.take(torchs[0])
    settle(scheduler)
    scheduler.pause()
    before = list(scheduler.transfer.started)
    torchs += [arrive(scheduler, "0.2"), arrive(scheduler, "1.2")]
    assert asleep(scheduler) == before
    torchs.clear()  # torch drops them, whether they had been copied or not
    fresh = [arrive(scheduler, "0.3"), arrive(scheduler, "1.3")]  # of the new epoch, there before resume()
    assert asleep(scheduler) == before
    scheduler.resume()
    assert settle(scheduler) == [*before, "0.3", "1.3"]
    assert scheduler.transfer.numbers[-2:] == [0, 1]
    assert [scheduler.take(batch) for batch in fresh] == ["0.3", "1.3"]


def test_an_epoch_begins_with_worker_0_and_none_ended(make):
    scheduler = make(num_workers=2)
    for name in ("0.0", "1.0", "1.1", "1.2"):
        scheduler.take(arrive(scheduler, name))
    scheduler.pause()
    scheduler.resume()
    second = arrive(scheduler, "1.3")
    assert "1.3" not in settle(scheduler)
    first = arrive(scheduler, "0.1")
    assert settle(scheduler)[-1] == "0.1"
    assert scheduler.take(first) == "0.1"
    assert settle(scheduler)[-1] == "1.3"
    assert scheduler.take(second) == "1.3"


def test_what_torch_drops_is_not_kept(make):
    class Data(str):
        __slots__ = ("__weakref__",)

    scheduler = make(num_workers=2)
    data = Data("1.0")
    gone = weakref.ref(data)
    batch = HostBatch(data, 1, scheduler.key).pin_memory()
    del data
    gc.collect()
    assert gone() is not None
    del batch
    gc.collect()
    assert gone() is None
    scheduler.take(arrive(scheduler, "0.0"))
    assert scheduler.take(arrive(scheduler, "1.1")) == "1.1"


def test_batches_for_an_iterator_that_is_gone_are_dropped(make):
    assert HostBatch("0.0", 0, receiver=-1).pin_memory() is None


class Pinnable:
    def to(self, device):
        return self

    def pin_memory(self):
        return "pinned"


def test_pinning_is_done_on_arrival(make, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, device=None: self + 1)
    scheduler = make(ahead=0, pin=True)
    arrival = HostBatch([torch.zeros(2), "text"], 0, scheduler.key).pin_memory()
    assert arrival.data[0].tolist() == [1, 1]
    assert arrival.data[1] == "text"
    assert make(ahead=0)._open(HostBatch(torch.zeros(1), 0, 0)).data.item() == 0
    small = HostBatch([torch.zeros(2), Pinnable()], 0, scheduler.key, is_small=True).pin_memory()
    assert small.data[0].tolist() == [0, 0]
    assert small.data[1] == "pinned"


def test_closing_stops_the_feeder_after_the_copy_that_it_is_in(make):
    scheduler = make(ahead=3)
    gate = scheduler.transfer.gates["0.1"] = threading.Event()
    queue = [arrive(scheduler, f"0.{i}") for i in range(3)]
    for _ in range(2):
        assert scheduler.transfer.entered.acquire(timeout=WAIT_S)
    thread = scheduler._thread
    assert thread.daemon
    closer = threading.Thread(target=scheduler.close)
    closer.start()
    with scheduler._wake.changed:
        assert scheduler._wake.changed.wait_for(lambda: scheduler._closed, WAIT_S)
    assert scheduler.transfer.closed == 0  # not while a copy is being issued
    gate.set()
    closer.join(WAIT_S)
    assert not thread.is_alive()
    assert scheduler.transfer.started == ["0.0", "0.1"]
    assert scheduler.transfer.closed == 1
    scheduler.close()
    del queue


def test_nothing_starts_after_closing(make):
    scheduler = make()
    scheduler.close()
    batch = arrive(scheduler, "0.0")
    assert scheduler._thread is None
    assert batch.data == "0.0"


def test_the_collector_may_end_an_iterator_in_a_thread_that_holds_a_lock_of_the_feeders(make, monkeypatch):
    monkeypatch.setattr(copy_scheduler_module, "JOIN_S", 0.05)
    scheduler = make()
    arrive(scheduler, "0.0")
    thread = scheduler._thread
    with scheduler._lock:  # as in arrive(), where the collector may run
        scheduler.close()
        assert thread.is_alive()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_a_key_is_never_given_twice():
    """A key stays taken after its owner is gone: its last batch may still arrive."""
    assert len({CopyScheduler(FakeTransfer(), 1, 0, False, None).key for _ in range(50)}) == 50


def test_a_forked_child_does_not_wait_for_its_parents_threads(make):
    scheduler = make()
    arrive(scheduler, "0.0")
    held, forked = threading.Event(), threading.Event()

    def hold():
        with scheduler._lock:
            held.set()
            assert forked.wait(WAIT_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(WAIT_S)
    child = multiprocessing.get_context("fork").Process(target=scheduler.close)
    child.start()
    child.join(WAIT_S)
    forked.set()
    holder.join()
    code = child.exitcode
    child.kill()
    assert code == 0


def test_without_a_thread_to_be_had_the_consumer_copies(make, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    scheduler = make()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert scheduler.take(arrive(scheduler, "0.0")) == "0.0"
    assert scheduler._thread is None
    scheduler.close()


class Decoding:
    """Stands for what a device decodes: says what it is told, once it is told."""

    def __init__(self):
        self.begun, self.ended = threading.Event(), threading.Event()
        self.says = [True]

    def is_right(self):
        self.begun.set()
        assert self.ended.wait(WAIT_S)
        said = self.says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said


@pytest.fixture
def decodes(make, monkeypatch):
    """Makes a scheduler of batches that a device decodes."""

    def of():
        scheduler = make()
        files = {f"0.{number}": Decoding() for number in range(3)}
        opened = lambda batch: Arrival(batch.data, batch.worker, files=files[batch.data])  # noqa: E731
        monkeypatch.setattr(scheduler, "_open", opened)
        return scheduler, files

    return of


def test_a_batch_is_handed_over_once_what_was_decoded_of_it_is_right(decodes):
    scheduler, files = decodes()
    first, second = (arrive(scheduler, f"0.{i}") for i in range(2))
    assert files["0.0"].begun.wait(WAIT_S)
    consumer, taken = asking(scheduler, first)
    assert not taken
    files["0.0"].says = [False, True]  # the host has painted the rest
    files["0.0"].ended.set()
    consumer.join(WAIT_S)
    assert taken == ["0.0"]
    assert first.files is first.data is None
    files["0.1"].ended.set()
    assert scheduler.take(second) == "0.1"
    assert scheduler.transfer.started == ["0.0", "0.0", "0.1"]
    assert scheduler.transfer.numbers == [0, 0, 1]
    assert scheduler.transfer.waited_for == [True, True]


def test_the_next_batch_is_issued_while_the_device_decodes_one_that_the_consumer_waits_for(decodes):
    """If there is room; else the first is waited for."""
    for room in (True, False):
        scheduler, files = decodes()
        scheduler.transfer.room = room
        scheduler.transfer.gates["0.0"] = gate = threading.Event()
        queue = [arrive(scheduler, f"0.{i}") for i in range(3)]
        assert scheduler.transfer.entered.acquire(timeout=WAIT_S)
        consumer, taken = asking(scheduler, queue[0])
        gate.set()
        assert files["0.0"].begun.wait(WAIT_S)
        assert scheduler.transfer.started == ["0.0", "0.1"][: 1 + room]
        assert not taken
        for each in files.values():
            each.ended.set()
        consumer.join(WAIT_S)
        assert [*taken, scheduler.take(queue[1]), scheduler.take(queue[2])] == ["0.0", "0.1", "0.2"]


def test_an_error_of_what_is_decoded_is_the_consumers(decodes):
    scheduler, files = decodes()
    files["0.0"].says = [LookupError("once"), LookupError("twice"), True]
    files["0.0"].ended.set()
    batch = arrive(scheduler, "0.0")
    asleep(scheduler)
    assert str(raised_by(lambda: scheduler.take(batch))) == "twice"
    assert scheduler.transfer.started == ["0.0", "0.0"]


def test_a_consumer_that_waits_for_the_device_goes_on_when_the_thread_ends(decodes):
    scheduler, files = decodes()
    scheduler.transfer.gates["0.0"] = gate = threading.Event()
    first = arrive(scheduler, "0.0")
    assert scheduler.transfer.entered.acquire(timeout=WAIT_S)
    consumer, taken = asking(scheduler, first)
    scheduler._closed = True
    gate.set()
    scheduler._thread.join(WAIT_S)
    files["0.0"].ended.set()
    consumer.join(WAIT_S)
    assert taken == ["0.0"]
