"""Worker processes are started and ended whole, wherever a signal interrupts that."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import popen_fork, util
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from backends import BACKENDS, parameters, simulated
from backends.datasets import Numbers
from children import exit_code, forked
from torch.utils.data import DataLoader, SequentialSampler

from fastload import FastLoader
from fastload.loader_state import state_of
from fastload.torch_workers import processes as shutdown

WAIT_S = 30
WITH_WORKERS = ("plain", "wrapped", "simulated")


@pytest.fixture(autouse=True)
def interrupts():
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.fixture(params=parameters(*WITH_WORKERS))
def make(request, monkeypatch):
    """Makes a FastLoader whose batches come from two worker processes."""
    if request.param == "simulated":
        simulated.install(monkeypatch)

    def of(dataset=None, **arguments):
        own = {"batch_size": 2, "num_workers": 2, **arguments}
        return BACKENDS[request.param].loader(dataset or Numbers(8), **own)

    return of


@pytest.fixture
def pinning(monkeypatch):
    simulated.install(monkeypatch)
    return lambda dataset=None, **own: FastLoader(dataset or Numbers(8), 2, num_workers=2, device="cuda", **own)


def host_of(iterator):
    return vars(iterator).get("_host", iterator)


def once(function, *, after=False):
    """``function``, that is interrupted the first time: before it does anything, or when it has."""
    left = [KeyboardInterrupt]

    def interrupted(*args, **kwargs):
        if left and not after:
            raise left.pop()
        result = function(*args, **kwargs)
        if left:
            raise left.pop()
        return result

    return interrupted


def numbers_of(batches):
    return [int(number) for _, numbers in batches for number in numbers]


def interrupted_by(function):
    """Run it, and require a KeyboardInterrupt. Its frames are not kept."""
    try:
        function()
    except KeyboardInterrupt:
        return
    raise AssertionError("no KeyboardInterrupt")


@pytest.mark.parametrize("worker", [0, 1])
def test_an_interrupt_after_a_worker_was_started_waits_for_the_others_and_ends_them_all(make, monkeypatch, worker):
    started = []
    launch = popen_fork.Popen._launch

    def interrupted(self, process_object):
        launch(self, process_object)
        started.append(self.pid)
        if len(started) == worker + 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(popen_fork.Popen, "_launch", interrupted)
    loader = make()
    with pytest.raises(KeyboardInterrupt) as caught:
        iter(loader)
    assert len(started) == 2
    assert multiprocessing.active_children() == []  # though the traceback keeps their iterator
    del caught


def test_an_interrupt_of_a_worker_that_is_being_forked_ends_it_quietly(make, monkeypatch, capfd):
    bootstrap = BaseProcess._bootstrap

    def interrupted(self, *args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        return bootstrap(self, *args, **kwargs)

    monkeypatch.setattr(BaseProcess, "_bootstrap", interrupted)
    iterator = iter(make())
    workers = list(host_of(iterator)._workers)
    for worker in workers:
        worker.join(WAIT_S)
    assert [worker.exitcode for worker in workers] == [0, 0]
    shutdown.shut_down(host_of(iterator))
    assert capfd.readouterr().err == ""


class Handlers(Numbers):
    """Says who handles signals in the worker."""

    def __getitem__(self, index):
        return int(signal.getsignal(signal.SIGINT) is signal.default_int_handler)


def test_workers_have_the_usual_handlers(make):
    assert [batch.tolist() for batch in make(Handlers(4))] == [[1, 1], [1, 1]]


class Alarmed(Exception):
    pass


def test_a_sampler_that_takes_long_can_be_interrupted(make):
    """As with torch, for instance by an alarm."""
    went_on = []

    def alarm(number, frame):
        raise Alarmed

    class Stuck(SequentialSampler):
        def __iter__(self):
            yield 0
            signal.raise_signal(signal.SIGALRM)
            went_on.append(True)
            yield 1

    former = signal.signal(signal.SIGALRM, alarm)
    try:
        with pytest.raises(Alarmed) as caught:
            iter(make(sampler=Stuck(range(2))))
    finally:
        signal.signal(signal.SIGALRM, former)
    assert not went_on
    del caught
    gc.collect()


def test_persistent_workers_whose_restart_is_interrupted_are_replaced(make, monkeypatch):
    loader = make(persistent_workers=True)
    assert numbers_of(loader) == list(range(8))
    host = host_of(loader._iterator)
    workers = list(host._workers)
    monkeypatch.setattr(host, "_get_data", once(host._get_data))
    interrupted_by(lambda: iter(loader))
    assert [worker.is_alive() for worker in workers] == [False, False]
    assert numbers_of(loader) == list(range(8))
    assert numbers_of(loader) == list(range(8))
    loader.close()


def test_persistent_workers_stay_when_the_sampler_fails(make):
    class Sampler(SequentialSampler):
        fails = False

        def __iter__(self):
            if self.fails:
                raise ConnectionError
            return super().__iter__()

    sampler = Sampler(range(8))
    loader = make(sampler=sampler, persistent_workers=True)
    list(loader)
    pids = [worker.pid for worker in host_of(loader._iterator)._workers]
    sampler.fails = True
    with pytest.raises(ConnectionError):
        iter(loader)
    sampler.fails = False
    assert numbers_of(loader) == list(range(8))
    assert [worker.pid for worker in host_of(loader._iterator)._workers] == pids
    loader.close()


def test_a_persistent_worker_that_died_is_torchs_error_in_each_epoch(make, monkeypatch):
    loader = make(persistent_workers=True)
    list(loader)
    host = host_of(loader._iterator)
    host._workers[0].terminate()  # torch's worker then exits with 0, so that no SIGCHLD says it before
    host._workers[0].join(WAIT_S)
    monkeypatch.setattr(host, "_try_get_data", functools.partial(host._try_get_data, 0.1))  # and not 5 s
    for _ in range(2):
        with pytest.raises(RuntimeError, match="exited unexpectedly"):
            iter(loader)
    loader.close()


def ended(host):
    """Nothing is left of torch's iterator."""
    thread = getattr(host, "_pin_memory_thread", None)
    feeds = [queue._thread for queue in (*host._index_queues, host._worker_result_queue) if queue._thread is not None]
    for feed in feeds:  # the last to go; they were told
        threading.Thread.join(feed, WAIT_S)
    threads = [*feeds, *([thread] if thread is not None else [])]
    return not any(worker.is_alive() for worker in host._workers) and not any(t.is_alive() for t in threads)


