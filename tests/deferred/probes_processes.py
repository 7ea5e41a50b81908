"""Probes with threads, forked children, queues, signals, and tools that watch a process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import cProfile
import ctypes
import faulthandler
import multiprocessing
import os
import pickle
import queue
import resource
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import tracemalloc
from multiprocessing import process, shared_memory
from multiprocessing.pool import ThreadPool
from signal import signal as set_handler
from typing import Any

import numpy as np
import torch
import torchvision.transforms.functional as F

from .probing import in_child, in_thread, probe
from .programs import Opaque

_libc = ctypes.CDLL(None, use_errno=True)


def _through_a_pipe(array: np.ndarray, size: int) -> Any:
    """Write an array's memory to a pipe; return what comes out, or the error."""
    reads, writes = os.pipe()
    try:
        return os.write(writes, memoryview(array).cast("B")[:size]), os.read(reads, size)
    finally:
        os.close(reads)
        os.close(writes)


@probe
def thread_reads(x):
    return in_thread(lambda: x.numpy().copy())


@probe
def thread_computes(x):
    return in_thread(lambda: (x * 2).flip(-1) + 1)


@probe
def thread_changes(x):
    in_thread(lambda: x.mul_(2))
    return x._version


@probe
def thread_writes_by_numpy(x):
    in_thread(lambda: np.copyto(x.numpy()[0], 1, casting="unsafe"))
    return


@probe
def thread_makes(x, make):
    return in_thread(lambda: F.to_tensor(make.image()))


@probe
def thread_makes_and_main_reads(x, make):
    tensors = in_thread(lambda: [make(), make()])
    return tensors[0].sum(), tensors[1]


@probe
def thread_stacks(x):
    return in_thread(lambda: torch.stack([x, x]))


@probe
def thread_calls_the_kernel(x):
    """The kernel reads memory that only the reader's own process may fill."""
    return in_thread(lambda: _through_a_pipe(x.numpy(), 4000))


@probe
def thread_writes_to_a_file(x):
    def write() -> bytes:
        with tempfile.TemporaryFile() as file:
            x.numpy().tofile(file)
            file.seek(0)
            return file.read()

    return in_thread(write)


@probe
def thread_sends(x):
    def send() -> bytes:
        one, other = socket.socketpair()
        with one, other:
            one.sendall(memoryview(x.numpy()).cast("B")[:5000])
            return other.recv(5000, socket.MSG_WAITALL)

    return in_thread(send)


@probe
def thread_receives(x):
    def receive() -> int:
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(bytes(range(256)) * 30)
            file.seek(0)
            return file.readinto(memoryview(x.numpy()).cast("B")[:6000])

    return in_thread(receive)


@probe
def thread_saves(x):
    def save() -> Any:
        with tempfile.NamedTemporaryFile() as file:
            torch.save(x, file.name)
            return torch.load(file.name)

    return in_thread(save)


@probe
def thread_with_all_signals_blocked(x):
    """Pools of C++ libraries block all signals in their threads."""

    def read() -> Any:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        return x.numpy().copy()

    return in_thread(read)


def _blocked_sum(x: torch.Tensor) -> Any:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    value = x.sum().item(), (x * 2).flip(-1)
    return value, before, signal.pthread_sigmask(signal.SIG_SETMASK, ()), signal.pthread_sigmask(signal.SIG_BLOCK, ())


@probe
def thread_computes_with_all_signals_blocked(x):
    return in_thread(lambda: _blocked_sum(x))