STEPS = {  # of closing, and of torch's _shutdown_workers at the end of an epoch
    "begin": lambda host, _: (host._workers_done_event, "set"),
    "worker": lambda host, at_the_end: (
        (host, "_mark_worker_as_unavailable") if at_the_end else (host._index_queues[0], "put")
    ),
    "join": lambda host, _: (host._workers[0], "join"),
    "queues": lambda host, _: (host._index_queues[0], "cancel_join_thread"),
    "pids": lambda host, at_the_end: (
        (torch.utils.data._utils.signal_handling if at_the_end else torch._C),
        "_remove_worker_pids",
    ),
}


@pytest.mark.each_value
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("at_the_end", [False, True])
def test_closing_or_ending_that_is_interrupted_leaves_nothing(make, monkeypatch, step, at_the_end):
    loader = make(Numbers(2))
    iterator = iter(loader)
    next(iterator)
    host = host_of(iterator)
    with monkeypatch.context() as patched:
        where, name = STEPS[step](host, at_the_end)
        patched.setattr(where, name, once(getattr(where, name)))
        interrupted_by((lambda: next(iterator)) if at_the_end else loader.close)
        assert ended(host)
    loader.close()


PIN_STEPS = {
    "event": lambda host: (host._pin_memory_thread_done_event, "set"),
    "message": lambda host: (host._worker_result_queue, "put"),
    "join": lambda host: (threading.Thread, "join"),
    "thread": lambda host: (threading.Thread, "start"),  # of the one that feeds the queue with the message
}


# Interrupted there, torch ends workers while the thread takes a batch from them.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("step", PIN_STEPS)
def test_closing_that_is_interrupted_ends_the_thread_that_pins(pinning, monkeypatch, step):
    loader = pinning(Numbers(2))  # workers are idle after that; one that writes would take the queue's lock with it
    iterator = iter(loader)
    next(iterator)
    host = host_of(iterator)
    where, name = PIN_STEPS[step](host)
    with monkeypatch.context() as patched:
        patched.setattr(where, name, once(getattr(where, name), after=step == "thread"))
        interrupted_by(loader.close)
    assert ended(host)