@probe
def thread_blocked_signals_before(x, make):
    """A pool's thread keeps the mask that it was started with."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(int).result()
            signal.pthread_sigmask(signal.SIG_SETMASK, former)
            return pool.submit(torch.sum, x).result(), pool.submit(make().mul, 2).result()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


@probe
def thread_with_a_small_stack(x):
    former = threading.stack_size(64 << 10)
    try:
        return in_thread(lambda: x.numpy().copy())
    finally:
        threading.stack_size(former)


@probe
def pool_of_threads(x):
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda at: x[at].sum(), range(3)))


@probe
def pool_that_makes(x, make):
    images = [make.image() for _ in range(4)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(F.to_tensor, images))


@probe
def pool_of_multiprocessings_threads(x):
    with ThreadPool(2) as pool:
        return pool.map(torch.sum, [x, x[0], x[1]])


@probe
def map_of_threads_on_numpy(x):
    with ThreadPool(2) as pool:
        return pool.map(lambda rows: rows.tobytes(), np.array_split(x.numpy(), 4, axis=1))


@probe
def queue_to_another_thread(x):
    sent: queue.Queue[Any] = queue.Queue()
    sent.put(x)
    del x
    return in_thread(lambda: sent.get().numpy().copy())


@probe
def timer_thread(x):
    done, seen = threading.Event(), []
    timer = threading.Timer(0, lambda: (seen.append(x.sum().item()), done.set()))
    timer.start()
    done.wait()
    timer.join()
    return seen


@probe
def thread_local_storage(x):
    local = threading.local()
    local.x = x
    return in_thread(lambda: hasattr(local, "x")), local.x


@probe
def native_thread_reads(x):
    """A thread without Python's state reads the memory from its start."""
    out = ctypes.create_string_buffer(x.numel() * x.element_size())
    libc = ctypes.CDLL(None)
    start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)

    def copy(_: Any) -> None:
        libc.memcpy(out, ctypes.c_void_p(address), ctypes.c_size_t(len(out)))

    address, handle, callback = x.data_ptr(), ctypes.c_ulong(), start(copy)
    assert libc.pthread_create(ctypes.byref(handle), None, callback, None) == 0
    libc.pthread_join(handle, None)
    return out.raw


@probe
def asynchronous(x):
    async def read() -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: x.numpy().copy())

    return asyncio.run(read())


@probe
def sixteen_racing_threads(x):
    barrier, seen = threading.Barrier(16), []

    def read() -> None:
        barrier.wait()
        seen.append(x.double().sum().item())

    threads = [threading.Thread(target=read) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


@probe
def reader_races_with_main(x):
    """One thread reads while the main one adds to the program of a view."""
    go, seen = threading.Event(), []

    def read() -> None:
        go.wait()
        seen.append(x.numpy().tobytes())

    thread = threading.Thread(target=read)
    thread.start()
    go.set()
    y = x * 2 + 1
    z = y.flip(-1)
    thread.join()
    return seen, y, z


@probe
def dropped_by_another_thread(x, make):
    make.made.clear()
    kept = [x]
    del x
    in_thread(kept.clear)
    return make()


# Processes


@probe(forks=True)
def child_reads(x):
    return in_child(lambda: x.numpy().tobytes())


@probe(slow=True, forks=True)
def child_computes(x):
    return in_child(lambda: (x * 2).sum())


@probe(slow=True, forks=True)
def child_reads_after_main(x):
    total = x.sum()
    return total, in_child(lambda: x.sum())


@probe(slow=True, forks=True)
def child_and_main_read(x):
    return in_child(lambda: x.numpy().tobytes()), x.numpy().tobytes()


@probe(forks=True)
def child_changes(x):
    return in_child(lambda: x.mul_(2).sum()), x.sum()


@probe(slow=True, forks=True)
def child_of_a_child_reads(x):
    return in_child(lambda: in_child(lambda: x.numpy().tobytes()))


@probe(slow=True, forks=True)
def child_reads_in_a_thread(x):
    return in_child(lambda: in_thread(lambda: x.numpy().tobytes()))


@probe(slow=True, forks=True)
def child_makes(x, make):
    return in_child(lambda: F.normalize(F.to_tensor(make.image()), [0.5], [0.5]))


@probe(forks=True)
def child_calls_the_kernel(x):
    return in_child(lambda: _through_a_pipe(x.numpy(), 4000))


@probe(slow=True, forks=True)
def child_pickles(x):
    return pickle.loads(in_child(lambda: pickle.dumps(x))[0:0] or pickle.dumps(x))


@probe(forks=True)
def child_reads_while_the_parent_changes(x):
    reads, writes = os.pipe()
    answers, asks = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writes, b"ready")
            os.read(answers, 2)
            os.write(writes, x.numpy().tobytes()[:4000])
        finally:
            os._exit(0)
    os.read(reads, 5)
    x.mul_(2)
    os.write(asks, b"go")
    data = os.read(reads, 4000)
    os.waitpid(child, 0)
    for descriptor in (reads, writes, answers, asks):
        os.close(descriptor)
    return data, x.sum()


def _send_sum(connection: Any, x: torch.Tensor) -> None:
    connection.send((x.double().sum().item(), x.shape))