LOCKS = {
    "indices": lambda host: host._index_queues[0]._notempty,
    "results": lambda host: host._worker_result_queue._notempty,
    "pinned": lambda host: host._data_queue.mutex,
    "pinning": lambda host: host._pin_memory_thread_done_event._cond,
    "done": lambda host: host._workers_done_event._cond,
    "thread": lambda host: host._index_queues[0]._thread._started._cond,
}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_that_an_interrupt_left_taken_does_not_keep_closing(pinning, monkeypatch, lock):
    monkeypatch.setattr(shutdown, "_LEFT_S", 0.05)
    loader = pinning()
    iterator = iter(loader)
    next(iterator)
    host = host_of(iterator)
    LOCKS[lock](host).acquire()
    loader.close()
    assert ended(host)


def test_a_lock_that_a_dead_process_holds_keeps_nobody_and_counts_as_free(make, monkeypatch):
    """Releasing it for the dead left its count at -1, with which ``Event.set`` fails."""
    monkeypatch.setattr(shutdown, "_LEFT_S", 0.05)
    loader = make()
    iterator = iter(loader)
    host = host_of(iterator) or iterator
    event = host._workers_done_event
    taker = multiprocessing.get_context("fork").Process(target=event._cond.acquire)
    taker.start()
    taker.join()
    del taker
    shutdown.shut_down(host)
    event.set()
    assert ended(host)


@pytest.mark.parametrize("end", [shutdown._finish, shutdown.shut_down, lambda host: None])
@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_shared_memory_of_ended_workers_is_unlinked_where_nobody_opens_it_by_name(make, monkeypatch, strategy, end):
    iterator = iter(make(persistent_workers=True))
    host = host_of(iterator) or iterator
    monkeypatch.setattr(torch.multiprocessing, "get_sharing_strategy", lambda: strategy)
    other = Path(f"/dev/shm/torch_{os.getpid()}_1_0")
    pids = [worker.pid for worker in host._workers]
    left = [Path(f"/dev/shm/torch_{pid}_1_0") for pid in pids]
    try:
        for file in (other, *left):
            file.touch()
        end(host)
        del iterator, host
        gc.collect()
        assert other.exists()
        assert [file.exists() for file in left] == 2 * [strategy == "file_system"]
    finally:  # also what a worker had just made when it was ended: with "file_system" fastload leaves it
        for pid in [os.getpid(), *pids]:
            for file in Path("/dev/shm").glob(f"torch_{pid}_*"):
                file.unlink(missing_ok=True)


def test_a_forked_child_leaves_the_shared_memory_of_its_parents_workers_alone(make):
    iterator = iter(make())
    host = host_of(iterator) or iterator
    file = Path(f"/dev/shm/torch_{host._workers[0].pid}_1_0")
    file.touch()
    try:
        assert exit_code(forked(lambda: shutdown._clean_up(host))) == 0
        assert file.exists()
        shutdown.shut_down(host)
        assert not file.exists()
    finally:
        file.unlink(missing_ok=True)


def test_shared_memory_that_may_not_be_unlinked_does_not_keep_closing(make, monkeypatch):
    iterator = iter(make())
    host = host_of(iterator) or iterator
    file = Path(f"/dev/shm/torch_{host._workers[0].pid}_1_0")

    def unlink(self, missing_ok=False):
        raise PermissionError(self)

    try:
        file.touch()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", unlink)
            shutdown.shut_down(host)
        assert ended(host)
    finally:
        file.unlink()


def test_a_lock_that_an_interrupted_next_left_taken_keeps_nobody(pinning, monkeypatch):
    """Not even torch's own shutdown, when the iterator is dropped."""
    monkeypatch.setattr(shutdown, "_LEFT_S", 0.05)
    iterator = iter(pinning(prefetch_factor=1))
    host = host_of(iterator)

    def interrupted(timeout):  # as in Condition.__enter__
        host._data_queue.mutex.acquire()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(host._data_queue, "get", interrupted)
        interrupted_by(lambda: next(iterator))
    assert numbers_of(iterator) == list(range(8))


class Gate:
    """A batch that is not pinned before it is told."""

    entered, opened = threading.Event(), threading.Event()

    def __init__(self, samples):
        self.samples = samples

    def pin_memory(self):
        self.entered.set()
        assert self.opened.wait(WAIT_S)
        return self


def test_closing_does_not_wait_for_ever_for_a_batch_that_is_being_pinned(pinning, monkeypatch):
    monkeypatch.setattr(shutdown, "JOIN_S", 0.1)
    loader = pinning(collate_fn=Gate, pin_memory=True)
    iterator = iter(loader)
    assert Gate.entered.wait(WAIT_S)
    host = host_of(iterator)
    before = time.monotonic()
    loader.close()
    took_s = time.monotonic() - before
    still = host._pin_memory_thread.is_alive()
    Gate.opened.set()
    assert still
    assert took_s < WAIT_S / 2
    threading.Thread.join(host._pin_memory_thread, WAIT_S)
    assert ended(host)


class Deaf(Numbers):
    """Its worker does not end when it is asked to."""

    stubborn = True

    def __getitem__(self, index):
        if self.stubborn:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(self.tells, b".")
        threading.Event().wait(WAIT_S)


def test_a_worker_that_does_not_end_is_killed_when_closing_is_interrupted(monkeypatch):
    dataset = Deaf(2)
    ready, dataset.tells = os.pipe()
    loader = FastLoader(dataset, num_workers=1, device="cpu")
    iterator = iter(loader)
    os.read(ready, 1)
    host = host_of(iterator)
    monkeypatch.setattr(host._workers_done_event, "set", once(host._workers_done_event.set))
    monkeypatch.setattr(
        host._workers[0], "join", lambda timeout: BaseProcess.join(host._workers[0], 0.1)
    )  # and not 5 s
    interrupted_by(loader.close)
    BaseProcess.join(host._workers[0], WAIT_S)
    assert host._workers[0].exitcode == -signal.SIGKILL
    os.close(ready)
    os.close(dataset.tells)


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_closing_does_not_wait_for_samples_that_stall(make, monkeypatch, stubborn, persistent):
    """Not for each of their workers, one after the other, as torch does."""
    monkeypatch.setattr(shutdown, "ASKED_S", 0.05)
    dataset = Deaf(4)
    dataset.stubborn = stubborn
    ready, dataset.tells = os.pipe()
    loader = make(dataset, batch_size=1, persistent_workers=persistent)
    iterator = iter(loader)
    for _ in range(2):
        os.read(ready, 1)
    workers = host_of(iterator)._workers
    waits = []
    monkeypatch.setattr(
        BaseProcess, "join", lambda self, wait_s, join=BaseProcess.join: join(self, waits.append(wait_s) or wait_s)
    )
    loader.close()
    ends = {-signal.SIGKILL if stubborn else 0}  # which torch makes of SIGTERM
    assert {worker.exitcode for worker in workers} == ends
    assert max(waits[:4]) <= 0.05
    os.close(ready)
    os.close(dataset.tells)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_threads_may_share_an_iterator(make, num_workers):
    """Torch's own also gives every batch once, though only one thread returns at the end."""
    iterator = iter(make(Numbers(400), num_workers=num_workers))
    took, errors = [], []

    def consume():
        try:
            took.extend(iterator)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert errors == []
    assert sorted(numbers_of(took)) == list(range(400))


ENDS_IN_MID_EPOCH = """
import atexit, sys
atexit.register(lambda: print([thread.is_alive(), *(worker.is_alive() for worker in workers)]))  # the last to run
import pytest
from backends import simulated
from backends.datasets import Numbers
from fastload import FastLoader

simulated.install(pytest.MonkeyPatch())
iterator = iter(FastLoader(Numbers(10_000), batch_size=2, num_workers=2, device="cuda"))
thread, workers = iterator._pin_memory_thread, iterator._workers
for _ in iterator:
    sys.exit(3)
"""