@probe
def process_of_multiprocessing(x):
    here = process.current_process()
    daemon = here._config.pop("daemon", None)  # as users do whose workers start processes
    try:
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=_send_sum, args=(theirs, x))
        child.start()
        value = ours.recv()
        child.join()
        return value, child.exitcode
    finally:
        here._config["daemon"] = daemon


@probe
def shared_memory_of_multiprocessing(x):
    memory = shared_memory.SharedMemory(create=True, size=x.numel() * x.element_size())
    try:
        array = np.ndarray(x.shape, x.numpy().dtype, memory.buf)
        array[:] = x
        result = array.copy()
        del array
        return result
    finally:
        memory.close()
        memory.unlink()


@probe
def queue_of_multiprocessing(x):
    sent = multiprocessing.get_context("fork").SimpleQueue()
    sent.put(x.numpy()[0])
    value = sent.get()
    sent.close()
    return value


@probe
def queue_of_torch(x):
    sent = torch.multiprocessing.get_context("fork").SimpleQueue()
    sent.put(x[0, :5].clone())
    value = sent.get().clone()
    sent.close()
    return value


@probe
def forking_pickler(x):
    from multiprocessing.reduction import ForkingPickler

    return len(ForkingPickler.dumps(Opaque(x.numpy()))) > x.numel()


@probe
def program_of_its_own(x):
    import subprocess

    done = subprocess.run(["cat"], input=x.numpy().tobytes(), capture_output=True, check=True)
    return done.stdout


@probe
def program_reads_its_buffer(x):
    import subprocess

    with tempfile.TemporaryFile() as file:
        subprocess.run(["cat"], input=memoryview(x.numpy()).cast("B"), stdout=file, check=True)
        file.seek(0)
        return file.read()


# Tools


@probe
def traced_lines(x):
    lines: list[int] = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        lines.append(frame.f_lineno)
        return trace

    sys.settrace(trace)
    try:
        y = (x * 2).flip(-1)
    finally:
        sys.settrace(None)
    return y


@probe
def traced_locals(x):
    """A debugger shows the values of variables."""
    seen: list[str] = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_name == "inner":
            seen.append(str(frame.f_locals.get("y"))[:200])
        return trace

    def inner() -> torch.Tensor:
        y = x * 2
        y.add_(1)
        return y

    sys.settrace(trace)
    try:
        z = inner()
    finally:
        sys.settrace(None)
    return seen, z


@probe
def profiled_calls(x):
    names: list[str] = []
    sys.setprofile(lambda frame, event, argument: names.append(event))
    try:
        y = x * 2 + 1
    finally:
        sys.setprofile(None)
    return y, len(names) > 0


@probe
def profiled_returns(x):
    """A profiler reads what C functions are given."""
    seen: list[Any] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ == "flip":
            sys.setprofile(None)
            seen.append(x.sum().item())
            sys.setprofile(profile)

    sys.setprofile(profile)
    try:
        y = x.flip(-1)
    finally:
        sys.setprofile(None)
    return len(seen) > 0, y


@probe
def profiled(x):
    with cProfile.Profile() as profile:
        y = (x.float() * 2).flip(-1)
    return y, len(profile.getstats()) > 0


@probe
def traced_memory(x):
    tracemalloc.start()
    try:
        y = x.clone()
        taken = tracemalloc.take_snapshot() is not None
    finally:
        tracemalloc.stop()
    return y, taken


@probe
def audited(x):
    return x.numpy().copy(), sys.audit("fastload.test", x)


@probe
def exception_with_it(x):
    try:
        raise ValueError(x)
    except ValueError as error:
        return error.args[0].sum(), str(error)[:80]


@probe
def exception_leaves_it(x):
    def inner() -> None:
        y = x * 2
        raise LookupError(f"of {y.shape}")

    return inner()


@probe
def recursion(x):
    def inner(depth: int) -> Any:
        return inner(depth + 1)

    try:
        inner(0)
    except RecursionError:
        return x.sum()


@probe
def resource_limits(x):
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(former[0], 64), former[1]))
    try:
        return x.sum(), x * 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)


@probe
def handler_of_an_alarm(x):
    """A signal's handler reads the tensor while torch works on it."""
    seen: list[Any] = []
    former = signal.signal(signal.SIGUSR2, lambda *_: seen.append(x.sum().item()))
    try:
        os.kill(os.getpid(), signal.SIGUSR2)
        while not seen:
            time.sleep(0)
        return seen
    finally:
        signal.signal(signal.SIGUSR2, former)