@pytest.mark.slow
def test_a_program_that_ends_in_mid_epoch_ends_the_thread_that_pins_before_the_workers():
    """Otherwise the thread may be receiving from a worker that ends, and print a traceback."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-W", "ignore", "-c", ENDS_IN_MID_EPOCH]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": path})
    assert (done.returncode, done.stdout, done.stderr) == (3, "[False, False, False]\n", "")


def test_the_end_of_the_program_completes_a_shutdown_and_ends_others_after_an_error(make, monkeypatch):
    failing, interrupted = (host_of(iter(make(Numbers(40)))) for _ in range(2))
    interrupted._shutdown = True
    failing._index_queues[0].put = None
    shutdown._end_with_the_program()
    assert [worker.exitcode for worker in interrupted._workers] == [0, 0]
    del failing._index_queues[0].put
    shutdown.shut_down(failing)


ENDS = ("loader.close()", "shutdown.shut_down(host)", "del loader, iterator, host", "util._exit_function()")


@pytest.mark.each_value
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("persistent", [False, True])
def test_what_a_forked_child_ends_goes_on_in_its_parent(make, end, persistent):
    """In torch the child ends the workers, for which the parent then waits forever."""
    held = {"loader": make(Numbers(40), persistent_workers=persistent)}
    held["iterator"] = iter(held["loader"])
    held["host"] = host_of(held["iterator"])
    numbers = numbers_of([next(held["iterator"])])

    def child():
        exec(end, {"shutdown": shutdown, "util": util}, held)
        gc.collect()

    assert exit_code(forked(child)) == 0
    assert numbers + numbers_of(held["iterator"]) == list(range(40))
    if persistent:
        assert numbers_of(held["loader"]) == list(range(40))
    held["loader"].close()


@pytest.mark.parametrize("end", [lambda held: shutdown._end_with_the_program(), list.clear])
def test_a_forked_child_leaves_its_parents_workers_alone(make, end):
    held = [iter(make(Numbers(100)))]

    def in_child():
        end(held)
        assert numbers_of(make()) == list(range(8))  # of workers of its own

    assert exit_code(forked(in_child)) == 0
    assert numbers_of(held[0]) == list(range(100))


@pytest.mark.parametrize("persistent", [False, True])
def test_a_forked_child_iterates_with_workers_of_its_own(make, persistent):
    """In torch it asks the parent's, and both wait forever."""
    loader = make(Numbers(40), persistent_workers=persistent)
    iterator = iter(loader)
    numbers = numbers_of([next(iterator)])

    def in_child():
        with pytest.raises(RuntimeError):
            next(iterator)
        assert numbers_of(loader) == list(range(40))
        loader.close()

    assert exit_code(forked(in_child)) == 0
    assert numbers + numbers_of(iterator) == list(range(40))
    loader.close()


def test_a_forked_child_can_make_an_iterator_where_an_inherited_one_was(make):
    """Torch lists workers by their iterator's address, and refuses one that is listed."""
    iterator = iter(make(Numbers(40)))
    host = host_of(iterator)

    def in_child():
        torch._C._set_worker_pids(id(host), ())

    assert exit_code(forked(in_child)) == 0


@contextlib.contextmanager
def held_by_another_thread(locks):
    taken, done = threading.Event(), threading.Event()

    def hold():
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            taken.set()
            done.wait(WAIT_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(WAIT_S)
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_forked_child_keeps_nothing_of_the_epochs_that_it_ends(make):
    loader = make()
    held = [iter(loader)]
    state = state_of(loader)
    locks = [state._lock, state._meters._lock]
    if hasattr(held[0], "transfer"):
        locks += [held[0].transfer._lock, held[0].scheduler._lock]

    def in_child():
        numbers_of(loader)
        held.clear()
        descriptors = len(os.listdir("/proc/self/fd"))
        numbers_of(loader)
        until = time.monotonic() + 10  # queues' threads close some
        while len(os.listdir("/proc/self/fd")) > descriptors and time.monotonic() < until:
            time.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        assert (state._transfers, loader.stats().batches) == ({}, 8)

    with held_by_another_thread(locks):
        child = forked(in_child)
    assert exit_code(child) == 0


@pytest.fixture
def no_worker_is_terminated(monkeypatch):
    """Require that each ends by itself, before the wait after which torch terminates it."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 20.0)
    terminated = []
    monkeypatch.setattr(BaseProcess, "terminate", terminated.append)
    yield
    assert terminated == []


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_workers_end_at_once_when_a_collection_frees_their_iterator(make, no_worker_is_terminated, persistent_workers):
    """A collection also ends the queues by which they are told, before anything else."""
    held = [iter(make(persistent_workers=persistent_workers))]
    next(held[0])
    workers = host_of(held[0])._workers
    held.append(held)
    del held
    gc.collect()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert shutdown._live == {}


def test_an_object_that_ends_the_workers_when_it_is_deleted_ends_them(make, no_worker_is_terminated):
    """As of a loader that keeps its iterator, and ends it itself."""

    class Owner:
        def __init__(self, iterator):
            self.iterator = iterator

        def __del__(self):
            self.iterator._shutdown_workers()

    host = host_of(iter(make()))
    owner = Owner(host)
    del owner
    assert [worker.exitcode for worker in host._workers] == [0, 0]


class Collects:
    """A batch that is pinned, and collects garbage there, once its iterator is garbage."""

    entered, dropped = threading.Event(), threading.Event()

    def __init__(self, samples):
        self.samples = samples

    def pin_memory(self):
        if not self.dropped.is_set():
            self.entered.set()
            assert self.dropped.wait(WAIT_S)
            gc.collect()
        return self


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_workers_end_at_once_when_the_thread_that_pins_collects_its_iterator(pinning, no_worker_is_terminated):
    held = [iter(pinning(collate_fn=Collects, pin_memory=True))]
    workers, thread = host_of(held[0])._workers, host_of(held[0])._pin_memory_thread
    assert Collects.entered.wait(WAIT_S)
    held.append(held)
    gc.disable()
    del held
    Collects.dropped.set()
    threading.Thread.join(thread, WAIT_S)
    gc.enable()
    assert [worker.exitcode for worker in workers] == [0, 0]


class Empty(SequentialSampler):
    def __iter__(self):
        yield 0
        raise ConnectionError


def test_workers_end_with_the_error_of_a_sampler_at_the_start(make):
    """Not with its traceback, which holds the iterator."""
    with pytest.raises(ConnectionError) as caught:
        iter(make(sampler=Empty(range(8))))
    assert multiprocessing.active_children() == []
    del caught


@pytest.mark.parametrize("collected", [False, True])
def test_an_interrupt_while_a_dropped_iterator_ends_is_raised_afterwards(make, monkeypatch, collected):
    held = [iter(make())]
    next(held[0])
    host = host_of(held[0])
    workers, join = host._workers, host._workers[0].join

    def interrupted(timeout):
        signal.raise_signal(signal.SIGINT)
        join(timeout)

    monkeypatch.setattr(workers[0], "join", interrupted)
    del host
    if collected:
        held = [[held]]
        held[0].append(held[0])

    def drop():
        held.clear()
        if collected:
            gc.collect()  # finalizers of others might swallow the interrupt
        time.sleep(WAIT_S)

    interrupted_by(drop)
    assert not any(worker.is_alive() for worker in workers)


def test_torch_is_as_this_file_takes_it():
    """What is named here by hand exists in the installed torch."""
    assert len(shutdown._OPEN_IN) == 4
    iterator = iter(DataLoader(Numbers(2), num_workers=1))
    names = (
        "_index_queues",
        "_worker_result_queue",
        "_workers_done_event",
        "_workers",
        "_shutdown",
        "_worker_pids_set",
    )
    assert [name for name in names if not hasattr(iterator, name)] == []
    shutdown.shut_down(iterator)
    assert ended(iterator)


class Bad(Numbers):
    def __getitem__(self, index):
        if index == 2:
            raise ValueError("a bad sample")
        return super().__getitem__(index)


def test_an_error_of_a_sample_is_not_looked_into_for_locks(make, monkeypatch):
    """Other code may hold the locks; other libraries' queues may have none."""
    monkeypatch.setattr(shutdown, "_release_left_locks", lambda iterator: pytest.fail("there was no interrupt"))
    iterator = iter(make(Bad(8)))
    next(iterator)
    with pytest.raises(ValueError, match="a bad sample"):
        next(iterator)
    assert len(list(iterator)) == 2
    monkeypatch.undo()


def test_a_lock_left_by_an_interrupt_while_a_batch_is_received_keeps_nobody(make):
    """The unpinned backend: the consumer receives by itself, under the queue's own lock."""
    iterator = iter(make())
    host = host_of(iterator) or iterator
    if hasattr(host, "_pin_memory_thread"):
        shutdown.shut_down(host)
        pytest.skip("a thread receives there")
    next(iterator)
    host._worker_result_queue._rlock.acquire()  # as an interrupt leaves it right after
    shutdown.after_error(host, KeyboardInterrupt())
    assert len(list(iterator)) == 3


class Closing(FastLoader):
    closed = 0

    def __del__(self):
        Closing.closed += 1


def test_a_users_del_runs_for_the_loader_and_for_no_view_of_it():
    loader = Closing(Numbers(8), 2, num_workers=1, device="cpu")
    for _ in range(2):
        assert len(list(loader)) == 4
    gc.collect()
    assert Closing.closed == 0
    del loader
    gc.collect()
    assert Closing.closed == 1


def test_no_workers_can_be_written_as_a_float_as_in_torch():
    assert len(list(FastLoader(Numbers(8), 2, num_workers=0.0, device="cpu"))) == 4