@probe
def selected(x):
    return select.select([], [], [], 0), x.sum()


# From here, what may change how the process handles faults.


@probe(alone=True)
def fault_handler_enabled_before(x, make):
    with tempfile.TemporaryFile() as file:
        faulthandler.disable()
        faulthandler.enable(file)
        try:
            y = make()
            return y.numpy().copy(), in_thread(lambda: make().numpy().copy())
        finally:
            faulthandler.disable()


@probe(alone=True)
def fault_handler_enabled_after(x):
    with tempfile.TemporaryFile() as file:
        faulthandler.disable()
        faulthandler.enable(file)
        try:
            return in_thread(lambda: x.numpy().copy())
        finally:
            faulthandler.disable()


@probe(alone=True)
def fault_handler_disabled_after(x):
    faulthandler.disable()
    return in_thread(lambda: x.numpy().copy())


@probe(alone=True)
def fault_handler_dumps(x):
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return b"fault_handler_dumps" in file.read(), x.sum()


@probe(alone=True)
def python_handler_before(x, make):
    signal.signal(signal.SIGSEGV, lambda *_: None)
    y = make()
    return in_thread(lambda: y.numpy().copy()), make()


@probe(alone=True)
def python_handler_after(x):
    signal.signal(signal.SIGSEGV, lambda *_: None)
    return x.numpy().copy()


@probe(alone=True)
def python_handler_after_and_a_thread(x):
    signal.signal(signal.SIGSEGV, lambda *_: None)
    return in_thread(lambda: x.numpy().copy())


@probe(alone=True)
def python_handler_by_another_name_and_a_thread(x):
    set_handler(signal.SIGSEGV, lambda *_: None)
    return in_thread(lambda: x.sum())


@probe(alone=True)
def default_handler_and_a_thread(x):
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    return in_thread(lambda: x.flatten()[:9].tolist())


@probe(alone=True)
def python_handler_of_bus_errors(x):
    signal.signal(signal.SIGBUS, lambda *_: None)
    return in_thread(lambda: x.numpy().copy())


@probe(alone=True)
def python_handler_is_what_it_was(x):
    return str(signal.getsignal(signal.SIGSEGV)), str(signal.getsignal(signal.SIGBUS))


@probe(alone=True)
def default_handler_after(x):
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    return in_thread(lambda: x.numpy().copy())


@probe(alone=True)
def default_handler_set_in_c(x):
    _libc.signal(signal.SIGSEGV, ctypes.c_void_p(0))
    return in_thread(lambda: ctypes.string_at(x.data_ptr(), 5000))


@probe(alone=True)
def fault_ignored(x):
    signal.signal(signal.SIGSEGV, signal.SIG_IGN)
    return in_thread(lambda: x.numpy().copy())


@probe(alone=True)
def faults_blocked_in_main(x):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGSEGV, signal.SIGBUS})
    return ctypes.string_at(x.data_ptr(), 5000), in_thread(lambda: x.numpy().copy())


@probe(alone=True)
def handlers_of_torch_again(x):
    torch._C._set_worker_signal_handlers()
    return in_thread(lambda: x.numpy().copy())


@probe(forks=True)
def a_real_fault_still_ends_a_child(x):
    """Where nothing is mapped, a process ends by SIGSEGV as it always did."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 2)
        ctypes.string_at(16)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), x.sum()


@probe(alone=True)
def limited_address_space(x, make):
    """There is no memory to paint into."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    former = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), former[1]))
    try:
        return x.numpy().copy(), make().sum()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, former)


@probe(alone=True)
def address_space_that_a_worker_limits_for_itself(x, make):
    former = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, former[1]))
    try:
        return torch.ones(24 << 20).sum(), make(), x
    finally:
        resource.setrlimit(resource.RLIMIT_AS, former)


@probe(alone=True)
def no_descriptors_left(x, make):
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, former[1]))
    try:
        return x.numpy().copy(), (x * 2).sum()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)


@probe(alone=True)
def many_mappings(x):
    """The process has nearly as many mappings as the kernel allows."""
    import mmap

    maps = [
        mmap.mmap(-1, 4096, prot=(mmap.PROT_READ if at % 2 else mmap.PROT_READ | mmap.PROT_WRITE)) for at in range(3000)
    ]
    value = x.numpy().copy()
    for each in maps:
        each.close()
    return value
